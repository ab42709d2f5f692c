//! A build in little memory, cut anywhere, gives the file of a build in one go.

#![allow(clippy::unwrap_used, clippy::panic)] // how a test fails

mod common;

use std::path::Path;

use ngram_index::builder::{Builder, Pruning};
use ngram_index::error::{Error, Result};
use proptest::prelude::*;

const VOCAB: u64 = 50;

/// Documents in batches of a few, long ones in pieces; positions are "document,token".
fn feed(builder: &mut Builder, documents: &[Vec<u32>], piece: usize, stop_at: usize) -> Result<bool> {
    let position = builder.position().to_owned();
    let first: usize = if position.is_empty() {
        0
    } else {
        position.parse().unwrap()
    };
    let mut adds = 0;
    for (number, document) in documents.iter().enumerate().skip(first) {
        let pieces: Vec<&[u32]> = if document.is_empty() {
            vec![&[]]
        } else {
            document.chunks(piece).collect()
        };
        for (i, part) in pieces.iter().enumerate() {
            if adds == stop_at {
                return Ok(false);
            }
            adds += 1;
            builder.add_from(part, &[0, part.len() as i64], &number.to_string(), i + 1 < pieces.len())?;
        }
    }
    Ok(true)
}

fn finish(builder: Builder, path: &Path) {
    builder.finish(path, common::FINGERPRINT, "{}", &mut common::quiet).unwrap();
}

proptest! {
    #![proptest_config(common::cases(6))]

    #[test]
    fn any_cuts_give_the_same_file(
        order in 2_usize..=5, piece in 1_usize..5000, cuts in prop::collection::vec(0_usize..400, 0..4),
    ) {
        let documents: Vec<Vec<u32>> = (0..40).map(|i| common::documents(1, i * i * 15, VOCAB as u32).remove(0)).collect();
        let folder = tempfile::tempdir().unwrap();
        let (work, path) = (folder.path().join("x.build"), folder.path().join("x.ngx"));
        let mut covered = 0;
        for cut in cuts {
            // No memory: the smallest buffers, so a run every 4096 windows.
            let mut builder = Builder::open(order, VOCAB, &work, 0, r#"{"a": 1}"#, false).unwrap();
            prop_assert!(builder.covered() >= covered);
            covered = builder.covered();
            feed(&mut builder, &documents, piece, cut).unwrap();
            // Dropped: what is not in runs is lost.
            drop(builder);
            while Builder::open(order, VOCAB, &work, 0, r#"{"a": 1}"#, false).is_err() {
                std::thread::yield_now(); // the thread of the dropped one ends
            }
        }
        let mut builder = Builder::open(order, VOCAB, &work, 0, r#"{"a": 1}"#, false).unwrap();
        prop_assert!(feed(&mut builder, &documents, piece, usize::MAX).unwrap());
        let total: usize = documents.iter().map(Vec::len).sum();
        prop_assert_eq!(builder.tokens(), total as u64);
        finish(builder, &path);
        prop_assert!(!work.exists());

        let mut whole = Builder::new(order, VOCAB).unwrap();
        feed(&mut whole, &documents, usize::MAX, usize::MAX).unwrap();
        let expected = folder.path().join("whole.ngx");
        finish(whole, &expected);
        prop_assert!(std::fs::read(&path).unwrap() == std::fs::read(&expected).unwrap());
        let index = ngram_index::reader::Index::from_bytes(std::fs::read(&path).unwrap()).unwrap();
        prop_assert_eq!(common::stored(&index), common::naive(&documents, order));
    }
}

fn message(result: Result<Builder>) -> String {
    match result {
        Err(Error::InvalidArgument { field, message }) => format!("{field}: {message}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    }
}

#[test]
fn another_build_is_refused_and_says_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().join("x.build");
    let mut builder = Builder::open(2, VOCAB, &work, 0, r#"{"order": 2, "inputs": ["a"]}"#, false).unwrap();
    let said = message(Builder::open(
        2,
        VOCAB,
        &work,
        0,
        r#"{"order": 2, "inputs": ["a"]}"#,
        false,
    ));
    assert!(said.contains("in use by another build"), "{said}");
    for _ in 0..3 {
        builder.add_from(&vec![1_u32; 10_000], &[0, 10_000], "p", false).unwrap();
    }
    drop(builder);
    let said = loop {
        let said = message(Builder::open(
            2,
            VOCAB,
            &work,
            0,
            r#"{"order": 2, "inputs": ["b"]}"#,
            false,
        ));
        if !said.contains("in use") {
            break said;
        }
    };
    assert!(
        said.contains(r#"inputs was ["a"], now ["b"]"#) && said.contains("--restart"),
        "{said}"
    );
    std::fs::write(work.join("000001.run"), b"").unwrap();
    let said = message(Builder::open(
        2,
        VOCAB,
        &work,
        0,
        r#"{"order": 2, "inputs": ["a"]}"#,
        false,
    ));
    assert!(
        said.contains("000001.run has 0 bytes") && said.contains("--restart"),
        "{said}"
    );
    std::fs::write(work.join("journal.json"), b"{").unwrap();
    let said = message(Builder::open(2, VOCAB, &work, 0, "{}", false));
    assert!(
        said.contains("journal.json is not a journal") && said.contains("--restart"),
        "{said}"
    );
    let fresh = Builder::open(2, VOCAB, &work, 0, "{}", true).unwrap();
    assert_eq!((fresh.covered(), fresh.position()), (0, ""));
    drop(fresh);
    std::fs::write(work.join("notes.txt"), b"mine").unwrap();
    let said = message(Builder::open(2, VOCAB, &work, 0, "{}", true));
    assert!(said.contains("is in the way: it holds notes.txt"), "{said}");
}

#[test]
fn a_changed_run_is_found_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (work, path) = (folder.path().join("x.build"), folder.path().join("x.ngx"));
    let tokens: Vec<u32> = (0..20_000).map(|i| i % 47).collect();
    let mut builder = Builder::open(3, VOCAB, &work, 0, "{}", false).unwrap();
    builder.add_from(&tokens, &[0, 20_000], "p", false).unwrap();
    builder.add_from(&tokens, &[0, 20_000], "q", false).unwrap();
    let run = work.join("000001.run");
    let mut bytes = std::fs::read(&run).unwrap();
    bytes[10] ^= 1;
    std::fs::write(&run, bytes).unwrap();
    let failed = builder.finish(&path, common::FINGERPRINT, "{}", &mut common::quiet).unwrap_err().to_string();
    assert!(
        failed.contains("000001.run: corrupt") && failed.contains("--restart"),
        "{failed}"
    );
    assert!(!path.exists());
}

#[test]
fn a_size_target_prunes_the_longest_first() {
    // Products make some tokens frequent and most n-grams rare.
    let mut state = 1_u64;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let documents: Vec<Vec<u32>> =
        (0..300).map(|_| (0..100).map(|_| (below(VOCAB) * below(VOCAB) / VOCAB) as u32).collect()).collect();
    let folder = tempfile::tempdir().unwrap();
    let build = |pruning: Pruning, name: &str| {
        let path = folder.path().join(name);
        let mut builder = Builder::open(3, VOCAB, &folder.path().join("x.build"), 0, "{}", false).unwrap();
        feed(&mut builder, &documents, usize::MAX, usize::MAX).unwrap();
        builder.set_pruning(pruning).unwrap();
        let (_, kept) = builder.finish_pruned(&path, common::FINGERPRINT, "{}", &mut common::quiet).unwrap();
        (
            ngram_index::reader::Index::from_bytes(std::fs::read(path).unwrap()).unwrap(),
            kept,
        )
    };
    let (whole, kept) = build(Pruning::default(), "whole.ngx");
    assert_eq!(kept, [1, 1, 1]);
    let target = whole.header().file_bytes * 9 / 10;
    let (small, kept) = build(
        Pruning {
            target_bytes: Some(target),
            ..Pruning::default()
        },
        "small.ngx",
    );
    assert!(small.header().file_bytes <= target);
    assert_eq!(kept[..2], [1, 1]);
    assert!(kept[2] > 1);
    assert!(
        small.manifest().contains(&format!(r#""min_counts":[1,1,{}]"#, kept[2])),
        "{}",
        small.manifest()
    );
    let mut expected = common::naive(&documents, 3);
    expected.retain(|tokens, count| *count >= kept[tokens.len() - 1]);
    assert_eq!(common::stored(&small), expected);

    let (again, _) = build(
        Pruning {
            min_counts: kept,
            ..Pruning::default()
        },
        "again.ngx",
    );
    assert_eq!(again.header(), small.header());
    let mut builder = Builder::new(3, VOCAB).unwrap();
    for bad in [vec![1, 1], vec![0, 1, 1], vec![2, 1, 1]] {
        let said = builder
            .set_pruning(Pruning {
                min_counts: bad,
                ..Pruning::default()
            })
            .unwrap_err()
            .to_string();
        assert!(said.starts_with("prune: must"), "{said}");
    }
}
