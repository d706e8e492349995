//! The parts of a submission, with addresses instead of buffers.

use std::borrow::Cow;

use transload_hal::Shape;
use transload_hal::{Buffer, DeviceKind, HostSpan, Op, Part, Span};

use super::Way;
use super::hint::Hint;
use crate::device::BACKEND;
use crate::gpu::Gpu;
use crate::memory;
use crate::raw::{CUcontext, CUdeviceptr};

/// One action of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    Copy {
        from: End,
        to: End,
        len: u64,
    },
    Pitched {
        from: End,
        from_shape: Shape,
        to: End,
        to_shape: Shape,
        span: Span,
    },
    Hint {
        gpu: usize,
        address: CUdeviceptr,
        len: u64,
        hint: Hint,
    },
    /// Wait for all work of the device.
    Visible {
        gpu: usize,
    },
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// Host memory that the device reaches.
    Host(HostSpan),
    /// Memory of a device.
    Device {
        gpu: usize,
        context: CUcontext,
        address: CUdeviceptr,
    },
}

/// Why an operation cannot be executed here.
pub(crate) type Reason = Cow<'static, str>;

impl Move {
    /// The move of an operation; `None` if there is nothing to do.
    pub(crate) fn of(gpus: &[Gpu], op: &Op<'_>) -> Result<Option<Move>, Reason> {
        Ok(Some(match op {
            Op::Copy { src, dst } if src.len_bytes == dst.len_bytes => Move::Copy {
                from: End::of(gpus, src)?,
                to: End::of(gpus, dst)?,
                len: src.len_bytes,
            },
            Op::Copy { src, dst } => {
                let (src, dst) = (src.len_bytes, dst.len_bytes);
                return Err(format!("{src} bytes do not fit {dst}").into());
            }
            Op::Pitched { src, dst, span } => Move::Pitched {
                from: End::of_extent(gpus, (src.buffer, src.offset), &src.shape)?,
                from_shape: src.shape,
                to: End::of_extent(gpus, (dst.buffer, dst.offset), &dst.shape)?,
                to_shape: dst.shape,
                span: *span,
            },
            Op::Prefetch { part, to } => return Move::prefetch(gpus, part, *to),
            Op::Advise { part, advice } => return Move::advise(gpus, part, *advice),
            Op::MakeVisible { part } => Move::Visible {
                gpu: gpu_of(gpus, part.buffer)?.number,
            },
            other => return Err(format!("{other:?} is not for a CUDA device").into()),
        }))
    }

    /// The device, by its position, and the lane that does it.
    pub(crate) fn way(&self) -> Result<(usize, Way), Reason> {
        let (from, to) = match self {
            Move::Copy { from, to, .. } | Move::Pitched { from, to, .. } => (from, to),
            Move::Hint { gpu, .. } => return Ok((*gpu, Way::Within)),
            Move::Visible { gpu } => return Ok((*gpu, Way::Visible)),
        };
        match (from, to) {
            (End::Host(_), End::Device { gpu, .. }) => Ok((*gpu, Way::In)),
            (End::Device { gpu, .. }, End::Host(_)) => Ok((*gpu, Way::Out)),
            (End::Device { gpu: from, .. }, End::Device { gpu: to, .. }) if from == to => {
                Ok((*from, Way::Within))
            }
            (End::Device { gpu, .. }, End::Device { .. }) => Ok((*gpu, Way::Across)),
            (End::Host(_), End::Host(_)) => Err("neither end is a device's".into()),
        }
    }
}

impl Move {
    /// The devices, by their positions, of a copy from one to another.
    pub(crate) fn across(&self) -> Option<(usize, usize)> {
        let (Move::Copy { from, to, .. } | Move::Pitched { from, to, .. }) = self else {
            return None;
        };
        match (from, to) {
            (End::Device { gpu: from, .. }, End::Device { gpu: to, .. }) if from != to => {
                Some((*from, *to))
            }
            _ => None,
        }
    }
}

impl Move {
    /// Whether it is a copy of at most `bytes` bytes that does not overlap itself.
    pub(crate) fn is_at_most(&self, bytes: u64) -> bool {
        match self {
            Move::Copy { from, to, len } => *len <= bytes && !from.overlaps(*to, *len),
            _ => false,
        }
    }
}

impl End {
    pub(super) fn of(gpus: &[Gpu], part: &Part<'_>) -> Result<End, Reason> {
        End::at(gpus, part.buffer, part.offset, part.len_bytes)
    }

    fn of_extent(gpus: &[Gpu], at: (&Buffer, u64), shape: &Shape) -> Result<End, Reason> {
        End::at(gpus, at.0, at.1, shape.extent_bytes())
    }

    fn at(gpus: &[Gpu], buffer: &Buffer, offset: u64, len: u64) -> Result<End, Reason> {
        if !Span::new(offset, len).fits(buffer.len()) {
            return Err("an operand reaches past its buffer".into());
        }
        let memory = buffer.memory();
        if memory.device.kind == DeviceKind::CPU {
            let host = buffer.host(offset, len);
            let host = host.filter(|_| memory::is_reached(gpus, buffer));
            return host
                .map(End::Host)
                .ok_or_else(|| format!("no CUDA device reaches {memory}").into());
        }
        let gpu = gpu_of(gpus, buffer)?;
        let opened = gpu
            .opened()
            .ok_or("the device of an operand was never opened")?;
        Ok(End::Device {
            gpu: gpu.number,
            context: opened.context.handle,
            address: memory::address(buffer) + offset,
        })
    }

    /// Whether the other end is on another device.
    pub(crate) fn is_across(self, other: End) -> bool {
        matches!(
            (self, other),
            (End::Device { gpu, .. }, End::Device { gpu: other, .. }) if gpu != other
        )
    }

    /// Whether `len` bytes at both ends overlap.
    pub(crate) fn overlaps(self, other: End, len: u64) -> bool {
        let are_devices = matches!((self, other), (End::Device { .. }, End::Device { .. }));
        are_devices && self.unified().abs_diff(other.unified()) < len
    }

    /// The address on devices, if devices use the host's addresses.
    pub(crate) fn unified(self) -> CUdeviceptr {
        match self {
            End::Host(span) => span.addr(),
            End::Device { address, .. } => address,
        }
    }

    /// The same end, `bytes` further on.
    pub(crate) fn after(self, bytes: u64) -> End {
        match self {
            End::Host(span) => {
                let left = (span.len() as u64).saturating_sub(bytes);
                End::Host(span.slice(bytes, left).unwrap_or(span))
            }
            End::Device {
                gpu,
                context,
                address,
            } => End::Device {
                gpu,
                context,
                address: address + bytes,
            },
        }
    }
}

/// The device whose memory a buffer is.
pub(super) fn gpu_of<'a>(gpus: &'a [Gpu], buffer: &Buffer) -> Result<&'a Gpu, Reason> {
    let memory = buffer.memory();
    let is_own = buffer.backend() == BACKEND;
    let gpu = gpus.iter().find(|gpu| gpu.id == memory.device && is_own);
    gpu.ok_or_else(|| format!("{memory} is no memory of a CUDA device here").into())
}
