//! How many queries may wait or be worked on at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts queries from their arrival to their answer.
pub(super) struct Queue {
    queries: AtomicUsize,
    limit: usize,
}

/// Queries that were let in; they leave when this is dropped.
pub(super) struct Ticket {
    queue: Arc<Queue>,
    queries: usize,
}

impl Queue {
    pub fn new(limit: usize) -> Self {
        Self {
            queries: AtomicUsize::new(0),
            limit,
        }
    }

    /// Let queries in if all of them fit.
    pub fn enter(self: &Arc<Self>, queries: usize) -> Option<Ticket> {
        let fits = |waiting: usize| waiting.checked_add(queries).filter(|all| *all <= self.limit);
        self.queries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Ticket {
            queue: self.clone(),
            queries,
        })
    }

    /// Queries that wait or are worked on.
    pub fn len(&self) -> usize {
        self.queries.load(Ordering::Relaxed)
    }

    /// Most of them.
    pub fn limit(&self) -> usize {
        self.limit
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.queue.queries.fetch_sub(self.queries, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let queue = Arc::new(Queue::new(10));
        let first = queue.enter(7).unwrap();
        assert!(queue.enter(4).is_none());
        assert!(queue.enter(usize::MAX).is_none());
        let second = queue.enter(3).unwrap();
        assert_eq!(queue.len(), 10);
        drop(first);
        assert_eq!(queue.len(), 3);
        drop(second);
        assert_eq!(queue.len(), 0);
        assert!(queue.enter(10).is_some());
    }
}
