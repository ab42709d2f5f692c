//! Which of several sorted sources comes next: a tree of losers, one comparison a level for each item.

/// The smallest head of every source; equal heads come in the order of the sources.
pub(crate) struct Tournament<K> {
    /// Head of each source, padded with ended sources to a power of two; None: ended.
    heads: Vec<Option<K>>,
    /// Losers of the inner matches from index 1; index 0 holds the winner.
    matches: Vec<u32>,
}

impl<K: Copy + Ord> Tournament<K> {
    /// From the first item of each source, None for an empty one.
    pub fn new(mut heads: Vec<Option<K>>) -> Self {
        let leaves = heads.len().next_power_of_two().max(2);
        heads.resize(leaves, None);
        let mut tree = Self {
            heads,
            matches: vec![0; leaves],
        };
        let mut winners: Vec<u32> = vec![0; 2 * leaves];
        for at in (1..2 * leaves).rev() {
            winners[at] = if at >= leaves {
                (at - leaves) as u32
            } else {
                let (a, b) = (winners[2 * at], winners[2 * at + 1]);
                let (winner, loser) = if tree.beats(b, a) { (b, a) } else { (a, b) };
                tree.matches[at] = loser;
                winner
            };
        }
        tree.matches[0] = winners[1];
        tree
    }

    #[inline]
    fn beats(&self, a: u32, b: u32) -> bool {
        match (self.heads[a as usize], self.heads[b as usize]) {
            (Some(x), Some(y)) => (x, a) < (y, b),
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// The source whose head is the smallest; None when all have ended.
    #[inline]
    pub fn winner(&self) -> Option<usize> {
        let winner = self.matches[0] as usize;
        self.heads[winner].map(|_| winner)
    }

    /// The smallest head; None when all sources have ended.
    #[inline]
    pub fn head(&self) -> Option<K> {
        self.heads[self.matches[0] as usize]
    }

    /// Put the next item of the winning source in place of its head; None when it has ended.
    #[inline]
    pub fn replace(&mut self, next: Option<K>) {
        let mut winner = self.matches[0];
        self.heads[winner as usize] = next;
        let mut at = (winner as usize + self.matches.len()) / 2;
        while at > 0 {
            let other = self.matches[at];
            if self.beats(other, winner) {
                self.matches[at] = winner;
                winner = other;
            }
            at /= 2;
        }
        self.matches[0] = winner;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_like_a_sort() {
        for sources in 0..9_usize {
            let lists: Vec<Vec<(u32, usize)>> =
                (0..sources).map(|s| (0..s as u32 * 3).map(|i| (i * (s as u32 % 3 + 1) / 2, s)).collect()).collect();
            let mut iterators: Vec<_> = lists.iter().map(|list| list.iter()).collect();
            let mut tree = Tournament::new(iterators.iter_mut().map(|list| list.next().map(|item| item.0)).collect());
            let mut heads: Vec<usize> = vec![0; sources];
            let mut merged = Vec::new();
            while let Some(source) = tree.winner() {
                merged.push(lists[source][heads[source]]);
                heads[source] += 1;
                tree.replace(iterators[source].next().map(|item| item.0));
            }
            let mut expected = lists.concat();
            expected.sort();
            assert_eq!(merged, expected);
        }
    }
}
