//! Beam search with the score of arXiv:2601.19278, as its public implementation computes it.
//!
//! Extending a path at level l (from 0) with token v after context c adds
//! ( 0.9^l · ln(p_l(v) + 1e-10) + 0.5 · ln(g(v|c) + 1e-10) ) / (l + 1)^0.7
//! in float32, p renormalised over the candidates, g the relative frequency after the longest context that knows v. The
//! best extensions of each level that do not end in a stop id form the next beam; the tree is the best of all extensions.
//! An extension never ranks above its parent: its rank is the lower of the two scores, so the best form a tree.

use std::cmp::Ordering;

use super::{Params, Searcher, State, Tree, feature_bin};
use crate::reader::Index;
use crate::score::frequency;

const DRAFT_DECAY: f64 = 0.9;
const LEVEL_POWER: f64 = 0.7;
const NGRAM_WEIGHT: f32 = 0.5;
const EPSILON: f32 = 1e-10;
const ROOT: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Extension {
    score: f32,
    /// The lower of its own and its parent's rank.
    rank: f32,
    /// Position in the pool of its parent, or `ROOT`.
    parent: u32,
    /// Of the state it extends.
    state: u32,
    choice: u16,
    matched: u8,
}

#[derive(Default)]
pub(super) struct Buffers {
    pool: Vec<Extension>,
    order: Vec<u32>,
    /// Extensions whose continuation is being searched, with their states.
    beam: Vec<(u32, u32)>,
    node_of: Vec<u32>,
    /// Start in `steps` of each state's estimates, once computed.
    steps_of: Vec<u32>,
    steps: Vec<f32>,
    step_matched: Vec<u8>,
    draft: Vec<f32>,
}

/// Best first; the pool's order is (depth, rank of the parent, token id).
fn best_first(pool: &[Extension]) -> impl Fn(&u32, &u32) -> Ordering + '_ {
    |a, b| pool[*b as usize].rank.total_cmp(&pool[*a as usize].rank).then(a.cmp(b))
}

/// Best first by score alone, as the beam is chosen.
fn best_score_first(pool: &[Extension]) -> impl Fn(&u32, &u32) -> Ordering + '_ {
    |a, b| pool[*b as usize].score.total_cmp(&pool[*a as usize].score).then(a.cmp(b))
}

/// Keep the first `count` in order.
fn keep(order: &mut Vec<u32>, count: usize, compare: impl Fn(&u32, &u32) -> Ordering) {
    if order.len() > count {
        order.select_nth_unstable_by(count, &compare);
        order.truncate(count);
    }
    order.sort_unstable_by(&compare);
}

impl Searcher {
    pub(super) fn beam(&mut self, index: &Index, params: &Params, tree: &mut Tree) {
        let mut buffers = std::mem::take(&mut self.reference);
        buffers.pool.clear();
        buffers.beam.clear();
        buffers.beam.push((ROOT, 0));
        for offset in 0..self.candidates.offsets() {
            let level = buffers.pool.len() as u32;
            self.extend(params, offset, &mut buffers);
            if offset + 1 == self.candidates.offsets() {
                break;
            }
            let tokens = self.candidates.tokens(offset);
            let Buffers { pool, order, beam, .. } = &mut buffers;
            order.clear();
            let goes_on = |at: &u32| !params.stop_ids.contains(&tokens[usize::from(pool[*at as usize].choice)]);
            order.extend((level..pool.len() as u32).filter(goes_on));
            keep(order, params.beam_width, best_score_first(pool));
            beam.clear();
            for &at in order.iter() {
                let extension = pool[at as usize];
                let contexts = self.child_contexts(index, extension.state as usize, usize::from(extension.choice));
                beam.push((at, self.add_state(index, offset + 1, contexts) as u32));
            }
        }
        self.collect(params, &mut buffers, tree);
        self.reference = buffers;
    }

    /// Append every extension of the beam to the pool.
    fn extend(&self, params: &Params, offset: usize, buffers: &mut Buffers) {
        let damping = libm::pow((offset + 1) as f64, LEVEL_POWER) as f32;
        let decay = libm::pow(DRAFT_DECAY, offset as f64) as f32;
        let mass = self.candidates.log_mass(offset);
        let logprobs = self.candidates.logprobs(offset);
        buffers.draft.clear();
        let draft = logprobs.iter().map(|logprob| decay * libm::logf(libm::expf(logprob - mass) + EPSILON));
        buffers.draft.extend(draft);
        let with_ngram = offset > 0 || !params.skip_ngram_at_first_level;
        for &(parent, state) in &buffers.beam {
            let (score, rank) = match buffers.pool.get(parent as usize) {
                Some(extension) => (extension.score, extension.rank),
                None => (0.0, f32::INFINITY),
            };
            let node = &self.states[state as usize];
            for (choice, draft) in buffers.draft.iter().enumerate() {
                let (frequency, matched) = self.longest_match(node, choice);
                let ngram = if with_ngram {
                    NGRAM_WEIGHT * libm::logf(frequency + EPSILON)
                } else {
                    0.0
                };
                let score = score + (draft + ngram) / damping;
                buffers.pool.push(Extension {
                    score,
                    rank: rank.min(score),
                    parent,
                    state,
                    choice: choice as u16,
                    matched,
                });
            }
        }
    }

    /// Relative frequency of a candidate after the longest context that knows it, and that context's length.
    fn longest_match(&self, node: &State, choice: usize) -> (f32, u8) {
        for (i, context) in node.contexts.iter().enumerate().rev() {
            if context.is_some() {
                let hit = self.rows.hits(node.rows[i])[choice];
                if hit.count > 0 {
                    return (frequency(hit.count, self.rows.totals(node.rows[i]).0), i as u8 + 1);
                }
            }
        }
        (0.0, 0)
    }

    /// Turn the best of the pool into a tree. Survival is estimated as in the other mode.
    fn collect(&mut self, params: &Params, buffers: &mut Buffers, tree: &mut Tree) {
        let Buffers {
            pool,
            order,
            node_of,
            steps_of,
            steps,
            step_matched,
            ..
        } = buffers;
        order.clear();
        order.extend(0..pool.len() as u32);
        keep(order, params.node_budget, best_first(pool));
        node_of.clear();
        node_of.resize(pool.len(), 0);
        steps.clear();
        steps_of.clear();
        steps_of.resize(self.states.len(), ROOT);
        for (i, &at) in order.iter().enumerate() {
            let extension = pool[at as usize];
            node_of[at as usize] = i as u32 + 1;
            let state = &self.states[extension.state as usize];
            let start = &mut steps_of[extension.state as usize];
            if *start == ROOT {
                *start = steps.len() as u32;
                self.steps(state, params.ngram_weight, steps, step_matched);
            }
            let choice = usize::from(extension.choice);
            let (parent, survival) = match node_of.get(extension.parent as usize) {
                Some(&node) => (node, tree.survival[node as usize - 1]),
                None => (0, 1.0),
            };
            let survival = (survival * steps[*start as usize + choice]).max(f32::MIN_POSITIVE);
            let token = self.candidates.tokens(state.offset)[choice];
            let logprob = self.candidates.logprobs(state.offset)[choice];
            tree.push(
                token,
                parent,
                survival,
                feature_bin(state.offset + 1, extension.matched, logprob),
            );
        }
    }
}
