//! The indexes that are served, by tokenizer, each of which can be replaced while calls run.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::error::{Error, Result};
use crate::reader::Index;

/// One index a tokenizer.
pub(super) struct Catalog {
    by_fingerprint: BTreeMap<String, ArcSwap<Index>>,
}

impl Catalog {
    pub fn new(indexes: Vec<Arc<Index>>) -> Result<Self> {
        let mut by_fingerprint: BTreeMap<String, ArcSwap<Index>> = BTreeMap::new();
        for index in indexes {
            let fingerprint = index.header().fingerprint.clone();
            if let Some(other) = by_fingerprint.get(&fingerprint) {
                let message = format!(
                    "{} and {} are for the same tokenizer {fingerprint}; serve one of them",
                    index.path().display(),
                    other.load().path().display()
                );
                return Err(Error::invalid("indexes", message));
            }
            by_fingerprint.insert(fingerprint, ArcSwap::new(index));
        }
        if by_fingerprint.is_empty() {
            return Err(Error::invalid("indexes", "must hold at least one index"));
        }
        Ok(Self { by_fingerprint })
    }

    /// The index for a tokenizer. Whoever holds it keeps it, whatever is swapped meanwhile.
    pub fn get(&self, fingerprint: &str) -> Option<Arc<Index>> {
        self.by_fingerprint.get(fingerprint).map(ArcSwap::load_full)
    }

    /// All indexes, by fingerprint.
    pub fn all(&self) -> impl Iterator<Item = Arc<Index>> + '_ {
        self.by_fingerprint.values().map(ArcSwap::load_full)
    }

    /// Fingerprints of the tokenizers, ascending.
    pub fn fingerprints(&self) -> impl Iterator<Item = &str> {
        self.by_fingerprint.keys().map(String::as_str)
    }

    /// Serve `index` in place of the one for its tokenizer, which is returned.
    pub fn swap(&self, index: Arc<Index>) -> Result<Arc<Index>> {
        let fingerprint = &index.header().fingerprint;
        let Some(place) = self.by_fingerprint.get(fingerprint) else {
            let served: Vec<&str> = self.fingerprints().collect();
            let message = format!(
                "{} is for tokenizer {fingerprint}, which is not served; served are {}",
                index.path().display(),
                served.join(", ")
            );
            return Err(Error::invalid("index", message));
        };
        Ok(place.swap(index.clone()))
    }
}
