//! Sorting more rows than memory holds: sorted runs in one unnamed temporary file, merged while they are read.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::{mem, vec};

use crate::error::{Error, Result};
use crate::extent::{Extent, ExtentReader, ExtentWriter};
use crate::tournament::Tournament;

/// Runs merged at a time.
const FAN_IN: usize = 64;
/// Bytes of a read or write buffer, at least and at most.
const MIN_BUFFER: usize = 1 << 16;
const MAX_BUFFER: usize = 1 << 22;

/// A row of fixed size.
pub(crate) trait Row: Copy + Send + 'static {
    /// What rows are sorted by.
    type Key: Copy + Ord + Send;
    /// Bytes of an encoded row.
    const BYTES: usize;
    /// What this row is sorted by.
    fn key(&self) -> Self::Key;
    /// Encode into exactly [`Row::BYTES`] bytes.
    fn write(&self, out: &mut [u8]);
    /// Decode what [`Row::write`] made.
    fn read(bytes: &[u8]) -> Self;
}

/// Takes rows in any order and gives them back by ascending key; rows of equal keys in no defined order.
pub(crate) struct Sorter<R: Row> {
    scratch: PathBuf,
    memory: usize,
    rows: Vec<R>,
    spill: Option<Spill<R>>,
}

impl<R: Row> Sorter<R> {
    /// `scratch`: an existing folder for a temporary file; `memory`: bytes for all rows and buffers held at a time.
    pub fn new(scratch: &Path, memory: usize) -> Self {
        Self {
            scratch: scratch.to_owned(),
            memory,
            rows: Vec::new(),
            spill: None,
        }
    }

    /// Add a row.
    #[inline]
    pub fn push(&mut self, row: R) -> Result<()> {
        if self.rows.len() == self.rows.capacity() {
            self.make_room()?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Half of the memory: one buffer is sorted and written while the other fills.
    fn limit(&self) -> usize {
        let bytes = self.memory.saturating_sub(2 * buffer_bytes(self.memory, 1)) / 2;
        (bytes / mem::size_of::<R>()).max(1024)
    }

    #[cold]
    fn make_room(&mut self) -> Result<()> {
        let limit = self.limit();
        if self.rows.len() < limit {
            // Grows by hand, because a vector that doubles on its own overshoots the limit.
            let more = self.rows.len().max(1024).min(limit - self.rows.len());
            self.rows.reserve_exact(more);
            return Ok(());
        }
        let rows = mem::take(&mut self.rows);
        let spill = match &mut self.spill {
            Some(spill) => spill,
            None => self.spill.insert(Spill::start(&self.scratch, self.memory, limit)?),
        };
        self.rows = match spill.exchange(rows) {
            Some(empty) => empty,
            None => return Err(self.failure()),
        };
        Ok(())
    }

    /// Why the thread that writes has ended early.
    fn failure(&mut self) -> Error {
        match self.spill.take().map(Spill::finish) {
            Some(Err(error)) => error,
            _ => Error::Interrupted,
        }
    }

    /// The rows by ascending key.
    pub fn finish(mut self) -> Result<SortedRows<R>> {
        let Some(mut spill) = self.spill.take() else {
            let mut rows = mem::take(&mut self.rows);
            rows.sort_unstable_by_key(Row::key);
            return Ok(SortedRows::Memory(rows.into_iter()));
        };
        let sent = spill.send(mem::take(&mut self.rows));
        let (file, runs) = spill.finish()?;
        if !sent {
            return Err(Error::Interrupted);
        }
        let runs = self.reduce(&file, runs)?;
        Ok(SortedRows::Disk(Merge::new(file, runs, self.memory, &self.scratch)?))
    }

    /// Merge runs until few enough are left.
    fn reduce(&self, file: &File, mut runs: Vec<Extent>) -> Result<Vec<Extent>> {
        while runs.len() > FAN_IN {
            let rest = runs.split_off(FAN_IN);
            let at = rest.iter().chain(&runs).map(|run| run.end).max().unwrap_or(0);
            let clone =
                || file.try_clone().map_err(|error| Error::io("read a temporary file in", &self.scratch, error));
            let mut out = ExtentWriter::new(clone()?, at, buffer_bytes(self.memory, 1), &self.scratch);
            for row in Merge::<R>::new(clone()?, runs, self.memory, &self.scratch)? {
                row?.write(out.space(R::BYTES)?);
            }
            runs = rest;
            runs.push(out.finish()?);
        }
        Ok(runs)
    }
}

fn buffer_bytes(memory: usize, runs: usize) -> usize {
    (memory / 8 / runs.max(1)).clamp(MIN_BUFFER, MAX_BUFFER)
}

/// The thread that sorts and writes full buffers.
struct Spill<R> {
    full: SyncSender<Vec<R>>,
    empty: Receiver<Vec<R>>,
    worker: JoinHandle<Result<(File, Vec<Extent>)>>,
}

impl<R: Row> Spill<R> {
    fn start(scratch: &Path, memory: usize, limit: usize) -> Result<Self> {
        let file =
            tempfile::tempfile_in(scratch).map_err(|error| Error::io("write a temporary file in", scratch, error))?;
        let (full, filled) = sync_channel::<Vec<R>>(0);
        let (emptied, empty) = channel();
        let scratch = scratch.to_owned();
        let work = move || {
            let clone = file.try_clone().map_err(|error| Error::io("write a temporary file in", &scratch, error))?;
            let mut out = ExtentWriter::new(clone, 0, buffer_bytes(memory, 1), &scratch);
            let mut runs = Vec::new();
            // The second buffer; whoever waits for it may be gone already.
            let _ = emptied.send(Vec::with_capacity(limit));
            for mut rows in filled {
                rows.sort_unstable_by_key(Row::key);
                for row in &rows {
                    row.write(out.space(R::BYTES)?);
                }
                runs.push(out.next_extent()?);
                rows.clear();
                let _ = emptied.send(rows);
            }
            Ok((file, runs))
        };
        let worker = std::thread::Builder::new().name("sorter".to_owned()).spawn(work);
        let worker = worker.map_err(|error| Error::Io {
            context: "cannot start a thread to sort".to_owned(),
            source: error,
        })?;
        Ok(Self { full, empty, worker })
    }

    /// Whether the thread took the rows; it has failed otherwise.
    fn send(&mut self, rows: Vec<R>) -> bool {
        self.full.send(rows).is_ok()
    }

    /// An empty buffer for a full one; None when the thread has failed.
    fn exchange(&mut self, rows: Vec<R>) -> Option<Vec<R>> {
        self.send(rows).then(|| self.empty.recv().ok()).flatten()
    }

    fn finish(self) -> Result<(File, Vec<Extent>)> {
        drop(self.full);
        self.worker.join().unwrap_or(Err(Error::Interrupted))
    }
}

/// Rows by ascending key. Ends after an error.
pub(crate) enum SortedRows<R: Row> {
    /// They fitted.
    Memory(vec::IntoIter<R>),
    /// They did not.
    Disk(Merge<R>),
}

impl<R: Row> Iterator for SortedRows<R> {
    type Item = Result<R>;

    #[inline]
    fn next(&mut self) -> Option<Result<R>> {
        match self {
            Self::Memory(rows) => rows.next().map(Ok),
            Self::Disk(merge) => merge.next(),
        }
    }
}

/// The merge of sorted runs.
pub(crate) struct Merge<R: Row> {
    readers: Vec<ExtentReader>,
    heads: Vec<Option<R>>,
    order: Tournament<R::Key>,
}

impl<R: Row> Merge<R> {
    fn new(file: File, runs: Vec<Extent>, memory: usize, scratch: &Path) -> Result<Self> {
        let buffer = (memory / 2 / runs.len().max(1)).clamp(MIN_BUFFER, MAX_BUFFER);
        let file = std::sync::Arc::new(file);
        let mut readers: Vec<ExtentReader> =
            runs.into_iter().map(|run| ExtentReader::new(file.clone(), run, buffer, scratch)).collect();
        let mut heads = Vec::with_capacity(readers.len());
        for reader in &mut readers {
            heads.push(reader.take(R::BYTES)?.map(R::read));
        }
        let order = Tournament::new(heads.iter().map(|head: &Option<R>| head.as_ref().map(Row::key)).collect());
        Ok(Self { readers, heads, order })
    }
}

impl<R: Row> Iterator for Merge<R> {
    type Item = Result<R>;

    #[inline]
    fn next(&mut self) -> Option<Result<R>> {
        let run = self.order.winner()?;
        let next = match self.readers[run].take(R::BYTES) {
            Ok(bytes) => bytes.map(R::read),
            Err(error) => {
                self.order = Tournament::new(Vec::new());
                return Some(Err(error));
            }
        };
        self.order.replace(next.as_ref().map(Row::key));
        mem::replace(&mut self.heads[run], next).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Pair(u64, u32);

    impl Row for Pair {
        type Key = u64;
        const BYTES: usize = 12;
        fn key(&self) -> u64 {
            self.0
        }
        fn write(&self, out: &mut [u8]) {
            out[..8].copy_from_slice(&self.0.to_le_bytes());
            out[8..].copy_from_slice(&self.1.to_le_bytes());
        }
        fn read(bytes: &[u8]) -> Self {
            let (mut key, mut value) = ([0; 8], [0; 4]);
            key.copy_from_slice(&bytes[..8]);
            value.copy_from_slice(&bytes[8..]);
            Self(u64::from_le_bytes(key), u32::from_le_bytes(value))
        }
    }

    fn pairs(count: u64) -> Vec<Pair> {
        // Multiplying by an odd number permutes the keys, so each comes once.
        (0..count).map(|i| Pair(i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8, i as u32)).collect()
    }

    #[test]
    fn sorts_in_memory_in_one_pass_and_in_several() {
        let folder = tempfile::tempdir().unwrap();
        for (count, memory) in [
            (0, 0),
            (1, 0),
            (500, 1 << 20),
            (20_000, 0),
            (300_000, 0),
            (200_000, 1 << 20),
        ] {
            let rows = pairs(count);
            let mut sorter = Sorter::new(folder.path(), memory);
            rows.iter().for_each(|row| sorter.push(*row).unwrap());
            let sorted: Vec<Pair> = sorter.finish().unwrap().map(Result::unwrap).collect();
            let mut expected = rows;
            expected.sort();
            assert_eq!(sorted, expected, "{count} rows in {memory} bytes");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_missing_folder_is_named() {
        let mut sorter = Sorter::new(Path::new("/none/here"), 0);
        let failed = pairs(5000).into_iter().find_map(|row| sorter.push(row).err()).unwrap();
        assert!(failed.to_string().contains("/none/here"), "{failed}");
    }
}
