//! What all queries of a batch share.

use crate::error::{Error, Result};

/// Largest node budget.
pub const MAX_NODE_BUDGET: usize = 1024;
/// Largest beam width.
pub const MAX_BEAM_WIDTH: usize = 1024;
/// Largest weight of the n-gram evidence.
pub const MAX_NGRAM_WEIGHT: f32 = 2.0;
/// Largest weight of the draft head's transition scores.
pub const MAX_TRANSITION_WEIGHT: f32 = 2.0;

/// How to select nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Best-first by the estimated probability that the target's walk reaches a node.
    Survival,
    /// Beam search with the score of arXiv:2601.19278, as its public implementation computes it.
    Reference,
}

/// What the counts say about a token v after a context: g(v).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// count(c, v) / count(c) for the longest suffix c of the context that has v as a continuation; 0 if none.
    Reference,
    /// As `Reference` and, where there is no such suffix, count(v) / all counts; times the factor for every token by which
    /// c is shorter than what an index of this order could use.
    StupidBackoff,
    /// Witten-Bell interpolation of all suffixes' relative frequencies, down to the unigram's and a uniform share.
    WittenBell,
    /// `WittenBell` divided by the unigram probability, which the draft head knows too.
    Divided,
}

/// Parameters of a search.
#[derive(Clone, Debug)]
pub struct Params {
    /// How to select nodes.
    pub mode: Mode,
    /// What the counts say; none is the mode's own, see [`Params::rule`].
    pub rule: Option<Rule>,
    /// Factor of [`Rule::StupidBackoff`], in (0, 1].
    pub backoff_factor: f32,
    /// Nodes of a tree without its root.
    pub node_budget: usize,
    /// Paths kept at each level in [`Mode::Reference`].
    pub beam_width: usize,
    /// Leave the n-gram term out for the first position in [`Mode::Reference`].
    pub skip_ngram_at_first_level: bool,
    /// A path ends with any of these.
    pub stop_ids: Vec<u32>,
    /// Weight of the n-gram evidence in survival estimates, in [0, 2]; 0 uses the draft head alone.
    pub ngram_weight: f32,
    /// Weight of the transition scores of proposals that have any, in [0, 2]; 0 leaves them out.
    pub transition_weight: f32,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            mode: Mode::Survival,
            rule: None,
            backoff_factor: 0.4,
            node_budget: 59,
            beam_width: 20,
            skip_ngram_at_first_level: false,
            stop_ids: Vec::new(),
            ngram_weight: 0.5,
            transition_weight: 1.0,
        }
    }
}

impl Params {
    /// The rule that nodes are selected by.
    pub fn rule(&self) -> Rule {
        self.rule.unwrap_or(match self.mode {
            Mode::Survival => Rule::Divided,
            Mode::Reference => Rule::Reference,
        })
    }

    /// The rule that survival is estimated by: in [`Mode::Reference`] always the calibrated one.
    pub(super) fn survival_rule(&self) -> Rule {
        match self.mode {
            Mode::Survival => self.rule(),
            Mode::Reference => Rule::Divided,
        }
    }

    /// Errors: InvalidArgument with the field `params.*`.
    pub fn check(&self) -> Result<()> {
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
        if !(0.0..=MAX_TRANSITION_WEIGHT).contains(&self.transition_weight) {
            let message = format!("must be 0 to {MAX_TRANSITION_WEIGHT}, got {}", self.transition_weight);
            return Err(Error::invalid("params.transition_weight", message));
        }
        if !(f32::MIN_POSITIVE..=1.0).contains(&self.backoff_factor) {
            let message = format!("must be more than 0 and at most 1, got {}", self.backoff_factor);
            return Err(Error::invalid("params.backoff_factor", message));
        }
        Ok(())
    }
}
