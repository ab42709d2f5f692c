//! The shape of an index's n-grams, for `bench.synthetic` to compare with that of real text: a path as JSON on the standard
//! input, the histograms as one JSON line. Order 3 only.

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;

use ngram_index::reader::{Backing, Index};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Request {
    index: PathBuf,
}

/// How many values are 1, 2 to 3, 4 to 7 and so on.
struct Octaves([u64; 64]);

impl Default for Octaves {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Octaves {
    fn add(&mut self, value: u64) {
        if let Some(octave) = value.checked_ilog2() {
            self.0[octave as usize] += 1;
        }
    }

    fn list(&self) -> &[u64] {
        let used = self.0.iter().rposition(|number| *number > 0).map_or(0, |last| last + 1);
        &self.0[..used]
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let request: Request = serde_json::from_str(&input)?;
    let index = Index::open(&request.index, Backing::Mmap)?;
    if index.order() != 3 {
        return Err(format!("the index must have order 3, got {}", index.order()).into());
    }
    let (mut successors, mut bigrams, mut trigrams) = (Octaves::default(), Octaves::default(), Octaves::default());
    index.for_each(1, &mut |tokens, _| {
        successors.add(index.unigram(tokens[0]).distinct);
        Ok(())
    })?;
    index.for_each(2, &mut |_, count| {
        bigrams.add(count);
        Ok(())
    })?;
    let mut children = Octaves::default();
    let (mut open, mut followed, mut contexts, mut one_child) = ([u32::MAX; 2], 0, 0_u64, 0_u64);
    let mut close = |followed: u64| {
        children.add(followed);
        contexts += u64::from(followed > 0);
        one_child += u64::from(followed == 1);
    };
    index.for_each(3, &mut |tokens, count| {
        trigrams.add(count);
        if tokens[..2] != open {
            close(followed);
            open = [tokens[0], tokens[1]];
            followed = 0;
        }
        followed += 1;
        Ok(())
    })?;
    close(followed);
    let nodes = &index.header().nodes;
    let share = |octaves: &Octaves, of: u64| octaves.0[0] as f64 / of.max(1) as f64;
    println!(
        "{}",
        json!({
            "tokens": index.windows(),
            "unigrams": nodes[0],
            "bigrams": nodes[1],
            "trigrams": nodes[2],
            "nodes": nodes[..3].iter().sum::<u64>(),
            "children_per_context": nodes[2] as f64 / contexts.max(1) as f64,
            "one_child_share": one_child as f64 / contexts.max(1) as f64,
            "trigrams_once_share": share(&trigrams, nodes[2]),
            "bigrams_once_share": share(&bigrams, nodes[1]),
            "children_histogram": children.list(),
            "trigram_count_histogram": trigrams.list(),
            "bigram_count_histogram": bigrams.list(),
            "successor_histogram": successors.list(),
            "bytes": index.header().file_bytes,
        })
    );
    Ok(())
}
