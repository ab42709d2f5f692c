//! Tokens that are looked up together after many n-grams, prepared once.

use crate::spread::Spread;

const FREE: u64 = u64::MAX;
const SPARSENESS: usize = 8;

/// Tokens of one position: ascending, each once.
#[derive(Clone, Default)]
pub struct Candidates {
    tokens: Vec<u32>,
    spread: Vec<u32>,
    /// Open addressing by the highest bits of the multiplied spread token: the token << 32 | position.
    table: Vec<u64>,
    shift: u32,
}

impl Candidates {
    /// Number of candidates.
    #[inline]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The tokens.
    #[inline]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Their spread values; `u32::MAX` for one that is not in the vocabulary.
    #[inline]
    pub(crate) fn spread(&self) -> &[u32] {
        &self.spread
    }

    /// Take ascending tokens. Nothing is allocated when there was room for as many before.
    pub(crate) fn fill(&mut self, spread: Spread, vocab_size: u64, tokens: &[u32]) {
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.spread.clear();
        let known = |token: u32| u64::from(token) < vocab_size;
        self.spread
            .extend(tokens.iter().map(|token| if known(*token) { spread.spread(*token) } else { u32::MAX }));
        let slots = (tokens.len() * SPARSENESS).next_power_of_two().max(8);
        self.table.clear();
        self.table.resize(slots, FREE);
        self.shift = u32::BITS - slots.trailing_zeros();
        for (i, value) in self.spread.iter().enumerate().filter(|(_, value)| **value != u32::MAX) {
            let mut slot = slot_of(*value, self.shift);
            while self.table[slot] != FREE {
                slot = (slot + 1) % slots;
            }
            self.table[slot] = u64::from(*value) << 32 | i as u64;
        }
    }

    /// Position of a spread token among the candidates.
    #[inline]
    pub(crate) fn position(&self, spread: u32) -> Option<usize> {
        let mut slot = slot_of(spread, self.shift);
        loop {
            let entry = *self.table.get(slot)?;
            if entry == FREE {
                return None;
            }
            if entry >> 32 == u64::from(spread) {
                return Some((entry & 0xFFFF_FFFF) as usize);
            }
            slot = (slot + 1) % self.table.len();
        }
    }
}

#[inline]
fn slot_of(spread: u32, shift: u32) -> usize {
    (spread.wrapping_mul(0x85EB_CA6B) >> shift) as usize
}
