//! How long the search of one tree takes: `cargo run --release --example search_time [TOKENS [FILE]]`.
//!
//! Counts TOKENS tokens (5 million if not given) of an artificial text at order 3, into FILE unless it is there already, and
//! searches trees for held-out text of the same source: 8 offsets of 25 candidates, the true next token among successors that the counts know and common
//! tokens. Prints percentiles in microseconds for each mode, one thread.

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use ngram_index::builder::Builder;
use ngram_index::reader::{Backing, Index};
use ngram_index::search::{Mode, Params, Query, Searcher, Tree};

const VOCABULARY: u32 = 49_152;
const DOCUMENT: usize = 1_000;
const OFFSETS: usize = 8;
const WIDTH: usize = 25;
const QUERIES: usize = 2_000;
const ROUNDS: usize = 4;

/// A text whose next token depends on the two before it, with a tail of rare tokens.
struct Source(u64);

impl Source {
    fn uniform(&mut self) -> f64 {
        (mix(&mut self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A token, the r-th with a probability of about 1 / r.
    fn common(&mut self) -> u32 {
        f64::from(VOCABULARY).powf(self.uniform()) as u32 - 1
    }

    fn next(&mut self, before: u32, last: u32) -> u32 {
        let kind = self.uniform();
        let choice = (self.uniform() * self.uniform() * 12.0) as u64;
        let seed = if kind < 0.55 {
            u64::from(before) << 32 | u64::from(last)
        } else {
            u64::from(last)
        };
        if kind < 0.85 {
            Source(seed.wrapping_mul(31).wrapping_add(choice)).common()
        } else {
            self.common()
        }
    }

    fn document(&mut self) -> Vec<u32> {
        let mut tokens = vec![self.common(), self.common()];
        while tokens.len() < DOCUMENT {
            let next = self.next(tokens[tokens.len() - 2], tokens[tokens.len() - 1]);
            tokens.push(next);
        }
        tokens
    }
}

/// SplitMix64.
fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut value = *state;
    value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

struct Round {
    context: Vec<u32>,
    tokens: Vec<i32>,
    logprobs: Vec<f32>,
}

impl Round {
    /// The draft's probabilities fall with rank, and those of its candidates together from 0.95 at the first offset to
    /// 0.57 at the last; the true token has the rank that they say.
    fn new(source: &mut Source, text: &[u32]) -> Self {
        let mut round = Self {
            context: text[..2].to_vec(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
        };
        for offset in 0..OFFSETS {
            let truth = text[offset + 2];
            let mut level: Vec<u32> = Vec::new();
            while level.len() < WIDTH {
                let other = if level.len().is_multiple_of(2) {
                    source.next(text[offset], text[offset + 1])
                } else {
                    source.common()
                };
                if other != truth && !level.contains(&other) {
                    level.push(other);
                }
            }
            let probabilities = (0..WIDTH).map(|rank| {
                let rank = rank as f64 + 1.0;
                0.35 * 0.93_f64.powi(offset as i32) * rank.powf(-1.3)
            });
            let mut coin = source.uniform();
            for (rank, probability) in probabilities.enumerate() {
                if (0.0..probability).contains(&coin) {
                    level[rank] = truth;
                }
                coin -= probability;
                round.tokens.push(level[rank] as i32);
                round.logprobs.push(probability.ln() as f32);
            }
        }
        round
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let wanted: usize = std::env::args().nth(1).map_or(Ok(5_000_000), |text| text.parse())?;
    let folder = tempfile::tempdir()?;
    let path = std::env::args_os().nth(2).map_or_else(|| folder.path().join("search_time.ngx"), PathBuf::from);
    if !path.exists() {
        let mut source = Source(1);
        let mut builder = Builder::new(3, u64::from(VOCABULARY))?;
        for _ in 0..wanted.div_ceil(DOCUMENT) {
            builder.add(&source.document(), &[0, DOCUMENT as i64])?;
        }
        builder.finish(&path, "search-time", "{}", &mut |_, _, _| Ok(()))?;
    }
    let index = Index::open(&path, Backing::Populate)?;
    println!("{:?} n-grams by length", &index.header().nodes[..3]);

    let mut source = Source(2);
    let rounds: Vec<Round> = (0..QUERIES)
        .map(|_| {
            let text = source.document();
            Round::new(&mut source, &text[500..])
        })
        .collect();
    let mut searcher = Searcher::new();
    let mut tree = Tree::default();
    for mode in [Mode::Survival, Mode::Reference] {
        let params = Params {
            mode,
            ..Params::default()
        };
        let mut times = Vec::new();
        let mut fastest = vec![f64::INFINITY; QUERIES];
        let mut nodes = 0;
        for turn in 0..=ROUNDS {
            for (round, fastest) in rounds.iter().zip(&mut fastest) {
                let query = Query {
                    context: &round.context,
                    widths: &[WIDTH as u32; OFFSETS],
                    tokens: &round.tokens,
                    logprobs: &round.logprobs,
                };
                let start = Instant::now();
                searcher.search(&index, &query, &params, &mut tree)?;
                let time = start.elapsed().as_secs_f64() * 1e6;
                nodes += tree.len();
                if turn > 0 {
                    times.push(time); // the first turn warms up
                    *fastest = fastest.min(time);
                }
            }
        }
        times.sort_by(f64::total_cmp);
        fastest.sort_by(f64::total_cmp);
        println!(
            "{mode:?}: p50 {:.1} us, p99 {:.1} us; of the fastest of {ROUNDS} times p50 {:.1} us, p99 {:.1} us; {:.1} nodes",
            times[times.len() / 2],
            times[times.len() * 99 / 100],
            fastest[QUERIES / 2],
            fastest[QUERIES * 99 / 100],
            nodes as f64 / (1 + ROUNDS) as f64 / QUERIES as f64
        );
    }
    Ok(())
}
