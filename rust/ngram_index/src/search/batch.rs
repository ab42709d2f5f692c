//! Many trees of one index, by several threads.

use std::cell::RefCell;

use rayon::prelude::*;

use super::{Params, Query, Searcher, Tree};
use crate::error::{Error, Result};
use crate::reader::Index;

thread_local! {
    static SEARCHER: RefCell<Searcher> = RefCell::new(Searcher::new());
}

/// The first query at fault, and why.
#[derive(Debug, thiserror::Error)]
#[error("query {query}: {error}")]
pub struct BatchError {
    /// Its position in the batch.
    pub query: usize,
    /// What is wrong with it, or with the parameters.
    pub error: Error,
}

impl From<BatchError> for Error {
    /// The fault with the query's number in the message; the field stays.
    fn from(fault: BatchError) -> Self {
        match fault.error {
            Error::InvalidArgument { field, message } => {
                Error::invalid(field, format!("query {}: {message}", fault.query))
            }
            error => error,
        }
    }
}

/// Search one tree with this thread's buffers.
pub fn search_one(index: &Index, query: &Query, params: &Params) -> Result<Tree> {
    let mut tree = Tree::default();
    SEARCHER.with_borrow_mut(|searcher| searcher.search(index, query, params, &mut tree))?;
    Ok(tree)
}

/// Search a tree for each query, by the threads of the pool if there is one. The trees are in the order of the queries and
/// the same for any number of threads.
pub fn search_batch(
    index: &Index,
    queries: &[Query],
    params: &Params,
    pool: Option<&rayon::ThreadPool>,
) -> std::result::Result<Vec<Tree>, BatchError> {
    let one =
        |(i, query): (usize, &Query)| search_one(index, query, params).map_err(|error| BatchError { query: i, error });
    let trees: Vec<_> = match pool {
        Some(pool) if queries.len() > 1 => pool.install(|| queries.par_iter().enumerate().map(one).collect()),
        _ => return queries.iter().enumerate().map(one).collect(),
    };
    trees.into_iter().collect() // in order, so the first fault is reported whichever thread found it
}
