//! Routes: the memories that bytes visit, and the method's name.

use alloc::vec::Vec;
use core::fmt;

use crate::{Access, Link, MemoryId};

/// The five methods by which bytes move, as users see them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Method {
    /// One engine reads and writes memory that is native to it, in one pass.
    DirectCopy,
    /// One engine reads or writes the other side's memory in place, in one pass, without staging.
    ZeroCopy,
    /// Two or more passes over leased staging slots, overlapped.
    HostStaged,
    /// One pass over a device-to-device link.
    PeerToPeer,
    /// A managed allocation: prefetch, advice, coherence.
    UnifiedMemory,
}

impl Method {
    /// Every method, in the order of declaration.
    pub const ALL: [Method; 5] = [
        Method::DirectCopy,
        Method::ZeroCopy,
        Method::HostStaged,
        Method::PeerToPeer,
        Method::UnifiedMemory,
    ];

    /// Returns the method's name, as reports print it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::DirectCopy => "DirectCopy",
            Method::ZeroCopy => "ZeroCopy",
            Method::HostStaged => "HostStaged",
            Method::PeerToPeer => "PeerToPeer",
            Method::UnifiedMemory => "UnifiedMemory",
        }
    }

    /// Returns the method of a single pass with that access.
    pub const fn of_access(access: Access) -> Method {
        match access {
            Access::Native => Method::DirectCopy,
            Access::Import => Method::ZeroCopy,
            Access::Peer => Method::PeerToPeer,
            Access::Managed => Method::UnifiedMemory,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Links end to end, from the source's memory to the destination's. At least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    links: Vec<Link>,
}

impl Route {
    /// Returns the route over `links`; `None` when there are none, or one does not start where its
    /// predecessor ends.
    pub fn new(links: Vec<Link>) -> Option<Route> {
        let joined = links
            .windows(2)
            .all(|pair| pair[0].id.dst == pair[1].id.src);
        (!links.is_empty() && joined).then_some(Route { links })
    }

    /// Returns the links, in the order that bytes pass them.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Returns the method of a copy over this route.
    pub fn method(&self) -> Method {
        match self.links.as_slice() {
            [link] => Method::of_access(link.id.access),
            _ => Method::HostStaged,
        }
    }

    /// Returns the memories that bytes visit: source, staging memories, destination.
    pub fn memories(&self) -> impl Iterator<Item = MemoryId> + '_ {
        let first = self.links.first().map(|link| link.id.src);
        first
            .into_iter()
            .chain(self.links.iter().map(|link| link.id.dst))
    }

    /// Returns the source and the destination.
    pub fn ends(&self) -> Option<(MemoryId, MemoryId)> {
        Some((self.links.first()?.id.src, self.links.last()?.id.dst))
    }

    /// Returns the memories between source and destination, where slots are leased.
    pub fn staging(&self) -> impl Iterator<Item = MemoryId> + '_ {
        let last = self.links.len() - 1;
        self.links[..last].iter().map(|link| link.id.dst)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, memory) in self.memories().enumerate() {
            if i > 0 {
                f.write_str(" → ")?;
            }
            memory.fmt(f)?;
        }
        Ok(())
    }
}
