//! Making indexes.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use super::{raise, values, with_progress};
use crate::builder::{self, Pruning};
use crate::error::Error;
use crate::header::Header;
use crate::import_trie::Import;
use crate::merge::Merge;

const DEFAULT_MEMORY: usize = 1 << 30;

/// Counts documents of token ids into an index.
#[pyclass(module = "ngram_index")]
pub(super) struct Builder {
    /// Locked by nobody: a builder is not `Sync` on its own.
    inner: Mutex<Option<builder::Builder>>,
}

impl Builder {
    fn slot(&mut self) -> &mut Option<builder::Builder> {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&mut self, py: Python) -> PyResult<&mut builder::Builder> {
        self.slot().as_mut().ok_or_else(|| finished(py))
    }

    fn take(&mut self, py: Python) -> PyResult<builder::Builder> {
        self.slot().take().ok_or_else(|| finished(py))
    }
}

fn finished(py: Python) -> PyErr {
    raise(py, Error::invalid("builder", "is finished; make a new one"))
}

#[pymethods]
impl Builder {
    #[new]
    #[pyo3(signature = (
        order, vocab_size, folder = None, memory = builder::DEFAULT_MEMORY, identity = "{}", restart = false,
    ))]
    fn new(
        py: Python,
        order: usize,
        vocab_size: u64,
        folder: Option<PathBuf>,
        memory: usize,
        identity: &str,
        restart: bool,
    ) -> PyResult<Self> {
        let inner = match folder {
            Some(folder) => builder::Builder::open(order, vocab_size, &folder, memory, identity, restart),
            None => builder::Builder::new(order, vocab_size),
        };
        let inner = inner.map_err(|error| raise(py, error))?;
        Ok(Self {
            inner: Mutex::new(Some(inner)),
        })
    }

    /// Add documents: `tokens` is a uint16 or uint32 buffer, `offsets` an int64 buffer of documents + 1 entries.
    #[pyo3(signature = (tokens, offsets, position = "", unfinished = false))]
    fn add(
        &mut self,
        py: Python,
        tokens: &Bound<PyAny>,
        offsets: &Bound<PyAny>,
        position: &str,
        unfinished: bool,
    ) -> PyResult<()> {
        let offsets = values::<i64>(py, offsets)?;
        let inner = self.open(py)?;
        let added = if let Ok(tokens) = values::<u16>(py, tokens) {
            py.detach(|| inner.add_from(&tokens, &offsets, position, unfinished))
        } else {
            let tokens = values::<u32>(py, tokens)?;
            py.detach(|| inner.add_from(&tokens, &offsets, position, unfinished))
        };
        added.map_err(|error| raise(py, error))
    }

    /// Where to go on reading.
    #[getter]
    fn position(&mut self, py: Python) -> PyResult<String> {
        Ok(self.open(py)?.position().to_owned())
    }

    /// Tokens that earlier runs of this build have counted.
    #[getter]
    fn covered(&mut self, py: Python) -> PyResult<u64> {
        Ok(self.open(py)?.covered())
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

    /// Leave out n-grams that were seen less often than `min_counts`, by length.
    #[pyo3(signature = (min_counts, renormalise = false, target_bytes = None))]
    fn prune(
        &mut self,
        py: Python,
        min_counts: Vec<u64>,
        renormalise: bool,
        target_bytes: Option<u64>,
    ) -> PyResult<()> {
        let pruning = pruning(min_counts, renormalise, target_bytes);
        self.open(py)?.set_pruning(pruning).map_err(|error| raise(py, error))
    }

    /// Stop and keep the work folder for a later build, if there is anything to keep. The builder is used up.
    fn close(&mut self, py: Python) -> PyResult<()> {
        let inner = self.take(py)?;
        py.detach(|| inner.close()).map_err(|error| raise(py, error))
    }

    /// Stop and remove the work folder. The builder is used up.
    fn discard(&mut self, py: Python) -> PyResult<()> {
        let inner = self.take(py)?;
        py.detach(|| inner.discard()).map_err(|error| raise(py, error))
    }

    /// Count and write the index; returns distinct n-grams and smallest counts kept by length. The builder is used up.
    #[pyo3(signature = (path, fingerprint, manifest = "{}", progress = None))]
    fn finish(
        &mut self,
        py: Python,
        path: PathBuf,
        fingerprint: &str,
        manifest: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(Vec<u64>, Vec<u64>)> {
        let inner = self.take(py)?;
        let (header, kept) = with_progress(py, progress, |report| {
            inner.finish_pruned(&path, fingerprint, manifest, report)
        })?;
        Ok((nodes(&header), kept))
    }
}

fn nodes(header: &Header) -> Vec<u64> {
    header.nodes[..header.order].to_vec()
}

fn pruning(min_counts: Vec<u64>, renormalise: bool, target_bytes: Option<u64>) -> Pruning {
    Pruning {
        min_counts,
        renormalise,
        target_bytes,
    }
}

/// Import the public implementation's `.trie` file; returns distinct n-grams by length.
#[pyfunction]
#[pyo3(signature = (source, path, vocab_size, fingerprint, manifest = "{}", progress = None, memory = DEFAULT_MEMORY))]
#[allow(clippy::too_many_arguments)] // keyword arguments of one Python function
pub(super) fn import_trie(
    py: Python,
    source: PathBuf,
    path: PathBuf,
    vocab_size: u64,
    fingerprint: &str,
    manifest: &str,
    progress: Option<Py<PyAny>>,
    memory: usize,
) -> PyResult<Vec<u64>> {
    let import = Import {
        source: &source,
        path: &path,
        vocab_size,
        fingerprint,
        manifest,
        memory,
    };
    let header = with_progress(py, progress, |report| import.run(report))?;
    Ok(nodes(&header))
}

/// Add up indexes with weights; returns distinct n-grams and smallest counts kept by length.
#[pyfunction]
#[pyo3(signature = (
    sources, path, manifest = "{}", progress = None, memory = DEFAULT_MEMORY, min_counts = Vec::new(),
    renormalise = false, target_bytes = None,
))]
#[allow(clippy::too_many_arguments)] // keyword arguments of one Python function
pub(super) fn merge(
    py: Python,
    sources: Vec<(PathBuf, f64)>,
    path: PathBuf,
    manifest: &str,
    progress: Option<Py<PyAny>>,
    memory: usize,
    min_counts: Vec<u64>,
    renormalise: bool,
    target_bytes: Option<u64>,
) -> PyResult<(Vec<u64>, Vec<u64>)> {
    let (header, kept) = with_progress(py, progress, |report| {
        let merge = Merge {
            sources: &sources,
            path: &path,
            manifest,
            memory,
            pruning: pruning(min_counts, renormalise, target_bytes),
        };
        merge.run(report)
    })?;
    Ok((nodes(&header), kept))
}
