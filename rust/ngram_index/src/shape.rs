//! How the n-grams of an index are distributed.

use crate::bits::bits;
use crate::error::Result;
use crate::reader::Index;

/// How many different tokens follow the n-grams of one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Children {
    /// n-grams looked at.
    pub contexts: u64,
    /// How many of them have a number of continuations of i bits: 0, 1, 2 to 3, 4 to 7, and so on.
    pub by_bits: Vec<u64>,
    /// Continuations of all of them.
    pub total: u64,
}

impl Index {
    /// The continuations of the n-grams of a length from 1 to order - 1, from at most `most` rows or lines. n-grams lie in
    /// lines as if by chance, so a part of the lines is a fair sample.
    pub fn children(&self, length: usize, most: u64) -> Result<Children> {
        let mut found = Children {
            contexts: 0,
            by_bits: Vec::new(),
            total: 0,
        };
        let parts = if length == 1 { u64::MAX } else { most };
        self.for_each_node(length, 0..parts, &mut |_, node| {
            let distinct = self.distinct(&node);
            let width = bits(distinct) as usize;
            if found.by_bits.len() <= width {
                found.by_bits.resize(width + 1, 0);
            }
            found.by_bits[width] += 1;
            found.contexts += 1;
            found.total += distinct;
            Ok(())
        })?;
        Ok(found)
    }
}
