//! A simulated machine: real bytes, a virtual clock, faults on request.
//!
//! A [`Sim`] is a [`Backend`](transload_hal::Backend) over a machine description. Its memories are blocks of the test
//! process. Its engines work first in, first out, each operation for exactly the cost of its link, or longer where several
//! engines keep the host busy ([`host_load`](transload_core::defaults::host_load)). The bytes move at
//! the end of that time, so code that reuses a source or reads a destination too early sees wrong bytes. The sim never
//! sleeps and never reads the time of day: the clock moves when the sim is stepped, pumped or waited for.
//!
//! ```
//! use transload_testkit::sim::Sim;
//! use transload_testkit::topology;
//!
//! let machine = topology::from_str(
//!     r#"
//!     schema = 1
//!     name = "two memories"
//!     [[device]]
//!     id = "sim:0"
//!     name = "example"
//!     memory = [{ kind = "device", memory_bytes = 1_000_000 }]
//!     [[link]]
//!     src = "sim:0/device"
//!     dst = "sim:0/device"
//!     engine = "sim:0#0"
//!     class = "local"
//!     latency_ns = 10
//!     bytes_per_second = 1_000_000_000
//!     "#,
//! )?;
//! let sim = Sim::new(&machine)?;
//! assert_eq!(sim.clock().now_ns(), 0);
//! assert!(sim.to_string().contains("simulated"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backend;
mod build;
mod clock;
mod completion;
mod deliver;
mod events;
mod memory;
mod script;
mod shared;
mod state;
mod submit;
mod work;

use std::fmt;
use std::sync::{Arc, PoisonError};

use transload_hal::Instant;
use transload_hal::{Buffer, DeviceId, ErrorClass, Fault, HostSpan, MemoryId, Span};

pub use build::{BuildError, Builder, HostSide};
pub use clock::SimClock;
pub use completion::{Completion, Hook};
pub use memory::{MemoryUse, POISON, Violation};
pub use script::{Call, OpKind, Rule, Script};
pub use shared::BACKEND;
pub use state::EngineUse;

use shared::{Shared, own};

/// A simulated machine. Clones are handles to one machine.
#[derive(Clone)]
pub struct Sim {
    shared: Arc<Shared>,
    /// Makes the sim neither `Send` nor `Sync` in the build for one thread.
    #[cfg(transload_local)]
    _not_send: std::rc::Rc<()>,
}

impl Sim {
    /// The machine's clock.
    pub fn clock(&self) -> SimClock {
        self.shared.clock.clone()
    }

    /// Calls `hook` after each outcome, in the mode [`Completion::Reentrant`].
    pub fn set_hook(&self, hook: impl Hook + 'static) {
        let mut place = self
            .shared
            .hook
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *place = Some(Arc::new(hook));
    }

    /// Adds a fault to the script; matches count from now on.
    pub fn add_rule(&self, rule: Rule) {
        self.shared.lock().script.push(rule);
    }

    /// Takes all faults out of the script.
    pub fn clear_rules(&self) {
        self.shared.lock().script = Script::new();
    }

    /// The script as it is now, with the counts of its rules.
    pub fn script(&self) -> Script {
        self.shared.lock().script.clone()
    }

    /// The time of the next event; `None` if no event will happen by itself.
    pub fn next_event(&self) -> Option<Instant> {
        self.shared.lock().next_event_ns().map(Instant)
    }

    /// Moves the clock to the next event and executes it. Returns false if there is none.
    pub fn step(&self) -> bool {
        let stepped = self.shared.step(u64::MAX);
        self.shared.deliver_unless_pumped();
        stepped
    }

    /// Moves the clock to `time`, and executes all events that are due by then, in order.
    pub fn run_until(&self, time: Instant) {
        while self.shared.step(time.0) {
            self.shared.deliver_unless_pumped();
        }
        self.shared.deliver_unless_pumped();
        self.shared.move_clock(time.0);
    }

    /// Moves the clock on until no event is left that happens by itself. Returns the time.
    pub fn run_until_idle(&self) -> Instant {
        while self.step() {}
        Instant(self.shared.clock.now_ns())
    }

    /// The number of fences that have not been reported to the sink.
    pub fn in_flight(&self) -> usize {
        self.shared.lock().by_number.len()
    }

    /// The use of each memory.
    pub fn memory_use(&self) -> Vec<MemoryUse> {
        self.shared.lock().pools.clone()
    }

    /// The use of one memory; `None` for a memory that the sim does not have.
    pub fn use_of(&self, memory: MemoryId) -> Option<MemoryUse> {
        let state = self.shared.lock();
        state
            .pools
            .iter()
            .find(|pool| pool.memory == memory)
            .copied()
    }

    /// The memories that have live allocations. Empty if everything was freed.
    pub fn leaks(&self) -> Vec<MemoryUse> {
        let mut pools = self.memory_use();
        pools.retain(|pool| pool.live_allocations > 0);
        pools
    }

    /// The work of each engine.
    pub fn engine_use(&self) -> Vec<EngineUse> {
        self.shared.lock().engines.clone()
    }

    /// The violations that the sim saw: acts that no engine above it may commit. Tests assert that the list is empty.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.lock().violations.clone()
    }

    /// Removes a device now: its fences settle as lost, and later calls that need it fail as lost.
    /// Returns false if the sim has no such device.
    pub fn lose_device(&self, device: DeviceId) -> bool {
        let devices = &self.shared.inventory.devices;
        let Some(index) = devices.iter().position(|info| info.id == device) else {
            return false;
        };
        let message = format!("simulated: device {device} was taken away");
        let fault = Fault::new(ErrorClass::Lost, message);
        self.shared.lock().lose(index, fault);
        self.shared.deliver_unless_pumped();
        true
    }

    /// Reads simulated memory without an engine. For tests, while no operation writes those bytes.
    ///
    /// # Errors
    /// If the memory does not belong to this machine, or the range ends past the buffer.
    pub fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let state = self.shared.lock();
        let span = self.span_of(buffer, offset, out.len() as u64)?;
        // SAFETY: the span lies within a block that the buffer keeps alive; the sim's own engines write only under the
        // lock held here; `out` is borrowed, so it is not that memory.
        unsafe { span.copy_to(HostSpan::of_mut(out)) };
        drop(state);
        Ok(())
    }

    /// Writes simulated memory without an engine. For tests, while no operation touches those bytes.
    ///
    /// # Errors
    /// As [`Sim::read`].
    pub fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let state = self.shared.lock();
        let span = self.span_of(buffer, offset, bytes.len() as u64)?;
        // SAFETY: as in `read`, with the directions exchanged.
        unsafe { HostSpan::of(bytes).copy_to(span) };
        drop(state);
        Ok(())
    }

    fn span_of(&self, buffer: &Buffer, offset: u64, len: u64) -> Result<HostSpan, AccessError> {
        if !Span::new(offset, len).fits(buffer.len()) {
            return Err(AccessError::OutOfRange {
                offset,
                len,
                limit: buffer.len(),
            });
        }
        own(&self.shared, buffer)
            .and_then(|own| own.block.span().slice(buffer.span().offset + offset, len))
            .ok_or(AccessError::NotSimulated {
                memory: buffer.memory(),
            })
    }
}

/// The reason why [`Sim::read`] or [`Sim::write`] touched nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// Another backend's memory, another machine's, or a user's.
    #[error("the buffer in {memory} was not allocated by this simulated machine")]
    NotSimulated {
        /// The buffer's memory.
        memory: MemoryId,
    },
    /// Past the end of the buffer.
    #[error("{len} bytes from {offset} on end past a simulated buffer of {limit} bytes")]
    OutOfRange {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
        /// The buffer's length.
        limit: u64,
    },
}

impl fmt::Display for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "simulated machine {}", self.shared.name)
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("Sim")
            .field("simulated machine", &self.shared.name)
            .field("completion", &state.completion)
            .field("clock", &self.shared.clock)
            .field("fences in flight", &state.by_number.len())
            .finish_non_exhaustive()
    }
}
