//! Open indexes and what is asked of them.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::raise;
use super::trees::{self, PyTree, Wanted};
use crate::format::Kind;
use crate::reader::{self, Backing};
use crate::score::score;
use crate::search::{Query, search_batch, search_one};

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
    /// `widths[i]` of them for offset i + 1; `transitions` is a float32 buffer of the scores between neighbouring offsets. See
    /// `params` in `trees.rs` for the keyword arguments.
    #[pyo3(signature = (context, widths, token_ids, logprobs, transitions = None, **params))]
    #[allow(clippy::too_many_arguments)] // Python's arguments
    fn search(
        &self,
        py: Python,
        context: Vec<u32>,
        widths: Vec<u32>,
        token_ids: Bound<PyAny>,
        logprobs: Bound<PyAny>,
        transitions: Option<Bound<PyAny>>,
        params: Option<&Bound<PyDict>>,
    ) -> PyResult<PyTree> {
        let params = trees::params(py, params)?;
        let query = Wanted::new(py, (context, widths, token_ids, logprobs, transitions))?;
        let tree = py.detach(|| search_one(&self.inner, &query.get(), &params));
        tree.map(PyTree::new).map_err(|error| raise(py, error))
    }

    /// Search a tree for each (context, widths, token_ids, logprobs, transitions or None), by so many threads.
    #[pyo3(signature = (queries, *, threads = 1, **params))]
    fn search_batch(
        &self,
        py: Python,
        queries: Vec<trees::Given>,
        threads: usize,
        params: Option<&Bound<PyDict>>,
    ) -> PyResult<Vec<PyTree>> {
        let params = trees::params(py, params)?;
        let wanted = queries.into_iter().map(|given| Wanted::new(py, given)).collect::<PyResult<Vec<Wanted>>>()?;
        let queries: Vec<Query> = wanted.iter().map(Wanted::get).collect();
        let pool = trees::pool(threads).map_err(|error| raise(py, error))?;
        let found = py.detach(|| search_batch(&self.inner, &queries, &params, pool.as_ref()));
        let found = found.map_err(|fault| raise(py, fault.into()))?;
        Ok(found.into_iter().map(PyTree::new).collect())
    }
}
