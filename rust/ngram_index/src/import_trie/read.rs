//! The nodes of the file, checked as far as one can without knowing their n-grams.

use super::input::Input;
use super::links::Links;
use super::rows::{Child, Named};
use crate::builder::key::{Key, Packing};
use crate::error::{FileProblem, Result};
use crate::progress::{Progress, Stage};
use crate::sorter::Sorter;

const TICK: u64 = 1 << 16;

/// Sort all nodes: single tokens by index, the others by parent.
pub(super) fn read<K: Key>(
    input: &mut Input,
    packing: Packing,
    total: u64,
    (named, children): (&mut Sorter<Named<K>>, &mut Sorter<Child>),
    progress: &mut Progress,
) -> Result<()> {
    let mut links = Links::default();
    for index in 0..total {
        let child = node(input, packing, index, total, &mut links)?;
        if index > 0 {
            if child.parent == 0 {
                let key = packing.append(K::ZERO, 0, child.token);
                named.push(Named {
                    index,
                    key,
                    count: child.count,
                })?;
            } else {
                children.push(child)?;
            }
        }
        if index.is_multiple_of(TICK) {
            progress(Stage::Read, index, total)?;
        }
    }
    progress(Stage::Read, total, total)?;
    if !links.agree(total - 1) {
        let expected = format!(
            "lists that hold each of {} nodes once, as a child of its parent",
            total - 1
        );
        return Err(input.corrupt(expected, format!("{} other children", links.listed)));
    }
    if input.at != input.bytes {
        let expected = format!("the end of the file after {} bytes", input.at);
        return Err(input.fail(FileProblem::Truncated, expected, format!("{} bytes", input.bytes)));
    }
    if total == 1 {
        return Err(input.corrupt("at least one n-gram".to_owned(), "none".to_owned()));
    }
    Ok(())
}

fn node(input: &mut Input, packing: Packing, index: u64, total: u64, links: &mut Links) -> Result<Child> {
    let start = input.at;
    let token = input.i32()?;
    let parent = input.u64()?;
    let frequency = input.i32()?;
    let count = input.u64()?;
    let fail =
        |expected: String, got: String| Err(input.corrupt(format!("{expected} for node {index} at byte {start}"), got));
    if index > 0 {
        if parent >= index {
            return fail(format!("a parent before it, below {index}"), format!("{parent}"));
        }
        if token < 0 || token as u64 >= packing.vocab_size {
            let expected = format!("a token below the vocabulary size {}", packing.vocab_size);
            return fail(expected, format!("{token}"));
        }
        if frequency <= 0 {
            return fail("a positive frequency".to_owned(), format!("{frequency}"));
        }
        links.node(parent, index, token);
    }
    links.listed = links.listed.saturating_add(count);
    if links.listed >= total {
        let expected = format!("at most {} children in all lists", total - 1);
        return fail(expected, format!("{} so far", links.listed));
    }
    for _ in 0..count {
        let token = input.i32()?;
        let child = input.u64()?;
        links.entry(index, child, token);
        if child == 0 || child >= total {
            let expected = format!("children 1 to {} of node {index}", total - 1);
            return Err(input.corrupt(expected, format!("{child}")));
        }
    }
    Ok(Child {
        parent,
        index,
        token: token as u32,
        count: frequency as u32,
    })
}
