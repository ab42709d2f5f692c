//! Counts of what follows a context, from how often it was seen and how many different tokens followed it.
//!
//! The shares of counts 1, 2 to 3, 4 to 7 and so on are those of real text, tilted by a power so that the mean is right:
//! contexts that were seen more often have larger counts, and so has a larger corpus. Inside an octave counts fall with
//! their square.

use rand::Rng;

const OCTAVES: usize = 40;
/// Means are told apart by a power of two to this.
const MEAN_STEP: f64 = 0.125;
const MEANS: usize = (30.0 / MEAN_STEP) as usize;
/// What real text is continued by beyond its largest counts: each octave has this share of the one before.
const TAIL: f64 = 0.48;
/// Contexts seen up to so often get counts that sum to exactly that.
const EXACT: u64 = 512;

/// Draws counts.
pub struct Counts {
    /// By mean and largest octave: cumulated shares of the octaves.
    tables: Vec<Vec<[f32; OCTAVES]>>,
}

impl Counts {
    pub fn new(octaves: &[f64]) -> Self {
        let mut shares = [0.0; OCTAVES];
        for (at, share) in shares.iter_mut().enumerate() {
            // The last octaves of a corpus hold a handful of n-grams.
            *share = octaves.get(at).copied().unwrap_or_default();
        }
        let solid = octaves.len().saturating_sub(6).max(1);
        for at in solid..OCTAVES {
            shares[at] = shares[at - 1] * TAIL;
        }
        let table =
            |largest| (0..MEANS).map(|mean| tilted(&shares, largest, (mean as f64 * MEAN_STEP).exp2())).collect();
        Self {
            tables: (0..OCTAVES).map(table).collect(),
        }
    }

    /// Fill `counts` with `number` of the `followed` counts of a context seen `seen` times, without regard to their sum.
    pub fn sample(&self, seen: u64, followed: usize, number: usize, random: &mut impl Rng, counts: &mut Vec<u64>) {
        counts.clear();
        let table = self.table(seen, followed);
        counts.extend((0..number).map(|_| one(table, random).min(seen)));
    }

    fn table(&self, seen: u64, followed: usize) -> &[f32; OCTAVES] {
        let mean = seen as f64 / followed as f64;
        let largest = (seen - followed as u64 + 1).ilog2() as usize;
        let step = ((mean.log2() / MEAN_STEP).round() as usize).min(MEANS - 1);
        &self.tables[largest.min(OCTAVES - 1)][step]
    }

    /// Fill `counts` with `followed` counts for a context seen `seen` times, largest first; followed is at most seen.
    pub fn draw(&self, seen: u64, followed: usize, random: &mut impl Rng, counts: &mut Vec<u64>) {
        counts.clear();
        if followed == 1 {
            counts.push(seen);
            return;
        }
        if followed as u64 == seen {
            counts.resize(followed, 1);
            return;
        }
        let table = self.table(seen, followed);
        if seen > EXACT {
            counts.extend((0..followed).map(|_| one(table, random)));
        } else {
            let mut left = seen;
            for others in (1..followed as u64).rev() {
                let count = one(table, random).min(left - others);
                counts.push(count);
                left -= count;
            }
            counts.push(left);
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
    }
}

#[inline]
fn one(table: &[f32; OCTAVES], random: &mut impl Rng) -> u64 {
    let bits: u64 = random.random();
    let at = (bits >> 40) as f32 / (1_u64 << 24) as f32;
    let octave = table.iter().position(|share| at < *share).unwrap_or(0);
    let inside = (bits & 0xFFFF_FFFF) as f32 / (1_u64 << 32) as f32;
    ((1_u64 << octave) as f32 / (1.0 - inside * 0.5)) as u64
}

/// Cumulated shares of the octaves up to `largest`, times the power of the octave that makes the mean right.
fn tilted(shares: &[f64; OCTAVES], largest: usize, mean: f64) -> [f32; OCTAVES] {
    let (mut low, mut high) = (-12.0_f64, 12.0_f64);
    let mut weights = [0.0; OCTAVES];
    for _ in 0..50 {
        let power = (low + high) / 2.0;
        for (octave, weight) in weights.iter_mut().enumerate() {
            *weight = if octave <= largest {
                shares[octave] * (octave as f64 * power).exp2()
            } else {
                0.0
            };
        }
        let total: f64 = weights.iter().sum();
        let sum: f64 = weights.iter().enumerate().map(|(octave, weight)| weight * octave_mean(octave)).sum();
        if sum / total < mean {
            low = power;
        } else {
            high = power;
        }
    }
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    weights.map(|weight| {
        sum += weight / total;
        sum as f32
    })
}

/// Mean of a count in an octave: 2^o / (1 - u/2), rounded down.
fn octave_mean(octave: usize) -> f64 {
    match octave {
        0 => 1.0,
        1 => 2.0 + 1.0 / 3.0,
        _ => (octave as f64).exp2() * 2.0 * std::f64::consts::LN_2 - 0.5,
    }
}
