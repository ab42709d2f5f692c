//! Reading the public implementation's `.trie` file into an index.
//!
//! Little-endian: u64 order, u64 node count, then for each node i32 token, u64 parent index, i32 frequency, u64 child
//! count, and for each child i32 token, u64 node index. Node 0 is the root. The file is read once, front to back; its
//! nodes are never held, but sorted on disk: by parent to meet their prefixes, then by their tokens.

mod input;
mod join;
mod links;
mod read;
mod rows;

use std::path::Path;

use self::input::Input;
use self::join::Join;
use self::rows::Ngram;
use crate::builder::key::{Key, Packing};
use crate::error::{Error, FileProblem, Result};
use crate::format::{MAX_ORDER, MIN_ORDER};
use crate::header::Header;
use crate::progress::{Progress, Stage};
use crate::sorter::{SortedRows, Sorter};
use crate::writer::IndexWriter;

const TICK: u64 = 1 << 18;
/// Bytes of a node without children; a file of n bytes cannot hold more than n / 24 nodes.
const MIN_NODE_BYTES: u64 = 24;
/// Sorters that are in use at a time.
const SORTERS: usize = 5;

/// An import.
pub struct Import<'a> {
    /// The `.trie` file.
    pub source: &'a Path,
    /// The index to write.
    pub path: &'a Path,
    /// Token ids must be below.
    pub vocab_size: u64,
    /// Fingerprint of the tokenizer's vocabulary.
    pub fingerprint: &'a str,
    /// JSON about the corpus.
    pub manifest: &'a str,
    /// Bytes of all buffers.
    pub memory: usize,
}

impl Import<'_> {
    /// Write the index. On an error nothing is left behind.
    pub fn run(&self, progress: &mut Progress) -> Result<Header> {
        let mut input = Input::open(self.source)?;
        let order = input.u64()?;
        let nodes = input.u64()?;
        if !(MIN_ORDER as u64..=MAX_ORDER as u64).contains(&order) {
            let (expected, got) = (format!("order {MIN_ORDER} to {MAX_ORDER}"), format!("{order}"));
            return Err(input.fail(FileProblem::Foreign, expected, got));
        }
        let most = input.bytes / MIN_NODE_BYTES;
        if nodes == 0 || nodes > most {
            let expected = format!("1 to {most} nodes in {} bytes", input.bytes);
            return Err(input.fail(FileProblem::Truncated, expected, format!("{nodes}")));
        }
        let packing = Packing::new(order as usize, self.vocab_size)?;
        if packing.is_narrow() {
            self.import::<u64>(input, packing, nodes, progress)
        } else {
            self.import::<u128>(input, packing, nodes, progress)
        }
    }

    fn import<K: Key>(
        &self,
        mut input: Input,
        packing: Packing,
        nodes: u64,
        progress: &mut Progress,
    ) -> Result<Header> {
        let folder = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let scratch = tempfile::Builder::new().prefix(".import-").tempdir_in(folder);
        let scratch = scratch.map_err(|error| Error::io("write", folder, error))?;
        let memory = self.memory / SORTERS;
        let (mut named, mut children) = (
            Sorter::new(scratch.path(), memory),
            Sorter::new(scratch.path(), 2 * memory),
        );
        read::read::<K>(&mut input, packing, nodes, (&mut named, &mut children), progress)?;
        let mut join = Join {
            input: &input,
            packing,
            scratch: scratch.path(),
            memory,
            total: nodes,
            progress: &mut *progress,
        };
        let ngrams = join.run(named.finish()?, children.finish()?)?;
        let mut writer = IndexWriter::new(
            self.path,
            scratch.path(),
            packing.order,
            packing.vocab_size,
            self.memory / 2,
        )?;
        write(&input, packing, nodes, ngrams, &mut writer, progress)?;
        writer.finish(self.fingerprint, self.manifest, progress)
    }
}

/// Hand the n-grams over, checking that each comes once and that none was continued more often than it was seen.
fn write<K: Key>(
    input: &Input,
    packing: Packing,
    nodes: u64,
    ngrams: SortedRows<Ngram<K>>,
    writer: &mut IndexWriter,
    progress: &mut Progress,
) -> Result<()> {
    // Count of the n-gram read last and of its prefixes by length, and what their continuations left of it.
    let mut left = [0_u64; MAX_ORDER];
    let mut last = K::ZERO;
    for (done, ngram) in (0_u64..).zip(ngrams) {
        let ngram = ngram?;
        let (tokens, len) = packing.tokens(ngram.key);
        let tokens = &tokens[..len];
        if ngram.key == last {
            return Err(input.corrupt("each n-gram once".to_owned(), format!("the n-gram {tokens:?} twice")));
        }
        last = ngram.key;
        let count = u64::from(ngram.count);
        if len > 1 {
            let Some(rest) = left[len - 2].checked_sub(count) else {
                let expected = format!(
                    "at most {} more continuations of {:?}",
                    left[len - 2],
                    &tokens[..len - 1]
                );
                return Err(input.corrupt(expected, format!("{count}")));
            };
            left[len - 2] = rest;
        }
        left[len - 1] = count;
        writer.node(tokens, count)?;
        if done.is_multiple_of(TICK) {
            progress(Stage::Count, done, nodes)?;
        }
    }
    progress(Stage::Count, nodes, nodes)
}
