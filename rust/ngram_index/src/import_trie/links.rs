//! Whether the lists of children say the same as the nodes about their parents, without holding them.

/// Sums over all links, which agree when each node is listed once, by its parent and under its token.
#[derive(Default)]
pub(super) struct Links {
    /// Children in all lists.
    pub listed: u64,
    /// Sum of a hash of every link in a list, minus the sum over the nodes; 0 when they agree.
    balance: u64,
}

impl Links {
    /// A node's own word about its parent.
    pub fn node(&mut self, parent: u64, child: u64, token: i32) {
        self.balance = self.balance.wrapping_sub(hash(parent, child, token));
    }

    /// An entry in a parent's list.
    pub fn entry(&mut self, parent: u64, child: u64, token: i32) {
        self.balance = self.balance.wrapping_add(hash(parent, child, token));
    }

    /// Whether the lists hold what `nodes` nodes say.
    pub fn agree(&self, nodes: u64) -> bool {
        self.listed == nodes && self.balance == 0
    }
}

fn hash(parent: u64, child: u64, token: i32) -> u64 {
    let mut x = parent.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ child.rotate_left(32) ^ u64::from(token as u32);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
