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
    /// Weight of the n-gram evidence in survival estimates, in [0, 2]; 0 uses the draft head alone. See [`Params::weights`].
    pub ngram_weight: Option<f32>,
    /// Weight of the transition scores of proposals that have any, in [0, 2]; 0 leaves them out.
    pub transition_weight: Option<f32>,
}

/// How much each source counts beside the draft probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weights {
    /// Of the n-gram evidence.
    pub ngram: f32,
    /// Of the transition scores.
    pub transition: f32,
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
            ngram_weight: None,
            transition_weight: None,
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

    /// The weights for proposals with or without transition scores. Counts and scores know much of the same, so beside each
    /// other both weigh half of what each weighs alone, unless something else is asked for.
    pub fn weights(&self, transitions: bool) -> Weights {
        let both = transitions && self.transition_weight != Some(0.0) && self.ngram_weight != Some(0.0);
        let (ngram, transition) = if both { (0.25, 0.5) } else { (0.5, 1.0) };
        Weights {
            ngram: self.ngram_weight.unwrap_or(ngram),
            transition: self.transition_weight.unwrap_or(transition),
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
        for (field, weight, most) in [
            ("params.ngram_weight", self.ngram_weight, MAX_NGRAM_WEIGHT),
            (
                "params.transition_weight",
                self.transition_weight,
                MAX_TRANSITION_WEIGHT,
            ),
        ] {
            if let Some(wrong) = weight.filter(|weight| !(0.0..=most).contains(weight)) {
                return Err(Error::invalid(field, format!("must be 0 to {most}, got {wrong}")));
            }
        }
        if !(f32::MIN_POSITIVE..=1.0).contains(&self.backoff_factor) {
            let message = format!("must be more than 0 and at most 1, got {}", self.backoff_factor);
            return Err(Error::invalid("params.backoff_factor", message));
        }
        Ok(())
    }
}
