//! The two ends of a copy and their checks, natively and in the browser.

use transload_hal::{
    Buffer, ErrorClass, Fault, Fence, Layout, LinkId, Op, SubmitError, check_fences,
};
use transload_hal::{DeviceId, DeviceKind, MemoryKind, Rows, Span};

use crate::raw::{End, Window};
use crate::storage::{BACKEND, WORD};
use crate::texture;

/// The adapter that an operation is for.
fn device_of(op: &Op<'_>) -> Option<DeviceId> {
    let devices = match op {
        Op::MakeVisible { part } => [part.buffer.memory().device; 2],
        _ => op.ends().map(|(src, dst)| [src.device, dst.device])?,
    };
    devices
        .into_iter()
        .find(|device| device.kind == DeviceKind::WGPU)
}

/// Checks the fences and the link of a submission, and returns the adapter that its operations are for; `None` if there are
/// none. `has` tells whether a device is among the backend's.
///
/// # Errors
/// If fences, link or the first operation belong to others.
pub(crate) fn adapter_of(
    (via, ops, after): (Option<LinkId>, &[Op<'_>], &[Fence]),
    has: impl Fn(DeviceId) -> bool,
) -> Result<Option<DeviceId>, SubmitError> {
    check_fences(BACKEND, after)?;
    if let Some(link) = via.filter(|link| !has(link.engine.device)) {
        let message = format!("there is no engine {} here", link.engine);
        return Err(SubmitError::mistake(message));
    }
    let Some(first) = ops.first() else {
        return Ok(None);
    };
    match device_of(first).filter(|device| has(*device)) {
        Some(device) => Ok(Some(device)),
        None => Err(SubmitError::Unsupported {
            index: 0,
            reason: format!("{first:?} has no operand in the memory of an adapter").into(),
        }),
    }
}

/// Returns a copy's source, its destination, and the bytes of the payload that it moves.
///
/// # Errors
/// If its ends differ in length, or it is no copy.
pub(crate) fn of<'a>(op: &Op<'a>) -> Result<(Layout<'a>, Layout<'a>, Span), Fault> {
    match op {
        Op::Copy { src, dst } if src.len_bytes != dst.len_bytes => {
            let (from, to) = (src.len_bytes, dst.len_bytes);
            let message = format!("{from} bytes cannot be copied to {to}");
            Err(Fault::new(ErrorClass::Caller, message))
        }
        Op::Copy { src, dst } => {
            let span = Span::new(0, src.len_bytes);
            Ok((Layout::from(*src), Layout::from(*dst), span))
        }
        Op::Pitched { src, dst, span } => Ok((*src, *dst, *span)),
        other => Err(unsupported(format!("wgpu does nothing like {other:?}"))),
    }
}

/// The error of a submission whose operation `index` cannot be done.
pub(crate) fn refusal(index: usize, fault: Fault) -> SubmitError {
    match fault.class {
        ErrorClass::Unsupported => SubmitError::Unsupported {
            index,
            reason: fault.message,
        },
        _ => SubmitError::Refused(fault),
    }
}

/// Makes sure that an end is of that device's memory, of one of these kinds, as far as its last byte.
///
/// # Errors
/// When it is not.
pub(crate) fn reach(
    device: DeviceId,
    kinds: &[MemoryKind],
    op: &Op<'_>,
    end: &Layout<'_>,
) -> Result<(), Fault> {
    let memory = end.buffer.memory();
    if memory.device != device || !kinds.contains(&memory.kind) {
        let reason = format!("{device} does not reach {memory} for {op:?}");
        return Err(unsupported(reason));
    }
    let Some(native) = native(end.buffer) else {
        let reason = format!("a buffer of {memory} was not made by this backend");
        return Err(unsupported(reason));
    };
    let until = position(end).saturating_add(end.shape.extent_bytes());
    if let End::Bytes { buffer, .. } = native
        && until.div_ceil(WORD) > buffer.size() / WORD
    {
        let size = buffer.size();
        let reason = format!(
            "wgpu copies whole words, and the last one before byte {until} lies past the {size} bytes of \
             the buffer"
        );
        return Err(unsupported(reason));
    }
    Ok(())
}

/// Makes sure that the rows may be written, and that nothing must be read which cannot be.
///
/// # Errors
/// When that is not so.
pub(crate) fn allow(
    src: &Layout<'_>,
    dst: &Layout<'_>,
    mut rows: impl Iterator<Item = Rows>,
) -> Result<(), Fault> {
    let caller = |message: String| Err(Fault::new(ErrorClass::Caller, message));
    if !dst.buffer.is_writable() {
        let memory = dst.buffer.memory();
        return caller(format!("a buffer of {memory} may not be written"));
    }
    if texture::window(src.buffer).is_some_and(|window| window.is_unreadable()) {
        return caller("a texture that was created without COPY_SRC cannot be read".to_owned());
    }
    let Some(window) = texture::window(dst.buffer).filter(Window::is_unreadable) else {
        return Ok(());
    };
    let block = window.block.bytes;
    let is_cut = |rows: &Rows| !(rows.to | rows.len | rows.to_pitch).is_multiple_of(block);
    match rows.find(is_cut) {
        None => Ok(()),
        Some(cut) => caller(format!(
            "{} bytes at byte {} of a texture are no whole blocks of {block} bytes; the rest of those \
             would have to be read, and it was created without COPY_SRC",
            cut.len, cut.to
        )),
    }
}

pub(crate) fn unsupported(reason: String) -> Fault {
    Fault::new(ErrorClass::Unsupported, reason)
}

/// The first byte of an end, in its storage.
pub(crate) fn position(end: &Layout<'_>) -> u64 {
    end.buffer.span().offset + end.offset
}

/// The first byte of a storage of this backend.
pub(crate) fn native(buffer: &Buffer) -> Option<End<'_>> {
    if let Some(window) = texture::window(buffer) {
        return Some(End::Texels { window, offset: 0 });
    }
    #[cfg(native)]
    if let Some(slot) = buffer.native::<crate::memory::Slot>() {
        return Some(End::bytes(&slot.buffer, 0));
    }
    Some(End::bytes(buffer.native::<wgpu::Buffer>()?, 0))
}
