//! The file being written: sections one after the other under a temporary name, then the header, then a rename.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::format::{ENCODING, FIRST_SECTION, Kind, SECTION_ALIGNMENT, Section};
use crate::header::Header;

const BUFFER_BYTES: usize = 1 << 20;

/// A file that is removed unless it is finished.
pub(super) struct Output {
    writer: BufWriter<File>,
    temporary: Temporary,
    at: u64,
    sections: Vec<Section>,
    start: u64,
    crc: crc32fast::Hasher,
}

impl Output {
    /// Start a file that will be `path`, with its first section.
    pub fn create(path: &Path) -> Result<Self> {
        let temporary = Temporary::new(path);
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&temporary.path);
        let file = file.map_err(|error| Error::io("write", &temporary.path, error))?;
        let mut output = Self {
            writer: BufWriter::with_capacity(BUFFER_BYTES, file),
            temporary,
            at: 0,
            sections: Vec::new(),
            start: FIRST_SECTION,
            crc: crc32fast::Hasher::new(),
        };
        output.write(&[0; FIRST_SECTION as usize])?;
        output.crc = crc32fast::Hasher::new();
        Ok(output)
    }

    /// Bytes of the current section so far.
    pub fn section_len(&self) -> u64 {
        self.at - self.start
    }

    /// Append to the current section.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|error| Error::io("write", &self.temporary.path, error))?;
        self.crc.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Append zeros to the current section without writing them.
    pub fn skip(&mut self, bytes: u64) -> Result<()> {
        let fail = |error| Error::io("write", &self.temporary.path, error);
        self.writer.seek(SeekFrom::Start(self.at + bytes)).map_err(fail)?;
        self.at += bytes;
        // The checksum of a run of zeros from that of half the run.
        let (mut power, mut left) = (hasher_of_zero(), bytes);
        while left > 0 {
            if left & 1 == 1 {
                self.crc.combine(&power);
            }
            let half = power.clone();
            power.combine(&half);
            left >>= 1;
        }
        Ok(())
    }

    /// Close the current section; what is written next is the start of another one.
    pub fn end_section(&mut self, kind: Kind, level: usize, parameters: u64) -> Result<()> {
        let bytes = self.section_len();
        let crc = std::mem::take(&mut self.crc).finalize();
        self.sections.push(Section {
            kind: kind as u32,
            level: level as u32,
            encoding: ENCODING,
            crc,
            offset: self.start,
            bytes,
            items: bytes / kind.width(),
            parameters,
        });
        let gap = self.at.next_multiple_of(SECTION_ALIGNMENT) - self.at;
        self.write(&[0; SECTION_ALIGNMENT as usize][..gap as usize])?;
        self.crc = crc32fast::Hasher::new();
        self.start = self.at;
        Ok(())
    }

    /// Write the header, with sections and file size filled in, and rename the file to its final name.
    pub fn finish(mut self, path: &Path, mut header: Header) -> Result<Header> {
        header.file_bytes = self.at;
        header.sections = std::mem::take(&mut self.sections);
        let fail = |error| Error::io("write", &self.temporary.path, error);
        self.writer.seek(SeekFrom::Start(0)).map_err(fail)?;
        self.writer.write_all(&header.encode()).map_err(fail)?;
        self.writer.flush().map_err(fail)?;
        self.writer.get_ref().sync_all().map_err(fail)?;
        fs::rename(&self.temporary.path, path).map_err(|error| Error::io("rename the new index to", path, error))?;
        sync_folder(path);
        Ok(header)
    }
}

fn hasher_of_zero() -> crc32fast::Hasher {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[0]);
    hasher
}

/// A file name that is removed unless it was renamed.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn new(path: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(
            ".tmp-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        Self {
            path: path.with_file_name(name),
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Fails after the rename, and there is nobody to tell when it fails before.
        let _ = fs::remove_file(&self.path);
    }
}

/// Make a rename in this folder durable, where folders can be synced.
fn sync_folder(path: &Path) {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}
