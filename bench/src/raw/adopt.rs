//! Handing a buffer of wgpu's to a manager.

use anyhow::Result;
use transload::hal::External;
use transload::{Buffer, Place, TransferManager};

/// A user's own buffer, of the device that `place` names.
pub(crate) fn adopt(
    manager: &TransferManager,
    place: Place,
    buffer: &wgpu::Buffer,
) -> Result<Buffer> {
    let object = External::Object(Box::new(buffer.clone()));
    // SAFETY: the benchmarks touch a buffer of wgpu's by its own calls only while the manager does
    // nothing with it: contenders run one after the other, and each waits until it has ended.
    Ok(unsafe { manager.import(place, object) }?)
}
