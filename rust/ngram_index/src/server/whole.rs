//! Connections that take one buffer at a time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// A connection that does not offer vectored writes.
///
/// HTTP/2 writes the payload of a message apart from what comes before and after it, except a short one, which is copied
/// behind its header. Without vectored writes "short" ends at 1024 bytes instead of 256, so that the answer to a search,
/// about 850 bytes, goes out with its trailers in one piece, and the client wakes up for it once instead of twice.
pub(super) struct Whole<T>(pub T);

impl<T: AsyncRead + Unpin> AsyncRead for Whole<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Whole<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl<T: Connected> Connected for Whole<T> {
    type ConnectInfo = T::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.0.connect_info()
    }
}
