//! Reading all n-grams of an index, and all continuations of one.

use std::ops::Range;

use crate::error::{Error, FileProblem, Result};
use crate::lines::EXTRA_LINES;
use crate::reader::{Follow, Index, Node, row};

impl Index {
    /// Every token that was seen after 1 to order - 1 tokens, with its count, tokens ascending. Slow for contexts shorter
    /// than order - 1: it tries every token.
    pub fn successors(&self, context: &[u32]) -> Vec<(u32, u64)> {
        if context.is_empty() || context.len() >= self.order() {
            return Vec::new();
        }
        if context.len() + 1 == self.order() {
            return self.context(context).map_or_else(Vec::new, |node| {
                let mut children = self.continuations(&node);
                children.sort_unstable();
                children
            });
        }
        let mut longer = [context, &[0]].concat();
        let tokens = 0..self.vocab_size() as u32;
        tokens
            .filter_map(|token| {
                longer[context.len()] = token;
                self.context(&longer).map(|node| (token, node.count))
            })
            .collect()
    }

    /// Continuations of a node of length order - 1, in no order.
    fn continuations(&self, node: &Node) -> Vec<(u32, u64)> {
        match node.follow() {
            Follow::Distinct(_) => Vec::new(),
            Follow::Single(spread) => vec![(self.spread.token(spread), node.count)],
            Follow::Record(offset) => self.record(offset).map_or_else(Vec::new, |record| {
                record.iter().map(|(spread, count)| (self.spread.token(spread), count)).collect()
            }),
        }
    }

    /// All n-grams of a length, in the order of the file: `f(tokens, count)`.
    pub fn for_each(&self, length: usize, f: &mut dyn FnMut(&[u32], u64) -> Result<()>) -> Result<()> {
        if length == self.order() {
            let mut tokens = vec![0; length];
            return self.for_each_node(length - 1, 0..u64::MAX, &mut |context, node| {
                tokens[..length - 1].copy_from_slice(context);
                for (token, count) in self.continuations(&node) {
                    tokens[length - 1] = token;
                    f(&tokens, count)?;
                }
                Ok(())
            });
        }
        self.for_each_node(length, 0..u64::MAX, &mut |tokens, node| f(tokens, node.count))
    }

    /// Rows or lines in which the n-grams of a length lie.
    pub(crate) fn parts(&self, length: usize) -> u64 {
        match self.tables.get(length.wrapping_sub(2)) {
            Some(table) => table.lines.scatter.lines() + EXTRA_LINES,
            None => self.vocab_size(),
        }
    }

    /// All n-grams of a length shorter than the order that lie in a range of rows or lines.
    pub(crate) fn for_each_node(
        &self,
        length: usize,
        parts: Range<u64>,
        f: &mut dyn FnMut(&[u32], Node) -> Result<()>,
    ) -> Result<()> {
        let parts = parts.start..parts.end.min(self.parts(length));
        let Some(table) = self.tables.get(length.wrapping_sub(2)) else {
            for token in parts {
                let token = token as u32;
                let node = match self.order() {
                    2 => self.root_node(token),
                    _ => {
                        let (count, distinct) = row(self.part(&self.unigrams), u64::from(token));
                        (count > 0).then_some(Node::new(count, Follow::Distinct(distinct)))
                    }
                };
                if let Some(node) = node {
                    f(&[token], node)?;
                }
            }
            return Ok(());
        };
        let bits = self.spread.bits();
        let mut tokens = vec![0_u32; length];
        for line in parts {
            for (key, slot) in table.lines.occupied(self.part(&table.section), line) {
                let Some(mut key) = key else {
                    return Err(self.corrupt(format!("{length}-grams in line {line}"), "an impossible tag".to_owned()));
                };
                for token in tokens.iter_mut().rev() {
                    *token = (key & ((1 << bits) - 1)) as u32;
                    key >>= bits;
                }
                f(&tokens, self.node(length, table, slot))?;
            }
        }
        Ok(())
    }

    pub(crate) fn corrupt(&self, expected: String, got: String) -> Error {
        Error::File {
            path: self.path().display().to_string(),
            problem: FileProblem::Corrupt,
            expected,
            got,
            remedy: "build or copy the index again",
        }
    }
}
