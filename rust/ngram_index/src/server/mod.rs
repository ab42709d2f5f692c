//! The gRPC server over the core, on TCP and Unix sockets at once. The only module that names tonic.
//!
//! A client on a Unix socket must send an `:authority` such as `localhost`: the escaped path that some gRPC libraries
//! send by default is not one by RFC 3986, and the stream is reset (github.com/hyperium/h2 pull request 487).

mod listen;
mod service;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::{Router, TcpIncoming};

use crate::error::{Error, Result};
use crate::reader::Index;
use listen::{Listener, bind};
use service::Service;

/// Protobuf types of `dartspec.v1` that the service needs.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("dartspec.v1");
}

const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dartspec_v1.bin"));
const SERVICE: &str = "dartspec.v1.NgramService";
/// Calls of one connection that are worked on at a time; the others wait at the client.
const MAX_STREAMS: u32 = 1024;

/// Where and how to serve.
#[derive(Clone, Debug)]
pub struct Config {
    /// "host:port" (port 0 chooses a free one) or "unix:/path" (a stale socket file is replaced); at least one.
    pub listen: Vec<String>,
    /// Largest request and response in bytes.
    pub max_message_bytes: usize,
    /// Threads that search the queries of a batch.
    pub threads: usize,
}

/// A running server; dropping it stops it at once.
pub struct Server {
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    state: Arc<State>,
    addresses: Vec<String>,
    sockets: Vec<SocketFile>,
}

/// A socket file that is removed with its server, unless another file took its name.
struct SocketFile {
    path: PathBuf,
    inode: Option<u64>,
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|found| found.ino())
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path) == self.inode {
            // Somebody else may have removed it just now.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// How many listeners are still served, for waiting on.
struct State {
    open: Mutex<usize>,
    changed: Condvar,
}

impl Server {
    /// Bind the addresses and serve in background threads. When this returns, calls are answered.
    pub fn start(indexes: Vec<Arc<Index>>, config: &Config) -> Result<Self> {
        if config.listen.is_empty() {
            return Err(Error::invalid("listen", "must hold at least one address"));
        }
        if config.threads == 0 {
            return Err(Error::invalid("threads", "must be at least 1, got 0"));
        }
        let service = Service::new(indexes, config.threads)?;
        let mut listeners = Vec::with_capacity(config.listen.len());
        let mut addresses = Vec::with_capacity(config.listen.len());
        let mut sockets = Vec::new();
        for address in &config.listen {
            let listener = bind(address)?;
            if let Listener::Unix(_, path) = &listener {
                sockets.push(SocketFile {
                    path: path.clone(),
                    inode: inode(path),
                });
            }
            addresses.push(with_port(address, &listener));
            listeners.push(listener);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.threads.max(2))
            .thread_name("ngram-serve")
            .enable_all()
            .build()
            .map_err(|source| Error::Io {
                context: "cannot start the server's threads".to_owned(),
                source,
            })?;
        let (stop, stopped) = watch::channel(false);
        let state = Arc::new(State {
            open: Mutex::new(listeners.len()),
            changed: Condvar::new(),
        });
        {
            let _context = runtime.enter();
            let router = runtime.block_on(router(service, config.max_message_bytes, stopped.clone()))?;
            for listener in listeners {
                let serving = serve(router.clone(), listener, stopped.clone())?;
                runtime.spawn(state.clone().leave_after(serving));
            }
        }
        Ok(Self {
            runtime: Some(runtime),
            stop,
            state,
            addresses,
            sockets,
        })
    }

    /// The addresses served, free ports filled in.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Stop taking calls, let those that run finish within `grace`, then end. Returns whether all finished.
    pub fn stop(&mut self, grace: Duration) -> bool {
        let Some(runtime) = self.runtime.take() else {
            return true;
        };
        // Fails when nothing listens any more, which is what is wanted.
        let _ = self.stop.send(true);
        let finished = self.waiter().wait(Some(grace));
        runtime.shutdown_background();
        self.sockets.clear();
        self.state.leave_all();
        finished
    }

    /// Something to wait for the end with, from another thread.
    pub fn waiter(&self) -> Waiter {
        Waiter(self.state.clone())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// Waits for the end of a server.
pub struct Waiter(Arc<State>);

impl Waiter {
    /// Wait until nothing is served any more; false if that took longer than the time-out.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        while *open > 0 {
            let Some(deadline) = deadline else {
                open = self.0.changed.wait(open).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            open = self.0.changed.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl State {
    fn leave_all(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = 0;
        self.changed.notify_all();
    }

    async fn leave_after(self: Arc<Self>, serving: impl Future) {
        serving.await;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open = open.saturating_sub(1);
        self.changed.notify_all();
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop too.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

fn serve(
    router: Router,
    listener: Listener,
    stopped: watch::Receiver<bool>,
) -> Result<impl Future<Output = std::result::Result<(), tonic::transport::Error>> + Send> {
    let listen = |source| Error::Io {
        context: "cannot listen".to_owned(),
        source,
    };
    let tcp_or_unix = match listener {
        Listener::Tcp(listener) => {
            let listener = tokio::net::TcpListener::from_std(listener).map_err(listen)?;
            Incoming::Tcp(TcpIncoming::from(listener).with_nodelay(Some(true)))
        }
        Listener::Unix(listener, _) => {
            let listener = tokio::net::UnixListener::from_std(listener).map_err(listen)?;
            Incoming::Unix(UnixListenerStream::new(listener))
        }
    };
    Ok(async move {
        match tcp_or_unix {
            Incoming::Tcp(incoming) => router.serve_with_incoming_shutdown(incoming, until(stopped)).await,
            Incoming::Unix(incoming) => router.serve_with_incoming_shutdown(incoming, until(stopped)).await,
        }
    })
}

enum Incoming {
    Tcp(TcpIncoming),
    Unix(UnixListenerStream),
}

/// The address with the port that was chosen for port 0.
fn with_port(address: &str, listener: &Listener) -> String {
    let port = match listener {
        Listener::Tcp(listener) => listener.local_addr().map(|address| address.port()),
        Listener::Unix(..) => return address.to_owned(),
    };
    match (address.rsplit_once(':'), port) {
        (Some((host, _)), Ok(port)) => format!("{host}:{port}"),
        _ => address.to_owned(),
    }
}

async fn router(service: Service, max_message_bytes: usize, stopped: watch::Receiver<bool>) -> Result<Router> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status(SERVICE, tonic_health::ServingStatus::Serving).await;
    tokio::spawn(async move {
        until(stopped).await;
        for name in ["", SERVICE] {
            health.set_service_status(name, tonic_health::ServingStatus::NotServing).await;
        }
    });
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let broken = |error: tonic_reflection::server::Error| Error::Io {
        context: "cannot describe the service".to_owned(),
        source: io::Error::other(error),
    };
    let ngram = v1::ngram_service_server::NgramServiceServer::new(service)
        .max_decoding_message_size(max_message_bytes)
        .max_encoding_message_size(max_message_bytes);
    Ok(tonic::transport::Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .add_service(health_service)
        .add_service(reflection().build_v1().map_err(broken)?)
        .add_service(reflection().build_v1alpha().map_err(broken)?)
        .add_service(ngram))
}
