//! Writing an `.ngx` file: sections to a temporary name, then the header, then a rename.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::format::{Kind, MAX_FINGERPRINT, MAX_ORDER, SECTION_ALIGNMENT, Section};
use crate::header::Header;
use crate::progress::{Progress, Stage};

const BUFFER_BYTES: usize = 1 << 20;

/// The n-grams of one length, in the order of their tokens.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub tokens: Vec<u32>,
    pub counts: Vec<u64>,
    pub child_starts: Vec<u64>,
}

/// All n-grams, as the sections hold them; filled in the order of their tokens.
#[derive(Debug)]
pub(crate) struct Tables {
    pub order: usize,
    pub vocab_size: u64,
    pub windows: u64,
    pub nodes: [u64; MAX_ORDER],
    pub levels: Vec<Table>,
}

impl Tables {
    pub fn new(order: usize, vocab_size: u64) -> Self {
        let mut levels: Vec<Table> = (0..order).map(|_| Table::default()).collect();
        levels[0].counts = vec![0; vocab_size as usize];
        Self {
            order,
            vocab_size,
            windows: 0,
            nodes: [0; MAX_ORDER],
            levels,
        }
    }

    /// Add the n-gram that ends in `token` at a level from 1, after its prefix and all n-grams before it.
    pub fn push(&mut self, level: usize, token: u32, count: u64) {
        let next = self.levels.get(level).map_or(0, |table| table.counts.len() as u64);
        let table = &mut self.levels[level - 1];
        self.nodes[level - 1] += 1;
        if level == 1 {
            table.child_starts.resize(token as usize + 1, next);
            table.counts[token as usize] = count;
            self.windows += count;
        } else {
            table.tokens.push(token);
            table.counts.push(count);
            table.child_starts.push(next);
        }
    }

    /// Add to the count of the n-gram pushed last at a level from 1.
    pub fn bump(&mut self, level: usize, token: u32, count: u64) {
        if level == 1 {
            self.levels[0].counts[token as usize] += count;
            self.windows += count;
        } else if let Some(last) = self.levels[level - 1].counts.last_mut() {
            *last += count;
        }
    }

    /// The length and count of an n-gram whose continuations were seen more often than itself, and how often.
    pub fn overfull(&mut self) -> Option<(usize, u64, u64)> {
        self.finish();
        for level in 1..self.order {
            let (parents, next) = (&self.levels[level - 1], &self.levels[level]);
            for (pair, &count) in parents.child_starts.windows(2).zip(&parents.counts) {
                let children = &next.counts[pair[0] as usize..pair[1] as usize];
                let seen = children.iter().fold(0_u64, |sum, child| sum.saturating_add(*child));
                if seen > count {
                    return Some((level, count, seen));
                }
            }
        }
        None
    }

    /// Close the lists of children; nothing is pushed afterwards.
    fn finish(&mut self) {
        for level in 1..self.order {
            let next = self.levels[level].counts.len() as u64;
            let items = self.levels[level - 1].counts.len() + 1;
            self.levels[level - 1].child_starts.resize(items, next);
        }
        self.levels[self.order - 1].child_starts.clear();
    }

    /// Write the file under a temporary name in the same folder and rename it to `path`.
    pub fn write(mut self, path: &Path, fingerprint: &str, manifest: &str, progress: &mut Progress) -> Result<Header> {
        if fingerprint.len() > MAX_FINGERPRINT {
            let message = format!("must have at most {MAX_FINGERPRINT} bytes, got {}", fingerprint.len());
            return Err(Error::invalid("fingerprint", message));
        }
        self.finish();
        let temporary = Temporary::new(path);
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&temporary.path);
        let file = file.map_err(|error| Error::io("write", &temporary.path, error))?;
        let header = self.write_sections(&file, &temporary.path, fingerprint, manifest, progress)?;
        file.sync_all().map_err(|error| Error::io("write", &temporary.path, error))?;
        fs::rename(&temporary.path, path).map_err(|error| Error::io("rename the new index to", path, error))?;
        sync_folder(path);
        Ok(header)
    }

    fn write_sections(
        &self,
        file: &File,
        path: &Path,
        fingerprint: &str,
        manifest: &str,
        progress: &mut Progress,
    ) -> Result<Header> {
        let mut parts: Vec<(Kind, usize, Items)> = vec![(Kind::Manifest, 0, Items::Bytes(manifest.as_bytes()))];
        for (i, table) in self.levels.iter().enumerate() {
            parts.push((Kind::Counts, i + 1, Items::U64(&table.counts)));
            if i > 0 {
                parts.push((Kind::Tokens, i + 1, Items::U32(&table.tokens)));
            }
            if i + 1 < self.order {
                parts.push((Kind::ChildStarts, i + 1, Items::U64(&table.child_starts)));
            }
        }
        let start = (Header::encoded_len(fingerprint, parts.len()) as u64).next_multiple_of(SECTION_ALIGNMENT);
        let sizes = parts.iter().map(|(kind, _, items)| items.len() * kind.width());
        let total = sizes.fold(start, |at, bytes| (at + bytes).next_multiple_of(SECTION_ALIGNMENT));
        let mut out = Output {
            writer: BufWriter::with_capacity(BUFFER_BYTES, file),
            path,
            at: 0,
            total,
            progress,
        };
        out.zeros(start)?;
        let mut sections = Vec::with_capacity(parts.len());
        for (kind, level, items) in &parts {
            let (offset, crc) = (out.at, out.items(items)?);
            sections.push(Section {
                kind: *kind as u32,
                level: *level as u32,
                encoding: kind.encoding(),
                crc,
                offset,
                bytes: out.at - offset,
                items: items.len(),
            });
            out.zeros(out.at.next_multiple_of(SECTION_ALIGNMENT) - out.at)?;
        }
        let header = Header {
            order: self.order,
            vocab_size: self.vocab_size,
            windows: self.windows,
            file_bytes: out.at,
            nodes: self.nodes,
            fingerprint: fingerprint.to_owned(),
            sections,
        };
        out.writer.seek(SeekFrom::Start(0)).map_err(|error| Error::io("write", path, error))?;
        out.bytes(&header.encode())?;
        out.writer.flush().map_err(|error| Error::io("write", path, error))?;
        Ok(header)
    }
}

enum Items<'a> {
    Bytes(&'a [u8]),
    U32(&'a [u32]),
    U64(&'a [u64]),
}

impl Items<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(items) => items.len() as u64,
            Self::U32(items) => items.len() as u64,
            Self::U64(items) => items.len() as u64,
        }
    }
}

struct Output<'a, 'b> {
    writer: BufWriter<&'a File>,
    path: &'a Path,
    at: u64,
    total: u64,
    progress: &'a mut Progress<'b>,
}

impl Output<'_, '_> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|error| Error::io("write", self.path, error))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn zeros(&mut self, len: u64) -> Result<()> {
        self.bytes(&vec![0; len as usize])
    }

    /// Write the items and return their checksum.
    fn items(&mut self, items: &Items) -> Result<u32> {
        let mut crc = crc32fast::Hasher::new();
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        match items {
            Items::Bytes(bytes) => {
                for chunk in bytes.chunks(BUFFER_BYTES) {
                    self.chunk(chunk, &mut crc)?;
                }
            }
            Items::U32(items) => {
                for chunk in items.chunks(BUFFER_BYTES / 4) {
                    buffer.clear();
                    buffer.extend(chunk.iter().flat_map(|item| item.to_le_bytes()));
                    self.chunk(&buffer, &mut crc)?;
                }
            }
            Items::U64(items) => {
                for chunk in items.chunks(BUFFER_BYTES / 8) {
                    buffer.clear();
                    buffer.extend(chunk.iter().flat_map(|item| item.to_le_bytes()));
                    self.chunk(&buffer, &mut crc)?;
                }
            }
        }
        Ok(crc.finalize())
    }

    fn chunk(&mut self, chunk: &[u8], crc: &mut crc32fast::Hasher) -> Result<()> {
        crc.update(chunk);
        self.bytes(chunk)?;
        (self.progress)(Stage::Write, self.at, self.total)
    }
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

/// Thresholds by length.
#[derive(Clone, Copy, Debug)]
pub struct Prune {
    /// Smallest count kept.
    pub min_counts: [u64; MAX_ORDER],
    /// Counts become sums of what is kept.
    pub renormalise: bool,
}

/// Stand-in until the real one lands.
pub struct IndexWriter {
    tables: Tables,
    path: Vec<u32>,
    prune: Option<Prune>,
}

impl IndexWriter {
    /// New.
    pub fn new(_scratch: &Path, order: usize, vocab_size: u64, _memory: usize) -> Result<Self> {
        Ok(Self {
            tables: Tables::new(order, vocab_size),
            path: Vec::new(),
            prune: None,
        })
    }
    /// Window.
    pub fn window(&mut self, tokens: &[u32], count: u64) -> Result<()> {
        if tokens < self.path.as_slice() && !self.path.starts_with(tokens) {
            return Err(Error::invalid("order", format!("{tokens:?} after {:?}", self.path)));
        }
        let mut same = true;
        for (i, &token) in tokens.iter().enumerate() {
            same = same && self.path.get(i) == Some(&token);
            if same {
                self.tables.bump(i + 1, token, count)
            } else {
                self.tables.push(i + 1, token, count)
            }
        }
        self.path = tokens.to_vec();
        Ok(())
    }
    /// Node.
    pub fn node(&mut self, tokens: &[u32], count: u64) -> Result<()> {
        if tokens <= self.path.as_slice() {
            return Err(Error::invalid("order", format!("{tokens:?} after {:?}", self.path)));
        }
        if tokens.len() > 1 && !self.path.starts_with(&tokens[..tokens.len() - 1]) {
            return Err(Error::invalid("prefix", format!("{tokens:?} after {:?}", self.path)));
        }
        self.tables.push(tokens.len(), tokens[tokens.len() - 1], count);
        self.path = tokens.to_vec();
        Ok(())
    }
    /// Prune.
    pub fn prune(&mut self, prune: Prune) -> Result<()> {
        self.prune = Some(prune);
        Ok(())
    }
    /// Finish.
    pub fn finish(mut self, path: &Path, fingerprint: &str, manifest: &str, progress: &mut Progress) -> Result<Header> {
        if let Some(prune) = self.prune {
            self.tables.finish();
            let old = self.tables;
            let mut new = Tables::new(old.order, old.vocab_size);
            fn walk(old: &Tables, new: &mut Tables, prune: &Prune, level: usize, index: usize, token: u32) {
                let count = old.levels[level - 1].counts[index];
                if count == 0 || count < prune.min_counts[level - 1] {
                    return;
                }
                new.push(level, token, count);
                if level < old.order {
                    let starts = &old.levels[level - 1].child_starts;
                    for child in starts[index]..starts[index + 1] {
                        walk(
                            old,
                            new,
                            prune,
                            level + 1,
                            child as usize,
                            old.levels[level].tokens[child as usize],
                        );
                    }
                }
            }
            for token in 0..old.vocab_size {
                walk(&old, &mut new, &prune, 1, token as usize, token as u32);
            }
            self.tables = new;
        }
        self.tables.write(path, fingerprint, manifest, progress)
    }
}
