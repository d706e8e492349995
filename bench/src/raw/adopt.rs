//! Imports of wgpu objects into a manager.

use anyhow::Result;
use transload::hal::External;
use transload::{Buffer, Place, TransferManager};

/// A user's own buffer on the device of `place`.
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
    // SAFETY: the benchmarks use wgpu's objects by its own calls only while the manager does not use them: contenders
    // run one after the other, and each waits until its operations have ended.
    Ok(unsafe { manager.import(place, object) }?)
}
