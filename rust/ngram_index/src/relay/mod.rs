//! A gateway's ends of Rounds streams, in a thread of their own.
//!
//! What a verifier offers is answered here: its proposals are searched and the trees go back in a `verify`, while Python
//! still reads what came. It only learns of it afterwards. Everything else (which sessions, how many offers of each, what
//! to do without a tree) stays with whoever holds the [`Relay`].

mod desk;
mod inbox;
mod raw;
mod rounds;
mod searcher;

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use prost::bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tonic::Status;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};

use crate::error::{Error, Result};
use crate::server::v1;
use desk::Route;
pub use inbox::Came;
use inbox::Inbox;
use rounds::Stream;
use searcher::Searcher;

/// As every client of these services: pings that keep a silent connection alive.
const PING_EVERY: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// A long prompt or a batch of trees passes the default of 4 MiB.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// A message of many sessions must not wait for the other side's leave to go on.
const WINDOW_BYTES: u32 = 4 << 20;

/// Streams to verifiers, and to the ngram services that their offers are searched with.
pub struct Relay {
    runtime: Handle,
    inbox: Arc<Inbox>,
    state: Mutex<State>,
    thread: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

#[derive(Default)]
struct State {
    last: u64,
    streams: HashMap<u64, Stream>,
    searchers: HashMap<String, Arc<Searcher>>,
}

impl Relay {
    /// Start the thread.
    pub fn start() -> Result<Self> {
        let fail = |source| Error::Io {
            context: "cannot start the relay's thread".to_owned(),
            source,
        };
        let inbox = Arc::new(Inbox::new().map_err(fail)?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fail)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("gateway-relay".to_owned()).spawn(move || {
            // An error says that the sender is gone, which ends it too.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        });
        Ok(Self {
            runtime: handle,
            inbox,
            state: Mutex::default(),
            thread: Mutex::new(Some((stop, thread.map_err(fail)?))),
        })
    }

    /// Readable while something waits to be taken.
    pub fn fd(&self) -> RawFd {
        self.inbox.fd()
    }

    /// What has come since the last time, in order.
    pub fn take(&self) -> Vec<Came> {
        self.inbox.take()
    }

    /// Connect to a verifier, "host:port" or "unix:/path"; gives the stream's number, which is never used again.
    pub fn open(&self, address: &str) -> Result<u64> {
        let endpoint = endpoint(address)?;
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        let stream = Stream::open(id, endpoint, &self.runtime, self.inbox.clone());
        state.streams.insert(id, stream);
        Ok(id)
    }

    /// Send a RoundsRequest, serialised. Does nothing on a stream that has ended.
    pub fn send(&self, stream: u64, message: Bytes) {
        if let Some(stream) = self.state().streams.get(&stream) {
            stream.send(message);
        }
    }

    /// End a stream; nothing more comes of it.
    pub fn close(&self, stream: u64) {
        self.state().streams.remove(&stream);
    }

    /// Search offers of a stream from now on with the service at an address, by a request without queries; None: not.
    pub fn route(&self, stream: u64, route: Option<(String, v1::SearchRequest, Duration)>) -> Result<()> {
        let mut state = self.state();
        let route = match route {
            None => None,
            Some((address, request, timeout)) => {
                let endpoint = endpoint(&address)?;
                let new = || Arc::new(Searcher::new(endpoint, self.runtime.clone()));
                let searcher = state.searchers.entry(address).or_insert_with(new).clone();
                Some(Route::new(searcher, request, timeout))
            }
        };
        if let Some(stream) = state.streams.get(&stream) {
            stream.desk().route = route;
        }
        // Whoever is still being asked is kept by the batch that asks.
        state.searchers.retain(|_, searcher| Arc::strong_count(searcher) > 1);
        Ok(())
    }

    /// A session is about to be opened; `context` are its last tokens.
    pub fn follow(&self, stream: u64, session: u64, context: Vec<u32>) {
        if let Some(stream) = self.state().streams.get(&stream) {
            stream.desk().follow(session, context);
        }
    }

    /// Answer so many more offers of a session, whatever was allowed before.
    pub fn allow(&self, stream: u64, session: u64, offers: u32) {
        if let Some(stream) = self.state().streams.get(&stream) {
            stream.desk().allow(session, offers);
        }
    }

    /// A session has ended.
    pub fn forget(&self, stream: u64, session: u64) {
        if let Some(stream) = self.state().streams.get(&stream) {
            stream.desk().forget(session);
        }
    }

    /// End every stream and the thread.
    pub fn stop(&self) {
        self.state().streams.clear();
        let running = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((stop, thread)) = running {
            drop(stop);
            // A thread that panicked has ended as well.
            let _ = thread.join();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop();
    }
}

fn endpoint(address: &str) -> Result<Endpoint> {
    let uri = match address.strip_prefix("unix:") {
        Some(path) => format!("unix://{path}"),
        None => format!("http://{address}"),
    };
    let endpoint =
        Endpoint::from_shared(uri).map_err(|error| Error::invalid("address", format!("{error}: {address:?}")))?;
    Ok(endpoint
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES))
}

async fn connect(endpoint: Endpoint) -> std::result::Result<Grpc<Channel>, Status> {
    let fail = |error: tonic::transport::Error| Status::unavailable(chain(&error));
    let channel = endpoint.connect().await.map_err(fail)?;
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    grpc.ready().await.map_err(fail)?;
    Ok(grpc)
}

/// An error with its causes: the first says only that there was one.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
