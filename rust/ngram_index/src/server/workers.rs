//! Where queries are worked on: a few right where the call is, many in threads of their own.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use tokio::sync::oneshot;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::metrics::Metrics;
use super::queue::Queue;
use super::service::bad_request;
use crate::error::{Error, Result};

/// Shortest and longest time that a refused caller is told to wait.
const MIN_RETRY: Duration = Duration::from_millis(1);
const MAX_RETRY: Duration = Duration::from_secs(5);

/// The threads, and who may give them work.
#[derive(Clone)]
pub(super) struct Workers {
    pool: Arc<rayon::ThreadPool>,
    queue: Arc<Queue>,
    metrics: Arc<Metrics>,
    threads: usize,
    max_queries: usize,
}

/// Answers in the order of the queries, or the error of the first one that has one; and the time it took.
type Outcome<A> = (std::result::Result<Vec<A>, Status>, Duration);

/// Work that has begun.
pub(super) enum Running<A> {
    /// And ended.
    Done(Outcome<A>),
    /// In the threads.
    Elsewhere(oneshot::Receiver<Outcome<A>>),
}

impl Workers {
    pub fn new(threads: usize, max_queries: usize, max_queue: usize, metrics: Arc<Metrics>) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("ngram-search-{i}"))
            // The caller gets INTERNAL because its answer never comes; without a handler the process would end.
            .panic_handler(|_| {})
            .build()
            .map_err(|error| Error::Io {
                context: "cannot start the search threads".to_owned(),
                source: io::Error::other(error),
            })?;
        Ok(Self {
            pool: Arc::new(pool),
            queue: Arc::new(Queue::new(max_queue)),
            metrics,
            threads,
            max_queries,
        })
    }

    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Do `work` for every query, given its number: before this returns if `here`, else in the threads.
    pub fn run<Q, A, F>(&self, queries: Vec<Q>, here: bool, work: F) -> std::result::Result<Running<A>, Status>
    where
        Q: Send + Sync + 'static,
        A: Send + 'static,
        F: Fn(usize, &Q) -> std::result::Result<A, Status> + Send + Sync + 'static,
    {
        let start = Instant::now();
        if queries.len() > self.max_queries {
            let message = format!("must be at most {}, got {}", self.max_queries, queries.len());
            return Err(bad_request("queries", &message));
        }
        let ticket = self.queue.enter(queries.len()).ok_or_else(|| self.full(queries.len()))?;
        if here {
            let answers = queries.iter().enumerate().map(|(i, query)| work(i, query)).collect();
            return Ok(Running::Done((answers, start.elapsed())));
        }
        let (sender, receiver) = oneshot::channel();
        self.pool.spawn(move || {
            let one = |(i, query): (usize, &Q)| {
                if sender.is_closed() {
                    Err(Status::cancelled("the caller went away"))
                } else {
                    work(i, query)
                }
            };
            // Collected in order, so the first query at fault is the one reported, whichever thread found it.
            let answers: Vec<_> = queries.par_iter().enumerate().map(one).collect();
            let answers = answers.into_iter().collect();
            drop((queries, ticket));
            // Fails when the caller went away.
            let _ = sender.send((answers, start.elapsed()));
        });
        Ok(Running::Elsewhere(receiver))
    }

    /// RESOURCE_EXHAUSTED with the time after which what waits now is done.
    fn full(&self, queries: usize) -> Status {
        let waiting = self.queue.len();
        let each = self.metrics.mean_query().unwrap_or(MIN_RETRY);
        let rounds = u32::try_from(waiting / self.threads).unwrap_or(u32::MAX);
        let retry = each.saturating_mul(rounds).clamp(MIN_RETRY, MAX_RETRY);
        let message = format!(
            "{waiting} queries are waiting, {queries} more would be beyond the limit of {}; try again in {} ms",
            self.queue.limit(),
            retry.as_millis()
        );
        Status::with_error_details(
            Code::ResourceExhausted,
            message,
            ErrorDetails::with_retry_info(Some(retry)),
        )
    }
}

impl<A> Running<A> {
    /// Wait for the end.
    pub async fn outcome(self) -> Outcome<A> {
        match self {
            Self::Done(outcome) => outcome,
            Self::Elsewhere(receiver) => receiver
                .await
                .unwrap_or_else(|_| (Err(Status::internal("a search thread panicked")), Duration::ZERO)),
        }
    }
}
