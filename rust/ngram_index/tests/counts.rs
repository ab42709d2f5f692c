//! The builder counts what a hash map counts.

#![allow(clippy::unwrap_used, clippy::panic)] // how a test fails

mod common;

use ngram_index::builder::Builder;
use ngram_index::error::Error;
use proptest::prelude::*;

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
    #![proptest_config(common::cases(64))]

    #[test]
    fn equal_a_hash_map((documents, order, vocab) in corpus()) {
        prop_assume!(documents.iter().any(|document| !document.is_empty()));
        let index = common::index(&documents, order, vocab);
        index.verify().unwrap();
        let expected = common::naive(&documents, order);
        prop_assert_eq!(index.windows(), documents.iter().map(|d| d.len() as u64).sum::<u64>());
        for (length, nodes) in index.header().nodes.iter().enumerate() {
            prop_assert_eq!(*nodes as usize, expected.keys().filter(|path| path.len() == length + 1).count());
        }
        prop_assert_eq!(&common::stored(&index), &expected);
        for (tokens, count) in &expected {
            prop_assert_eq!(index.count(tokens), *count);
            let (last, context) = tokens.split_last().unwrap();
            if !context.is_empty() {
                prop_assert!(index.successors(context).contains(&(*last, *count)));
            }
        }
        for tokens in expected.keys() {
            for other in [0, 4, vocab as u32 - 1, vocab as u32] {
                let mut changed = tokens.clone();
                *changed.last_mut().unwrap() = other;
                prop_assert_eq!(index.count(&changed), expected.get(&changed).copied().unwrap_or(0));
            }
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
    for stage in ["sort", "count", "table", "write"] {
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
