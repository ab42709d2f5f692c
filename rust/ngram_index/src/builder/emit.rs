//! Handing the merged n-grams of all runs to whoever writes them; merging runs beside it in another thread.

use std::sync::mpsc::sync_channel;
use std::thread;

use super::journal::Journal;
use super::key::Key;
use super::merge::{FAN_IN, RunMerge};
use super::run::RunWriter;
use crate::error::{Error, Result};
use crate::progress::{Progress, Stage};

/// N-grams handed over at a time.
const BATCH: usize = 1 << 14;
/// Batches that wait.
const WAITING: usize = 4;
const WRITE_BUFFER: usize = 1 << 20;

/// Merge runs until few enough are left to be read side by side.
pub(crate) fn reduce<K: Key>(journal: &mut Journal, memory: usize, progress: &mut Progress) -> Result<()> {
    while journal.runs().len() > FAN_IN {
        let mut merge = RunMerge::<K>::open(journal.folder(), &journal.runs()[..FAN_IN], memory)?;
        let mut out = RunWriter::create(journal.next_run(), WRITE_BUFFER)?;
        let mut done = 0_u64;
        let total = journal.runs()[..FAN_IN].iter().map(|run| run.rows).sum();
        while let Some((key, count)) = merge.next()? {
            out.push(key, count)?;
            done += 1;
            if done.is_multiple_of(1 << 18) {
                progress(Stage::Sort, done, total)?;
            }
        }
        let run = out.finish(journal.durable())?;
        journal.replace(FAN_IN, run)?;
    }
    Ok(())
}

/// Call `each` with every n-gram in ascending order and its count.
pub(crate) fn emit<K: Key>(
    journal: &Journal,
    memory: usize,
    progress: &mut Progress,
    mut each: impl FnMut(K, u64) -> Result<()>,
) -> Result<()> {
    let total = journal.runs().iter().map(|run| run.rows).sum();
    progress(Stage::Count, 0, total)?;
    let mut done = 0;
    thread::scope(|scope| {
        let (sender, batches) = sync_channel::<Vec<(K, u64)>>(WAITING);
        let merging = scope.spawn(move || -> Result<()> {
            let mut merge = RunMerge::open(journal.folder(), journal.runs(), memory)?;
            loop {
                let mut batch = Vec::with_capacity(BATCH);
                while batch.len() < BATCH {
                    match merge.next()? {
                        Some(row) => batch.push(row),
                        None => break,
                    }
                }
                let last = batch.len() < BATCH;
                // A receiver that is gone has failed itself and says so.
                if sender.send(batch).is_err() || last {
                    return Ok(());
                }
            }
        });
        for batch in batches {
            for (key, count) in &batch {
                each(*key, *count)?;
            }
            done += batch.len() as u64;
            progress(Stage::Count, done.min(total), total)?;
        }
        merging.join().unwrap_or(Err(Error::Interrupted))
    })?;
    progress(Stage::Count, total, total)
}
