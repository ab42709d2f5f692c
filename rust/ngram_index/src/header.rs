//! The header of an `.ngx` file: writing it, and reading it without trusting it.

use crate::error::{Error, FileProblem, Result};
use crate::format::{
    BYTE_ORDER_MARK, ENCODING, FIRST_SECTION, Kind, MAGIC, MAX_FINGERPRINT, MAX_ORDER, MAX_VOCAB, MIN_ORDER,
    SECTION_ALIGNMENT, Section, VERSION, u32_at, u64_at,
};

const FIXED_BYTES: usize = 104;
const CRC_AT: usize = 24;
const SECTION_BYTES: usize = 48;
const MAX_SECTIONS: usize = 64;
const REBUILD: &str = "build or copy the index again";

/// Everything before the first section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Longest n-gram counted.
    pub order: usize,
    /// Token ids are smaller than this.
    pub vocab_size: u64,
    /// Windows counted, the sum of all unigram counts.
    pub windows: u64,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// Distinct n-grams by length from 1.
    pub nodes: [u64; MAX_ORDER],
    /// Fingerprint of the tokenizer's vocabulary.
    pub fingerprint: String,
    /// Where everything else is.
    pub sections: Vec<Section>,
}

impl Header {
    /// Bytes of a header with this fingerprint and number of sections.
    pub(crate) fn encoded_len(fingerprint: &str, sections: usize) -> usize {
        FIXED_BYTES + fingerprint.len().next_multiple_of(8) + sections * SECTION_BYTES
    }

    /// The header as it stands in the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let len = Self::encoded_len(&self.fingerprint, self.sections.len());
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&BYTE_ORDER_MARK.to_le_bytes());
        out.extend_from_slice(&(len as u64).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(self.order as u32).to_le_bytes());
        for value in [self.vocab_size, self.windows, self.file_bytes] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        for nodes in self.nodes {
            out.extend_from_slice(&nodes.to_le_bytes());
        }
        out.extend_from_slice(&(self.sections.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.fingerprint.len() as u32).to_le_bytes());
        out.extend_from_slice(self.fingerprint.as_bytes());
        out.resize(FIXED_BYTES + self.fingerprint.len().next_multiple_of(8), 0);
        for section in &self.sections {
            for value in [section.kind, section.level, section.encoding, section.crc] {
                out.extend_from_slice(&value.to_le_bytes());
            }
            for value in [section.offset, section.bytes, section.items, section.parameters] {
                out.extend_from_slice(&value.to_le_bytes());
            }
        }
        let crc = header_crc(&out);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Read and check the header of a file of these bytes; `path` is for messages only.
    pub(crate) fn parse(file: &[u8], path: &str) -> Result<Self> {
        let fail = |problem, expected: String, got: String, remedy| Error::File {
            path: path.to_owned(),
            problem,
            expected,
            got,
            remedy,
        };
        let corrupt = |expected: String, got: String| fail(FileProblem::Corrupt, expected, got, REBUILD);
        if file.get(..8) != Some(&MAGIC) {
            let got = format!("{:02x?}", &file[..file.len().min(8)]);
            let remedy = "name an .ngx file, made by `build` or `import`";
            return Err(fail(FileProblem::Foreign, format!("magic {MAGIC:02x?}"), got, remedy));
        }
        if file.len() < FIXED_BYTES {
            let expected = format!("at least {FIXED_BYTES} bytes");
            return Err(fail(
                FileProblem::Truncated,
                expected,
                format!("{}", file.len()),
                REBUILD,
            ));
        }
        let mark = u32_at(file, 12);
        if mark == BYTE_ORDER_MARK.swap_bytes() {
            let remedy = "the file must be little-endian; build it again with this version";
            let expected = "little-endian numbers".to_owned();
            return Err(fail(FileProblem::Foreign, expected, "big-endian".to_owned(), remedy));
        }
        if mark != BYTE_ORDER_MARK {
            return Err(corrupt(
                format!("byte order mark {BYTE_ORDER_MARK:#x}"),
                format!("{mark:#x}"),
            ));
        }
        let version = u32_at(file, 8);
        if version > VERSION {
            let remedy = "upgrade this program or build the index again with it";
            let expected = format!("format version {VERSION} or less");
            return Err(fail(FileProblem::NewerVersion, expected, format!("{version}"), remedy));
        }
        let header_bytes = u64_at(file, 16);
        if version < VERSION {
            let remedy = "build the index again with this program";
            let expected = format!("format version {VERSION}");
            return Err(fail(FileProblem::OlderVersion, expected, format!("{version}"), remedy));
        }
        if !(FIXED_BYTES as u64..=FIRST_SECTION).contains(&header_bytes) {
            let expected = format!("a header of {FIXED_BYTES} to {FIRST_SECTION} bytes");
            return Err(corrupt(expected, format!("{header_bytes}")));
        }
        if header_bytes > file.len() as u64 {
            let expected = format!("a header of {header_bytes} bytes");
            let got = format!("a file of {} bytes", file.len());
            return Err(fail(FileProblem::Truncated, expected, got, REBUILD));
        }
        let header = &file[..header_bytes as usize];
        let (expected, got) = (u32_at(header, CRC_AT), header_crc(header));
        if expected != got {
            return Err(corrupt(format!("header checksum {expected:08x}"), format!("{got:08x}")));
        }
        let parsed = Self::parse_checked(header).map_err(|(expected, got)| corrupt(expected, got))?;
        if parsed.file_bytes != file.len() as u64 {
            let expected = format!("{} bytes", parsed.file_bytes);
            return Err(fail(
                FileProblem::Truncated,
                expected,
                format!("{}", file.len()),
                REBUILD,
            ));
        }
        Ok(parsed)
    }

    /// The fields of a header whose checksum is right. The error is what was expected and what is there.
    fn parse_checked(header: &[u8]) -> std::result::Result<Self, (String, String)> {
        let order = u32_at(header, 28) as usize;
        if !(MIN_ORDER..=MAX_ORDER).contains(&order) {
            return Err((format!("order {MIN_ORDER} to {MAX_ORDER}"), format!("{order}")));
        }
        let vocab_size = u64_at(header, 32);
        if !(1..=MAX_VOCAB).contains(&vocab_size) {
            return Err((format!("vocabulary of 1 to {MAX_VOCAB}"), format!("{vocab_size}")));
        }
        let (sections, text) = (u32_at(header, 96) as usize, u32_at(header, 100) as usize);
        if sections > MAX_SECTIONS || text > MAX_FINGERPRINT {
            let expected = format!("at most {MAX_SECTIONS} sections and {MAX_FINGERPRINT} bytes of fingerprint");
            return Err((expected, format!("{sections} and {text}")));
        }
        let table = FIXED_BYTES + text.next_multiple_of(8);
        if header.len() != table + sections * SECTION_BYTES {
            let expected = format!("a header of {} bytes", table + sections * SECTION_BYTES);
            return Err((expected, format!("{}", header.len())));
        }
        let fingerprint = std::str::from_utf8(&header[FIXED_BYTES..FIXED_BYTES + text])
            .map_err(|error| ("a fingerprint in UTF-8".to_owned(), error.to_string()))?;
        let mut nodes = [0; MAX_ORDER];
        for (i, count) in nodes.iter_mut().enumerate() {
            *count = u64_at(header, 56 + 8 * i);
        }
        let row = |i: usize| {
            let at = table + i * SECTION_BYTES;
            Section {
                kind: u32_at(header, at),
                level: u32_at(header, at + 4),
                encoding: u32_at(header, at + 8),
                crc: u32_at(header, at + 12),
                offset: u64_at(header, at + 16),
                bytes: u64_at(header, at + 24),
                items: u64_at(header, at + 32),
                parameters: u64_at(header, at + 40),
            }
        };
        let header = Self {
            order,
            vocab_size,
            windows: u64_at(header, 40),
            file_bytes: u64_at(header, 48),
            nodes,
            fingerprint: fingerprint.to_owned(),
            sections: (0..sections).map(row).collect(),
        };
        for section in &header.sections {
            let end = section.offset.checked_add(section.bytes);
            if end.is_none_or(|end| end > header.file_bytes) || section.offset % SECTION_ALIGNMENT != 0 {
                let name = Kind::name(section.kind);
                let got = format!("{} bytes at {}", section.bytes, section.offset);
                return Err((
                    format!("section {name} of level {} inside the file", section.level),
                    got,
                ));
            }
        }
        Ok(header)
    }

    /// The one section of a kind and level.
    pub(crate) fn section(&self, kind: Kind, level: usize, path: &str) -> Result<Section> {
        let name = Kind::name(kind as u32);
        let fail = |expected: String, got: String| Error::File {
            path: path.to_owned(),
            problem: FileProblem::Corrupt,
            expected,
            got,
            remedy: REBUILD,
        };
        let mut found = self
            .sections
            .iter()
            .filter(|section| section.kind == kind as u32 && section.level as usize == level);
        let (Some(section), None) = (found.next(), found.next()) else {
            return Err(fail(
                format!("one section {name} of level {level}"),
                "none or several".to_owned(),
            ));
        };
        let bytes = section.items.checked_mul(kind.width());
        if section.encoding != ENCODING || Some(section.bytes) != bytes {
            let expected = format!(
                "section {name} of level {level} in encoding {ENCODING}, items of {} bytes",
                kind.width()
            );
            let got = format!(
                "{} items, {} bytes, encoding {}",
                section.items, section.bytes, section.encoding
            );
            return Err(fail(expected, got));
        }
        Ok(*section)
    }
}

fn header_crc(header: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[..CRC_AT]);
    crc.update(&header[CRC_AT + 4..]);
    crc.finalize()
}
