//! A file read front to back, and the errors about it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, FileProblem, Result};

const BUFFER_BYTES: usize = 1 << 20;
const REMEDY: &str = "copy or build the .trie file again";

pub(super) struct Input<'a> {
    file: File,
    path: &'a Path,
    buffer: Vec<u8>,
    used: usize,
    filled: usize,
    /// Position of the next byte.
    pub at: u64,
    /// Length of the file.
    pub bytes: u64,
}

impl<'a> Input<'a> {
    pub fn open(path: &'a Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| Error::io("open", path, error))?;
        let bytes = file.metadata().map_err(|error| Error::io("open", path, error))?.len();
        Ok(Self {
            file,
            path,
            buffer: vec![0; BUFFER_BYTES],
            used: 0,
            filled: 0,
            at: 0,
            bytes,
        })
    }

    #[inline]
    pub fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    #[inline]
    pub fn i32(&mut self) -> Result<i32> {
        self.take().map(i32::from_le_bytes)
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        if self.filled - self.used < N {
            self.fill()?;
        }
        match self.buffer[self.used..self.filled].first_chunk() {
            Some(bytes) => {
                self.used += N;
                self.at += N as u64;
                Ok(*bytes)
            }
            None => {
                let expected = format!("{N} more bytes at byte {}", self.at);
                let got = format!("the end of {} bytes", self.at + (self.filled - self.used) as u64);
                Err(self.fail(FileProblem::Truncated, expected, got))
            }
        }
    }

    /// Move what is left to the front and read on.
    #[cold]
    fn fill(&mut self) -> Result<()> {
        self.buffer.copy_within(self.used..self.filled, 0);
        self.filled -= self.used;
        self.used = 0;
        while self.filled < self.buffer.len() {
            let read = self.file.read(&mut self.buffer[self.filled..]);
            match read.map_err(|error| Error::io("read", self.path, error))? {
                0 => break,
                read => self.filled += read,
            }
        }
        Ok(())
    }

    pub fn fail(&self, problem: FileProblem, expected: String, got: String) -> Error {
        Error::File {
            path: self.path.display().to_string(),
            problem,
            expected,
            got,
            remedy: REMEDY,
        }
    }

    pub fn corrupt(&self, expected: String, got: String) -> Error {
        self.fail(FileProblem::Corrupt, expected, got)
    }
}
