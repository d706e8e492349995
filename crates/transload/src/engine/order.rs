//! What is to be done outside the engine's lock: operations to submit, slots to allocate.

use alloc::sync::Arc;

use arrayvec::ArrayVec;
use transload_core::flight::{Endpoint, Task, Work};
use transload_core::{LinkId, MemoryId, Shape, Span};
use transload_hal::{
    AllocSpec, Backend, BackendId, Buffer, ErrorClass, Fault, Fence, Layout, Op, Part,
};

use super::active::{Active, Operand, TransferId};
use super::digest::Digest;
use super::proof::{Errand, Found};
use super::unwind::guarded;

/// How many orders a thread takes at a time: as many as the first slots of the largest plan, four
/// lanes of three rings, and little enough to live on the stack.
pub(crate) const ORDERS: usize = 12;

pub(crate) type Orders = ArrayVec<Order, ORDERS>;
pub(crate) type Deeds = ArrayVec<Deed, ORDERS>;

/// Something to do.
pub(crate) struct Order {
    pub(crate) id: TransferId,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) backend_id: BackendId,
    pub(crate) what: What,
}

#[allow(
    clippy::large_enum_variant,
    reason = "orders live on the stack of the thread that turns the engine; a box would allocate"
)]
pub(crate) enum What {
    Submit {
        task: Task,
        /// The link that the plan chose, for copies.
        via: Option<LinkId>,
        bound: Bound,
    },
    Allocate {
        memory: MemoryId,
        bytes: u64,
        lane: u8,
        ring: u8,
        /// The leg that it is for.
        leg: u32,
    },
    Prove {
        job: usize,
        errand: Errand,
    },
}

/// What came of it.
pub(crate) struct Deed {
    pub(crate) id: TransferId,
    pub(crate) backend: transload_hal::BackendId,
    pub(crate) result: DeedResult,
}

pub(crate) enum DeedResult {
    Submitted {
        task: Task,
        fence: Result<Fence, Fault>,
    },
    Allocated {
        lane: u8,
        ring: u8,
        leg: u32,
        memory: MemoryId,
        bytes: u64,
        slot: Result<Buffer, Fault>,
    },
    Proved {
        job: usize,
        found: Result<Found, Fault>,
    },
}

/// An operation with its operands.
pub(crate) enum Bound {
    /// Both sides are contiguous.
    Copy {
        src: (Buffer, u64),
        dst: (Buffer, u64),
        len: u64,
    },
    /// Both sides are regions, one at least pitched.
    Pitched {
        src: Operand,
        dst: Operand,
        span: Span,
    },
    /// A part of a pitched region to or from a slot.
    Blocks {
        region: Operand,
        span: Span,
        slot: Buffer,
        to_slot: bool,
    },
    Transform {
        at: Operand,
        first: u64,
        span: Span,
        digest: Arc<Digest>,
    },
}

impl Bound {
    /// Binds a task's roles to the regions and slots of its transfer; `None` when it names something
    /// that the transfer does not have.
    pub(crate) fn of(active: &Active, task: &Task) -> Option<Bound> {
        let span = task.span;
        let end = |endpoint| match endpoint {
            Endpoint::Src => active.read_end().cloned(),
            Endpoint::Dst => active.dst.clone(),
            Endpoint::Slot(id) => active.lease(id).map(|slot| Operand {
                buffer: slot.clone(),
                offset: 0,
                shape: Shape::contiguous(span.len),
            }),
        };
        let is_slot = |endpoint| matches!(endpoint, Endpoint::Slot(_));
        // Where a chunk starts: slots hold the chunk alone, regions the whole payload.
        let start = |endpoint, operand: &Operand| {
            operand.offset + if is_slot(endpoint) { 0 } else { span.offset }
        };
        match task.work {
            Work::Copy { from, to } => {
                let (src, dst) = (end(from)?, end(to)?);
                Some(
                    match (src.shape.is_contiguous(), dst.shape.is_contiguous()) {
                        (true, true) => {
                            let (first, to) = (start(from, &src), start(to, &dst));
                            Bound::Copy {
                                len: span.len,
                                src: (src.buffer, first),
                                dst: (dst.buffer, to),
                            }
                        }
                        _ if is_slot(from) => Bound::Blocks {
                            region: dst,
                            span,
                            slot: src.buffer,
                            to_slot: false,
                        },
                        _ if is_slot(to) => Bound::Blocks {
                            region: src,
                            span,
                            slot: dst.buffer,
                            to_slot: true,
                        },
                        _ => Bound::Pitched { src, dst, span },
                    },
                )
            }
            Work::Transform { at } => Some(Bound::Transform {
                at: end(at)?,
                // A slot holds the chunk alone.
                first: if is_slot(at) { 0 } else { span.offset },
                span,
                digest: active.digest()?.clone(),
            }),
        }
    }

    /// Runs `f` on the operations.
    fn with_ops<R>(&self, f: impl FnOnce(&[Op<'_>]) -> R) -> R {
        match self {
            Bound::Copy { src, dst, len } => f(&[Op::Copy {
                src: part(src, *len),
                dst: part(dst, *len),
            }]),
            Bound::Pitched { src, dst, span } => f(&[Op::Pitched {
                src: layout(src),
                dst: layout(dst),
                span: *span,
            }]),
            Bound::Blocks {
                region,
                span,
                slot,
                to_slot,
            } => {
                // A span has at most five blocks.
                let mut ops = ArrayVec::<Op<'_>, 5>::new();
                for block in region.shape.blocks(*span) {
                    let bytes = block.shape.payload_bytes();
                    let strided = Layout {
                        buffer: &region.buffer,
                        offset: region.offset + block.offset,
                        shape: block.shape,
                    };
                    let packed = Layout {
                        buffer: slot,
                        offset: block.position - span.offset,
                        shape: Shape::contiguous(bytes),
                    };
                    let (src, dst) = if *to_slot {
                        (strided, packed)
                    } else {
                        (packed, strided)
                    };
                    let span = Span::new(0, bytes);
                    ops.push(Op::Pitched { src, dst, span });
                }
                f(&ops)
            }
            Bound::Transform {
                at,
                first,
                span,
                digest,
            } => f(&[Op::Transform {
                at: layout(at),
                span: Span::new(*first, span.len),
                transform: &**digest,
                position: span.offset,
            }]),
        }
    }
}

impl Order {
    /// Does it. The one place where the engine hands memory to a backend.
    pub(crate) fn execute(&self) -> DeedResult {
        match &self.what {
            What::Submit { task, via, bound } => {
                let submit = |ops: &[Op<'_>]| {
                    // SAFETY: bounds were checked when the transfer was accepted, and a task's span
                    // lies within the payload. The transfer's record holds its buffers, its leases
                    // and its digests until every fence of it has settled. Hazards keep conflicting
                    // transfers apart, guards and blocking calls keep everybody else out, and a
                    // slot belongs to one chunk at a time.
                    unsafe { self.backend.submit(*via, ops, &[]) }
                };
                let fence = guarded(|| bound.with_ops(submit))
                    .and_then(|fence| fence.map_err(transload_hal::SubmitError::into_fault));
                DeedResult::Submitted { task: *task, fence }
            }
            What::Allocate {
                memory,
                bytes,
                lane,
                ring,
                leg,
            } => {
                let spec = AllocSpec::bytes(*bytes).for_staging();
                let slot = guarded(|| self.backend.allocate(*memory, &spec))
                    .and_then(|slot| slot.map_err(|error| own_fault(error.class(), &error)))
                    .and_then(|slot| right_size(slot, *bytes));
                DeedResult::Allocated {
                    lane: *lane,
                    ring: *ring,
                    leg: *leg,
                    memory: *memory,
                    bytes: *bytes,
                    slot,
                }
            }
            What::Prove { job, errand } => DeedResult::Proved {
                job: *job,
                found: errand.run(&*self.backend),
            },
        }
    }
}

/// What a backend said to a call that the engine made on its own account, for a slot or a proof: that
/// is never the caller's mistake.
pub(super) fn own_fault(class: ErrorClass, error: &dyn core::fmt::Display) -> Fault {
    let class = match class {
        ErrorClass::Caller => ErrorClass::Unsupported,
        class => class,
    };
    Fault::new(class, alloc::format!("{error}"))
}

fn right_size(slot: Buffer, bytes: u64) -> Result<Buffer, Fault> {
    if slot.len() == bytes && slot.is_writable() {
        return Ok(slot);
    }
    let message = alloc::format!(
        "a staging slot of {bytes} bytes was asked for, and one of {} came",
        slot.len()
    );
    Err(Fault::new(ErrorClass::Failed, message))
}

fn part(at: &(Buffer, u64), len_bytes: u64) -> Part<'_> {
    Part {
        buffer: &at.0,
        offset: at.1,
        len_bytes,
    }
}

fn layout(operand: &Operand) -> Layout<'_> {
    Layout {
        buffer: &operand.buffer,
        offset: operand.offset,
        shape: operand.shape,
    }
}
