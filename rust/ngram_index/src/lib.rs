//! Memory-mapped n-gram counts and the tree search over them.
//!
//! The core (`format`, `reader`, `builder`, `import_trie`, `score`, `search`) knows neither Python nor gRPC; `python` is
//! the only module that names pyo3, `server` the only one that names tonic.

mod backing;
pub mod builder;
pub mod error;
mod extent;
pub mod format;
pub mod header;
pub mod import_trie;
pub mod merge;
pub mod progress;
#[cfg(feature = "python")]
mod python;
pub mod reader;
pub mod score;
pub mod search;
#[cfg(feature = "server")]
pub mod server;
mod sorter;
mod tournament;
mod verify;
mod writer;
