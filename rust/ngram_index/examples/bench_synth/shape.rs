//! What real text looks like, as `bench.synthetic_fit` measured it.

use serde::Deserialize;

/// The tables of `bench/synthetic_shape.json`.
#[derive(Deserialize)]
pub struct Shape {
    /// Rank of a token by its count, and the count.
    pub token_counts: Vec<(f64, f64)>,
    /// How many different tokens follow a token.
    pub successors: Vec<Row>,
    /// log2 of a token's number of successors and the exponent by which it grows with the corpus.
    pub successor_growth: Vec<(f64, f64)>,
    pub bigram_count_octaves: Vec<f64>,
    /// How many different tokens follow a bigram.
    pub children: Vec<Row>,
    /// log2 of how often a bigram was seen and the exponent by which its children beyond the first change with the corpus.
    pub children_drift: Vec<(f64, f64)>,
    pub trigram_count_octaves: Vec<f64>,
}

/// Quantiles of log2 of how many tokens follow a context that was seen about so often.
#[derive(Deserialize)]
pub struct Row {
    pub log2_seen: f64,
    pub log2_followed: Vec<f64>,
}

/// Rows from which the table is continued beyond its end.
const SLOPE_ROWS: usize = 5;

impl Shape {
    /// Count of the token of a rank from 1 in the measured corpus.
    pub fn token_count(&self, rank: u64) -> f64 {
        let points = self.token_counts.iter().map(|(rank, count)| (rank.log2(), count.log2()));
        interpolate(points, (rank as f64).log2()).exp2()
    }

    /// Distinct tokens of the measured corpus.
    pub fn token_ranks(&self) -> u64 {
        self.token_counts.last().map_or(1, |(rank, _)| *rank as u64)
    }

    /// How many different tokens follow a bigram seen `seen` times in a corpus that is `scale` times as large.
    pub fn children(&self, seen: f64, scale: f64, at: f64) -> f64 {
        let measured = followed(&self.children, seen, at);
        let exponent = interpolate(self.children_drift.iter().copied(), seen.log2());
        1.0 + (measured - 1.0) * scale.powf(exponent)
    }

    /// A number of successors in a corpus that is `scale` times as large.
    pub fn grown(&self, successors: f64, scale: f64) -> f64 {
        const STEPS: usize = 64;
        let mut log2 = successors.log2();
        for _ in 0..STEPS {
            let exponent = interpolate(self.successor_growth.iter().copied(), log2);
            log2 += exponent * scale.log2() / STEPS as f64;
        }
        log2.exp2()
    }
}

/// How many tokens follow a context seen `seen` times; `at` in [0, 1) chooses the quantile.
pub fn followed(rows: &[Row], seen: f64, at: f64) -> f64 {
    let log2 = seen.log2();
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return 1.0;
    };
    let value = |row: &Row| {
        let middle = at * row.log2_followed.len() as f64 - 0.5;
        let low = (middle.max(0.0) as usize).min(row.log2_followed.len() - 1);
        let high = (low + 1).min(row.log2_followed.len() - 1);
        row.log2_followed[low] + (row.log2_followed[high] - row.log2_followed[low]) * (middle - low as f64).max(0.0)
    };
    let (before, after) = match rows.partition_point(|row| row.log2_seen <= log2) {
        0 => return value(first).exp2(),
        past if past == rows.len() => (&rows[past.saturating_sub(SLOPE_ROWS + 1)], last),
        inside => (&rows[inside - 1], &rows[inside]),
    };
    let slope = (value(after) - value(before)) / (after.log2_seen - before.log2_seen).max(f64::MIN_POSITIVE);
    (value(after) + slope * (log2 - after.log2_seen)).exp2()
}

/// Between points that ascend by x; beyond the ends the value of the end.
fn interpolate(points: impl Iterator<Item = (f64, f64)>, x: f64) -> f64 {
    let mut before: Option<(f64, f64)> = None;
    for (at, value) in points {
        if x <= at {
            return match before {
                Some((from, start)) => start + (value - start) * (x - from) / (at - from),
                None => value,
            };
        }
        before = Some((at, value));
    }
    before.map_or(0.0, |(_, value)| value)
}
