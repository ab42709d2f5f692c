//! Counting documents of token ids into an index, in bounded memory.
//!
//! Every token starts one window of at most `order` tokens, packed into an integer. Full buffers of windows become sorted,
//! compressed runs on disk; the runs are merged into the writer. Which windows share a run does not change the result,
//! so it is a function of the documents alone. The state between two runs is in a journal, and a build that was killed
//! goes on from there.

pub(crate) mod counting;
mod documents;
pub(crate) mod emit;
pub(crate) mod journal;
pub(crate) mod key;
mod merge;
pub(crate) mod output;
pub(crate) mod place;
pub(crate) mod run;
mod thresholds;

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use self::counting::Counting;
use self::journal::Journal;
use self::key::Packing;
pub use self::output::Pruning;
use self::place::Place;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::progress::{Progress, Stage};

/// Memory of a builder made by [`Builder::new`], in bytes.
pub const DEFAULT_MEMORY: usize = 256 << 20;

/// Collects windows of token ids.
pub struct Builder {
    packing: Packing,
    memory: usize,
    windows: Windows,
    pruning: Pruning,
    documents: u64,
    tokens: u64,
    place: Place,
    /// Last tokens of an unfinished document, whose windows are not complete.
    carry: Vec<u32>,
    folder: PathBuf,
    /// Set when the folder is removed with the builder.
    scratch: Option<TempDir>,
}

enum Windows {
    Narrow(Counting<u64>),
    Wide(Counting<u128>),
}

impl Builder {
    /// A builder that cannot be resumed, for n-grams of 1 to `order` token ids below `vocab_size`.
    pub fn new(order: usize, vocab_size: u64) -> Result<Self> {
        let packing = Packing::new(order, vocab_size)?;
        let scratch = tempfile::tempdir().map_err(|error| Error::io("write", &std::env::temp_dir(), error))?;
        let journal = Journal::temporary(scratch.path());
        Ok(Self::with_journal(packing, DEFAULT_MEMORY, journal, Some(scratch)))
    }

    /// A builder that keeps its runs and a journal in `folder` and goes on with what is there.
    ///
    /// `identity`: JSON of all that the counts depend on; a folder of another identity is refused, unless `restart` says
    /// to start over. `memory`: bytes of all buffers. Look at [`Builder::position`] before adding documents.
    pub fn open(
        order: usize,
        vocab_size: u64,
        folder: &Path,
        memory: usize,
        identity: &str,
        restart: bool,
    ) -> Result<Self> {
        let packing = Packing::new(order, vocab_size)?;
        let journal = Journal::open(folder, identity, restart)?;
        Ok(Self::with_journal(packing, memory, journal, None))
    }

    fn with_journal(packing: Packing, memory: usize, journal: Journal, scratch: Option<TempDir>) -> Self {
        let (place, folder) = (Place::new(journal.mark()), journal.folder().to_owned());
        let windows = if packing.is_narrow() {
            Windows::Narrow(Counting::new(journal, memory))
        } else {
            Windows::Wide(Counting::new(journal, memory))
        };
        Self {
            packing,
            memory,
            windows,
            pruning: Pruning::default(),
            documents: 0,
            tokens: place.started,
            place,
            carry: Vec::new(),
            folder,
            scratch,
        }
    }

    /// Where to go on reading: what [`Builder::add`] was told with the batch that was cut by a kill, "" at the start.
    pub fn position(&self) -> &str {
        &self.place.position
    }

    /// Tokens whose windows were in runs when the builder was opened.
    pub fn covered(&self) -> u64 {
        self.place.covered
    }

    /// Drop n-grams when the index is written.
    pub fn set_pruning(&mut self, pruning: Pruning) -> Result<()> {
        pruning.thresholds(self.packing.order)?;
        self.pruning = pruning;
        Ok(())
    }

    /// Add documents: document i is `tokens[offsets[i]..offsets[i + 1]]`. On an error about them nothing is added.
    pub fn add<T: Copy + Into<u32>>(&mut self, tokens: &[T], offsets: &[i64]) -> Result<()> {
        self.add_from(tokens, offsets, "", false)
    }

    /// Like [`Builder::add`]; `position` says, in the caller's words, where these documents start, and with
    /// `unfinished` the last one goes on with the first one of the next call.
    pub fn add_from<T: Copy + Into<u32>>(
        &mut self,
        tokens: &[T],
        offsets: &[i64],
        position: &str,
        unfinished: bool,
    ) -> Result<()> {
        documents::check_offsets(tokens.len(), offsets)?;
        documents::check_tokens(tokens, self.packing.vocab_size)?;
        if self.carry.is_empty() {
            self.place.go_on_from(position);
        }
        let count = offsets.len() - 1;
        for (i, pair) in offsets.windows(2).enumerate() {
            let document = &tokens[pair[0] as usize..pair[1] as usize];
            let open = unfinished && i + 1 == count;
            self.tokens += document.len() as u64;
            if self.carry.is_empty() {
                self.document(document, open)?;
            } else {
                let mut whole = std::mem::take(&mut self.carry);
                whole.extend(document.iter().map(|&token| token.into()));
                self.document(&whole, open)?;
            }
            self.documents += u64::from(!open);
        }
        Ok(())
    }

    fn document<T: Copy + Into<u32>>(&mut self, tokens: &[T], open: bool) -> Result<()> {
        // While a document goes on, the windows of its last tokens are not complete.
        let starts = if open {
            (tokens.len() + 1).saturating_sub(self.packing.order)
        } else {
            tokens.len()
        };
        match &mut self.windows {
            Windows::Narrow(counting) => self.place.push(self.packing, tokens, starts, counting)?,
            Windows::Wide(counting) => self.place.push(self.packing, tokens, starts, counting)?,
        }
        if open {
            self.carry.extend(tokens[starts..].iter().map(|&token| token.into()));
        }
        Ok(())
    }

    /// Documents added to this builder.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// Tokens added so far, those before [`Builder::position`] included.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Stop. The work folder stays for a later build if it holds a run; what is not in runs is lost.
    pub fn close(self) -> Result<()> {
        self.stop(journal::exists)
    }

    /// Stop and remove the work folder.
    pub fn discard(self) -> Result<()> {
        self.stop(|_| false)
    }

    fn stop(self, keep: impl FnOnce(&Path) -> bool) -> Result<()> {
        match self.windows {
            Windows::Narrow(counting) => counting.stop(),
            Windows::Wide(counting) => counting.stop(),
        }
        if self.scratch.is_some() || keep(&self.folder) {
            return Ok(());
        }
        fs::remove_dir_all(&self.folder).map_err(|error| Error::io("remove", &self.folder, error))
    }

    /// Count, and write the index to `path`; a file of that name is replaced at the very end.
    ///
    /// After an error the work folder stays, so that the build can be resumed.
    pub fn finish(self, path: &Path, fingerprint: &str, manifest: &str, progress: &mut Progress) -> Result<Header> {
        self.finish_pruned(path, fingerprint, manifest, progress).map(|(header, _)| header)
    }

    /// Like [`Builder::finish`]; also returns the smallest counts kept, by length.
    pub fn finish_pruned(
        mut self,
        path: &Path,
        fingerprint: &str,
        manifest: &str,
        progress: &mut Progress,
    ) -> Result<(Header, Vec<u64>)> {
        if !self.carry.is_empty() {
            let rest = std::mem::take(&mut self.carry);
            self.document(&rest, false)?;
        }
        if let Err(error) = self.place.check() {
            if self.place.covered == 0 {
                self.discard()?;
            }
            return Err(error);
        }
        progress(Stage::Sort, 0, self.tokens)?;
        let mark = self.place.mark(self.tokens);
        let mut output = output::Output {
            packing: self.packing,
            form: output::Form::Windows,
            memory: self.memory,
            pruning: self.pruning,
            staging: self.scratch.is_none(),
            path,
            fingerprint,
            manifest,
            progress,
        };
        let (built, journal) = match self.windows {
            Windows::Narrow(counting) => output.build::<u64>(counting.finish(mark)?),
            Windows::Wide(counting) => output.build::<u128>(counting.finish(mark)?),
        }?;
        if self.scratch.is_none() {
            journal.remove()?;
        }
        Ok(built)
    }
}
