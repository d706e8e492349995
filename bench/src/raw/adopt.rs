//! Imports of wgpu objects into a manager.

use anyhow::Result;
use transload::hal::External;
use transload::{Buffer, Place, TransferManager};

/// A user's own buffer, of the device that `place` names.
pub(crate) fn adopt(
    manager: &TransferManager,
    place: Place,
    buffer: &wgpu::Buffer,
) -> Result<Buffer> {
    take_in(manager, place, External::Object(Box::new(buffer.clone())))
}

/// A user's own texture, likewise.
pub(crate) fn adopt_texture(
    manager: &TransferManager,
    place: Place,
    texture: &wgpu::Texture,
) -> Result<Buffer> {
    take_in(manager, place, External::Object(Box::new(texture.clone())))
}

fn take_in(manager: &TransferManager, place: Place, object: External) -> Result<Buffer> {
    // SAFETY: the benchmarks touch what is wgpu's by its own calls only while the manager does nothing
    // with it: contenders run one after the other, and each waits until it has ended.
    Ok(unsafe { manager.import(place, object) }?)
}
