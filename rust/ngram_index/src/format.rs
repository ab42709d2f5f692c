//! Layout of an `.ngx` file, little-endian throughout.
//!
//! ```text
//! offset  size  header
//!      0     8  magic 89 4E 47 58 0D 0A 1A 0A (text-mode copies and 7-bit channels destroy it)
//!      8     4  u32 format version
//!     12     4  u32 0x01020304, reads otherwise when the byte order is wrong
//!     16     8  u64 bytes of the header, fingerprint and section table included
//!     24     4  u32 CRC-32 of the header without these four bytes
//!     28     4  u32 order N, the longest n-gram counted, 2 to 5
//!     32     8  u64 vocabulary size V; token ids are smaller
//!     40     8  u64 windows counted, the sum of all unigram counts
//!     48     8  u64 bytes of the file
//!     56    40  u64 [5] distinct n-grams by length from 1; 0 beyond the order
//!     96     4  u32 number of sections
//!    100     4  u32 bytes of the fingerprint
//!    104     F  fingerprint of the tokenizer's vocabulary, UTF-8, zero-padded to a multiple of 8
//!         48*S  section table: u32 kind, u32 length of the n-grams (0: whole file), u32 encoding, u32 CRC-32 of the
//!               section, u64 offset, u64 bytes, u64 items, u64 parameters
//! ```
//!
//! The first section starts at byte 4096, all at multiples of 64; the gaps are zero. With W the bits of V - 1:
//!
//! - `UNIGRAMS`, length 1, one row for each token below V: u64 count, u64 follow.
//! - `LINES`, lengths 2 to N - 1: the n-grams of a length in a hash table of 64-byte lines, so that a look-up costs one
//!   cache miss. A line is 8 bits of spill (the lower 5: how many lines on its n-grams may lie) and slots of equal width;
//!   a slot is a tag, 2 bits of state (0 empty, 1 plain, 2 single, 3 wide), a count and a follow. See `scatter` for how
//!   tokens become a line and a tag, and back: the table is exact. Parameters: one byte each for slots in a line, bits
//!   of a tag, bits of a count, bits of a follow.
//! - `WIDE`, lengths 2 to N - 1: rows as in `UNIGRAMS` for n-grams whose count is too large for a slot; the slot's follow
//!   is the row's number.
//! - `RECORDS`, length N: the continuations of the n-grams of length N - 1, see `record`. Ends with 16 zero bytes.
//! - `MANIFEST`: UTF-8 JSON about what the counts were made from.
//!
//! What follows an n-gram shorter than N - 1 is the number of its different continuations. What follows one of length
//! N - 1 is the byte in `RECORDS` where its continuations are, 0 if it has none; in a single slot it is the one
//! continuation itself, seen as often as the n-gram.

/// Smallest order of an index.
pub const MIN_ORDER: usize = 2;
/// Largest order of an index.
pub const MAX_ORDER: usize = 5;
/// Largest vocabulary: token ids travel as signed 32-bit integers.
pub const MAX_VOCAB: u64 = 1 << 31;
/// Longest fingerprint in bytes.
pub const MAX_FINGERPRINT: usize = 256;

pub(crate) const MAGIC: [u8; 8] = *b"\x89NGX\r\n\x1a\n";
pub(crate) const VERSION: u32 = 2;
pub(crate) const BYTE_ORDER_MARK: u32 = 0x0102_0304;
pub(crate) const SECTION_ALIGNMENT: u64 = 64;
/// Where the first section starts; a header is never longer.
pub(crate) const FIRST_SECTION: u64 = 4096;
/// Bytes of a line of the hash table.
pub(crate) const LINE_BYTES: usize = 64;
/// Bytes of a row of `UNIGRAMS` and `WIDE`.
pub(crate) const ROW_BYTES: usize = 16;
/// Zero bytes after the last record, so that a field can be read with a wide load.
pub(crate) const RECORDS_PADDING: u64 = 16;

/// What a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Rows of single tokens.
    Unigrams = 1,
    /// Lines of the hash table of the n-grams of a length.
    Lines = 2,
    /// Rows of n-grams with large counts.
    Wide = 3,
    /// Continuations of the n-grams of length order - 1.
    Records = 4,
    /// UTF-8 JSON about the corpus.
    Manifest = 5,
}

impl Kind {
    /// The kind's name for people.
    pub fn name(kind: u32) -> &'static str {
        match kind {
            1 => "unigrams",
            2 => "lines",
            3 => "wide",
            4 => "records",
            5 => "manifest",
            _ => "unknown",
        }
    }

    /// Bytes of an item.
    pub(crate) fn width(self) -> u64 {
        match self {
            Self::Unigrams | Self::Wide => ROW_BYTES as u64,
            Self::Lines => LINE_BYTES as u64,
            Self::Records | Self::Manifest => 1,
        }
    }
}

/// The only encoding of every kind in this version.
pub(crate) const ENCODING: u32 = 1;

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
    /// What else is needed to read it.
    pub parameters: u64,
}

/// Bits of the tokens of a vocabulary.
pub(crate) fn token_bits(vocab_size: u64) -> u32 {
    (u64::BITS - (vocab_size - 1).leading_zeros()).max(1)
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
