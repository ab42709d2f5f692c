//! The calls of NgramService: convert, call the core, convert.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Semaphore, watch};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt};

use super::catalog::Catalog;
use super::metrics::{Method, Metrics};
use super::stream::Answers;
use super::workers::{Running, Workers};
use super::{Config, v1};
use crate::error::{Error, Result};
use crate::reader::Index;
use crate::score::score;
use crate::search::{self, Mode, Params, Query, Rule};

/// Layout of the packed fields of proposals and trees.
const REVISION: u32 = 1;
/// A search within these limits takes less time than handing it to another thread and back would save.
const HERE_QUERIES: usize = 4;
const HERE_CANDIDATES: usize = 1024;
const HERE_NODES: usize = 128;
/// The same for candidates to score.
const HERE_SCORES: usize = 2048;

#[derive(Clone)]
pub(super) struct Service {
    catalog: Arc<Catalog>,
    workers: Workers,
    metrics: Arc<Metrics>,
    streams: Arc<Semaphore>,
    max_streams: usize,
    stopped: watch::Receiver<bool>,
}

/// A search that has begun.
pub(super) struct BegunSearch {
    trees: Running<v1::Tree>,
    mode: v1::SearchMode,
    score_rule: v1::ScoreRule,
}

impl BegunSearch {
    /// Wait for the end.
    pub async fn answer(self) -> std::result::Result<v1::SearchResponse, Status> {
        let (trees, time) = self.trees.outcome().await;
        Ok(v1::SearchResponse {
            trees: trees?,
            search_us: time.as_secs_f64() * 1e6,
            mode: self.mode.into(),
            score_rule: self.score_rule.into(),
        })
    }
}

impl Service {
    pub(super) fn new(indexes: Vec<Arc<Index>>, config: &Config, stopped: watch::Receiver<bool>) -> Result<Self> {
        let metrics = Arc::new(Metrics::default());
        Ok(Self {
            catalog: Arc::new(Catalog::new(indexes)?),
            workers: Workers::new(config.threads, config.max_queries, config.max_queue, metrics.clone())?,
            metrics,
            streams: Arc::new(Semaphore::new(config.max_streams)),
            max_streams: config.max_streams,
            stopped,
        })
    }

    pub(super) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Queries that wait or are worked on, and the most of them.
    pub(super) fn queue(&self) -> (usize, usize) {
        (self.workers.queue().len(), self.workers.queue().limit())
    }

    /// Open search streams, and the most of them.
    pub(super) fn streams(&self) -> (usize, usize) {
        (
            self.max_streams.saturating_sub(self.streams.available_permits()),
            self.max_streams,
        )
    }

    fn index(&self, fingerprint: &str) -> std::result::Result<Arc<Index>, Status> {
        if fingerprint.is_empty() {
            return Err(bad_request(
                "tokenizer_fingerprint",
                "must name the tokenizer; see Describe",
            ));
        }
        self.catalog.get(fingerprint).ok_or_else(|| {
            let loaded: Vec<&str> = self.catalog.fingerprints().collect();
            let message = format!(
                "tokenizer_fingerprint: no index for {fingerprint}; loaded: {}",
                loaded.join(", ")
            );
            Status::not_found(message)
        })
    }

    /// Begin the searches of a request. A small one is done when this returns if it may be done `here`.
    pub(super) fn begin_search(
        &self,
        request: v1::SearchRequest,
        here: bool,
    ) -> std::result::Result<BegunSearch, Status> {
        let index = self.index(&request.tokenizer_fingerprint)?;
        let params = params(request.params.unwrap_or_default())?;
        let (mode, score_rule) = selection(&params);
        let here = here && is_small(&request.queries, &params);
        let metrics = self.metrics.clone();
        let search = move |i: usize, query: &v1::SearchQuery| {
            let start = Instant::now();
            let (tree, contexts) = search_one(&index, &params, i, query)?;
            metrics.searched(start.elapsed(), contexts, &tree.feature_bins);
            Ok(tree)
        };
        let trees = self.workers.run(request.queries, here, search)?;
        Ok(BegunSearch {
            trees,
            mode,
            score_rule,
        })
    }

    async fn search_all(&self, request: v1::SearchRequest) -> std::result::Result<v1::SearchResponse, Status> {
        self.begin_search(request, true)?.answer().await
    }

    async fn score_all(&self, request: v1::ScoreRequest) -> std::result::Result<v1::ScoreResponse, Status> {
        let index = self.index(&request.tokenizer_fingerprint)?;
        let candidates: usize = request.queries.iter().map(|query| query.candidates.len()).sum();
        let here = request.queries.len() + candidates <= HERE_SCORES;
        let metrics = self.metrics.clone();
        let score = move |i: usize, query: &v1::ScoreQuery| {
            if query.context.is_empty() {
                return Err(bad_request(
                    &format!("queries[{i}].context"),
                    "must hold at least one token",
                ));
            }
            let scores = score(&index, &query.context, &query.candidates);
            metrics.scored();
            Ok(v1::Scores {
                probabilities: scores.iter().map(|score| score.probability).collect(),
                matched: scores.iter().map(|score| u32::from(score.matched)).collect(),
            })
        };
        let scores = self.workers.run(request.queries, here, score)?.outcome().await.0?;
        Ok(v1::ScoreResponse { scores })
    }
}

/// Whether a search is over sooner than it could be handed to another thread and back.
fn is_small(queries: &[v1::SearchQuery], params: &Params) -> bool {
    let ids = |query: &v1::SearchQuery| query.proposals.as_ref().map_or(0, |proposals| proposals.token_ids.len() / 4);
    queries.len() <= HERE_QUERIES
        && params.node_budget <= HERE_NODES
        && params.beam_width <= HERE_NODES
        && queries.iter().map(ids).sum::<usize>() <= HERE_CANDIDATES
}

#[tonic::async_trait]
impl v1::ngram_service_server::NgramService for Service {
    type SearchStreamStream = Answers;

    async fn search(
        &self,
        request: Request<v1::SearchRequest>,
    ) -> std::result::Result<Response<v1::SearchResponse>, Status> {
        let mut call = self.metrics.call(Method::Search);
        let answer = self.search_all(request.into_inner()).await;
        call.ended(code(&answer));
        answer.map(Response::new)
    }

    async fn search_stream(
        &self,
        request: Request<Streaming<v1::SearchRequest>>,
    ) -> std::result::Result<Response<Answers>, Status> {
        let mut call = self.metrics.call(Method::SearchStream);
        let Ok(permit) = self.streams.clone().try_acquire_owned() else {
            call.ended(Code::ResourceExhausted);
            let message = format!(
                "{} search streams are open, which is the limit; close one, or use Search",
                self.max_streams
            );
            return Err(Status::resource_exhausted(message));
        };
        let answers = Answers::new(self.clone(), request.into_inner(), self.stopped.clone(), call, permit);
        Ok(Response::new(answers))
    }

    async fn score(
        &self,
        request: Request<v1::ScoreRequest>,
    ) -> std::result::Result<Response<v1::ScoreResponse>, Status> {
        let mut call = self.metrics.call(Method::Score);
        let answer = self.score_all(request.into_inner()).await;
        call.ended(code(&answer));
        answer.map(Response::new)
    }

    async fn describe(
        &self,
        _request: Request<v1::NgramServiceDescribeRequest>,
    ) -> std::result::Result<Response<v1::NgramServiceDescribeResponse>, Status> {
        let mut call = self.metrics.call(Method::Describe);
        let indexes = self.catalog.all().map(|index| describe(&index)).collect();
        call.ended(Code::Ok);
        Ok(Response::new(v1::NgramServiceDescribeResponse { indexes }))
    }
}

fn code<T>(answer: &std::result::Result<T, Status>) -> Code {
    answer.as_ref().map_or_else(Status::code, |_| Code::Ok)
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
        ngram_weight: params.ngram_weight,
        transition_weight: params.transition_weight,
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

/// The tree of a query, and the number of contexts that were looked up for it.
fn search_one(
    index: &Index,
    params: &Params,
    i: usize,
    query: &v1::SearchQuery,
) -> std::result::Result<(v1::Tree, u32), Status> {
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
    let (halves, rest) = proposals.transitions.as_chunks::<2>();
    if !rest.is_empty() {
        let message = format!("must be whole 2-byte values, got {} bytes", proposals.transitions.len());
        return Err(bad_request(&field("proposals.transitions"), &message));
    }
    // A bfloat16 is the upper half of a float32.
    let transitions = halves.iter().map(|half| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16));
    let transitions: Vec<f32> = transitions.collect();
    let query = Query {
        context: &query.context,
        widths: &proposals.widths,
        tokens: &tokens,
        logprobs: &logprobs,
        transitions: &transitions,
    };
    let tree = search::search_one(index, &query, params).map_err(|error| match error {
        Error::InvalidArgument { field: name, message } if name.starts_with("params.") => bad_request(name, &message),
        Error::InvalidArgument { field: name, message } => bad_request(&field(name), &message),
        error => Status::internal(error.to_string()),
    })?;
    let packed = v1::Tree {
        revision: REVISION,
        token_ids: tree.tokens.iter().flat_map(|value| value.to_le_bytes()).collect(),
        parents: tree.parents.iter().flat_map(|value| value.to_le_bytes()).collect(),
        survival: tree.survival.iter().flat_map(|value| value.to_le_bytes()).collect(),
        feature_bins: tree.feature_bins.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    Ok((packed, tree.contexts))
}

/// INVALID_ARGUMENT with the field in the message and in the details.
pub(super) fn bad_request(field: &str, message: &str) -> Status {
    let details = ErrorDetails::with_bad_request_violation(field, message);
    Status::with_error_details(Code::InvalidArgument, format!("{field}: {message}"), details)
}
