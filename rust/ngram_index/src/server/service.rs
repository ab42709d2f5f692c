//! The calls of NgramService: convert, call the core, convert.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use rayon::prelude::*;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::v1;
use crate::error::{Error, Result};
use crate::reader::Index;
use crate::score::score;
use crate::search::{self, Mode, Params, Query, Rule};

/// Layout of the packed fields of proposals and trees.
const REVISION: u32 = 1;
/// Most queries of one request.
const MAX_QUERIES: usize = 4096;

#[derive(Clone)]
pub(super) struct Service {
    indexes: Arc<HashMap<String, Arc<Index>>>,
    pool: Arc<rayon::ThreadPool>,
}

impl Service {
    pub(super) fn new(indexes: Vec<Arc<Index>>, threads: usize) -> Result<Self> {
        let mut by_fingerprint = HashMap::new();
        for index in indexes {
            let fingerprint = index.header().fingerprint.clone();
            let path = index.path().display().to_string();
            if let Some(other) = by_fingerprint.insert(fingerprint.clone(), index) {
                let message = format!(
                    "{path} and {} are for the same tokenizer {fingerprint}; serve one of them",
                    other.path().display()
                );
                return Err(Error::invalid("indexes", message));
            }
        }
        if by_fingerprint.is_empty() {
            return Err(Error::invalid("indexes", "must hold at least one index"));
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("ngram-search-{i}"))
            .build()
            .map_err(|error| Error::Io {
                context: "cannot start the search threads".to_owned(),
                source: io::Error::other(error),
            })?;
        Ok(Self {
            indexes: Arc::new(by_fingerprint),
            pool: Arc::new(pool),
        })
    }

    fn index(&self, fingerprint: &str) -> std::result::Result<Arc<Index>, Status> {
        if fingerprint.is_empty() {
            return Err(bad_request(
                "tokenizer_fingerprint",
                "must name the tokenizer; see Describe",
            ));
        }
        self.indexes.get(fingerprint).cloned().ok_or_else(|| {
            let mut loaded: Vec<&str> = self.indexes.keys().map(String::as_str).collect();
            loaded.sort_unstable();
            let message = format!(
                "tokenizer_fingerprint: no index for {fingerprint}; loaded: {}",
                loaded.join(", ")
            );
            Status::not_found(message)
        })
    }

    /// Do `work` for every query in the search threads, or right here if there is only one.
    async fn for_each<Q, A, F>(&self, queries: Vec<Q>, work: F) -> std::result::Result<Vec<A>, Status>
    where
        Q: Send + Sync + 'static,
        A: Send + 'static,
        F: Fn(usize, &Q) -> std::result::Result<A, Status> + Send + Sync + 'static,
    {
        if queries.len() > MAX_QUERIES {
            let message = format!("must be at most {MAX_QUERIES}, got {}", queries.len());
            return Err(bad_request("queries", &message));
        }
        if queries.len() < 2 {
            return queries.iter().map(|query| work(0, query)).collect();
        }
        let pool = self.pool.clone();
        let all = move || {
            pool.install(|| queries.par_iter().enumerate().map(|(i, query)| work(i, query)).collect::<Vec<_>>())
        };
        // Collected in order, so the first query at fault is the one reported, whichever thread found it.
        let answers = tokio::task::spawn_blocking(all).await;
        answers.map_err(|error| Status::internal(format!("search failed: {error}")))?.into_iter().collect()
    }
}

#[tonic::async_trait]
impl v1::ngram_service_server::NgramService for Service {
    async fn search(
        &self,
        request: Request<v1::SearchRequest>,
    ) -> std::result::Result<Response<v1::SearchResponse>, Status> {
        let start = Instant::now();
        let request = request.into_inner();
        let index = self.index(&request.tokenizer_fingerprint)?;
        let params = params(request.params.unwrap_or_default())?;
        let (mode, score_rule) = selection(&params);
        let search = move |i: usize, query: &v1::SearchQuery| search_one(&index, &params, i, query);
        let trees = self.for_each(request.queries, search).await?;
        let search_us = start.elapsed().as_secs_f64() * 1e6;
        Ok(Response::new(v1::SearchResponse {
            trees,
            search_us,
            mode: mode.into(),
            score_rule: score_rule.into(),
        }))
    }

    async fn score(
        &self,
        request: Request<v1::ScoreRequest>,
    ) -> std::result::Result<Response<v1::ScoreResponse>, Status> {
        let request = request.into_inner();
        let index = self.index(&request.tokenizer_fingerprint)?;
        let score = move |i: usize, query: &v1::ScoreQuery| {
            if query.context.is_empty() {
                return Err(bad_request(
                    &format!("queries[{i}].context"),
                    "must hold at least one token",
                ));
            }
            let scores = score(&index, &query.context, &query.candidates);
            Ok(v1::Scores {
                probabilities: scores.iter().map(|score| score.probability).collect(),
                matched: scores.iter().map(|score| u32::from(score.matched)).collect(),
            })
        };
        let scores = self.for_each(request.queries, score).await?;
        Ok(Response::new(v1::ScoreResponse { scores }))
    }

    async fn describe(
        &self,
        _request: Request<v1::NgramServiceDescribeRequest>,
    ) -> std::result::Result<Response<v1::NgramServiceDescribeResponse>, Status> {
        let mut indexes: Vec<v1::IndexDescription> = self.indexes.values().map(|index| describe(index)).collect();
        indexes.sort_by(|a, b| a.tokenizer_fingerprint.cmp(&b.tokenizer_fingerprint));
        Ok(Response::new(v1::NgramServiceDescribeResponse { indexes }))
    }
}

fn describe(index: &Index) -> v1::IndexDescription {
    let header = index.header();
    v1::IndexDescription {
        path: index.path().display().to_string(),
        tokenizer_fingerprint: header.fingerprint.clone(),
        order: header.order as u32,
        vocab_size: header.vocab_size as u32,
        nodes: header.nodes[..header.order].to_vec(),
        bytes: header.file_bytes,
        manifest: index.manifest().to_owned(),
    }
}

fn params(params: v1::SearchParams) -> std::result::Result<Params, Status> {
    let defaults = Params::default();
    let mode = match v1::SearchMode::try_from(params.mode) {
        Ok(v1::SearchMode::Unspecified | v1::SearchMode::Survival) => Mode::Survival,
        Ok(v1::SearchMode::Reference) => Mode::Reference,
        Err(_) => return Err(bad_request("params.mode", &format!("unknown mode {}", params.mode))),
    };
    let rule = match v1::ScoreRule::try_from(params.score_rule) {
        Ok(v1::ScoreRule::Unspecified) => None,
        Ok(v1::ScoreRule::Reference) => Some(Rule::Reference),
        Ok(v1::ScoreRule::StupidBackoff) => Some(Rule::StupidBackoff),
        Ok(v1::ScoreRule::WittenBell) => Some(Rule::WittenBell),
        Ok(v1::ScoreRule::Divided) => Some(Rule::Divided),
        Err(_) => {
            let message = format!("unknown rule {}", params.score_rule);
            return Err(bad_request("params.score_rule", &message));
        }
    };
    Ok(Params {
        mode,
        rule,
        backoff_factor: params.backoff_factor.unwrap_or(defaults.backoff_factor),
        node_budget: params.node_budget.map_or(defaults.node_budget, |value| value as usize),
        beam_width: params.beam_width.map_or(defaults.beam_width, |value| value as usize),
        skip_ngram_at_first_level: params.skip_ngram_at_first_level,
        stop_ids: params.stop_token_ids,
        ngram_weight: params.ngram_weight.unwrap_or(defaults.ngram_weight),
    })
}

/// The mode and the rule that nodes are selected by.
fn selection(params: &Params) -> (v1::SearchMode, v1::ScoreRule) {
    let mode = match params.mode {
        Mode::Survival => v1::SearchMode::Survival,
        Mode::Reference => v1::SearchMode::Reference,
    };
    let rule = match params.rule() {
        Rule::Reference => v1::ScoreRule::Reference,
        Rule::StupidBackoff => v1::ScoreRule::StupidBackoff,
        Rule::WittenBell => v1::ScoreRule::WittenBell,
        Rule::Divided => v1::ScoreRule::Divided,
    };
    (mode, rule)
}

fn search_one(
    index: &Index,
    params: &Params,
    i: usize,
    query: &v1::SearchQuery,
) -> std::result::Result<v1::Tree, Status> {
    let field = |name: &str| format!("queries[{i}].{name}");
    let Some(proposals) = &query.proposals else {
        return Err(bad_request(&field("proposals"), "must be given"));
    };
    if proposals.revision != REVISION {
        let message = format!("must be {REVISION}, got {}; upgrade the older side", proposals.revision);
        return Err(bad_request(&field("proposals.revision"), &message));
    }
    let words = |name: &str, bytes: &[u8]| {
        let (words, rest) = bytes.as_chunks::<4>();
        if rest.is_empty() {
            Ok(words.to_vec())
        } else {
            let message = format!("must be whole 4-byte values, got {} bytes", bytes.len());
            Err(bad_request(&field(name), &message))
        }
    };
    let tokens = words("proposals.token_ids", &proposals.token_ids)?;
    let tokens: Vec<i32> = tokens.into_iter().map(i32::from_le_bytes).collect();
    let logprobs = words("proposals.logprobs", &proposals.logprobs)?;
    let logprobs: Vec<f32> = logprobs.into_iter().map(f32::from_le_bytes).collect();
    let query = Query {
        context: &query.context,
        widths: &proposals.widths,
        tokens: &tokens,
        logprobs: &logprobs,
    };
    let tree = search::search_one(index, &query, params).map_err(|error| match error {
        Error::InvalidArgument { field: name, message } if name.starts_with("params.") => bad_request(name, &message),
        Error::InvalidArgument { field: name, message } => bad_request(&field(name), &message),
        error => Status::internal(error.to_string()),
    })?;
    Ok(v1::Tree {
        revision: REVISION,
        token_ids: tree.tokens.iter().flat_map(|value| value.to_le_bytes()).collect(),
        parents: tree.parents.iter().flat_map(|value| value.to_le_bytes()).collect(),
        survival: tree.survival.iter().flat_map(|value| value.to_le_bytes()).collect(),
        feature_bins: tree.feature_bins.iter().flat_map(|value| value.to_le_bytes()).collect(),
    })
}

/// INVALID_ARGUMENT with the field in the message and in the details.
fn bad_request(field: &str, message: &str) -> Status {
    let details = ErrorDetails::with_bad_request_violation(field, message);
    Status::with_error_details(Code::InvalidArgument, format!("{field}: {message}"), details)
}
