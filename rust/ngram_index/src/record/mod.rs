//! The continuations of one n-gram of length order - 1, with their counts.
//!
//! Spread tokens ascend; they lie evenly, so a directory of blocks finds one in a long list without a search. Packed
//! lowest bit first, from a whole byte on:
//!
//! - head, short form for 1 to 16 continuations with counts of at most 128: bit 0 is 0, bits 1 to 3 the width c of a
//!   count, bits 4 to 7 the number n of continuations less 1;
//! - head, long form: bit 0 is 1, bits 1 to 5 c, bits 6 and 7 the bytes s of a size (1, 2 or 4; coded 0, 1, 2); n in s
//!   bytes; number e of large counts in s bytes; one byte with their width x;
//! - directory of 2^b blocks, b = floor(log2 n) - 1 if n >= 128, else b = 0: for each block but the first the number of
//!   continuations before it, in as many bits as n has;
//! - for each continuation its spread token without the b highest bits, which are the block, and c bits for its count:
//!   the count less 1 if that is below 2^c - e, else 2^c - e and the number of a large count;
//! - the large counts, x bits each.

mod encoder;

pub(crate) use encoder::Encoder;

use crate::bits::{bits, mask, prefetch, read, read_wide};
use crate::candidates::Candidates;

/// Shortest list with a directory.
const DIRECTORY_FROM: u64 = 64;
/// Continuations for each candidate from which on looking each candidate up is faster than reading the whole list.
const SCAN_FACTOR: u64 = 3;
/// Tokens that are looked up at the same time in a long list.
const TOGETHER: usize = 32;
/// Position of a token that is not in the list.
const ABSENT: u64 = u64::MAX;
/// Bits by which a block is shorter than its list: blocks hold 2 to 4 on average.
const BLOCK_BITS: u32 = 1;
/// Widest starts of blocks of which two are read in one go.
const MAX_PAIR_BITS: u32 = 28;
/// Widest count that is not a large one: with a token it is read in one go.
const MAX_COUNT_BITS: u32 = 26;

/// The head of a record, and where its parts are (bit offsets in the section).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    bytes: &'a [u8],
    len: u64,
    block_bits: u32,
    low_bits: u32,
    len_bits: u32,
    count_bits: u32,
    large: u64,
    large_bits: u32,
    directory: u64,
    entries: u64,
    larges: u64,
    /// Codes below this are counts less 1.
    direct: u64,
}

impl<'a> Record<'a> {
    /// The record at a byte of the section, for tokens of `token_bits` bits; one that does not fit into the section is empty.
    #[inline]
    pub fn at(bytes: &'a [u8], offset: u64, token_bits: u32) -> Self {
        let offset = offset.min(bytes.len() as u64);
        let head = read(bytes, offset * 8, 56);
        let (len, large, large_bits, count_bits, head_bytes) = if head & 1 == 0 {
            ((head >> 4 & 15) + 1, 0, 0, (head >> 1 & 7) as u32, 1)
        } else {
            let size = 1_u64 << (head >> 6 & 3).min(2);
            let word = read(bytes, (offset + 1) * 8, 56) | read(bytes, (offset + 8) * 8, 8) << 56;
            let width = size as u32 * 8;
            let (len, large) = (word & mask(width), word >> width & mask(width));
            let large_bits = bytes.get((offset + 1 + 2 * size) as usize).copied().unwrap_or(0);
            (
                len,
                large,
                u32::from(large_bits).min(64),
                (head >> 1 & 31) as u32,
                2 + 2 * size,
            )
        };
        let block_bits = if len >= DIRECTORY_FROM {
            (bits(len) - 1 - BLOCK_BITS).min(token_bits)
        } else {
            0
        };
        let (low_bits, len_bits) = (token_bits - block_bits, bits(len));
        let directory = (offset + head_bytes) * 8;
        let entries = directory + ((1 << block_bits) - 1) * u64::from(len_bits);
        let larges = entries + len * u64::from(low_bits + count_bits);
        let end = larges + large * u64::from(large_bits);
        let mut record = Self {
            bytes,
            len,
            block_bits,
            low_bits,
            len_bits,
            count_bits,
            large,
            large_bits,
            directory,
            entries,
            larges,
            direct: (1_u64 << count_bits).saturating_sub(large),
        };
        if end > bytes.len() as u64 * 8 || large > len {
            (record.len, record.block_bits) = (0, 0);
        }
        record
    }

    /// Number of continuations.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where a block starts and ends.
    #[inline]
    fn block(&self, block: u64) -> (u64, u64) {
        let last = (block + 1) >> self.block_bits != 0;
        if self.block_bits == 0 || self.len_bits > MAX_PAIR_BITS {
            let start = |block: u64| {
                read(
                    self.bytes,
                    self.directory + (block - 1) * u64::from(self.len_bits),
                    self.len_bits,
                )
            };
            let first = if block == 0 { 0 } else { start(block) };
            return (first, if last { self.len } else { start(block + 1).min(self.len) });
        }
        // Both in one go; the first block has only an end in the directory.
        let at = self.directory + block.saturating_sub(1) * u64::from(self.len_bits);
        let pair = read(self.bytes, at, 2 * self.len_bits);
        let (first, second) = (pair & mask(self.len_bits), pair >> self.len_bits);
        match (block, last) {
            (0, _) => (0, first.min(self.len)),
            (_, true) => (first, self.len),
            _ => (first, second.min(self.len)),
        }
    }

    /// Bits of a spread token and its count.
    #[inline]
    fn entry_bits(&self) -> u32 {
        self.low_bits + self.count_bits
    }

    /// The lower bits of a spread token, and its count.
    #[inline]
    fn entry(&self, at: u64) -> u64 {
        read(
            self.bytes,
            self.entries + at * u64::from(self.entry_bits()),
            self.entry_bits(),
        )
    }

    /// The lower bits of the spread token of an entry.
    #[inline]
    fn low(&self, entry: u64) -> u64 {
        entry & mask(self.low_bits)
    }

    /// Count of an entry, or the number of its large count.
    #[inline]
    fn short_count(&self, entry: u64) -> std::result::Result<u64, u64> {
        let code = entry >> self.low_bits;
        if code < self.direct {
            Ok(code + 1)
        } else {
            Err(code - self.direct)
        }
    }

    /// Count of an entry.
    #[inline]
    fn count(&self, entry: u64) -> u64 {
        self.short_count(entry).unwrap_or_else(|number| self.large_count(number))
    }

    /// Bit of a large count.
    #[inline]
    fn large_at(&self, number: u64) -> u64 {
        self.larges + number * u64::from(self.large_bits)
    }

    /// A large count by its number; 0 beyond the last.
    #[inline]
    fn large_count(&self, number: u64) -> u64 {
        if number >= self.large {
            return 0;
        }
        read_wide(self.bytes, self.large_at(number), self.large_bits)
    }

    /// Set `counts[i]` to how often the i-th candidate was seen, 0 if never.
    #[inline]
    pub fn look_up(&self, candidates: &Candidates, counts: &mut [u64]) {
        counts.fill(0);
        if self.len <= candidates.len() as u64 * SCAN_FACTOR || self.block_bits == 0 {
            self.scan(candidates, counts);
        } else {
            for (spread, counts) in candidates.spread().chunks(TOGETHER).zip(counts.chunks_mut(TOGETHER)) {
                self.find_together(spread, counts);
            }
        }
    }

    /// Set the counts of up to `TOGETHER` spread tokens in a long list. In passes: each asks for the memory that the next
    /// one reads, at first where the tokens likely are as they lie evenly.
    fn find_together(&self, spread: &[u32], counts: &mut [u64]) {
        for spread in spread {
            let block = u64::from(*spread) >> self.low_bits;
            self.prefetch(self.directory + block * u64::from(self.len_bits));
            let position = (u64::from(*spread) * self.len) >> (self.low_bits + self.block_bits);
            self.prefetch(self.entries + position * u64::from(self.entry_bits()));
        }
        let mut large = [ABSENT; TOGETHER];
        let mut any = false;
        for ((spread, count), large) in spread.iter().zip(&mut *counts).zip(&mut large) {
            let Some(entry) = self.find(*spread) else { continue };
            match self.short_count(entry) {
                Ok(short) => *count = short,
                Err(number) => {
                    *large = number;
                    any = true;
                    self.prefetch(self.large_at(number));
                }
            }
        }
        if any {
            for (number, count) in large.iter().zip(counts).filter(|(number, _)| **number != ABSENT) {
                *count = self.large_count(*number);
            }
        }
    }

    #[inline]
    fn prefetch(&self, bit: u64) {
        prefetch(self.bytes, (bit / 8) as usize);
    }

    fn scan(&self, candidates: &Candidates, counts: &mut [u64]) {
        for block in 0..1_u64 << self.block_bits {
            let high = (block << self.low_bits) as u32;
            let (first, end) = self.block(block);
            for at in first..end {
                let entry = self.entry(at);
                let position = candidates.position(high | self.low(entry) as u32);
                if let Some(count) = position.and_then(|i| counts.get_mut(i)) {
                    *count = self.count(entry);
                }
            }
        }
    }

    /// Entry of a spread token.
    #[inline]
    fn find(&self, spread: u32) -> Option<u64> {
        let block = u64::from(spread) >> self.low_bits;
        if block >> self.block_bits != 0 {
            return None;
        }
        let (first, end) = self.block(block);
        let wanted = u64::from(spread) & mask(self.low_bits);
        let mut found = None;
        // The whole block, so that the processor need not guess where in it the token is.
        for at in first..end {
            let entry = self.entry(at);
            if self.low(entry) == wanted {
                found = Some(entry);
            }
        }
        found
    }

    /// All continuations: spread token and count, ascending.
    pub fn iter(self) -> impl Iterator<Item = (u32, u64)> + 'a {
        (0..1_u64 << self.block_bits).flat_map(move |block| {
            let high = (block << self.low_bits) as u32;
            let (first, end) = self.block(block);
            (first..end).map(move |at| {
                let entry = self.entry(at);
                (high | self.low(entry) as u32, self.count(entry))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn lists() -> impl Strategy<Value = (u32, BTreeMap<u32, u64>)> {
        (7_u32..=18).prop_flat_map(|bits| {
            let count =
                prop_oneof![4 => 1..4_u64, 2 => 1..300_u64, 1 => any::<u64>().prop_map(|x| (x >> (x % 64)).max(1))];
            let token = 0..1_u32 << bits;
            let sizes = prop_oneof![4 => 1..20_usize, 2 => 20..400_usize, 1 => 400..3000_usize];
            (
                Just(bits),
                sizes.prop_flat_map(move |size| prop::collection::btree_map(token.clone(), count.clone(), 1..=size)),
            )
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn what_was_written_is_read((bits, list) in lists(), others in prop::collection::vec(any::<u32>(), 0..30)) {
            let children: Vec<(u32, u64)> = list.iter().map(|(token, count)| (*token, *count)).collect();
            let mut section = vec![0xAB; 5];
            section.extend_from_slice(Encoder::default().encode(&children, bits));
            section.extend_from_slice(&[0; 16]);
            let record = Record::at(&section, 5, bits);
            prop_assert_eq!(record.iter().collect::<Vec<_>>(), children.clone());

            let spread = crate::spread::Spread::new(bits);
            let wanted = others.iter().map(|token| token & mask(bits) as u32);
            let wanted = wanted.chain(children.iter().step_by(1 + children.len() / 7).map(|child| child.0));
            let mut tokens: Vec<u32> = wanted.map(|value| spread.token(value)).collect();
            tokens.sort_unstable();
            tokens.dedup();
            let mut candidates = Candidates::default();
            candidates.fill(spread, u64::from(u32::MAX), &tokens);
            let mut counts = vec![7; tokens.len()];
            record.look_up(&candidates, &mut counts);
            let expected: Vec<u64> =
                tokens.iter().map(|token| list.get(&spread.spread(*token)).copied().unwrap_or(0)).collect();
            prop_assert_eq!(&counts, &expected);
            let mut scanned = vec![0; tokens.len()];
            record.scan(&candidates, &mut scanned);
            prop_assert_eq!(&scanned, &expected);
        }

        #[test]
        fn any_bytes_are_some_list(bytes in prop::collection::vec(any::<u8>(), 0..200), offset in 0..220_u64, bits in 1_u32..=31) {
            let record = Record::at(&bytes, offset, bits);
            let listed = record.iter().count() as u64;
            prop_assert!(listed <= 8 * bytes.len() as u64);
            let mut candidates = Candidates::default();
            candidates.fill(crate::spread::Spread::new(bits), 1 << bits, &[0, 1, 5]);
            let mut counts = [0; 3];
            record.look_up(&candidates, &mut counts);
            record.scan(&candidates, &mut counts);
        }
    }

    #[test]
    fn sizes() {
        let size = |counts: &[u64]| {
            let children: Vec<(u32, u64)> =
                counts.iter().enumerate().map(|(i, count)| (i as u32 * 100, *count)).collect();
            Encoder::default().encode(&children, 16).len()
        };
        assert_eq!(size(&[1, 1]), 1 + 4); // head and two tokens, counts take no bits
        assert_eq!(size(&[2, 1]), 1 + 4 + 1);
        assert_eq!(size(&[1; 16]), 1 + 32);
        assert_eq!(size(&[1; 17]), 4 + 34);
        // One large count among small ones: 20 codes of 1 bit, a count of 20 bits.
        let mut counts = vec![1; 20];
        counts[7] = 1_000_000;
        assert_eq!(size(&counts), 4 + 40 + (20 + 20_usize).div_ceil(8));
    }
}
