//! How likely a token is after a context, from counts.

use crate::format::MAX_ORDER;
use crate::reader::{Candidates, Index};

/// Score of one candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// count(c, v) / count(c) for the longest suffix c of the context that has v as a continuation; 0 if none.
    pub probability: f32,
    /// Tokens of that suffix; 0 if none.
    pub matched: u8,
}

/// Scores of candidates in any order after a context, oldest token first; unknown tokens were never seen.
pub fn score(index: &Index, context: &[u32], candidates: &[u32]) -> Vec<Score> {
    let mut scores = vec![Score::default(); candidates.len()];
    let mut sorted = candidates.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut lookup = Candidates::default();
    lookup.set(index, &sorted);
    let mut counts = vec![0; sorted.len()];
    for length in 1..index.order().min(context.len() + 1) {
        let suffix = &context[context.len() - length..];
        let total = index.count(suffix);
        if total == 0 {
            continue;
        }
        continuations(index, suffix, &lookup, &mut counts);
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            let count = sorted.binary_search(candidate).map_or(0, |at| counts[at]);
            if count > 0 {
                *score = Score {
                    probability: frequency(count as f32, total as f32),
                    matched: length as u8,
                };
            }
        }
    }
    scores
}

/// How often each candidate followed a context of 1 to order - 1 tokens.
fn continuations(index: &Index, context: &[u32], candidates: &Candidates, counts: &mut [u64]) {
    counts.fill(0);
    if context.len() + 1 < index.order() {
        let mut tokens = [0; MAX_ORDER];
        tokens[..context.len()].copy_from_slice(context);
        for (count, token) in counts.iter_mut().zip(candidates.tokens()) {
            tokens[context.len()] = *token;
            let node = index.place(&tokens[..=context.len()]).and_then(|place| index.find(place));
            *count = node.map_or(0, |node| node.count);
        }
        return;
    }
    if let Some(node) = index.context(context) {
        index.child_counts(&node, candidates, counts);
    }
}

/// Relative frequency in the public implementation's float32 arithmetic.
#[inline(always)]
pub(crate) fn frequency(count: f32, total: f32) -> f32 {
    count / total
}

/// Unigram probability of a token, every token of the vocabulary having a share (Witten-Bell with a uniform base).
#[inline]
pub(crate) fn unigram_share(index: &Index, count: u64) -> f32 {
    let distinct = index.distinct_unigrams().max(1) as f32;
    let uniform = 1.0 / index.vocab_size() as f32;
    (count as f32 + distinct * uniform) / (index.windows() as f32 + distinct)
}

/// One step of Witten-Bell back-off: probability given the longer context from that given the shorter one.
///
/// `total` is how often the context was seen and `distinct` how many different tokens followed it. A window that ends
/// with its document counts in `total`, so a context's probabilities may sum to less than 1.
#[inline(always)]
pub(crate) fn witten_bell(shorter: f32, count: f32, total: f32, distinct: f32) -> f32 {
    (count + distinct * shorter) / (total + distinct)
}
