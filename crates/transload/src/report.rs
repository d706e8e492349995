//! Reports of transfers.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use transload_core::flight::Tried;
use transload_core::{
    ByteRate, ByteSize, MemoryId, MemoryKind, Method, Nanoseconds, Plan, Route, Topology,
};
use transload_hal::Fault;

/// The result of a transfer, and its times.
#[derive(Clone, PartialEq)]
pub struct Report {
    pub(crate) bytes: u64,
    pub(crate) plan: Option<Arc<Plan>>,
    pub(crate) waited_ns: u64,
    pub(crate) elapsed_ns: u64,
    pub(crate) checking_ns: u64,
    pub(crate) checksum: Option<u64>,
    pub(crate) rare: Option<Box<Rare>>,
    pub(crate) simulated: bool,
}

/// What few transfers have to tell.
#[derive(Clone, PartialEq)]
pub(crate) struct Rare {
    pub(crate) fallbacks: Vec<Fallback>,
    pub(crate) tried: Option<Tried>,
}

/// A route that failed before another one succeeded.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Fallback {
    /// The plan that was tried.
    pub plan: Arc<Plan>,
    /// Why it failed.
    pub fault: Fault,
}

/// A plan in one line, since the full form fills a page.
struct InALine<'a>(&'a Plan);

impl fmt::Debug for InALine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0, f)
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report")
            .field("ends", &self.ends())
            .field("bytes", &self.bytes)
            .field("plan", &self.plan.as_deref().map(InALine))
            .field("waited_ns", &self.waited_ns)
            .field("elapsed_ns", &self.elapsed_ns)
            .field("checking_ns", &self.checking_ns)
            .field("checksum", &self.checksum)
            .field("fallbacks", &self.fallbacks())
            .field("tried", &self.tried())
            .field("simulated", &self.simulated)
            .finish()
    }
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("plan", &InALine(&self.plan))
            .field("fault", &self.fault)
            .finish()
    }
}

impl Report {
    /// Returns how many payload bytes moved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns how the bytes moved.
    pub fn method(&self) -> Method {
        self.plan
            .as_ref()
            .map_or(Method::DirectCopy, |plan| plan.method)
    }

    /// Returns the plan that moved the last byte.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_deref()
    }

    /// Returns the memories that the bytes visited, over the first of the plan's lanes.
    pub fn route(&self) -> impl Iterator<Item = MemoryId> + '_ {
        let route = self.first_route();
        route.into_iter().flat_map(|route| route.memories())
    }

    fn first_route(&self) -> Option<&Route> {
        self.plan.as_ref()?.lanes.first()?.route.as_ref()
    }

    fn ends(&self) -> Option<(MemoryId, MemoryId)> {
        self.first_route()?.ends()
    }

    /// Returns the time from the submission until the first operation could be submitted: until earlier transfers and
    /// guards of the same bytes were over, the events that it starts after were set, its links were proven, and it had
    /// its staging slots.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_ns)
    }

    /// Returns the time from that moment to the last byte, verification included.
    ///
    /// The time includes work that the program gave a device before, where the copy has to wait for that work:
    /// - A copy of the host's to or from `mapped` or managed memory first waits until the device's queue has run dry
    ///   ([`StepKind::MakeVisible`](crate::model::StepKind::MakeVisible) in the [plan](Report::plan)). Through wgpu it does
    ///   so only if the program has had the buffer ([`Buffer::native`](crate::Buffer::native)).
    /// - A copy by a device's own engine runs behind what the program submitted to the same queue, as through wgpu.
    ///
    /// To time the copy alone, wait for the program's own work before submitting the transfer.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.elapsed_ns)
    }

    /// Returns the part of [`Report::elapsed`] from the arrival of the last byte on, in which verification reads both
    /// ends again and compares them; 0 when the request did not ask for verification.
    pub fn checking(&self) -> Duration {
        Duration::from_nanos(self.checking_ns)
    }

    /// Returns payload bytes per second of [`Report::elapsed`] without [`Report::checking`], and so with everything else
    /// that this time includes; `None` when the clock did not move.
    pub fn bytes_per_second(&self) -> Option<f64> {
        let copying_ns = self.elapsed_ns.saturating_sub(self.checking_ns);
        (copying_ns > 0).then(|| self.bytes as f64 / (copying_ns as f64 / 1e9))
    }

    /// Returns the xxh3-64 of the payload, read at both ends after the copy and found equal; `None` when the request
    /// did not ask for verification.
    pub fn checksum(&self) -> Option<u64> {
        self.checksum
    }

    /// Returns the route that the leading bytes took as a trial, if the engine tried another one than it had planned: see
    /// [`Builder::learning`](crate::Builder::learning).
    pub fn tried(&self) -> Option<&Tried> {
        self.rare.as_ref()?.tried.as_ref()
    }

    /// Returns the routes that failed before.
    pub fn fallbacks(&self) -> &[Fallback] {
        self.rare.as_ref().map_or(&[], |rare| &rare.fallbacks)
    }

    /// Returns whether a simulated device took part: its times are modelled then, not measured.
    pub fn is_simulated(&self) -> bool {
        self.simulated
    }

    pub(crate) fn marked(mut self, topology: &Topology) -> Report {
        let mut simulated = topology.devices().iter().filter(|device| device.simulated);
        let ends = self.ends();
        let is_end = |id| ends.is_some_and(|(src, dst)| src.device == id || dst.device == id);
        self.simulated = simulated.any(|device| is_end(device.id));
        self
    }
}

/// A memory as reports name it: only the device, where the memory is the obvious one of the device.
struct Short(Option<MemoryId>);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(memory) if matches!(memory.kind, MemoryKind::Pageable | MemoryKind::Device) => {
                memory.device.fmt(f)
            }
            Some(memory) => memory.fmt(f),
            None => f.write_str("?"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = ByteSize(self.bytes);
        let (src, dst) = self.ends().unzip();
        write!(
            f,
            "{bytes}  {} → {}  {}",
            Short(src),
            Short(dst),
            self.method()
        )?;
        if let Some(rate) = self.bytes_per_second() {
            write!(f, "  {}", ByteRate(rate))?;
        }
        if let Some(checksum) = self.checksum {
            let time = Nanoseconds(self.checking_ns);
            write!(f, "  verified in {time} xxh3-64:{checksum:016x}")?;
        }
        if self.simulated {
            f.write_str("  (simulated)")?;
        }
        if let Some(tried) = self.tried() {
            let (bytes, time) = (ByteSize(tried.bytes), Nanoseconds(tried.ns));
            write!(
                f,
                "\n  its first {bytes} tried {} and took {time}",
                tried.plan
            )?;
        }
        for fallback in self.fallbacks() {
            write!(f, "\n  after {} failed: {}", fallback.plan, fallback.fault)?;
        }
        Ok(())
    }
}

/// A result is moved ten times on its way from the engine to the caller. Up to 128 bytes each move is a few instructions,
/// and beyond it a call: 3 % of the time of a small copy in all.
const _: () = assert!(size_of::<Result<Report, crate::error::TransferError>>() <= 128);
