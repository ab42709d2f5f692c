//! Which n-grams to drop so that an index reaches a size.

use std::collections::BTreeMap;

use crate::format::MAX_ORDER;

/// How high a threshold goes before shorter n-grams are pruned more, too.
const CAPS: [u64; 12] = [2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000];

/// How many n-grams of each length have which count.
pub(super) struct Histogram {
    levels: [BTreeMap<u64, u64>; MAX_ORDER],
    path: [(u32, u64); MAX_ORDER],
    depth: usize,
}

impl Histogram {
    pub fn new() -> Self {
        Self {
            levels: Default::default(),
            path: [(0, 0); MAX_ORDER],
            depth: 0,
        }
    }

    /// Windows in ascending order.
    pub fn window(&mut self, tokens: &[u32], count: u64) {
        let open = &self.path[..self.depth];
        let same = open.iter().zip(tokens).take_while(|((open, _), token)| open == *token).count();
        self.close(same);
        for (i, &token) in tokens.iter().enumerate() {
            if i >= same {
                self.path[i] = (token, 0);
            }
            self.path[i].1 += count;
        }
        self.depth = tokens.len();
    }

    /// An n-gram of a length from 1.
    pub fn node(&mut self, length: usize, count: u64) {
        *self.levels[length - 1].entry(count).or_default() += 1;
    }

    fn close(&mut self, depth: usize) {
        for (level, (_, count)) in self.levels.iter_mut().zip(self.path).take(self.depth).skip(depth) {
            *level.entry(count).or_default() += 1;
        }
        self.depth = depth;
    }

    /// No window follows.
    pub fn finish(&mut self) {
        self.close(0);
    }

    /// N-grams of a length from 1 that were seen at least so often.
    pub fn at_least(&self, length: usize, count: u64) -> u64 {
        self.levels[length - 1].range(count..).map(|(_, nodes)| nodes).sum()
    }

    /// The mildest thresholds by length with an expected size of at most `target` bytes: the longest n-grams are
    /// pruned first. `bytes[length - 1]` is the size of one n-gram, `fixed` of all else. None if nothing is enough.
    /// `least`: thresholds to start from.
    pub fn thresholds(
        &self,
        order: usize,
        least: [u64; MAX_ORDER],
        bytes: &[f64; MAX_ORDER],
        fixed: f64,
        target: f64,
    ) -> Option<[u64; MAX_ORDER]> {
        let mut picked = least;
        let size = |picked: &[u64; MAX_ORDER]| -> f64 {
            let levels = (2..=order).map(|length| self.at_least(length, picked[length - 1]) as f64 * bytes[length - 1]);
            fixed + levels.sum::<f64>()
        };
        if size(&picked) <= target {
            return Some(picked);
        }
        for cap in CAPS {
            for length in (2..=order).rev() {
                // Only counts that occur change the size; beyond a few values steps of 1/8 are fine enough.
                while picked[length - 1] < cap {
                    let now = picked[length - 1];
                    picked[length - 1] = (now + 1 + now / 8).min(cap);
                    if size(&picked) <= target {
                        return Some(picked);
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram() -> Histogram {
        let mut histogram = Histogram::new();
        for (tokens, count) in [
            (vec![1, 2, 3], 1),
            (vec![1, 2, 4], 4),
            (vec![1, 3], 1),
            (vec![2, 1, 1], 2),
        ] {
            histogram.window(&tokens, count);
        }
        histogram.finish();
        histogram
    }

    #[test]
    fn counts_prefixes() {
        let histogram = histogram();
        assert_eq!(
            (
                histogram.at_least(1, 1),
                histogram.at_least(1, 3),
                histogram.at_least(1, 7)
            ),
            (2, 1, 0)
        );
        assert_eq!(
            (
                histogram.at_least(2, 1),
                histogram.at_least(2, 2),
                histogram.at_least(2, 5)
            ),
            (3, 2, 1)
        );
        assert_eq!(
            (
                histogram.at_least(3, 1),
                histogram.at_least(3, 2),
                histogram.at_least(3, 4)
            ),
            (3, 2, 1)
        );
    }

    #[test]
    fn the_longest_go_first() {
        let pick = |target| histogram().thresholds(3, [1; 5], &[0.0, 1.0, 1.0, 0.0, 0.0], 10.0, target);
        assert_eq!(pick(16.0), Some([1, 1, 1, 1, 1]));
        assert_eq!(pick(15.0), Some([1, 1, 2, 1, 1]));
        assert_eq!(pick(14.0), Some([1, 2, 2, 1, 1]));
        assert_eq!(pick(13.0), Some([1, 2, 3, 1, 1]));
        assert_eq!(pick(10.0), Some([1, 6, 10, 1, 1]));
        assert_eq!(pick(9.0), None);
    }
}
