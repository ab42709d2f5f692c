//! A damaged file is an error, or at worst a wrong answer that `verify` finds; never a panic.

#![allow(clippy::unwrap_used, clippy::panic)] // how a test fails

mod common;

use std::sync::LazyLock;

use ngram_index::error::{Error, FileProblem};
use ngram_index::reader::{Backing, Index};
use ngram_index::score::score;
use ngram_index::search::{Mode, Params, Query, Searcher, Tree};
use proptest::prelude::*;

static FILES: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| (2..=5).map(|order| common::bytes(&common::documents(12, 30, 20), order, 20)).collect());

/// Use everything that a file can be asked.
fn exercise(index: &Index) {
    for context in [
        vec![],
        vec![0],
        vec![19, 3],
        vec![7, 7, 8],
        vec![1, 2, 3, 4],
        vec![u32::MAX, 5],
    ] {
        let candidates: Vec<u32> = (0..24).chain([u32::MAX]).collect();
        assert_eq!(score(index, &context, &candidates).len(), candidates.len());
        if let Some(context) = index.context(&context) {
            assert!(index.all_successors(context).count() as u64 <= index.header().file_bytes);
        }
        let tokens: Vec<i32> = (0..4).flat_map(|offset| (0..6).map(move |i| (offset * 5 + i * 3) % 21)).collect();
        let logprobs = vec![-2.0_f32; tokens.len()];
        let query = Query {
            context: &context,
            widths: &[6; 4],
            tokens: &tokens,
            logprobs: &logprobs,
        };
        for mode in [Mode::Survival, Mode::Reference] {
            let mut tree = Tree::default();
            let params = Params {
                mode,
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

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
        newer.to_string().contains("expected format version 1 or less, got 7; upgrade"),
        "{newer}"
    );
    assert_eq!(problem(newer), FileProblem::NewerVersion);
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
    let candidates: Vec<u32> = (0..20).collect();
    let answers = [Backing::Mmap, Backing::Populate, Backing::Copy].map(|backing| {
        let index = Index::open(&path, backing).unwrap();
        index.verify().unwrap();
        score(&index, &[7, 7, 8], &candidates)
    });
    assert!(answers[0].iter().any(|score| score.matched > 0));
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}
