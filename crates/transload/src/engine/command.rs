//! Commands: calls of backends that the engine decides on under its lock and that a thread [executes](super::execute)
//! without the lock.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;

use arrayvec::ArrayVec;
use transload_core::flight::{Endpoint, Task, TaskId, Work};
use transload_core::{Access, DeviceId, LinkId, MemoryId, MemoryKind, Shape, Span};
use transload_hal::{
    Backend, BackendId, Buffer, Entered, Fault, Fence, Layout, Op, Part, SubmitError,
};

use super::active::Active;
use super::backlog::Full;
use super::digest::Digest;
use super::entering::Entry;
use super::errand::{Errand, Found};
use super::operand::{End, Operand, copies, strided};
use super::types::{Pace, TransferId, Wanted, Which};

/// How many commands a thread takes at a time: at least as many as the first slots of the largest plan, four lanes of
/// three rings. With an operating system it is enough for small copies to be submitted together. Without one stacks are
/// small, and a thread's commands, of some 300 bytes each, lie on its stack.
pub(crate) const MAX_COMMANDS: usize = if cfg!(feature = "std") { 32 } else { 12 };

/// The most bytes of host memory that a quick submission pins. A submission that imports host memory pins its pages
/// first: 15 to 21 ms for 256 MiB, measured on lavapipe and SwiftShader, which is some 70 µs for this.
const PINNED_QUICKLY_BYTES: u64 = 1 << 20;

pub(crate) type Commands = ArrayVec<Command, MAX_COMMANDS>;
pub(crate) type Answers = ArrayVec<Answer, MAX_COMMANDS>;

/// A call of a backend.
pub(crate) struct Command {
    pub(crate) id: TransferId,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) backend_id: BackendId,
    pub(crate) kind: CommandKind,
    /// The backend copies nothing on the thread that submits.
    pub(crate) is_apart: bool,
}

#[allow(
    clippy::large_enum_variant,
    reason = "commands live on the stack of the thread that turns the engine; a box would allocate"
)]
pub(crate) enum CommandKind {
    Submit {
        task: Task,
        /// The link that the plan chose, for copies.
        via: Option<LinkId>,
        bound: Bound,
        /// `Backlog::ended` of the backend when this was handed out.
        since: u64,
    },
    Allocate {
        wanted: Wanted,
    },
    Prove {
        job: usize,
        errand: Errand,
    },
    /// The transfer is to have a place in the order of another machine.
    Enter {
        entry: Box<Entry>,
    },
    /// The backend is to begin nothing more of the operations.
    Stop {
        fence: Fence,
        task: TaskId,
    },
}

impl Command {
    /// Returns whether the processors carry the command out.
    pub(super) fn is_on_the_host(&self) -> bool {
        matches!(&self.kind, CommandKind::Submit { via, .. } if is_on_the_host(via.as_ref()))
    }
}

/// The backend's answer to a command.
pub(crate) struct Answer {
    pub(crate) id: TransferId,
    pub(crate) backend: transload_hal::BackendId,
    pub(crate) kind: AnswerKind,
}

/// Small, since each submission moves one: rare variants are boxed.
pub(crate) enum AnswerKind {
    Submitted {
        task: TaskId,
        fence: Result<Fence, Fault>,
    },
    /// The backend has no room for the operation.
    Full(Box<Full>),
    Stopped {
        task: TaskId,
        moved_bytes: u64,
    },
    Allocated(Box<(Wanted, Result<Buffer, Fault>)>),
    Proved(Box<(usize, Result<Found, Fault>)>),
    Entered(Box<Result<Option<Entered>, Fault>>),
}

impl AnswerKind {
    #[inline]
    pub(super) fn of(task: &Task, since: u64, submitted: Result<Fence, SubmitError>) -> AnswerKind {
        let fence = match submitted {
            Ok(fence) => Ok(fence),
            Err(error @ SubmitError::Full { .. }) => {
                return AnswerKind::Full(Box::new(Full {
                    task: *task,
                    fault: error.into_fault(),
                    since,
                }));
            }
            Err(error) => Err(error.into_fault()),
        };
        AnswerKind::Submitted {
            task: task.id,
            fence,
        }
    }
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
    /// An end at least is elements at strides, none is a list, and what copies takes elements.
    Strided { src: End, dst: End, span: Span },
    /// An end at least is blocks in the order of a list, numbers that are converted, or elements at strides.
    Scattered {
        src: End,
        dst: End,
        span: Span,
        by_elements: bool,
    },
    Transform {
        at: Operand,
        first: u64,
        span: Span,
        digest: Arc<Digest>,
    },
    /// The region of which the chunk is a part.
    MakeVisible { at: Operand },
}

/// One side of a task.
enum Side<'a> {
    /// A region of a user, which holds the whole payload.
    Region(&'a Operand),
    /// A slot, which holds the chunk alone.
    Slot(&'a Buffer),
}

impl Side<'_> {
    fn is_contiguous(&self) -> bool {
        match self {
            Side::Region(region) => region.is_contiguous(),
            Side::Slot(_) => true,
        }
    }

    fn is_scattered(&self) -> bool {
        matches!(self, Side::Region(region) if region.scattered.is_some())
    }

    /// Returns the side as an end of a copy of a chunk.
    fn end(&self, chunk: Span) -> End {
        match self {
            Side::Region(region) => End {
                operand: (*region).clone(),
                first: 0,
            },
            Side::Slot(buffer) => End {
                operand: whole(buffer, chunk.len),
                first: chunk.offset,
            },
        }
    }

    /// Returns the buffer of a contiguous side, and where the chunk starts in it.
    fn first(&self, span: Span) -> (Buffer, u64) {
        match self {
            Side::Region(region) => (region.buffer.clone(), region.offset + span.offset),
            Side::Slot(slot) => ((*slot).clone(), 0),
        }
    }
}

impl Bound {
    /// Binds a task's roles to the regions and slots of its transfer; `None` when it names something
    /// that the transfer does not have. `via` is the link of a copy.
    pub(crate) fn of(active: &Active, task: &Task, via: Option<&LinkId>) -> Option<Bound> {
        let span = task.span;
        let end = |endpoint| match endpoint {
            Endpoint::Src => active.read_end().map(Side::Region),
            Endpoint::Dst => active.dst.as_ref().map(Side::Region),
            Endpoint::Slot(id) => active.lease(id).map(Side::Slot),
        };
        Some(match task.work {
            Work::Copy { from, to } => match (end(from)?, end(to)?) {
                (src, dst) if src.is_contiguous() && dst.is_contiguous() => Bound::Copy {
                    src: src.first(span),
                    dst: dst.first(span),
                    len: span.len,
                },
                (src, dst) if src.is_scattered() || dst.is_scattered() => {
                    let (src, dst) = (src.end(span), dst.end(span));
                    match takes_elements(via) {
                        true if End::are_strided(&src, &dst) => Bound::Strided { src, dst, span },
                        by_elements => Bound::Scattered {
                            src,
                            dst,
                            span,
                            by_elements,
                        },
                    }
                }
                (Side::Region(src), Side::Region(dst)) => Bound::Pitched {
                    src: src.clone(),
                    dst: dst.clone(),
                    span,
                },
                (Side::Region(region), Side::Slot(slot)) => Bound::Blocks {
                    region: region.clone(),
                    span,
                    slot: slot.clone(),
                    to_slot: true,
                },
                (Side::Slot(slot), Side::Region(region)) => Bound::Blocks {
                    region: region.clone(),
                    span,
                    slot: slot.clone(),
                    to_slot: false,
                },
                // Both are contiguous, which was the first case.
                (Side::Slot(_), Side::Slot(_)) => return None,
            },
            Work::MakeVisible { at } => match end(at)? {
                Side::Region(region) => Bound::MakeVisible { at: region.clone() },
                // Code outside the engine has no access to slots.
                Side::Slot(_) => return None,
            },
            Work::Transform { at } => {
                let (at, first) = match end(at)? {
                    Side::Region(region) if region.scattered.is_some() => return None,
                    Side::Region(region) => (region.clone(), span.offset),
                    Side::Slot(slot) => (whole(slot, span.len), 0),
                };
                let digest = active.digest()?.clone();
                Bound::Transform {
                    at,
                    first,
                    span,
                    digest,
                }
            }
        })
    }

    /// Returns the device whose memory the operation looks at first.
    pub(super) fn device(&self) -> DeviceId {
        let buffer = match self {
            Bound::Copy { src: (src, _), .. } => src,
            Bound::Strided { src, .. } | Bound::Scattered { src, .. } => &src.operand.buffer,
            Bound::Pitched { src: at, .. }
            | Bound::Blocks { region: at, .. }
            | Bound::Transform { at, .. }
            | Bound::MakeVisible { at } => &at.buffer,
        };
        buffer.memory().device
    }

    /// Runs `f` on the operations.
    pub(super) fn with_ops<R>(&self, f: impl FnOnce(&[Op<'_>]) -> R) -> R {
        match self {
            Bound::Copy { src, dst, len } => f(&[copy_of(src, dst, *len)]),
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
            Bound::Strided { src, dst, span } => f(&[strided(src, dst, *span)]),
            Bound::Scattered {
                src,
                dst,
                span,
                by_elements,
            } => f(&copies(src, dst, *span, *by_elements)),
            Bound::MakeVisible { at } => {
                let extent = at.extent();
                f(&[Op::MakeVisible {
                    part: Part {
                        buffer: &at.buffer,
                        offset: extent.offset,
                        len_bytes: extent.len,
                    },
                }])
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

/// Commands that take long, and those that the thread which decided on them must not execute. Another thread takes them.
#[derive(Default)]
pub(crate) struct Later(VecDeque<Command>);

impl Later {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the oldest command.
    #[cfg(threads)]
    pub(crate) fn pop(&mut self) -> Option<Command> {
        self.0.pop_front()
    }

    /// Gives a command that takes long to the thread that turns the engine, or keeps it for another one.
    pub(crate) fn hand_out(&mut self, command: Command, pace: Pace, commands: &mut Commands) {
        match pace.slow.has(command.id) {
            true => commands.push(command),
            false => self.0.push_back(command),
        }
    }

    /// Moves the commands that a thread of that pace may execute to `commands`.
    #[inline]
    pub(crate) fn take(&mut self, pace: Pace, commands: &mut Commands) {
        if self.0.is_empty() || pace.slow == Which::NONE {
            return;
        }
        let mut at = 0;
        while at < self.0.len() && !commands.is_full() {
            match pace.slow.has(self.0[at].id) {
                true => commands.extend(self.0.remove(at)),
                false => at += 1,
            }
        }
    }

    /// Moves all commands, except those for the host's processors, away from a thread that must not enter a driver.
    #[inline(never)]
    pub(crate) fn spare_drivers(&mut self, commands: &mut Commands) {
        for at in (0..commands.len()).rev() {
            if !commands[at].is_on_the_host() {
                self.0.push_front(commands.remove(at));
            }
        }
    }

    /// Withdraws a submission of the transfer, if there is any.
    pub(crate) fn withdraw(&mut self, id: TransferId) -> Option<TaskId> {
        let is_its = |command: &Command| {
            command.id == id && matches!(command.kind, CommandKind::Submit { .. })
        };
        let at = self.0.iter().position(is_its)?;
        match self.0.remove(at)?.kind {
            CommandKind::Submit { task, .. } => Some(task.id),
            _ => None,
        }
    }
}

/// Returns whether a submission may take long, because the driver pins pages for it.
#[inline]
pub(crate) fn pins_pages(task: &Task, via: Option<&LinkId>) -> bool {
    let is_guest =
        |memory: MemoryId| memory.device == DeviceId::CPU0 && memory.kind != MemoryKind::Pinned;
    task.span.len >= PINNED_QUICKLY_BYTES
        && via.is_some_and(|via| {
            let is_import = via.access == Access::Import && via.engine.device != DeviceId::CPU0;
            is_import && (is_guest(via.src) || is_guest(via.dst))
        })
}

/// Returns whether the processors carry a submission out, on the thread that submits if they may.
#[inline]
pub(crate) fn is_on_the_host(via: Option<&LinkId>) -> bool {
    via.is_none_or(|via| via.engine.device == DeviceId::CPU0)
}

/// Returns whether what carries a submission out copies elements at strides: the processors, or another machine.
fn takes_elements(via: Option<&LinkId>) -> bool {
    is_on_the_host(via) || via.is_some_and(|via| via.src.device.node != via.dst.device.node)
}

pub(super) fn copy_of<'a>(src: &'a (Buffer, u64), dst: &'a (Buffer, u64), len: u64) -> Op<'a> {
    Op::Copy {
        src: part(src, len),
        dst: part(dst, len),
    }
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

/// The operand of a slot's leading bytes.
fn whole(slot: &Buffer, len_bytes: u64) -> Operand {
    Operand {
        buffer: slot.clone(),
        offset: 0,
        shape: Shape::contiguous(len_bytes),
        scattered: None,
    }
}
