//! What single accesses to the index cost, to see where the time of a search goes.

use std::hint::black_box;
use std::time::Instant;

use ngram_index::reader::{Candidates, Index, Node, Place};
use serde_json::{Value, json};

use crate::rounds::Round;

/// n-grams that are asked for before the first of them is read.
const GROUP: usize = 100;
/// Of the candidates of an offset, so many are continued by those of the next.
const CONTINUED: usize = 4;

/// Nanoseconds for one n-gram of order - 1 tokens, of those that searches look up: when each look-up waits for the one
/// before, when many are asked for ahead, and for the continuations of one, asked for ahead too.
pub fn probe(index: &Index, rounds: &[Round]) -> Value {
    let places = places(index, rounds);
    let mut found: Vec<Node> = Vec::with_capacity(places.len());
    let start = Instant::now();
    let mut nothing = 0;
    for at in 0..places.len() {
        // Counts are positive, but the address of the next look-up waits for this one's.
        let node = index.find(places[at + nothing]);
        nothing = node.map_or(0, |node| usize::from(node.count == 0));
        found.extend(node);
    }
    let dependent = nanoseconds(start, places.len());
    let start = Instant::now();
    for group in places.chunks(GROUP) {
        group.iter().for_each(|place| index.prefetch(*place));
        for place in group {
            black_box(index.find(*place));
        }
    }
    let prefetched = nanoseconds(start, places.len());
    json!({
        "look_ups": places.len(),
        "found": found.len() as f64 / places.len().max(1) as f64,
        "dependent_look_up_ns": dependent,
        "prefetched_look_up_ns": prefetched,
        "continuations_ns": continuations(index, rounds, &found),
    })
}

/// n-grams of a candidate after a candidate of the offset before, and what came before that.
fn places(index: &Index, rounds: &[Round]) -> Vec<Place> {
    let before = index.order().saturating_sub(3);
    let mut places = Vec::new();
    for round in rounds {
        for (offset, pair) in round.tokens.windows(2).enumerate() {
            for last in pair[0].iter().take(CONTINUED) {
                let mut tokens = round.text[offset + 2..offset + 2 + before].to_vec();
                tokens.extend([*last as u32, 0]);
                for next in &pair[1] {
                    tokens[before + 1] = *next as u32;
                    places.extend(index.place(&tokens));
                }
            }
        }
    }
    places
}

fn continuations(index: &Index, rounds: &[Round], nodes: &[Node]) -> f64 {
    let Some(tokens) = rounds.first().and_then(|round| round.tokens.last()) else {
        return 0.0;
    };
    let mut tokens: Vec<u32> = tokens.iter().map(|token| *token as u32).collect();
    tokens.sort_unstable();
    let mut candidates = Candidates::default();
    candidates.set(index, &tokens);
    let mut counts = vec![0; tokens.len()];
    let start = Instant::now();
    for group in nodes.chunks(GROUP) {
        group.iter().for_each(|node| index.prefetch_children(node));
        for node in group {
            index.child_counts(node, &candidates, &mut counts);
            black_box(&counts);
        }
    }
    nanoseconds(start, nodes.len())
}

fn nanoseconds(start: Instant, count: usize) -> f64 {
    (start.elapsed().as_secs_f64() * 1e10 / count.max(1) as f64).round() / 10.0
}
