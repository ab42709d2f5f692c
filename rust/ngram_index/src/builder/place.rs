//! Where a build stands in its documents.

use serde::{Deserialize, Serialize};

use super::counting::{Counting, Item};
use super::key::{Key, Packing};
use crate::error::{Error, Result};

/// What the runs of a build cover.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Tokens whose windows are in runs.
    pub covered: u64,
    /// Where to read on, in the caller's words, and how many tokens come before it.
    pub position: String,
    pub position_tokens: u64,
}

/// Windows started so far, and where the documents being added began.
pub(crate) struct Place {
    pub started: u64,
    /// Windows before this one are in runs already.
    pub covered: u64,
    pub position: String,
    position_tokens: u64,
}

impl Place {
    pub fn new(mark: &Mark) -> Self {
        Self {
            started: mark.position_tokens,
            covered: mark.covered,
            position: mark.position.clone(),
            position_tokens: mark.position_tokens,
        }
    }

    /// The next document starts at this position.
    pub fn go_on_from(&mut self, position: &str) {
        position.clone_into(&mut self.position);
        self.position_tokens = self.started;
    }

    /// The windows that start at the first `starts` tokens, those that are in runs left out. A window of fewer than
    /// `order` tokens ends where the tokens end.
    pub fn push<T, K>(
        &mut self,
        packing: Packing,
        tokens: &[T],
        starts: usize,
        counting: &mut Counting<K>,
    ) -> Result<()>
    where
        T: Copy + Into<u32>,
        K: Key + Item<Key = K>,
    {
        for start in 0..starts {
            let before = self.started;
            self.started += 1;
            if before >= self.covered {
                let key: K = packing.key(tokens[start..].iter().map(|&token| token.into()));
                counting.push(key, || self.mark(before))?;
            }
        }
        Ok(())
    }

    /// What runs of the first `covered` windows cover.
    pub fn mark(&self, covered: u64) -> Mark {
        Mark {
            covered,
            position: self.position.clone(),
            position_tokens: self.position_tokens,
        }
    }

    /// Check at the end that there were windows, and all that are in runs.
    pub fn check(&self) -> Result<()> {
        if self.started == 0 {
            return Err(Error::invalid("documents", "hold no token; add at least one"));
        }
        if self.started < self.covered {
            let message = format!(
                "hold {} tokens, {} were counted before; start over with --restart",
                self.started, self.covered
            );
            return Err(Error::invalid("documents", message));
        }
        Ok(())
    }
}
