//! The closed set of errors of this crate; each edge (Python, gRPC) translates it once.

use std::fmt;
use std::io;
use std::path::Path;

/// Result of every fallible operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, in words that name the bad value and the way out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller sent something wrong.
    #[error("{field}: {message}")]
    InvalidArgument {
        /// The argument at fault.
        field: &'static str,
        /// What is wrong with it and what is allowed.
        message: String,
    },
    /// A file is not what it should be.
    #[error("{path}: {problem}: expected {expected}, got {got}; {remedy}")]
    File {
        /// The file, or `<memory>`.
        path: String,
        /// Which kind of fault.
        problem: FileProblem,
        /// What was expected.
        expected: String,
        /// What is there.
        got: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The operating system refused.
    #[error("{context}: {source}")]
    Io {
        /// What was being done, with the path or address.
        context: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Somebody else serves on the address.
    #[error("address in use: {address}: {message}")]
    AddressInUse {
        /// Host and port, or the path of a socket.
        address: String,
        /// What to do about it.
        message: String,
    },
    /// The caller's progress function asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Kinds of faulty files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileProblem {
    /// Another kind of file.
    Foreign,
    /// Written by a newer version of this crate.
    NewerVersion,
    /// Written by a version of this crate whose files are no longer read.
    OlderVersion,
    /// Shorter or longer than it says.
    Truncated,
    /// Contradicts its checksums or itself.
    Corrupt,
}

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Foreign => "not an n-gram file of this kind",
            Self::NewerVersion => "newer format",
            Self::OlderVersion => "older format",
            Self::Truncated => "wrong size",
            Self::Corrupt => "corrupt",
        })
    }
}

impl Error {
    /// An [`Error::InvalidArgument`].
    pub fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::InvalidArgument {
            field,
            message: message.into(),
        }
    }

    /// An [`Error::Io`] about a path.
    pub(crate) fn io(doing: &str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            context: format!("cannot {doing} {}", path.display()),
            source,
        }
    }
}
