//! The best few of many.

use super::candidates::{ordered, unordered};

/// The `limit` items of highest score, of equal ones those with the smaller number.
#[derive(Default)]
pub(super) struct Top {
    limit: usize,
    /// Score in the upper half, the complement of the number in the lower, so that greater is better.
    keys: Vec<u64>,
    /// Keys that are not greater cannot be among the best.
    floor: u64,
}

impl Top {
    /// Forget everything and keep the best `limit` (at least 1) from now on.
    pub fn clear(&mut self, limit: usize) {
        self.limit = limit;
        self.keys.clear();
        self.floor = 0;
    }

    /// Offer an item.
    #[inline]
    pub fn push(&mut self, score: f32, number: u32) {
        let key = u64::from(ordered(score)) << 32 | u64::from(!number);
        if key > self.floor {
            self.keys.push(key);
            if self.keys.len() >= 2 * self.limit + 16 {
                self.shrink();
            }
        }
    }

    fn shrink(&mut self) {
        let (_, last, _) = self.keys.select_nth_unstable_by(self.limit - 1, |a, b| b.cmp(a));
        self.floor = *last;
        self.keys.truncate(self.limit);
    }

    /// The best, best first, as (score, number).
    pub fn sorted(&mut self) -> impl Iterator<Item = (f32, u32)> + '_ {
        if self.keys.len() > self.limit {
            self.shrink();
        }
        self.keys.sort_unstable_by(|a, b| b.cmp(a));
        self.keys.iter().map(|key| (unordered((key >> 32) as u32), !(*key as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_sorting_everything() {
        let mut state = 7_u32;
        let mut top = Top::default();
        for limit in [1, 2, 20, 59, 5000] {
            let mut all: Vec<(f32, u32)> = (0..3000)
                .map(|number| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    ((state >> 20) as f32 / 100.0 - 20.0, number)
                })
                .collect();
            top.clear(limit);
            all.iter().for_each(|(score, number)| top.push(*score, *number));
            all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            all.truncate(limit);
            assert_eq!(top.sorted().collect::<Vec<_>>(), all);
        }
    }
}
