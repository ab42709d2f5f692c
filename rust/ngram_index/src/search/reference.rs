//! Beam search with the score of arXiv:2601.19278, as its public implementation computes it.
//!
//! Extending a path at level l (from 0) with token v after context c adds
//! ( 0.9^l · ln(p_l(v) + 1e-10) + 0.5 · ln(g(v|c) + 1e-10) ) / (l + 1)^0.7
//! in float32, p renormalised over the candidates, g by default the relative frequency after the longest context that
//! knows v. Transition scores change only the estimates of survival. The best extensions of each level that do not end in a
//! stop id form the next beam; the tree is the best of all extensions. An extension never ranks above its parent: its rank
//! is the lower of the two scores, so the best form a tree.

use super::evidence::EPSILON;
use super::float::{exp, ln, map, zip};
use super::top::Top;
use super::{Params, Searcher, Tree, feature_bin};
use crate::reader::Index;

const DRAFT_DECAY: f64 = 0.9;
const LEVEL_POWER: f64 = 0.7;
const NGRAM_WEIGHT: f32 = 0.5;
const ROOT: u32 = u32::MAX;

/// A path of the beam, all of whose extensions stand together.
#[derive(Clone, Copy)]
struct Parent {
    /// Number of the extension that made it, or `ROOT`.
    extension: u32,
    state: u32,
    score: f32,
    /// The lowest score from the root to here.
    rank: f32,
    /// Number of its first extension.
    start: u32,
    /// Index in the tree and position of its children's estimates, once one of them is in the tree.
    node: Option<(u32, u32)>,
}

#[derive(Default)]
pub(super) struct Buffers {
    /// All beams, in the order of their extensions, which is that of depth, rank of the parent and token.
    parents: Vec<Parent>,
    beam: Top,
    best: Top,
    kept: Vec<(f32, u32)>,
    /// Which candidates of the level do not end a path.
    going_on: Vec<bool>,
    draft: Vec<f32>,
    g: Vec<f32>,
    /// Extensions that are in the tree, in its order.
    tree_order: Vec<u32>,
    steps: Vec<f32>,
    step_row: Vec<f32>,
}

impl Searcher {
    pub(super) fn beam(&mut self, index: &Index, params: &Params, root: u32, tree: &mut Tree) {
        let mut buffers = std::mem::take(&mut self.reference);
        buffers.parents.clear();
        buffers.best.clear(params.node_budget);
        buffers.parents.push(Parent {
            extension: ROOT,
            state: root,
            score: 0.0,
            rank: f32::INFINITY,
            start: 0,
            node: None,
        });
        self.read(index, root);
        let mut level = 0; // where the beam starts in `parents`
        for offset in 0..self.candidates.offsets() {
            let next = buffers.parents.len();
            self.extend(index, params, offset, level, &mut buffers);
            level = next;
            if offset + 1 == self.candidates.offsets() || self.candidates.width(offset + 1) == 0 {
                break;
            }
            self.next_beam(index, offset, &mut buffers);
            if buffers.parents.len() == next {
                break;
            }
        }
        self.collect(index, params, &mut buffers, tree);
        self.reference = buffers;
    }

    /// Score every extension of the beam.
    fn extend(&self, index: &Index, params: &Params, offset: usize, level: usize, buffers: &mut Buffers) {
        let Buffers {
            parents,
            beam,
            best,
            going_on,
            draft,
            g,
            ..
        } = buffers;
        let damping = libm::pow((offset + 1) as f64, LEVEL_POWER) as f32;
        let decay = libm::pow(DRAFT_DECAY, offset as f64) as f32;
        let mass = self.candidates.log_mass(offset);
        draft.clear();
        draft.extend_from_slice(self.candidates.logprobs(offset));
        map(draft, move |logprob| decay * ln(exp(logprob - mass) + EPSILON));
        let weight = if offset > 0 || !params.skip_ngram_at_first_level {
            NGRAM_WEIGHT
        } else {
            0.0
        };
        let width = self.candidates.width(offset);
        going_on.clear();
        going_on.extend((0..width).map(|choice| self.goes_on(params, offset, choice)));
        let mut start = parents[level].start;
        beam.clear(params.beam_width);
        for parent in &mut parents[level..] {
            parent.start = start;
            let state = &self.states[parent.state as usize];
            self.evidence(index, state, params.rule(), params.backoff_factor, g);
            let score = parent.score;
            zip(g, draft, move |g, draft| {
                score + (draft + weight * ln(g + EPSILON)) / damping
            });
            for (choice, score) in g[..width].iter().enumerate() {
                best.push(score.min(parent.rank), start + choice as u32);
                if going_on[choice] {
                    beam.push(*score, start + choice as u32);
                }
            }
            start += width as u32;
        }
    }

    /// Make the best extensions the next beam and read their rows, each after the memory of the next one's was asked for.
    fn next_beam(&mut self, index: &Index, offset: usize, buffers: &mut Buffers) {
        let width = self.candidates.width(offset) as u32;
        let end = buffers.parents.last().map_or(0, |parent| parent.start + width);
        buffers.kept.clear();
        buffers.kept.extend(buffers.beam.sorted());
        let mut before = None;
        for &(score, extension) in &buffers.kept {
            let (parent, choice) = parent_of(&buffers.parents, extension);
            let state = self.add_child(index, parent.state, choice);
            if let Some(before) = before.replace(state) {
                self.read(index, before);
            }
            buffers.parents.push(Parent {
                extension,
                state,
                score,
                rank: score.min(parent.rank),
                start: end,
                node: None,
            });
        }
        if let Some(last) = before {
            self.read(index, last);
        }
    }

    /// Turn the best of all extensions into a tree. Survival is estimated as in the other mode.
    fn collect(&mut self, index: &Index, params: &Params, buffers: &mut Buffers, tree: &mut Tree) {
        let Buffers {
            parents,
            best,
            tree_order,
            steps,
            step_row,
            ..
        } = buffers;
        tree_order.clear();
        steps.clear();
        for (_, extension) in best.sorted() {
            let at = parents.partition_point(|parent| parent.start <= extension) - 1;
            let parent = &mut parents[at];
            let state = &self.states[parent.state as usize];
            let (node, start) = *parent.node.get_or_insert_with(|| {
                let start = steps.len() as u32;
                self.steps(index, state, params, step_row);
                steps.extend_from_slice(step_row);
                let chosen = tree_order.iter().position(|number| *number == parent.extension);
                (chosen.map_or(0, |i| i as u32 + 1), start)
            });
            let choice = (extension - parent.start) as usize;
            let above = if node > 0 {
                tree.survival[node as usize - 1]
            } else {
                1.0
            };
            let survival = (above * steps[start as usize + choice]).max(f32::MIN_POSITIVE);
            let token = self.candidates.tokens(state.offset)[choice];
            let logprob = self.draft_logprob(state, choice);
            let bin = feature_bin(state.offset + 1, self.matched(state, choice), logprob);
            tree.push(token, node, survival, bin);
            tree_order.push(extension);
        }
    }
}

/// The path that an extension extends, and by which candidate.
fn parent_of(parents: &[Parent], extension: u32) -> (Parent, usize) {
    let at = parents.partition_point(|parent| parent.start <= extension) - 1;
    (parents[at], (extension - parents[at].start) as usize)
}
