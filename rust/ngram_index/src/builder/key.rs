//! N-grams as integers that sort like their tokens, a shorter one before its continuations.

use crate::error::Result;
use crate::format::MAX_ORDER;
use crate::writer::check_shape;

/// An unsigned integer wide enough for `order` digits.
pub(crate) trait Key: Copy + Ord + Send + Sync + 'static {
    const ZERO: Self;
    /// Bytes of the integer.
    const BYTES: usize;
    fn push_digit(self, digit: u32, shift: u32) -> Self;
    fn digit(self, shift: u32, mask: u32) -> u32;
    /// The distance from a smaller key; wraps.
    fn minus(self, smaller: Self) -> Self;
    /// The key at a distance; wraps.
    fn plus(self, distance: Self) -> Self;
    /// The lowest bits, as many as a byte has, and the rest.
    fn split(self, bits: u32) -> (u8, Self);
    /// The value of some bits at a position.
    fn at(bits: u8, shift: u32) -> Self;
    fn write(self, out: &mut [u8]);
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! key {
    ($int:ty) => {
        impl Key for $int {
            const ZERO: Self = 0;
            const BYTES: usize = size_of::<$int>();
            #[inline]
            fn push_digit(self, digit: u32, shift: u32) -> Self {
                self | (<$int>::from(digit) << shift)
            }
            #[inline]
            fn digit(self, shift: u32, mask: u32) -> u32 {
                ((self >> shift) as u32) & mask
            }
            #[inline]
            fn minus(self, smaller: Self) -> Self {
                self.wrapping_sub(smaller)
            }
            #[inline]
            fn plus(self, distance: Self) -> Self {
                self.wrapping_add(distance)
            }
            #[inline]
            fn split(self, bits: u32) -> (u8, Self) {
                ((self as u8) & (0xFF >> (8 - bits)), self >> bits)
            }
            #[inline]
            fn at(bits: u8, shift: u32) -> Self {
                <$int>::from(bits).checked_shl(shift).unwrap_or(0)
            }
            #[inline]
            fn write(self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn read(bytes: &[u8]) -> Self {
                bytes.first_chunk().map_or(0, |chunk| <$int>::from_le_bytes(*chunk))
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
        check_shape(order, vocab_size)?;
        let bits = u64::BITS - vocab_size.leading_zeros();
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

    /// The n-gram of some tokens, at most `order` of them.
    #[inline]
    pub fn key<K: Key>(self, tokens: impl IntoIterator<Item = u32>) -> K {
        let tokens = tokens.into_iter().take(self.order).enumerate();
        tokens.fold(K::ZERO, |key, (i, token)| self.append(key, i, token))
    }

    /// The tokens of an n-gram, and how many there are.
    #[inline]
    pub fn tokens<K: Key>(self, key: K) -> ([u32; MAX_ORDER], usize) {
        let mask = u32::MAX >> (u32::BITS - self.bits);
        let mut tokens = [0; MAX_ORDER];
        for (position, token) in tokens.iter_mut().take(self.order).enumerate() {
            let digit = key.digit(self.shift(position), mask);
            if digit == 0 {
                return (tokens, position);
            }
            *token = digit - 1;
        }
        (tokens, self.order)
    }

    fn shift(self, position: usize) -> u32 {
        self.bits * (self.order - 1 - position) as u32
    }
}
