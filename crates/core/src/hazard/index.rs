//! The live footprints in order of position, searched by bounds.

use alloc::vec::Vec;

use super::footprint::{Footprint, Point};

/// No node.
pub(super) const NIL: usize = usize::MAX;

/// Two interval trees over one pool of nodes: the footprints that are read, and those that are
/// written. A reader searches the writers only, so readers of one region do not slow each other.
///
/// Each tree is a treap in the order of first points, balanced by pseudo-random priorities; each
/// node knows the furthest end below it, so that a search for `k` overlapping bounds among `n`
/// visits `O(k + log n)` nodes (expected), however long the longest of them is. Links are positions
/// in the pool, walks follow parent links: no recursion, no stack, and no allocation while the
/// pool has a free node.
#[derive(Clone, Debug)]
pub(super) struct Index {
    nodes: Vec<Node>,
    /// The first free node; the others follow by `chain`.
    free: usize,
    readers: usize,
    writers: usize,
    inserted: u64,
    live: usize,
}

/// As many nodes are kept however few are in use.
pub(super) const KEPT: usize = 1024;

#[derive(Clone, Debug)]
struct Node {
    footprint: Footprint,
    /// Whose it is, in the caller's terms.
    owner: usize,
    /// The owner's next footprint, or the next free node.
    chain: usize,
    left: usize,
    right: usize,
    parent: usize,
    /// No node's is above its parent's.
    priority: u64,
    /// The furthest end in the subtree that starts here.
    furthest: Point,
}

impl Index {
    pub(super) const fn new() -> Index {
        Index {
            nodes: Vec::new(),
            free: NIL,
            readers: NIL,
            writers: NIL,
            inserted: 0,
            live: 0,
        }
    }

    /// Returns whether three of four nodes are free, and they are many.
    pub(super) fn is_roomy(&self) -> bool {
        self.nodes.len() > KEPT.max(4 * self.live)
    }

    /// Returns an index without nodes that goes on where this one is, with room for twice as many as are in use.
    pub(super) fn emptied(&self) -> Index {
        Index {
            nodes: Vec::with_capacity(2 * self.live),
            inserted: self.inserted,
            ..Index::new()
        }
    }

    pub(super) fn footprint(&self, node: usize) -> &Footprint {
        &self.nodes[node].footprint
    }

    pub(super) fn owner(&self, node: usize) -> usize {
        self.nodes[node].owner
    }

    /// Returns the node that was given as `chain` when this one was inserted.
    pub(super) fn chain(&self, node: usize) -> usize {
        self.nodes[node].chain
    }

    /// Takes up a footprint that is not empty; returns its node.
    pub(super) fn insert(&mut self, footprint: Footprint, owner: usize, chain: usize) -> usize {
        self.inserted = self.inserted.wrapping_add(1);
        self.live += 1;
        let node = self.place(Node {
            footprint,
            owner,
            chain,
            left: NIL,
            right: NIL,
            parent: NIL,
            priority: scatter(self.inserted),
            furthest: footprint.end_point(),
        });
        self.attach(node);
        loop {
            let parent = self.nodes[node].parent;
            if parent == NIL || self.nodes[parent].priority >= self.nodes[node].priority {
                return node;
            }
            self.rotate_up(node);
        }
    }

    /// Takes a node out of its tree, so that searches no longer see it. Its footprint and chain can
    /// be read until [`Index::release`].
    pub(super) fn remove(&mut self, node: usize) {
        loop {
            let Node { left, right, .. } = self.nodes[node];
            if left == NIL || right == NIL {
                break;
            }
            let upper = if self.nodes[left].priority >= self.nodes[right].priority {
                left
            } else {
                right
            };
            self.rotate_up(upper);
        }
        let Node {
            left,
            right,
            parent,
            ..
        } = self.nodes[node];
        let child = if left == NIL { right } else { left };
        if child != NIL {
            self.nodes[child].parent = parent;
        }
        self.replace_child(parent, node, child);
        let mut at = parent;
        while at != NIL {
            let furthest = self.furthest_below(at);
            if furthest == self.nodes[at].furthest {
                break;
            }
            self.nodes[at].furthest = furthest;
            at = self.nodes[at].parent;
        }
    }

    /// Gives a removed node back to the pool.
    pub(super) fn release(&mut self, node: usize) {
        self.nodes[node].chain = self.free;
        self.free = node;
        self.live -= 1;
    }

    /// Returns the nodes that may conflict with the footprint, judged by bounds: writers, and where it writes
    /// readers too.
    pub(super) fn candidates(&self, footprint: &Footprint) -> Candidates<'_> {
        let (lo, hi) = (footprint.first_point(), footprint.end_point());
        let (tree, then) = if footprint.writes() {
            (self.writers, self.readers)
        } else {
            (self.writers, NIL)
        };
        Candidates {
            next: self.first(tree, lo, hi),
            index: self,
            then,
            lo,
            hi,
        }
    }

    /// Returns the first node, in order, of the subtree at `at` that overlaps `lo..hi`.
    fn first(&self, mut at: usize, lo: Point, hi: Point) -> usize {
        if at == NIL || self.nodes[at].furthest <= lo {
            return NIL;
        }
        // Some end in the subtree lies past `lo`.
        loop {
            let node = &self.nodes[at];
            if node.left != NIL && self.nodes[node.left].furthest > lo {
                // If that end's node starts too late, then so does all that is to the right of it.
                at = node.left;
                continue;
            }
            if node.footprint.first_point() >= hi {
                return NIL;
            }
            if node.footprint.end_point() > lo {
                return at;
            }
            if node.right == NIL || self.nodes[node.right].furthest <= lo {
                return NIL;
            }
            at = node.right;
        }
    }

    /// Returns the next node after `at`, in order, that overlaps `lo..hi`.
    fn after(&self, mut at: usize, lo: Point, hi: Point) -> usize {
        let right = self.nodes[at].right;
        if right != NIL && self.nodes[right].furthest > lo {
            let found = self.first(right, lo, hi);
            if found != NIL {
                return found;
            }
        }
        loop {
            let from = at;
            at = self.nodes[at].parent;
            if at == NIL {
                return NIL;
            }
            let node = &self.nodes[at];
            if node.right == from {
                continue;
            }
            if node.footprint.first_point() >= hi {
                return NIL;
            }
            if node.footprint.end_point() > lo {
                return at;
            }
            let found = self.first(node.right, lo, hi);
            if found != NIL {
                return found;
            }
        }
    }

    fn place(&mut self, node: Node) -> usize {
        let at = self.free;
        if at == NIL {
            self.nodes.push(node);
            return self.nodes.len() - 1;
        }
        self.free = self.nodes[at].chain;
        self.nodes[at] = node;
        at
    }

    /// Hangs a node in as a leaf.
    fn attach(&mut self, node: usize) {
        let start = self.nodes[node].footprint.first_point();
        let end = self.nodes[node].furthest;
        let writes = self.nodes[node].footprint.writes();
        let mut parent = NIL;
        let mut left = false;
        let mut at = *self.root(writes);
        while at != NIL {
            parent = at;
            let above = &mut self.nodes[at];
            above.furthest = above.furthest.max(end);
            left = start < above.footprint.first_point();
            at = if left { above.left } else { above.right };
        }
        self.nodes[node].parent = parent;
        if parent == NIL {
            *self.root(writes) = node;
        } else if left {
            self.nodes[parent].left = node;
        } else {
            self.nodes[parent].right = node;
        }
    }

    /// Exchanges a node with its parent; the order stays.
    fn rotate_up(&mut self, node: usize) {
        let parent = self.nodes[node].parent;
        let above = self.nodes[parent].parent;
        let between;
        if self.nodes[parent].left == node {
            between = self.nodes[node].right;
            self.nodes[node].right = parent;
            self.nodes[parent].left = between;
        } else {
            between = self.nodes[node].left;
            self.nodes[node].left = parent;
            self.nodes[parent].right = between;
        }
        if between != NIL {
            self.nodes[between].parent = parent;
        }
        self.nodes[node].parent = above;
        self.nodes[parent].parent = node;
        self.replace_child(above, parent, node);
        self.nodes[node].furthest = self.nodes[parent].furthest;
        self.nodes[parent].furthest = self.furthest_below(parent);
    }

    /// Puts `new` where `old` hung: below `parent`, or at the root.
    fn replace_child(&mut self, parent: usize, old: usize, new: usize) {
        if parent == NIL {
            let writes = self.nodes[old].footprint.writes();
            *self.root(writes) = new;
        } else if self.nodes[parent].left == old {
            self.nodes[parent].left = new;
        } else {
            self.nodes[parent].right = new;
        }
    }

    fn furthest_below(&self, at: usize) -> Point {
        let node = &self.nodes[at];
        let mut furthest = node.footprint.end_point();
        for child in [node.left, node.right] {
            if child != NIL {
                furthest = furthest.max(self.nodes[child].furthest);
            }
        }
        furthest
    }

    fn root(&mut self, writes: bool) -> &mut usize {
        if writes {
            &mut self.writers
        } else {
            &mut self.readers
        }
    }
}

/// Iterates over the nodes of [`Index::candidates`].
pub(super) struct Candidates<'a> {
    index: &'a Index,
    next: usize,
    /// The tree to search when the present one is through, or `NIL`.
    then: usize,
    lo: Point,
    hi: Point,
}

impl Iterator for Candidates<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.next == NIL {
            self.next = self.index.first(self.then, self.lo, self.hi);
            self.then = NIL;
            if self.next == NIL {
                return None;
            }
        }
        let found = self.next;
        self.next = self.index.after(found, self.lo, self.hi);
        Some(found)
    }
}

/// A bijection that leaves no order in consecutive numbers (the finaliser of SplitMix64: Steele,
/// Lea and Flood, OOPSLA 2014).
const fn scatter(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests;
