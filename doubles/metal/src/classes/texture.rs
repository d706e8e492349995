//! `MTLTexture`: one level of texels, row by row, image by image.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use super::buffer::{Buffer, hazard_tracking};
use super::descriptor::{Properties, TYPE_1D, TYPE_2D, TYPE_2D_ARRAY, TYPE_3D, texel_bytes};
use super::label::Label;
use super::types::{Origin, Region, Size};
use crate::bytes::Storage;
use crate::faults::has_room;
use crate::gpu::Place;
use crate::ledger::{COUNTS, Misuse, report};
use crate::machine::{DeviceState, made};
use crate::runtime::{Id, Method, Receiver, Ref};

/// An image, or several.
#[derive(Debug)]
pub(crate) struct Texture {
    pub(crate) storage: Arc<Storage>,
    is: Properties,
    texel: usize,
    /// Where in the storage it begins.
    offset: usize,
    /// Bytes from row to row, and from image to image.
    row: usize,
    image: usize,
    /// The buffer whose bytes it shows.
    parent: Option<Ref<Buffer>>,
    label: Label,
}

class!(c"MTLTexture" "_OBJC_CLASS_MTLTexture", Texture, methods);

impl Texture {
    /// `newTextureWithDescriptor:`
    pub(crate) fn allocate(device: &DeviceState, is: &Properties) -> Option<Ref<Self>> {
        let texel = modelled(is)?;
        let row = is.width.checked_mul(texel)?;
        let image = row.checked_mul(is.height)?;
        let len = image.checked_mul(is.depth.checked_mul(is.array)?)?;
        if len == 0 {
            report(
                Misuse::BadArgument,
                format!("a texture has texels, unlike {is:?}"),
            );
            return None;
        }
        if !has_room(device, len) {
            return None;
        }
        let storage = Arc::new(Storage::allocate(device, is.mode()?, len)?);
        Some(Self::new(storage, is, texel, [0, row, image], None))
    }

    /// `newTextureWithDescriptor:offset:bytesPerRow:` of a buffer.
    pub(crate) fn view(
        parent: &Ref<Buffer>,
        is: &Properties,
        offset: usize,
        row: usize,
    ) -> Option<Ref<Self>> {
        let texel = modelled(is)?;
        let storage = &parent.storage;
        let alignment = made().devices[storage.device].is.linear_alignment;
        if is.texture_type != TYPE_2D || is.mode() != Some(storage.mode) {
            let told = "a view of a buffer is a 2D texture with the storage mode of the buffer";
            report(Misuse::BadArgument, told.into());
            return None;
        }
        if !offset.is_multiple_of(alignment)
            || !row.is_multiple_of(alignment)
            || row < is.width.checked_mul(texel)?
        {
            let told = format!(
                "rows of a view are at multiples of {alignment} bytes, not {offset} and {row}"
            );
            report(Misuse::Misaligned, told);
            return None;
        }
        let rows = row.checked_mul(is.height.checked_sub(1)?)?;
        let end = offset.checked_add(rows)?.checked_add(is.width * texel)?;
        if end > storage.len {
            let told = format!("a view ends at byte {end} of {}", storage.len);
            report(Misuse::OutOfBounds, told);
            return None;
        }
        let image = row.checked_mul(is.height)?;
        Some(Self::new(
            storage.clone(),
            is,
            texel,
            [offset, row, image],
            Some(parent.clone()),
        ))
    }

    fn new(
        storage: Arc<Storage>,
        is: &Properties,
        texel: usize,
        [offset, row, image]: [usize; 3],
        parent: Option<Ref<Buffer>>,
    ) -> Ref<Self> {
        COUNTS.textures.one();
        Ref::new(Self {
            storage,
            is: *is,
            texel,
            offset,
            row,
            image,
            parent,
            label: Label::default(),
        })
    }

    /// Where the texels of a region are. `None` when some are outside.
    pub(crate) fn place(
        &self,
        slice: usize,
        level: usize,
        origin: Origin,
        size: Size,
    ) -> Option<Place> {
        let inside = |from: usize, len: usize, limit: usize| {
            from.checked_add(len).is_some_and(|end| end <= limit)
        };
        let fits = level == 0
            && slice < self.is.array
            && inside(origin.x, size.width, self.is.width)
            && inside(origin.y, size.height, self.is.height)
            && inside(origin.z, size.depth, self.is.depth);
        fits.then(|| Place {
            storage: self.storage.clone(),
            offset: self.offset
                + (slice * self.is.depth + origin.z) * self.image
                + origin.y * self.row
                + origin.x * self.texel,
            row: self.row,
            image: self.image,
            is_texture: true,
        })
    }

    /// Bytes of a row, rows, images.
    pub(crate) fn extent(&self, size: Size) -> [usize; 3] {
        [size.width * self.texel, size.height, size.depth]
    }

    pub(crate) fn texel_bytes(&self) -> usize {
        self.texel
    }

    /// From row to row between the host's copy and the client's memory.
    fn host_rows(
        &self,
        region: Region,
        slice: usize,
        level: usize,
        mut move_row: impl FnMut(NonNull<u8>, [usize; 3]),
    ) {
        let place = self.place(slice, level, region.origin, region.size);
        let (Some(contents), Some(place)) = (self.storage.contents(), place) else {
            let told = format!("the host cannot reach {region:?} of this texture");
            report(Misuse::StorageMode, told);
            return;
        };
        let [len, rows, images] = self.extent(region.size);
        for image in 0..images {
            for row in 0..rows {
                let at = place.offset + image * place.image + row * place.row;
                // SAFETY: `place` found the region to be in the storage.
                move_row(unsafe { contents.add(at) }, [len, row, image]);
            }
        }
    }
}

impl Drop for Texture {
    fn drop(&mut self) {
        if self.parent.is_none() {
            self.storage.end("MTLTexture");
        }
    }
}

/// Bytes of a texel, of what this double models.
fn modelled(is: &Properties) -> Option<usize> {
    let types = [TYPE_1D, TYPE_2D, TYPE_2D_ARRAY, TYPE_3D];
    let texel = texel_bytes(is.format);
    if texel.is_none() || !types.contains(&is.texture_type) || is.levels != 1 || is.samples != 1 {
        report(Misuse::NotModelled, format!("{is:?}"));
        return None;
    }
    texel
}

fn methods() -> Vec<Method> {
    let mut methods = properties();
    methods.extend(methods![Receiver<Texture>;
        c"getBytes:bytesPerRow:fromRegion:mipmapLevel:" => fn(
            this, bytes: *mut c_void, bytes_per_row: usize, region: Region, level: usize
        ) {
            let bytes = bytes.cast::<u8>();
            this.host_rows(region, 0, level, |texels, [len, row, _]| {
                // SAFETY: the caller has room for the rows of the region, that far from each other.
                let to = unsafe { bytes.add(row * bytes_per_row) };
                // SAFETY: as above; the texels are in the storage.
                unsafe { texels.as_ptr().copy_to_nonoverlapping(to, len) };
            });
        }
        c"replaceRegion:mipmapLevel:withBytes:bytesPerRow:" => fn(
            this, region: Region, level: usize, bytes: *mut c_void, bytes_per_row: usize
        ) {
            let bytes = bytes.cast::<u8>();
            this.host_rows(region, 0, level, |texels, [len, row, _]| {
                // SAFETY: the caller has the rows of the region, that far from each other.
                let from = unsafe { bytes.add(row * bytes_per_row) };
                // SAFETY: as above; the texels are in the storage.
                unsafe { from.copy_to_nonoverlapping(texels.as_ptr(), len) };
            });
            // The GPU sees bytes that the host writes by this method, in managed textures too.
            this.storage.take_in(0, this.storage.len);
        }
    ]);
    methods
}

fn properties() -> Vec<Method> {
    methods![Receiver<Texture>;
        c"textureType" => fn(this) -> usize {
            this.is.texture_type
        }
        c"pixelFormat" => fn(this) -> usize {
            this.is.format
        }
        c"width" => fn(this) -> usize {
            this.is.width
        }
        c"height" => fn(this) -> usize {
            this.is.height
        }
        c"depth" => fn(this) -> usize {
            this.is.depth
        }
        c"arrayLength" => fn(this) -> usize {
            this.is.array
        }
        c"mipmapLevelCount" => fn(this) -> usize {
            this.is.levels
        }
        c"sampleCount" => fn(this) -> usize {
            this.is.samples
        }
        c"usage" => fn(this) -> usize {
            this.is.usage
        }
        c"buffer" => fn(this) -> Id {
            this.parent.clone().map_or(Id::NIL, Ref::autoreleased)
        }
        // Views of textures are not modelled.
        c"parentTexture" => fn(_this) -> Id {
            Id::NIL
        }
        c"bufferOffset" => fn(this) -> usize {
            this.offset
        }
        c"bufferBytesPerRow" => fn(this) -> usize {
            if this.parent.is_some() { this.row } else { 0 }
        }
        c"device" => fn(this) -> Id {
            made().devices[this.storage.device].autoreleased()
        }
        c"storageMode" => fn(this) -> usize {
            this.storage.mode as usize
        }
        c"resourceOptions" => fn(this) -> usize {
            this.is.options
        }
        c"hazardTrackingMode" => fn(this) -> usize {
            hazard_tracking(this.is.options)
        }
        c"allocatedSize" => fn(this) -> usize {
            this.storage.len.next_multiple_of(made().machine.page_size)
        }
        c"label" => fn(this) -> Id {
            this.label.get()
        }
        c"setLabel:" => fn(this, label: Id) {
            this.label.set(label);
        }
    ]
}
