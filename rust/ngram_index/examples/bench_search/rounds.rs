//! Rounds to search: contexts, what really follows, and proposals that know some of it.

use ngram_index::error::Result;
use ngram_index::reader::Index;
use ngram_index::search::Query;
use rand::distr::weighted::WeightedIndex;
use rand::prelude::*;
use rand::rngs::SmallRng;

/// Of the candidates of an offset, so many are what follows the true context, drawn by frequency; the others are drawn by
/// how common they are.
const KNOWN_CANDIDATES: usize = 16;
/// A draft's probability of its r-th candidate falls like r to this power; the first offset and the last.
const EXPONENTS: (f64, f64) = (2.5, 1.3);
/// Probability of all candidates of an offset together; the first offset and the last.
const MASSES: (f64, f64) = (0.95, 0.6);
/// The last of the offsets that these are about; it is as flat beyond.
const FLAT_FROM: usize = 7;
/// Candidates of which the masses are; the true token is one of them.
const USUAL_WIDTH: usize = 25;
const RETRIES: usize = 1000;
/// Transition scores are drawn from here.
const TRANSITIONS: std::ops::Range<f32> = -3.0..3.0;

/// What one search is given.
pub struct Round {
    /// Context and the true continuation.
    pub text: Vec<u32>,
    pub context: Vec<u32>,
    /// Per offset, best first.
    pub tokens: Vec<Vec<i32>>,
    pub logprobs: Vec<Vec<f32>>,
    /// Transition scores for any width, as many as the widest block has.
    pub transitions: Vec<f32>,
}

/// The same with the first candidates of the first offsets.
#[derive(Default)]
pub struct Cut {
    widths: Vec<u32>,
    tokens: Vec<i32>,
    logprobs: Vec<f32>,
    transitions: Vec<f32>,
}

impl Cut {
    pub fn query<'a>(&'a mut self, round: &'a Round, depth: usize, width: usize, transitions: bool) -> Query<'a> {
        self.widths.clear();
        self.transitions.clear();
        self.tokens.clear();
        self.logprobs.clear();
        for (tokens, logprobs) in round.tokens.iter().zip(&round.logprobs).take(depth) {
            let width = width.min(tokens.len());
            let before = self.widths.last().map_or(0, |before| *before as usize);
            if transitions {
                self.transitions.extend_from_slice(&round.transitions[..before * width]);
            }
            self.widths.push(width as u32);
            self.tokens.extend_from_slice(&tokens[..width]);
            self.logprobs.extend_from_slice(&logprobs[..width]);
        }
        Query {
            context: &round.context,
            widths: &self.widths,
            tokens: &self.tokens,
            logprobs: &self.logprobs,
            transitions: &self.transitions,
        }
    }
}

/// Makes rounds from the counts of an index.
pub struct Rounds<'a> {
    index: &'a Index,
    common: WeightedIndex<u64>,
    random: SmallRng,
    /// Its own, so that rounds do not depend on it.
    of_transitions: SmallRng,
}

impl<'a> Rounds<'a> {
    pub fn new(index: &'a Index, seed: u64) -> std::result::Result<Self, String> {
        let counts = (0..index.vocab_size()).map(|token| index.unigram(token as u32).count);
        let common = WeightedIndex::new(counts).map_err(|error| format!("the index has no tokens: {error}"))?;
        Ok(Self {
            index,
            common,
            random: SmallRng::seed_from_u64(seed),
            of_transitions: SmallRng::seed_from_u64(seed),
        })
    }

    /// Texts that follow the counts: a context drawn by its frequency, each next token by how often it followed.
    pub fn texts(&mut self, count: usize, depth: usize) -> Result<Vec<Vec<u32>>> {
        let length = self.index.order() - 1;
        let mut wanted: Vec<u64> = (0..2 * count).map(|_| self.random.random_range(0..self.index.windows())).collect();
        wanted.sort_unstable();
        let (mut seen, mut contexts) = (0, Vec::with_capacity(wanted.len()));
        self.index.for_each(length, &mut |tokens, count| {
            seen += count;
            while wanted.get(contexts.len()).is_some_and(|at| *at < seen) {
                contexts.push(tokens.to_vec());
            }
            Ok(())
        })?;
        contexts.shuffle(&mut self.random);
        let mut texts = Vec::with_capacity(count);
        for mut text in contexts {
            while text.len() < length + depth && self.extend(&mut text, length) {}
            if text.len() == length + depth && texts.len() < count {
                texts.push(text);
            }
        }
        Ok(texts)
    }

    fn extend(&mut self, text: &mut Vec<u32>, length: usize) -> bool {
        let followed = self.index.successors(&text[text.len() - length..]);
        let Ok(choice) = WeightedIndex::new(followed.iter().map(|(_, count)| *count)) else {
            return false;
        };
        text.push(followed[choice.sample(&mut self.random)].0);
        true
    }

    /// The proposals for a text of order - 1 tokens of context and `depth` more.
    pub fn round(&mut self, text: &[u32], depth: usize, width: usize) -> Round {
        let length = self.index.order() - 1;
        let mut round = Round {
            text: text.to_vec(),
            context: text[..length].to_vec(),
            tokens: Vec::with_capacity(depth),
            logprobs: Vec::with_capacity(depth),
            transitions: (0..width * width).map(|_| self.of_transitions.random_range(TRANSITIONS)).collect(),
        };
        for offset in 0..depth {
            let far = (offset as f64 / FLAT_FROM as f64).min(1.0);
            let between = |ends: (f64, f64)| ends.0 + (ends.1 - ends.0) * far;
            let shares: Vec<f64> = (1..=width).map(|rank| (rank as f64).powf(-between(EXPONENTS))).collect();
            let usual = &shares[..width.min(USUAL_WIDTH)];
            let sum: f64 = usual.iter().sum();
            let logprobs = shares.iter().map(|share| (between(MASSES) * share / sum).ln() as f32).collect();
            let rank = WeightedIndex::new(usual).map_or(0, |choice| choice.sample(&mut self.random));
            let mut tokens = self.others(&text[offset..offset + length], text[offset + length], width - 1);
            tokens.insert(rank.min(tokens.len()), text[offset + length]);
            round.tokens.push(tokens.iter().map(|token| *token as i32).collect());
            round.logprobs.push(logprobs);
        }
        round
    }

    /// Candidates beside the true token.
    fn others(&mut self, context: &[u32], truth: u32, count: usize) -> Vec<u32> {
        let followed = self.index.successors(context);
        let others = followed.iter().filter(|(token, _)| *token != truth);
        // The largest of u^(1/weight) are a draw by weight without putting back.
        let mut keyed: Vec<(f64, u32)> =
            others.map(|(token, count)| (self.random.random::<f64>().ln() / *count as f64, *token)).collect();
        keyed.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let mut tokens: Vec<u32> = keyed.iter().take(KNOWN_CANDIDATES.min(count)).map(|(_, token)| *token).collect();
        for _ in 0..RETRIES {
            if tokens.len() == count {
                break;
            }
            let token = self.common.sample(&mut self.random) as u32;
            if token != truth && !tokens.contains(&token) {
                tokens.push(token);
            }
        }
        tokens
    }
}

/// Shares of tokens by the length of the longest context that they were seen after, for the true tokens and for all
/// candidates, both after the true context.
pub fn hit_rates(index: &Index, rounds: &[Round]) -> (Vec<f64>, Vec<f64>) {
    let order = index.order();
    let (mut truths, mut all) = (vec![0_u64; order], vec![0_u64; order]);
    for round in rounds {
        for (offset, tokens) in round.tokens.iter().enumerate() {
            let context = &round.text[offset..offset + order - 1];
            truths[matched(index, context, round.text[offset + order - 1])] += 1;
            for token in tokens {
                all[matched(index, context, *token as u32)] += 1;
            }
        }
    }
    let shares = |counts: &[u64]| {
        let total: u64 = counts.iter().sum();
        counts.iter().map(|count| *count as f64 / total.max(1) as f64).collect()
    };
    (shares(&truths), shares(&all))
}

fn matched(index: &Index, context: &[u32], token: u32) -> usize {
    let seen = |length: &usize| {
        let mut tokens = context[context.len() - length..].to_vec();
        tokens.push(token);
        index.count(&tokens) > 0
    };
    (1..=context.len()).rev().find(seen).unwrap_or(0)
}
