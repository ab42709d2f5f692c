//! The candidates of every offset, sorted by token for the look-ups, in flat arrays whose rows are padded to whole lanes.

use std::ops::Range;

use super::float::{LANES, exp, ln, map, max, sum, zip};
use super::query::Query;
use crate::reader::{self, Index, Unigram};
use crate::score::unigram_share;

/// Smaller log-probabilities count as this, whose exponential is as good as 0 too.
const SMALLEST: f32 = -1e6;
/// Log-probability of what pads a row; smaller than any other, so that it is never the largest.
const PADDING: f32 = -1e30;
/// Larger transition scores count as this; beyond it a token is as good as certain or impossible.
const LARGEST_SCORE: f32 = 1e4;

/// Candidates of one offset.
#[derive(Default)]
struct Level {
    /// Tokens ascending, each once, as look-ups want them.
    lookup: reader::Candidates,
    start: usize,
    width: usize,
    /// Where the rows of transition scores to this offset begin.
    transitions: usize,
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
    /// Rows of transition scores, padded; empty for none.
    transitions: Vec<f32>,
    /// With transition scores, the place of each number among the query's candidates of its offset.
    places: Vec<usize>,
    /// Token and log-probability, as integers that sort by token and then the likelier first.
    sorted: Vec<u64>,
    tokens: Vec<u32>,
    row: Vec<f32>,
}

impl Candidates {
    /// Take the candidates of a checked query. Of equal tokens at one offset the likeliest counts; those with
    /// probability 0 are left out. Transition scores count `transition_weight` times.
    pub fn fill(&mut self, index: &Index, query: &Query, transition_weight: f32) {
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
        self.fill_transitions(query, transition_weight);
    }

    /// Bring the transition scores into the order of the candidates.
    fn fill_transitions(&mut self, query: &Query, weight: f32) {
        self.transitions.clear();
        if query.transitions.is_empty() || weight == 0.0 {
            return;
        }
        self.fill_places(query);
        let mut given = query.transitions;
        for offset in 1..self.offsets {
            let (before, width) = (query.widths[offset - 1] as usize, query.widths[offset] as usize);
            let (block, rest) = given.split_at(before * width);
            given = rest;
            self.levels[offset].transitions = self.transitions.len();
            let level = &self.levels[offset];
            let padding = level.width.next_multiple_of(LANES) - level.width;
            let places = |level: &Level| level.start..level.start + level.width;
            for place in &self.places[places(&self.levels[offset - 1])] {
                let row = &block[*place * width..][..width];
                let scores = self.places[places(level)].iter().map(|place| row[*place] * weight);
                self.transitions.extend(scores.map(|score| score.clamp(-LARGEST_SCORE, LARGEST_SCORE)));
                self.transitions.extend(std::iter::repeat_n(0.0, padding));
            }
        }
    }

    /// Find the candidates again where the query has them; of equal ones the first.
    fn fill_places(&mut self, query: &Query) {
        self.places.clear();
        let mut at = 0;
        for (level, width) in self.levels.iter().zip(query.widths) {
            let range = at..at + *width as usize;
            at = range.end;
            self.places.resize(level.start, 0);
            let logprobs = &self.logprobs[level.start..];
            for (token, logprob) in level.lookup.tokens().iter().zip(logprobs) {
                let mut given = query.tokens[range.clone()].iter().zip(&query.logprobs[range.clone()]);
                let found = |(id, value): (&i32, &f32)| {
                    *id as u32 == *token && value.is_finite() && value.max(SMALLEST) == *logprob
                };
                let place = given.position(found);
                self.places.push(place.unwrap_or_default());
            }
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

    /// Transition scores of an offset's tokens after a choice of the offset before; padded. None without such scores.
    pub fn transitions(&self, offset: usize, before: usize) -> Option<&[f32]> {
        let level = &self.levels[offset];
        let width = level.width.next_multiple_of(LANES);
        (offset > 0 && !self.transitions.is_empty())
            .then(|| &self.transitions[level.transitions + before * width..][..width])
    }

    /// Draft probability of all candidates of an offset after a choice of the offset before, at most 1, and what is taken off
    /// a candidate's log-probability and transition score together so that it is a log-probability again. Tokens that are no
    /// candidates keep their share, as with a score of 0.
    pub fn mass_after(&mut self, offset: usize, before: usize) -> (f32, f32) {
        let mass = self.mass(offset);
        let mut row = std::mem::take(&mut self.row);
        let Some(scores) = self.transitions(offset, before) else {
            self.row = row;
            return (mass, 0.0);
        };
        row.clear();
        row.extend_from_slice(self.logprobs(offset));
        zip(&mut row, scores, |logprob, score| logprob + score);
        let top = max(&row).max(0.0);
        map(&mut row, move |value| exp(value - top));
        let known = sum(&row);
        let total = known + (1.0 - mass) * exp(-top);
        self.row = row;
        (known / total, top + ln(total))
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
