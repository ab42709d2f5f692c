//! One Rounds stream: messages in both ways, and offers that are answered on the way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;

use super::connect;
use super::desk::{Batch, Desk, Route};
use super::inbox::{Came, Inbox};
use super::raw::Raw;
use crate::server::v1;

const ROUNDS: PathAndQuery = PathAndQuery::from_static("/dartspec.v1.VerifierService/Rounds");
/// From an answer until Python may read what led to it. Where processors are few, it would take the one that the
/// verifier needs for reading the answer.
const LET_GO: Duration = Duration::from_millis(1);

/// A stream that is open or ends by itself; dropping it ends it at once.
pub(super) struct Stream {
    outgoing: mpsc::UnboundedSender<Bytes>,
    desk: Arc<Mutex<Desk>>,
    running: AbortHandle,
}

impl Stream {
    pub fn open(id: u64, endpoint: Endpoint, runtime: &Handle, inbox: Arc<Inbox>) -> Self {
        let (outgoing, queue) = mpsc::unbounded_channel();
        let desk = Arc::new(Mutex::new(Desk::default()));
        let reader = Arc::new(Reader {
            id,
            outgoing: outgoing.downgrade(),
            desk: desk.clone(),
            inbox,
        });
        let running = runtime.spawn(async move {
            let status = match reader.run(endpoint, queue).await {
                Ok(()) => Status::ok(""),
                Err(status) => status,
            };
            reader.inbox.push(Came::Ended {
                stream: id,
                code: status.code().into(),
                message: status.message().to_owned(),
                details: Bytes::copy_from_slice(status.details()),
            });
            reader.inbox.ring();
        });
        Self {
            outgoing,
            desk,
            running: running.abort_handle(),
        }
    }

    pub fn send(&self, message: Bytes) {
        // Fails when the stream has ended, which its reader says.
        let _ = self.outgoing.send(message);
    }

    pub fn desk(&self) -> MutexGuard<'_, Desk> {
        lock(&self.desk)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.running.abort();
    }
}

struct Reader {
    id: u64,
    outgoing: mpsc::WeakUnboundedSender<Bytes>,
    desk: Arc<Mutex<Desk>>,
    inbox: Arc<Inbox>,
}

impl Reader {
    async fn run(self: &Arc<Self>, endpoint: Endpoint, queue: mpsc::UnboundedReceiver<Bytes>) -> Result<(), Status> {
        let mut grpc = connect(endpoint).await?;
        let requests = tonic::Request::new(UnboundedReceiverStream::new(queue));
        let mut messages = grpc.streaming(requests, ROUNDS, Raw).await?.into_inner();
        while let Some(data) = messages.message().await? {
            self.heard(data);
        }
        Ok(())
    }

    fn heard(self: &Arc<Self>, data: Bytes) {
        let mut batches = Vec::new();
        let mut route = None;
        // Whoever takes a message that is none finds out for themselves.
        if let Ok(message) = v1::RoundsResponse::decode(data.clone()) {
            let mut desk = lock(&self.desk);
            batches = desk.hear(message);
            route = desk.route.clone();
        }
        let answering: Vec<u64> = batches.iter().flat_map(|batch| &batch.offers).map(|&(session, _)| session).collect();
        let leave = answering.is_empty();
        self.inbox.push(Came::Message {
            stream: self.id,
            data,
            answering,
        });
        if leave {
            self.inbox.ring();
        }
        if let Some(route) = route {
            for batch in batches {
                tokio::spawn(self.clone().answer(batch, route.clone()));
            }
        }
    }

    async fn answer(self: Arc<Self>, batch: Batch, route: Route) {
        let found = route.searcher.search(batch.request, route.timeout).await;
        let sessions = batch.offers.iter().map(|&(session, _)| session).collect();
        // Pushed without a pause after the commands, so that it lies before anything that the verifier says to them.
        self.inbox.push(match found {
            Ok(response) => {
                self.verify(&batch.offers, response.trees);
                Came::Answered {
                    stream: self.id,
                    sessions,
                    search_us: response.search_us,
                }
            }
            Err(status) => Came::Unanswered {
                stream: self.id,
                sessions,
                code: status.code().into(),
                reason: status.message().to_owned(),
            },
        });
        tokio::time::sleep(LET_GO).await;
        self.inbox.ring();
    }

    fn verify(&self, offers: &[(u64, u64)], trees: Vec<v1::Tree>) {
        let commands = lock(&self.desk).commands(offers, trees);
        if !commands.commands.is_empty()
            && let Some(outgoing) = self.outgoing.upgrade()
        {
            // Fails when the stream has ended, which its reader says.
            let _ = outgoing.send(commands.encode_to_vec().into());
        }
    }
}

fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}
