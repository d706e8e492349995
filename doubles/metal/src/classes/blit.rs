//! `MTLBlitCommandEncoder`: copies, fills, and their checks.

use std::sync::atomic::{AtomicBool, Ordering};

use super::buffer::Buffer;
use super::command_buffer::{CommandBuffer, RetainedResource};
use super::label::Label;
use super::texture::Texture;
use super::types::{Origin, Range, Size};
use crate::bytes::{Mode, Storage};
use crate::gpu::{Command, Place, Rows};
use crate::ledger::Misuse;
use crate::machine::made;
use crate::runtime::{Id, Method, Receiver, Ref};

/// Puts commands into a command buffer until it ends.
#[derive(Debug)]
pub(crate) struct BlitEncoder {
    buffer: Ref<CommandBuffer>,
    ended: AtomicBool,
    label: Label,
}

class!(c"MTLBlitCommandEncoder" "_OBJC_CLASS_MTLBlitCommandEncoder", BlitEncoder, methods);

/// Why a command is not taken.
type Refusal = (Misuse, String);

/// One side of a copy from or to a texture, as the client passes it.
struct TextureSide {
    texture: Id,
    slice: usize,
    level: usize,
    origin: Origin,
}

/// The other side, where it is a buffer.
struct BufferSide {
    buffer: Id,
    offset: usize,
    row: usize,
    image: usize,
}

impl BlitEncoder {
    pub(crate) fn new(buffer: Ref<CommandBuffer>) -> Ref<Self> {
        Ref::new(Self {
            buffer,
            ended: AtomicBool::new(false),
            label: Label::default(),
        })
    }

    /// Encodes the result of `command`, or reports the reason against it.
    fn encode<const KEPT: usize>(
        &self,
        command: impl FnOnce() -> Result<(Command, [RetainedResource; KEPT]), Refusal>,
    ) {
        if self.ended.load(Ordering::Acquire) {
            self.buffer.spoil(
                Misuse::EncoderEnded,
                "a command was given to an encoder that has ended".into(),
            );
            return;
        }
        match command() {
            Ok((command, kept)) => self.buffer.encode(command, kept),
            Err((misuse, told)) => self.buffer.spoil(misuse, told),
        }
    }

    fn end(&self) {
        if self.ended.swap(true, Ordering::AcqRel) {
            self.buffer
                .spoil(Misuse::EncoderEnded, "an encoder was ended twice".into());
        } else {
            self.buffer.end_encoding();
        }
    }

    fn buffer(&self, id: Id) -> Result<Ref<Buffer>, Refusal> {
        let buffer = id.retained::<Buffer>();
        let buffer = buffer.ok_or((
            Misuse::BadArgument,
            "what was given is no buffer".to_owned(),
        ))?;
        self.own(&buffer.storage)?;
        Ok(buffer)
    }

    fn texture(&self, id: Id) -> Result<Ref<Texture>, Refusal> {
        let texture = id.retained::<Texture>();
        let texture = texture.ok_or((
            Misuse::BadArgument,
            "what was given is no texture".to_owned(),
        ))?;
        self.own(&texture.storage)?;
        Ok(texture)
    }

    fn own(&self, storage: &Storage) -> Result<(), Refusal> {
        let (mine, its) = (self.buffer.device(), storage.device);
        if mine == its {
            return Ok(());
        }
        let told = format!("a resource of device {its} was given to an encoder of device {mine}");
        Err((Misuse::OtherDevice, told))
    }

    fn copy(
        &self,
        source: Id,
        source_offset: usize,
        destination: Id,
        destination_offset: usize,
        len: usize,
    ) -> Result<(Command, [RetainedResource; 2]), Refusal> {
        let (from, to) = (self.buffer(source)?, self.buffer(destination)?);
        aligned(&[source_offset, destination_offset, len])?;
        bounded(&from.storage, source_offset, len)?;
        bounded(&to.storage, destination_offset, len)?;
        if source.is(destination) && source_offset.abs_diff(destination_offset) < len {
            let told =
                format!("{len} bytes from {source_offset} to {destination_offset} of one buffer");
            return Err((Misuse::Overlap, told));
        }
        let command = Command::Copy {
            source: from.storage.clone(),
            source_offset,
            destination: to.storage.clone(),
            destination_offset,
            len,
        };
        Ok((
            command,
            [RetainedResource::Buffer(from), RetainedResource::Buffer(to)],
        ))
    }

    fn fill(
        &self,
        buffer: Id,
        range: Range,
        value: u8,
    ) -> Result<(Command, [RetainedResource; 1]), Refusal> {
        let buffer = self.buffer(buffer)?;
        aligned(&[range.location, range.length])?;
        bounded(&buffer.storage, range.location, range.length)?;
        let command = Command::Fill {
            destination: buffer.storage.clone(),
            offset: range.location,
            len: range.length,
            value,
        };
        Ok((command, [RetainedResource::Buffer(buffer)]))
    }

    fn synchronize(&self, resource: Id) -> Result<(Command, [RetainedResource; 1]), Refusal> {
        let (storage, kept) = match resource.retained::<Texture>() {
            Some(texture) => (texture.storage.clone(), RetainedResource::Texture(texture)),
            None => {
                let buffer = self.buffer(resource)?;
                (buffer.storage.clone(), RetainedResource::Buffer(buffer))
            }
        };
        self.own(&storage)?;
        if storage.mode != Mode::Managed {
            let told = "synchronizeResource: is for managed resources alone";
            return Err((Misuse::StorageMode, told.into()));
        }
        Ok((Command::Synchronize(storage), [kept]))
    }

    /// Between a buffer and a texture; to the texture if `to_texture` is true.
    fn rows(
        &self,
        side: &BufferSide,
        other: &TextureSide,
        size: Size,
        to_texture: bool,
    ) -> Result<(Command, [RetainedResource; 2]), Refusal> {
        let (buffer, texture) = (self.buffer(side.buffer)?, self.texture(other.texture)?);
        let extent = texture.extent(size);
        let texels = placed(&texture, other, size)?;
        let texel = texture.texel_bytes();
        // "The value must be a multiple of the destination texture's pixel size, in bytes."
        if [side.offset, side.row, side.image]
            .iter()
            .any(|value| !value.is_multiple_of(texel))
        {
            let told = format!("rows are at multiples of a texel's {texel} bytes");
            return Err((Misuse::Misaligned, told));
        }
        let bytes = Place {
            storage: buffer.storage.clone(),
            offset: side.offset,
            row: side.row,
            image: side.image,
            is_texture: false,
        };
        if extent[1] > 1 && side.row < extent[0] {
            let told = format!("rows of {} bytes are {} bytes apart", extent[0], side.row);
            return Err((Misuse::BadArgument, told));
        }
        let end = bytes.end(extent);
        if end.is_none_or(|end| end > buffer.storage.len) {
            let told = format!(
                "rows end behind the {} bytes of their buffer",
                buffer.storage.len
            );
            return Err((Misuse::OutOfBounds, told));
        }
        let (source, destination) = if to_texture {
            (bytes, texels)
        } else {
            (texels, bytes)
        };
        let rows = Rows {
            source,
            destination,
            extent,
        };
        Ok((
            Command::Rows(rows),
            [
                RetainedResource::Buffer(buffer),
                RetainedResource::Texture(texture),
            ],
        ))
    }

    fn texels(
        &self,
        from: &TextureSide,
        size: Size,
        to: &TextureSide,
    ) -> Result<(Command, [RetainedResource; 2]), Refusal> {
        let (source, destination) = (self.texture(from.texture)?, self.texture(to.texture)?);
        if source.texel_bytes() != destination.texel_bytes() {
            let told = "textures with texels of unlike sizes";
            return Err((Misuse::BadArgument, told.into()));
        }
        let rows = Rows {
            source: placed(&source, from, size)?,
            destination: placed(&destination, to, size)?,
            extent: source.extent(size),
        };
        Ok((
            Command::Rows(rows),
            [
                RetainedResource::Texture(source),
                RetainedResource::Texture(destination),
            ],
        ))
    }
}

impl Drop for BlitEncoder {
    fn drop(&mut self) {
        if !self.ended.load(Ordering::Acquire) {
            let told = "an encoder was released before endEncoding";
            self.buffer.spoil(Misuse::EncoderOpen, told.into());
        }
    }
}

/// The system's rule for bytes of buffers.
fn aligned(values: &[usize]) -> Result<(), Refusal> {
    let alignment = made().machine.copy_alignment;
    if values.iter().all(|value| value.is_multiple_of(alignment)) {
        return Ok(());
    }
    let told = format!("{values:?} are not all multiples of {alignment}");
    Err((Misuse::Misaligned, told))
}

fn bounded(storage: &Storage, offset: usize, len: usize) -> Result<(), Refusal> {
    let range = Range {
        location: offset,
        length: len,
    };
    if range.within(storage.len).is_some() {
        return Ok(());
    }
    let told = format!("{len} bytes at {offset} of a buffer of {}", storage.len);
    Err((Misuse::OutOfBounds, told))
}

fn placed(texture: &Texture, side: &TextureSide, size: Size) -> Result<Place, Refusal> {
    let place = texture.place(side.slice, side.level, side.origin, size);
    place.ok_or_else(|| {
        let told = format!("{size:?} at {:?} is not all in the texture", side.origin);
        (Misuse::OutOfBounds, told)
    })
}

fn methods() -> Vec<Method> {
    let mut methods = copies();
    methods.extend(methods![Receiver<BlitEncoder>;
        c"copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:" => fn(
            this, source: Id, source_offset: usize, destination: Id, destination_offset: usize, len: usize
        ) {
            this.encode(|| this.copy(source, source_offset, destination, destination_offset, len));
        }
        c"fillBuffer:range:value:" => fn(this, buffer: Id, range: Range, value: u8) {
            this.encode(|| this.fill(buffer, range, value));
        }
        c"synchronizeResource:" => fn(this, resource: Id) {
            this.encode(|| this.synchronize(resource));
        }
        c"endEncoding" => fn(this) {
            this.end();
        }
        c"device" => fn(this) -> Id {
            made().devices[this.buffer.device()].autoreleased()
        }
        c"label" => fn(this) -> Id {
            this.label.get()
        }
        c"setLabel:" => fn(this, label: Id) {
            this.label.set(label);
        }
    ]);
    methods
}

fn copies() -> Vec<Method> {
    methods![Receiver<BlitEncoder>;
        c"copyFromBuffer:sourceOffset:sourceBytesPerRow:sourceBytesPerImage:sourceSize:toTexture:destinationSlice:destinationLevel:destinationOrigin:" => fn(
            this, buffer: Id, offset: usize, row: usize, image: usize, size: Size,
            texture: Id, slice: usize, level: usize, origin: Origin
        ) {
            let side = BufferSide { buffer, offset, row, image };
            this.encode(|| this.rows(&side, &TextureSide { texture, slice, level, origin }, size, true));
        }
        c"copyFromTexture:sourceSlice:sourceLevel:sourceOrigin:sourceSize:toBuffer:destinationOffset:destinationBytesPerRow:destinationBytesPerImage:" => fn(
            this, texture: Id, slice: usize, level: usize, origin: Origin, size: Size,
            buffer: Id, offset: usize, row: usize, image: usize
        ) {
            let side = BufferSide { buffer, offset, row, image };
            this.encode(|| this.rows(&side, &TextureSide { texture, slice, level, origin }, size, false));
        }
        c"copyFromTexture:sourceSlice:sourceLevel:sourceOrigin:sourceSize:toTexture:destinationSlice:destinationLevel:destinationOrigin:" => fn(
            this, source: Id, source_slice: usize, source_level: usize, source_origin: Origin, size: Size,
            texture: Id, slice: usize, level: usize, origin: Origin
        ) {
            let from = TextureSide { texture: source, slice: source_slice, level: source_level, origin: source_origin };
            this.encode(|| this.texels(&from, size, &TextureSide { texture, slice, level, origin }));
        }
    ]
}
