//! Counting documents of token ids into an index.
//!
//! Every window of `order` tokens is one integer; the windows are sorted in runs, the runs merged, and equal prefixes
//! counted on the way. All in memory: 8 bytes a token (16 if `order` ids need more than 64 bits), and while the tables
//! are made 20 bytes for each distinct n-gram (12 at the last length).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::path::Path;

use crate::error::{Error, Result};
use crate::header::Header;
use crate::key::{Counter, Key, Packing};
use crate::progress::{Progress, Stage};
use crate::writer::IndexWriter;

/// Windows sorted at a time; the progress function runs between two runs.
const RUN: usize = 1 << 23;
/// Windows merged between two calls of the progress function.
const TICK: u64 = 1 << 18;

/// Collects windows of token ids.
pub struct Builder {
    packing: Packing,
    windows: Windows,
    documents: u64,
}

enum Windows {
    Narrow(Vec<u64>),
    Wide(Vec<u128>),
}

impl Builder {
    /// An empty builder for n-grams of 1 to `order` token ids below `vocab_size`.
    pub fn new(order: usize, vocab_size: u64) -> Result<Self> {
        let packing = Packing::new(order, vocab_size)?;
        let windows = if packing.is_narrow() {
            Windows::Narrow(Vec::new())
        } else {
            Windows::Wide(Vec::new())
        };
        Ok(Self {
            packing,
            windows,
            documents: 0,
        })
    }

    /// Add documents: document i is `tokens[offsets[i]..offsets[i + 1]]`. On an error nothing is added.
    pub fn add<T: Copy + Into<u32>>(&mut self, tokens: &[T], offsets: &[i64]) -> Result<()> {
        check_offsets(tokens.len(), offsets)?;
        let vocab = self.packing.vocab_size;
        if let Some((at, &id)) = tokens.iter().enumerate().find(|(_, id)| u64::from((**id).into()) >= vocab) {
            let message = format!(
                "id {} at position {at} is not below the vocabulary size {vocab}",
                id.into()
            );
            return Err(Error::invalid("tokens", message));
        }
        for pair in offsets.windows(2) {
            let document = &tokens[pair[0] as usize..pair[1] as usize];
            match &mut self.windows {
                Windows::Narrow(keys) => push_windows(self.packing, document, keys),
                Windows::Wide(keys) => push_windows(self.packing, document, keys),
            }
        }
        self.documents += offsets.len() as u64 - 1;
        Ok(())
    }

    /// Documents added so far.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// Tokens added so far.
    pub fn tokens(&self) -> u64 {
        match &self.windows {
            Windows::Narrow(keys) => keys.len() as u64,
            Windows::Wide(keys) => keys.len() as u64,
        }
    }

    /// Count, and write the index to `path`; a file of that name is replaced at the very end.
    pub fn finish(self, path: &Path, fingerprint: &str, manifest: &str, progress: &mut Progress) -> Result<Header> {
        if self.tokens() == 0 {
            return Err(Error::invalid("documents", "hold no token; add at least one"));
        }
        let tables = match self.windows {
            Windows::Narrow(keys) => count(self.packing, keys, path, progress),
            Windows::Wide(keys) => count(self.packing, keys, path, progress),
        }?;
        tables.finish(fingerprint, manifest, progress)
    }
}

fn check_offsets(tokens: usize, offsets: &[i64]) -> Result<()> {
    let invalid = |message: String| Err(Error::invalid("offsets", message));
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
        return invalid("must hold one more entry than documents, got none".to_owned());
    };
    if first != 0 || u64::try_from(last) != Ok(tokens as u64) {
        return invalid(format!(
            "must go from 0 to the number of tokens {tokens}, got {first} to {last}"
        ));
    }
    match offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        Some(at) => invalid(format!(
            "must not decrease, got {} after {}",
            offsets[at + 1],
            offsets[at]
        )),
        None => Ok(()),
    }
}

fn push_windows<T: Copy + Into<u32>, K: Key>(packing: Packing, document: &[T], keys: &mut Vec<K>) {
    for start in 0..document.len() {
        let window = document[start..].iter().take(packing.order).enumerate();
        keys.push(window.fold(K::ZERO, |key, (i, &token)| packing.append(key, i, token.into())));
    }
}

/// Sort runs in place and merge them into tables.
fn count<K: Key>(packing: Packing, mut keys: Vec<K>, path: &Path, progress: &mut Progress) -> Result<IndexWriter> {
    let total = keys.len() as u64;
    let mut done = 0_u64;
    for run in keys.chunks_mut(RUN) {
        progress(Stage::Sort, done, total)?;
        run.sort_unstable();
        done += run.len() as u64;
    }
    progress(Stage::Sort, total, total)?;

    let mut counter = Counter::new(packing, path)?;
    let mut runs: Vec<std::slice::Iter<K>> = keys.chunks(RUN).map(<[K]>::iter).collect();
    let heads = runs.iter_mut().enumerate().filter_map(|(i, run)| run.next().map(|key| Reverse((*key, i))));
    let mut heads: BinaryHeap<Reverse<(K, usize)>> = heads.collect();
    let mut done = 0_u64;
    while let Some(mut head) = heads.peek_mut() {
        let Reverse((key, run)) = *head;
        counter.window(key)?;
        match runs[run].next() {
            Some(next) => *head = Reverse((*next, run)),
            None => {
                PeekMut::pop(head);
            }
        }
        done += 1;
        if done.is_multiple_of(TICK) {
            progress(Stage::Count, done, total)?;
        }
    }
    progress(Stage::Count, total, total)?;
    Ok(counter.finish())
}
