//! Reading an index in place, from a memory map or any bytes.
//!
//! [`Index`] answers what the search asks: how often was this n-gram seen, what followed it. Nothing outside the reader
//! and the writer knows the layout. No content of the file can make it panic or read elsewhere: everything taken from the
//! file is checked against the section that it points into, and a broken part reads as an empty or a wrong one, which
//! `verify` finds.

use std::ops::Range;
use std::path::{Path, PathBuf};

pub use crate::backing::Backing;
use crate::backing::Bytes;
use crate::bits::prefetch;
pub use crate::candidates::Candidates;
use crate::error::{Error, FileProblem, Result};
use crate::format::{Kind, LINE_BYTES, ROW_BYTES, token_bits, u64_at};
use crate::header::Header;
use crate::lines::{Layout, Lines, Slot, Spot, state};
use crate::record::Record;
use crate::spread::Spread;

/// Counts of a single token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unigram {
    /// How often it was seen.
    pub count: u64,
    /// How many different tokens followed it.
    pub distinct: u64,
}

/// Where an n-gram would be, if it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    length: u8,
    spot: Spot,
}

/// An n-gram that was seen, and where its continuations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// How often.
    pub count: u64,
    follow: Follow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    /// So many different tokens, to be found as n-grams of their own.
    Distinct(u64),
    /// One token, always the same; its spread value.
    Single(u32),
    /// A record; 0 if nothing followed.
    Record(u64),
}

/// The n-grams of a middle length.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub lines: Lines,
    pub section: Range<usize>,
    pub wide: Range<usize>,
}

/// An open index.
pub struct Index {
    pub(crate) bytes: Bytes,
    path: PathBuf,
    header: Header,
    manifest: String,
    pub(crate) spread: Spread,
    pub(crate) unigrams: Range<usize>,
    /// By length from 2.
    pub(crate) tables: Vec<Table>,
    pub(crate) records: Range<usize>,
}

impl Index {
    /// Open a file. Checks the header, sizes and bounds, not the content: see [`Index::verify`].
    pub fn open(path: &Path, backing: Backing) -> Result<Self> {
        Self::new(Bytes::open(path, backing)?, path.to_owned())
    }

    /// An index from the bytes of a file.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::new(Bytes::Owned(bytes), PathBuf::from("<memory>"))
    }

    fn new(bytes: Bytes, path: PathBuf) -> Result<Self> {
        let name = path.display().to_string();
        let file = bytes.get();
        let header = Header::parse(file, &name)?;
        let fail = |expected: String, got: String| Error::File {
            path: name.clone(),
            problem: FileProblem::Corrupt,
            expected,
            got,
            remedy: "build or copy the index again",
        };
        let order = header.order;
        let bits = token_bits(header.vocab_size);
        let range = |kind, level| -> Result<(Range<usize>, u64)> {
            let section = header.section(kind, level, &name)?;
            let start = section.offset as usize;
            Ok((start..start + section.bytes as usize, section.parameters))
        };
        let (unigrams, _) = range(Kind::Unigrams, 1)?;
        if unigrams.len() as u64 != header.vocab_size.saturating_mul(ROW_BYTES as u64) {
            let expected = format!("{} unigrams", header.vocab_size);
            return Err(fail(expected, format!("{} bytes", unigrams.len())));
        }
        let mut tables = Vec::with_capacity(order - 2);
        for length in 2..order {
            let (section, parameters) = range(Kind::Lines, length)?;
            let layout = Layout::from_parameters(parameters);
            let lines = (section.len() / LINE_BYTES) as u64;
            let lines = layout.and_then(|layout| Lines::new(bits * length as u32, lines, layout));
            let Some(lines) = lines else {
                let expected = format!("lines of {length}-grams that fit {bits} bits a token");
                return Err(fail(
                    expected,
                    format!("{} bytes, parameters {parameters:#x}", section.len()),
                ));
            };
            let (wide, _) = range(Kind::Wide, length)?;
            tables.push(Table { lines, section, wide });
        }
        let (records, _) = range(Kind::Records, order)?;
        let (manifest, _) = range(Kind::Manifest, 0)?;
        let manifest = std::str::from_utf8(file.get(manifest).unwrap_or_default())
            .map_err(|error| fail("a manifest in UTF-8".to_owned(), error.to_string()))?
            .to_owned();
        Ok(Self {
            bytes,
            path,
            header,
            manifest,
            spread: Spread::new(bits),
            unigrams,
            tables,
            records,
        })
    }

    /// The file, or `<memory>`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sizes, fingerprint and the section table.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What the counts were made from, as JSON.
    pub fn manifest(&self) -> &str {
        &self.manifest
    }

    /// Longest n-gram counted.
    pub fn order(&self) -> usize {
        self.header.order
    }

    /// Token ids are smaller than this.
    pub fn vocab_size(&self) -> u64 {
        self.header.vocab_size
    }

    /// Windows counted, the sum of all unigram counts.
    pub fn windows(&self) -> u64 {
        self.header.windows
    }

    /// Distinct tokens seen.
    pub fn distinct_unigrams(&self) -> u64 {
        self.header.nodes[0]
    }

    /// Counts of a token; zeros if it was never seen or is not in the vocabulary.
    #[inline]
    pub fn unigram(&self, token: u32) -> Unigram {
        let (count, follow) = row(self.part(&self.unigrams), u64::from(token));
        let distinct = match self.header.order {
            2 => self.record(follow).map_or(0, |record| record.len()),
            _ => follow,
        };
        Unigram { count, distinct }
    }

    /// A token as a context of an index of order 2; None for other orders and for a token that was never seen.
    #[inline]
    pub fn root_node(&self, token: u32) -> Option<Node> {
        let (count, follow) = row(self.part(&self.unigrams), u64::from(token));
        (self.header.order == 2 && count > 0).then_some(Node {
            count,
            follow: Follow::Record(follow),
        })
    }

    /// Where an n-gram of 2 to order - 1 tokens would be. Computes only; None if there is none of that length or with
    /// these tokens.
    #[inline]
    pub fn place(&self, tokens: &[u32]) -> Option<Place> {
        let (last, context) = tokens.split_last()?;
        let table = self.tables.get(context.len().checked_sub(1)?)?;
        let spot = self.spot(table, self.key(context)?, *last)?;
        Some(Place {
            length: tokens.len() as u8,
            spot,
        })
    }

    /// Append the places of the continuations of a context, and ask for their lines.
    pub fn places_after(&self, context: &[u32], tokens: &[u32], places: &mut Vec<Option<Place>>) {
        let table = context.len().checked_sub(1).and_then(|i| self.tables.get(i));
        let (Some(table), Some(key)) = (table, self.key(context)) else {
            places.extend(tokens.iter().map(|_| None));
            return;
        };
        places.extend(tokens.iter().map(|token| {
            let spot = self.spot(table, key, *token)?;
            self.prefetch_byte(table.section.start + spot.home as usize * LINE_BYTES);
            Some(Place {
                length: context.len() as u8 + 1,
                spot,
            })
        }));
    }

    /// The tokens as one number; None if one is not in the vocabulary.
    #[inline]
    fn key(&self, tokens: &[u32]) -> Option<u128> {
        tokens.iter().try_fold(0_u128, |key, token| {
            let known = u64::from(*token) < self.header.vocab_size;
            known.then_some(key << self.spread.bits() | u128::from(*token))
        })
    }

    #[inline(always)]
    fn spot(&self, table: &Table, context: u128, token: u32) -> Option<Spot> {
        let known = u64::from(token) < self.header.vocab_size;
        known.then(|| table.lines.spot(context << self.spread.bits() | u128::from(token)))
    }

    /// Ask for the line of a place, so that it is there when [`Index::find`] reads it.
    #[inline]
    pub fn prefetch(&self, place: Place) {
        if let Some(table) = self.table(place.length) {
            self.prefetch_byte(table.section.start + place.spot.home as usize * LINE_BYTES);
        }
    }

    /// The n-gram at a place, if it was seen.
    #[inline]
    pub fn find(&self, place: Place) -> Option<Node> {
        let table = self.table(place.length)?;
        let slot = table.lines.find(self.part(&table.section), place.spot)?;
        Some(self.node(usize::from(place.length), table, slot))
    }

    /// Set `counts[i]` to how often the n-gram at the i-th place was seen, 0 if never or if there is no place. The places
    /// are of one length. Lines beyond an n-gram's own are asked for before the first of them is read.
    pub fn find_counts(&self, places: &[Option<Place>], counts: &mut [f32]) {
        const SPILLED: f32 = -1.0; // and the number of lines to look through, negative
        let Some(table) = places.iter().flatten().next().and_then(|place| self.table(place.length)) else {
            counts.fill(0.0);
            return;
        };
        let section = self.part(&table.section);
        let count = |slot: Slot| match slot.state {
            state::WIDE => row(self.part(&table.wide), slot.follow).0 as f32,
            _ => slot.count as f32,
        };
        let mut spilled = false;
        for (place, value) in places.iter().zip(&mut *counts) {
            let found = place.map_or(Ok(None), |place| table.lines.find_at_home(section, place.spot));
            *value = match (found, place) {
                (Ok(slot), _) => slot.map_or(0.0, count),
                (Err(spill), Some(place)) => {
                    spilled = true;
                    self.prefetch_byte(table.section.start + (place.spot.home + 1) as usize * LINE_BYTES);
                    SPILLED * spill as f32
                }
                (Err(_), None) => 0.0,
            };
        }
        if !spilled {
            return;
        }
        for (place, value) in places.iter().zip(counts) {
            if let Some(place) = place.filter(|_| *value < 0.0) {
                let slot = table.lines.find_spilled(section, place.spot, -*value as u64);
                *value = slot.map_or(0.0, count);
            }
        }
    }

    /// Ask for what follows a node.
    #[inline]
    pub fn prefetch_children(&self, node: &Node) {
        if let Follow::Record(offset) = node.follow {
            self.prefetch_byte(self.records.start.saturating_add(offset as usize));
        }
    }

    /// How many different tokens followed an n-gram.
    #[inline]
    pub fn distinct(&self, node: &Node) -> u64 {
        match node.follow {
            Follow::Distinct(distinct) => distinct,
            Follow::Single(_) => 1,
            Follow::Record(offset) => self.record(offset).map_or(0, |record| record.len()),
        }
    }

    /// For a node of length order - 1: set `counts[i]` to how often the i-th candidate followed it, 0 if never; returns
    /// how many different tokens followed.
    #[inline]
    pub fn child_counts(&self, node: &Node, candidates: &Candidates, counts: &mut [u64]) -> u64 {
        match node.follow {
            Follow::Record(offset) => match self.record(offset) {
                Some(record) => {
                    record.look_up(candidates, counts);
                    record.len()
                }
                None => {
                    counts.fill(0);
                    0
                }
            },
            Follow::Single(spread) => {
                counts.fill(0);
                if let Some(count) = candidates.position(spread).and_then(|i| counts.get_mut(i)) {
                    *count = node.count;
                }
                1
            }
            Follow::Distinct(distinct) => {
                counts.fill(0);
                distinct
            }
        }
    }

    /// How often an n-gram of any length was seen.
    pub fn count(&self, tokens: &[u32]) -> u64 {
        match tokens {
            [] => 0,
            [token] => self.unigram(*token).count,
            [context @ .., last] if tokens.len() == self.header.order => self.context(context).map_or(0, |node| {
                let (mut candidates, mut counts) = (Candidates::default(), [0]);
                candidates.set(self, &[*last]);
                self.child_counts(&node, &candidates, &mut counts);
                counts[0]
            }),
            _ => self.context(tokens).map_or(0, |node| node.count),
        }
    }

    /// The node of 2 to order - 1 tokens, or of one at order 2.
    pub fn context(&self, tokens: &[u32]) -> Option<Node> {
        match tokens {
            [token] => self.root_node(*token),
            _ => self.find(self.place(tokens)?),
        }
    }

    #[inline]
    pub(crate) fn part(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get().get(range.clone()).unwrap_or_default()
    }

    #[inline]
    fn table(&self, length: u8) -> Option<&Table> {
        self.tables.get(usize::from(length).wrapping_sub(2))
    }

    #[inline]
    pub(crate) fn record(&self, offset: u64) -> Option<Record<'_>> {
        (offset > 0).then(|| Record::at(self.part(&self.records), offset, self.spread.bits()))
    }

    #[inline]
    pub(crate) fn node(&self, length: usize, table: &Table, slot: Slot) -> Node {
        let (count, follow) = match slot.state {
            state::WIDE => row(self.part(&table.wide), slot.follow),
            _ => (slot.count, slot.follow),
        };
        let follow = match slot.state {
            state::SINGLE => Follow::Single(follow as u32),
            _ if length + 1 == self.header.order => Follow::Record(follow),
            _ => Follow::Distinct(follow),
        };
        Node { count, follow }
    }

    #[inline]
    fn prefetch_byte(&self, at: usize) {
        prefetch(self.bytes.get(), at);
    }
}

impl Node {
    pub(crate) fn new(count: u64, follow: Follow) -> Self {
        Self { count, follow }
    }

    pub(crate) fn follow(&self) -> Follow {
        self.follow
    }
}

impl Candidates {
    /// Take ascending tokens, each once, for look-ups in an index. Nothing is allocated when there was room for as many.
    #[inline]
    pub fn set(&mut self, index: &Index, tokens: &[u32]) {
        self.fill(index.spread, index.header.vocab_size, tokens);
    }
}

/// Count and follow of a row; zeros beyond the last one.
#[inline]
pub(crate) fn row(section: &[u8], number: u64) -> (u64, u64) {
    let Some(start) = usize::try_from(number).ok().and_then(|number| number.checked_mul(ROW_BYTES)) else {
        return (0, 0);
    };
    match section.get(start..).and_then(|rest| rest.first_chunk::<ROW_BYTES>()) {
        Some(row) => (u64_at(row, 0), u64_at(row, 8)),
        None => (0, 0),
    }
}
