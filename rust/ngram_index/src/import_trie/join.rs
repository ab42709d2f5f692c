//! Giving nodes their n-grams: one length after the other, nodes by parent beside parents by index.

use std::path::Path;

use super::input::Input;
use super::rows::{Child, Named, Ngram};
use crate::builder::key::{Key, Packing};
use crate::error::Result;
use crate::progress::{Progress, Stage};
use crate::sorter::{SortedRows, Sorter};

const TICK: u64 = 1 << 18;

/// What every step of the join needs.
pub(super) struct Join<'a, 'b> {
    pub input: &'a Input<'a>,
    pub packing: Packing,
    /// For sorting, and the bytes that each of several sorters may use.
    pub scratch: &'a Path,
    pub memory: usize,
    /// Nodes in the file.
    pub total: u64,
    pub progress: &'a mut Progress<'b>,
}

impl Join<'_, '_> {
    /// All n-grams by their tokens, from single tokens by index and all other nodes by parent.
    pub fn run<K: Key>(
        &mut self,
        named: SortedRows<Named<K>>,
        children: SortedRows<Child>,
    ) -> Result<SortedRows<Ngram<K>>> {
        let mut ngrams = Sorter::new(self.scratch, self.memory);
        let mut single = Sorter::new(self.scratch, self.memory);
        let mut done = 0;
        for row in named {
            let row = row?;
            ngrams.push(Ngram {
                key: row.key,
                count: row.count,
            })?;
            single.push(row)?;
            done += 1;
        }
        let (mut parents, mut rest) = (single.finish()?, children);
        for length in 2..=self.packing.order {
            (parents, rest) = self.step(length, parents, rest, &mut ngrams, &mut done)?;
        }
        if let Some(deeper) = rest.next() {
            let node = deeper?;
            let expected = format!("a depth of at most {} for node {}", self.packing.order, node.index);
            return Err(self.input.corrupt(expected, "a longer n-gram".to_owned()));
        }
        (self.progress)(Stage::Sort, self.total, self.total)?;
        ngrams.finish()
    }

    /// Name the n-grams of one length; returns them by index, and by parent what is longer.
    fn step<K: Key>(
        &mut self,
        length: usize,
        mut parents: SortedRows<Named<K>>,
        children: SortedRows<Child>,
        ngrams: &mut Sorter<Ngram<K>>,
        done: &mut u64,
    ) -> Result<(SortedRows<Named<K>>, SortedRows<Child>)> {
        let mut named = Sorter::new(self.scratch, self.memory);
        let mut longer = Sorter::new(self.scratch, self.memory);
        let mut parent = parents.next().transpose()?;
        for child in children {
            let child = child?;
            while parent.is_some_and(|parent| parent.index < child.parent) {
                parent = parents.next().transpose()?;
            }
            let Some(parent) = parent.filter(|parent| parent.index == child.parent) else {
                longer.push(child)?;
                continue;
            };
            if child.count > parent.count {
                let expected = format!(
                    "a frequency of at most its parent's {} for node {}",
                    parent.count, child.index
                );
                return Err(self.input.corrupt(expected, format!("{}", child.count)));
            }
            let (key, count) = (self.packing.append(parent.key, length - 1, child.token), child.count);
            ngrams.push(Ngram { key, count })?;
            if length < self.packing.order {
                let index = child.index;
                named.push(Named { index, key, count })?;
            }
            *done += 1;
            if done.is_multiple_of(TICK) {
                (self.progress)(Stage::Sort, *done, self.total)?;
            }
        }
        Ok((named.finish()?, longer.finish()?))
    }
}
