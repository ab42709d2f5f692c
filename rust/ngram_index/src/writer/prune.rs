//! Which n-grams are left out of an index.

use crate::error::{Error, Result};
use crate::format::MAX_ORDER;

/// Leaves out n-grams that were seen too rarely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prune {
    /// Smallest count that stays, by length from 1; 1 or less keeps all.
    pub min_counts: [u64; MAX_ORDER],
    /// Whether the count of an n-gram becomes the sum over its continuations that stay, if there are any. Otherwise
    /// counts stay what they were.
    pub renormalise: bool,
}

impl Prune {
    /// Everything stays.
    pub const NONE: Self = Self {
        min_counts: [1; MAX_ORDER],
        renormalise: false,
    };

    /// Thresholds that decrease with the length would keep n-grams without their prefixes.
    pub(super) fn check(&self, order: usize) -> Result<()> {
        let used = &self.min_counts[..order];
        if used.is_sorted() {
            return Ok(());
        }
        let message = format!("must not decrease with the length, got {used:?}");
        Err(Error::invalid("prune", message))
    }
}
