//! Times tree searches in an index: a request as JSON on the standard input, the results as one JSON line. Started by
//! `python -m bench.index_search`.

mod beam;
mod interruptions;
mod probe;
mod rounds;
mod settings;
mod trie;

use std::error::Error;
use std::hint::black_box;
use std::io::Read;
use std::time::Instant;

use ngram_index::reader::Index;
use ngram_index::search::{Searcher, Tree};
use rand::prelude::*;
use rand::rngs::SmallRng;
use serde_json::{Value, json};

use crate::interruptions::interruptions;
use crate::rounds::{Cut, Round, Rounds, hit_rates};
use crate::settings::{Request, Setting};

/// Trees may differ in paths whose scores differ by rounding.
const TOLERANCE: f32 = 1e-4;
const BASELINE_PASSES: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let request: Request = serde_json::from_str(&input)?;
    let start = Instant::now();
    let index = Index::open(&request.index, request.backing()?)?;
    eprintln!("opened in {:.1} s, preparing rounds", start.elapsed().as_secs_f64());

    let depth = request.settings.iter().map(|setting| setting.depth).max().unwrap_or(1);
    let width = request.settings.iter().map(|setting| setting.width).max().unwrap_or(1);
    let mut maker = Rounds::new(&index, request.seed)?;
    let texts = match request.texts.is_empty() {
        true => maker.texts(request.rounds, depth)?,
        false => request.texts.clone(),
    };
    let long = index.order() - 1 + depth;
    if let Some(text) = texts.iter().find(|text| text.len() < long) {
        return Err(format!("texts must have {long} tokens, got one with {}", text.len()).into());
    }
    let rounds: Vec<Round> = texts.iter().map(|text| maker.round(text, depth, width)).collect();
    if rounds.is_empty() {
        return Err("no text of the wanted length follows the counts of this index".into());
    }

    if request.export {
        let part =
            |round: &Round| json!({ "context": round.context, "tokens": round.tokens, "logprobs": round.logprobs });
        println!(
            "{}",
            json!({ "rounds": rounds.iter().map(part).collect::<Vec<Value>>() })
        );
        return Ok(());
    }

    let mut random = SmallRng::seed_from_u64(request.seed + 1);
    let mut samples: Vec<Samples> = request.settings.iter().map(|_| Samples::default()).collect();
    for pass in 0..=request.passes {
        for (setting, samples) in request.settings.iter().zip(&mut samples) {
            let mut order: Vec<usize> = (0..rounds.len()).collect();
            order.shuffle(&mut random);
            let found = measure(&index, &rounds, &order, setting)?;
            if pass > 0 {
                samples.append(found); // the first pass warms up
            }
        }
        eprintln!(
            "pass {pass} of {} done after {:.1} s",
            request.passes,
            start.elapsed().as_secs_f64()
        );
    }
    let settings: Vec<Value> =
        request.settings.iter().zip(&mut samples).map(|(s, found)| found.report(&s.name)).collect();
    let (truths, candidates) = hit_rates(&index, &rounds);
    let probe = probe::probe(&index, &rounds);
    let baseline = match request.baseline_rounds {
        0 => Value::Null,
        count => baseline(&index, &rounds[..count.min(rounds.len())], depth.min(8), width.min(25))?,
    };
    let header = index.header();
    println!(
        "{}",
        json!({
            "nodes": header.nodes.iter().sum::<u64>(),
            "nodes_by_length": &header.nodes[..header.order],
            "bytes": header.file_bytes,
            "rounds": rounds.len(),
            "settings": settings,
            "true_token_matched": truths,
            "candidates_matched": candidates,
            "memory": probe,
            "baseline": baseline,
        })
    );
    Ok(())
}

#[derive(Default)]
struct Samples {
    /// Microseconds.
    times: Vec<f64>,
    nodes: usize,
    /// Searches left out because another thread got the processor in the middle.
    interrupted: usize,
}

impl Samples {
    /// Measure one search.
    fn time<T>(&mut self, search: impl FnOnce() -> T) -> T {
        let before = interruptions();
        let start = Instant::now();
        let result = search();
        let took = start.elapsed().as_secs_f64() * 1e6;
        match interruptions() - before {
            0 => self.times.push(took),
            _ => self.interrupted += 1,
        }
        result
    }

    fn append(&mut self, other: Self) {
        self.times.extend(other.times);
        self.nodes += other.nodes;
        self.interrupted += other.interrupted;
    }

    fn report(&mut self, name: &str) -> Value {
        self.times.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| self.times.get((self.times.len() as f64 * share) as usize).copied().unwrap_or_default();
        let round = |value: f64| (value * 100.0).round() / 100.0;
        json!({
            "name": name,
            "p50_us": round(at(0.5)),
            "p90_us": round(at(0.9)),
            "p99_us": round(at(0.99)),
            "mean_us": round(self.times.iter().sum::<f64>() / self.times.len().max(1) as f64),
            "tree_nodes": self.nodes as f64 / (self.times.len() + self.interrupted).max(1) as f64,
            "searches": self.times.len(),
            "interrupted": self.interrupted,
        })
    }
}

fn measure(index: &Index, rounds: &[Round], order: &[usize], setting: &Setting) -> Result<Samples, Box<dyn Error>> {
    let params = setting.params()?;
    let (mut searcher, mut tree, mut cut) = (Searcher::new(), Tree::default(), Cut::default());
    let mut samples = Samples::default();
    for at in order {
        let query = cut.query(&rounds[*at], setting.depth, setting.width, setting.transitions);
        if setting.hot {
            searcher.search(index, &query, &params, &mut tree)?;
        }
        samples.time(|| searcher.search(index, &query, &params, &mut tree))?;
        samples.nodes += black_box(&tree).len();
    }
    Ok(samples)
}

/// The same rounds in `reference` mode here and in the hash-map trie, in turns.
fn baseline(index: &Index, rounds: &[Round], depth: usize, width: usize) -> Result<Value, Box<dyn Error>> {
    eprintln!("building the hash-map trie");
    let start = Instant::now();
    let trie = trie::Trie::from_index(index)?;
    let built = start.elapsed().as_secs_f64();
    eprintln!("built in {built:.1} s, searching {} rounds in both", rounds.len());
    let setting = Setting {
        name: "reference".to_owned(),
        mode: "reference".to_owned(),
        depth,
        width,
        beam: 20,
        budget: 59,
        hot: false,
        transitions: false,
    };
    let params = setting.params()?;
    let (mut searcher, mut cut) = (Searcher::new(), Cut::default());
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    let (mut same, mut rounding) = (0, 0);
    // In turns, but each through all rounds, so that neither finds the caches as the other left them.
    for pass in 0..=BASELINE_PASSES {
        let mut trees = vec![Tree::default(); rounds.len()];
        let (mut here, mut there) = (Samples::default(), Samples::default());
        for (round, tree) in rounds.iter().zip(&mut trees) {
            let query = cut.query(round, depth, width, false);
            here.time(|| searcher.search(index, &query, &params, tree))?;
            here.nodes += tree.len();
        }
        for (round, tree) in rounds.iter().zip(&trees) {
            let query = cut.query(round, depth, width, false);
            let all = there.time(|| beam::search(&trie, index.order(), &query, &params));
            there.nodes += setting.budget.min(all.len());
            if pass == 0 {
                match beam::difference(&all, tree, setting.budget) {
                    0.0 => same += 1,
                    difference if difference < TOLERANCE => rounding += 1,
                    _ => (),
                }
            }
        }
        if pass > 0 {
            ours.append(here); // the first pass warms up
            theirs.append(there);
        }
    }
    let memory = resident_bytes();
    let (ours, theirs) = (ours.report("index"), theirs.report("hash_map_trie"));
    let ratio = theirs["p50_us"].as_f64().unwrap_or_default() / ours["p50_us"].as_f64().unwrap_or(f64::NAN);
    Ok(json!({
        "ratio": (ratio * 100.0).round() / 100.0,
        "index": ours,
        "hash_map_trie": theirs,
        "build_s": built,
        "resident_bytes": memory,
        "rounds": rounds.len(),
        "same_trees": same,
        "trees_that_differ_by_rounding": rounding,
        "other_trees": rounds.len() - same - rounding,
    }))
}

/// Resident memory of this process, both ways of holding the counts included; 0 where /proc does not say.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() * 1024
}
