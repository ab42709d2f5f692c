//! What the service counts. All of it is relaxed atomics, so counting costs nanoseconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tonic::Code;

/// Upper bounds of the histograms' buckets, seconds; one more bucket holds what is longer.
pub const BOUNDS: [f64; 14] = [
    10e-6, 20e-6, 50e-6, 100e-6, 150e-6, 200e-6, 300e-6, 500e-6, 1e-3, 2e-3, 5e-3, 20e-3, 100e-3, 1.0,
];
/// Lengths of matched contexts that are told apart: 0 to 4 tokens.
const MATCHED: usize = 5;
/// Status codes of gRPC.
const CODES: usize = 17;

/// The calls of the service.
#[derive(Clone, Copy, Debug)]
pub(super) enum Method {
    Search,
    SearchStream,
    Score,
    Describe,
}

impl Method {
    const ALL: [Self; 4] = [Self::Search, Self::SearchStream, Self::Score, Self::Describe];

    fn name(self) -> &'static str {
        match self {
            Self::Search => "Search",
            Self::SearchStream => "SearchStream",
            Self::Score => "Score",
            Self::Describe => "Describe",
        }
    }
}

#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Histogram {
    fn record(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    fn snapshot(&self) -> Times {
        Times {
            buckets: self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect(),
            seconds: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)).as_secs_f64(),
        }
    }
}

/// Counters of one server.
#[derive(Default)]
pub(super) struct Metrics {
    calls: [[AtomicU64; CODES]; Method::ALL.len()],
    call_times: [Histogram; Method::ALL.len()],
    search_times: Histogram,
    score_queries: AtomicU64,
    contexts: AtomicU64,
    nodes: [AtomicU64; MATCHED],
}

/// How long something took, how often.
#[derive(Clone, Debug)]
pub struct Times {
    /// How often within each of [`BOUNDS`] and beyond the last one; not cumulated.
    pub buckets: Vec<u64>,
    /// All of it together.
    pub seconds: f64,
}

/// The counters at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// (method, number of the gRPC status, calls) of all pairs that occurred. Calls that were refused before they
    /// reached the service, such as too large messages, are not among them.
    pub calls: Vec<(&'static str, i32, u64)>,
    /// Time of whole calls by method; of a stream, from its first to its last message.
    pub call_times: Vec<(&'static str, Times)>,
    /// Time of each searched query.
    pub search_times: Times,
    /// Queries of Score.
    pub score_queries: u64,
    /// Different contexts of each searched query whose continuations were looked up, summed.
    pub contexts: u64,
    /// Nodes of the answered trees, by the tokens of the longest context that knew them as a continuation.
    pub nodes_by_matched: Vec<u64>,
}

impl Metrics {
    /// A tree was searched after looking up so many contexts; `feature_bins` are its nodes', packed.
    pub fn searched(&self, time: Duration, contexts: u32, feature_bins: &[u8]) {
        self.search_times.record(time);
        self.contexts.fetch_add(u64::from(contexts), Ordering::Relaxed);
        let mut nodes = [0_u64; MATCHED];
        for bin in feature_bins.as_chunks::<2>().0 {
            let matched = usize::from(u16::from_le_bytes(*bin) >> 3 & 7);
            nodes[matched.min(MATCHED - 1)] += 1;
        }
        for (total, nodes) in self.nodes.iter().zip(nodes).filter(|(_, nodes)| *nodes > 0) {
            total.fetch_add(nodes, Ordering::Relaxed);
        }
    }

    /// A query of Score was answered.
    pub fn scored(&self) {
        self.score_queries.fetch_add(1, Ordering::Relaxed);
    }

    /// Mean time of a searched query, once there was one.
    pub fn mean_query(&self) -> Option<Duration> {
        let nanos = self.search_times.nanos.load(Ordering::Relaxed);
        nanos.checked_div(self.search_times.count()).map(Duration::from_nanos)
    }

    /// A call begins.
    pub fn call(self: &Arc<Self>, method: Method) -> Call {
        Call {
            metrics: self.clone(),
            method,
            start: Instant::now(),
            code: Code::Cancelled,
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        let mut calls = Vec::new();
        let mut call_times = Vec::new();
        for method in Method::ALL {
            for (code, count) in self.calls[method as usize].iter().enumerate() {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    calls.push((method.name(), code as i32, count));
                }
            }
            call_times.push((method.name(), self.call_times[method as usize].snapshot()));
        }
        Snapshot {
            calls,
            call_times,
            search_times: self.search_times.snapshot(),
            score_queries: self.score_queries.load(Ordering::Relaxed),
            contexts: self.contexts.load(Ordering::Relaxed),
            nodes_by_matched: self.nodes.iter().map(|nodes| nodes.load(Ordering::Relaxed)).collect(),
        }
    }
}

/// A call that runs; counted when it is dropped, as CANCELLED if nobody said how it ended.
pub(super) struct Call {
    metrics: Arc<Metrics>,
    method: Method,
    start: Instant,
    code: Code,
}

impl Call {
    /// How it ended.
    pub fn ended(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let method = self.method as usize;
        self.metrics.calls[method][self.code as usize].fetch_add(1, Ordering::Relaxed);
        self.metrics.call_times[method].record(self.start.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_the_bucket_whose_bound_they_do_not_exceed() {
        let histogram = Histogram::default();
        for micros in [1, 10, 11, 100, 2_000_000] {
            histogram.record(Duration::from_micros(micros));
        }
        let times = histogram.snapshot();
        assert_eq!(times.buckets[..4], [2, 1, 0, 1]);
        assert_eq!(times.buckets[BOUNDS.len()], 1);
        assert!((times.seconds - 2.000_122).abs() < 1e-9);
    }

    #[test]
    fn nodes_by_matched_length_and_calls_by_code() {
        let metrics = Arc::new(Metrics::default());
        let bins =
            [(1, 0), (2, 2), (3, 2), (9, 4)].map(|(depth, matched)| crate::search::feature_bin(depth, matched, -9.0));
        let packed: Vec<u8> = bins.iter().flat_map(|bin| bin.to_le_bytes()).collect();
        metrics.searched(Duration::from_micros(30), 5, &packed);
        metrics.searched(Duration::from_micros(50), 2, &[]);
        metrics.call(Method::Score).ended(Code::NotFound);
        drop(metrics.call(Method::Search));
        let snapshot = metrics.snapshot();
        assert_eq!(snapshot.nodes_by_matched, [1, 0, 2, 0, 1]);
        assert_eq!(snapshot.contexts, 7);
        assert_eq!(snapshot.calls, [("Search", 1, 1), ("Score", 5, 1)]);
        assert_eq!(metrics.mean_query(), Some(Duration::from_micros(40)));
    }
}
