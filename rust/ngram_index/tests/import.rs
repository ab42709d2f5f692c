//! Reading the public implementation's file.

#![allow(clippy::unwrap_used, clippy::panic)] // how a test fails

mod common;

use std::path::Path;

use ngram_index::error::{Error, FileProblem, Result};
use ngram_index::import_trie::Import;
use ngram_index::reader::{Backing, Index};
use proptest::prelude::*;

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

/// The nodes of some documents in the order in which they were first seen.
fn trie(documents: &[Vec<u32>], order: usize) -> Vec<Node> {
    let mut nodes: Vec<Node> = vec![(0, 0, 0, vec![])];
    for document in documents {
        for start in 0..document.len() {
            let mut at = 0;
            for &token in document[start..].iter().take(order) {
                let known = nodes[at].3.iter().find(|(listed, _)| *listed == token as i32);
                at = match known {
                    Some((_, node)) => *node as usize,
                    None => {
                        let new = nodes.len();
                        nodes[at].3.push((token as i32, new as u64));
                        nodes.push((token as i32, at as u64, 0, vec![]));
                        new
                    }
                };
                nodes[at].2 += 1;
            }
        }
    }
    nodes
}

fn documents() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(0_u32..6, 1..12), 1..5)
}

/// What may happen to a file.
#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Number(usize, u64),
    Cut(usize),
    Repeat(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = 0_usize..1 << 16;
    let number = prop_oneof![
        0_u64..8,
        Just(u64::MAX),
        Just(1 << 31),
        Just(1 << 32),
        Just(1 << 63),
        any::<u64>()
    ];
    prop_oneof![
        4 => (at.clone(), any::<u8>()).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        4 => (at.clone(), number).prop_map(|(at, number)| Damage::Number(at, number)),
        1 => at.clone().prop_map(Damage::Cut),
        1 => (at.clone(), at).prop_map(|(from, len)| Damage::Repeat(from, len)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    let len = bytes.len().max(1);
    match damage {
        Damage::Flip(at, bits) => {
            if let Some(byte) = bytes.get_mut(at % len) {
                *byte ^= bits;
            }
        }
        // Fields start at multiples of four.
        Damage::Number(at, number) => {
            let at = at % len / 4 * 4;
            let end = (at + 8).min(bytes.len());
            bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
        }
        Damage::Cut(at) => bytes.truncate(at % len),
        Damage::Repeat(from, count) => {
            let from = from % len;
            let end = (from + count % 80).min(bytes.len());
            bytes.extend_from_within(from..end);
        }
    }
}

proptest! {
    #![proptest_config(common::cases(200))]

    #[test]
    fn a_trie_gives_the_index_of_its_documents((documents, order) in (documents(), 2_usize..=5)) {
        let folder = tempfile::tempdir().unwrap();
        let index = import(&file(order as u64, &trie(&documents, order)), folder.path()).unwrap();
        index.verify().unwrap();
        prop_assert_eq!(common::stored(&index), common::naive(&documents, order));
        prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn damage_is_an_error_or_another_sound_index(
        documents in documents(), order in 2_usize..=5, damages in prop::collection::vec(damage(), 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = file(order as u64, &trie(&documents, order));
        damages.iter().for_each(|damage| apply(&mut bytes, damage));
        match import(&bytes, folder.path()) {
            Ok(index) => index.verify().unwrap(),
            Err(Error::File { .. } | Error::InvalidArgument { .. }) => {
                prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
            }
            Err(other) => panic!("{other}"),
        }
    }
}
