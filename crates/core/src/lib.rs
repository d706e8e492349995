//! The part of Transload that needs only memory: names, shapes, costs, the machine's topology, plans and the planner,
//! hazards, statistics, and the state machines that execute a plan and prove a link. No I/O, no clock, no lock, no
//! unsafe code, no operating system.
//!
//! Time is always an argument ([`Instant`]), and so is every event: tests step all of it themselves. Users of the
//! library need the crate `transload`; authors of backends need `transload-hal`, which re-exports the parts of this
//! crate that they use.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bytes;
mod cache;
mod correction;
mod cost;
pub mod defaults;
mod device;
mod element;
mod estimate;
pub mod flight;
mod hazard;
mod learning;
mod name;
mod parse;
mod pci;
mod plan;
mod planner;
pub mod proof;
mod quarantine;
mod route;
#[cfg(feature = "serde")]
pub mod schema;
mod shape;
mod span;
mod spread;
pub mod stats;
mod storage;
mod strided;
mod time;
mod topology;

pub use bytes::{ByteRate, ByteSize, Nanoseconds};
pub use cache::{CacheStats, PlanCache};
pub use correction::{Compared, Correction};
pub use cost::{Cost, Curve, CurveError, Piece, Timing};
pub use device::{DeviceId, DeviceKind, DeviceName, MemoryId, MemoryKind, Node, Place, Uuid};
pub use element::{Conversion, Element, NoConversion};
pub use estimate::Estimate;
pub use hazard::{Entered, Footprint, FootprintError, Hazards, Ticket};
pub use learning::{Learning, Trial};
pub use name::Name;
pub use parse::ParseError;
pub use pci::PciAddress;
pub use plan::{Lane, Plan, Ring, Role, Step, StepKind};
pub use planner::{
    Barred, Form, Limits, NoPlan, PlanKey, PlanSet, Purpose, Reason, Rejected, plan,
};
pub use quarantine::{Bar, Quarantine};
pub use route::{Method, Route};
pub use shape::{Block, Blocks, Rows, Run, Runs, Shape, ShapeError, Together};
pub use span::Span;
pub use spread::{Giver, Sending, spread};
pub use stats::Stats;
pub use storage::StorageId;
pub use strided::{Axis, Portion, Strided, StridedError};
pub use time::Instant;
pub use topology::{
    Access, BackendId, DeviceInfo, EngineId, Inventory, Lack, Link, LinkClass, LinkId, MemoryInfo,
    Passage, Topology, TopologyError, Transformer,
};
