//! A damaged file is an error, or at worst a wrong answer that `verify` finds; never a panic.

#![allow(clippy::unwrap_used, clippy::panic)] // how a test fails

mod common;

use std::sync::LazyLock;

use ngram_index::error::{Error, FileProblem};
use ngram_index::reader::{Backing, Candidates, Index};
use ngram_index::score::score;
use ngram_index::search::{Mode, Params, Query, Rule, Searcher, Tree};
use proptest::prelude::*;

static FILES: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| (2..=5).map(|order| common::bytes(&common::documents(12, 30, 20), order, 20)).collect());

/// Use everything that a file can be asked.
fn exercise(index: &Index) {
    let tokens: Vec<u32> = (0..24).chain([u32::MAX]).collect();
    let (mut candidates, mut counts) = (Candidates::default(), vec![0; tokens.len()]);
    candidates.set(index, &tokens);
    for context in [
        vec![],
        vec![0],
        vec![19, 3],
        vec![7, 7, 8],
        vec![1, 2, 3, 4],
        vec![u32::MAX, 5],
    ] {
        assert_eq!(score(index, &context, &tokens).len(), tokens.len());
        search(index, &context);
        index.count(&context);
        if index.vocab_size() < 1000 {
            index.successors(&context);
        }
        if let Some(node) = index.context(&context) {
            index.child_counts(&node, &candidates, &mut counts);
            index.prefetch_children(&node);
            index.distinct(&node);
        }
    }
    for length in 1..=index.order() {
        let mut left = 10_000;
        let _ = index.for_each(length, &mut |tokens, _| {
            assert_eq!(tokens.len(), length);
            left -= 1;
            if left > 0 { Ok(()) } else { Err(Error::Interrupted) }
        });
    }
}

/// Trees are whole whatever the counts say.
fn search(index: &Index, context: &[u32]) {
    let tokens: Vec<i32> = (0..4).flat_map(|offset| (0..6).map(move |i| (offset * 5 + i * 3) % 21)).collect();
    let logprobs = vec![-2.0_f32; tokens.len()];
    let query = Query {
        context,
        widths: &[6; 4],
        tokens: &tokens,
        logprobs: &logprobs,
        transitions: &[],
    };
    for mode in [Mode::Survival, Mode::Reference] {
        for rule in [Rule::Reference, Rule::StupidBackoff, Rule::WittenBell, Rule::Divided] {
            let mut tree = Tree::default();
            let params = Params {
                mode,
                rule: Some(rule),
                ..Params::default()
            };
            Searcher::new().search(index, &query, &params, &mut tree).unwrap();
            assert_eq!(tree.len(), 59);
            assert!(tree.survival.iter().all(|value| *value > 0.0 && *value <= 1.0));
            assert!(tree.parents.iter().enumerate().all(|(i, parent)| (0..=i as i32).contains(parent)));
        }
    }
}

fn problem(error: Error) -> FileProblem {
    match error {
        Error::File { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

/// Make the header's checksum right again, as somebody with bad intent would.
fn reseal(file: &mut [u8]) {
    let length = u64::from_le_bytes(file[16..24].try_into().unwrap()) as usize;
    if let Some(header) = file.get_mut(..length).filter(|header| header.len() >= 28) {
        let crc = crc32fast::hash(&[&header[..24], &header[28..]].concat());
        header[24..28].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Make all checksums right again.
fn reseal_sections(file: &mut [u8]) {
    let number = |file: &[u8], at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
    let sections = number(file, 96) as u32 as usize;
    let table = number(file, 16) - sections * 48;
    for row in (0..sections).map(|i| table + i * 48) {
        let (offset, bytes) = (number(file, row + 16), number(file, row + 24));
        let crc = crc32fast::hash(&file[offset..offset + bytes]);
        file[row + 12..row + 16].copy_from_slice(&crc.to_le_bytes());
    }
    reseal(file);
}

proptest! {
    #![proptest_config(common::cases(400))]

    #[test]
    fn changed_bytes(which in 0..4_usize, changes in prop::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 1..8)) {
        let mut file = FILES[which].clone();
        for (at, change) in changes {
            let at = at.index(file.len());
            file[at] ^= change;
        }
        prop_assume!(file != FILES[which]);
        if let Ok(index) = Index::from_bytes(file) {
            prop_assert_eq!(problem(index.verify().unwrap_err()), FileProblem::Corrupt);
            exercise(&index);
        }
    }

    /// With checksums made right again, what `verify` accepts must be an index that agrees with itself.
    #[test]
    fn hostile_contents(which in 0..4_usize, changes in prop::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 1..4)) {
        let mut file = FILES[which].clone();
        let start = 4096; // the first section
        for (at, change) in changes {
            let at = start + at.index(file.len() - start);
            file[at] ^= change;
        }
        reseal_sections(&mut file);
        let Ok(index) = Index::from_bytes(file) else { return Ok(()) };
        exercise(&index);
        if index.verify().is_err() {
            return Ok(());
        }
        for length in 1..=index.order() {
            let mut found = 0;
            index.for_each(length, &mut |tokens, count| {
                found += 1;
                assert_eq!(index.count(tokens), count);
                assert!(length == 1 || index.count(&tokens[..length - 1]) >= count);
                Ok(())
            }).unwrap();
            prop_assert_eq!(found, index.header().nodes[length - 1]);
        }
    }

    #[test]
    fn hostile_headers(which in 0..4_usize, changes in prop::collection::vec((0..1000_usize, any::<u64>(), 0..8_u32), 1..4)) {
        let mut file = FILES[which].clone();
        for (at, value, width) in changes {
            let value = value >> (8 * width); // small numbers and huge ones
            let at = at / 4 * 4;
            file[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        reseal(&mut file);
        if let Ok(index) = Index::from_bytes(file) {
            let _ = index.verify();
            exercise(&index);
        }
    }

    #[test]
    fn cut_files(which in 0..4_usize, at in any::<prop::sample::Index>()) {
        let file = &FILES[which];
        let cut = file[..at.index(file.len())].to_vec();
        let expected = if cut.len() < 8 { FileProblem::Foreign } else { FileProblem::Truncated };
        prop_assert_eq!(problem(Index::from_bytes(cut).err().unwrap()), expected);
    }

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(problem(Index::from_bytes(bytes).err().unwrap()), FileProblem::Foreign);
    }
}

#[test]
fn every_byte_counts() {
    for file in FILES.iter() {
        for at in 0..file.len() {
            let mut file = file.clone();
            file[at] ^= 0x10;
            if let Ok(index) = Index::from_bytes(file) {
                assert!(index.verify().is_err(), "byte {at} is not checked");
            }
        }
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let file = &FILES[1];
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = file.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        reseal(&mut file);
        Index::from_bytes(file).err().unwrap()
    };
    let newer = changed(8, &7_u32.to_le_bytes());
    assert!(
        newer.to_string().contains("expected format version 2 or less, got 7; upgrade"),
        "{newer}"
    );
    assert_eq!(problem(newer), FileProblem::NewerVersion);
    let older = changed(8, &1_u32.to_le_bytes());
    assert!(older.to_string().contains("got 1; build the index again"), "{older}");
    assert_eq!(problem(older), FileProblem::OlderVersion);
    assert_eq!(
        problem(changed(12, &0x0102_0304_u32.to_be_bytes())),
        FileProblem::Foreign
    );
    assert_eq!(problem(changed(28, &9_u32.to_le_bytes())), FileProblem::Corrupt);
    let longer = [file.as_slice(), b"more"].concat();
    assert_eq!(
        problem(Index::from_bytes(longer).err().unwrap()),
        FileProblem::Truncated
    );
}

#[test]
fn open_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.ngx");
    std::fs::write(&path, b"").unwrap();
    for backing in [Backing::Mmap, Backing::Populate, Backing::Copy] {
        let error = Index::open(&path, backing).err().unwrap();
        assert!(error.to_string().contains("other.ngx"), "{error}");
        let error = Index::open(&folder.path().join("missing.ngx"), backing).err().unwrap();
        assert!(
            matches!(error, Error::Io { .. }) && error.to_string().contains("missing.ngx"),
            "{error}"
        );
    }
}

#[test]
fn all_backings_answer_alike() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index.ngx");
    std::fs::write(&path, &FILES[2]).unwrap();
    let answers = [Backing::Mmap, Backing::Populate, Backing::Copy].map(|backing| {
        let index = Index::open(&path, backing).unwrap();
        index.verify().unwrap();
        let mut all = Vec::new();
        let collect = &mut |tokens: &[u32], count| {
            all.push((tokens.to_vec(), count));
            Ok(())
        };
        index.for_each(4, collect).unwrap();
        all
    });
    assert!(answers[0].len() > 100);
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}
