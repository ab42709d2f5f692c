//! What has come and waits for Python, and a file descriptor that says so.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use prost::bytes::Bytes;

/// Something that happened on a stream.
#[derive(Debug, PartialEq)]
pub enum Came {
    /// A RoundsResponse, serialised. Offers of the sessions in `answering` are being searched; `Answered` will follow.
    Message {
        /// Number of the stream.
        stream: u64,
        /// The message.
        data: Bytes,
        /// Sessions.
        answering: Vec<u64>,
    },
    /// A `verify` with what was found has been sent for each of the sessions.
    Answered {
        /// Number of the stream.
        stream: u64,
        /// Sessions that were named by one message.
        sessions: Vec<u64>,
        /// Microseconds in the service, of the whole batch.
        search_us: f64,
    },
    /// Nothing was found, so nothing has been sent.
    Unanswered {
        /// Number of the stream.
        stream: u64,
        /// Sessions that were named by one message.
        sessions: Vec<u64>,
        /// A google.rpc.Code; DEADLINE_EXCEEDED says that the service took too long.
        code: i32,
        /// For people.
        reason: String,
    },
    /// The stream is over; nothing more comes of it.
    Ended {
        /// Number of the stream.
        stream: u64,
        /// A google.rpc.Code.
        code: i32,
        /// For people.
        message: String,
        /// A serialised google.rpc.Status, or empty.
        details: Bytes,
    },
}

/// Filled by the relay's thread, emptied by another.
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    bell: UnixStream,
    ear: UnixStream,
}

#[derive(Default)]
struct Waiting {
    items: Vec<Came>,
    rung: bool,
}

impl Inbox {
    pub fn new() -> io::Result<Self> {
        let (bell, ear) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ear.set_nonblocking(true)?;
        Ok(Self {
            waiting: Mutex::default(),
            bell,
            ear,
        })
    }

    pub fn fd(&self) -> RawFd {
        self.ear.as_raw_fd()
    }

    /// Add an item; it is seen with the next ring.
    pub fn push(&self, item: Came) {
        self.waiting().items.push(item);
    }

    /// Make the file descriptor readable if something waits.
    pub fn ring(&self) {
        let mut waiting = self.waiting();
        if !waiting.rung && !waiting.items.is_empty() {
            // One byte in an empty buffer: it cannot fail before the other end is gone.
            waiting.rung = (&self.bell).write(&[1]).is_ok();
        }
    }

    pub fn take(&self) -> Vec<Came> {
        let mut waiting = self.waiting();
        if std::mem::take(&mut waiting.rung) {
            // The byte is there, for it was written under the same lock.
            let _ = (&self.ear).read(&mut [0; 8]);
        }
        std::mem::take(&mut waiting.items)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(stream: u64) -> Came {
        Came::Ended {
            stream,
            code: 14,
            message: String::new(),
            details: Bytes::new(),
        }
    }

    fn readable(inbox: &Inbox) -> bool {
        let mut poll = libc::pollfd {
            fd: inbox.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd, which lives through the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn rings_once_until_it_is_emptied() {
        let inbox = Inbox::new().unwrap();
        inbox.push(ended(1));
        assert!(!readable(&inbox));
        inbox.push(ended(2));
        inbox.ring();
        inbox.push(ended(3));
        inbox.ring();
        assert!(readable(&inbox));
        assert_eq!(inbox.take(), [ended(1), ended(2), ended(3)]);
        assert!(!readable(&inbox));
        inbox.ring();
        assert!(!readable(&inbox) && inbox.take().is_empty());
        inbox.push(ended(4));
        inbox.ring();
        assert!(readable(&inbox));
    }
}
