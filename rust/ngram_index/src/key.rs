//! N-grams as integers that sort like their tokens, a shorter one before its continuations.

use std::path::Path;

use crate::error::{Error, Result};
use crate::format::{MAX_ORDER, MAX_VOCAB, MIN_ORDER};
use crate::writer::IndexWriter;

/// An unsigned integer wide enough for `order` digits.
pub(crate) trait Key: Copy + Ord + Send {
    const ZERO: Self;
    fn push_digit(self, digit: u32, shift: u32) -> Self;
    fn digit(self, shift: u32, mask: u32) -> u32;
}

macro_rules! key {
    ($int:ty) => {
        impl Key for $int {
            const ZERO: Self = 0;
            #[inline]
            fn push_digit(self, digit: u32, shift: u32) -> Self {
                self | (<$int>::from(digit) << shift)
            }
            #[inline]
            fn digit(self, shift: u32, mask: u32) -> u32 {
                ((self >> shift) as u32) & mask
            }
        }
    };
}

key!(u64);
key!(u128);

/// How the tokens of an n-gram are packed: digit token + 1, first token highest, 0 where the n-gram ends early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    pub order: usize,
    pub vocab_size: u64,
    bits: u32,
}

impl Packing {
    pub fn new(order: usize, vocab_size: u64) -> Result<Self> {
        if !(MIN_ORDER..=MAX_ORDER).contains(&order) {
            let message = format!("must be {MIN_ORDER} to {MAX_ORDER}, got {order}");
            return Err(Error::invalid("order", message));
        }
        if !(1..=MAX_VOCAB).contains(&vocab_size) {
            let message = format!("must be 1 to {MAX_VOCAB}, got {vocab_size}");
            return Err(Error::invalid("vocab_size", message));
        }
        let bits = u64::BITS - vocab_size.leading_zeros();
        if bits * order as u32 > u128::BITS {
            let limit = 1_u64 << (u128::BITS / order as u32);
            let message = format!("must be less than {limit} at order {order}, got {vocab_size}; lower the order");
            return Err(Error::invalid("vocab_size", message));
        }
        Ok(Self {
            order,
            vocab_size,
            bits,
        })
    }

    /// Whether n-grams fit into 64 bits.
    pub fn is_narrow(self) -> bool {
        self.bits * self.order as u32 <= u64::BITS
    }

    /// Append a token at a position from 0.
    #[inline]
    pub fn append<K: Key>(self, key: K, position: usize, token: u32) -> K {
        key.push_digit(token + 1, self.shift(position))
    }

    /// The digits of all positions.
    #[inline]
    pub fn digits<K: Key>(self, key: K) -> [u32; MAX_ORDER] {
        let mask = u32::MAX >> (u32::BITS - self.bits);
        let mut digits = [0; MAX_ORDER];
        for (position, digit) in digits.iter_mut().take(self.order).enumerate() {
            *digit = key.digit(self.shift(position), mask);
        }
        digits
    }

    fn shift(self, position: usize) -> u32 {
        self.bits * (self.order - 1 - position) as u32
    }
}

/// Turns packed n-grams in ascending order into an index.
pub(crate) struct Counter {
    packing: Packing,
    writer: IndexWriter,
}

impl Counter {
    pub fn new(packing: Packing, path: &Path) -> Result<Self> {
        let scratch = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let writer = IndexWriter::new(path, scratch, packing.order, packing.vocab_size, 1 << 30)?;
        Ok(Self { packing, writer })
    }

    fn tokens<K: Key>(&self, key: K) -> ([u32; MAX_ORDER], usize) {
        let digits = self.packing.digits(key);
        let level = digits.iter().take_while(|digit| **digit != 0).count();
        (digits.map(|digit| digit.wrapping_sub(1)), level)
    }

    /// Count one window: itself and every prefix of it.
    #[inline]
    pub fn window<K: Key>(&mut self, key: K) -> Result<()> {
        let (tokens, level) = self.tokens(key);
        self.writer.window(&tokens[..level], 1)
    }

    /// Add one n-gram whose prefix was added before, with its count.
    pub fn node<K: Key>(&mut self, key: K, count: u64) -> Result<()> {
        let (tokens, level) = self.tokens(key);
        self.writer.node(&tokens[..level], count)
    }

    pub fn finish(self) -> IndexWriter {
        self.writer
    }
}
