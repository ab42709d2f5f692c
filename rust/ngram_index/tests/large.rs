//! Files beyond 2^32 bytes, as sparse ones: what is inside is small, where it is is far away.

#![allow(clippy::unwrap_used, clippy::panic)] // how a test fails

mod common;

use ngram_index::reader::{Backing, Candidates, Index};
use ngram_index::writer::IndexWriter;

const GAP: u64 = 110_000_000_000;

#[test]
fn records_and_tables_beyond_four_gibibytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.ngx");
    let mut writer = IndexWriter::new(&path, folder.path(), 3, 50_000, 1 << 20).unwrap();
    // Contexts (7, v) have 3, (8, v) have 300 and (9, v) have 2 continuations; holes lie between their records.
    for v in 0..100 {
        (0..3).for_each(|w| writer.window(&[7, v, 40_000 + w], u64::from(w) + 1).unwrap());
    }
    writer.skip_records(5_000_000_000).unwrap();
    for v in 0..100 {
        (0..300).for_each(|w| writer.window(&[8, v, 100 * w], 5_000_000_000 + u64::from(w)).unwrap());
    }
    if let Err(error) = writer.skip_records(GAP) {
        panic!("{error}: sparse files are needed");
    }
    for v in 0..100 {
        (0..2).for_each(|w| writer.window(&[9, v, 3 * w], 4).unwrap());
    }
    writer.finish(common::FINGERPRINT, "{}", &mut common::quiet).unwrap();

    let index = Index::open(&path, Backing::Mmap).unwrap();
    assert!(index.header().file_bytes > GAP);
    assert_eq!(index.header().nodes[..3], [3, 300, 30_500]);
    let expected = |context: &[u32]| -> Vec<(u32, u64)> {
        match context[0] {
            7 => (0..3).map(|w| (40_000 + w, u64::from(w) + 1)).collect(),
            8 => (0..300).map(|w| (100 * w, 5_000_000_000 + u64::from(w))).collect(),
            _ => (0..2).map(|w| (3 * w, 4)).collect(),
        }
    };
    for first in 7..10 {
        for v in 0..100 {
            let node = index.context(&[first, v]).unwrap();
            let children = expected(&[first, v]);
            assert_eq!(index.successors(&[first, v]), children);
            assert_eq!(node.count, children.iter().map(|child| child.1).sum::<u64>());
            let tokens: Vec<u32> = (0..25)
                .map(|i| i * 100 / (i % 3 + 1))
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect();
            let (mut candidates, mut counts) = (Candidates::default(), vec![0; tokens.len()]);
            candidates.set(&index, &tokens);
            assert_eq!(
                index.child_counts(&node, &candidates, &mut counts),
                children.len() as u64
            );
            for (token, count) in tokens.iter().zip(counts) {
                assert_eq!(
                    count,
                    children.iter().find(|child| child.0 == *token).map_or(0, |child| child.1)
                );
            }
        }
    }
    assert_eq!(index.unigram(8).count, 100 * (300 * 5_000_000_000 + 299 * 150));
    assert_eq!(index.unigram(8).distinct, 100);
    assert_eq!(index.context(&[10, 3]), None);
}

#[test]
fn the_checksum_over_a_hole_is_that_of_its_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hole.ngx");
    let mut writer = IndexWriter::new(&path, folder.path(), 3, 100, 1 << 20).unwrap();
    for first in 0..20 {
        (0..9).for_each(|w| writer.window(&[first, 4, w], 2).unwrap());
        writer.skip_records(u64::from(first) * 1001).unwrap();
    }
    writer.finish(common::FINGERPRINT, "{}", &mut common::quiet).unwrap();
    Index::open(&path, Backing::Copy).unwrap().verify().unwrap();
}
