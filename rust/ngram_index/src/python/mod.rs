//! The Python module `ngram_index`. The only module that names pyo3.

mod build;
mod index;
mod load;
mod relay;
mod serve;
mod trees;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::error::{Error, FileProblem};
use crate::progress::{Progress, Stage};

pyo3::create_exception!(
    ngram_index,
    NgramError,
    PyException,
    "Anything that the index refuses. `code` is one of invalid_argument, not_an_index, newer_version, older_version, truncated, corrupt, \
     io, address_in_use; `field` names the argument at fault, or is empty."
);

fn raise(py: Python, error: Error) -> PyErr {
    let (code, field) = match &error {
        Error::InvalidArgument { field, .. } => ("invalid_argument", *field),
        Error::File { problem, .. } => match problem {
            FileProblem::Foreign => ("not_an_index", ""),
            FileProblem::NewerVersion => ("newer_version", ""),
            FileProblem::OlderVersion => ("older_version", ""),
            FileProblem::Truncated => ("truncated", ""),
            FileProblem::Corrupt => ("corrupt", ""),
        },
        Error::Io { .. } => ("io", ""),
        Error::AddressInUse { .. } => ("address_in_use", ""),
        Error::Interrupted => ("interrupted", ""),
    };
    let raised = NgramError::new_err(error.to_string());
    let value = raised.value(py);
    match value.setattr("code", code).and_then(|()| value.setattr("field", field)) {
        Ok(()) => raised,
        Err(error) => error,
    }
}

/// Run a long operation without the GIL, calling `progress(stage, done, total)` and looking for signals on the way.
fn with_progress<T: Send>(
    py: Python,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&mut Progress) -> crate::error::Result<T> + Send,
) -> PyResult<T> {
    let mut stopped: Option<PyErr> = None;
    let result = py.detach(|| {
        let mut report = |stage: Stage, done: u64, total: u64| {
            let called = Python::attach(|py| {
                py.check_signals()?;
                progress.as_ref().map_or(Ok(()), |call| call.call1(py, (stage.name(), done, total)).map(drop))
            });
            called.map_err(|error| {
                stopped = Some(error);
                Error::Interrupted
            })
        };
        work(&mut report)
    });
    match stopped {
        Some(error) => Err(error),
        None => result.map_err(|error| raise(py, error)),
    }
}

fn values<T: Element>(py: Python, object: &Bound<PyAny>) -> PyResult<Vec<T>> {
    PyBuffer::<T>::get(object)?.to_vec(py)
}

#[pymodule]
fn ngram_index(module: &Bound<PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("FILE_FORMAT", crate::format::VERSION)?;
    module.add("NgramError", module.py().get_type::<NgramError>())?;
    module.add_class::<index::Index>()?;
    module.add_class::<trees::PyTree>()?;
    module.add_class::<build::Builder>()?;
    module.add_class::<load::Loading>()?;
    module.add_class::<serve::Server>()?;
    module.add_class::<relay::Relay>()?;
    module.add_function(wrap_pyfunction!(trees::default_weights, module)?)?;
    module.add_function(wrap_pyfunction!(load::pages, module)?)?;
    module.add_function(wrap_pyfunction!(load::resident_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(load::set_numa_policy, module)?)?;
    module.add_function(wrap_pyfunction!(build::import_trie, module)?)?;
    module.add_function(wrap_pyfunction!(build::merge, module)?)
}
