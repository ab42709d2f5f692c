//! Adding up indexes of one tokenizer, each with a weight.
//!
//! An n-gram's count is the sum of its counts times the weights, rounded to nearest, at least 1, and never less than
//! its continuations together. Parts that were built of different documents add up, with weight 1, to the index of all.

use std::path::{Path, PathBuf};

use crate::builder::Pruning;
use crate::builder::counting::{Counted, Counting};
use crate::builder::emit::{emit, reduce};
use crate::builder::journal::Journal;
use crate::builder::key::{Key, Packing};
use crate::builder::output::{Form, Output};
use crate::builder::place::Mark;
use crate::builder::run::RunWriter;
use crate::error::{Error, Result};
use crate::format::MAX_ORDER;
use crate::header::Header;
use crate::progress::{Progress, Stage};
use crate::reader::{Backing, Index};

/// Weights are taken in steps of one part of this.
const UNIT: u64 = 1 << 20;
/// Largest weight.
const MAX_WEIGHT: f64 = 1e6;
const WRITE_BUFFER: usize = 1 << 20;
const TICK: u64 = 1 << 16;

/// What to merge and how.
pub struct Merge<'a> {
    /// Index files with their weights.
    pub sources: &'a [(PathBuf, f64)],
    /// The index to write.
    pub path: &'a Path,
    /// JSON for the new index.
    pub manifest: &'a str,
    /// Bytes of all buffers.
    pub memory: usize,
    /// What to leave out.
    pub pruning: Pruning,
}

impl Merge<'_> {
    /// Write the merged index; returns the smallest counts kept by length, too.
    pub fn run(&self, progress: &mut Progress) -> Result<(Header, Vec<u64>)> {
        let mut headers: Vec<Header> = Vec::with_capacity(self.sources.len());
        for (path, _) in self.sources {
            let header = Index::open(path, Backing::Mmap)?.header().clone();
            if let (Some(first), Some((name, _))) = (headers.first(), self.sources.first()) {
                check_same((name, first), (path, &header))?;
            }
            headers.push(header);
        }
        let Some(first) = headers.first() else {
            return Err(Error::invalid("indexes", "name at least one"));
        };
        let packing = Packing::new(first.order, first.vocab_size)?;
        self.pruning.thresholds(packing.order)?;
        if packing.is_narrow() {
            self.merge::<u64>(packing, &headers, progress)
        } else {
            self.merge::<u128>(packing, &headers, progress)
        }
    }

    fn merge<K: Key>(
        &self,
        packing: Packing,
        headers: &[Header],
        progress: &mut Progress,
    ) -> Result<(Header, Vec<u64>)> {
        let (units, scale) = self.units()?;
        let parent = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let scratch = tempfile::Builder::new().prefix(".merge-").tempdir_in(parent);
        let scratch = scratch.map_err(|error| Error::io("write", parent, error))?;
        let mut counting = Counting::new(Journal::temporary(scratch.path()), self.memory);
        let total = headers.iter().flat_map(|header| header.nodes).sum();
        let mut done = 0_u64;
        for ((path, _), units) in self.sources.iter().zip(units) {
            // One at a time, so that no more than its pages are mapped.
            let index = Index::open(path, Backing::Mmap)?;
            for length in 1..=packing.order {
                index.for_each(length, &mut |tokens, count| {
                    let Some(count) = count.checked_mul(units) else {
                        let message = format!("count {count} times {} is too large", units as f64 / scale as f64);
                        return Err(Error::invalid("weights", message));
                    };
                    let key: K = packing.key(tokens.iter().copied());
                    done += 1;
                    if done.is_multiple_of(TICK) {
                        progress(Stage::Read, done, total)?;
                    }
                    counting.push(Counted { key, count }, Mark::default)
                })?;
            }
        }
        let mut journal = counting.finish(Mark::default())?;
        if scale > 1 {
            reduce::<K>(&mut journal, self.memory / 2, progress)?;
            journal = self.round::<K>(packing, journal, scale, progress)?;
        }
        let mut output = Output {
            packing,
            form: Form::Nodes,
            memory: self.memory,
            pruning: self.pruning.clone(),
            staging: true,
            path: self.path,
            fingerprint: &headers[0].fingerprint,
            manifest: self.manifest,
            progress,
        };
        Ok(output.build::<K>(journal)?.0)
    }

    /// The weights as whole numbers, and what they are parts of.
    fn units(&self) -> Result<(Vec<u64>, u64)> {
        let weights = self.sources.iter().map(|(_, weight)| *weight);
        if let Some(bad) = weights.clone().find(|weight| !(1.0 / UNIT as f64..=MAX_WEIGHT).contains(weight)) {
            let message = format!("must be {:e} to {MAX_WEIGHT:e}, got {bad}", 1.0 / UNIT as f64);
            return Err(Error::invalid("weights", message));
        }
        let scale = if weights.clone().all(|weight| weight.fract() == 0.0) {
            1
        } else {
            UNIT
        };
        Ok((
            weights.map(|weight| (weight * scale as f64).round() as u64).collect(),
            scale,
        ))
    }

    /// Divide the counts by `scale`, and raise those that rounding left below their continuations.
    fn round<K: Key>(
        &self,
        packing: Packing,
        journal: Journal,
        scale: u64,
        progress: &mut Progress,
    ) -> Result<Journal> {
        let folder = journal.folder().join("rounded");
        std::fs::create_dir(&folder).map_err(|error| Error::io("write", &folder, error))?;
        let mut rounded = Journal::temporary(&folder);
        let mut out = RunWriter::<K>::create(rounded.next_run(), WRITE_BUFFER)?;
        let mut raised = Counting::new(rounded, self.memory / 2);
        let mut open = Open::new();
        emit(&journal, self.memory / 4, progress, |key: K, count| {
            let count = (count / scale + u64::from(count % scale >= scale.div_ceil(2))).max(1);
            out.push(key, count)?;
            let depth = packing.tokens(key).1;
            open.close(depth, &mut raised)?;
            open.levels[depth - 1] = (key, count, 0);
            open.depth = depth;
            Ok(())
        })?;
        open.close(1, &mut raised)?;
        let base = out.finish(false)?;
        let mut rounded = raised.finish(Mark::default())?;
        rounded.add(base, Mark::default())?;
        Ok(rounded)
    }
}

/// The n-gram last read and its prefixes: key, count, and the sum of its continuations so far.
struct Open<K> {
    levels: [(K, u64, u64); MAX_ORDER],
    depth: usize,
}

impl<K: Key> Open<K> {
    fn new() -> Self {
        Self {
            levels: [(K::ZERO, 0, 0); MAX_ORDER],
            depth: 0,
        }
    }

    /// Nothing of this length or longer gets another continuation.
    fn close(&mut self, length: usize, raised: &mut Counting<Counted<K>>) -> Result<()> {
        while self.depth >= length {
            let (key, count, continued) = self.levels[self.depth - 1];
            if continued > count {
                let count = continued - count;
                raised.push(Counted { key, count }, Mark::default)?;
            }
            self.depth -= 1;
            if self.depth > 0 {
                self.levels[self.depth - 1].2 += count.max(continued);
            }
        }
        Ok(())
    }
}

/// Whether counts of two indexes are about the same n-grams.
fn check_same((a, old): (&Path, &Header), (b, new): (&Path, &Header)) -> Result<()> {
    let differs = if old.order != new.order {
        Some(("order", old.order.to_string(), new.order.to_string()))
    } else if old.vocab_size != new.vocab_size {
        Some((
            "vocabulary size",
            old.vocab_size.to_string(),
            new.vocab_size.to_string(),
        ))
    } else if old.fingerprint != new.fingerprint {
        Some(("fingerprint", old.fingerprint.clone(), new.fingerprint.clone()))
    } else {
        None
    };
    match differs {
        Some((what, old, new)) => {
            let (a, b) = (a.display(), b.display());
            let message = format!("{a} has {what} {old}, {b} has {new}; merge indexes of one tokenizer and order");
            Err(Error::invalid("indexes", message))
        }
        None => Ok(()),
    }
}
