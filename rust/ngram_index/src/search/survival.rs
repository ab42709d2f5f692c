//! Best-first search by the estimated probability that the target's walk reaches a node.
//!
//! survival(child) = survival(parent) · c, and c is what the draft head says about the position, corrected by what the
//! counts say about the path. Both sources know how common a token is, so by default that part is divided out once:
//!
//! c(v) = P · u(v) / Σ u,   u(v) = p(v) · g(v|path)^w,   g = g_wb(v|path) / p_unigram(v)
//!
//! with g_wb the Witten-Bell estimate, the sum over the offset's candidates, and P their draft probability together (or 1
//! if that is more). So the counts move probability between siblings, not to or from tokens that are no candidates.
//! Siblings' c sum to P, and without evidence from the counts c is p, which at offset 1 is a fair estimate as it is.
//!
//! Proposals with transition scores s say more about what follows what: u(v) gets the factor e^s(v|parent), and P is what
//! the draft head gives the candidates after the parent, (Σ p · e^s) / (Σ p · e^s + 1 - Σ p).
//!
//! Letting the counts change the sum too committed the same number of tokens to within 1%, but overrated the trees: with
//! a small head and index, 16 nodes promised 1.48 accepted tokens and gave 1.09, against 1.16 and 1.08 for this.
//!
//! The search is lazy. What a node's children are is looked up when survival(node) · P, which none of them can exceed,
//! comes to the top of the queue, and only its best remaining child is in the queue. The result is that of looking up
//! everything: before a node is selected, whatever could come before it is known. The candidate that is next in the queue is
//! prepared before the item before it is looked up, so that its memory is on its way meanwhile.

use std::collections::BinaryHeap;

use super::float::map;
use super::{Params, Searcher, Tree, feature_bin};
use crate::reader::Index;

/// An item of the queue as one integer, greater first: survival; then a node to look up before a candidate; then the
/// candidate of smaller depth, parent and token.
///
/// Bits 32 to 63 are the survival, whose bits sort like the number as it is positive; bit 31 says that the children of
/// tree node `parent` are to be looked up; below are the complements of depth (8 bits), parent (11) and choice (10).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Item(u64);

const LOOK_UP: u64 = 1 << 31;

impl Item {
    fn candidate(survival: f32, depth: usize, parent: usize, choice: usize) -> Self {
        let tie = (0xFF - depth as u64) << 21 | (0x7FF - parent as u64) << 10 | (0x3FF - choice as u64);
        Self(u64::from(survival.to_bits()) << 32 | tie)
    }

    fn look_up(bound: f32, node: usize) -> Self {
        Self(u64::from(bound.to_bits()) << 32 | LOOK_UP | (0x7FF - node as u64) << 10)
    }

    fn is_look_up(self) -> bool {
        self.0 & LOOK_UP != 0
    }

    fn survival(self) -> f32 {
        f32::from_bits((self.0 >> 32) as u32)
    }

    fn parent(self) -> usize {
        0x7FF - (self.0 >> 10 & 0x7FF) as usize
    }

    fn choice(self) -> usize {
        0x3FF - (self.0 & 0x3FF) as usize
    }
}

/// A node of the tree that may get children.
#[derive(Clone, Copy)]
struct Parent {
    state: u32,
    survival: f32,
    /// Position of its children's survival, once they were looked up.
    children: usize,
}

#[derive(Default)]
pub(super) struct Buffers {
    queue: BinaryHeap<Item>,
    /// By index in the tree, 0 the root.
    parents: Vec<Parent>,
    /// Survival of the children that are looked up and not yet in the queue, 0 for the others.
    children: Vec<f32>,
    /// State of each of them, once made.
    states: Vec<Option<u32>>,
    steps: Vec<f32>,
}

impl Searcher {
    pub(super) fn best_first(&mut self, index: &Index, params: &Params, root: u32, tree: &mut Tree) {
        let mut buffers = std::mem::take(&mut self.survival);
        buffers.queue.clear();
        buffers.parents.clear();
        buffers.children.clear();
        buffers.states.clear();
        buffers.parents.push(Parent {
            state: root,
            survival: 1.0,
            children: 0,
        });
        buffers.queue.push(Item::look_up(1.0, 0));
        while let Some(item) = buffers.queue.pop() {
            let parent = buffers.parents[item.parent()];
            if tree.len() + 1 < params.node_budget {
                self.prepare_next(index, params, &mut buffers);
            }
            if item.is_look_up() {
                self.look_up(index, params, item.parent(), &mut buffers);
                continue;
            }
            let state = self.states[parent.state as usize];
            let choice = item.choice();
            let token = self.candidates.tokens(state.offset)[choice];
            let logprob = self.draft_logprob(&state, choice);
            let bin = feature_bin(state.offset + 1, self.matched(&state, choice), logprob);
            tree.push(token, item.parent() as u32, item.survival(), bin);
            if tree.len() == params.node_budget {
                break;
            }
            let mut node = Parent {
                state: 0,
                survival: item.survival(),
                children: 0,
            };
            if self.goes_on(params, state.offset, choice) {
                node.state = self.child(index, parent, choice, &mut buffers);
                let bound = (node.survival * self.states[node.state as usize].mass).max(f32::MIN_POSITIVE);
                buffers.queue.push(Item::look_up(bound, tree.len()));
            }
            buffers.parents.push(node);
            self.push_best_child(item.parent(), &mut buffers);
        }
        self.survival = buffers;
    }

    /// The state of a child that was looked up.
    fn child(&mut self, index: &Index, parent: Parent, choice: usize, buffers: &mut Buffers) -> u32 {
        *buffers.states[parent.children + choice].get_or_insert_with(|| self.add_child(index, parent.state, choice))
    }

    /// Make the state of the candidate at the head of the queue, which will hardly ever not be selected.
    fn prepare_next(&mut self, index: &Index, params: &Params, buffers: &mut Buffers) {
        let Some(item) = buffers.queue.peek().copied().filter(|item| !item.is_look_up()) else {
            return;
        };
        let parent = buffers.parents[item.parent()];
        let offset = self.states[parent.state as usize].offset;
        if self.goes_on(params, offset, item.choice()) {
            self.child(index, parent, item.choice(), buffers);
        }
    }

    /// Look up the children of a node of the tree and put the best into the queue.
    fn look_up(&mut self, index: &Index, params: &Params, node: usize, buffers: &mut Buffers) {
        let parent = &mut buffers.parents[node];
        self.read(index, parent.state);
        let state = &self.states[parent.state as usize];
        self.steps(index, state, params, &mut buffers.steps);
        let survival = parent.survival;
        map(&mut buffers.steps, move |step| {
            let value = survival * step;
            if value > f32::MIN_POSITIVE {
                value
            } else {
                f32::MIN_POSITIVE
            }
        });
        parent.children = buffers.children.len();
        buffers.children.extend_from_slice(&buffers.steps[..self.candidates.width(state.offset)]);
        buffers.states.resize(buffers.children.len(), None);
        self.push_best_child(node, buffers);
    }

    /// Move the best remaining child of a node into the queue; of equal ones the first, which has the smallest token.
    fn push_best_child(&self, node: usize, buffers: &mut Buffers) {
        let parent = buffers.parents[node];
        let offset = self.states[parent.state as usize].offset;
        let children = &mut buffers.children[parent.children..parent.children + self.candidates.width(offset)];
        // None is negative, so their bits sort like the numbers, and compilers know how to look for the largest integer.
        let best = children.iter().map(|value| value.to_bits() as i32).max().unwrap_or(0);
        if best == 0 {
            return;
        }
        if let Some(choice) = children.iter().position(|value| value.to_bits() as i32 == best) {
            let survival = std::mem::take(&mut children[choice]);
            buffers.queue.push(Item::candidate(survival, offset + 1, node, choice));
        }
    }
}
