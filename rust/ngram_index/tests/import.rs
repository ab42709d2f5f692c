//! Reading the public implementation's file.

#![allow(clippy::unwrap_used, clippy::panic)] // how a test fails

mod common;

use std::path::Path;

use ngram_index::error::{Error, FileProblem, Result};
use ngram_index::import_trie::Import;
use ngram_index::reader::{Backing, Index};

/// One node of a file: token, parent, frequency, children as (token, node).
type Node = (i32, u64, i32, Vec<(i32, u64)>);

fn file(order: u64, nodes: &[Node]) -> Vec<u8> {
    let mut out = [order.to_le_bytes(), (nodes.len() as u64).to_le_bytes()].concat();
    for (token, parent, frequency, children) in nodes {
        out.extend(token.to_le_bytes());
        out.extend(parent.to_le_bytes());
        out.extend(frequency.to_le_bytes());
        out.extend((children.len() as u64).to_le_bytes());
        for (token, node) in children {
            out.extend(token.to_le_bytes());
            out.extend(node.to_le_bytes());
        }
    }
    out
}

/// The n-grams of the document [7, 3, 7] at order 2.
fn nodes() -> Vec<Node> {
    vec![
        (0, 0, 0, vec![(7, 1), (3, 3)]),
        (7, 0, 2, vec![(3, 2)]),
        (3, 1, 1, vec![]),
        (3, 0, 1, vec![(7, 4)]),
        (7, 3, 1, vec![]),
    ]
}

fn import(bytes: &[u8], folder: &Path) -> Result<Index> {
    let (source, path) = (folder.join("in.trie"), folder.join("out.ngx"));
    std::fs::write(&source, bytes).unwrap();
    let import = Import {
        source: &source,
        path: &path,
        vocab_size: 10,
        fingerprint: common::FINGERPRINT,
        manifest: "{}",
        memory: 0,
    };
    import.run(&mut common::quiet)?;
    Index::open(&path, Backing::Copy)
}

fn problem(result: Result<Index>) -> FileProblem {
    match result {
        Err(Error::File { problem, .. }) => problem,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("imported"),
    }
}

#[test]
fn counts_are_those_of_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let index = import(&file(2, &nodes()), folder.path()).unwrap();
    index.verify().unwrap();
    let built = common::index(&[vec![7, 3, 7]], 2, 10);
    assert_eq!(index.header().nodes, built.header().nodes);
    assert_eq!(index.windows(), 3);
    assert_eq!(common::stored(&index), common::stored(&built));
}

#[test]
fn a_cut_file_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = file(2, &nodes());
    for length in 0..bytes.len() {
        assert_eq!(
            problem(import(&bytes[..length], folder.path())),
            FileProblem::Truncated,
            "at {length}"
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let longer = [bytes.as_slice(), &[0]].concat();
    assert_eq!(problem(import(&longer, folder.path())), FileProblem::Truncated);
}

#[test]
fn contradictions_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let corrupt = |change: &dyn Fn(&mut Vec<Node>)| {
        let mut nodes = nodes();
        change(&mut nodes);
        assert_eq!(problem(import(&file(2, &nodes), folder.path())), FileProblem::Corrupt);
    };
    corrupt(&|nodes| nodes[1].0 = 10); // beyond the vocabulary
    corrupt(&|nodes| nodes[1].0 = -1);
    corrupt(&|nodes| nodes[1].0 = 5); // its parent's list says 7
    corrupt(&|nodes| nodes[1].1 = 2); // a parent after it
    corrupt(&|nodes| nodes[1].2 = -5); // an overflow of the builder
    corrupt(&|nodes| nodes[1].2 = 0);
    corrupt(&|nodes| nodes[2].2 = 9); // more than its prefix
    corrupt(&|nodes| {
        nodes.push((4, 1, 2, vec![])); // 1 + 2 continuations of something seen twice
        nodes[1].3.push((4, 5));
    });
    corrupt(&|nodes| nodes[2].1 = 3); // not the parent that lists it
    corrupt(&|nodes| nodes[4].3.push((1, 1))); // too many children
    corrupt(&|nodes| nodes[3].3[0] = (7, 9)); // a child that is not there
    corrupt(&|nodes| nodes[3].3.clear());
    corrupt(&|nodes| nodes.truncate(1));
    corrupt(&|nodes| {
        nodes[0].3[1] = (7, 3); // the same n-gram twice
        nodes[3].0 = 7;
    });
    assert_eq!(problem(import(&file(6, &nodes()), folder.path())), FileProblem::Foreign);
    assert_eq!(problem(import(&file(1, &nodes()), folder.path())), FileProblem::Foreign);
}

#[test]
fn changed_bytes_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = file(2, &nodes());
    for at in 0..bytes.len() {
        for bit in [0, 3, 7] {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            if let Ok(index) = import(&bytes, folder.path()) {
                index.verify().unwrap();
            }
        }
    }
}
