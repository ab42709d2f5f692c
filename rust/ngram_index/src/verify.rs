//! Checking an index completely: checksums, gaps, places, lists, counts that add up.

use std::ops::Range;

use crate::error::Result;
use crate::format::{Kind, Section};
use crate::header::Header;
use crate::progress::{Progress, Stage};
use crate::reader::{Follow, Index, Node};

/// Bytes checked between two calls of the progress function.
const STEP: usize = 1 << 24;
/// Lines checked between two calls of the progress function.
const LINE_STEP: u64 = 1 << 18;

impl Index {
    /// Check every byte: checksums, zero gaps, n-grams in their places, sorted lists, counts that add up. Reads the whole
    /// file.
    pub fn verify(&self) -> Result<()> {
        self.verify_with(&mut |_, _, _| Ok(()))
    }

    /// As [`Index::verify`], telling how far it is.
    pub fn verify_with(&self, progress: &mut Progress) -> Result<()> {
        let total: u64 = (1..self.order()).map(|length| self.parts(length)).sum();
        self.verify_sections(progress)?;
        let mut done = 0;
        let mut lists = 0;
        for length in 1..self.order() {
            lists = self.verify_length(length, &mut done, total, progress)?;
        }
        let expected = self.header().nodes[self.order() - 1];
        if lists != expected {
            return Err(self.corrupt(
                format!("{expected} {}-grams in lists", self.order()),
                format!("{lists}"),
            ));
        }
        progress(Stage::Check, total, total)
    }

    fn verify_sections(&self, progress: &mut Progress) -> Result<()> {
        let file = self.bytes.get();
        let header = Header::encoded_len(&self.header().fingerprint, self.header().sections.len());
        let mut sections = self.header().sections.clone();
        sections.sort_by_key(|section| section.offset);
        let mut end = header as u64;
        for section in &sections {
            let name = format!("section {} of level {}", Kind::name(section.kind), section.level);
            if section.offset < end {
                return Err(self.corrupt(format!("{name} at {end} or later"), format!("{}", section.offset)));
            }
            self.verify_gap(end..section.offset)?;
            let mut crc = crc32fast::Hasher::new();
            for chunk in section_bytes(file, section).chunks(STEP) {
                crc.update(chunk);
                progress(Stage::Checksum, section.offset, file.len() as u64)?;
            }
            let crc = crc.finalize();
            if crc != section.crc {
                return Err(self.corrupt(
                    format!("{name} with checksum {:08x}", section.crc),
                    format!("{crc:08x}"),
                ));
            }
            end = section.offset + section.bytes;
        }
        self.verify_gap(end..file.len() as u64)?;
        progress(Stage::Checksum, file.len() as u64, file.len() as u64)
    }

    fn verify_gap(&self, gap: Range<u64>) -> Result<()> {
        let bytes = self.bytes.get().get(gap.start as usize..gap.end as usize).unwrap_or_default();
        match bytes.iter().position(|byte| *byte != 0) {
            Some(at) => {
                let expected = format!("zero at byte {}", gap.start + at as u64);
                Err(self.corrupt(expected, format!("{}", bytes[at])))
            }
            None => Ok(()),
        }
    }

    /// Check the n-grams of a length below the order; returns how many continuations are in lists.
    fn verify_length(&self, length: usize, done: &mut u64, total: u64, progress: &mut Progress) -> Result<u64> {
        let (mut nodes, mut sum, mut lists) = (0_u64, 0_u64, 0_u64);
        // What the continuations of each token add up to.
        let mut followed = vec![(0_u64, 0_u64); if length == 2 { self.vocab_size() as usize } else { 0 }];
        let parts = self.parts(length);
        for start in (0..parts).step_by(LINE_STEP as usize) {
            progress(Stage::Check, *done + start, total)?;
            self.for_each_node(length, start..start.saturating_add(LINE_STEP), &mut |tokens, node| {
                nodes += 1;
                sum = sum.saturating_add(node.count);
                lists += self.verify_children(tokens, &node)?;
                if length == 1 {
                    return Ok(());
                }
                self.verify_place(tokens, &node)?;
                if let Some(followed) = tokens.first().and_then(|first| followed.get_mut(*first as usize)) {
                    *followed = (followed.0.saturating_add(node.count), followed.1 + 1);
                }
                Ok(())
            })?;
        }
        *done += parts;
        for (token, &(count, distinct)) in followed.iter().enumerate() {
            let unigram = self.unigram(token as u32);
            if count > unigram.count || distinct != unigram.distinct {
                let expected = format!(
                    "at most {} windows in {} bigrams of token {token}",
                    unigram.count, unigram.distinct
                );
                return Err(self.corrupt(expected, format!("{count} in {distinct}")));
            }
        }
        if nodes != self.header().nodes[length - 1] {
            return Err(self.corrupt(
                format!("{} {length}-grams", self.header().nodes[length - 1]),
                format!("{nodes}"),
            ));
        }
        if length == 1 && sum != self.windows() {
            return Err(self.corrupt(format!("{} windows", self.windows()), format!("{sum}")));
        }
        Ok(lists)
    }

    fn verify_place(&self, tokens: &[u32], node: &Node) -> Result<()> {
        if node.count == 0 || self.context(tokens) != Some(*node) {
            return Err(self.corrupt(
                format!("the n-gram {tokens:?} once, in its place and seen"),
                format!("{node:?}"),
            ));
        }
        let parent = self.count(&tokens[..tokens.len() - 1]);
        if node.count > parent {
            let expected = format!("a count of at most {parent} for the n-gram {tokens:?}");
            return Err(self.corrupt(expected, format!("{}", node.count)));
        }
        Ok(())
    }

    /// Check the list of continuations of an n-gram; returns its length.
    fn verify_children(&self, tokens: &[u32], node: &Node) -> Result<u64> {
        let Follow::Record(offset) = node.follow() else {
            let single = matches!(node.follow(), Follow::Single(_));
            if let Follow::Single(spread) = node.follow() {
                let token = self.spread.token(spread);
                if u64::from(token) >= self.vocab_size() || self.spread.spread(token) != spread {
                    let expected = format!("a continuation of {tokens:?} in the vocabulary");
                    return Err(self.corrupt(expected, format!("spread token {spread}")));
                }
            }
            return Ok(u64::from(single));
        };
        let Some(record) = self.record(offset) else {
            return Ok(0);
        };
        let mut seen = 0_u64;
        let mut last = None;
        for (spread, count) in record.iter() {
            let known = u64::from(self.spread.token(spread)) < self.vocab_size();
            if !known || count == 0 || last.is_some_and(|last| last >= spread) {
                let expected = format!("continuations of {tokens:?} in order, in the vocabulary and seen");
                return Err(self.corrupt(expected, format!("spread token {spread}, count {count}")));
            }
            last = Some(spread);
            seen = seen.saturating_add(count);
        }
        if seen > node.count || record.len() == 0 {
            let expected = format!("1 to {} continuations of {tokens:?}", node.count);
            return Err(self.corrupt(expected, format!("{seen}")));
        }
        Ok(record.len())
    }
}

fn section_bytes<'a>(file: &'a [u8], section: &Section) -> &'a [u8] {
    let end = section.offset.saturating_add(section.bytes);
    file.get(section.offset as usize..end as usize).unwrap_or_default()
}
