//! Copies of rows, and of planes of rows.
//!
//! Source: CUDA Driver API, Memory Management: cuMemcpy2D, cuMemcpy3DPeer, CUDA_MEMCPY2D, CUDA_MEMCPY3D_PEER. A pitch may be
//! 0 where there is one row, a height where there is one plane. Arrays are not modelled.

use std::ffi::c_void;

use transload_cuda::raw::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D_PEER, CUcontext, CUdeviceptr, CUmemorytype, CUresult, CUstream,
};

use crate::answer::Answer;
use crate::bytes::Memory;
use crate::call::{Call, driver};
use crate::state::State;
use crate::transfer::{End, Mode, Order, Shape, Steps, Taken, Transfer, carry_out};

/// A description of a copy of any kind.
pub(crate) struct Box3 {
    src: Side,
    dst: Side,
    width: usize,
    height: usize,
    depth: usize,
    /// Whether a copy within a device must have pitches that are multiples of [`PITCH`].
    aligned: bool,
    /// Whether all reserved fields are 0.
    reserved: bool,
}

/// One end of a description.
struct Side {
    memory: CUmemorytype,
    host: *const c_void,
    device: CUdeviceptr,
    /// Of a copy between contexts.
    context: Option<CUcontext>,
    pitch: usize,
    /// Rows of a plane.
    rows: usize,
    x: usize,
    y: usize,
    z: usize,
}

macro_rules! side {
    ($copy:ident, $memory:ident, $host:ident, $device:ident, $pitch:ident, $x:ident, $y:ident) => {
        Side {
            memory: $copy.$memory,
            host: $copy.$host.cast(),
            device: $copy.$device,
            context: None,
            pitch: $copy.$pitch,
            rows: 0,
            x: $copy.$x,
            y: $copy.$y,
            z: 0,
        }
    };
}

macro_rules! sides {
    ($copy:ident) => {
        (
            side!(
                $copy,
                srcMemoryType,
                srcHost,
                srcDevice,
                srcPitch,
                srcXInBytes,
                srcY
            ),
            side!(
                $copy,
                dstMemoryType,
                dstHost,
                dstDevice,
                dstPitch,
                dstXInBytes,
                dstY
            ),
        )
    };
}

impl Box3 {
    fn rows(copy: &CUDA_MEMCPY2D) -> Box3 {
        let (src, dst) = sides!(copy);
        Box3 {
            src,
            dst,
            width: copy.WidthInBytes,
            height: copy.Height,
            depth: 1,
            aligned: true,
            reserved: true,
        }
    }

    pub(crate) fn between_contexts(copy: &CUDA_MEMCPY3D_PEER) -> Box3 {
        let (src, dst) = sides!(copy);
        Box3 {
            src: Side {
                rows: copy.srcHeight,
                z: copy.srcZ,
                context: Some(copy.srcContext),
                ..src
            },
            dst: Side {
                rows: copy.dstHeight,
                z: copy.dstZ,
                context: Some(copy.dstContext),
                ..dst
            },
            width: copy.WidthInBytes,
            height: copy.Height,
            depth: copy.Depth,
            aligned: false,
            reserved: copy.srcLOD == 0 && copy.dstLOD == 0,
        }
    }

    /// Checks the description, and puts the copy into a stream.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for arrays, `INVALID_VALUE` for what means nothing, and as [`carry_out`].
    pub(crate) fn carry_out(&self, call: &Call, stream: CUstream) -> Answer {
        let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
        let mut state = call.state();
        call.current(&state)?;
        if !self.reserved {
            return Err(wrong);
        }
        let shape = Shape {
            width: self.width,
            height: self.height,
            depth: self.depth,
            src: self.steps(&self.src)?,
            dst: self.steps(&self.dst)?,
        };
        if self.width == 0 || self.height == 0 || self.depth == 0 {
            let number = state.stream_number(stream)?;
            return state.unfinished(number).map(|_| ());
        }
        let src = self.src.end(&state, shape.extent(shape.src), shape.src)?;
        let dst = self.dst.end(&state, shape.extent(shape.dst), shape.dst)?;
        let within = src.place.memory == dst.place.memory;
        let pitches = [self.src.pitch, self.dst.pitch];
        let off = self.height > 1 && pitches.iter().any(|pitch| !pitch.is_multiple_of(PITCH));
        if self.aligned && within && matches!(src.place.memory, Memory::Device(_)) && off {
            return Err(wrong);
        }
        let transfer = Transfer {
            src,
            dst,
            shape,
            order: Order::Stream,
        };
        carry_out(call, state, stream, Mode::Asynchronous, vec![transfer])
    }

    fn steps(&self, side: &Side) -> Result<Steps, CUresult> {
        let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
        match side.memory {
            CUmemorytype::CU_MEMORYTYPE_HOST
            | CUmemorytype::CU_MEMORYTYPE_DEVICE
            | CUmemorytype::CU_MEMORYTYPE_UNIFIED => {}
            CUmemorytype::CU_MEMORYTYPE_ARRAY => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            _ => return Err(wrong),
        }
        let fits = |given: usize, from: usize, len: usize, needed: bool| match given {
            0 => !needed,
            given => from.checked_add(len).is_some_and(|end| end <= given),
        };
        let needs_pitch = self.height > 1 || self.depth > 1 || side.y > 0 || side.z > 0;
        let needs_rows = self.depth > 1 || side.z > 0;
        if side.pitch > MAX_PITCH
            || !fits(side.pitch, side.x, self.width, needs_pitch)
            || !fits(side.rows, side.y, self.height, needs_rows)
        {
            return Err(wrong);
        }
        Ok(Steps {
            row: side.pitch,
            plane: side.pitch.checked_mul(side.rows).ok_or(wrong)?,
        })
    }
}

impl Side {
    fn end(&self, state: &State, extent: Option<usize>, steps: Steps) -> Result<End, CUresult> {
        let host = self.memory == CUmemorytype::CU_MEMORYTYPE_HOST;
        let base = if host {
            self.host.addr() as u64
        } else {
            self.device
        };
        let begin = || {
            let planes = self.z.checked_mul(steps.plane)?;
            let rows = self.y.checked_mul(steps.row)?;
            let offset = planes.checked_add(rows)?.checked_add(self.x)?;
            base.checked_add(offset as u64)
        };
        let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
        let (begin, extent) = (begin().ok_or(wrong)?, extent.ok_or(wrong)?);
        match (self.memory, self.context) {
            (CUmemorytype::CU_MEMORYTYPE_HOST, _) => state.end(begin, extent, Taken::Host),
            (CUmemorytype::CU_MEMORYTYPE_DEVICE, None) => state.end(begin, extent, Taken::Device),
            (CUmemorytype::CU_MEMORYTYPE_DEVICE, Some(context)) => {
                state.end_in(context, begin, extent)
            }
            _ => state.end(begin, extent, Taken::Unified),
        }
    }
}

/// The value of `CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT`.
const PITCH: usize = 512;

/// The value of `CU_DEVICE_ATTRIBUTE_MAX_PITCH`.
const MAX_PITCH: usize = i32::MAX as usize;

driver! {
    /// Within a device, a pitch that is no multiple of 512 bytes is refused, as the documentation allows.
    fn cuMemcpy2DAsync_v2(p_copy: *const CUDA_MEMCPY2D, h_stream: CUstream), call => {
        // SAFETY: the caller passes a valid description.
        let copy = unsafe { described(p_copy) }?;
        Box3::rows(&copy).carry_out(call, h_stream)
    }
}

/// # Errors
/// `INVALID_VALUE` without one.
///
/// # Safety
/// The pointer is null, or to a description.
pub(crate) unsafe fn described<T>(description: *const T) -> Result<T, CUresult> {
    if description.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller's promise. Clients may hand in descriptions of any alignment.
    Ok(unsafe { description.read_unaligned() })
}
