//! The result of a search.

/// Candidates for the positions after the pending token; the root is not stored.
///
/// Node i has index i + 1 in `parents`, where 0 is the root; a parent's index is smaller than its child's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    /// Token ids.
    pub tokens: Vec<i32>,
    /// Parents.
    pub parents: Vec<i32>,
    /// Estimate of the probability that the target's walk reaches the node, in (0, 1], at most the parent's.
    pub survival: Vec<f32>,
    /// See [`feature_bin`].
    pub feature_bins: Vec<u16>,
    /// Different contexts whose continuations were looked up for it.
    pub contexts: u32,
}

impl Tree {
    /// Number of nodes without the root.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is only the root.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.parents.clear();
        self.survival.clear();
        self.feature_bins.clear();
        self.contexts = 0;
    }

    pub(super) fn push(&mut self, token: u32, parent: u32, survival: f32, feature_bin: u16) {
        self.tokens.push(token as i32);
        self.parents.push(parent as i32);
        self.survival.push(survival);
        self.feature_bins.push(feature_bin);
    }
}

/// What the estimate of a node rests on, as one of 1024 bins: bits 6 to 9 are the depth less 1 (15 for 16 and more),
/// bits 3 to 5 the tokens of the longest context that has the token as a continuation, bits 0 to 2 the draft
/// probability in halvings: 0 for (1/2, 1], 1 for (1/4, 1/2], up to 7 for 1/128 and less.
pub fn feature_bin(depth: usize, matched: u8, logprob: f32) -> u16 {
    let depth = depth.clamp(1, 16) as u16 - 1;
    let halvings = (-logprob * std::f32::consts::LOG2_E).clamp(0.0, 7.0) as u16;
    depth << 6 | u16::from(matched.min(7)) << 3 | halvings
}
