//! The hash table of the n-grams of one length, read in place.

use crate::bits::{mask, mask128};
use crate::format::LINE_BYTES;
use crate::scatter::{DISTANCE_BITS, MAX_DISTANCE, Scatter};

/// Bits of a line before its slots; the lower `DISTANCE_BITS` are the spill.
pub(crate) const LINE_HEAD_BITS: u32 = 8;
/// Bits of a slot's state.
pub(crate) const STATE_BITS: u32 = 2;
/// Lines after the last home.
pub(crate) const EXTRA_LINES: u64 = MAX_DISTANCE;
const MAX_SLOTS: u32 = 31;

/// States of a slot.
pub(crate) mod state {
    pub const EMPTY: u64 = 0;
    pub const PLAIN: u64 = 1;
    pub const SINGLE: u64 = 2;
    pub const WIDE: u64 = 3;
}

/// Widths of the parts of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub slots: u32,
    pub tag_bits: u32,
    pub count_bits: u32,
    pub follow_bits: u32,
}

impl Layout {
    /// Bits of a slot of a line with so many slots.
    pub fn slot_bits(slots: u32) -> u32 {
        (LINE_BYTES as u32 * 8 - LINE_HEAD_BITS) / slots
    }

    pub fn to_parameters(self) -> u64 {
        u64::from(u32::from_le_bytes([
            self.slots as u8,
            self.tag_bits as u8,
            self.count_bits as u8,
            self.follow_bits as u8,
        ]))
    }

    /// None if the widths do not fit a line.
    pub fn from_parameters(parameters: u64) -> Option<Self> {
        let [slots, tag_bits, count_bits, follow_bits] = u32::try_from(parameters).ok()?.to_le_bytes().map(u32::from);
        let fits = (1..=MAX_SLOTS).contains(&slots)
            && tag_bits + STATE_BITS + count_bits + follow_bits <= Self::slot_bits(slots)
            && tag_bits <= 112
            && STATE_BITS + count_bits + follow_bits <= 64;
        fits.then_some(Self {
            slots,
            tag_bits,
            count_bits,
            follow_bits,
        })
    }
}

/// What a slot says besides its n-gram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub state: u64,
    pub count: u64,
    pub follow: u64,
}

/// One table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    pub scatter: Scatter,
    pub layout: Layout,
    pub key_bits: u32,
    slot_bits: u32,
    /// For each slot the byte from which on eight bytes hold its tag, if that is short, and the bits before it there.
    words: [(u8, u8); MAX_SLOTS as usize],
}

/// Where an n-gram would be: its line at home and its remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub home: u64,
    low: u64,
    high: u64,
}

impl Lines {
    /// A table of `lines` lines, at least one more than `EXTRA_LINES`. None if the layout does not fit.
    pub fn new(key_bits: u32, lines: u64, layout: Layout) -> Option<Self> {
        let homes = lines.checked_sub(EXTRA_LINES).filter(|homes| *homes > 0)?;
        if key_bits + crate::bits::bits(homes) > 128 {
            return None;
        }
        let scatter = Scatter::new(key_bits, homes);
        let slot_bits = Layout::slot_bits(layout.slots);
        let mut words = [(0, 0); MAX_SLOTS as usize];
        for (i, word) in words.iter_mut().enumerate().take(layout.slots as usize) {
            let at = LINE_HEAD_BITS + i as u32 * slot_bits;
            let start = (at / 8).min(LINE_BYTES as u32 - 8);
            *word = (start as u8, (at - start * 8) as u8);
        }
        (layout.tag_bits == DISTANCE_BITS + scatter.remainder_bits()).then_some(Self {
            scatter,
            layout,
            key_bits,
            slot_bits,
            words,
        })
    }

    /// Where the n-gram with a key would be.
    #[inline]
    pub fn spot(&self, key: u128) -> Spot {
        let (home, remainder) = self.scatter.split(Scatter::mix(self.key_bits, key));
        Spot {
            home,
            low: remainder as u64,
            high: (remainder >> 64) as u64,
        }
    }

    /// The slot of the n-gram at a spot if its line at home settles it; else how many lines after it may hold it.
    #[inline]
    pub fn find_at_home(&self, section: &[u8], spot: Spot) -> std::result::Result<Option<Slot>, u64> {
        let Some(line) = line(section, spot.home) else {
            return Ok(None);
        };
        match (self.find_in(line, spot, 0), u64::from(line[0]) & MAX_DISTANCE) {
            (None, spill) if spill > 0 => Err(spill),
            (slot, _) => Ok(slot),
        }
    }

    /// The slot of the n-gram at a spot, which is in one of the `spill` lines after its home if anywhere.
    #[inline]
    pub fn find_spilled(&self, section: &[u8], spot: Spot, spill: u64) -> Option<Slot> {
        (1..=spill).find_map(|distance| self.find_in(line(section, spot.home + distance)?, spot, distance))
    }

    /// The slot of the n-gram at a spot.
    #[inline]
    pub fn find(&self, section: &[u8], spot: Spot) -> Option<Slot> {
        match self.find_at_home(section, spot) {
            Ok(slot) => slot,
            Err(spill) => self.find_spilled(section, spot, spill),
        }
    }

    #[inline]
    fn find_in(&self, line: &[u8; LINE_BYTES], spot: Spot, distance: u64) -> Option<Slot> {
        let tag_bits = self.layout.tag_bits;
        let mut at = LINE_HEAD_BITS;
        if tag_bits + STATE_BITS <= 57 {
            let remainder_bits = tag_bits - DISTANCE_BITS;
            let wanted = spot.low | distance << remainder_bits;
            let mask = mask(tag_bits);
            // All slots are compared, so that the processor need not guess which one it is.
            let slots = &self.words[..self.layout.slots.min(MAX_SLOTS) as usize];
            let mut equal = 0_u32; // the last slot's bit lowest
            for (start, shift) in slots {
                let bytes = line.get(usize::from(*start)..)?.first_chunk()?;
                let tag = u64::from_le_bytes(*bytes) >> (shift & 63) & mask;
                equal = equal << 1 | u32::from(tag == wanted);
            }
            while equal != 0 {
                let i = self.layout.slots - 1 - equal.trailing_zeros();
                let slot = self.slot(line, LINE_HEAD_BITS + i * self.slot_bits);
                if slot.state != state::EMPTY {
                    return Some(slot);
                }
                equal &= equal - 1;
            }
            return None;
        }
        let remainder = u128::from(spot.high) << 64 | u128::from(spot.low);
        let wanted = remainder | u128::from(distance) << (tag_bits - DISTANCE_BITS);
        for _ in 0..self.layout.slots {
            let slot = self.slot(line, at);
            if slot.state != state::EMPTY && self.tag(line, at) == wanted {
                return Some(slot);
            }
            at += self.slot_bits;
        }
        None
    }

    fn tag(&self, line: &[u8; LINE_BYTES], at: u32) -> u128 {
        double_word(line, at) & mask128(self.layout.tag_bits)
    }

    /// The slot at a bit of a line.
    #[inline]
    fn slot(&self, line: &[u8; LINE_BYTES], at: u32) -> Slot {
        let at = at + self.layout.tag_bits;
        let word = if STATE_BITS + self.layout.count_bits + self.layout.follow_bits <= 57 {
            word(line, at)
        } else {
            double_word(line, at) as u64
        };
        Slot {
            state: word & 3,
            count: word >> STATE_BITS & mask(self.layout.count_bits),
            follow: word >> (STATE_BITS + self.layout.count_bits) & mask(self.layout.follow_bits),
        }
    }

    /// The occupied slots of a line with the keys of their n-grams; None for a slot that no n-gram can have.
    pub fn occupied<'a>(&'a self, section: &'a [u8], number: u64) -> impl Iterator<Item = (Option<u128>, Slot)> + 'a {
        let line = line(section, number).unwrap_or(&[0; LINE_BYTES]);
        (0..self.layout.slots).filter_map(move |i| {
            let at = LINE_HEAD_BITS + i * self.slot_bits;
            let slot = self.slot(line, at);
            if slot.state == state::EMPTY {
                return None;
            }
            let tag = self.tag(line, at);
            let remainder_bits = self.layout.tag_bits - DISTANCE_BITS;
            let home = number.checked_sub((tag >> remainder_bits) as u64);
            let mixed = home.and_then(|home| self.scatter.join(home, tag & mask128(remainder_bits)));
            Some((mixed.map(|mixed| self.scatter.unmix(mixed)), slot))
        })
    }
}

#[inline]
fn line(section: &[u8], number: u64) -> Option<&[u8; LINE_BYTES]> {
    section.get(usize::try_from(number).ok()?.checked_mul(LINE_BYTES)?..)?.first_chunk()
}

/// The bits of a line from a bit on, at least 57 or up to the end of the line.
#[inline]
fn word(line: &[u8; LINE_BYTES], at: u32) -> u64 {
    let start = (at / 8).min(LINE_BYTES as u32 - 8);
    let bytes = line[start as usize..].first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(bytes) >> (at.wrapping_sub(start * 8) & 63)
}

/// The bits of a line from a bit on, at least 121 or up to the end of the line.
#[inline]
fn double_word(line: &[u8; LINE_BYTES], at: u32) -> u128 {
    let start = (at / 8).min(LINE_BYTES as u32 - 16);
    let bytes = line[start as usize..].first_chunk().copied().unwrap_or_default();
    u128::from_le_bytes(bytes).checked_shr(at - start * 8).unwrap_or(0)
}

/// Put a number into empty bits of a line, at most 112.
fn put(line: &mut [u8; LINE_BYTES], at: u32, value: u128) {
    let start = ((at / 8).min(LINE_BYTES as u32 - 16)) as usize;
    if let Some(bytes) = line[start..].first_chunk_mut() {
        *bytes = (u128::from_le_bytes(*bytes) | value << (at - start as u32 * 8)).to_le_bytes();
    }
}

impl Lines {
    /// Write a slot into an empty place of a line.
    pub fn put_slot(&self, line: &mut [u8; LINE_BYTES], number: u32, tag: u128, slot: Slot) {
        let at = LINE_HEAD_BITS + number * self.slot_bits;
        let Layout {
            tag_bits, count_bits, ..
        } = self.layout;
        let rest = slot.state | slot.count << STATE_BITS | slot.follow << (STATE_BITS + count_bits);
        put(line, at, tag);
        put(line, at + tag_bits, u128::from(rest));
    }
}
