//! What is sorted on the way from nodes to n-grams.

use crate::builder::key::Key;
use crate::format::u32_at;
use crate::sorter::Row;

/// A node whose n-gram is not known yet; by parent.
#[derive(Clone, Copy)]
pub(super) struct Child {
    pub parent: u64,
    pub index: u64,
    pub token: u32,
    pub count: u32,
}

impl Row for Child {
    type Key = u64;
    const BYTES: usize = 24;

    fn key(&self) -> u64 {
        self.parent
    }

    fn write(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.parent.to_le_bytes());
        out[8..16].copy_from_slice(&self.index.to_le_bytes());
        out[16..20].copy_from_slice(&self.token.to_le_bytes());
        out[20..].copy_from_slice(&self.count.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Self {
        Self {
            parent: u64::read(bytes),
            index: u64::read(&bytes[8..]),
            token: u32_at(bytes, 16),
            count: u32_at(bytes, 20),
        }
    }
}

/// A node with its n-gram, as somebody's parent; by index.
#[derive(Clone, Copy)]
pub(super) struct Named<K> {
    pub index: u64,
    pub key: K,
    pub count: u32,
}

impl<K: Key> Row for Named<K> {
    type Key = u64;
    const BYTES: usize = 12 + K::BYTES;

    fn key(&self) -> u64 {
        self.index
    }

    fn write(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.index.to_le_bytes());
        out[8..12].copy_from_slice(&self.count.to_le_bytes());
        self.key.write(&mut out[12..]);
    }

    fn read(bytes: &[u8]) -> Self {
        Self {
            index: u64::read(bytes),
            count: u32_at(bytes, 8),
            key: K::read(&bytes[12..]),
        }
    }
}

/// An n-gram and its count; by n-gram.
#[derive(Clone, Copy)]
pub(super) struct Ngram<K> {
    pub key: K,
    pub count: u32,
}

impl<K: Key> Row for Ngram<K> {
    type Key = K;
    const BYTES: usize = 4 + K::BYTES;

    fn key(&self) -> K {
        self.key
    }

    fn write(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.count.to_le_bytes());
        self.key.write(&mut out[4..]);
    }

    fn read(bytes: &[u8]) -> Self {
        Self {
            count: u32_at(bytes, 0),
            key: K::read(&bytes[4..]),
        }
    }
}
