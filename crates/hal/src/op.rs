//! Operations, as the engine submits them to a backend.

use transload_core::{Conversion, DeviceId, MemoryId, Shape, Span, Strided};

use alloc::vec::Vec;

use crate::{Buffer, Fault, Fence, MaybeSend, MaybeSync};

/// One operand: `len_bytes` bytes of a buffer from `offset` on.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// The first byte, counted from the start of the view.
    pub offset: u64,
    /// How many bytes.
    pub len_bytes: u64,
}

/// Bytes that a transfer is going to touch.
#[derive(Clone, Copy, Debug)]
pub struct Use<'a> {
    /// The bytes, from the first to the last one.
    pub part: Part<'a>,
    /// Whether the transfer writes some of them.
    pub writes: bool,
}

/// A transfer's place in an order that is kept elsewhere.
#[derive(Clone, Debug)]
pub struct Entered {
    /// Views of the bytes, which hold the place.
    pub buffers: Vec<Buffer>,
    /// Settles when the transfer's turn has come.
    pub fence: Fence,
}

/// One operand of a pitched copy: a shape laid over a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// Where the shape's first byte lies, counted from the start of the view.
    pub offset: u64,
    /// The shape.
    pub shape: Shape,
}

impl<'a> From<Part<'a>> for Layout<'a> {
    fn from(part: Part<'a>) -> Layout<'a> {
        Layout {
            buffer: part.buffer,
            offset: part.offset,
            shape: Shape::contiguous(part.len_bytes),
        }
    }
}

/// One operand of a strided copy: elements at strides, or their bytes end to end.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// Where the array's lowest byte lies, counted from the start of the view. Without an array: the first byte of the
    /// operation's span.
    pub offset: u64,
    /// Where the elements lie. It stays where it is, unchanged, until the operation's fence settles.
    pub array: Option<&'a Strided>,
}

/// An operation. The caller of `submit` guarantees that operands lie within their buffers.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Op<'a> {
    /// Copies `src` to `dst`, which is as long. Where both lie in one storage they may overlap, and
    /// the destination then holds the source's old bytes (memmove).
    Copy {
        /// Where the bytes are.
        src: Part<'a>,
        /// Where they go.
        dst: Part<'a>,
    },
    /// Copies the payload bytes `span` of `src` to the same payload bytes of `dst`. The two do not
    /// overlap. Only for links that say they are pitched.
    Pitched {
        /// Where the bytes are.
        src: Layout<'a>,
        /// Where they go.
        dst: Layout<'a>,
        /// Which bytes of the two payloads.
        span: Span,
    },
    /// Copies the numbers of `src` to `dst` in another form. Both have as many, and they do not overlap. Only the host's
    /// backend has it, for bytes that the host's threads reach.
    Convert {
        /// Where the numbers are, at any address.
        src: Part<'a>,
        /// Where they go, at any address.
        dst: Part<'a>,
        /// From which form to which.
        conversion: Conversion,
    },
    /// Copies the payload bytes `span` of `src` to the same ones of `dst`, by elements at strides, and converts their numbers
    /// where `conversion` is given: `span` counts the bytes of `dst` then, and begins and ends between numbers. Two arrays have
    /// as many numbers. The ends do not overlap, and no two elements of `dst` do. Only the host's backend has it, for bytes that
    /// the host's threads reach.
    Strided {
        /// Where the bytes are.
        src: View<'a>,
        /// Where they go.
        dst: View<'a>,
        /// Which bytes of the payload.
        span: Span,
        /// From which form to which.
        conversion: Option<Conversion>,
    },
    /// Maps the buffer; [`Buffer::host`] finds it afterwards. For managed memory, which [`Buffer::host`] finds without
    /// this: announces that the host is going to write, and nothing else writes the host's copy of these bytes until
    /// they are released.
    AcquireHost {
        /// What to map.
        buffer: &'a Buffer,
    },
    /// Unmaps the buffer; the device sees what the host wrote.
    ReleaseHost {
        /// What to unmap.
        buffer: &'a Buffer,
    },
    /// Brings the bytes near the device that will use them next, where the memory is managed, paged or on disk. A hint.
    Prefetch {
        /// What to bring.
        part: Part<'a>,
        /// The device that will use it.
        to: DeviceId,
    },
    /// Tells how the bytes will be used. A hint.
    Advise {
        /// Which bytes.
        part: Part<'a>,
        /// How they will be used.
        advice: Advice,
    },
    /// Settles when the device has finished with the bytes all work that it was given before, by other programs' code
    /// too, and when its writes are visible to the host. A backend need not wait for such code if the buffer is
    /// [not exposed](Buffer::is_exposed) to it. Moves nothing.
    MakeVisible {
        /// Which bytes.
        part: Part<'a>,
    },
    /// Shows the payload bytes `span` of a layout to a transform, on the host, in payload order.
    Transform {
        /// Where the bytes are.
        at: Layout<'a>,
        /// Which bytes of the payload.
        span: Span,
        /// What looks at them.
        transform: &'a dyn Transform,
        /// The position of the first byte, as it is passed to the transform.
        position: u64,
    },
}

/// How bytes will be used, and where they are best kept. The first four are for paged memory and files, the others for
/// memory that a driver moves between devices. A memory ignores advice that means nothing to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// Once, from front to back.
    Sequential,
    /// Here and there.
    Random,
    /// Soon.
    WillNeed,
    /// Not for a while.
    DontNeed,
    /// Read much more often than written: each device that reads them may keep a copy.
    MostlyRead,
    /// No longer [`Advice::MostlyRead`]: one copy is kept.
    NotMostlyRead,
    /// Best kept at that device, and reached there by others that can.
    KeptAt(DeviceId),
    /// No longer [`Advice::KeptAt`] any device.
    KeptAnywhere,
    /// Also used by that device, which should access them where they are instead of waiting for them to be moved.
    UsedBy(DeviceId),
    /// No longer [`Advice::UsedBy`] that device.
    NotUsedBy(DeviceId),
}

impl Advice {
    /// Returns the device that the advice names.
    #[must_use]
    pub const fn device(self) -> Option<DeviceId> {
        match self {
            Advice::KeptAt(device) | Advice::UsedBy(device) | Advice::NotUsedBy(device) => {
                Some(device)
            }
            _ => None,
        }
    }
}

/// Looks at a payload as it passes: a checksum. Parts come one at a time, in payload order.
pub trait Transform: MaybeSend + MaybeSync {
    /// Looks at the payload bytes from `position` on.
    ///
    /// # Errors
    /// A fault fails the transfer that the bytes belong to.
    fn inspect(&self, bytes: &[u8], position: u64) -> Result<(), Fault>;
}

impl Op<'_> {
    /// Returns the source and destination memory of a copy; `None` for other operations, which go over no link.
    #[must_use]
    pub fn ends(&self) -> Option<(MemoryId, MemoryId)> {
        match self {
            Op::Copy { src, dst } | Op::Convert { src, dst, .. } => {
                Some((src.buffer.memory(), dst.buffer.memory()))
            }
            Op::Pitched { src, dst, .. } => Some((src.buffer.memory(), dst.buffer.memory())),
            Op::Strided { src, dst, .. } => Some((src.buffer.memory(), dst.buffer.memory())),
            _ => None,
        }
    }
}

impl core::fmt::Debug for Op<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (name, bytes) = match self {
            Op::Copy { dst, .. } => ("Copy", dst.len_bytes),
            Op::Pitched { span, .. } => ("Pitched", span.len),
            Op::Convert { dst, .. } => ("Convert", dst.len_bytes),
            Op::Strided { span, .. } => ("Strided", span.len),
            Op::AcquireHost { buffer } => ("AcquireHost", buffer.len()),
            Op::ReleaseHost { buffer } => ("ReleaseHost", buffer.len()),
            Op::Prefetch { part, .. } => ("Prefetch", part.len_bytes),
            Op::Advise { part, .. } => ("Advise", part.len_bytes),
            Op::MakeVisible { part } => ("MakeVisible", part.len_bytes),
            Op::Transform { span, .. } => ("Transform", span.len),
        };
        write!(f, "{name}({bytes} B)")
    }
}
