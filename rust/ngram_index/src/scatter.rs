//! Where an n-gram lies in a hash table, and which one lies there: an exact map, so only part of the n-gram is stored.
//!
//! The K bits of the tokens are mixed one-to-one into another number x of K bits. With B lines, x * B / 2^K is the line at
//! home: its whole part. Numbers x with the same home differ by at least B in the remainder of that division, so the
//! remainder without its lowest floor(log2 B) bits tells them apart: that is the tag, with the distance from home in
//! lines before it.

use crate::bits::mask128;

/// Bits for the distance from home.
pub(crate) const DISTANCE_BITS: u32 = 5;
/// Largest distance from home in lines.
pub(crate) const MAX_DISTANCE: u64 = (1 << DISTANCE_BITS) - 1;

const ODD: [u128; 2] = [
    0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835,
    0xBF58_476D_1CE4_E5B9_94D0_49BB_1331_11EB,
];

/// The map of one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scatter {
    key_bits: u32,
    lines: u64,
    /// floor(log2 lines).
    dropped: u32,
    inverse: [u128; 2],
}

impl Scatter {
    /// For keys of `key_bits` bits and a number of lines, at least one; their bits together at most 128.
    pub fn new(key_bits: u32, lines: u64) -> Self {
        let invert = |odd: u128| {
            let mut inverse = odd;
            for _ in 0..6 {
                inverse = inverse.wrapping_mul(2_u128.wrapping_sub(odd.wrapping_mul(inverse)));
            }
            inverse
        };
        Self {
            key_bits,
            lines,
            dropped: lines.max(1).ilog2(),
            inverse: ODD.map(invert),
        }
    }

    /// Lines at home.
    pub fn lines(self) -> u64 {
        self.lines
    }

    /// Bits of a remainder.
    pub fn remainder_bits(self) -> u32 {
        self.key_bits - self.dropped.min(self.key_bits)
    }

    /// Mix a key; ascending mixed keys have ascending homes.
    #[inline]
    pub fn mix(key_bits: u32, key: u128) -> u128 {
        let half = key_bits.div_ceil(2);
        if key_bits <= 64 {
            let mask = mask128(key_bits) as u64;
            let mut x = key as u64;
            x ^= x >> half;
            x = x.wrapping_mul(ODD[0] as u64) & mask;
            x ^= x >> half;
            x = x.wrapping_mul(ODD[1] as u64) & mask;
            return u128::from(x ^ (x >> half));
        }
        let mask = mask128(key_bits);
        let mut x = key;
        x ^= x >> half;
        x = x.wrapping_mul(ODD[0]) & mask;
        x ^= x >> half;
        x = x.wrapping_mul(ODD[1]) & mask;
        x ^ (x >> half)
    }

    /// The key of a mixed key.
    pub fn unmix(self, mixed: u128) -> u128 {
        let half = self.key_bits.div_ceil(2);
        let mask = mask128(self.key_bits);
        let mut x = mixed;
        x ^= x >> half; // shifted by half its bits or more, this undoes itself
        x = x.wrapping_mul(self.inverse[1]) & mask;
        x ^= x >> half;
        x = x.wrapping_mul(self.inverse[0]) & mask;
        x ^ (x >> half)
    }

    /// Home and remainder of a mixed key.
    #[inline]
    pub fn split(self, mixed: u128) -> (u64, u128) {
        if self.key_bits <= 64 {
            // The mixed key and the lines have 64 bits each, so this multiplication is a single instruction.
            let product = u128::from(mixed as u64) * u128::from(self.lines);
            return (
                (product >> self.key_bits) as u64,
                (product & mask128(self.key_bits)) >> self.dropped,
            );
        }
        let product = mixed * u128::from(self.lines);
        (
            (product >> self.key_bits) as u64,
            (product & mask128(self.key_bits)) >> self.dropped,
        )
    }

    /// The mixed key of a home and a remainder; None if there is none.
    pub fn join(self, home: u64, remainder: u128) -> Option<u128> {
        if home >= self.lines {
            return None;
        }
        let product = (u128::from(home) << self.key_bits) + (remainder << self.dropped);
        let mixed = product.div_ceil(u128::from(self.lines));
        (mixed <= mask128(self.key_bits) && self.split(mixed) == (home, remainder)).then_some(mixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn there_and_back() {
        for (key_bits, lines) in [
            (2, 1),
            (2, 3),
            (10, 7),
            (32, 26_000_000),
            (36, 1),
            (64, 1 << 33),
            (72, 3),
            (100, 12_345_678),
        ] {
            let scatter = Scatter::new(key_bits, lines);
            let step = (mask128(key_bits) / 1000).max(1);
            let keys: HashSet<u128> = (0..1000).map(|i| (i * step) & mask128(key_bits)).collect();
            let mut places = HashSet::new();
            for &key in &keys {
                let mixed = Scatter::mix(key_bits, key);
                let (home, remainder) = scatter.split(mixed);
                assert!(home < lines && remainder <= mask128(scatter.remainder_bits()));
                assert_eq!(scatter.join(home, remainder), Some(mixed));
                assert_eq!(scatter.unmix(mixed), key);
                assert!(places.insert((home, remainder)));
            }
        }
    }

    #[test]
    fn neighbours_do_not_crowd() {
        // 9,000 keys that differ in few bits, over 1,000 lines: as even as chance, whose deviation is 3.
        let scatter = Scatter::new(32, 1000);
        let mut lines = [0_u32; 1000];
        for key in (0..90_u128).flat_map(|a| (0..100_u128).map(move |b| a << 16 | b)) {
            lines[scatter.split(Scatter::mix(32, key)).0 as usize] += 1;
        }
        let squares: f64 = lines.iter().map(|n| (f64::from(*n) - 9.0).powi(2)).sum();
        assert!(squares / 1000.0 < 11.0, "{}", squares / 1000.0);
    }
}
