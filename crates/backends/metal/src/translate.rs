//! Translates operations of the hal into moves between Metal's objects.

use std::sync::Arc;

use transload_hal::{Buffer, GUEST_KINDS, MemoryKind, Op, Part, Span};

use crate::gpu::Gpu;
use crate::memory::{MetalBuffer, MetalTexture};
use crate::queue::{End, HostOperand, Move, Own, Reason};
use crate::types::BACKEND;

impl Move {
    /// The move of an operation.
    pub(crate) fn of(gpus: &[Gpu], op: &Op<'_>) -> Result<Move, Reason> {
        let made = match op {
            Op::Copy { src, dst } if src.len_bytes != dst.len_bytes => {
                let (src, dst) = (src.len_bytes, dst.len_bytes);
                return Err(format!("{src} bytes do not fit {dst}").into());
            }
            Op::Copy { src, dst } => Move::Copy {
                from: End::of(gpus, (src.buffer, src.offset), src.len_bytes)?,
                to: End::of(gpus, (dst.buffer, dst.offset), dst.len_bytes)?,
                shapes: None,
                span: Span::new(0, src.len_bytes),
                is_within: src.buffer.storage_id() == dst.buffer.storage_id(),
            },
            Op::Pitched { src, dst, span } => Move::Copy {
                from: End::of(gpus, (src.buffer, src.offset), src.shape.extent_bytes())?,
                to: End::of(gpus, (dst.buffer, dst.offset), dst.shape.extent_bytes())?,
                shapes: Some((src.shape, dst.shape)),
                span: *span,
                is_within: false,
            },
            Op::MakeVisible { part } => Move::show(gpus, part)?,
            Op::AcquireHost { buffer } => {
                let (of, _) = managed(gpus, buffer)?;
                Move::Taken { of }
            }
            Op::ReleaseHost { buffer } => {
                let (of, at) = managed(gpus, buffer)?;
                let len = buffer.len();
                Move::Modified { of, at, len }
            }
            other => return Err(format!("{other:?} is not for a Metal device").into()),
        };
        made.check()?;
        Ok(made)
    }

    fn show(gpus: &[Gpu], part: &Part<'_>) -> Result<Move, Reason> {
        match End::of(gpus, (part.buffer, part.offset), part.len_bytes)? {
            End::Own { gpu, kind, of, .. } => Ok(Move::Show {
                gpu,
                managed: (kind == MemoryKind::Managed).then_some(of),
            }),
            _ => Err(format!("{} is nothing to show", part.buffer.memory()).into()),
        }
    }
}

/// The managed buffer of a view, and the byte at which the view begins.
fn managed(gpus: &[Gpu], buffer: &Buffer) -> Result<(Own, u64), Reason> {
    match End::of(gpus, (buffer, 0), buffer.len())? {
        End::Own {
            kind: MemoryKind::Managed,
            of,
            at,
            ..
        } => Ok((of, at)),
        _ => Err(format!("{} has one copy", buffer.memory()).into()),
    }
}

impl End {
    fn of(gpus: &[Gpu], (buffer, offset): (&Buffer, u64), len: u64) -> Result<End, Reason> {
        if !Span::new(offset, len).fits(buffer.len()) {
            return Err("an operand reaches past its buffer".into());
        }
        let memory = buffer.memory();
        if memory.device.is_host() && GUEST_KINDS.contains(&memory.kind) {
            let spans = buffer.host(offset, len).zip(buffer.whole().host(0, 0));
            let operand =
                spans.map(|(span, storage)| End::Host(HostOperand::new(span, storage.addr())));
            return operand.ok_or_else(|| format!("{memory} has no address here").into());
        }
        let is_own = buffer.backend() == BACKEND;
        let gpu = gpus
            .iter()
            .find(|gpu| gpu.id == memory.device && is_own)
            .ok_or_else(|| format!("{memory} is no memory of a Metal device here"))?;
        let own = |of, at| End::Own {
            gpu: gpu.number,
            kind: memory.kind,
            of,
            at,
        };
        if let Some(image) = buffer
            .native::<MetalTexture>()
            .and_then(MetalTexture::image)
        {
            return Ok(End::Texels {
                gpu: gpu.number,
                of: image.clone(),
                at: buffer.span().offset + offset,
            });
        }
        if let Some(known) = buffer.native::<MetalBuffer>() {
            let coherence =
                (memory.kind == MemoryKind::Managed).then(|| Arc::clone(known.coherence()));
            let raw = known.raw().clone();
            return Ok(own(Own { raw, coherence }, buffer.span().offset + offset));
        }
        let host = buffer.host(offset, len);
        let found = host.and_then(|host| gpu.hosted.find(host.addr(), len));
        let (raw, at) = found.ok_or("the buffer is none of Metal's")?;
        Ok(own(
            Own {
                raw,
                coherence: None,
            },
            at,
        ))
    }
}
