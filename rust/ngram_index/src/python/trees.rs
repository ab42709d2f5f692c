//! What a search takes and gives.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::{raise, values};
use crate::error::{Error, Result};
use crate::search::{Mode, Params, Query, Rule, Tree};

/// Most threads of one batch.
const MAX_THREADS: usize = 1024;

/// Parameters from keyword arguments named like the fields of dartspec.v1.SearchParams.
pub(super) fn params(py: Python, given: Option<&Bound<PyDict>>) -> PyResult<Params> {
    let mut params = Params::default();
    for (name, value) in given.into_iter().flatten() {
        let name: String = name.extract()?;
        match name.as_str() {
            "mode" => {
                let modes = [("survival", Mode::Survival), ("reference", Mode::Reference)];
                params.mode = named("params.mode", value.extract()?, &modes).map_err(|error| raise(py, error))?;
            }
            "score_rule" => {
                let rules = [
                    ("auto", None),
                    ("reference", Some(Rule::Reference)),
                    ("stupid_backoff", Some(Rule::StupidBackoff)),
                    ("witten_bell", Some(Rule::WittenBell)),
                    ("divided", Some(Rule::Divided)),
                ];
                params.rule = named("params.score_rule", value.extract()?, &rules).map_err(|error| raise(py, error))?;
            }
            "backoff_factor" => params.backoff_factor = value.extract()?,
            "node_budget" => params.node_budget = value.extract()?,
            "beam_width" => params.beam_width = value.extract()?,
            "skip_ngram_at_first_level" => params.skip_ngram_at_first_level = value.extract()?,
            "stop_token_ids" => params.stop_ids = value.extract()?,
            "ngram_weight" => params.ngram_weight = value.extract()?,
            "transition_weight" => params.transition_weight = value.extract()?,
            _ => return Err(PyTypeError::new_err(format!("a search has no parameter {name:?}"))),
        }
    }
    Ok(params)
}

fn named<T: Copy>(field: &'static str, name: &str, all: &[(&str, T)]) -> Result<T> {
    all.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|(known, _)| *known).collect();
        Error::invalid(field, format!("must be one of {}, got {name:?}", known.join(", ")))
    })
}

/// Threads for a batch; none for one thread, which is the caller's.
pub(super) fn pool(threads: usize) -> Result<Option<rayon::ThreadPool>> {
    if !(1..=MAX_THREADS).contains(&threads) {
        let message = format!("must be 1 to {MAX_THREADS}, got {threads}");
        return Err(Error::invalid("threads", message));
    }
    if threads == 1 {
        return Ok(None);
    }
    let built = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    built.map(Some).map_err(|error| Error::Io {
        context: format!("cannot start {threads} search threads"),
        source: std::io::Error::other(error),
    })
}

/// Weights of the counts and of transition scores in searches that name neither: (with such scores or not) -> both.
#[pyfunction]
#[pyo3(signature = (*, transitions, counts = true))]
pub(super) fn default_weights(transitions: bool, counts: bool) -> (f32, f32) {
    let params = Params {
        ngram_weight: (!counts).then_some(0.0),
        ..Params::default()
    };
    let weights = params.weights(transitions);
    (weights.ngram, weights.transition)
}

/// Context, widths, token ids, log-probabilities and transition scores of a query.
pub(super) type Given<'py> = (
    Vec<u32>,
    Vec<u32>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Option<Bound<'py, PyAny>>,
);

/// A query that owns its arrays.
pub(super) struct Wanted {
    context: Vec<u32>,
    widths: Vec<u32>,
    tokens: Vec<i32>,
    logprobs: Vec<f32>,
    transitions: Vec<f32>,
}

impl Wanted {
    pub fn new(py: Python, given: Given) -> PyResult<Self> {
        let (context, widths, token_ids, logprobs, transitions) = given;
        Ok(Self {
            context,
            widths,
            tokens: values::<i32>(py, &token_ids)?,
            logprobs: values::<f32>(py, &logprobs)?,
            transitions: transitions.map_or(Ok(Vec::new()), |scores| values::<f32>(py, &scores))?,
        })
    }

    pub fn get(&self) -> Query<'_> {
        Query {
            context: &self.context,
            widths: &self.widths,
            tokens: &self.tokens,
            logprobs: &self.logprobs,
            transitions: &self.transitions,
        }
    }
}

/// A tree of candidates, its fields packed as in dartspec.v1.Tree.
#[pyclass(frozen, name = "Tree", module = "ngram_index")]
pub(super) struct PyTree {
    inner: Tree,
}

impl PyTree {
    pub fn new(inner: Tree) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl PyTree {
    fn __len__(&self) -> usize {
        self.inner.len()
    }

    /// Little-endian int32 token ids.
    #[getter]
    fn token_ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        packed(py, &self.inner.tokens, |value| value.to_le_bytes())
    }

    /// Little-endian int32 parents; 0 is the root, node i is i + 1.
    #[getter]
    fn parents<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        packed(py, &self.inner.parents, |value| value.to_le_bytes())
    }

    /// Little-endian float32 probabilities of being reached.
    #[getter]
    fn survival<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        packed(py, &self.inner.survival, |value| value.to_le_bytes())
    }

    /// Little-endian uint16 feature bins.
    #[getter]
    fn feature_bins<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        packed(py, &self.inner.feature_bins, |value| value.to_le_bytes())
    }
}

fn packed<'py, T: Copy, const N: usize>(py: Python<'py>, values: &[T], bytes: fn(T) -> [u8; N]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &values.iter().flat_map(|value| bytes(*value)).collect::<Vec<u8>>())
}
