//! The gateway's streams.

use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use super::raise;
use crate::error::Error;
use crate::relay::{self, Came};
use crate::server::v1;

/// Rounds streams to verifiers, in a thread of their own: see the type stub.
#[pyclass(frozen, module = "ngram_index")]
pub(super) struct Relay {
    inner: relay::Relay,
}

#[pymethods]
impl Relay {
    #[new]
    fn new(py: Python) -> PyResult<Self> {
        let inner = relay::Relay::start().map_err(|error| raise(py, error))?;
        Ok(Self { inner })
    }

    fn fileno(&self) -> i32 {
        self.inner.fd()
    }

    fn take<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        self.inner.take().into_iter().map(|came| tuple(py, came)).collect()
    }

    fn open(&self, py: Python, address: &str) -> PyResult<u64> {
        self.inner.open(address).map_err(|error| raise(py, error))
    }

    fn send(&self, stream: u64, message: &[u8]) {
        self.inner.send(stream, Bytes::copy_from_slice(message));
    }

    fn close(&self, stream: u64) {
        self.inner.close(stream);
    }

    fn route(&self, py: Python, stream: u64, route: Option<(String, Vec<u8>, u64)>) -> PyResult<()> {
        let routed = route.map_or(Ok(None), |(address, request, timeout_ms)| {
            let malformed = |error: prost::DecodeError| Error::invalid("route", error.to_string());
            let request = v1::SearchRequest::decode(&request[..]).map_err(malformed)?;
            Ok(Some((address, request, Duration::from_millis(timeout_ms))))
        });
        routed.and_then(|route| self.inner.route(stream, route)).map_err(|error| raise(py, error))
    }

    fn follow(&self, stream: u64, session: u64, context: Vec<u32>) {
        self.inner.follow(stream, session, context);
    }

    fn allow(&self, stream: u64, session: u64, offers: u32) {
        self.inner.allow(stream, session, offers);
    }

    fn forget(&self, stream: u64, session: u64) {
        self.inner.forget(stream, session);
    }

    fn stop(&self, py: Python) {
        py.detach(|| self.inner.stop());
    }
}

fn tuple<'py>(py: Python<'py>, came: Came) -> PyResult<Bound<'py, PyTuple>> {
    match came {
        Came::Message {
            stream,
            data,
            answering,
        } => ("message", stream, PyBytes::new(py, &data), answering).into_pyobject(py),
        Came::Answered {
            stream,
            sessions,
            search_us,
        } => ("answered", stream, sessions, search_us).into_pyobject(py),
        Came::Unanswered {
            stream,
            sessions,
            code,
            reason,
        } => ("unanswered", stream, sessions, code, reason).into_pyobject(py),
        Came::Ended {
            stream,
            code,
            message,
            details,
        } => ("ended", stream, code, message, PyBytes::new(py, &details)).into_pyobject(py),
    }
}
