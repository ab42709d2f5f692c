//! Reading the public implementation's `.trie` file into an index.
//!
//! Little-endian: u64 order, u64 node count, then for each node i32 token, u64 parent index, i32 frequency, u64 child
//! count, and for each child i32 token, u64 node index. Node 0 is the root. The file is read once, front to back; 24 to
//! 32 bytes a node are held until the index is written.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use crate::error::{Error, FileProblem, Result};
use crate::format::{MAX_ORDER, MIN_ORDER};
use crate::header::Header;
use crate::key::{Counter, Key, Packing};
use crate::progress::{Progress, Stage};
use crate::writer::IndexWriter;

const TICK: u64 = 1 << 16;
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes of a node without children; a file of n bytes cannot hold more than n / 24 nodes.
const MIN_NODE_BYTES: u64 = 24;
const REMEDY: &str = "copy or build the .trie file again";

/// Import `source` and write the index to `path`.
pub fn import_trie(
    source: &Path,
    path: &Path,
    vocab_size: u64,
    fingerprint: &str,
    manifest: &str,
    progress: &mut Progress,
) -> Result<Header> {
    let file = File::open(source).map_err(|error| Error::io("open", source, error))?;
    let bytes = file.metadata().map_err(|error| Error::io("open", source, error))?.len();
    let mut input = Input {
        reader: BufReader::with_capacity(BUFFER_BYTES, file),
        path: source,
        at: 0,
        bytes,
    };
    let order = input.u64()?;
    let nodes = input.u64()?;
    if !(MIN_ORDER as u64..=MAX_ORDER as u64).contains(&order) {
        let (expected, got) = (format!("order {MIN_ORDER} to {MAX_ORDER}"), format!("{order}"));
        return Err(input.fail(FileProblem::Foreign, expected, got));
    }
    if nodes == 0 || nodes > bytes / MIN_NODE_BYTES {
        let expected = format!("1 to {} nodes in {bytes} bytes", bytes / MIN_NODE_BYTES);
        return Err(input.fail(FileProblem::Truncated, expected, format!("{nodes}")));
    }
    let packing = Packing::new(order as usize, vocab_size)?;
    let tables = if packing.is_narrow() {
        tables::<u64>(&mut input, packing, nodes, path, progress)
    } else {
        tables::<u128>(&mut input, packing, nodes, path, progress)
    }?;
    tables.finish(fingerprint, manifest, progress)
}

/// Whether the lists of children say the same as the nodes about their parents, without holding them.
#[derive(Default)]
struct Links {
    children: u64,
    /// Sum of a hash of every link in a list, minus the sum over the nodes; 0 when they agree.
    balance: u64,
}

impl Links {
    fn hash(parent: u64, child: u64, token: i32) -> u64 {
        let mut x = parent.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ child.rotate_left(32) ^ u64::from(token as u32);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
}

#[derive(Clone, Copy)]
struct Node<K> {
    key: K,
    count: u32,
    level: u32,
}

fn tables<K: Key>(
    input: &mut Input,
    packing: Packing,
    total: u64,
    path: &Path,
    progress: &mut Progress,
) -> Result<IndexWriter> {
    let mut nodes: Vec<Node<K>> = Vec::with_capacity(total as usize);
    let mut links = Links::default();
    for index in 0..total {
        let node = read_node(input, packing, index, total, &nodes, &mut links)?;
        nodes.push(node);
        if index.is_multiple_of(TICK) {
            progress(Stage::Read, index, total)?;
        }
    }
    if links.children != total - 1 || links.balance != 0 {
        let expected = format!(
            "lists that hold each of {} nodes once, as a child of its parent",
            total - 1
        );
        return Err(input.fail(
            FileProblem::Corrupt,
            expected,
            format!("{} other children", links.children),
        ));
    }
    if input.at != input.bytes {
        let expected = format!("the end of the file after {} bytes", input.at);
        return Err(input.fail(FileProblem::Truncated, expected, format!("{} bytes", input.bytes)));
    }
    if total == 1 {
        return Err(input.fail(
            FileProblem::Corrupt,
            "at least one n-gram".to_owned(),
            "none".to_owned(),
        ));
    }
    progress(Stage::Sort, 0, total)?;
    nodes.sort_unstable_by_key(|node| node.key);
    let mut counter = Counter::new(packing, path)?;
    for (i, pair) in nodes.windows(2).enumerate() {
        if pair[0].key == pair[1].key {
            let digits = packing.digits(pair[0].key).map(|digit| i64::from(digit) - 1);
            let got = format!("the n-gram {digits:?} (-1: none) twice");
            return Err(input.fail(FileProblem::Corrupt, "each n-gram once".to_owned(), got));
        }
        counter.node(pair[1].key, u64::from(pair[1].count))?;
        if (i as u64).is_multiple_of(TICK) {
            progress(Stage::Count, i as u64, total)?;
        }
    }
    Ok(counter.finish())
}

fn read_node<K: Key>(
    input: &mut Input,
    packing: Packing,
    index: u64,
    total: u64,
    nodes: &[Node<K>],
    links: &mut Links,
) -> Result<Node<K>> {
    let start = input.at;
    let token = input.i32()?;
    let parent_index = input.u64()?;
    let frequency = input.i32()?;
    let count = input.u64()?;
    let fail = |expected: String, got: String| {
        Err(input.fail(
            FileProblem::Corrupt,
            format!("{expected} for node {index} at byte {start}"),
            got,
        ))
    };
    let node = if index == 0 {
        Node {
            key: K::ZERO,
            count: 0,
            level: 0,
        }
    } else {
        let Some(parent) = usize::try_from(parent_index).ok().and_then(|at| nodes.get(at)) else {
            return fail(format!("a parent before it, below {index}"), format!("{parent_index}"));
        };
        if token < 0 || token as u64 >= packing.vocab_size {
            return fail(
                format!("a token below the vocabulary size {}", packing.vocab_size),
                format!("{token}"),
            );
        }
        if frequency <= 0 {
            return fail("a positive frequency".to_owned(), format!("{frequency}"));
        }
        if parent.level > 0 && frequency as u32 > parent.count {
            return fail(
                format!("a frequency of at most its parent's {}", parent.count),
                format!("{frequency}"),
            );
        }
        if parent.level as usize >= packing.order {
            return fail(
                format!("a depth of at most {}", packing.order),
                format!("{}", parent.level + 1),
            );
        }
        let link = Links::hash(parent_index, index, token);
        links.balance = links.balance.wrapping_sub(link);
        Node {
            key: packing.append(parent.key, parent.level as usize, token as u32),
            count: frequency as u32,
            level: parent.level + 1,
        }
    };
    links.children = links.children.saturating_add(count);
    if links.children >= total {
        return fail(
            format!("at most {} children in all lists", total - 1),
            format!("{} so far", links.children),
        );
    }
    for _ in 0..count {
        let token = input.i32()?;
        let child = input.u64()?;
        links.balance = links.balance.wrapping_add(Links::hash(index, child, token));
        if child == 0 || child >= total {
            let (expected, got) = (
                format!("children 1 to {} of node {index}", total - 1),
                format!("{child}"),
            );
            return Err(input.fail(FileProblem::Corrupt, expected, got));
        }
    }
    Ok(node)
}

struct Input<'a> {
    reader: BufReader<File>,
    path: &'a Path,
    at: u64,
    bytes: u64,
}

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        match self.reader.read_exact(&mut bytes) {
            Ok(()) => {
                self.at += N as u64;
                Ok(bytes)
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                let expected = format!("{N} more bytes at byte {}", self.at);
                Err(self.fail(
                    FileProblem::Truncated,
                    expected,
                    format!("the end of {} bytes", self.bytes),
                ))
            }
            Err(error) => Err(Error::io("read", self.path, error)),
        }
    }

    fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn i32(&mut self) -> Result<i32> {
        self.take().map(i32::from_le_bytes)
    }

    fn fail(&self, problem: FileProblem, expected: String, got: String) -> Error {
        Error::File {
            path: self.path.display().to_string(),
            problem,
            expected,
            got,
            remedy: REMEDY,
        }
    }
}
