//! Reading an index in place, from a memory map or any bytes.
//!
//! [`Index`] answers what the search asks: how often was this n-gram seen, what followed it. Nothing outside this file
//! knows the layout. No content of the file can make it panic or read elsewhere: positions taken from the file are
//! clamped to the sections they point into, and a broken list reads as an empty or a wrong one, which `verify` finds.

use std::ops::Range;
use std::path::{Path, PathBuf};

pub use crate::backing::Backing;
use crate::backing::Bytes;
use crate::error::{Error, FileProblem, Result};
use crate::format::{Kind, Section, u32_at, u64_at};
use crate::header::Header;

/// Vocabulary position of "no such n-gram".
const ABSENT: u64 = u64::MAX;

/// Items of one section.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Array {
    start: usize,
    pub items: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Level {
    pub counts: Array,
    pub tokens: Array,
    pub child_starts: Array,
}

/// An n-gram of a known length, ready to be continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    level: usize,
    index: u64,
}

impl Context {
    /// Number of tokens of the n-gram.
    pub fn len(self) -> usize {
        self.level
    }

    /// Never: an n-gram has at least one token.
    pub fn is_empty(self) -> bool {
        false
    }
}

/// A continuation of a context: how often it was seen, and itself as a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    index: u64,
    /// How often; 0 if never.
    pub count: u64,
}

impl Hit {
    /// Never seen.
    pub const NONE: Self = Self {
        index: ABSENT,
        count: 0,
    };

    /// The continuation of a context of `len` tokens as a context of `len + 1`.
    pub fn context(self, len: usize) -> Option<Context> {
        (self.count > 0).then_some(Context {
            level: len + 1,
            index: self.index,
        })
    }
}

/// An open index.
pub struct Index {
    pub(crate) bytes: Bytes,
    path: PathBuf,
    header: Header,
    manifest: String,
    pub(crate) levels: Vec<Level>,
}

impl Index {
    /// Open a file. Checks the header, sizes and bounds, not the content: see [`Index::verify`].
    pub fn open(path: &Path, backing: Backing) -> Result<Self> {
        Self::new(Bytes::open(path, backing)?, path.to_owned())
    }

    /// An index from the bytes of a file.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::new(Bytes::Owned(bytes), PathBuf::from("<memory>"))
    }

    fn new(bytes: Bytes, path: PathBuf) -> Result<Self> {
        let name = path.display().to_string();
        let file = bytes.get();
        let header = Header::parse(file, &name)?;
        let mut levels = Vec::with_capacity(header.order);
        for level in 1..=header.order {
            let items = if level == 1 {
                header.vocab_size
            } else {
                header.nodes[level - 1]
            };
            let array = |kind, items| -> Result<Array> {
                let section = header.section(kind, level, items, &name)?;
                Ok(Array {
                    start: section.offset as usize,
                    items,
                })
            };
            levels.push(Level {
                counts: array(Kind::Counts, items)?,
                tokens: if level > 1 {
                    array(Kind::Tokens, items)?
                } else {
                    Array::default()
                },
                child_starts: if level < header.order {
                    array(Kind::ChildStarts, items.saturating_add(1))?
                } else {
                    Array::default()
                },
            });
        }
        let manifests = header.sections.iter().find(|section| section.kind == Kind::Manifest as u32);
        let section = header.section(Kind::Manifest, 0, manifests.map_or(0, |section| section.bytes), &name)?;
        let manifest = std::str::from_utf8(section_bytes(file, &section)).map_err(|error| Error::File {
            path: name.clone(),
            problem: FileProblem::Corrupt,
            expected: "a manifest in UTF-8".to_owned(),
            got: error.to_string(),
            remedy: "build or copy the index again",
        })?;
        let manifest = manifest.to_owned();
        Ok(Self {
            bytes,
            path,
            header,
            manifest,
            levels,
        })
    }

    /// The file, or `<memory>`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sizes, fingerprint and the section table.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What the counts were made from, as JSON.
    pub fn manifest(&self) -> &str {
        &self.manifest
    }

    /// Longest n-gram counted.
    pub fn order(&self) -> usize {
        self.header.order
    }

    /// Token ids are smaller than this.
    pub fn vocab_size(&self) -> u64 {
        self.header.vocab_size
    }

    /// Windows counted, the sum of all unigram counts.
    pub fn windows(&self) -> u64 {
        self.header.windows
    }

    /// Distinct tokens seen.
    pub fn distinct_unigrams(&self) -> u64 {
        self.header.nodes[0]
    }

    /// One token as an n-gram; [`Hit::NONE`] for a token that was never seen or is not in the vocabulary.
    #[inline]
    pub fn unigram(&self, token: u32) -> Hit {
        let file = self.bytes.get();
        Hit {
            index: u64::from(token),
            count: self.levels[0].counts.u64(file, u64::from(token)),
        }
    }

    /// The n-gram of these tokens, oldest first, if it was seen and can be continued (1 to order - 1 tokens).
    pub fn context(&self, tokens: &[u32]) -> Option<Context> {
        let (first, rest) = tokens.split_first()?;
        let mut context = self.unigram(*first).context(0)?;
        for token in rest {
            let mut hit = [Hit::NONE];
            self.successors(context, &[*token], &mut hit);
            context = hit[0].context(context.level)?;
        }
        (context.level < self.order()).then_some(context)
    }

    /// How often an n-gram was seen.
    #[inline]
    pub fn count(&self, context: Context) -> u64 {
        let level = self.levels.get(context.level.wrapping_sub(1)).copied().unwrap_or_default();
        level.counts.u64(self.bytes.get(), context.index)
    }

    /// How many different tokens followed an n-gram; 0 at the last length.
    #[inline]
    pub fn distinct_successors(&self, context: Context) -> u64 {
        let children = self.children(context);
        children.end - children.start
    }

    /// Look up the continuations of an n-gram by tokens in ascending order; `hits[i]` is that of `tokens[i]`.
    pub fn successors(&self, context: Context, tokens: &[u32], hits: &mut [Hit]) {
        let file = self.bytes.get();
        let children = self.children(context);
        let level = self.levels.get(context.level).copied().unwrap_or_default();
        let mut at = children.start;
        for (&token, hit) in tokens.iter().zip(hits) {
            at = level.tokens.lower_bound(file, at..children.end, token);
            *hit = if at < children.end && level.tokens.u32(file, at) == token {
                Hit {
                    index: at,
                    count: level.counts.u64(file, at),
                }
            } else {
                Hit::NONE
            };
        }
    }

    /// All continuations of an n-gram with their counts, tokens ascending.
    pub fn all_successors(&self, context: Context) -> impl Iterator<Item = (u32, u64)> + '_ {
        let level = self.levels.get(context.level).copied().unwrap_or_default();
        let file = self.bytes.get();
        self.children(context).map(move |at| (level.tokens.u32(file, at), level.counts.u64(file, at)))
    }

    /// All n-grams of a length.
    pub fn for_each(&self, length: usize, f: &mut dyn FnMut(&[u32], u64) -> Result<()>) -> Result<()> {
        fn walk(
            index: &Index,
            path: &mut Vec<u32>,
            hit: Hit,
            length: usize,
            f: &mut dyn FnMut(&[u32], u64) -> Result<()>,
        ) -> Result<()> {
            if path.len() == length {
                return f(path, hit.count);
            }
            let level = index.levels.get(path.len()).copied().unwrap_or_default();
            let file = index.bytes.get();
            for at in index.children(Context {
                level: path.len(),
                index: hit.index,
            }) {
                path.push(level.tokens.u32(file, at));
                walk(
                    index,
                    path,
                    Hit {
                        index: at,
                        count: level.counts.u64(file, at),
                    },
                    length,
                    f,
                )?;
                path.pop();
            }
            Ok(())
        }
        for token in 0..self.vocab_size() as u32 {
            let hit = self.unigram(token);
            if hit.count > 0 {
                walk(self, &mut vec![token], hit, length, f)?;
            }
        }
        Ok(())
    }

    /// Where the continuations of an n-gram are on the next level.
    #[inline]
    fn children(&self, context: Context) -> Range<u64> {
        if context.level == 0 || context.level >= self.levels.len() {
            return 0..0;
        }
        let level = self.levels[context.level - 1];
        if context.index >= level.counts.items {
            return 0..0;
        }
        let file = self.bytes.get();
        let start = level.child_starts.u64(file, context.index);
        let end = level.child_starts.u64(file, context.index + 1).min(self.levels[context.level].counts.items);
        start.min(end)..end
    }
}

pub(crate) fn section_bytes<'a>(file: &'a [u8], section: &Section) -> &'a [u8] {
    let end = section.offset.saturating_add(section.bytes);
    file.get(section.offset as usize..end as usize).unwrap_or_default()
}

impl Array {
    #[inline]
    pub fn u32(self, file: &[u8], index: u64) -> u32 {
        if index < self.items {
            u32_at(file, self.start + index as usize * 4)
        } else {
            0
        }
    }

    #[inline]
    pub fn u64(self, file: &[u8], index: u64) -> u64 {
        if index < self.items {
            u64_at(file, self.start + index as usize * 8)
        } else {
            0
        }
    }

    /// First position in an ascending range whose u32 is not below `token`: steps that double, then halves.
    #[inline]
    fn lower_bound(self, file: &[u8], range: Range<u64>, token: u32) -> u64 {
        let (mut low, end) = (range.start, range.end);
        let mut step = 1;
        let mut high = low;
        while high < end && self.u32(file, high) < token {
            low = high + 1;
            high = low + step;
            step *= 2;
        }
        high = high.min(end);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.u32(file, middle) < token {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}
