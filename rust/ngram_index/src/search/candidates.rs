//! The candidates of every offset, sorted by token for the look-ups, in flat arrays whose rows are padded to whole lanes.

use std::ops::Range;

use super::float::{LANES, exp, ln, map, max, sum};
use super::query::Query;
use crate::reader::{self, Index, Unigram};
use crate::score::unigram_share;

/// Smaller log-probabilities count as this, whose exponential is as good as 0 too.
const SMALLEST: f32 = -1e6;
/// Log-probability of what pads a row; smaller than any other, so that it is never the largest.
const PADDING: f32 = -1e30;

/// Candidates of one offset.
#[derive(Default)]
struct Level {
    /// Tokens ascending, each once, as look-ups want them.
    lookup: reader::Candidates,
    start: usize,
    width: usize,
    log_mass: f32,
    mass: f32,
}

/// Candidates of all offsets.
#[derive(Default)]
pub(super) struct Candidates {
    levels: Vec<Level>,
    offsets: usize,
    logprobs: Vec<f32>,
    unigrams: Vec<Unigram>,
    shares: Vec<f32>,
    /// Token and log-probability, as integers that sort by token and then the likelier first.
    sorted: Vec<u64>,
    tokens: Vec<u32>,
    row: Vec<f32>,
}

impl Candidates {
    /// Take the candidates of a checked query. Of equal tokens at one offset the likeliest counts; those with
    /// probability 0 are left out.
    pub fn fill(&mut self, index: &Index, query: &Query) {
        self.logprobs.clear();
        self.unigrams.clear();
        self.shares.clear();
        self.offsets = query.widths.len();
        if self.levels.len() < self.offsets {
            self.levels.resize_with(self.offsets, Level::default);
        }
        let mut at = 0;
        for (level, width) in self.levels.iter_mut().zip(query.widths) {
            let range = at..at + *width as usize;
            at = range.end;
            self.sorted.clear();
            let pairs = query.tokens[range.clone()].iter().zip(&query.logprobs[range]);
            let possible = pairs.filter(|(_, logprob)| logprob.is_finite());
            self.sorted.extend(
                possible.map(|(token, logprob)| (*token as u64) << 32 | u64::from(!ordered(logprob.max(SMALLEST)))),
            );
            self.sorted.sort_unstable();
            self.sorted.dedup_by_key(|pair| *pair >> 32);

            level.start = self.logprobs.len();
            level.width = self.sorted.len();
            let padded = level.start + level.width.next_multiple_of(LANES);
            self.tokens.clear();
            self.tokens.extend(self.sorted.iter().map(|pair| (pair >> 32) as u32));
            level.lookup.set(index, &self.tokens);
            self.logprobs.extend(self.sorted.iter().map(|pair| unordered(!(*pair as u32))));
            self.logprobs.resize(padded, PADDING);
            self.unigrams.extend(self.tokens.iter().map(|token| index.unigram(*token)));
            self.unigrams.resize(padded, Unigram { count: 0, distinct: 0 });
            let unigrams = &self.unigrams[level.start..];
            self.shares.extend(unigrams.iter().map(|unigram| unigram_share(index, unigram.count)));

            let logprobs = &self.logprobs[level.start..];
            let top = max(logprobs);
            self.row.clear();
            self.row.extend_from_slice(logprobs);
            map(&mut self.row, move |logprob| exp(logprob - top));
            level.log_mass = if level.width > 0 { top + ln(sum(&self.row)) } else { top };
            level.mass = exp(level.log_mass).min(1.0);
        }
    }

    /// Number of offsets.
    pub fn offsets(&self) -> usize {
        self.offsets
    }

    /// Number of candidates of an offset.
    pub fn width(&self, offset: usize) -> usize {
        self.levels[offset].width
    }

    /// Number of an offset's candidate among those of all offsets; gaps lie between offsets.
    pub fn number(&self, offset: usize, choice: usize) -> usize {
        self.levels[offset].start + choice
    }

    /// One more than the largest number.
    pub fn numbers(&self) -> usize {
        self.logprobs.len()
    }

    /// Token ids of an offset, ascending, each once.
    pub fn tokens(&self, offset: usize) -> &[u32] {
        self.levels[offset].lookup.tokens()
    }

    /// The tokens as look-ups want them.
    pub fn lookup(&self, offset: usize) -> &reader::Candidates {
        &self.levels[offset].lookup
    }

    /// Log-probabilities of an offset's tokens, all finite; padded.
    pub fn logprobs(&self, offset: usize) -> &[f32] {
        &self.logprobs[self.padded(offset)]
    }

    /// Counts of an offset's tokens; padded.
    pub fn unigrams(&self, offset: usize) -> &[Unigram] {
        &self.unigrams[self.padded(offset)]
    }

    /// Unigram probabilities of an offset's tokens, all positive; padded.
    pub fn shares(&self, offset: usize) -> &[f32] {
        &self.shares[self.padded(offset)]
    }

    /// Natural logarithm of the draft probability of all candidates of an offset; -inf if there is none.
    pub fn log_mass(&self, offset: usize) -> f32 {
        self.levels[offset].log_mass
    }

    /// Draft probability of all candidates of an offset, at most 1.
    pub fn mass(&self, offset: usize) -> f32 {
        self.levels[offset].mass
    }

    fn padded(&self, offset: usize) -> Range<usize> {
        let level = &self.levels[offset];
        level.start..level.start + level.width.next_multiple_of(LANES)
    }
}

/// Bits that sort like the number (IEEE 754's total order).
#[inline]
pub(super) fn ordered(value: f32) -> u32 {
    let bits = value.to_bits();
    bits ^ ((bits as i32 >> 31) as u32 | 1 << 31)
}

/// The number of such bits.
#[inline]
pub(super) fn unordered(bits: u32) -> f32 {
    f32::from_bits(bits ^ ((!bits as i32 >> 31) as u32 | 1 << 31))
}
