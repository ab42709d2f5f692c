//! Searches on one stream to an ngram service, answers in the order of the requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use super::connect;
use crate::server::v1;

const SEARCH: PathAndQuery = PathAndQuery::from_static("/dartspec.v1.NgramService/SearchStream");

/// An ngram service; the stream is opened when it is needed.
pub(super) struct Searcher {
    endpoint: Endpoint,
    runtime: Handle,
    open: Mutex<Option<Open>>,
}

type Answer = oneshot::Sender<v1::SearchResponse>;

/// Who waits for answers, the longest first; once the stream is over, why.
type Waiting = Arc<Mutex<Result<VecDeque<Answer>, Status>>>;

#[derive(Clone)]
struct Open {
    requests: mpsc::UnboundedSender<v1::SearchRequest>,
    waiting: Waiting,
    reading: AbortHandle,
}

impl Searcher {
    pub fn new(endpoint: Endpoint, runtime: Handle) -> Self {
        Self {
            endpoint,
            runtime,
            open: Mutex::default(),
        }
    }

    /// One tree a query within the time; else why not.
    pub async fn search(&self, request: v1::SearchRequest, limit: Duration) -> Result<v1::SearchResponse, Status> {
        let queries = request.queries.len();
        let open = self.open();
        let answer = open.ask(request)?;
        let response = match tokio::time::timeout(limit, answer).await {
            Ok(Ok(response)) => response,
            Ok(Err(_)) => return Err(open.why()),
            Err(_) => {
                // Nothing can be taken back from a stream, and what is late would hold up what follows.
                open.end(Status::deadline_exceeded(format!(
                    "no answer in {} ms",
                    limit.as_millis()
                )));
                return Err(open.why());
            }
        };
        if response.trees.len() == queries {
            Ok(response)
        } else {
            let message = format!("{} trees for {queries} queries", response.trees.len());
            Err(Status::internal(message))
        }
    }

    fn open(&self) -> Open {
        let mut open = lock(&self.open);
        match &*open {
            Some(there) if lock(&there.waiting).is_ok() => there.clone(),
            _ => open.insert(Open::new(self.endpoint.clone(), &self.runtime)).clone(),
        }
    }
}

impl Drop for Searcher {
    fn drop(&mut self) {
        if let Some(open) = &*lock(&self.open) {
            open.end(Status::cancelled("it is no longer asked"));
        }
    }
}

impl Open {
    fn new(endpoint: Endpoint, runtime: &Handle) -> Self {
        let (requests, queue) = mpsc::unbounded_channel();
        let waiting = Waiting::new(Mutex::new(Ok(VecDeque::new())));
        let reader = waiting.clone();
        let reading = runtime.spawn(async move {
            let ended = read(endpoint, queue, &reader).await;
            end(
                &reader,
                ended.err().unwrap_or_else(|| Status::unavailable("ended the stream of searches")),
            );
        });
        Self {
            requests,
            waiting,
            reading: reading.abort_handle(),
        }
    }

    fn ask(&self, request: v1::SearchRequest) -> Result<oneshot::Receiver<v1::SearchResponse>, Status> {
        let (answer, receiver) = oneshot::channel();
        // The lock is held over both, so that answers find who asked.
        lock(&self.waiting).as_mut().map_err(|why| why.clone())?.push_back(answer);
        // Fails when the stream has ended, which its reader says to whoever waits.
        let _ = self.requests.send(request);
        Ok(receiver)
    }

    fn end(&self, why: Status) {
        end(&self.waiting, why);
        self.reading.abort();
    }

    fn why(&self) -> Status {
        let other = || Status::cancelled("the search was dropped");
        lock(&self.waiting).as_ref().err().cloned().unwrap_or_else(other)
    }
}

async fn read(
    endpoint: Endpoint,
    queue: mpsc::UnboundedReceiver<v1::SearchRequest>,
    waiting: &Waiting,
) -> Result<(), Status> {
    let mut grpc = connect(endpoint).await?;
    let requests = tonic::Request::new(UnboundedReceiverStream::new(queue));
    let mut answers = grpc.streaming(requests, SEARCH, ProstCodec::default()).await?.into_inner();
    while let Some(response) = answers.message().await? {
        let first = lock(waiting).as_mut().ok().and_then(VecDeque::pop_front);
        if let Some(answer) = first {
            // Fails when nobody waits for it any more.
            let _ = answer.send(response);
        }
    }
    Ok(())
}

/// Everybody who waits hears of it, for their senders are gone.
fn end(waiting: &Waiting, why: Status) {
    let mut waiting = lock(waiting);
    if waiting.is_ok() {
        *waiting = Err(why);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
