//! Joining independent proposals for the next positions into one tree.
//!
//! The draft head ranks tokens for each of the next d positions without knowing which tokens the other positions take.
//! The search combines them with n-gram counts and keeps the node budget's worth of paths. In both modes the tree is
//! closed under ancestors by construction, no two siblings carry the same token, a stop id ends its path, and equal
//! inputs give equal trees: ties go to the smaller depth, then the parent that ranks first, then the smaller token id.

mod candidates;
mod reference;
mod rows;
mod survival;

use candidates::Candidates;
use rows::Rows;

use crate::error::{Error, Result};
use crate::format::MAX_ORDER;
use crate::reader::Index;
use crate::score::Contexts;

/// Most offsets of one query.
pub const MAX_OFFSETS: usize = 64;
/// Most candidates of one offset.
pub const MAX_CANDIDATES: usize = 1024;
/// Largest node budget.
pub const MAX_NODE_BUDGET: usize = 1024;
/// Largest beam width.
pub const MAX_BEAM_WIDTH: usize = 1024;
/// Largest weight of the n-gram evidence.
pub const MAX_NGRAM_WEIGHT: f32 = 2.0;
/// Log-probabilities may exceed 0 by this much, from rounding.
const LOGPROB_SLACK: f32 = 0.01;

/// How to select nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Best-first by the estimated probability that the target's walk reaches a node.
    Survival,
    /// Beam search with the score of arXiv:2601.19278, as its public implementation computes it.
    Reference,
}

/// What all queries of a batch share.
#[derive(Clone, Debug)]
pub struct Params {
    /// How to select nodes.
    pub mode: Mode,
    /// Nodes of a tree without its root.
    pub node_budget: usize,
    /// Paths kept at each level in [`Mode::Reference`].
    pub beam_width: usize,
    /// Leave the n-gram term out for the first position in [`Mode::Reference`].
    pub skip_ngram_at_first_level: bool,
    /// A path ends with any of these.
    pub stop_ids: Vec<u32>,
    /// Weight of the n-gram evidence in [`Mode::Survival`], in [0, 2]; 0 uses the draft head alone.
    pub ngram_weight: f32,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            mode: Mode::Survival,
            node_budget: 59,
            beam_width: 20,
            skip_ngram_at_first_level: false,
            stop_ids: Vec::new(),
            ngram_weight: 0.7,
        }
    }
}

impl Params {
    fn check(&self) -> Result<()> {
        if self.node_budget > MAX_NODE_BUDGET {
            let message = format!("must be 0 to {MAX_NODE_BUDGET}, got {}", self.node_budget);
            return Err(Error::invalid("params.node_budget", message));
        }
        if !(1..=MAX_BEAM_WIDTH).contains(&self.beam_width) {
            let message = format!("must be 1 to {MAX_BEAM_WIDTH}, got {}", self.beam_width);
            return Err(Error::invalid("params.beam_width", message));
        }
        if !(0.0..=MAX_NGRAM_WEIGHT).contains(&self.ngram_weight) {
            let message = format!("must be 0 to {MAX_NGRAM_WEIGHT}, got {}", self.ngram_weight);
            return Err(Error::invalid("params.ngram_weight", message));
        }
        Ok(())
    }
}

/// One tree wanted.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The last tokens up to and with the pending one, oldest first; the last order - 1 of them are used.
    pub context: &'a [u32],
    /// Number of candidates for each offset, nearest first.
    pub widths: &'a [u32],
    /// Token ids, offset after offset.
    pub tokens: &'a [i32],
    /// Natural log-probabilities over the full draft vocabulary, in the same order; -inf drops a candidate.
    pub logprobs: &'a [f32],
}

/// Candidates for the positions after the pending token; the root is not stored.
///
/// Node i has index i + 1 in `parents`, where 0 is the root; a parent's index is smaller than its child's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    /// Token ids.
    pub tokens: Vec<i32>,
    /// Parents.
    pub parents: Vec<i32>,
    /// Estimate of the probability that the target's walk reaches the node, in (0, 1], at most the parent's.
    pub survival: Vec<f32>,
    /// See [`feature_bin`].
    pub feature_bins: Vec<u16>,
}

impl Tree {
    /// Number of nodes without the root.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is only the root.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.parents.clear();
        self.survival.clear();
        self.feature_bins.clear();
    }

    fn push(&mut self, token: u32, parent: u32, survival: f32, feature_bin: u16) {
        self.tokens.push(token as i32);
        self.parents.push(parent as i32);
        self.survival.push(survival);
        self.feature_bins.push(feature_bin);
    }
}

/// What the estimate of a node rests on, as one of 1024 bins: bits 6 to 9 are the depth less 1 (15 for 16 and more),
/// bits 3 to 5 the tokens of the longest context that has the token as a continuation, bits 0 to 2 the draft
/// probability in halvings: 0 for (1/2, 1], 1 for (1/4, 1/2], up to 7 for 1/128 and less.
pub fn feature_bin(depth: usize, matched: u8, logprob: f32) -> u16 {
    let depth = depth.clamp(1, 16) as u16 - 1;
    let halvings = (-logprob * std::f32::consts::LOG2_E).clamp(0.0, 7.0) as u16;
    depth << 6 | u16::from(matched.min(7)) << 3 | halvings
}

/// A node that may get children: where its n-grams are and the looked-up rows of their continuations.
#[derive(Clone, Copy, Debug)]
struct State {
    /// Position in the offsets of its children.
    offset: usize,
    contexts: Contexts,
    /// Rows of the contexts, by length as in `contexts`.
    rows: [u32; MAX_ORDER - 1],
}

/// Searches trees; holds buffers that are reused from call to call.
#[derive(Default)]
pub struct Searcher {
    candidates: Candidates,
    rows: Rows,
    states: Vec<State>,
    reference: reference::Buffers,
    survival: survival::Buffers,
}

impl Searcher {
    /// A searcher with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Search one tree into `tree`, which is emptied first.
    pub fn search(&mut self, index: &Index, query: &Query, params: &Params, tree: &mut Tree) -> Result<()> {
        tree.clear();
        params.check()?;
        check_query(query)?;
        if params.node_budget == 0 {
            return Ok(());
        }
        self.candidates.fill(index, query);
        self.rows.clear(self.candidates.offsets());
        self.states.clear();
        let root = crate::score::contexts(index, &query.context[query.context.len().saturating_sub(MAX_ORDER)..]);
        self.add_state(index, 0, root);
        match params.mode {
            Mode::Survival => self.best_first(index, params, tree),
            Mode::Reference => self.beam(index, params, tree),
        }
        Ok(())
    }

    /// Add a node that is to get children, with the rows of its contexts; returns its number.
    fn add_state(&mut self, index: &Index, offset: usize, contexts: Contexts) -> usize {
        let mut rows = [0; MAX_ORDER - 1];
        for (row, context) in rows.iter_mut().zip(contexts) {
            if let Some(context) = context {
                *row = self.rows.row(index, offset, context, self.candidates.tokens(offset));
            }
        }
        self.states.push(State { offset, contexts, rows });
        self.states.len() - 1
    }

    /// Contexts of the child of a state by its `choice`-th candidate: each is a continuation of one of the state's.
    fn child_contexts(&self, index: &Index, state: usize, choice: usize) -> Contexts {
        let state = &self.states[state];
        let mut contexts = [None; MAX_ORDER - 1];
        contexts[0] = index.unigram(self.candidates.tokens(state.offset)[choice]).context(0);
        let shorter = state.contexts.iter().zip(state.rows).take(index.order() - 2);
        for (i, (_, row)) in shorter.enumerate().filter(|(_, (context, _))| context.is_some()) {
            contexts[i + 1] = self.rows.hits(row)[choice].context(i + 1);
        }
        contexts
    }
}

fn check_query(query: &Query) -> Result<()> {
    let widths = query.widths;
    if widths.is_empty() || widths.len() > MAX_OFFSETS {
        let message = format!("must have 1 to {MAX_OFFSETS} offsets, got {}", widths.len());
        return Err(Error::invalid("proposals.widths", message));
    }
    if let Some(at) = widths.iter().position(|width| *width == 0 || *width as usize > MAX_CANDIDATES) {
        let message = format!(
            "must be 1 to {MAX_CANDIDATES} candidates each, got {} at offset {at}",
            widths[at]
        );
        return Err(Error::invalid("proposals.widths", message));
    }
    let total: usize = widths.iter().map(|width| *width as usize).sum();
    if query.tokens.len() != total {
        let message = format!(
            "must hold {total} ids, the sum of the widths, got {}",
            query.tokens.len()
        );
        return Err(Error::invalid("proposals.token_ids", message));
    }
    if query.logprobs.len() != total {
        let message = format!(
            "must hold {total} values, the sum of the widths, got {}",
            query.logprobs.len()
        );
        return Err(Error::invalid("proposals.logprobs", message));
    }
    if let Some(at) = query.tokens.iter().position(|token| *token < 0) {
        let message = format!("must not be negative, got {} at position {at}", query.tokens[at]);
        return Err(Error::invalid("proposals.token_ids", message));
    }
    if let Some(at) = query.logprobs.iter().position(|value| value.is_nan() || *value > LOGPROB_SLACK) {
        let message = format!(
            "must be natural log-probabilities, 0 or less, got {} at position {at}",
            query.logprobs[at]
        );
        return Err(Error::invalid("proposals.logprobs", message));
    }
    Ok(())
}
