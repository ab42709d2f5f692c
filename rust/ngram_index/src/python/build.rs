//! Making indexes.

use std::path::PathBuf;

use pyo3::prelude::*;

use super::{raise, values, with_progress};
use crate::builder;
use crate::error::Error;
use crate::header::Header;

/// Counts documents of token ids into an index.
#[pyclass(module = "ngram_index")]
pub(super) struct Builder {
    inner: Option<builder::Builder>,
}

impl Builder {
    fn open(&mut self, py: Python) -> PyResult<&mut builder::Builder> {
        self.inner
            .as_mut()
            .ok_or_else(|| raise(py, Error::invalid("builder", "is finished; make a new one")))
    }
}

#[pymethods]
impl Builder {
    #[new]
    fn new(py: Python, order: usize, vocab_size: u64) -> PyResult<Self> {
        let inner = builder::Builder::new(order, vocab_size).map_err(|error| raise(py, error))?;
        Ok(Self { inner: Some(inner) })
    }

    /// Add documents: `tokens` is a uint16 or uint32 buffer, `offsets` an int64 buffer of documents + 1 entries.
    fn add(&mut self, py: Python, tokens: &Bound<PyAny>, offsets: &Bound<PyAny>) -> PyResult<()> {
        let offsets = values::<i64>(py, offsets)?;
        let inner = self.open(py)?;
        let added = if let Ok(tokens) = values::<u16>(py, tokens) {
            py.detach(|| inner.add(&tokens, &offsets))
        } else {
            let tokens = values::<u32>(py, tokens)?;
            py.detach(|| inner.add(&tokens, &offsets))
        };
        added.map_err(|error| raise(py, error))
    }

    /// Tokens added so far.
    #[getter]
    fn tokens(&mut self, py: Python) -> PyResult<u64> {
        Ok(self.open(py)?.tokens())
    }

    /// Documents added so far.
    #[getter]
    fn documents(&mut self, py: Python) -> PyResult<u64> {
        Ok(self.open(py)?.documents())
    }

    /// Count and write the index; returns distinct n-grams by length. The builder is used up.
    #[pyo3(signature = (path, fingerprint, manifest = "{}", progress = None))]
    fn finish(
        &mut self,
        py: Python,
        path: PathBuf,
        fingerprint: &str,
        manifest: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<u64>> {
        self.open(py)?;
        let Some(inner) = self.inner.take() else {
            return Ok(Vec::new());
        };
        let header = with_progress(py, progress, |report| {
            inner.finish(&path, fingerprint, manifest, report)
        })?;
        Ok(nodes(&header))
    }
}

fn nodes(header: &Header) -> Vec<u64> {
    header.nodes[..header.order].to_vec()
}

/// Import the public implementation's `.trie` file; returns distinct n-grams by length.
#[pyfunction]
#[pyo3(signature = (source, path, vocab_size, fingerprint, manifest = "{}", progress = None))]
pub(super) fn import_trie(
    py: Python,
    source: PathBuf,
    path: PathBuf,
    vocab_size: u64,
    fingerprint: &str,
    manifest: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<u64>> {
    let header = with_progress(py, progress, |report| {
        crate::import_trie::import_trie(&source, &path, vocab_size, fingerprint, manifest, report)
    })?;
    Ok(nodes(&header))
}
