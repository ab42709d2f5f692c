//! The reference's beam search, written down as it is described, over the hash-map trie.
//!
//! Every extension of a path walks the trie from its root for the longest suffix of its context that knows the token.

use std::collections::BTreeMap;

use ngram_index::search::{Params, Query, Tree};

use crate::trie::Trie;

const DRAFT_DECAY: f32 = 0.9;
const LEVEL_POWER: f32 = 0.7;
const NGRAM_WEIGHT: f32 = 0.5;
const EPSILON: f32 = 1e-10;

/// A path below the root.
#[derive(Clone)]
pub struct Path {
    pub tokens: Vec<u32>,
    pub score: f32,
    /// The lowest score on the way, by which the tree is chosen.
    pub rank: f32,
}

/// All extensions that were scored, best first; the first of them are the tree.
pub fn search(trie: &Trie, order: usize, query: &Query, params: &Params) -> Vec<Path> {
    let root = Path {
        tokens: Vec::new(),
        score: 0.0,
        rank: f32::INFINITY,
    };
    let mut beam = vec![root];
    let mut all: Vec<Path> = Vec::new();
    let mut start = 0;
    for (level, width) in query.widths.iter().enumerate() {
        let range = start..start + *width as usize;
        start = range.end;
        let candidates = probabilities(&query.tokens[range.clone()], &query.logprobs[range]);
        let mut extensions = Vec::with_capacity(beam.len() * candidates.len());
        for path in &beam {
            let text: Vec<u32> = query.context.iter().chain(&path.tokens).copied().collect();
            for (token, probability) in &candidates {
                let draft = DRAFT_DECAY.powi(level as i32) * (probability + EPSILON).ln();
                let ngram = if level > 0 || !params.skip_ngram_at_first_level {
                    NGRAM_WEIGHT * (frequency(trie, order, &text, *token) + EPSILON).ln()
                } else {
                    0.0
                };
                let score = path.score + (draft + ngram) / (level as f32 + 1.0).powf(LEVEL_POWER);
                let mut tokens = path.tokens.clone();
                tokens.push(*token);
                extensions.push(Path {
                    tokens,
                    score,
                    rank: path.rank.min(score),
                });
            }
        }
        let goes_on = |path: &&Path| path.tokens.last().is_none_or(|token| !params.stop_ids.contains(token));
        let mut order: Vec<&Path> = extensions.iter().filter(goes_on).collect();
        order.sort_by(|a, b| b.score.total_cmp(&a.score));
        beam = order.into_iter().take(params.beam_width).cloned().collect();
        all.extend(extensions);
    }
    all.sort_by(|a, b| b.rank.total_cmp(&a.rank));
    all
}

/// Candidates with their probabilities among themselves, tokens ascending.
fn probabilities(tokens: &[i32], logprobs: &[f32]) -> Vec<(u32, f32)> {
    let mut best: BTreeMap<u32, f32> = BTreeMap::new();
    for (token, logprob) in tokens.iter().zip(logprobs).filter(|(_, logprob)| logprob.is_finite()) {
        let value = best.entry(*token as u32).or_insert(f32::NEG_INFINITY);
        *value = value.max(*logprob);
    }
    let sum: f32 = best.values().map(|logprob| logprob.exp()).sum();
    best.into_iter().map(|(token, logprob)| (token, logprob.exp() / sum)).collect()
}

/// Relative frequency of a token after the longest suffix of the text that has it as a child.
fn frequency(trie: &Trie, order: usize, text: &[u32], token: u32) -> f32 {
    for length in (1..order.min(text.len() + 1)).rev() {
        let context = trie.find(&text[text.len() - length..]);
        if let Some((context, child)) = context.and_then(|context| Some((context, context.child(token)?))) {
            return child.count as f32 / context.count as f32;
        }
    }
    0.0
}

/// By how much the worst path of a tree is worse than what the baseline chose in its place; 0 for the same paths,
/// infinite for a path that the baseline never scored.
pub fn difference(all: &[Path], tree: &Tree, budget: usize) -> f32 {
    let ranks: BTreeMap<&[u32], (usize, f32)> =
        all.iter().enumerate().map(|(at, path)| (path.tokens.as_slice(), (at, path.rank))).collect();
    let budget = budget.min(all.len());
    let Some(worst) = budget.checked_sub(1).map(|last| all[last].rank) else {
        return 0.0;
    };
    if tree.len() != budget {
        return f32::INFINITY;
    }
    let mut paths: Vec<Vec<u32>> = vec![Vec::new()];
    let mut largest = 0.0_f32;
    for (token, parent) in tree.tokens.iter().zip(&tree.parents) {
        let mut path = paths[*parent as usize].clone();
        path.push(*token as u32);
        largest = match ranks.get(path.as_slice()) {
            Some((at, _)) if *at < budget => largest,
            Some((_, rank)) => largest.max(worst - rank),
            None => f32::INFINITY,
        };
        paths.push(path);
    }
    largest
}
