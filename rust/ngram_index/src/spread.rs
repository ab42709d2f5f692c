//! Token ids spread evenly over their bits.
//!
//! Ids of a tokenizer are roughly in order of frequency, so the continuations of an n-gram crowd at small ids. Multiplied
//! by an odd number near the golden ratio of the range they lie evenly, whatever the text, and a position in a sorted list
//! can be told from the value.

use crate::bits::mask;

/// The map of one vocabulary: token * odd, modulo a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    bits: u32,
    odd: u32,
    inverse: u32,
}

impl Spread {
    /// For tokens of `bits` bits, 1 to 31.
    pub fn new(bits: u32) -> Self {
        let odd = (0x9E37_79B9_u32 >> (32 - bits)) | 1;
        // Newton's iteration for the inverse modulo 2^32; each step doubles the right bits, odd itself has three.
        let mut inverse = odd;
        for _ in 0..4 {
            inverse = inverse.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(inverse)));
        }
        Self { bits, odd, inverse }
    }

    /// Bits of tokens and of spread tokens.
    #[inline]
    pub fn bits(self) -> u32 {
        self.bits
    }

    /// The spread value of a token.
    #[inline]
    pub fn spread(self, token: u32) -> u32 {
        token.wrapping_mul(self.odd) & mask(self.bits) as u32
    }

    /// The token of a spread value.
    #[inline]
    pub fn token(self, spread: u32) -> u32 {
        spread.wrapping_mul(self.inverse) & mask(self.bits) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_to_one_and_even() {
        for bits in 1..=17 {
            let spread = Spread::new(bits);
            let mut seen = vec![false; 1 << bits];
            for token in 0..1 << bits {
                let value = spread.spread(token);
                assert_eq!(spread.token(value), token);
                assert!(!std::mem::replace(&mut seen[value as usize], true));
            }
        }
        let spread = Spread::new(31);
        assert_eq!(spread.token(spread.spread(2_147_483_000)), 2_147_483_000);
        // The 1,024 smallest of 65,536 ids: every 64th of the range holds about 16 of them; by chance it would be 6 to 28.
        let spread = Spread::new(16);
        let mut parts = [0; 64];
        (0..1024).for_each(|token| parts[spread.spread(token) as usize >> 10] += 1);
        assert!(parts.iter().all(|part| (12..=20).contains(part)), "{parts:?}");
    }
}
