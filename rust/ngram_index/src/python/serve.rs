//! Serving indexes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::index::Index;
use super::raise;
use crate::error::Error;
use crate::reader;
use crate::server;

/// How often a waiting call looks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// NgramService over the indexes, served in background threads from construction on.
#[pyclass(frozen, module = "ngram_index")]
pub(super) struct Server {
    inner: Mutex<Option<server::Server>>,
    waiter: server::Waiter,
    handle: server::Handle,
    #[pyo3(get)]
    addresses: Vec<String>,
}

#[pymethods]
impl Server {
    /// `listen` holds "host:port" (port 0 chooses a free one) and "unix:/path" addresses.
    #[new]
    #[pyo3(signature = (
        indexes, listen, *, max_message_bytes = 64 << 20, max_queries = 4096, max_queue = 16384, max_streams = 256,
        threads = 2, ready = true
    ))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of one Python function
    fn new(
        py: Python,
        indexes: Vec<PyRef<Index>>,
        listen: Vec<String>,
        max_message_bytes: usize,
        max_queries: usize,
        max_queue: usize,
        max_streams: usize,
        threads: usize,
        ready: bool,
    ) -> PyResult<Self> {
        let indexes: Vec<Arc<reader::Index>> = indexes.iter().map(|index| index.inner.clone()).collect();
        let config = server::Config {
            listen,
            max_message_bytes,
            max_queries,
            max_queue,
            max_streams,
            threads,
            ready,
        };
        let started = py.detach(|| server::Server::start(indexes, &config));
        let inner = started.map_err(|error| raise(py, error))?;
        Ok(Self {
            waiter: inner.waiter(),
            handle: inner.handle(),
            addresses: inner.addresses().to_vec(),
            inner: Mutex::new(Some(inner)),
        })
    }

    /// Report SERVING from now on.
    fn set_ready(&self, py: Python) {
        py.detach(|| {
            if let Some(inner) = &*self.inner.lock().unwrap_or_else(PoisonError::into_inner) {
                inner.ready();
            }
        });
    }

    /// Serve another index for the same tokenizer from now on; calls that run keep the old one.
    fn swap(&self, py: Python, index: &Index) -> PyResult<()> {
        let index = index.inner.clone();
        py.detach(|| self.handle.swap(index)).map_err(|error| raise(py, error))
    }

    /// The indexes that are served, by fingerprint.
    #[getter]
    fn indexes(&self) -> Vec<Index> {
        self.handle.indexes().into_iter().map(|inner| Index { inner }).collect()
    }

    /// What was counted since the start: see the type stub for the keys.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let snapshot = self.handle.metrics();
        let times = |times: server::Times| (times.buckets, times.seconds);
        let call_times: Vec<_> = snapshot.call_times.into_iter().map(|(name, own)| (name, times(own))).collect();
        let values = PyDict::new(py);
        values.set_item("bounds", server::BOUNDS)?;
        values.set_item("calls", snapshot.calls)?;
        values.set_item("call_times", call_times)?;
        values.set_item("search_times", times(snapshot.search_times))?;
        values.set_item("score_queries", snapshot.score_queries)?;
        values.set_item("contexts", snapshot.contexts)?;
        values.set_item("nodes_by_matched", snapshot.nodes_by_matched)?;
        values.set_item("queue", self.handle.queue())?;
        values.set_item("streams", self.handle.streams())?;
        Ok(values)
    }

    /// The first TCP port; None if only Unix sockets are served.
    #[getter]
    fn port(&self) -> Option<u16> {
        let mut tcp = self.addresses.iter().filter(|address| !address.starts_with("unix:"));
        tcp.next()?.rsplit_once(':')?.1.parse().ok()
    }

    /// Take no more calls, let running ones finish for up to `grace_s` seconds; returns whether all finished.
    #[pyo3(signature = (grace_s = 5.0))]
    fn stop(&self, py: Python, grace_s: f64) -> PyResult<bool> {
        let grace = Duration::try_from_secs_f64(grace_s);
        let grace = grace.map_err(|error| raise(py, Error::invalid("grace_s", format!("{error}, got {grace_s}"))))?;
        let finished = py.detach(|| {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
            inner.is_none_or(|mut inner| inner.stop(grace))
        });
        Ok(finished)
    }

    /// Wait until the server ended, at most `timeout_s` seconds; returns whether it did. Signals interrupt it.
    #[pyo3(signature = (timeout_s = None))]
    fn wait(&self, py: Python, timeout_s: Option<f64>) -> PyResult<bool> {
        let mut left = timeout_s.map(|seconds| Duration::from_secs_f64(seconds.clamp(0.0, 1e9)));
        loop {
            let step = left.map_or(SIGNAL_INTERVAL, |left| left.min(SIGNAL_INTERVAL));
            if py.detach(|| self.waiter.wait(Some(step))) {
                return Ok(true);
            }
            py.check_signals()?;
            if let Some(left) = &mut left {
                *left = left.saturating_sub(step);
                if left.is_zero() {
                    return Ok(false);
                }
            }
        }
    }

    fn __enter__(slf: PyRef<Self>) -> PyRef<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python, _exception: &Bound<pyo3::types::PyTuple>) -> PyResult<()> {
        self.stop(py, 5.0).map(drop)
    }
}
