//! Numbers of any number of bits, packed one after the other, lowest bit first.

/// The lowest `width` bits, 0 to 64.
#[inline]
pub(crate) fn mask(width: u32) -> u64 {
    if width == 0 { 0 } else { u64::MAX >> (64 - width) }
}

/// The lowest `width` bits, 0 to 128.
#[inline]
pub(crate) fn mask128(width: u32) -> u128 {
    if width == 0 { 0 } else { u128::MAX >> (128 - width) }
}

/// Number of bits of a value; 0 for 0.
#[inline]
pub(crate) fn bits(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

/// The number of `width` bits, at most 57, at a bit offset; bits beyond the bytes read as 0.
#[inline]
pub(crate) fn read(bytes: &[u8], at: u64, width: u32) -> u64 {
    let start = (at / 8) as usize;
    let word = match bytes.get(start..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => tail(bytes, start),
    };
    (word >> (at % 8)) & mask(width)
}

/// The number of up to 64 bits at a bit offset.
#[inline]
pub(crate) fn read_wide(bytes: &[u8], at: u64, width: u32) -> u64 {
    if width <= 57 {
        return read(bytes, at, width);
    }
    read(bytes, at, 32) | read(bytes, at + 32, width - 32) << 32
}

/// Ask for the memory of a byte, so that it is there when it is read.
#[inline]
pub(crate) fn prefetch(bytes: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(byte) = bytes.get(at) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address is that of a byte of the slice; a prefetch reads nothing that the program can see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at);
}

#[cold]
fn tail(bytes: &[u8], start: usize) -> u64 {
    let rest = bytes.get(start..).unwrap_or_default();
    rest.iter().take(8).rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Packs numbers into bytes.
#[derive(Default)]
pub(crate) struct BitWriter {
    bytes: Vec<u8>,
    held: u128,
    held_bits: u32,
}

impl BitWriter {
    /// Forget everything, keep the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.held = 0;
        self.held_bits = 0;
    }

    /// Append a number of `width` bits, at most 64.
    #[inline]
    pub fn push(&mut self, value: u64, width: u32) {
        debug_assert!(value <= mask(width));
        self.held |= u128::from(value) << self.held_bits;
        self.held_bits += width;
        if self.held_bits >= 64 {
            self.bytes.extend_from_slice(&(self.held as u64).to_le_bytes());
            self.held >>= 64;
            self.held_bits -= 64;
        }
    }

    /// The bytes, the last one filled with zeros.
    pub fn finish(&mut self) -> &[u8] {
        let bytes = (self.held as u64).to_le_bytes();
        self.bytes.extend_from_slice(&bytes[..self.held_bits.div_ceil(8) as usize]);
        self.held = 0;
        self.held_bits = 0;
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pushed_is_read() {
        let widths = [1, 7, 64, 57, 13, 3, 33, 64, 5, 0, 17];
        let value = |i: usize| (0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(i as u64 + 1)) & mask(widths[i]);
        let mut writer = BitWriter::default();
        for round in 0..3 {
            writer.clear();
            widths.iter().enumerate().for_each(|(i, width)| writer.push(value(i), *width));
            let packed = writer.finish().to_vec();
            assert_eq!(
                packed.len() as u32,
                widths.iter().sum::<u32>().div_ceil(8),
                "round {round}"
            );
            let mut at = 0;
            for (i, &width) in widths.iter().enumerate() {
                assert_eq!(read_wide(&packed, at, width), value(i));
                at += u64::from(width);
            }
        }
    }

    #[test]
    fn beyond_the_end_is_zero() {
        assert_eq!(read(&[0xFF; 3], 4, 57), 0xF_FFFF);
        assert_eq!(read(&[0xFF; 3], 24, 57), 0);
        assert_eq!(read(&[0xFF; 3], u64::MAX - 7, 57), 0);
        assert_eq!((bits(0), bits(1), bits(255), bits(256)), (0, 1, 8, 9));
        assert_eq!((mask128(0), mask128(128)), (0, u128::MAX));
    }
}
