//! One tree wanted.

use crate::error::{Error, Result};

/// Most offsets of one query.
pub const MAX_OFFSETS: usize = 64;
/// Most candidates of one offset.
pub const MAX_CANDIDATES: usize = 1024;
/// Log-probabilities may exceed 0 by this much, from rounding.
const LOGPROB_SLACK: f32 = 0.01;

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
    /// For each offset but the first, one row for each candidate of the offset before: what is added to the draft logits of
    /// this offset's candidates after it. Empty for none.
    pub transitions: &'a [f32],
}

impl Query<'_> {
    /// Errors: InvalidArgument with the field `proposals.*`.
    pub fn check(&self) -> Result<()> {
        let widths = self.widths;
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
        if self.tokens.len() != total {
            let message = format!(
                "must hold {total} ids, the sum of the widths, got {}",
                self.tokens.len()
            );
            return Err(Error::invalid("proposals.token_ids", message));
        }
        if self.logprobs.len() != total {
            let message = format!(
                "must hold {total} values, the sum of the widths, got {}",
                self.logprobs.len()
            );
            return Err(Error::invalid("proposals.logprobs", message));
        }
        if let Some(at) = self.tokens.iter().position(|token| *token < 0) {
            let message = format!("must not be negative, got {} at position {at}", self.tokens[at]);
            return Err(Error::invalid("proposals.token_ids", message));
        }
        if let Some(at) = self.logprobs.iter().position(|value| value.is_nan() || *value > LOGPROB_SLACK) {
            let message = format!(
                "must be natural log-probabilities, 0 or less, got {} at position {at}",
                self.logprobs[at]
            );
            return Err(Error::invalid("proposals.logprobs", message));
        }
        self.check_transitions()
    }

    fn check_transitions(&self) -> Result<()> {
        if self.transitions.is_empty() {
            return Ok(());
        }
        let wanted: usize = self.widths.windows(2).map(|pair| pair[0] as usize * pair[1] as usize).sum();
        let wrong = self.transitions.iter().position(|score| !score.is_finite());
        let message = if self.transitions.len() != wanted {
            let given = self.transitions.len();
            format!("must be empty or hold {wanted} scores, the products of neighbouring widths, got {given}")
        } else if let Some(at) = wrong {
            format!("must be finite, got {} at position {at}", self.transitions[at])
        } else {
            return Ok(());
        };
        Err(Error::invalid("proposals.transitions", message))
    }
}
