//! The straightforward way to hold the same counts: a trie whose nodes are hash maps.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use ngram_index::error::Result;
use ngram_index::reader::Index;

/// One multiplication, as a fast hash of an integer is.
#[derive(Default)]
pub struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0.rotate_left(5) ^ u64::from(value)).wrapping_mul(0x517C_C1B7_2722_0A95);
    }
}

/// A node; the root is the empty n-gram.
#[derive(Default)]
pub struct Trie {
    pub count: u64,
    children: HashMap<u32, Box<Trie>, BuildHasherDefault<TokenHasher>>,
}

impl Trie {
    /// All n-grams of an index.
    pub fn from_index(index: &Index) -> Result<Self> {
        let mut trie = Self::default();
        for length in 1..=index.order() {
            index.for_each(length, &mut |tokens, count| {
                let node = tokens.iter().fold(&mut trie, |node, token| node.children.entry(*token).or_default());
                node.count = count;
                Ok(())
            })?;
        }
        Ok(trie)
    }

    pub fn child(&self, token: u32) -> Option<&Trie> {
        self.children.get(&token).map(Box::as_ref)
    }

    /// The node of an n-gram, from the root.
    pub fn find(&self, tokens: &[u32]) -> Option<&Trie> {
        tokens.iter().try_fold(self, |node, token| node.child(*token))
    }
}
