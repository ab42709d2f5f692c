//! The services behind a listener, and serving it.

use std::io;

use futures_util::TryStreamExt;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::{Router, TcpIncoming};
use tonic_health::pb::health_server::{Health, HealthServer};

use super::listen::Listener;
use super::service::Service;
use super::whole::Whole;
use super::{until, v1};
use crate::error::{Error, Result};

const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dartspec_v1.bin"));
/// Calls of one connection that are worked on at a time; the others wait at the client.
const MAX_CALLS: u32 = 1024;

/// NgramService with health and reflection.
pub(super) fn router(service: Service, health: HealthServer<impl Health>, max_message_bytes: usize) -> Result<Router> {
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
        .max_concurrent_streams(MAX_CALLS)
        .add_service(health)
        .add_service(reflection().build_v1().map_err(broken)?)
        .add_service(reflection().build_v1alpha().map_err(broken)?)
        .add_service(ngram))
}

/// Serve a listener until told to stop.
pub(super) fn serve(
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
            Incoming::Tcp(incoming) => {
                let incoming = incoming.map_ok(Whole);
                router.serve_with_incoming_shutdown(incoming, until(stopped)).await
            }
            Incoming::Unix(incoming) => {
                let incoming = incoming.map_ok(Whole);
                router.serve_with_incoming_shutdown(incoming, until(stopped)).await
            }
        }
    })
}

enum Incoming {
    Tcp(TcpIncoming),
    Unix(UnixListenerStream),
}
