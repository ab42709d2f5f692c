//! Counts of an offset's candidates after a context, shared by all paths that end with that context.
//!
//! A row is prepared when its context is known, which asks the processor for the memory that it will need, and read later.
//! Contexts of fewer than order - 1 tokens have a row of places, one for each continuation; those of order - 1 tokens a
//! record of all. Every continuation's entry leads to its own row at the next offset, so no context is looked up twice.

use super::float::LANES;
use crate::reader::{self, Index, Node, Place, Unigram};

/// No row: a context that was never seen or that has no place here.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
enum Source {
    /// Each continuation has its own place; the position of the first.
    Places(usize),
    /// All continuations are in the record of this context.
    Record(Node),
}

#[derive(Clone, Copy)]
struct Row {
    source: Source,
    /// Position of its first count.
    start: usize,
    width: usize,
    /// How often the context was seen.
    total: f32,
    /// How many different tokens followed it; of a record not known before it is read.
    distinct: f32,
    is_read: bool,
}

/// All rows of one tree.
#[derive(Default)]
pub(super) struct Rows {
    rows: Vec<Row>,
    /// Padded to whole lanes with zeros.
    counts: Vec<f32>,
    places: Vec<Option<Place>>,
    /// The row at the next offset of each place's n-gram.
    next: Vec<u32>,
    /// The row at the next offset of the context that is only this candidate, by the candidate's number.
    by_last: Vec<u32>,
    wide_counts: Vec<u64>,
}

impl Rows {
    /// Forget all rows, keep the memory.
    pub fn clear(&mut self, candidates: usize) {
        self.rows.clear();
        self.counts.clear();
        self.places.clear();
        self.next.clear();
        self.by_last.clear();
        self.by_last.resize(candidates, NONE);
    }

    /// The row after a context of one token for candidates `tokens`; `number` is that of the context's token among all
    /// candidates, if it is one.
    pub fn after_token(
        &mut self,
        index: &Index,
        context: u32,
        unigram: Unigram,
        number: Option<usize>,
        tokens: &[u32],
    ) -> u32 {
        if unigram.distinct == 0 {
            return NONE;
        }
        if let Some(&row) = number.and_then(|number| self.by_last.get(number)).filter(|row| **row != NONE) {
            return row;
        }
        let row = if index.order() > 2 {
            let source = self.places(index, &[context], tokens);
            self.add(source, tokens.len(), unigram.count, unigram.distinct)
        } else if let Some(node) = index.root_node(context) {
            self.record(index, node, tokens.len())
        } else {
            NONE
        };
        if let Some(known) = number.and_then(|number| self.by_last.get_mut(number)) {
            *known = row;
        }
        row
    }

    /// The row after a longer context whose last token is the `choice`-th candidate of a row that was read.
    pub fn after_choice(&mut self, index: &Index, row: u32, choice: usize, context: &[u32], tokens: &[u32]) -> u32 {
        let Some(Row {
            source: Source::Places(places),
            start,
            ..
        }) = self.rows.get(row as usize).copied()
        else {
            return NONE;
        };
        if self.counts[start + choice] == 0.0 {
            return NONE;
        }
        if self.next[places + choice] == NONE {
            let node = self.places[places + choice].and_then(|place| index.find(place));
            self.next[places + choice] = node.map_or(NONE, |node| self.after_node(index, node, context, tokens));
        }
        self.next[places + choice]
    }

    /// The row after a context of 2 to order - 1 tokens that was found.
    pub fn after_node(&mut self, index: &Index, node: Node, context: &[u32], tokens: &[u32]) -> u32 {
        if context.len() + 1 == index.order() {
            return self.record(index, node, tokens.len());
        }
        let source = self.places(index, context, tokens);
        self.add(source, tokens.len(), node.count, index.distinct(&node))
    }

    fn record(&mut self, index: &Index, node: Node, width: usize) -> u32 {
        index.prefetch_children(&node);
        self.add(Source::Record(node), width, node.count, 0)
    }

    fn places(&mut self, index: &Index, context: &[u32], tokens: &[u32]) -> Source {
        let start = self.places.len();
        index.places_after(context, tokens, &mut self.places);
        self.next.resize(self.places.len(), NONE);
        Source::Places(start)
    }

    fn add(&mut self, source: Source, width: usize, total: u64, distinct: u64) -> u32 {
        let start = self.counts.len();
        self.counts.resize(start + width.next_multiple_of(LANES), 0.0);
        self.rows.push(Row {
            source,
            start,
            width,
            total: total as f32,
            distinct: distinct as f32,
            is_read: false,
        });
        self.rows.len() as u32 - 1
    }

    /// Fill a row's counts, once. `candidates` are those that it was prepared for.
    pub fn read(&mut self, index: &Index, row: u32, candidates: &reader::Candidates) {
        let Some(row) = self.rows.get_mut(row as usize).filter(|row| !row.is_read) else {
            return;
        };
        row.is_read = true;
        let counts = &mut self.counts[row.start..row.start + row.width];
        match row.source {
            Source::Places(start) => index.find_counts(&self.places[start..start + row.width], counts),
            Source::Record(node) => {
                self.wide_counts.clear();
                self.wide_counts.resize(row.width, 0);
                row.distinct = index.child_counts(&node, candidates, &mut self.wide_counts) as f32;
                for (count, wide) in counts.iter_mut().zip(&self.wide_counts) {
                    *count = *wide as f32;
                }
            }
        }
    }

    /// What was read: counts in the order of the candidates (padded), how often the context was seen, and how many
    /// different tokens followed it. None for [`NONE`].
    #[inline]
    pub fn get(&self, row: u32) -> Option<(&[f32], f32, f32)> {
        let row = self.rows.get(row as usize)?;
        let counts = &self.counts[row.start..row.start + row.width.next_multiple_of(LANES)];
        Some((counts, row.total, row.distinct))
    }

    /// How many were read.
    pub fn count_read(&self) -> usize {
        self.rows.iter().filter(|row| row.is_read).count()
    }

    /// Whether a row's context was followed by a candidate.
    #[inline]
    pub fn knows(&self, row: u32, choice: usize) -> bool {
        self.rows.get(row as usize).is_some_and(|row| self.counts[row.start + choice] > 0.0)
    }
}
