//! Writing an index from sorted n-grams, in bounded memory.
//!
//! n-grams come in ascending order, so those that continue one another are neighbours: each is open until one comes that
//! does not continue it, then its count and continuations are complete. The longest go into records at once, those of
//! middle length are sorted again by their lines in the hash table.

mod output;
mod prune;
mod table;

use std::path::{Path, PathBuf};

pub use prune::Prune;

use crate::error::{Error, Result};
use crate::format::{Kind, MAX_FINGERPRINT, MAX_ORDER, MAX_VOCAB, MIN_ORDER, RECORDS_PADDING, token_bits};
use crate::header::Header;
use crate::lines::{Slot, state};
use crate::progress::{Progress, Stage};
use crate::record::Encoder;
use crate::spread::Spread;
use output::Output;
use table::{MAX_SINGLE_COUNT, TableWriter};

/// An n-gram whose continuations are still coming.
#[derive(Clone, Copy, Default)]
struct Open {
    token: u32,
    count: u64,
    /// Sum over all continuations.
    followed: u64,
    /// Sum over the continuations that stay, and their number.
    kept: u64,
    distinct: u64,
}

/// Writes one index. Nothing is left behind unless it is finished.
pub struct IndexWriter {
    path: PathBuf,
    order: usize,
    vocab_size: u64,
    spread: Spread,
    prune: Prune,
    output: Output,
    tables: Vec<TableWriter>,
    /// Count and follow of each token.
    unigrams: Vec<(u64, u64)>,
    open: [Open; MAX_ORDER],
    depth: usize,
    /// Continuations of the open n-gram of length order - 1: spread token and count.
    children: Vec<(u32, u64)>,
    encoder: Encoder,
    windows: u64,
    nodes: [u64; MAX_ORDER],
}

impl IndexWriter {
    /// Start the index that will be `path`. `scratch`: an existing folder for temporary files; `memory`: bytes that sorting
    /// may use, besides 16 for each token of the vocabulary.
    pub fn new(path: &Path, scratch: &Path, order: usize, vocab_size: u64, memory: usize) -> Result<Self> {
        check_shape(order, vocab_size)?;
        let bits = token_bits(vocab_size);
        let tables = (2..order).map(|length| TableWriter::new(bits * length as u32, scratch, memory / (order - 2)));
        let mut output = Output::create(path)?;
        output.write(&[0])?; // so that no record is at byte 0
        Ok(Self {
            path: path.to_owned(),
            order,
            vocab_size,
            spread: Spread::new(bits),
            prune: Prune::NONE,
            output,
            tables: tables.collect(),
            unigrams: vec![(0, 0); vocab_size as usize],
            open: [Open::default(); MAX_ORDER],
            depth: 0,
            children: Vec::new(),
            encoder: Encoder::default(),
            windows: 0,
            nodes: [0; MAX_ORDER],
        })
    }

    /// Leave out rare n-grams. To be said before the first n-gram.
    pub fn prune(&mut self, prune: Prune) -> Result<()> {
        prune.check(self.order)?;
        self.prune = prune;
        Ok(())
    }

    /// `count` windows of 1 to order tokens (shorter at the end of a document): counted for the n-gram and each of its
    /// prefixes. They come in ascending order, a prefix before its continuations, equal ones in a row.
    #[inline]
    pub fn window(&mut self, tokens: &[u32], count: u64) -> Result<()> {
        let shared = self.advance(tokens)?;
        for open in &mut self.open[..shared] {
            open.count += count;
        }
        self.open_rest(tokens, shared, count);
        Ok(())
    }

    /// An n-gram with its own count, after its prefixes, each once, in ascending order. Not to be mixed with windows.
    #[inline]
    pub fn node(&mut self, tokens: &[u32], count: u64) -> Result<()> {
        let shared = self.advance(tokens)?;
        if shared + 1 != tokens.len() {
            let message = format!("{tokens:?} came twice or before its prefixes");
            return Err(Error::invalid("ngrams", message));
        }
        self.open_rest(tokens, shared, count);
        Ok(())
    }

    /// Leave a hole of zeros between records, as a file of another size would have it.
    #[doc(hidden)]
    pub fn skip_records(&mut self, bytes: u64) -> Result<()> {
        self.output.skip(bytes)
    }

    /// Close what the next n-gram does not continue; returns how many tokens it shares with what stays open.
    #[inline]
    fn advance(&mut self, tokens: &[u32]) -> Result<usize> {
        let open = self.open[..self.depth].iter();
        let shared = open.zip(tokens).take_while(|(open, token)| open.token == **token).count();
        let ascends = match (self.open[..self.depth].get(shared), tokens.get(shared)) {
            (Some(open), Some(token)) => open.token < *token,
            (Some(_), None) => false,
            _ => true,
        };
        let known = tokens.iter().all(|token| u64::from(*token) < self.vocab_size);
        if tokens.is_empty() || tokens.len() > self.order || !ascends || !known {
            return Err(self.refused(tokens));
        }
        while self.depth > shared {
            self.close()?;
        }
        Ok(shared)
    }

    #[cold]
    fn refused(&self, tokens: &[u32]) -> Error {
        let last: Vec<u32> = self.open[..self.depth].iter().map(|open| open.token).collect();
        let message = format!(
            "must be 1 to {} tokens below {} in ascending order, got {tokens:?} after {last:?}",
            self.order, self.vocab_size
        );
        Error::invalid("ngrams", message)
    }

    #[inline]
    fn open_rest(&mut self, tokens: &[u32], shared: usize, count: u64) {
        for (open, &token) in self.open[shared..].iter_mut().zip(&tokens[shared..]) {
            *open = Open {
                token,
                count,
                ..Open::default()
            };
        }
        self.depth = tokens.len();
    }

    /// Close the longest open n-gram.
    fn close(&mut self) -> Result<()> {
        let length = self.depth;
        let Open {
            token,
            count,
            followed,
            kept,
            distinct,
        } = self.open[length - 1];
        if followed > count {
            let tokens: Vec<u32> = self.open[..length].iter().map(|open| open.token).collect();
            let message = format!("{tokens:?} was seen {count} times, but its continuations {followed} times");
            return Err(Error::invalid("ngrams", message));
        }
        self.depth -= 1;
        if let Some(parent) = length.checked_sub(2).and_then(|at| self.open.get_mut(at)) {
            parent.followed = parent.followed.saturating_add(count);
        }
        let count = if self.prune.renormalise && distinct > 0 {
            kept
        } else {
            count
        };
        if count < self.prune.min_counts[length - 1].max(1) {
            return Ok(());
        }
        self.nodes[length - 1] += 1;
        if let Some(parent) = length.checked_sub(2).and_then(|at| self.open.get_mut(at)) {
            parent.kept += count;
            parent.distinct += 1;
        }
        if length == self.order {
            self.children.push((self.spread.spread(token), count));
            return Ok(());
        }
        let slot = if length + 1 == self.order {
            self.end_list(count, length)?
        } else {
            Slot {
                state: state::PLAIN,
                count,
                follow: distinct,
            }
        };
        if length == 1 {
            self.windows += count;
            self.unigrams[token as usize] = (count, slot.follow);
            return Ok(());
        }
        let bits = self.spread.bits();
        let key = self.open[..length].iter().fold(0_u128, |key, open| key << bits | u128::from(open.token));
        self.tables[length - 2].push(key, slot)
    }

    /// The continuations of an n-gram of length order - 1 are complete.
    fn end_list(&mut self, count: u64, length: usize) -> Result<Slot> {
        let follow = match self.children[..] {
            [] => 0,
            [(spread, seen)] if seen == count && count <= MAX_SINGLE_COUNT && length > 1 => {
                self.children.clear();
                return Ok(Slot {
                    state: state::SINGLE,
                    count,
                    follow: u64::from(spread),
                });
            }
            _ => {
                self.children.sort_unstable();
                let offset = self.output.section_len();
                self.output.write(self.encoder.encode(&self.children, self.spread.bits()))?;
                self.children.clear();
                offset
            }
        };
        Ok(Slot {
            state: state::PLAIN,
            count,
            follow,
        })
    }

    /// Write the rest and rename the file to its final name.
    pub fn finish(mut self, fingerprint: &str, manifest: &str, progress: &mut Progress) -> Result<Header> {
        if fingerprint.len() > MAX_FINGERPRINT {
            let message = format!("must have at most {MAX_FINGERPRINT} bytes, got {}", fingerprint.len());
            return Err(Error::invalid("fingerprint", message));
        }
        while self.depth > 0 {
            self.close()?;
        }
        self.output.write(&[0; RECORDS_PADDING as usize])?;
        self.output.end_section(Kind::Records, self.order, 0)?;
        for (i, table) in self.tables.into_iter().enumerate() {
            table.write(i + 2, &mut self.output, progress)?;
        }
        for (count, follow) in &self.unigrams {
            self.output.write(&count.to_le_bytes())?;
            self.output.write(&follow.to_le_bytes())?;
        }
        self.output.end_section(Kind::Unigrams, 1, 0)?;
        self.output.write(manifest.as_bytes())?;
        self.output.end_section(Kind::Manifest, 0, 0)?;
        progress(Stage::Write, 0, 1)?;
        let header = Header {
            order: self.order,
            vocab_size: self.vocab_size,
            windows: self.windows,
            file_bytes: 0,
            nodes: self.nodes,
            fingerprint: fingerprint.to_owned(),
            sections: Vec::new(),
        };
        let header = self.output.finish(&self.path, header)?;
        progress(Stage::Write, 1, 1)?;
        Ok(header)
    }
}

/// Whether an index can have this order and vocabulary.
pub(crate) fn check_shape(order: usize, vocab_size: u64) -> Result<()> {
    if !(MIN_ORDER..=MAX_ORDER).contains(&order) {
        let message = format!("must be {MIN_ORDER} to {MAX_ORDER}, got {order}");
        return Err(Error::invalid("order", message));
    }
    if !(1..=MAX_VOCAB).contains(&vocab_size) {
        let message = format!("must be 1 to {MAX_VOCAB}, got {vocab_size}");
        return Err(Error::invalid("vocab_size", message));
    }
    // A window is one integer of 128 bits while it is counted.
    let bits = u128::BITS / order as u32;
    if u64::BITS - vocab_size.leading_zeros() > bits {
        let message = format!(
            "must be less than {} at order {order}, got {vocab_size}; lower the order",
            1_u64 << bits
        );
        return Err(Error::invalid("vocab_size", message));
    }
    Ok(())
}
