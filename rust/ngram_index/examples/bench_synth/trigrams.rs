//! What follows each bigram: the second half of a synthetic corpus, in ascending order.

use rand::prelude::*;
use rand::rngs::SmallRng;

use crate::bigrams::{Successors, distinct_ranks};
use crate::counts::Counts;
use crate::shape::Shape;

/// A trigram's last two tokens and its count.
pub type Trigram = (u16, u16, u64);

/// All trigrams of a corpus, by their first token and a part of its successors.
pub struct Trigrams<'a> {
    pub shape: &'a Shape,
    pub counts: &'a Counts,
    pub bigrams: &'a [Successors],
    pub scale: f64,
    pub seed: u64,
}

/// Buffers of one thread.
#[derive(Default)]
pub struct Buffers {
    counts: Vec<u64>,
    ranks: Vec<u32>,
    children: Vec<(u16, u64)>,
}

impl Trigrams<'_> {
    /// How many different tokens follow a bigram whose second token has `most` successors.
    pub fn children(&self, most: usize, seen: u64, random: &mut impl Rng) -> usize {
        let most = most.min(seen as usize).max(1);
        let number = self.shape.children(seen as f64, self.scale, random.random()) + random.random::<f64>();
        (number as usize).clamp(1, most)
    }

    /// Append the trigrams that start with `first` and one of `seconds` (token and count of the bigram, ascending).
    pub fn append(&self, first: u32, seconds: &[(u16, u32)], buffers: &mut Buffers, out: &mut Vec<Trigram>) {
        for (second, seen) in seconds {
            let key = u64::from(first) << 16 | u64::from(*second);
            let mut random = SmallRng::seed_from_u64(self.seed ^ key.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let follow = &self.bigrams[usize::from(*second)].tokens;
            if follow.is_empty() {
                continue;
            }
            let seen = u64::from(*seen).max(1);
            let number = self.children(follow.len(), seen, &mut random);
            self.counts.draw(seen, number, &mut random, &mut buffers.counts);
            distinct_ranks(follow.len(), number, &mut random, &mut buffers.ranks);
            buffers.children.clear();
            let pairs = buffers.ranks.iter().zip(&buffers.counts);
            buffers.children.extend(pairs.map(|(rank, count)| (follow[*rank as usize], *count)));
            buffers.children.sort_unstable_by_key(|(token, _)| *token);
            out.extend(buffers.children.iter().map(|(third, count)| (*second, *third, *count)));
        }
    }
}
