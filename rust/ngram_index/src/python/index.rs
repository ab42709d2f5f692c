//! Open indexes and the trees searched in them.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{raise, values};
use crate::error::Error;
use crate::format::Kind;
use crate::reader::{self, Backing};
use crate::score::score;
use crate::search::{Mode, Params, Query, Searcher, Tree};

/// An open index: n-gram counts of a corpus, mapped into memory.
#[pyclass(frozen, module = "ngram_index")]
pub(super) struct Index {
    pub(super) inner: Arc<reader::Index>,
}

#[pymethods]
impl Index {
    /// Open a file; `backing` is mmap, populate (read it all now) or copy (into private memory). See Loading for a large one.
    #[staticmethod]
    #[pyo3(signature = (path, backing = "mmap"))]
    fn open(py: Python, path: PathBuf, backing: &str) -> PyResult<Self> {
        let backing = Backing::parse(backing).map_err(|error| raise(py, error))?;
        let index = py.detach(|| reader::Index::open(&path, backing)).map_err(|error| raise(py, error))?;
        Ok(Self { inner: Arc::new(index) })
    }

    #[getter]
    fn path(&self) -> String {
        self.inner.path().display().to_string()
    }

    #[getter]
    fn order(&self) -> usize {
        self.inner.order()
    }

    #[getter]
    fn vocab_size(&self) -> u64 {
        self.inner.vocab_size()
    }

    #[getter]
    fn windows(&self) -> u64 {
        self.inner.windows()
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        &self.inner.header().fingerprint
    }

    #[getter]
    fn manifest(&self) -> &str {
        self.inner.manifest()
    }

    #[getter]
    fn nodes(&self) -> Vec<u64> {
        self.inner.header().nodes[..self.inner.order()].to_vec()
    }

    #[getter]
    fn file_bytes(&self) -> u64 {
        self.inner.header().file_bytes
    }

    /// (kind, level, offset, bytes, items) of each section.
    #[getter]
    fn sections(&self) -> Vec<(&'static str, u32, u64, u64, u64)> {
        let sections = self.inner.header().sections.iter();
        sections.map(|s| (Kind::name(s.kind), s.level, s.offset, s.bytes, s.items)).collect()
    }

    /// How many different tokens follow the n-grams of a length from 1 to order - 1: (n-grams looked at, how many of them
    /// have a number of continuations of 0, 1, 2, ... bits, all continuations), from at most `most` lines of the table.
    fn children(&self, py: Python, length: usize, most: u64) -> PyResult<(u64, Vec<u64>, u64)> {
        let found = py.detach(|| self.inner.children(length, most)).map_err(|error| raise(py, error))?;
        Ok((found.contexts, found.by_bits, found.total))
    }

    /// Check every byte of the file; raises NgramError at the first fault.
    fn verify(&self, py: Python) -> PyResult<()> {
        py.detach(|| self.inner.verify()).map_err(|error| raise(py, error))
    }

    /// Count of an n-gram of 1 to order tokens; 0 if it was never seen.
    fn count(&self, tokens: Vec<u32>) -> u64 {
        self.inner.count(&tokens)
    }

    /// (token, count) of every token seen after a context of 1 to order - 1 tokens, tokens ascending.
    fn successors(&self, context: Vec<u32>) -> Vec<(u32, u64)> {
        self.inner.successors(&context)
    }

    /// (probabilities, matched lengths) of candidates after a context, oldest token first.
    fn score(&self, py: Python, context: Vec<u32>, candidates: Vec<u32>) -> (Vec<f32>, Vec<u8>) {
        let scores = py.detach(|| score(&self.inner, &context, &candidates));
        scores.iter().map(|score| (score.probability, score.matched)).unzip()
    }

    /// Search one tree. `token_ids` and `logprobs` are int32 and float32 buffers with the candidates of all offsets,
    /// `widths[i]` of them for offset i + 1.
    #[pyo3(signature = (
        context, widths, token_ids, logprobs, *, mode = "survival", node_budget = 59, beam_width = 20,
        skip_ngram_at_first_level = false, stop_token_ids = Vec::new(), ngram_weight = 0.7
    ))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of one Python function
    fn search(
        &self,
        py: Python,
        context: Vec<u32>,
        widths: Vec<u32>,
        token_ids: &Bound<PyAny>,
        logprobs: &Bound<PyAny>,
        mode: &str,
        node_budget: usize,
        beam_width: usize,
        skip_ngram_at_first_level: bool,
        stop_token_ids: Vec<u32>,
        ngram_weight: f32,
    ) -> PyResult<PyTree> {
        let mode = match mode {
            "survival" => Mode::Survival,
            "reference" => Mode::Reference,
            other => {
                let message = format!("must be survival or reference, got {other:?}");
                return Err(raise(py, Error::invalid("params.mode", message)));
            }
        };
        let params = Params {
            mode,
            node_budget,
            beam_width,
            skip_ngram_at_first_level,
            stop_ids: stop_token_ids,
            ngram_weight,
            ..Params::default()
        };
        let (tokens, logprobs) = (values::<i32>(py, token_ids)?, values::<f32>(py, logprobs)?);
        let query = Query {
            context: &context,
            widths: &widths,
            tokens: &tokens,
            logprobs: &logprobs,
        };
        let mut tree = Tree::default();
        let searched = py.detach(|| Searcher::new().search(&self.inner, &query, &params, &mut tree));
        searched.map_err(|error| raise(py, error))?;
        Ok(PyTree { inner: tree })
    }
}

/// A tree of candidates, its fields packed as in dartspec.v1.Tree.
#[pyclass(frozen, name = "Tree", module = "ngram_index")]
pub(super) struct PyTree {
    inner: Tree,
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
