//! The live footprints in order of position, searched by bounds.

use alloc::vec::Vec;
use core::ops::RangeInclusive;

use super::footprint::{Footprint, Point};

/// No node.
pub(super) const NIL: usize = usize::MAX;

/// Two interval trees over one pool of nodes: the footprints that are read, and those that are
/// written. A reader searches the writers only, so readers of one region do not slow each other.
///
/// Each tree is a treap in the order of first points and then of age, balanced by pseudo-random priorities. Each
/// node knows the furthest end and the oldest and the latest footprint below it. A search for all `k` overlapping bounds
/// among `n` visits `O(k + log n)` nodes (expected), however long the longest of them is. The search for the latest one
/// visits `O(log n)` where the overlapping footprints start at one point or where none is later than wanted, and never
/// more than the search for all. Links are positions in the pool: no allocation while the pool has a free node.
#[derive(Clone, Debug)]
pub(super) struct Index {
    nodes: Vec<Node>,
    /// The first free node; the others follow by `chain`.
    free: usize,
    readers: usize,
    writers: usize,
    inserted: u64,
    live: usize,
    /// The nodes that searches have visited: what tests count in place of time.
    #[cfg(test)]
    pub(super) visits: core::cell::Cell<usize>,
}

/// As many nodes are kept however few are in use.
pub(super) const KEPT: usize = 1024;

/// How many times the nodes in use there are when memory goes back.
pub(super) const ROOMY: usize = 32;

#[derive(Clone, Debug)]
struct Node {
    footprint: Footprint,
    owner: Owner,
    /// The owner's next footprint, or the next free node.
    chain: usize,
    left: usize,
    right: usize,
    parent: usize,
    /// No node's is above its parent's.
    priority: u64,
    below: Below,
}

/// The owner of a footprint, in the caller's terms: its place, and its age. A later one has a higher order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub(super) slot: usize,
    pub(super) order: u64,
}

/// What a search asks a subtree before it enters it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Below {
    /// The furthest end.
    furthest: Point,
    oldest: u64,
    latest: u64,
}

impl Below {
    fn with(self, other: Below) -> Below {
        Below {
            furthest: self.furthest.max(other.furthest),
            oldest: self.oldest.min(other.oldest),
            latest: self.latest.max(other.latest),
        }
    }
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
            #[cfg(test)]
            visits: core::cell::Cell::new(0),
        }
    }

    /// Returns whether most nodes are free, and they are many. Moving those that are in use takes a while, so they are
    /// few then.
    pub(super) fn is_roomy(&self) -> bool {
        self.nodes.len() > KEPT.max(ROOMY * self.live)
    }

    /// Returns an index without nodes that goes on where this one is, with room for twice as many as are in use.
    pub(super) fn emptied(&self) -> Index {
        Index {
            nodes: Vec::with_capacity(2 * self.live),
            inserted: self.inserted,
            #[cfg(test)]
            visits: self.visits.clone(),
            ..Index::new()
        }
    }

    pub(super) fn footprint(&self, node: usize) -> &Footprint {
        &self.nodes[node].footprint
    }

    pub(super) fn owner(&self, node: usize) -> Owner {
        self.nodes[node].owner
    }

    /// Returns the node that was given as `chain` when this one was inserted.
    pub(super) fn chain(&self, node: usize) -> usize {
        self.nodes[node].chain
    }

    /// Takes up a footprint that is not empty; returns its node.
    pub(super) fn insert(&mut self, footprint: Footprint, owner: Owner, chain: usize) -> usize {
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
            below: Below {
                furthest: footprint.end_point(),
                oldest: owner.order,
                latest: owner.order,
            },
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
            let below = self.below(at);
            if below == self.nodes[at].below {
                break;
            }
            self.nodes[at].below = below;
            at = self.nodes[at].parent;
        }
    }

    /// Gives a removed node back to the pool.
    pub(super) fn release(&mut self, node: usize) {
        self.nodes[node].chain = self.free;
        self.free = node;
        self.live -= 1;
    }

    /// Returns the latest owner before `order` with a footprint that this one conflicts with, if it is later than `than`.
    /// Else returns `than`.
    pub(super) fn latest(&self, of: &Footprint, order: u64, than: Option<Owner>) -> Option<Owner> {
        let readers = if of.writes() { self.readers } else { NIL };
        let found = self.latest_below(self.writers, of, order, than);
        self.latest_below(readers, of, order, found)
    }

    /// The same for the subtree at `at`. It is as deep as the tree, which has logarithmic depth (expected).
    fn latest_below(
        &self,
        at: usize,
        of: &Footprint,
        order: u64,
        mut found: Option<Owner>,
    ) -> Option<Owner> {
        if at == NIL {
            return found;
        }
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        let node = &self.nodes[at];
        let is_later = |latest: u64| found.is_none_or(|found| latest > found.order);
        if node.below.furthest <= of.first_point()
            || node.below.oldest >= order
            || !is_later(node.below.latest)
        {
            return found;
        }
        if node.footprint.first_point() >= of.end_point() {
            return self.latest_below(node.left, of, order, found);
        }
        if node.owner.order < order
            && is_later(node.owner.order)
            && node.footprint.end_point() > of.first_point()
            && of.conflicts_with(&node.footprint)
        {
            found = Some(node.owner);
        }
        // The latest of all is probably where the latest footprint is.
        let latest = |child: usize| self.nodes.get(child).map_or(0, |child| child.below.latest);
        let (one, other) = match latest(node.left) > latest(node.right) {
            true => (node.left, node.right),
            false => (node.right, node.left),
        };
        let found = self.latest_below(one, of, order, found);
        self.latest_below(other, of, order, found)
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
        if at == NIL || self.nodes[at].below.furthest <= lo {
            return NIL;
        }
        // Some end in the subtree lies past `lo`.
        loop {
            let node = &self.nodes[at];
            if node.left != NIL && self.nodes[node.left].below.furthest > lo {
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
            if node.right == NIL || self.nodes[node.right].below.furthest <= lo {
                return NIL;
            }
            at = node.right;
        }
    }

    /// Returns the next node after `at`, in order, that overlaps `lo..hi`.
    fn after(&self, mut at: usize, lo: Point, hi: Point) -> usize {
        let right = self.nodes[at].right;
        if right != NIL && self.nodes[right].below.furthest > lo {
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

    /// Returns the owners of these orders, each once, by rising order.
    pub(super) fn owners(&self, orders: RangeInclusive<u64>) -> Vec<Owner> {
        let mut found = Vec::new();
        for root in [self.readers, self.writers] {
            self.owners_below(root, &orders, &mut found);
        }
        found.sort_unstable_by_key(|owner| owner.order);
        found.dedup();
        found
    }

    fn owners_below(&self, at: usize, orders: &RangeInclusive<u64>, found: &mut Vec<Owner>) {
        let Some(node) = self.nodes.get(at) else {
            return;
        };
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        if node.below.latest < *orders.start() || node.below.oldest > *orders.end() {
            return;
        }
        found.extend(Some(node.owner).filter(|owner| orders.contains(&owner.order)));
        self.owners_below(node.left, orders, found);
        self.owners_below(node.right, orders, found);
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
        let key = self.key(node);
        let own = self.nodes[node].below;
        let writes = self.nodes[node].footprint.writes();
        let mut parent = NIL;
        let mut left = false;
        let mut at = *self.root(writes);
        while at != NIL {
            parent = at;
            left = key < self.key(at);
            let above = &mut self.nodes[at];
            above.below = above.below.with(own);
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
        self.nodes[node].below = self.nodes[parent].below;
        self.nodes[parent].below = self.below(parent);
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

    /// The place of a node in the order of its tree.
    fn key(&self, node: usize) -> (Point, u64) {
        let node = &self.nodes[node];
        (node.footprint.first_point(), node.owner.order)
    }

    fn below(&self, at: usize) -> Below {
        let node = &self.nodes[at];
        let own = Below {
            furthest: node.footprint.end_point(),
            oldest: node.owner.order,
            latest: node.owner.order,
        };
        let children = [node.left, node.right].into_iter();
        let children = children.filter_map(|child| Some(self.nodes.get(child)?.below));
        children.fold(own, Below::with)
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
