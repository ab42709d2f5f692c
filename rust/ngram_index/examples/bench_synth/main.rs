//! Writes an index of synthetic counts shaped like those of real text, of any size: a request as JSON on the standard
//! input, the results as one JSON line. Started by `python -m bench.synthetic`.
//!
//! The counts go to the index in ascending order as they are drawn; only the bigrams are held in memory. Equal requests
//! give equal files.

mod bigrams;
mod counts;
mod shape;
mod trigrams;

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use ngram_index::writer::IndexWriter;
use rand::prelude::*;
use rand::rngs::SmallRng;
use serde::Deserialize;
use serde_json::json;

use crate::bigrams::{Bigrams, Successors};
use crate::counts::Counts;
use crate::shape::Shape;
use crate::trigrams::{Buffers, Trigram, Trigrams};

/// Bigrams of a unit of work.
const UNIT: usize = 4096;
/// Successors of a token that are looked at to plan a size.
const PLAN_SAMPLE: usize = 200;
const QUEUE: usize = 8;

#[derive(Deserialize)]
struct Request {
    shape: Shape,
    output: PathBuf,
    /// Folder for temporary files.
    scratch: PathBuf,
    /// Bytes that sorting may use.
    memory: usize,
    vocab_size: u32,
    /// n-grams of all lengths to aim at; 0 for as many as the measured corpus had tokens for.
    nodes: u64,
    seed: u64,
    fingerprint: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let request: Request = serde_json::from_str(&input)?;
    if request.vocab_size > 1 << 16 || u64::from(request.vocab_size) < request.shape.token_ranks() {
        let least = request.shape.token_ranks();
        return Err(format!("vocab_size must be {least} to 65536, got {}", request.vocab_size).into());
    }
    let start = Instant::now();
    let scale = plan(&request);
    eprintln!(
        "a corpus {scale:.3} times the measured one, planned in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    let bigrams = all_bigrams(&request, scale);
    let held: usize = bigrams.iter().map(|entry| entry.tokens.len()).sum();
    eprintln!("{held} bigrams after {:.1} s", start.elapsed().as_secs_f64());
    let header = write(&request, scale, &bigrams, held, start)?;
    println!(
        "{}",
        json!({
            "nodes": header.nodes.iter().sum::<u64>(),
            "nodes_by_length": &header.nodes[..header.order],
            "windows": header.windows,
            "scale": scale,
            "bytes": header.file_bytes,
            "seconds": start.elapsed().as_secs_f64(),
        })
    );
    Ok(())
}

/// The scale that gives the wanted number of nodes.
fn plan(request: &Request) -> f64 {
    if request.nodes == 0 {
        return 1.0;
    }
    let (mut low, mut high) = (-16.0_f64, 16.0_f64);
    for _ in 0..12 {
        let middle = (low + high) / 2.0;
        if expected_nodes(request, middle.exp2()) < request.nodes as f64 {
            low = middle;
        } else {
            high = middle;
        }
    }
    ((low + high) / 2.0).exp2()
}

/// From a sample of the bigrams.
fn expected_nodes(request: &Request, scale: f64) -> f64 {
    let bigrams = Bigrams::new(&request.shape, scale, request.seed, request.vocab_size);
    let bigram_counts = Counts::new(&request.shape.bigram_count_octaves);
    let trigram_counts = Counts::new(&request.shape.trigram_count_octaves);
    let trigrams = trigrams(request, scale, &trigram_counts, &[]);
    let mut random = SmallRng::seed_from_u64(request.seed);
    let numbers: Vec<usize> = (0..request.vocab_size).map(|token| bigrams.token(token).map_or(0, |(_, n)| n)).collect();
    let mut nodes = request.shape.token_ranks() as f64;
    for (token, number) in (0..).zip(&numbers) {
        let sample = bigrams.some(token, PLAN_SAMPLE, &bigram_counts);
        let pairs = sample.tokens.iter().zip(&sample.counts);
        let children = |(second, seen): (&u16, &u32)| {
            trigrams.children(numbers[usize::from(*second)], u64::from(*seen).max(1), &mut random)
        };
        let children: usize = pairs.map(children).sum();
        nodes += *number as f64 * (1.0 + children as f64 / sample.counts.len().max(1) as f64);
    }
    nodes
}

fn trigrams<'a>(request: &'a Request, scale: f64, counts: &'a Counts, bigrams: &'a [Successors]) -> Trigrams<'a> {
    Trigrams {
        shape: &request.shape,
        counts,
        bigrams,
        scale,
        seed: request.seed,
    }
}

fn all_bigrams(request: &Request, scale: f64) -> Vec<Successors> {
    let bigrams = Bigrams::new(&request.shape, scale, request.seed, request.vocab_size);
    let counts = Counts::new(&request.shape.bigram_count_octaves);
    (0..request.vocab_size).map(|token| bigrams.successors(token, &counts)).collect()
}

fn write(
    request: &Request,
    scale: f64,
    bigrams: &[Successors],
    held: usize,
    start: Instant,
) -> Result<ngram_index::header::Header, Box<dyn Error>> {
    let counts = Counts::new(&request.shape.trigram_count_octaves);
    let trigrams = trigrams(request, scale, &counts, bigrams);
    let vocab = u64::from(request.vocab_size);
    let mut writer = IndexWriter::new(&request.output, &request.scratch, 3, vocab, request.memory)?;
    let (send, receive) = sync_channel::<(u32, usize, Vec<Trigram>)>(QUEUE);
    let (give_back, used) = sync_channel::<Vec<Trigram>>(QUEUE + 2);
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        scope.spawn(move || {
            let mut buffers = Buffers::default();
            for first in 0..request.vocab_size {
                for unit in ascending(&bigrams[first as usize]).chunks(UNIT) {
                    let mut out = used.try_recv().unwrap_or_default();
                    out.clear();
                    trigrams.append(first, unit, &mut buffers, &mut out);
                    if send.send((first, unit.len(), out)).is_err() {
                        return; // the writer gave up, and says why
                    }
                }
            }
        });
        let (mut done, mut nodes, mut said) = (0, 0_u64, 0);
        for (first, bigrams, unit) in receive {
            for (second, third, count) in &unit {
                writer.window(&[first, u32::from(*second), u32::from(*third)], *count)?;
            }
            done += bigrams;
            nodes += unit.len() as u64;
            let _ = give_back.try_send(unit); // a full queue only means one allocation more
            if done * 20 / held.max(1) > said {
                said = done * 20 / held.max(1);
                let seconds = start.elapsed().as_secs_f64();
                eprintln!("{}% of the bigrams, {nodes} trigrams after {seconds:.0} s", said * 5);
            }
        }
        Ok(())
    })?;
    let manifest = json!({ "made_by": "bench.synthetic", "nodes": request.nodes, "seed": request.seed }).to_string();
    let mut last = 0;
    let header = writer.finish(&request.fingerprint, &manifest, &mut |stage, done, total| {
        let tenth = done * 10 / total.max(1);
        if tenth != last {
            last = tenth;
            eprintln!(
                "{} {}% after {:.0} s",
                stage.name(),
                tenth * 10,
                start.elapsed().as_secs_f64()
            );
        }
        Ok(())
    })?;
    Ok(header)
}

/// Successors and counts by token.
fn ascending(successors: &Successors) -> Vec<(u16, u32)> {
    let pairs = successors.tokens.iter().zip(&successors.counts);
    let mut pairs: Vec<(u16, u32)> = pairs.map(|(token, count)| (*token, *count)).collect();
    pairs.sort_unstable();
    pairs
}
