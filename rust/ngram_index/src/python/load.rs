//! Bringing an index into memory in the background, and where its memory is.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::index::Index;
use super::raise;
use crate::error::{Error, Result};
use crate::numa::Policy;
use crate::prefault::Fill;
use crate::reader::{self, Backing};

/// How often a waiting call looks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(20);

/// An index that is being opened and read in a thread of its own, which does not keep the process alive.
#[pyclass(frozen, module = "ngram_index")]
pub(super) struct Loading {
    fill: Arc<Fill>,
    thread: Mutex<Option<JoinHandle<Result<reader::Index>>>>,
}

#[pymethods]
impl Loading {
    /// Begin; `backing` is mmap, populate or copy.
    #[new]
    #[pyo3(signature = (path, backing = "populate"))]
    fn new(py: Python, path: PathBuf, backing: &str) -> PyResult<Self> {
        let backing = Backing::parse(backing).map_err(|error| raise(py, error))?;
        let fill = Arc::new(Fill::default());
        let shared = fill.clone();
        let thread = std::thread::Builder::new()
            .name("ngram-load".to_owned())
            .spawn(move || reader::Index::load(&path, backing, &shared))
            .map_err(|source| {
                let context = "cannot start a thread to load an index".to_owned();
                raise(py, Error::Io { context, source })
            })?;
        Ok(Self {
            fill,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Bytes in memory so far, and bytes in all; (0, 0) before the file is open and when there is nothing to read.
    #[getter]
    fn progress(&self) -> (u64, u64) {
        self.fill.progress()
    }

    /// Whether `result` answers at once.
    #[getter]
    fn finished(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// End soon; `result` raises NgramError then.
    fn stop(&self) {
        self.fill.stop();
    }

    /// Wait for the index, which is handed out once. Signals interrupt it.
    fn result(&self, py: Python) -> PyResult<Index> {
        while !self.finished() {
            py.detach(|| std::thread::sleep(SIGNAL_INTERVAL));
            py.check_signals()?;
        }
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            let message = "was called before; it hands the index out once";
            return Err(raise(py, Error::invalid("result", message)));
        };
        let panicked = |_| {
            Err(Error::Io {
                context: "cannot load the index".to_owned(),
                source: std::io::Error::other("its thread panicked"),
            })
        };
        let loaded = thread.join().unwrap_or_else(panicked);
        let inner = loaded.map_err(|error| raise(py, error))?;
        Ok(Index { inner: Arc::new(inner) })
    }
}

/// Where this thread, and those it starts from now on, run and get new memory: off, interleave or bind:N.
#[pyfunction]
pub(super) fn set_numa_policy(py: Python, policy: &str) -> PyResult<()> {
    Policy::parse(policy).and_then(Policy::apply).map_err(|error| raise(py, error))
}

/// Bytes of an index that are in memory, whichever process read them.
#[pyfunction]
pub(super) fn resident_bytes(py: Python, index: &Index) -> PyResult<u64> {
    py.detach(|| index.inner.resident_bytes()).map_err(|error| raise(py, error))
}

/// Where the pages of an index are: see the type stub for the keys.
#[pyfunction]
pub(super) fn pages<'py>(py: Python<'py>, index: &Index) -> PyResult<Bound<'py, PyDict>> {
    let pages = py.detach(|| index.inner.pages()).map_err(|error| raise(py, error))?;
    let values = PyDict::new(py);
    values.set_item("resident_bytes", pages.resident_bytes)?;
    values.set_item("page_bytes", pages.page_bytes)?;
    values.set_item("sampled", pages.sampled)?;
    values.set_item("by_node", pages.by_node)?;
    Ok(values)
}
