//! Joining independent proposals for the next positions into one tree.
//!
//! The draft head ranks tokens for each of the next d positions without knowing which tokens the other positions take.
//! The search combines them with n-gram counts and keeps the node budget's worth of paths. In both modes the tree is
//! closed under ancestors by construction, no two siblings carry the same token, a stop id ends its path, and equal
//! inputs give equal trees: ties go to the smaller depth, then the parent that ranks first, then the smaller token id.

mod batch;
mod candidates;
mod evidence;
mod float;
mod params;
mod query;
mod reference;
mod rows;
mod states;
mod survival;
mod top;
mod tree;

pub use batch::{BatchError, search_batch, search_one};
pub use params::{
    MAX_BEAM_WIDTH, MAX_NGRAM_WEIGHT, MAX_NODE_BUDGET, MAX_TRANSITION_WEIGHT, Mode, Params, Rule, Weights,
};
pub use query::{MAX_CANDIDATES, MAX_OFFSETS, Query};
pub use tree::{Tree, feature_bin};

use candidates::Candidates;
use rows::Rows;
use states::State;

use crate::error::Result;
use crate::reader::Index;

/// Searches trees; holds buffers that are reused from call to call, so that a search allocates nothing.
#[derive(Default)]
pub struct Searcher {
    /// Of this search.
    weights: Weights,
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
        query.check()?;
        if params.node_budget == 0 {
            return Ok(());
        }
        self.weights = params.weights(!query.transitions.is_empty());
        self.candidates.fill(index, query, self.weights.transition);
        self.rows.clear(self.candidates.numbers());
        self.states.clear();
        let root = self.add_root(index, query.context);
        match params.mode {
            Mode::Survival => self.best_first(index, params, root, tree),
            Mode::Reference => self.beam(index, params, root, tree),
        }
        tree.contexts = self.rows.count_read() as u32;
        Ok(())
    }

    /// Whether a node that is the `choice`-th candidate at an offset can have children.
    fn goes_on(&self, params: &Params, offset: usize, choice: usize) -> bool {
        let next = offset + 1;
        next < self.candidates.offsets()
            && self.candidates.width(next) > 0
            && !params.stop_ids.contains(&self.candidates.tokens(offset)[choice])
    }
}
