//! Reasons against routes.

use alloc::borrow::{Cow, ToOwned};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::{Bar, ByteSize, LinkId, MemoryId, Method, Route};

/// Why a link may not be used now.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Barred {
    /// The link failed and is barred for a time, or it moved wrong bytes and was condemned.
    Quarantined(Bar),
    /// Its backend refused to connect the two ends.
    Refused,
    /// A device on it is lost.
    Lost,
    /// The request's own options rule it out.
    Excluded,
}

impl From<Bar> for Barred {
    fn from(bar: Bar) -> Barred {
        Barred::Quarantined(bar)
    }
}

impl fmt::Display for Barred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Barred::Quarantined(bar) => match bar.until {
                Some(_) => write!(f, "in quarantine ({})", bar.reason),
                None => write!(f, "condemned ({})", bar.reason),
            },
            Barred::Refused => f.write_str("its backend refused to connect the two ends"),
            Barred::Lost => f.write_str("a device on it is lost"),
            Barred::Excluded => f.write_str("ruled out by the request"),
        }
    }
}

/// Why a route is not the chosen one.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// A link of it may not be used now.
    Barred {
        /// The first such link.
        link: LinkId,
        /// Why not.
        why: Barred,
    },
    /// A region has gaps, and a link that touches it does not take such ones.
    NotPitched {
        /// The first such link.
        link: LinkId,
    },
    /// The first link is none of the host's engine, and the bytes are to be converted there.
    ConvertsNothing {
        /// The first such link.
        link: LinkId,
    },
    /// The bytes must pass a transform, and the host can address them nowhere on the way, or no
    /// backend runs transforms.
    NoTransform,
    /// Not even one slot of the smallest size for each ring fits the staging budget.
    NoRoom {
        /// The smallest chunk, in bytes.
        chunk_bytes: u64,
        /// How many rings want a slot of that size.
        rings: u8,
        /// What they may take together, in bytes.
        budget_bytes: u64,
    },
    /// A staging memory allocates nothing as large as the smallest slot.
    SlotTooLarge {
        /// The memory.
        memory: MemoryId,
        /// The smallest chunk, in bytes.
        chunk_bytes: u64,
        /// The memory's largest allocation, in bytes.
        max_alloc_bytes: u64,
    },
    /// Cheapest for larger payloads only.
    SlowerBelow {
        /// Where it begins to be the cheapest.
        bytes: u64,
    },
    /// Part of the cheapest plan for larger payloads only, together with other routes.
    JoinsFrom {
        /// Where it begins to take a share.
        bytes: u64,
    },
    /// Cheapest for smaller payloads only.
    SlowerAbove {
        /// Where it ceases to be the cheapest.
        bytes: u64,
    },
    /// Cheapest for smaller and for larger payloads.
    SlowerBetween {
        /// Where it ceases to be the cheapest.
        from_bytes: u64,
        /// Where it is the cheapest again.
        to_bytes: u64,
    },
    /// One other route is at least as cheap at every size.
    Dominated {
        /// That route; `None` where the bytes are read in place.
        by: Option<Route>,
    },
    /// At every size some other route is at least as cheap, though no single one at all of them.
    NeverCheapest,
    /// The chosen route is at least as cheap at every size.
    NeverFaster,
    /// Its predicted time is shorter, by less than the measured costs are uncertain, and the chosen route is simpler.
    Undecided,
    /// Other machines have such a link. This one lacks it.
    Lacking {
        /// What the device, its driver, or the program that opened it left out.
        why: Cow<'static, str>,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Barred { link, why } => write!(f, "{}: {why}", LinkName(link)),
            Reason::NotPitched { link } => write!(
                f,
                "{} takes no bytes that lie as these do: rows with gaps, blocks, or elements at strides",
                LinkName(link)
            ),
            Reason::ConvertsNothing { link } => write!(
                f,
                "no conversion: {} is no link of the host's engine to memory, where numbers are converted",
                LinkName(link)
            ),
            Reason::NoTransform => {
                f.write_str("no transform: the host can address the bytes nowhere on the way")
            }
            Reason::NoRoom {
                chunk_bytes,
                rings,
                budget_bytes,
            } => write!(
                f,
                "no room: {rings} × {chunk_bytes} bytes of slots exceed the staging budget of \
                 {budget_bytes} bytes"
            ),
            Reason::SlotTooLarge {
                memory,
                chunk_bytes,
                max_alloc_bytes,
            } => write!(
                f,
                "no room: {memory} allocates at most {max_alloc_bytes} bytes, a slot takes \
                 {chunk_bytes} bytes"
            ),
            Reason::SlowerBelow { bytes } => write!(f, "slower below {}", ByteSize(*bytes)),
            Reason::JoinsFrom { bytes } => {
                let size = ByteSize(*bytes);
                write!(
                    f,
                    "used only from {size} on, at the same time as another route"
                )
            }
            Reason::SlowerAbove { bytes } => write!(f, "slower from {} on", ByteSize(*bytes)),
            Reason::SlowerBetween {
                from_bytes,
                to_bytes,
            } => {
                let (from, to) = (ByteSize(*from_bytes), ByteSize(*to_bytes));
                write!(f, "slower between {from} and {to}")
            }
            Reason::Dominated { by: Some(by) } => {
                write!(f, "never faster than {} {by}", by.method())
            }
            Reason::Dominated { by: None } => f.write_str("never faster than reading in place"),
            Reason::NeverCheapest => f.write_str("at every size another route is as fast"),
            Reason::Undecided => f.write_str(
                "faster than the chosen way by less than the measurements are uncertain, and less simple",
            ),
            Reason::NeverFaster => f.write_str("never faster than the chosen way"),
            Reason::Lacking { why } => f.write_str(why),
        }
    }
}

impl Reason {
    /// Returns what the user can do if no other route is left.
    fn remedy(&self) -> Option<&'static str> {
        match self {
            Reason::NotPitched { .. } => {
                Some("copy them into memory of their own in one piece first, and that on")
            }
            Reason::ConvertsNothing { .. } => {
                Some("convert into host memory first, and copy that on")
            }
            Reason::NoRoom { .. } => Some("raise the staging budget"),
            Reason::Barred { .. }
            | Reason::NoTransform
            | Reason::SlotTooLarge { .. }
            | Reason::SlowerBelow { .. }
            | Reason::JoinsFrom { .. }
            | Reason::SlowerAbove { .. }
            | Reason::SlowerBetween { .. }
            | Reason::Dominated { .. }
            | Reason::NeverCheapest
            | Reason::NeverFaster
            | Reason::Undecided
            | Reason::Lacking { .. } => None,
        }
    }
}

struct LinkName<'a>(&'a LinkId);

impl fmt::Display for LinkName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkId {
            src, dst, engine, ..
        } = self.0;
        write!(f, "link {src} → {dst} over {engine}")
    }
}

/// A route that is not the chosen one.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Rejected {
    /// The method of the route, as users see it.
    pub method: Method,
    /// The route; `None` where the bytes are read in place.
    pub route: Option<Route>,
    /// The time that it would take, in nanoseconds, where it could be taken and a size was given.
    pub estimate_ns: Option<u64>,
    /// Why the route is not the chosen one.
    pub reason: Reason,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.route {
            Some(route) => write!(f, "{} {route}: {}", self.method, self.reason),
            None => write!(f, "{} in place: {}", self.method, self.reason),
        }
    }
}

/// Why there is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoPlan {
    /// A memory that no backend has.
    #[error("there is no memory {memory}")]
    UnknownMemory {
        /// Its name.
        memory: MemoryId,
    },
    /// No route can be taken.
    #[error("no way from {src} to {dst}{}", Losers(rejected))]
    NoRoute {
        /// Where the bytes are.
        src: MemoryId,
        /// Where they should go; the same as `src` for a digest.
        dst: MemoryId,
        /// Every route that links and staging memories would make, and the reason against it.
        rejected: Vec<Rejected>,
    },
}

impl NoPlan {
    /// Returns why there is none, for a text that names the two memories already.
    pub fn reasons(&self) -> String {
        match self {
            NoPlan::NoRoute { rejected, .. } => {
                let text = Losers(rejected).to_string();
                text.trim_start_matches([':', ' ']).to_owned()
            }
            other => other.to_string(),
        }
    }
}

struct Losers<'a>(&'a [Rejected]);

impl fmt::Display for Losers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(": no link joins them, directly or through staging memory");
        }
        for (i, rejected) in self.0.iter().enumerate() {
            write!(f, "{} {rejected}", if i == 0 { ":" } else { ";" })?;
        }
        let mut told = Vec::new();
        for remedy in self
            .0
            .iter()
            .filter_map(|rejected| rejected.reason.remedy())
        {
            if !told.contains(&remedy) {
                write!(f, "; {remedy}")?;
                told.push(remedy);
            }
        }
        Ok(())
    }
}
