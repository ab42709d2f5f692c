//! Where the bytes of an index live.

use std::fs::File;
use std::path::Path;

use memmap2::{Advice, Mmap};

use crate::error::{Error, Result};

/// How the bytes of an index are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A shared memory map, read on first use.
    Mmap,
    /// A shared memory map, read completely when opened.
    Populate,
    /// A private copy in memory.
    Copy,
}

pub(crate) enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    pub fn open(path: &Path, backing: Backing) -> Result<Self> {
        let bytes = match backing {
            Backing::Copy => Self::Owned(std::fs::read(path).map_err(|error| Error::io("read", path, error))?),
            Backing::Mmap | Backing::Populate => {
                let file = File::open(path).map_err(|error| Error::io("open", path, error))?;
                let length = file.metadata().map_err(|error| Error::io("open", path, error))?.len();
                if length == 0 {
                    Self::Owned(Vec::new())
                } else {
                    // SAFETY: indexes are immutable, new versions are new files renamed into place, so the mapped
                    // file is not modified or truncated under the map.
                    let map = unsafe { Mmap::map(&file) }.map_err(|error| Error::io("map", path, error))?;
                    #[cfg(unix)]
                    advise(&map, backing).map_err(|error| Error::io("map", path, error))?;
                    Self::Mapped(map)
                }
            }
        };
        Ok(bytes)
    }

    #[inline]
    pub fn get(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

#[cfg(unix)]
fn advise(map: &Mmap, backing: Backing) -> std::io::Result<()> {
    if backing == Backing::Populate {
        map.advise(Advice::WillNeed)?;
        // Touch each page, so that the file is in memory when this returns.
        let mut sum = 0_u8;
        for page in map.chunks(4096) {
            sum = sum.wrapping_add(page[0]);
        }
        std::hint::black_box(sum);
    } else {
        map.advise(Advice::Random)?;
    }
    Ok(())
}
