//! Merged runs into an index file, pruned to thresholds or to a size.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::emit::{emit, reduce};
use super::journal::Journal;
use super::key::{Key, Packing};
use super::thresholds::Histogram;
use crate::error::{Error, Result};
use crate::format::MAX_ORDER;
use crate::header::Header;
use crate::progress::Progress;
use crate::writer::{IndexWriter, Prune};

/// Attempts to reach a size: the sizes of n-grams of a length change a little with their number.
const ATTEMPTS: usize = 6;
/// The index in the work folder until it is complete, so that a killed build leaves nothing beside it.
pub(crate) const STAGED: &str = "index.ngx";

/// Which n-grams an index leaves out.
#[derive(Clone, Debug, Default)]
pub struct Pruning {
    /// Smallest count kept, by length; must not decrease. Empty: keep all.
    pub min_counts: Vec<u64>,
    /// A context's count becomes the sum of its kept continuations, as in the public implementation.
    pub renormalise: bool,
    /// Raise the thresholds, those of the longest n-grams first, until the file has at most so many bytes.
    pub target_bytes: Option<u64>,
}

impl Pruning {
    /// The thresholds for every length. Raises an error naming what is wrong with them.
    pub(crate) fn thresholds(&self, order: usize) -> Result<[u64; MAX_ORDER]> {
        let given = &self.min_counts;
        if given.is_empty() {
            return Ok([1; MAX_ORDER]);
        }
        if given.len() != order {
            let message = format!("must give {order} counts, one a length, got {given:?}");
            return Err(Error::invalid("prune", message));
        }
        if given.contains(&0) || given.windows(2).any(|pair| pair[0] > pair[1]) {
            let message = format!("must be 1 or more and not decrease with the length, got {given:?}");
            return Err(Error::invalid("prune", message));
        }
        let mut all = [given[order - 1]; MAX_ORDER];
        all[..order].copy_from_slice(given);
        Ok(all)
    }
}

/// What the n-grams of the runs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Windows, to be counted for themselves and for their prefixes.
    Windows,
    /// N-grams of every length with their counts.
    Nodes,
}

/// What to write where.
pub(crate) struct Output<'a, 'b> {
    pub packing: Packing,
    pub form: Form,
    pub memory: usize,
    pub pruning: Pruning,
    /// Whether the folder of the runs is on the file system of `path`.
    pub staging: bool,
    pub path: &'a Path,
    pub fingerprint: &'a str,
    pub manifest: &'a str,
    pub progress: &'a mut Progress<'b>,
}

impl Output<'_, '_> {
    /// Write an index of the runs; returns the smallest counts kept by length, too.
    pub fn build<K: Key>(&mut self, mut journal: Journal) -> Result<((Header, Vec<u64>), Journal)> {
        let least = self.pruning.thresholds(self.packing.order)?;
        reduce::<K>(&mut journal, self.memory / 2, self.progress)?;
        let (header, kept) = match self.pruning.target_bytes {
            None => (self.write::<K>(&journal, least, None)?, least),
            Some(target) => self.shrink::<K>(&journal, least, target)?,
        };
        if let Some(staged) = self.staged(&journal) {
            fs::rename(staged, self.path).map_err(|error| Error::io("rename the new index to", self.path, error))?;
            sync_folder(self.path);
        }
        Ok(((header, kept[..self.packing.order].to_vec()), journal))
    }

    fn write<K: Key>(
        &mut self,
        journal: &Journal,
        min_counts: [u64; MAX_ORDER],
        mut histogram: Option<&mut Histogram>,
    ) -> Result<Header> {
        let Packing { order, vocab_size, .. } = self.packing;
        let path = self.staged(journal).unwrap_or_else(|| self.path.to_owned());
        let mut writer = IndexWriter::new(&path, journal.folder(), order, vocab_size, self.memory / 4 * 3)?;
        if min_counts != [1; MAX_ORDER] {
            let renormalise = self.pruning.renormalise;
            writer.prune(Prune {
                min_counts,
                renormalise,
            })?;
        }
        let (packing, form) = (self.packing, self.form);
        emit(journal, self.memory / 8, self.progress, |key: K, count| {
            let (tokens, len) = packing.tokens(key);
            let tokens = &tokens[..len];
            match form {
                Form::Windows => {
                    if let Some(histogram) = &mut histogram {
                        histogram.window(tokens, count);
                    }
                    writer.window(tokens, count)
                }
                Form::Nodes => {
                    if let Some(histogram) = &mut histogram {
                        histogram.node(len, count);
                    }
                    writer.node(tokens, count)
                }
            }
        })?;
        let manifest = manifest(self.manifest, &min_counts[..order], self.pruning.renormalise);
        writer.finish(self.fingerprint, &manifest, self.progress)
    }

    fn staged(&self, journal: &Journal) -> Option<PathBuf> {
        self.staging.then(|| journal.folder().join(STAGED))
    }

    /// Write with ever higher thresholds until the file is small enough.
    fn shrink<K: Key>(
        &mut self,
        journal: &Journal,
        least: [u64; MAX_ORDER],
        target: u64,
    ) -> Result<(Header, [u64; MAX_ORDER])> {
        if !self.staging {
            return Err(Error::invalid("target_size", "needs a builder with a work folder"));
        }
        let mut histogram = Histogram::new();
        let mut kept = least;
        let mut header = self.write::<K>(journal, kept, Some(&mut histogram))?;
        histogram.finish();
        let mut aim = target as f64;
        for _ in 0..ATTEMPTS {
            if header.file_bytes <= target {
                return Ok((header, kept));
            }
            if kept != least {
                // The expectation was too low by this factor.
                aim *= target as f64 / header.file_bytes as f64 * 0.995;
            }
            let (sizes, fixed) = sizes(&header, &histogram, kept);
            let order = self.packing.order;
            let Some(picked) = histogram.thresholds(order, least, &sizes, fixed, aim) else {
                break;
            };
            kept = picked;
            header = self.write::<K>(journal, kept, None)?;
        }
        let smallest = header.file_bytes;
        let message = format!("{target} bytes cannot be reached, the smallest index tried has {smallest}");
        Err(Error::invalid("target_size", message))
    }
}

/// Make a rename durable, where folders can be synced.
fn sync_folder(path: &Path) {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Ok(folder) = File::open(parent.unwrap_or(Path::new("."))) {
        let _ = folder.sync_all();
    }
}

/// Bytes of one n-gram by length in a file, and of all that does not depend on their number.
fn sizes(header: &Header, histogram: &Histogram, kept: [u64; MAX_ORDER]) -> ([f64; MAX_ORDER], f64) {
    let mut sizes = [0.0; MAX_ORDER];
    let mut fixed = header.file_bytes as f64;
    for length in 2..=header.order {
        let sections = header.sections.iter().filter(|section| section.level as usize == length);
        let bytes = sections.map(|section| section.bytes).sum::<u64>() as f64;
        let nodes = histogram.at_least(length, kept[length - 1]);
        sizes[length - 1] = bytes / nodes.max(1) as f64;
        fixed -= bytes;
    }
    (sizes, fixed)
}

/// The manifest with what was left out.
fn manifest(manifest: &str, min_counts: &[u64], renormalise: bool) -> String {
    match serde_json::from_str::<Value>(manifest) {
        Ok(Value::Object(mut fields)) if min_counts.iter().any(|count| *count > 1) => {
            let totals = if renormalise { "renormalise" } else { "keep" };
            fields.insert("pruned".to_owned(), json!({"min_counts": min_counts, "totals": totals}));
            Value::Object(fields).to_string()
        }
        _ => manifest.to_owned(),
    }
}
