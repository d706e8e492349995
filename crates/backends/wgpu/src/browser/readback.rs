//! Copies from the device to host memory: commands copy to a buffer, the browser maps it when they are over, and the
//! host copies the bytes out.

use std::cell::RefCell;

use transload_hal::{ErrorClass, Fault, HostSpan};

use super::once::{Told, once};
use crate::storage::failed;

/// Buffers that nothing uses now. Each serves one submission at a time: while it is mapped, commands must not
/// touch it.
#[derive(Default)]
pub(super) struct Readbacks(RefCell<Vec<wgpu::Buffer>>);

/// The number of buffers that are kept: as many as one link has operations under way.
const KEPT: usize = transload_hal::defaults::LINK_DEPTH as usize;

/// The smallest size of a buffer in bytes, so that small copies can reuse each other's buffers.
const LEAST: u64 = 64 << 10;

/// The largest size of a buffer that is kept, in bytes: a page that once fetched a gigabyte should get that memory
/// back, and compared with copying so many bytes, making a buffer costs nothing.
const MOST: u64 = 16 << 20;

impl Readbacks {
    /// Takes a buffer that holds `size` bytes.
    pub(super) fn take(&self, device: &wgpu::Device, size: u64) -> wgpu::Buffer {
        let mut kept = self.0.borrow_mut();
        let fitting = kept.iter().enumerate();
        let fitting = fitting.filter(|(_, buffer)| buffer.size() >= size);
        if let Some((at, _)) = fitting.min_by_key(|(_, buffer)| buffer.size()) {
            return kept.swap_remove(at);
        }
        drop(kept);
        device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("transload readback"),
            size: match size {
                0..=MOST => size.next_power_of_two().max(LEAST),
                // A whole number of words already.
                _ => size,
            },
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })
    }

    /// Takes back a buffer that is not mapped and that no command uses. If too many are kept, drops the smallest.
    fn put(&self, buffer: wgpu::Buffer) {
        if buffer.size() > MOST {
            return buffer.destroy();
        }
        let mut kept = self.0.borrow_mut();
        kept.push(buffer);
        if kept.len() > KEPT {
            kept.sort_by_key(|buffer| std::cmp::Reverse(buffer.size()));
            // Without `destroy`, the browser frees the buffer only at its next garbage collection.
            kept.drain(KEPT..).for_each(|buffer| buffer.destroy());
        }
    }
}

/// Bytes on their way to host memory.
pub(super) struct PendingReadback {
    buffer: wgpu::Buffer,
    size: u64,
    pieces: Vec<Piece>,
    mapped: Told<bool>,
}

/// Bytes of the buffer, and their destination.
pub(super) struct Piece {
    pub(super) at: u64,
    pub(super) to: HostSpan,
}

impl PendingReadback {
    /// Makes the browser map the buffer when the submitted commands are over.
    pub(super) fn expect(buffer: wgpu::Buffer, size: u64, pieces: Vec<Piece>) -> PendingReadback {
        let (tell, mapped) = once();
        buffer.map_async(wgpu::MapMode::Read, 0..size, move |result| {
            tell.tell(result.is_ok());
        });
        PendingReadback {
            buffer,
            size,
            pieces,
            mapped,
        }
    }

    /// Waits for the mapping, and copies its bytes to host memory if `is_good`.
    ///
    /// # Safety
    /// Until this is over the pieces' ends are valid for writes, and nothing else touches them.
    pub(super) async unsafe fn finish(
        self,
        readbacks: &Readbacks,
        is_good: bool,
    ) -> Result<(), Fault> {
        if self.mapped.await != Some(true) {
            return Err(failed(&"the browser did not map the buffer of the copy"));
        }
        if !is_good {
            // The buffer itself may have caused the failure.
            self.buffer.destroy();
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let copied = unsafe { copy_out(&self.buffer, self.size, &self.pieces) };
        self.buffer.unmap();
        readbacks.put(self.buffer);
        copied
    }
}

/// # Safety
/// The pieces' ends are valid for writes, and nothing else touches them.
unsafe fn copy_out(buffer: &wgpu::Buffer, size: u64, pieces: &[Piece]) -> Result<(), Fault> {
    let view = buffer
        .get_mapped_range(0..size)
        .map_err(|error| failed(&error))?;
    // Not as a slice: wgpu would first copy the whole mapping for that.
    let bytes = view.as_uint8array();
    for piece in pieces {
        let end = piece.at + piece.to.len() as u64;
        let (Ok(start), Ok(end)) = (u32::try_from(piece.at), u32::try_from(end)) else {
            let message = "a copy of more than 4 GiB at once";
            return Err(Fault::new(ErrorClass::Unsupported, message));
        };
        // SAFETY: the caller's promise.
        let home = unsafe { piece.to.as_mut_slice() };
        bytes.subarray(start, end).copy_to(home);
    }
    Ok(())
}
