//! The candidates of every offset, sorted by token for the look-ups.

use super::Query;
use crate::reader::Index;
use crate::score::unigram;

/// Candidates of all offsets in flat arrays.
#[derive(Default)]
pub(super) struct Candidates {
    starts: Vec<usize>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    unigrams: Vec<f32>,
    log_unigrams: Vec<f32>,
    /// Natural logarithm of the draft probability of all candidates of an offset together.
    log_masses: Vec<f32>,
    sorted: Vec<(u32, f32)>,
}

impl Candidates {
    /// Take the candidates of a checked query. Of equal tokens at one offset the likeliest counts; those with
    /// probability 0 are left out.
    pub fn fill(&mut self, index: &Index, query: &Query) {
        self.starts.clear();
        self.tokens.clear();
        self.logprobs.clear();
        self.unigrams.clear();
        self.log_unigrams.clear();
        self.log_masses.clear();
        self.starts.push(0);
        let mut at = 0;
        for width in query.widths {
            let range = at..at + *width as usize;
            at = range.end;
            self.sorted.clear();
            let pairs = query.tokens[range.clone()].iter().zip(&query.logprobs[range]);
            let possible = pairs.filter(|(_, logprob)| logprob.is_finite());
            self.sorted.extend(possible.map(|(token, logprob)| (*token as u32, *logprob)));
            self.sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
            self.sorted.dedup_by_key(|pair| pair.0);
            for &(token, logprob) in &self.sorted {
                let unigram = unigram(index, token);
                self.tokens.push(token);
                self.logprobs.push(logprob);
                self.unigrams.push(unigram);
                self.log_unigrams.push(libm::logf(unigram));
            }
            self.log_masses.push(log_sum(self.sorted.iter().map(|pair| pair.1)));
            self.starts.push(self.tokens.len());
        }
    }

    /// Number of offsets.
    pub fn offsets(&self) -> usize {
        self.starts.len() - 1
    }

    /// Token ids of an offset, ascending, each once.
    pub fn tokens(&self, offset: usize) -> &[u32] {
        &self.tokens[self.starts[offset]..self.starts[offset + 1]]
    }

    /// Log-probabilities of an offset's tokens, all finite.
    pub fn logprobs(&self, offset: usize) -> &[f32] {
        &self.logprobs[self.starts[offset]..self.starts[offset + 1]]
    }

    /// Unigram probabilities of an offset's tokens, all positive.
    pub fn unigrams(&self, offset: usize) -> &[f32] {
        &self.unigrams[self.starts[offset]..self.starts[offset + 1]]
    }

    /// Natural logarithms of `unigrams`.
    pub fn log_unigrams(&self, offset: usize) -> &[f32] {
        &self.log_unigrams[self.starts[offset]..self.starts[offset + 1]]
    }

    /// Natural logarithm of the draft probability of all candidates of an offset; -inf if there is none.
    pub fn log_mass(&self, offset: usize) -> f32 {
        self.log_masses[offset]
    }
}

/// ln of the sum of exp of the values, summed in their order.
fn log_sum(values: impl Iterator<Item = f32> + Clone) -> f32 {
    let top = values.clone().fold(f32::NEG_INFINITY, f32::max);
    if top == f32::NEG_INFINITY {
        return top;
    }
    top + libm::logf(values.map(|value| libm::expf(value - top)).sum())
}
