//! The gRPC server over the core, on TCP and Unix sockets at once.
//!
//! A client on a Unix socket must send an `:authority` such as `localhost`: the escaped path that some gRPC libraries
//! send by default is not one by RFC 3986, and the stream is reset (github.com/hyperium/h2 pull request 487).

mod catalog;
mod lifetime;
mod listen;
mod metrics;
mod queue;
mod route;
mod service;
mod stream;
mod whole;
mod workers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::error::{Error, Result};
use crate::reader::Index;
use lifetime::Lifetime;
pub use lifetime::Waiter;
use listen::{SocketFile, bind};
pub use metrics::{BOUNDS, Snapshot, Times};
use service::Service;

/// Protobuf types of `dartspec.v1` that the service needs.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("dartspec.v1");
}

const SERVICE: &str = "dartspec.v1.NgramService";
/// How long a swap waits for the calls that still use the old index.
const MAX_RELEASE: Duration = Duration::from_secs(1);

/// Where and how to serve.
#[derive(Clone, Debug)]
pub struct Config {
    /// "host:port" (port 0 chooses a free one) or "unix:/path" (a stale socket file is replaced); at least one.
    pub listen: Vec<String>,
    /// Largest request and response in bytes.
    pub max_message_bytes: usize,
    /// Most queries of one request.
    pub max_queries: usize,
    /// Most queries that wait or are worked on; more are refused with RESOURCE_EXHAUSTED.
    pub max_queue: usize,
    /// Most SearchStream calls at a time.
    pub max_streams: usize,
    /// Threads that search the queries of a batch.
    pub threads: usize,
    /// Whether health is SERVING from the start; else from [`Server::ready`] on.
    pub ready: bool,
}

impl Config {
    fn check(&self) -> Result<()> {
        if self.listen.is_empty() {
            return Err(Error::invalid("listen", "must hold at least one address"));
        }
        for (field, value) in [
            ("threads", self.threads),
            ("max_queries", self.max_queries),
            ("max_streams", self.max_streams),
        ] {
            if value == 0 {
                return Err(Error::invalid(field, "must be at least 1, got 0"));
            }
        }
        if self.max_queue < self.max_queries {
            let message = format!(
                "must be at least max_queries, {}, got {}; else the largest request never fits",
                self.max_queries, self.max_queue
            );
            return Err(Error::invalid("max_queue", message));
        }
        Ok(())
    }
}

/// A running server; dropping it stops it at once.
pub struct Server {
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    lifetime: Arc<Lifetime>,
    health: HealthReporter,
    service: Service,
    addresses: Vec<String>,
    sockets: Vec<SocketFile>,
}

impl Server {
    /// Bind the addresses and serve in background threads. When this returns, calls are answered.
    pub fn start(indexes: Vec<Arc<Index>>, config: &Config) -> Result<Self> {
        config.check()?;
        let (stop, stopped) = watch::channel(false);
        let service = Service::new(indexes, config, stopped.clone())?;
        let mut listeners = Vec::with_capacity(config.listen.len());
        let mut addresses = Vec::with_capacity(config.listen.len());
        let mut sockets = Vec::new();
        for address in &config.listen {
            let listener = bind(address)?;
            sockets.extend(listener.socket_file());
            addresses.push(listener.address(address));
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
        let lifetime = Arc::new(Lifetime::new(listeners.len()));
        let (health, health_service) = tonic_health::server::health_reporter();
        runtime.block_on(report(&health, config.ready));
        {
            let _context = runtime.enter();
            let router = route::router(service.clone(), health_service, config.max_message_bytes)?;
            for listener in listeners {
                let serving = route::serve(router.clone(), listener, stopped.clone())?;
                runtime.spawn(lifetime.clone().of(serving));
            }
        }
        Ok(Self {
            runtime: Some(runtime),
            stop,
            lifetime,
            health,
            service,
            addresses,
            sockets,
        })
    }

    /// The addresses served, free ports filled in.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Report SERVING from now on.
    pub fn ready(&self) {
        if let Some(runtime) = &self.runtime {
            runtime.block_on(report(&self.health, true));
        }
    }

    /// Stop taking calls, let those that run finish within `grace`, then end. Returns whether all finished.
    pub fn stop(&mut self, grace: Duration) -> bool {
        let Some(runtime) = self.runtime.take() else {
            return true;
        };
        runtime.block_on(report(&self.health, false));
        // Fails when nothing listens any more, which is what is wanted.
        let _ = self.stop.send(true);
        let finished = self.waiter().wait(Some(grace));
        runtime.shutdown_background();
        self.sockets.clear();
        self.lifetime.end();
        finished
    }

    /// Something to wait for the end with, from another thread.
    pub fn waiter(&self) -> Waiter {
        Waiter(self.lifetime.clone())
    }

    /// Something to look at the server and to swap its indexes with, from another thread.
    pub fn handle(&self) -> Handle {
        Handle(self.service.clone())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// Looks at a server and swaps its indexes.
#[derive(Clone)]
pub struct Handle(Service);

impl Handle {
    /// Serve `index` in place of the one for the same tokenizer. Calls that run keep the old one; this waits for them
    /// for up to a second, so that the old one's memory is let go here and not by a call.
    pub fn swap(&self, index: Arc<Index>) -> Result<()> {
        let old = self.0.catalog().swap(index)?;
        let deadline = Instant::now() + MAX_RELEASE;
        while Arc::strong_count(&old) > 1 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The indexes, by fingerprint.
    pub fn indexes(&self) -> Vec<Arc<Index>> {
        self.0.catalog().all().collect()
    }

    /// The counters.
    pub fn metrics(&self) -> Snapshot {
        self.0.metrics().snapshot()
    }

    /// Queries that wait or are worked on, and the most of them.
    pub fn queue(&self) -> (usize, usize) {
        self.0.queue()
    }

    /// Open search streams, and the most of them.
    pub fn streams(&self) -> (usize, usize) {
        self.0.streams()
    }
}

async fn report(health: &HealthReporter, serving: bool) {
    let status = if serving {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    for name in ["", SERVICE] {
        health.set_service_status(name, status).await;
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop too.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
