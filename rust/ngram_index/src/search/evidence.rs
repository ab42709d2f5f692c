//! What the counts say about the candidates after a node, and what follows for the probability of reaching each.

use super::Searcher;
use super::float::{exp, ln, map, max, sum, zip};
use super::params::{Params, Rule};
use super::states::State;
use crate::format::MAX_ORDER;
use crate::reader::Index;
use crate::score::{frequency, witten_bell};

/// Added to g before the logarithm where a rule can give 0, as the public implementation does.
pub(super) const EPSILON: f32 = 1e-10;

impl Searcher {
    /// Let `g` be g(v) of all candidates of a state whose rows were read; padded.
    pub(super) fn evidence(&self, index: &Index, state: &State, rule: Rule, factor: f32, g: &mut Vec<f32>) {
        g.clear();
        let rows = state.rows.iter().enumerate().filter_map(|(i, row)| Some((i + 1, self.rows.get(*row)?)));
        match rule {
            Rule::Reference => {
                g.resize(self.candidates.shares(state.offset).len(), 0.0);
                for (_, (counts, total, _)) in rows {
                    longest(g, counts, total, 1.0);
                }
            }
            Rule::StupidBackoff => {
                let mut powers = [1.0; MAX_ORDER];
                for i in 1..MAX_ORDER {
                    powers[i] = powers[i - 1] * factor;
                }
                let windows = index.windows().max(1) as f32;
                let unigrams = self.candidates.unigrams(state.offset).iter();
                g.extend(unigrams.map(|unigram| frequency(unigram.count as f32, windows) * powers[state.length]));
                for (length, (counts, total, _)) in rows {
                    longest(g, counts, total, powers[state.length - length]);
                }
            }
            Rule::WittenBell | Rule::Divided => {
                let shares = self.candidates.shares(state.offset);
                g.extend_from_slice(shares);
                for (_, (counts, total, distinct)) in rows.filter(|(_, (_, _, distinct))| *distinct > 0.0) {
                    zip(g, counts, move |shorter, count| {
                        witten_bell(shorter, count, total, distinct)
                    });
                }
                if rule == Rule::Divided {
                    zip(g, shares, move |value, share| value / share);
                }
            }
        }
    }

    /// Let `steps` be c of every candidate of a state whose rows were read: p · g^w, times e to the power of its transition
    /// score, scaled to the draft probability of all candidates together. Padded; every value is at most the state's mass.
    pub(super) fn steps(&self, index: &Index, state: &State, params: &Params, steps: &mut Vec<f32>) {
        let rule = params.survival_rule();
        self.evidence(index, state, rule, params.backoff_factor, steps);
        let epsilon = match rule {
            Rule::Reference | Rule::StupidBackoff => EPSILON,
            Rule::WittenBell | Rule::Divided => 0.0,
        };
        let weight = self.weights.ngram;
        let logprobs = self.candidates.logprobs(state.offset);
        zip(steps, logprobs, move |g, logprob| logprob + weight * ln(g + epsilon));
        if let Some(scores) = self.candidates.transitions(state.offset, state.choice) {
            zip(steps, scores, |value, score| value + score);
        }
        let top = max(steps);
        map(steps, move |value| exp(value - top));
        let share = state.mass / sum(steps);
        map(steps, move |value| value * share);
    }
}

/// Where a context knows a candidate, its relative frequency times a factor takes the place of what is there.
#[inline]
fn longest(g: &mut [f32], counts: &[f32], total: f32, factor: f32) {
    zip(g, counts, move |shorter, count| {
        let known = frequency(count, total) * factor;
        if count > 0.0 { known } else { shorter }
    });
}
