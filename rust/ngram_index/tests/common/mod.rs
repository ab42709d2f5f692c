//! Small indexes for tests.

#![allow(dead_code, clippy::unwrap_used)] // each test file uses its part; unwrap is how a test fails

use std::collections::HashMap;
use std::path::Path;

use ngram_index::builder::Builder;
use ngram_index::error::Result;
use ngram_index::progress::Stage;
use ngram_index::reader::Index;
use proptest::prelude::ProptestConfig;

/// So many cases, or as many as the environment variable PROPTEST_CASES says.
pub fn cases(usual: u32) -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    ProptestConfig::with_cases(wanted.unwrap_or(usual))
}

pub const FINGERPRINT: &str = "00112233445566778899aabbccddeeff";

pub fn quiet(_: Stage, _: u64, _: u64) -> Result<()> {
    Ok(())
}

/// Write the index of some documents.
pub fn write(path: &Path, documents: &[Vec<u32>], order: usize, vocab_size: u64) -> Result<()> {
    let mut builder = Builder::new(order, vocab_size)?;
    for document in documents {
        builder.add(document, &[0, document.len() as i64])?;
    }
    builder.finish(path, FINGERPRINT, r#"{"made":"for tests"}"#, &mut quiet)?;
    Ok(())
}

/// The bytes of the index of some documents.
pub fn bytes(documents: &[Vec<u32>], order: usize, vocab_size: u64) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.ngx");
    write(&path, documents, order, vocab_size).unwrap();
    std::fs::read(path).unwrap()
}

/// The index of some documents, in memory.
pub fn index(documents: &[Vec<u32>], order: usize, vocab_size: u64) -> Index {
    Index::from_bytes(bytes(documents, order, vocab_size)).unwrap()
}

/// Repetitive documents, so that n-grams of every length occur several times.
pub fn documents(count: u32, length: u32, vocab_size: u32) -> Vec<Vec<u32>> {
    let mut state = 1_u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 16
    };
    (0..count).map(|_| (0..length).map(|i| (i / 3 * 7 + next() % 3) % vocab_size).collect()).collect()
}

/// How often each n-gram was seen.
pub type Counts = HashMap<Vec<u32>, u64>;

/// The counts of every n-gram of 1 to `order` tokens, by a hash map.
pub fn naive(documents: &[Vec<u32>], order: usize) -> Counts {
    let mut counts = Counts::new();
    for document in documents {
        for start in 0..document.len() {
            for length in 1..=order.min(document.len() - start) {
                *counts.entry(document[start..start + length].to_vec()).or_default() += 1;
            }
        }
    }
    counts
}

/// All that an index holds; each n-gram must come once.
pub fn stored(index: &Index) -> Counts {
    let mut counts = Counts::new();
    for length in 1..=index.order() {
        let add = &mut |tokens: &[u32], count: u64| {
            assert_eq!(tokens.len(), length);
            assert!(counts.insert(tokens.to_vec(), count).is_none(), "{tokens:?} twice");
            Ok(())
        };
        index.for_each(length, add).unwrap();
    }
    counts
}
