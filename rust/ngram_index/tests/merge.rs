//! Merged indexes hold the weighted sum of their counts.

#![allow(clippy::unwrap_used, clippy::panic)] // how a test fails

mod common;

use std::path::{Path, PathBuf};

use ngram_index::builder::Pruning;
use ngram_index::error::{Error, Result};
use ngram_index::merge::Merge;
use ngram_index::reader::Index;
use proptest::prelude::*;

fn merge(sources: &[(PathBuf, f64)], path: &Path) -> Result<Index> {
    let merge = Merge {
        sources,
        path,
        manifest: "{}",
        memory: 0,
        pruning: Pruning::default(),
    };
    merge.run(&mut common::quiet)?;
    Ok(Index::from_bytes(std::fs::read(path).unwrap()).unwrap())
}

fn documents() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(0_u32..6, 1..20), 1..10)
}

proptest! {
    #![proptest_config(common::cases(48))]

    #[test]
    fn parts_add_up_to_the_whole((a, b, order) in (documents(), documents(), 2_usize..=5)) {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        common::write(&path("a.ngx"), &a, order, 6).unwrap();
        common::write(&path("b.ngx"), &b, order, 6).unwrap();
        common::write(&path("whole.ngx"), &[a, b].concat(), order, 6).unwrap();
        let merged = merge(&[(path("a.ngx"), 1.0), (path("b.ngx"), 1.0)], &path("merged.ngx")).unwrap();
        let whole = Index::from_bytes(std::fs::read(path("whole.ngx")).unwrap()).unwrap();
        prop_assert_eq!(common::stored(&merged), common::stored(&whole));
        // All but the manifest is the same, byte for byte.
        let checksums = |index: &Index| -> Vec<(u32, u32, u32)> {
            let sections = index.header().sections.iter().filter(|section| section.level > 0);
            sections.map(|section| (section.kind, section.level, section.crc)).collect()
        };
        prop_assert_eq!(checksums(&merged), checksums(&whole));
        prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[test]
    fn weights_scale_and_round(
        (a, b) in (documents(), documents()), (w, v) in (1_u32..40, 1_u32..40), order in 2_usize..=4,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        common::write(&path("a.ngx"), &a, order, 6).unwrap();
        common::write(&path("b.ngx"), &b, order, 6).unwrap();
        // Eighths are exact, so halves are rounded up by all who count.
        let sources = [(path("a.ngx"), f64::from(w) / 8.0), (path("b.ngx"), f64::from(v) / 8.0)];
        let merged = common::stored(&merge(&sources, &path("merged.ngx")).unwrap());
        let (a, b) = (common::naive(&a, order), common::naive(&b, order));
        let mut names: Vec<&Vec<u32>> = a.keys().chain(b.keys()).collect();
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        names.dedup();
        let mut expected = common::Counts::new();
        for name in names {
            let eighths = a.get(name).unwrap_or(&0) * u64::from(w) + b.get(name).unwrap_or(&0) * u64::from(v);
            let longer = expected.iter().filter(|(other, _)| other.len() == name.len() + 1 && other.starts_with(name));
            let continued = longer.map(|(_, count)| count).sum();
            expected.insert(name.clone(), ((eighths + 4) / 8).max(1).max(continued));
        }
        prop_assert_eq!(merged, expected);
    }
}

#[test]
fn what_does_not_fit_together_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    common::write(&path("a.ngx"), &[vec![1, 2, 3]], 3, 6).unwrap();
    common::write(&path("order.ngx"), &[vec![1, 2, 3]], 2, 6).unwrap();
    common::write(&path("vocab.ngx"), &[vec![1, 2, 3]], 3, 7).unwrap();
    let said = |sources: &[(PathBuf, f64)]| match merge(sources, &path("x.ngx")) {
        Err(Error::InvalidArgument { field, message }) => format!("{field}: {message}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("merged"),
    };
    assert!(said(&[]).contains("name at least one"));
    let a = (path("a.ngx"), 1.0);
    assert!(said(&[a.clone(), (path("order.ngx"), 1.0)]).contains("order 3, "));
    assert!(said(&[a.clone(), (path("vocab.ngx"), 1.0)]).contains("vocabulary size 6, "));
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-9] {
        assert!(
            said(&[(path("a.ngx"), weight)]).starts_with("weights: must be"),
            "{weight}"
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
}
