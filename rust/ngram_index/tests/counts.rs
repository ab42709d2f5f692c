//! The builder counts what a hash map counts.

#![allow(clippy::unwrap_used, clippy::panic)] // how a test fails

mod common;

use std::collections::HashMap;

use ngram_index::builder::Builder;
use ngram_index::error::Error;
use ngram_index::reader::{Hit, Index};
use ngram_index::score::score;
use proptest::prelude::*;

type Counts = HashMap<Vec<u32>, u64>;

fn naive(documents: &[Vec<u32>], order: usize) -> Counts {
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

fn stored(index: &Index, vocab_size: u32) -> Counts {
    let mut counts = Counts::new();
    let mut paths: Vec<Vec<u32>> = Vec::new();
    for token in 0..vocab_size {
        if index.unigram(token).count > 0 {
            counts.insert(vec![token], index.unigram(token).count);
            paths.push(vec![token]);
        }
    }
    while let Some(path) = paths.pop() {
        let Some(context) = index.context(&path) else { continue };
        for (token, count) in index.all_successors(context) {
            let longer = [path.as_slice(), &[token]].concat();
            counts.insert(longer.clone(), count);
            paths.push(longer);
        }
    }
    counts
}

fn corpus() -> impl Strategy<Value = (Vec<Vec<u32>>, usize, u64)> {
    // The larger vocabulary takes 128-bit keys from order 4.
    let vocab = prop_oneof![Just(5_u64), Just(70_000_u64)];
    (vocab, 2_usize..=5).prop_flat_map(|(vocab, order)| {
        let token = prop_oneof![0..5_u32, (vocab as u32 - 3)..vocab as u32];
        let documents = prop::collection::vec(prop::collection::vec(token, 0..12), 1..12);
        (documents, Just(order), Just(vocab))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn equal_a_hash_map((documents, order, vocab) in corpus()) {
        prop_assume!(documents.iter().any(|document| !document.is_empty()));
        let index = common::index(&documents, order, vocab);
        index.verify().unwrap();
        let expected = naive(&documents, order);
        prop_assert_eq!(index.windows(), documents.iter().map(|d| d.len() as u64).sum::<u64>());
        for (length, nodes) in index.header().nodes.iter().enumerate() {
            prop_assert_eq!(*nodes as usize, expected.keys().filter(|path| path.len() == length + 1).count());
        }
        prop_assert_eq!(stored(&index, vocab as u32), expected);
    }

    #[test]
    fn look_ups_in_bulk_equal_single_ones(tokens in prop::collection::btree_set(0_u32..60, 0..30)) {
        let index = common::index(&common::documents(20, 40, 50), 3, 50);
        let tokens: Vec<u32> = tokens.into_iter().collect();
        for first in 0..50 {
            let Some(context) = index.context(&[first]) else { continue };
            let mut hits = vec![Hit::NONE; tokens.len()];
            index.successors(context, &tokens, &mut hits);
            let all: HashMap<u32, u64> = index.all_successors(context).collect();
            for (token, hit) in tokens.iter().zip(hits) {
                prop_assert_eq!(hit.count, all.get(token).copied().unwrap_or(0));
            }
        }
    }

    #[test]
    fn scores_are_frequencies_after_the_longest_known_suffix(
        context in prop::collection::vec(0_u32..55, 0..6), order in 2_usize..=5,
    ) {
        let documents = common::documents(20, 40, 50);
        let index = common::index(&documents, order, 50);
        let counts = naive(&documents, order);
        let candidates: Vec<u32> = (0..55).rev().collect();
        for (token, score) in candidates.iter().zip(score(&index, &context, &candidates)) {
            let lengths = (1..order.min(context.len() + 1)).rev();
            let mut suffixes = lengths.map(|length| &context[context.len() - length..]);
            let known = suffixes.find(|suffix| counts.contains_key(&[*suffix, &[*token]].concat()));
            let expected = known.map_or(0.0, |suffix| {
                counts[&[suffix, &[*token]].concat()] as f32 / counts[suffix] as f32
            });
            prop_assert_eq!(score.probability, expected);
            prop_assert_eq!(usize::from(score.matched), known.map_or(0, <[u32]>::len));
        }
    }
}

fn field(error: Error) -> &'static str {
    match error {
        Error::InvalidArgument { field, .. } => field,
        other => panic!("{other}"),
    }
}

#[test]
fn bad_input_is_named() {
    assert_eq!(field(Builder::new(1, 10).err().unwrap()), "order");
    assert_eq!(field(Builder::new(6, 10).err().unwrap()), "order");
    assert_eq!(field(Builder::new(3, 0).err().unwrap()), "vocab_size");
    assert_eq!(field(Builder::new(5, 1 << 26).err().unwrap()), "vocab_size");
    let mut builder = Builder::new(3, 10).unwrap();
    assert_eq!(field(builder.add(&[1_u32, 10], &[0, 2]).unwrap_err()), "tokens");
    assert_eq!(field(builder.add(&[1_u32], &[]).unwrap_err()), "offsets");
    assert_eq!(field(builder.add(&[1_u32], &[0, 2]).unwrap_err()), "offsets");
    assert_eq!(field(builder.add(&[1_u32, 2], &[0, -1, 2]).unwrap_err()), "offsets");
    assert_eq!(builder.tokens(), 0);
    builder.add::<u32>(&[], &[0, 0]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.ngx");
    assert_eq!(
        field(builder.finish(&path, "f", "{}", &mut common::quiet).unwrap_err()),
        "documents"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_stopped_build_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index.ngx");
    common::write(&path, &[vec![1, 2, 3]], 3, 10).unwrap();
    let old = std::fs::read(&path).unwrap();
    for stage in ["sort", "count", "write"] {
        let mut builder = Builder::new(3, 10).unwrap();
        builder.add(&[4_u32, 5, 6], &[0, 3]).unwrap();
        let mut stop = |at: ngram_index::progress::Stage, _, _| {
            if at.name() == stage {
                Err(Error::Interrupted)
            } else {
                Ok(())
            }
        };
        assert!(matches!(
            builder.finish(&path, "f", "{}", &mut stop),
            Err(Error::Interrupted)
        ));
        assert_eq!(std::fs::read(&path).unwrap(), old);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
