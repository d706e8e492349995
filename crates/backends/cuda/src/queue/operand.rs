//! Translates operations on buffers into moves.

use transload_hal::{Advice, Buffer, DeviceId, DeviceKind, MemoryKind, Op, Part, Shape, Span};

use super::moves::{Endpoint, Hint, Move, Reason};
use crate::gpu::Gpu;
use crate::ids::{BACKEND, PINNED};
use crate::memory;
use crate::raw::{CUdevice, CUdeviceptr, CUmem_advise};

impl Move {
    /// The move of an operation; `None` if there is nothing to do.
    pub(crate) fn of(gpus: &[Gpu], op: &Op<'_>) -> Result<Option<Move>, Reason> {
        Ok(Some(match op {
            Op::Copy { src, dst } if src.len_bytes == dst.len_bytes => Move::Copy {
                from: Endpoint::of(gpus, src)?,
                to: Endpoint::of(gpus, dst)?,
                len: src.len_bytes,
            },
            Op::Copy { src, dst } => {
                let (src, dst) = (src.len_bytes, dst.len_bytes);
                return Err(format!("{src} bytes do not fit {dst}").into());
            }
            Op::Pitched { src, dst, span } => Move::Pitched {
                from: Endpoint::of_extent(gpus, (src.buffer, src.offset), &src.shape)?,
                from_shape: src.shape,
                to: Endpoint::of_extent(gpus, (dst.buffer, dst.offset), &dst.shape)?,
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

    /// The hint to bring bytes to a device. Memory that is not managed stays where it is.
    fn prefetch(gpus: &[Gpu], part: &Part<'_>, to: DeviceId) -> Result<Option<Move>, Reason> {
        let Some((gpu, address)) = managed(gpus, part)? else {
            return Ok(None);
        };
        let to = device_of(gpus, to)
            .ok_or_else(|| Reason::from(format!("{to} has no memory of these devices' driver")))?;
        Ok(Some(Move::Hint {
            gpu,
            address,
            len: part.len_bytes,
            hint: Hint::Prefetch(to),
        }))
    }

    /// The hint for advice. Advice that does not apply to managed memory, or that names a device of another
    /// backend, is ignored.
    fn advise(gpus: &[Gpu], part: &Part<'_>, advice: Advice) -> Result<Option<Move>, Reason> {
        use CUmem_advise as Word;
        let any = Some(CUdevice::CU_DEVICE_CPU);
        let (word, device) = match advice {
            Advice::MostlyRead => (Word::CU_MEM_ADVISE_SET_READ_MOSTLY, any),
            Advice::NotMostlyRead => (Word::CU_MEM_ADVISE_UNSET_READ_MOSTLY, any),
            Advice::KeptAt(device) => (
                Word::CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                device_of(gpus, device),
            ),
            Advice::KeptAnywhere => (Word::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, any),
            Advice::UsedBy(device) => {
                (Word::CU_MEM_ADVISE_SET_ACCESSED_BY, device_of(gpus, device))
            }
            Advice::NotUsedBy(device) => (
                Word::CU_MEM_ADVISE_UNSET_ACCESSED_BY,
                device_of(gpus, device),
            ),
            _ => return Ok(None),
        };
        let Some(((gpu, address), device)) = managed(gpus, part)?.zip(device) else {
            return Ok(None);
        };
        Ok(Some(Move::Hint {
            gpu,
            address,
            len: part.len_bytes,
            hint: Hint::Advise(word, device),
        }))
    }
}

impl Endpoint {
    fn of(gpus: &[Gpu], part: &Part<'_>) -> Result<Endpoint, Reason> {
        Endpoint::at(gpus, part.buffer, part.offset, part.len_bytes)
    }

    fn of_extent(gpus: &[Gpu], at: (&Buffer, u64), shape: &Shape) -> Result<Endpoint, Reason> {
        Endpoint::at(gpus, at.0, at.1, shape.extent_bytes())
    }

    fn at(gpus: &[Gpu], buffer: &Buffer, offset: u64, len: u64) -> Result<Endpoint, Reason> {
        if !Span::new(offset, len).fits(buffer.len()) {
            return Err("an operand reaches past its buffer".into());
        }
        let memory = buffer.memory();
        if memory.device.is_host() {
            let host = buffer.host(offset, len);
            let host = host.filter(|_| memory::is_reached(gpus, buffer));
            return host
                .map(Endpoint::Host)
                .ok_or_else(|| format!("no CUDA device reaches {memory}").into());
        }
        let gpu = gpu_of(gpus, buffer)?;
        let opened = gpu
            .opened()
            .ok_or("the device of an operand was never opened")?;
        Ok(Endpoint::Device {
            gpu: gpu.number,
            context: opened.context.handle,
            address: memory::address(buffer) + offset,
        })
    }
}

/// The device whose memory a buffer is.
fn gpu_of<'a>(gpus: &'a [Gpu], buffer: &Buffer) -> Result<&'a Gpu, Reason> {
    let memory = buffer.memory();
    let is_own = buffer.backend() == BACKEND;
    let gpu = gpus.iter().find(|gpu| gpu.id == memory.device && is_own);
    gpu.ok_or_else(|| format!("{memory} is no memory of a CUDA device here").into())
}

/// The device, by its position, and the address of managed memory; none where the memory is of another kind.
fn managed(gpus: &[Gpu], part: &Part<'_>) -> Result<Option<(usize, CUdeviceptr)>, Reason> {
    if part.buffer.memory() == PINNED {
        return Ok(None);
    }
    let gpu = gpu_of(gpus, part.buffer)?;
    if part.buffer.memory().kind != MemoryKind::Managed || part.len_bytes == 0 {
        return Ok(None);
    }
    match Endpoint::of(gpus, part)? {
        Endpoint::Device { address, .. } => Ok(Some((gpu.number, address))),
        Endpoint::Host(_) => Ok(None),
    }
}

/// The driver's handle of a device; `None` for a device of another backend.
fn device_of(gpus: &[Gpu], id: DeviceId) -> Option<CUdevice> {
    match id.kind {
        DeviceKind::CPU => Some(CUdevice::CU_DEVICE_CPU),
        _ => gpus.iter().find(|gpu| gpu.id == id).map(|gpu| gpu.device),
    }
}
