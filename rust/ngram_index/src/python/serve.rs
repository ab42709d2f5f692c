//! Serving indexes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

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
    #[pyo3(get)]
    addresses: Vec<String>,
}

#[pymethods]
impl Server {
    /// `listen` holds "host:port" (port 0 chooses a free one) and "unix:/path" addresses.
    #[new]
    #[pyo3(signature = (indexes, listen, *, max_message_bytes = 64 << 20, threads = 2))]
    fn new(
        py: Python,
        indexes: Vec<PyRef<Index>>,
        listen: Vec<String>,
        max_message_bytes: usize,
        threads: usize,
    ) -> PyResult<Self> {
        let indexes: Vec<Arc<reader::Index>> = indexes.iter().map(|index| index.inner.clone()).collect();
        let config = server::Config {
            listen,
            max_message_bytes,
            threads,
        };
        let started = py.detach(|| server::Server::start(indexes, &config));
        let inner = started.map_err(|error| raise(py, error))?;
        Ok(Self {
            waiter: inner.waiter(),
            addresses: inner.addresses().to_vec(),
            inner: Mutex::new(Some(inner)),
        })
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
