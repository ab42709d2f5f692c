//! Where the bytes of an index live.

use std::fs::File;
use std::path::Path;

use memmap2::{Advice, Mmap};

use crate::error::{Error, Result};
use crate::prefault::{Fill, copy, populate};

/// How the bytes of an index are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A shared memory map, read on first use.
    Mmap,
    /// A shared memory map, read completely when opened.
    Populate,
    /// A private copy in memory, on huge pages where the system gives them.
    Copy,
}

impl Backing {
    /// The backing of this name: mmap, populate or copy.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "mmap" => Ok(Self::Mmap),
            "populate" => Ok(Self::Populate),
            "copy" => Ok(Self::Copy),
            other => {
                let message = format!("must be mmap, populate or copy, got {other:?}");
                Err(Error::invalid("backing", message))
            }
        }
    }
}

pub(crate) enum Bytes {
    /// A file, or a private copy of one.
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Open a file; with [`Backing::Populate`] and [`Backing::Copy`] all of it is in memory when this returns.
    pub fn open(path: &Path, backing: Backing) -> Result<Self> {
        let mut bytes = Self::map(path)?;
        bytes.fill(path, backing, &Fill::default())?;
        Ok(bytes)
    }

    /// Map a file without reading it.
    fn map(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| Error::io("open", path, error))?;
        let length = file.metadata().map_err(|error| Error::io("open", path, error))?.len();
        if length == 0 {
            return Ok(Self::Owned(Vec::new()));
        }
        // SAFETY: indexes are immutable, new versions are new files renamed into place, so the mapped file is not
        // modified or truncated under the map.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| Error::io("map", path, error))?;
        map.advise(Advice::Random).map_err(|error| Error::io("map", path, error))?;
        Ok(Self::Mapped(map))
    }

    /// Bring the bytes to where `backing` wants them. `path` is for messages only.
    pub fn fill(&mut self, path: &Path, backing: Backing, fill: &Fill) -> Result<()> {
        let Self::Mapped(map) = self else {
            return Ok(());
        };
        match backing {
            Backing::Mmap => {}
            Backing::Populate => populate(map, path, fill)?,
            Backing::Copy => *map = copy(map, path, fill)?,
        }
        Ok(())
    }

    #[inline]
    pub fn get(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}
