//! Addresses to serve on, and their listeners.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A bound address.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// The address with the port that was chosen for port 0.
    pub fn address(&self, asked: &str) -> String {
        let port = match self {
            Self::Tcp(listener) => listener.local_addr().map(|address| address.port()),
            Self::Unix(..) => return asked.to_owned(),
        };
        match (asked.rsplit_once(':'), port) {
            (Some((host, _)), Ok(port)) => format!("{host}:{port}"),
            _ => asked.to_owned(),
        }
    }

    /// The file to remove with the server.
    pub fn socket_file(&self) -> Option<SocketFile> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(_, path) => Some(SocketFile {
                path: path.clone(),
                inode: inode(path),
            }),
        }
    }
}

/// A socket file that is removed with its server, unless another file took its name.
pub(super) struct SocketFile {
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

/// Bind "host:port" (port 0 chooses a free one) or "unix:/path".
pub(super) fn bind(address: &str) -> Result<Listener> {
    match address.strip_prefix("unix:") {
        Some(path) => bind_unix(Path::new(path)).map(|listener| Listener::Unix(listener, PathBuf::from(path))),
        None => bind_tcp(address).map(Listener::Tcp),
    }
}

fn bind_tcp(address: &str) -> Result<TcpListener> {
    let fail = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => Error::AddressInUse {
            address: address.to_owned(),
            message: "choose another port, or 0 for a free one".to_owned(),
        },
        _ => Error::Io {
            context: format!("cannot listen on {address}"),
            source,
        },
    };
    let Some((_, port)) = address.rsplit_once(':') else {
        return Err(invalid(address));
    };
    if port.parse::<u16>().is_err() {
        return Err(invalid(address));
    }
    let resolved: Vec<_> = address.to_socket_addrs().map_err(fail)?.collect();
    let listener = TcpListener::bind(resolved.as_slice()).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

fn invalid(address: &str) -> Error {
    Error::invalid(
        "listen",
        format!("must be \"host:port\" or \"unix:/path\", got {address:?}"),
    )
}

/// Bind a Unix socket, replacing a file that a killed server left; one that answers is left alone.
fn bind_unix(path: &Path) -> Result<UnixListener> {
    let fail = |source| Error::io("listen on", path, source);
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            let message = format!("{} exists and is not a socket; name another path", path.display());
            return Err(Error::invalid("listen", message));
        }
        match UnixStream::connect(path) {
            Ok(_) => {
                return Err(Error::AddressInUse {
                    address: format!("unix:{}", path.display()),
                    message: "a server answers on this socket; stop it or name another path".to_owned(),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(fail)?;
            }
            Err(error) => return Err(fail(error)),
        }
    }
    let listener = UnixListener::bind(path).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}
