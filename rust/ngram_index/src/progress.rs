//! Telling the caller of a long operation how far it is.

use crate::error::Result;

/// Where a long operation stands; the caller's function may stop it with an error.
pub type Progress<'a> = dyn FnMut(Stage, u64, u64) -> Result<()> + Send + 'a;

/// The parts of a long operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading a file to import; units are n-grams.
    Read,
    /// Sorting; units are windows or n-grams.
    Sort,
    /// Merging and counting; units are windows or n-grams.
    Count,
    /// Putting n-grams into their lines; units are lines.
    Table,
    /// Writing the result; units are bytes.
    Write,
    /// Comparing checksums; units are bytes.
    Checksum,
    /// Checking what is inside; units are rows and lines of tables.
    Check,
}

impl Stage {
    /// The stage's name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Sort => "sort",
            Self::Count => "count",
            Self::Table => "table",
            Self::Write => "write",
            Self::Checksum => "checksum",
            Self::Check => "check",
        }
    }
}
