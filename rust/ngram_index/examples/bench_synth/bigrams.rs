//! What follows each token, in memory: the first half of a synthetic corpus.

use rand::prelude::*;
use rand::rngs::SmallRng;

use crate::counts::Counts;
use crate::shape::{Shape, followed};

/// Successors are so many times as many common tokens, of which a random part is kept: how often common tokens follow one
/// another is then as in real text.
const LOOSENESS: f64 = 2.0;
/// Tokens are drawn so that the first r of T ranks get a share of (r/T)^(1/this).
const COMMON_BIAS: f64 = 3.0;

/// The successors of one token, most frequent first.
#[derive(Default)]
pub struct Successors {
    pub tokens: Vec<u16>,
    pub counts: Vec<u32>,
}

/// All tokens of a corpus `scale` times the measured one.
pub struct Bigrams<'a> {
    shape: &'a Shape,
    scale: f64,
    seed: u64,
    /// Token ids by rank, and the rank of each.
    by_rank: Vec<u16>,
    rank_of: Vec<u32>,
}

impl<'a> Bigrams<'a> {
    pub fn new(shape: &'a Shape, scale: f64, seed: u64, vocab_size: u32) -> Self {
        let mut ids: Vec<u16> = (0..vocab_size).map(|id| id as u16).collect();
        ids.shuffle(&mut SmallRng::seed_from_u64(seed));
        let mut rank_of = vec![0; vocab_size as usize];
        for (rank, id) in ids.iter().enumerate() {
            rank_of[usize::from(*id)] = rank as u32 + 1;
        }
        ids.truncate(shape.token_ranks() as usize);
        Self {
            shape,
            scale,
            seed,
            by_rank: ids,
            rank_of,
        }
    }

    /// How often a token was seen and how many different ones followed; None if it was never seen.
    pub fn token(&self, token: u32) -> Option<(u64, usize)> {
        let rank = u64::from(*self.rank_of.get(token as usize)?);
        if rank > self.by_rank.len() as u64 {
            return None;
        }
        let mut random = SmallRng::seed_from_u64(self.seed ^ u64::from(token) << 24);
        let measured = self.shape.token_count(rank);
        let now = followed(&self.shape.successors, measured, random.random()).clamp(1.0, measured.max(1.0));
        let seen = (measured * self.scale).round().max(1.0);
        let most = (self.by_rank.len() as f64 * 0.9).min(seen);
        let number = self.shape.grown(now, self.scale).clamp(1.0, most);
        Some((
            seen as u64,
            ((number + random.random::<f64>()) as usize).clamp(1, seen as usize),
        ))
    }

    /// The successors of a token.
    pub fn successors(&self, token: u32, counts: &Counts) -> Successors {
        self.some(token, usize::MAX, counts)
    }

    /// The successors of a token, or so many drawn as a sample.
    pub fn some(&self, token: u32, most: usize, counts: &Counts) -> Successors {
        let Some((seen, number)) = self.token(token) else {
            return Successors::default();
        };
        let mut random = SmallRng::seed_from_u64(self.seed ^ u64::from(token) << 24 ^ 1);
        let (mut drawn, mut ranks) = (Vec::new(), Vec::new());
        if number <= most {
            counts.draw(seen, number, &mut random, &mut drawn);
        } else {
            counts.sample(seen, number, most, &mut random, &mut drawn);
        }
        let wanted = number.min(most);
        let loose = ((wanted as f64 * LOOSENESS) as usize).min(self.by_rank.len());
        distinct_ranks(self.by_rank.len(), loose, &mut random, &mut ranks);
        keep_some(&mut ranks, wanted, &mut random);
        Successors {
            tokens: ranks.iter().map(|rank| self.by_rank[*rank as usize]).collect(),
            counts: drawn.iter().map(|count| u32::try_from(*count).unwrap_or(u32::MAX)).collect(),
        }
    }
}

/// `wanted` different ranks below `total` in ascending order, low ones more often; at most `total`.
pub fn distinct_ranks(total: usize, wanted: usize, random: &mut impl Rng, ranks: &mut Vec<u32>) {
    ranks.clear();
    let mut next = 0;
    for at in 0..wanted {
        let place = (at as f64 + random.random::<f64>()) / wanted as f64;
        let rank = (total as f64 * place.powf(COMMON_BIAS)) as usize;
        let rank = rank.clamp(next, total - (wanted - at));
        ranks.push(rank as u32);
        next = rank + 1;
    }
}

/// Keep `wanted` of the ranks in their order, all with the same chance.
fn keep_some(ranks: &mut Vec<u32>, wanted: usize, random: &mut impl Rng) {
    let (mut left, mut wanted) = (ranks.len(), wanted);
    ranks.retain(|_| {
        let kept = random.random_range(0..left) < wanted;
        left -= 1;
        wanted -= usize::from(kept);
        kept
    });
}
