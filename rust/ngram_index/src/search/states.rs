//! Nodes that may get children, with the rows of their contexts.

use super::Searcher;
use super::rows::NONE;
use crate::format::MAX_ORDER;
use crate::reader::Index;

/// Most tokens of a context.
const LONGEST: usize = MAX_ORDER - 1;

/// A node that may get children.
#[derive(Clone, Copy)]
pub(super) struct State {
    /// Position in the offsets of its children.
    pub offset: usize,
    /// Rows after the contexts of 1, 2, ... tokens, or `NONE`.
    pub rows: [u32; LONGEST],
    /// The last tokens up to and with the node's own, in the last places.
    last: [u32; LONGEST],
    /// Tokens of the longest context that an index of this order could know.
    pub length: usize,
    /// Candidate of the offset before that the node is; without meaning for the root.
    pub choice: usize,
    /// Draft probability that one of the candidates follows, and what makes their log-probabilities those after this node
    /// (`Candidates::mass_after`).
    pub mass: f32,
    log_norm: f32,
}

impl Searcher {
    /// Make the state of the root, which has number 0.
    pub(super) fn add_root(&mut self, index: &Index, context: &[u32]) -> u32 {
        let length = context.len().min(index.order() - 1);
        let mut state = State {
            offset: 0,
            rows: [NONE; LONGEST],
            last: [0; LONGEST],
            length,
            choice: 0,
            mass: self.candidates.mass(0),
            log_norm: 0.0,
        };
        state.last[LONGEST - length..].copy_from_slice(&context[context.len() - length..]);
        let tokens = self.candidates.tokens(0);
        for (i, row) in state.rows.iter_mut().enumerate().take(length) {
            let context = &state.last[LONGEST - 1 - i..];
            *row = match context {
                [token] => self.rows.after_token(index, *token, index.unigram(*token), None, tokens),
                _ => match index.context(context) {
                    Some(node) => self.rows.after_node(index, node, context, tokens),
                    None => NONE,
                },
            };
        }
        self.add(state)
    }

    /// Make the state of the child of another one by its `choice`-th candidate; the parent's rows are read, the child's
    /// are not.
    pub(super) fn add_child(&mut self, index: &Index, parent: u32, choice: usize) -> u32 {
        let parent = self.states[parent as usize];
        let offset = parent.offset + 1;
        let (mass, log_norm) = self.candidates.mass_after(offset, choice);
        let mut state = State {
            offset,
            rows: [NONE; LONGEST],
            last: parent.last,
            length: (parent.length + 1).min(index.order() - 1),
            choice,
            mass,
            log_norm,
        };
        state.last.copy_within(1.., 0);
        let token = self.candidates.tokens(parent.offset)[choice];
        state.last[LONGEST - 1] = token;
        let tokens = self.candidates.tokens(offset);
        let number = self.candidates.number(parent.offset, choice);
        let unigram = self.candidates.unigrams(parent.offset)[choice];
        state.rows[0] = self.rows.after_token(index, token, unigram, Some(number), tokens);
        for i in 1..state.length {
            let context = &state.last[LONGEST - 1 - i..];
            state.rows[i] = self.rows.after_choice(index, parent.rows[i - 1], choice, context, tokens);
        }
        self.add(state)
    }

    fn add(&mut self, state: State) -> u32 {
        self.states.push(state);
        self.states.len() as u32 - 1
    }

    /// Read the rows of a state.
    pub(super) fn read(&mut self, index: &Index, state: u32) {
        let state = self.states[state as usize];
        for row in state.rows {
            self.rows.read(index, row, self.candidates.lookup(state.offset));
        }
    }

    /// Log-probability of a candidate after a state by the draft head alone.
    pub(super) fn draft_logprob(&self, state: &State, choice: usize) -> f32 {
        let score = self.candidates.transitions(state.offset, state.choice).map_or(0.0, |scores| scores[choice]);
        self.candidates.logprobs(state.offset)[choice] + score - state.log_norm
    }

    /// Tokens of the longest context of a state that knows a candidate; 0 if none does.
    pub(super) fn matched(&self, state: &State, choice: usize) -> u8 {
        let known = state.rows.iter().rposition(|row| self.rows.knows(*row, choice));
        known.map_or(0, |i| i as u8 + 1)
    }
}
