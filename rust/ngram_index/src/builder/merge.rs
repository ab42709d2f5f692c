//! The merge of sorted runs: every n-gram once, with the sum of its counts.

use std::path::Path;

use super::key::Key;
use super::run::{RunInfo, RunReader};
use crate::error::{Error, Result};
use crate::tournament::Tournament;

/// Runs merged at a time.
pub(super) const FAN_IN: usize = 64;
const MIN_BUFFER: usize = 1 << 14;
const MAX_BUFFER: usize = 1 << 21;

/// Reads several runs side by side.
pub(super) struct RunMerge<K> {
    readers: Vec<RunReader<K>>,
    counts: Vec<u64>,
    order: Tournament<K>,
}

impl<K: Key> RunMerge<K> {
    /// `memory`: bytes that all read buffers may take together.
    pub fn open(folder: &Path, runs: &[RunInfo], memory: usize) -> Result<Self> {
        let buffer = (memory / runs.len().max(1)).clamp(MIN_BUFFER, MAX_BUFFER);
        let mut readers = Vec::with_capacity(runs.len());
        let mut counts = Vec::with_capacity(runs.len());
        let mut heads = Vec::with_capacity(runs.len());
        for run in runs {
            let mut reader = RunReader::open(folder, run, buffer)?;
            let head = reader.next()?;
            counts.push(head.map_or(0, |(_, count)| count));
            heads.push(head.map(|(key, _)| key));
            readers.push(reader);
        }
        Ok(Self {
            readers,
            counts,
            order: Tournament::new(heads),
        })
    }

    /// The next n-gram in ascending order.
    #[inline]
    pub fn next(&mut self) -> Result<Option<(K, u64)>> {
        let Some((key, mut total)) = self.pop()? else {
            return Ok(None);
        };
        while self.order.head() == Some(key) {
            if let Some((_, count)) = self.pop()? {
                total = add(total, count)?;
            }
        }
        Ok(Some((key, total)))
    }

    #[inline]
    fn pop(&mut self) -> Result<Option<(K, u64)>> {
        let (Some(run), Some(key)) = (self.order.winner(), self.order.head()) else {
            return Ok(None);
        };
        let count = self.counts[run];
        let next = self.readers[run].next()?;
        self.counts[run] = next.map_or(0, |(_, count)| count);
        self.order.replace(next.map(|(key, _)| key));
        Ok(Some((key, count)))
    }
}

/// The sum of two counts.
pub(super) fn add(a: u64, b: u64) -> Result<u64> {
    a.checked_add(b).ok_or_else(|| {
        let message = format!("{a} + {b} is more than a count can hold ({})", u64::MAX);
        Error::invalid("counts", message)
    })
}
