//! How long a server serves: until its listeners are closed.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many listeners are still served.
pub(super) struct Lifetime {
    open: Mutex<usize>,
    changed: Condvar,
}

impl Lifetime {
    pub fn new(listeners: usize) -> Self {
        Self {
            open: Mutex::new(listeners),
            changed: Condvar::new(),
        }
    }

    /// None is served any more.
    pub fn end(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = 0;
        self.changed.notify_all();
    }

    /// Serve one listener.
    pub async fn of(self: Arc<Self>, serving: impl Future) {
        serving.await;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open = open.saturating_sub(1);
        self.changed.notify_all();
    }
}

/// Waits for the end of a server.
pub struct Waiter(pub(super) Arc<Lifetime>);

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
