//! Memory-mapped n-gram counts, the tree search over them, and the way of trees between other services.
//!
//! The core (`format`, `reader`, `builder`, `import_trie`, `score`, `search`) knows neither Python nor gRPC; `python` is
//! the only module that names pyo3, `server` and `relay` the only ones that name tonic.

mod backing;
mod bits;
pub mod builder;
mod candidates;
pub mod error;
mod extent;
pub mod format;
pub mod header;
pub mod import_trie;
mod lines;
pub mod merge;
pub mod numa;
pub mod prefault;
pub mod progress;
#[cfg(feature = "python")]
mod python;
pub mod reader;
mod record;
#[cfg(feature = "server")]
pub mod relay;
mod residency;
mod scatter;
pub mod score;
pub mod search;
#[cfg(feature = "server")]
pub mod server;
pub mod shape;
mod sorter;
mod spread;
mod tournament;
mod verify;
mod walk;
pub mod writer;
