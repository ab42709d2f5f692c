//! A sorted run of n-grams and counts in a file, as distances.
//!
//! Each row is the distance to the key before it and the count: the first byte holds the lowest 6 bits of the distance,
//! bit 6 says that the count is not 1, bit 7 that more bits follow, 7 a byte. A count other than 1 follows the same way.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::key::Key;
use crate::error::{Error, FileProblem, Result};

const MORE: u8 = 0x80;
const COUNTED: u8 = 0x40;
/// No row is longer: 1 + 18 bytes of a 128-bit distance, 10 of a 64-bit count.
const MAX_ROW: usize = 32;

/// What the journal says about a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunInfo {
    /// File name in the work folder.
    pub name: String,
    pub bytes: u64,
    pub rows: u64,
    pub crc32: u32,
}

/// Writes one run.
pub(crate) struct RunWriter<K> {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    capacity: usize,
    crc: crc32fast::Hasher,
    bytes: u64,
    rows: u64,
    last: K,
}

impl<K: Key> RunWriter<K> {
    /// Create the file, replacing one of that name; `capacity`: bytes of the buffer.
    pub fn create(path: PathBuf, capacity: usize) -> Result<Self> {
        let file = File::create(&path).map_err(|error| Error::io("write", &path, error))?;
        Ok(Self {
            file,
            path,
            buffer: Vec::with_capacity(capacity + MAX_ROW),
            capacity,
            crc: crc32fast::Hasher::new(),
            bytes: 0,
            rows: 0,
            last: K::ZERO,
        })
    }

    /// Append an n-gram, not smaller than the one before it.
    #[inline]
    pub fn push(&mut self, key: K, count: u64) -> Result<()> {
        let (low, mut rest) = key.minus(self.last).split(6);
        let more = if rest == K::ZERO { 0 } else { MORE };
        let counted = if count == 1 { 0 } else { COUNTED };
        self.buffer.push(low | more | counted);
        while rest != K::ZERO {
            let (low, above) = rest.split(7);
            self.buffer.push(low | if above == K::ZERO { 0 } else { MORE });
            rest = above;
        }
        if count != 1 {
            let mut rest = count;
            while rest >= u64::from(MORE) {
                self.buffer.push(rest as u8 | MORE);
                rest >>= 7;
            }
            self.buffer.push(rest as u8);
        }
        self.last = key;
        self.rows += 1;
        if self.buffer.len() >= self.capacity {
            self.flush()?;
        }
        Ok(())
    }

    /// Complete the file; with `durable` it outlives a loss of power.
    pub fn finish(mut self, durable: bool) -> Result<RunInfo> {
        self.flush()?;
        if durable {
            self.file.sync_data().map_err(|error| Error::io("write", &self.path, error))?;
        }
        Ok(RunInfo {
            name: self.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            bytes: self.bytes,
            rows: self.rows,
            crc32: self.crc.finalize(),
        })
    }

    #[cold]
    fn flush(&mut self) -> Result<()> {
        self.file.write_all(&self.buffer).map_err(|error| Error::io("write", &self.path, error))?;
        self.crc.update(&self.buffer);
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Reads one run and checks it against the journal on the way.
pub(crate) struct RunReader<K> {
    file: File,
    path: PathBuf,
    info: RunInfo,
    buffer: Vec<u8>,
    used: usize,
    filled: usize,
    crc: crc32fast::Hasher,
    bytes: u64,
    rows: u64,
    last: K,
}

impl<K: Key> RunReader<K> {
    /// Open a run of the folder; `capacity`: bytes of the buffer.
    pub fn open(folder: &Path, info: &RunInfo, capacity: usize) -> Result<Self> {
        let path = folder.join(&info.name);
        let file = File::open(&path).map_err(|error| Error::io("open", &path, error))?;
        Ok(Self {
            file,
            path,
            info: info.clone(),
            buffer: vec![0; capacity.max(2 * MAX_ROW)],
            used: 0,
            filled: 0,
            crc: crc32fast::Hasher::new(),
            bytes: 0,
            rows: 0,
            last: K::ZERO,
        })
    }

    /// The next n-gram and its count; None at the end.
    #[inline]
    pub fn next(&mut self) -> Result<Option<(K, u64)>> {
        if self.filled - self.used < MAX_ROW {
            self.fill()?;
        }
        if self.used == self.filled {
            self.check()?;
            return Ok(None);
        }
        let first = self.byte();
        let mut distance = K::at(first & 0x3F, 0);
        let (mut shift, mut byte) = (6, first);
        while byte & MORE != 0 && self.used < self.filled {
            byte = self.byte();
            distance = distance.plus(K::at(byte & 0x7F, shift));
            shift += 7;
        }
        let mut count = 1;
        if first & COUNTED != 0 {
            (count, shift, byte) = (0, 0, MORE);
            while byte & MORE != 0 && self.used < self.filled {
                byte = self.byte();
                count |= u64::from(byte & 0x7F).checked_shl(shift).unwrap_or(0);
                shift += 7;
            }
        }
        self.last = self.last.plus(distance);
        self.rows += 1;
        Ok(Some((self.last, count)))
    }

    #[inline]
    fn byte(&mut self) -> u8 {
        let byte = self.buffer[self.used];
        self.used += 1;
        byte
    }

    /// Move what is left to the front and read on.
    #[cold]
    fn fill(&mut self) -> Result<()> {
        self.buffer.copy_within(self.used..self.filled, 0);
        self.filled -= self.used;
        self.used = 0;
        while self.filled < self.buffer.len() {
            let read = self.file.read(&mut self.buffer[self.filled..]);
            let read = read.map_err(|error| Error::io("read", &self.path, error))?;
            if read == 0 {
                break;
            }
            self.crc.update(&self.buffer[self.filled..self.filled + read]);
            self.filled += read;
            self.bytes += read as u64;
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let (bytes, rows, crc32) = (self.bytes, self.rows, self.crc.clone().finalize());
        if (bytes, rows, crc32) == (self.info.bytes, self.info.rows, self.info.crc32) {
            return Ok(());
        }
        Err(Error::File {
            path: self.path.display().to_string(),
            problem: FileProblem::Corrupt,
            expected: format!(
                "{} bytes, {} rows, CRC-32 {:08x}",
                self.info.bytes, self.info.rows, self.info.crc32
            ),
            got: format!("{bytes} bytes, {rows} rows, CRC-32 {crc32:08x}"),
            remedy: "start the build over with --restart",
        })
    }
}
