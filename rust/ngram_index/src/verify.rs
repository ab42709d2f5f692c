//! Checking an index completely: checksums, gaps, sorted lists, counts that add up.

use std::ops::Range;

use crate::error::{Error, FileProblem, Result};
use crate::format::Kind;
use crate::header::Header;
use crate::reader::{Index, section_bytes};

impl Index {
    /// Check every byte: checksums, zero gaps, sorted lists, counts that add up. Reads the whole file.
    pub fn verify(&self) -> Result<()> {
        let file = self.bytes.get();
        self.verify_sections(file)?;
        let mut windows = 0_u64;
        let mut distinct = 0_u64;
        for token in 0..self.vocab_size() {
            let count = self.levels[0].counts.u64(file, token);
            windows = windows.saturating_add(count);
            distinct += u64::from(count > 0);
        }
        if windows != self.windows() || distinct != self.distinct_unigrams() {
            let expected = format!("{} windows of {} tokens", self.windows(), self.distinct_unigrams());
            return Err(self.corrupt(expected, format!("{windows} of {distinct}")));
        }
        for level in 1..self.order() {
            self.verify_level(file, level)?;
        }
        Ok(())
    }

    fn verify_sections(&self, file: &[u8]) -> Result<()> {
        let header = Header::encoded_len(&self.header().fingerprint, self.header().sections.len());
        let mut sections = self.header().sections.clone();
        sections.sort_by_key(|section| section.offset);
        let mut end = header as u64;
        for section in &sections {
            let name = format!("section {} of level {}", Kind::name(section.kind), section.level);
            if section.offset < end {
                return Err(self.corrupt(format!("{name} at {end} or later"), format!("{}", section.offset)));
            }
            self.verify_gap(file, end..section.offset)?;
            let crc = crc32fast::hash(section_bytes(file, section));
            if crc != section.crc {
                return Err(self.corrupt(
                    format!("{name} with checksum {:08x}", section.crc),
                    format!("{crc:08x}"),
                ));
            }
            end = section.offset + section.bytes;
        }
        self.verify_gap(file, end..file.len() as u64)
    }

    fn verify_gap(&self, file: &[u8], gap: Range<u64>) -> Result<()> {
        let bytes = file.get(gap.start as usize..gap.end as usize).unwrap_or_default();
        match bytes.iter().position(|byte| *byte != 0) {
            Some(at) => {
                let expected = format!("zero at byte {}", gap.start + at as u64);
                Err(self.corrupt(expected, format!("{}", bytes[at])))
            }
            None => Ok(()),
        }
    }

    fn verify_level(&self, file: &[u8], level: usize) -> Result<()> {
        let (parents, next) = (self.levels[level - 1], self.levels[level]);
        let mut end = 0;
        for index in 0..parents.counts.items {
            let start = parents.child_starts.u64(file, index);
            let stop = parents.child_starts.u64(file, index + 1);
            if start != end || stop < start || stop > next.counts.items {
                let expected = format!("children of {level}-gram {index} to start at {end}");
                return Err(self.corrupt(expected, format!("{start} to {stop} of {}", next.counts.items)));
            }
            end = stop;
            let mut seen = 0_u64;
            for at in start..stop {
                let token = next.tokens.u32(file, at);
                let sorted = at == start || next.tokens.u32(file, at - 1) < token;
                let count = next.counts.u64(file, at);
                seen = seen.saturating_add(count);
                if !sorted || u64::from(token) >= self.vocab_size() || count == 0 {
                    let expected = format!("{}-gram {at} in order, in the vocabulary and seen", level + 1);
                    return Err(self.corrupt(expected, format!("token {token} with count {count}")));
                }
            }
            let count = parents.counts.u64(file, index);
            if seen > count {
                let expected = format!("at most {count} continuations of {level}-gram {index}");
                return Err(self.corrupt(expected, format!("{seen}")));
            }
        }
        if end != next.counts.items {
            return Err(self.corrupt(
                format!("{} {}-grams in lists", next.counts.items, level + 1),
                format!("{end}"),
            ));
        }
        Ok(())
    }

    fn corrupt(&self, expected: String, got: String) -> Error {
        Error::File {
            path: self.path().display().to_string(),
            problem: FileProblem::Corrupt,
            expected,
            got,
            remedy: "build or copy the index again",
        }
    }
}
