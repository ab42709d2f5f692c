//! Stretches of a temporary file: written one after the other, read side by side.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};

/// Bytes `start..end` of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub start: u64,
    pub end: u64,
}

/// Appends to a file from some position on.
pub(crate) struct ExtentWriter {
    file: File,
    folder: PathBuf,
    buffer: Vec<u8>,
    used: usize,
    /// Where the extent being written starts, and where the buffer goes.
    start: u64,
    at: u64,
}

impl ExtentWriter {
    /// `folder` is named in errors; `capacity` are the bytes of the buffer.
    pub fn new(file: File, at: u64, capacity: usize, folder: &Path) -> Self {
        Self {
            file,
            folder: folder.to_owned(),
            buffer: vec![0; capacity],
            used: 0,
            start: at,
            at,
        }
    }

    /// The next `len` bytes to fill; `len` is small against the buffer.
    #[inline]
    pub fn space(&mut self, len: usize) -> Result<&mut [u8]> {
        if self.used + len > self.buffer.len() {
            self.flush()?;
        }
        let from = self.used;
        self.used += len;
        Ok(&mut self.buffer[from..from + len])
    }

    /// End the extent and start the next one behind it.
    pub fn next_extent(&mut self) -> Result<Extent> {
        self.flush()?;
        let extent = Extent {
            start: self.start,
            end: self.at,
        };
        self.start = self.at;
        Ok(extent)
    }

    /// End the last extent.
    pub fn finish(mut self) -> Result<Extent> {
        self.next_extent()
    }

    #[cold]
    fn flush(&mut self) -> Result<()> {
        let written = self.file.write_all_at(&self.buffer[..self.used], self.at);
        written.map_err(|error| Error::io("write a temporary file in", &self.folder, error))?;
        self.at += self.used as u64;
        self.used = 0;
        Ok(())
    }
}

/// Reads one extent front to back.
pub(crate) struct ExtentReader {
    file: Arc<File>,
    folder: PathBuf,
    buffer: Vec<u8>,
    used: usize,
    filled: usize,
    at: u64,
    end: u64,
}

impl ExtentReader {
    /// `folder` is named in errors; `capacity` are the bytes of the buffer.
    pub fn new(file: Arc<File>, extent: Extent, capacity: usize, folder: &Path) -> Self {
        Self {
            file,
            folder: folder.to_owned(),
            buffer: vec![0; capacity],
            used: 0,
            filled: 0,
            at: extent.start,
            end: extent.end,
        }
    }

    /// The next `len` bytes, fewer than the buffer holds; None at the end.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<Option<&[u8]>> {
        if self.used + len > self.filled {
            self.fill()?;
            if self.filled < len {
                return Ok(None);
            }
        }
        let from = self.used;
        self.used += len;
        Ok(Some(&self.buffer[from..from + len]))
    }

    /// Move what is left to the front and read on.
    #[cold]
    fn fill(&mut self) -> Result<()> {
        self.buffer.copy_within(self.used..self.filled, 0);
        self.filled -= self.used;
        self.used = 0;
        let room = (self.buffer.len() - self.filled) as u64;
        let len = room.min(self.end - self.at) as usize;
        let read = self.file.read_exact_at(&mut self.buffer[self.filled..self.filled + len], self.at);
        read.map_err(|error| Error::io("read a temporary file in", &self.folder, error))?;
        self.filled += len;
        self.at += len as u64;
        Ok(())
    }
}
