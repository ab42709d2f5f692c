//! How likely a token is after a context, from counts.

use crate::format::MAX_ORDER;
use crate::reader::{Context, Hit, Index};

/// The contexts of a position by length: entry l is the n-gram of its last l + 1 tokens, if it was seen.
pub type Contexts = [Option<Context>; MAX_ORDER - 1];

/// Where the n-grams that end with these tokens (oldest first) are.
pub fn contexts(index: &Index, tokens: &[u32]) -> Contexts {
    let mut contexts = [None; MAX_ORDER - 1];
    for (i, context) in contexts.iter_mut().enumerate().take(index.order() - 1) {
        *context = tokens.len().checked_sub(i + 1).and_then(|start| index.context(&tokens[start..]));
    }
    contexts
}

/// Score of one candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// count(c, v) / count(c) for the longest suffix c of the context that has v as a continuation; 0 if none.
    pub probability: f32,
    /// Tokens of that suffix; 0 if none.
    pub matched: u8,
}

/// Relative frequency in the public implementation's float32 arithmetic.
#[inline]
pub(crate) fn frequency(count: u64, total: u64) -> f32 {
    if total == 0 { 0.0 } else { count as f32 / total as f32 }
}

/// Scores of candidates in any order after a context, oldest token first; unknown tokens were never seen.
pub fn score(index: &Index, context: &[u32], candidates: &[u32]) -> Vec<Score> {
    let mut scores = vec![Score::default(); candidates.len()];
    for context in contexts(index, context).into_iter().flatten() {
        let total = index.count(context);
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            let mut hit = [Hit::NONE];
            index.successors(context, &[*candidate], &mut hit);
            if hit[0].count > 0 {
                *score = Score {
                    probability: frequency(hit[0].count, total),
                    matched: context.len() as u8,
                };
            }
        }
    }
    scores
}

/// Unigram probability of a token, every token of the vocabulary having a share (Witten-Bell with a uniform base).
pub(crate) fn unigram(index: &Index, token: u32) -> f32 {
    let distinct = index.distinct_unigrams().max(1) as f32;
    let uniform = 1.0 / index.vocab_size() as f32;
    (index.unigram(token).count as f32 + distinct * uniform) / (index.windows() as f32 + distinct)
}

/// One step of Witten-Bell back-off: probability given the longer context from that given the shorter one.
///
/// `total` is how often the context was seen and `distinct` how many different tokens followed it. A window that ends
/// with its document counts in `total`, so a context's probabilities may sum to less than 1.
#[inline]
pub(crate) fn witten_bell(shorter: f32, count: u64, total: u64, distinct: u64) -> f32 {
    (count as f32 + distinct as f32 * shorter) / (total as f32 + distinct as f32)
}
