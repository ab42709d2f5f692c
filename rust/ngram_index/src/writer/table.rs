//! The hash table of the n-grams of one length: collected, sorted by where they belong, and packed into lines.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::path::Path;

use super::output::Output;
use crate::bits::{bits, mask};
use crate::error::{Error, Result};
use crate::format::{Kind, LINE_BYTES};
use crate::lines::{EXTRA_LINES, Layout, Lines, STATE_BITS, Slot, state};
use crate::progress::{Progress, Stage};
use crate::scatter::{DISTANCE_BITS, MAX_DISTANCE, Scatter};
use crate::sorter::{Row, Sorter};

/// Share of the slots that are filled. At 0.85 four of five look-ups of an n-gram that was never seen read one line only,
/// and no n-gram is ever far from home.
const LOAD: f64 = 0.85;
/// What a row of a wide count costs against its bytes, because it takes a second look-up for n-grams that are common.
const WIDE_WEIGHT: u64 = 4;
const MIN_SLOTS: u32 = 3;
const MAX_SLOTS: u32 = 12;
const TICK: u64 = 1 << 16;
/// A state takes the highest bits of a row's follow.
const STATE_SHIFT: u32 = 62;

/// An n-gram on its way into its line.
#[derive(Clone, Copy)]
struct Entry<K> {
    mixed: K,
    count: u64,
    follow: u64,
}

trait MixedKey: Copy + Ord + Send + Into<u128> + 'static {
    const BYTES: usize;
    fn from_mixed(mixed: u128) -> Self;
    fn put(self, out: &mut [u8]);
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! mixed_key {
    ($int:ty) => {
        impl MixedKey for $int {
            const BYTES: usize = size_of::<$int>();
            fn from_mixed(mixed: u128) -> Self {
                mixed as $int
            }
            fn put(self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                <$int>::from_le_bytes(bytes.first_chunk().copied().unwrap_or_default())
            }
        }
    };
}

mixed_key!(u64);
mixed_key!(u128);

impl<K: MixedKey> Row for Entry<K> {
    type Key = K;
    const BYTES: usize = K::BYTES + 16;

    fn key(&self) -> K {
        self.mixed
    }

    fn write(&self, out: &mut [u8]) {
        self.mixed.put(&mut out[..K::BYTES]);
        self.count.put(&mut out[K::BYTES..K::BYTES + 8]);
        self.follow.put(&mut out[K::BYTES + 8..]);
    }

    fn read(bytes: &[u8]) -> Self {
        Self {
            mixed: K::get(bytes),
            count: u64::get(&bytes[K::BYTES..]),
            follow: u64::get(&bytes[K::BYTES + 8..]),
        }
    }
}

enum Entries {
    Narrow(Sorter<Entry<u64>>),
    Broad(Sorter<Entry<u128>>),
}

/// The n-grams of one length, in any order.
pub(super) struct TableWriter {
    key_bits: u32,
    entries: Entries,
    len: u64,
    /// How many counts have so many bits.
    count_bits: [u64; 65],
    single_count_bits: u32,
    follow_bits: u32,
}

/// Counts up to here may be in a single slot.
pub(super) const MAX_SINGLE_COUNT: u64 = 0xFF;

impl TableWriter {
    pub fn new(key_bits: u32, scratch: &Path, memory: usize) -> Self {
        let entries = if key_bits <= 64 {
            Entries::Narrow(Sorter::new(scratch, memory))
        } else {
            Entries::Broad(Sorter::new(scratch, memory))
        };
        Self {
            key_bits,
            entries,
            len: 0,
            count_bits: [0; 65],
            single_count_bits: 1,
            follow_bits: 1,
        }
    }

    /// Add an n-gram; one with a single continuation has a count of at most `MAX_SINGLE_COUNT`.
    pub fn push(&mut self, key: u128, slot: Slot) -> Result<()> {
        self.len += 1;
        self.count_bits[bits(slot.count) as usize] += 1;
        if slot.state == state::SINGLE {
            self.single_count_bits = self.single_count_bits.max(bits(slot.count));
        }
        self.follow_bits = self.follow_bits.max(bits(slot.follow));
        let mixed = Scatter::mix(self.key_bits, key);
        let (count, follow) = (slot.count, slot.follow | slot.state << STATE_SHIFT);
        match &mut self.entries {
            Entries::Narrow(sorter) => sorter.push(Entry {
                mixed: MixedKey::from_mixed(mixed),
                count,
                follow,
            }),
            Entries::Broad(sorter) => sorter.push(Entry { mixed, count, follow }),
        }
    }

    /// Write the two sections of the length.
    pub fn write(self, length: usize, output: &mut Output, progress: &mut Progress) -> Result<()> {
        let (layout, homes) = self.layout();
        let Some(lines) = Lines::new(self.key_bits, homes + EXTRA_LINES, layout) else {
            let message = format!("{} {length}-grams do not fit a table; lower the order", self.len);
            return Err(Error::invalid("order", message));
        };
        let wide = match self.entries {
            Entries::Narrow(sorter) => place(lines, sorter.finish()?, output, progress),
            Entries::Broad(sorter) => place(lines, sorter.finish()?, output, progress),
        }?;
        output.end_section(Kind::Lines, length, layout.to_parameters())?;
        for (count, follow) in wide {
            output.write(&count.to_le_bytes())?;
            output.write(&follow.to_le_bytes())?;
        }
        output.end_section(Kind::Wide, length, 0)
    }

    /// The widths that take the least room, and the number of lines at home.
    fn layout(&self) -> (Layout, u64) {
        let choices = (MIN_SLOTS..=MAX_SLOTS).filter_map(|slots| self.with_slots(slots));
        let best = choices.min_by_key(|(cost, _, _)| *cost);
        // A layout with no bits fits no table, which the caller reports.
        best.map_or(
            (
                Layout {
                    slots: 1,
                    tag_bits: 0,
                    count_bits: 0,
                    follow_bits: 0,
                },
                1,
            ),
            |(_, layout, homes)| (layout, homes),
        )
    }

    fn with_slots(&self, slots: u32) -> Option<(u64, Layout, u64)> {
        let homes = ((self.len as f64 / (f64::from(slots) * LOAD)).ceil() as u64).max(1);
        let tag_bits = DISTANCE_BITS + Scatter::new(self.key_bits, homes).remainder_bits();
        let rest = Layout::slot_bits(slots).checked_sub(tag_bits + STATE_BITS)?.min(64 - STATE_BITS);
        (self.follow_bits..rest).find_map(|follow_bits| {
            let count_bits = rest - follow_bits;
            let wide: u64 = self.count_bits[count_bits as usize + 1..].iter().sum();
            let fits = count_bits >= self.single_count_bits && bits(wide) <= follow_bits;
            let layout = Layout {
                slots,
                tag_bits,
                count_bits,
                follow_bits,
            };
            fits.then_some((homes * LINE_BYTES as u64 + wide * 16 * WIDE_WEIGHT, layout, homes))
        })
    }
}

/// Pack entries in the order of their mixed keys into lines; returns the rows of wide counts.
fn place<K: MixedKey>(
    lines: Lines,
    sorted: impl Iterator<Item = Result<Entry<K>>>,
    output: &mut Output,
    progress: &mut Progress,
) -> Result<Vec<(u64, u64)>> {
    let total = lines.scatter.lines() + EXTRA_LINES;
    let largest = mask(lines.layout.count_bits);
    let mut wide = Vec::new();
    let mut arrivals = Arrivals {
        scatter: lines.scatter,
        sorted: sorted.peekable(),
    };
    // Entries that have not found a slot yet, oldest first, and the lines whose spill may still grow.
    let mut waiting: VecDeque<(u64, u128, Slot)> = VecDeque::new();
    let mut open: VecDeque<[u8; LINE_BYTES]> = VecDeque::new();
    for number in 0..total {
        while let Some((home, remainder, mut slot)) = arrivals.next_at(number)? {
            if slot.count > largest {
                wide.push((slot.count, slot.follow));
                slot = Slot {
                    state: state::WIDE,
                    count: 0,
                    follow: wide.len() as u64 - 1,
                };
            }
            waiting.push_back((home, remainder, slot));
        }
        open.push_back([0; LINE_BYTES]);
        let oldest = number + 1 - open.len() as u64;
        for i in 0..lines.layout.slots {
            let Some((home, remainder, slot)) = waiting.pop_front() else {
                break;
            };
            let distance = number - home;
            if distance > MAX_DISTANCE {
                let message = format!("n-grams crowd at line {home} of {total}; build with another order");
                return Err(Error::invalid("ngrams", message));
            }
            let tag = remainder | u128::from(distance) << (lines.layout.tag_bits - DISTANCE_BITS);
            if let Some(line) = open.back_mut() {
                lines.put_slot(line, i, tag, slot);
            }
            if let Some(line) = open.get_mut((home - oldest) as usize) {
                line[0] = line[0].max(distance as u8);
            }
        }
        if open.len() as u64 > MAX_DISTANCE
            && let Some(line) = open.pop_front()
        {
            output.write(&line)?;
        }
        if number.is_multiple_of(TICK) {
            progress(Stage::Table, number, total)?;
        }
    }
    for line in open {
        output.write(&line)?;
    }
    progress(Stage::Table, total, total)?;
    Ok(wide)
}

/// The entries of one home after the other.
struct Arrivals<I: Iterator> {
    scatter: Scatter,
    sorted: Peekable<I>,
}

impl<K: MixedKey, I: Iterator<Item = Result<Entry<K>>>> Arrivals<I> {
    /// The next entry if its home is a line.
    fn next_at(&mut self, line: u64) -> Result<Option<(u64, u128, Slot)>> {
        let at_home = |entry: &Result<Entry<K>>| {
            entry.as_ref().map_or(true, |entry| self.scatter.split(entry.mixed.into()).0 == line)
        };
        let Some(entry) = self.sorted.next_if(at_home).transpose()? else {
            return Ok(None);
        };
        let (home, remainder) = self.scatter.split(entry.mixed.into());
        let slot = Slot {
            state: entry.follow >> STATE_SHIFT,
            count: entry.count,
            follow: entry.follow & mask(STATE_SHIFT),
        };
        Ok(Some((home, remainder, slot)))
    }
}
