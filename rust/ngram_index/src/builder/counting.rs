//! N-grams in any order into sorted runs: one buffer is sorted, counted and written while the other fills.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::{mem, thread};

use super::journal::Journal;
use super::key::Key;
use super::merge::add;
use super::place::Mark;
use super::run::RunWriter;
use crate::error::{Error, Result};

/// Fewest n-grams in a buffer, however little memory is allowed.
const MIN_ITEMS: usize = 1 << 12;
const WRITE_BUFFER: usize = 1 << 20;

/// An n-gram that was seen.
pub(crate) trait Item: Copy + Send + 'static {
    type Key: Key;
    fn key(self) -> Self::Key;
    /// How often.
    fn count(self) -> u64;
}

macro_rules! window {
    ($int:ty) => {
        impl Item for $int {
            type Key = Self;
            #[inline]
            fn key(self) -> Self {
                self
            }
            #[inline]
            fn count(self) -> u64 {
                1
            }
        }
    };
}

window!(u64);
window!(u128);

/// An n-gram with its count.
#[derive(Clone, Copy)]
pub(crate) struct Counted<K> {
    pub key: K,
    pub count: u64,
}

impl<K: Key> Item for Counted<K> {
    type Key = K;
    fn key(self) -> K {
        self.key
    }
    fn count(self) -> u64 {
        self.count
    }
}

/// The buffers, and the journal while no thread has it.
pub(crate) struct Counting<T> {
    items: Vec<T>,
    limit: usize,
    state: State<T>,
}

enum State<T> {
    /// No buffer was full yet.
    Small(Journal),
    Running(Worker<T>),
    /// The thread has failed and said why.
    Failed,
}

struct Worker<T> {
    full: SyncSender<(Vec<T>, Mark)>,
    empty: Receiver<Vec<T>>,
    thread: JoinHandle<Result<Journal>>,
}

impl<T: Item> Counting<T> {
    /// `memory`: bytes of both buffers.
    pub fn new(journal: Journal, memory: usize) -> Self {
        let limit = memory.saturating_sub(WRITE_BUFFER) / 2 / mem::size_of::<T>();
        Self {
            items: Vec::new(),
            limit: limit.max(MIN_ITEMS),
            state: State::Small(journal),
        }
    }

    /// Add an n-gram. `mark` says what those before it cover, in case they become a run.
    #[inline]
    pub fn push(&mut self, item: T, mark: impl FnOnce() -> Mark) -> Result<()> {
        if self.items.len() == self.items.capacity() {
            self.make_room(mark)?;
        }
        self.items.push(item);
        Ok(())
    }

    #[cold]
    fn make_room(&mut self, mark: impl FnOnce() -> Mark) -> Result<()> {
        if self.items.len() < self.limit {
            // Grows by hand, because a vector that doubles on its own overshoots the limit.
            let more = self.items.len().max(MIN_ITEMS).min(self.limit - self.items.len());
            self.items.reserve_exact(more);
            return Ok(());
        }
        if let State::Small(_) = self.state {
            let State::Small(journal) = mem::replace(&mut self.state, State::Failed) else {
                return Ok(());
            };
            self.state = State::Running(Worker::start(journal, self.limit)?);
        }
        let State::Running(worker) = &self.state else {
            return Err(Error::Interrupted);
        };
        let sent = worker.full.send((mem::take(&mut self.items), mark())).is_ok();
        match sent.then(|| worker.empty.recv().ok()).flatten() {
            Some(empty) => self.items = empty,
            None => return Err(self.failure()),
        }
        Ok(())
    }

    fn failure(&mut self) -> Error {
        match mem::replace(&mut self.state, State::Failed) {
            State::Running(worker) => worker.finish().err().unwrap_or(Error::Interrupted),
            _ => Error::Interrupted,
        }
    }

    /// Give up: wait for the thread and drop what it made.
    pub fn stop(self) {
        if let State::Running(worker) = self.state {
            // Its error, if any, does not matter any more.
            let _ = worker.finish();
        }
    }

    /// Write what is left; returns the journal of all runs.
    pub fn finish(mut self, mark: Mark) -> Result<Journal> {
        let mut journal = match mem::replace(&mut self.state, State::Failed) {
            State::Small(journal) => journal,
            State::Running(worker) => worker.finish()?,
            State::Failed => return Err(Error::Interrupted),
        };
        if !self.items.is_empty() {
            write_run(&mut journal, &mut self.items, mark)?;
        }
        Ok(journal)
    }
}

impl<T: Item> Worker<T> {
    fn start(mut journal: Journal, limit: usize) -> Result<Self> {
        let (full, filled) = sync_channel::<(Vec<T>, Mark)>(0);
        let (emptied, empty) = channel();
        let work = move || {
            // The second buffer; whoever waits for it may be gone already.
            let _ = emptied.send(Vec::with_capacity(limit));
            for (mut items, mark) in filled {
                write_run(&mut journal, &mut items, mark)?;
                items.clear();
                let _ = emptied.send(items);
            }
            Ok(journal)
        };
        let thread = thread::Builder::new().name("counter".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Error::Io {
            context: "cannot start a thread to count".to_owned(),
            source: error,
        })?;
        Ok(Self { full, empty, thread })
    }

    fn finish(self) -> Result<Journal> {
        drop(self.full);
        self.thread.join().unwrap_or(Err(Error::Interrupted))
    }
}

/// Sort and count one buffer into a run that the journal then names.
fn write_run<T: Item>(journal: &mut Journal, items: &mut [T], mark: Mark) -> Result<()> {
    items.sort_unstable_by_key(|item| item.key());
    let mut run = RunWriter::<T::Key>::create(journal.next_run(), WRITE_BUFFER)?;
    let mut rest = items.iter();
    if let Some(first) = rest.next() {
        let (mut key, mut count) = (first.key(), first.count());
        for item in rest {
            if item.key() == key {
                count = add(count, item.count())?;
            } else {
                run.push(key, count)?;
                (key, count) = (item.key(), item.count());
            }
        }
        run.push(key, count)?;
    }
    let info = run.finish(journal.durable())?;
    journal.add(info, mark)
}
