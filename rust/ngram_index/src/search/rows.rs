//! Look-ups of an offset's candidates after a context, shared by all paths with that context.

use crate::reader::{Context, Hit, Index};

struct Row {
    context: Context,
    total: u64,
    distinct: u64,
    start: usize,
    len: usize,
}

/// All rows of one tree.
#[derive(Default)]
pub(super) struct Rows {
    rows: Vec<Row>,
    hits: Vec<Hit>,
    /// Numbers of the rows of each offset.
    by_offset: Vec<Vec<u32>>,
}

impl Rows {
    /// Forget all rows, keep the memory.
    pub fn clear(&mut self, offsets: usize) {
        self.rows.clear();
        self.hits.clear();
        self.by_offset.iter_mut().for_each(Vec::clear);
        if self.by_offset.len() < offsets {
            self.by_offset.resize_with(offsets, Vec::new);
        }
    }

    /// The number of the row of a context at an offset whose candidates are `tokens`, looked up at most once.
    pub fn row(&mut self, index: &Index, offset: usize, context: Context, tokens: &[u32]) -> u32 {
        let known = self.by_offset[offset].iter().find(|row| self.rows[**row as usize].context == context);
        if let Some(row) = known {
            return *row;
        }
        let (start, len) = (self.hits.len(), tokens.len());
        self.hits.resize(start + len, Hit::NONE);
        index.successors(context, tokens, &mut self.hits[start..]);
        let number = self.rows.len() as u32;
        self.rows.push(Row {
            context,
            total: index.count(context),
            distinct: index.distinct_successors(context),
            start,
            len,
        });
        self.by_offset[offset].push(number);
        number
    }

    /// Continuations of the row's context, in the order of the offset's candidates.
    pub fn hits(&self, row: u32) -> &[Hit] {
        let row = &self.rows[row as usize];
        &self.hits[row.start..row.start + row.len]
    }

    /// How often the row's context was seen, and how many different tokens followed it.
    pub fn totals(&self, row: u32) -> (u64, u64) {
        let row = &self.rows[row as usize];
        (row.total, row.distinct)
    }
}
