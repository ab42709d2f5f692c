//! Layout of an `.ngx` file, little-endian throughout.
//!
//! ```text
//! offset  size  header
//!      0     8  magic 89 4E 47 58 0D 0A 1A 0A (text-mode copies and 7-bit channels destroy it)
//!      8     4  u32 format version
//!     12     4  u32 0x01020304, reads otherwise when the byte order is wrong
//!     16     8  u64 bytes of the header, fingerprint and section table included
//!     24     4  u32 CRC-32 of the header without these four bytes
//!     28     4  u32 order, the longest n-gram counted, 2 to 5
//!     32     8  u64 vocabulary size V; token ids are smaller
//!     40     8  u64 windows counted, the sum of all unigram counts
//!     48     8  u64 bytes of the file
//!     56    40  u64 [5] distinct n-grams by length from 1; 0 beyond the order
//!     96     4  u32 number of sections
//!    100     4  u32 bytes of the fingerprint
//!    104     F  fingerprint of the tokenizer's vocabulary, UTF-8, zero-padded to a multiple of 8
//!         48*S  section table: u32 kind, u32 level, u32 encoding, u32 CRC-32 of the section,
//!               u64 offset, u64 bytes, u64 items, u64 zero
//! ```
//!
//! Sections start at multiples of 64; the gaps are zero. The n-grams of one length form a level, sorted by their tokens:
//!
//! - `COUNTS`, u64: how often each n-gram was seen. Level 1 has one entry for every token id below V, 0 if never seen.
//! - `TOKENS`, u32: the last token of each n-gram; not on level 1, where it is the index.
//! - `CHILD_STARTS`, u64, one more than n-grams: the continuations of n-gram i are entries `[i]..[i + 1]` of the next
//!   level, their last tokens ascending; not on the last level.
//! - `MANIFEST`, UTF-8 JSON on level 0: what the counts were made from.
//!
//! A denser layout takes new encodings of these kinds and a higher version, the frame stays.

/// Smallest order of an index.
pub const MIN_ORDER: usize = 2;
/// Largest order of an index.
pub const MAX_ORDER: usize = 5;
/// Largest vocabulary: token ids travel as signed 32-bit integers.
pub const MAX_VOCAB: u64 = 1 << 31;

pub(crate) const MAGIC: [u8; 8] = *b"\x89NGX\r\n\x1a\n";
pub(crate) const VERSION: u32 = 1;
pub(crate) const BYTE_ORDER_MARK: u32 = 0x0102_0304;
pub(crate) const SECTION_ALIGNMENT: u64 = 64;
/// Longest fingerprint in bytes.
pub const MAX_FINGERPRINT: usize = 256;

/// What a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// u64 counts of the n-grams of a level.
    Counts = 1,
    /// u32 last tokens of the n-grams of a level.
    Tokens = 2,
    /// u64 starts of each n-gram's continuations on the next level.
    ChildStarts = 3,
    /// UTF-8 JSON about the corpus.
    Manifest = 4,
}

impl Kind {
    /// The kind's name for people.
    pub fn name(kind: u32) -> &'static str {
        match kind {
            1 => "counts",
            2 => "tokens",
            3 => "child_starts",
            4 => "manifest",
            _ => "unknown",
        }
    }

    /// Width of an item in bytes.
    pub(crate) fn width(self) -> u64 {
        match self {
            Self::Counts | Self::ChildStarts => 8,
            Self::Tokens => 4,
            Self::Manifest => 1,
        }
    }

    /// The only encoding of the kind in this version: the item's plain little-endian bytes.
    pub(crate) fn encoding(self) -> u32 {
        match self {
            Self::Counts | Self::ChildStarts => 1,
            Self::Tokens => 2,
            Self::Manifest => 3,
        }
    }
}

/// One row of the section table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// A [`Kind`], or a number that this version does not know and skips.
    pub kind: u32,
    /// Length of the n-grams that it is about; 0 for the whole file.
    pub level: u32,
    /// How its items are stored.
    pub encoding: u32,
    /// CRC-32 of its bytes.
    pub crc: u32,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Length in items.
    pub items: u64,
}

/// The little-endian number at a byte offset; 0 where the bytes end before.
#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        Some(chunk) => u32::from_le_bytes(*chunk),
        None => 0,
    }
}

/// The little-endian number at a byte offset; 0 where the bytes end before.
#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => 0,
    }
}
