//! Writing records.

use super::{BLOCK_BITS, DIRECTORY_FROM, MAX_COUNT_BITS};
use crate::bits::{BitWriter, bits, mask};

/// What a large count costs besides its bits, because it is read from elsewhere and what was seen often is asked for often.
const LARGE_BITS: u64 = 16;

/// Writes records.
#[derive(Default)]
pub(crate) struct Encoder {
    out: BitWriter,
    sorted: Vec<u64>,
}

impl Encoder {
    /// The record of at least one continuation, spread tokens of `token_bits` bits ascending, counts from 1.
    pub fn encode(&mut self, children: &[(u32, u64)], token_bits: u32) -> &[u8] {
        let len = children.len() as u64;
        let (count_bits, large, large_bits) = count_widths(children, &mut self.sorted);
        let out = &mut self.out;
        out.clear();
        if len <= 16 && count_bits <= 7 && large == 0 {
            out.push(u64::from(count_bits) << 1 | (len - 1) << 4, 8);
        } else {
            let size = match len {
                0..=0xFF => 0,
                0x100..=0xFFFF => 1,
                _ => 2,
            };
            out.push(1 | u64::from(count_bits) << 1 | size << 6, 8);
            out.push(len, 8 << size);
            out.push(large, 8 << size);
            out.push(u64::from(large_bits), 8);
        }
        let block_bits = if len >= DIRECTORY_FROM {
            bits(len) - 1 - BLOCK_BITS
        } else {
            0
        };
        let (low_bits, len_bits) = (token_bits - block_bits, bits(len));
        let mut at = 0;
        for block in 1..1_u64 << block_bits {
            while at < len && u64::from(children[at as usize].0) >> low_bits < block {
                at += 1;
            }
            out.push(at, len_bits);
        }
        let direct = (1_u64 << count_bits) - large;
        let mut number = 0;
        for (spread, count) in children {
            out.push(u64::from(*spread) & mask(low_bits), low_bits);
            if count - 1 < direct {
                out.push(count - 1, count_bits);
            } else {
                out.push(direct + number, count_bits);
                number += 1;
            }
        }
        for (_, count) in children.iter().filter(|child| child.1 > direct) {
            out.push(*count, large_bits);
        }
        out.finish()
    }
}

/// Width of a count, number of large counts and their width, so that all together take the fewest bits.
fn count_widths(children: &[(u32, u64)], sorted: &mut Vec<u64>) -> (u32, u64, u32) {
    let largest = children.iter().map(|child| child.1).max().unwrap_or(1);
    let widest = bits(largest - 1);
    let len = children.len() as u64;
    // The largest first; only so many can be large ones, as each takes a code from the others.
    sorted.clear();
    sorted.extend(children.iter().map(|child| child.1 - 1));
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let mut best = (u64::MAX, (0, 0, 0));
    for width in 0..=widest.min(MAX_COUNT_BITS) {
        let codes = 1_u64 << width;
        let large = sorted
            .iter()
            .zip(0..)
            .take_while(|(count, before)| **count >= codes.saturating_sub(*before))
            .count() as u64;
        if large > codes {
            continue;
        }
        let large_bits = if large > 0 { bits(largest) } else { 0 };
        let cost = len * u64::from(width) + large * (u64::from(large_bits) + LARGE_BITS);
        best = best.min((cost, (width, large, large_bits)));
    }
    best.1
}
