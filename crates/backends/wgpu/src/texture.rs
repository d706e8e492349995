//! Textures as buffers: texels row after row, without the padding that wgpu wants between rows.

use std::ops::Range;

use transload_hal::MemoryId;
use transload_hal::{Buffer, ExternalKind, ImportError, StorageInfo};

use crate::gpu::Gpu;
use crate::raw::Window;
use crate::storage::{PRIVATE, handle_of, info};

/// Texels of one mip level of a texture, to be handed to
/// [`Backend::import`](transload_hal::Backend::import) and to take part in transfers like any buffer.
///
/// The bytes of such a buffer are the texels of the level's first row from left to right, then those of
/// the next row, and so on through all rows of all layers (or of all slices, if the texture has three
/// dimensions), with nothing in between: [`TexelLayout`] gives the number of each. If the format is
/// compressed, rows are rows of blocks.
///
/// A rectangle of the level is a pitched region of the buffer: `width` texels of each of `height` rows,
/// at [`TexelLayout::row_bytes`] from one row to the next.
///
/// ```
/// # fn adopt(
/// #     wgpu: &transload_wgpu::Wgpu,
/// #     device: &wgpu::Device,
/// # ) -> Result<transload_hal::Buffer, transload_hal::ImportError> {
/// use transload_hal::{Backend, DeviceId, External, MemoryKind};
/// use transload_wgpu::Texels;
///
/// let texture = device.create_texture(&wgpu::TextureDescriptor {
///     label: Some("frame"),
///     size: wgpu::Extent3d { width: 1919, height: 1080, depth_or_array_layers: 1 },
///     mip_level_count: 2,
///     sample_count: 1,
///     dimension: wgpu::TextureDimension::D2,
///     format: wgpu::TextureFormat::Rgba8Unorm,
///     usage: wgpu::TextureUsages::COPY_SRC | wgpu::TextureUsages::COPY_DST,
///     view_formats: &[],
/// });
/// let half = Texels::new(texture.clone()).with_mip_level(1);
/// assert_eq!(half.layout().map(|layout| layout.len_bytes()), Some(959 * 4 * 540));
///
/// let memory = "wgpu:0".parse::<DeviceId>().expect("a name").memory(MemoryKind::Device);
/// // Mip level 0 needs no `Texels`.
/// // SAFETY: `device` is the one that was lent.
/// let frame = unsafe { wgpu.import(memory, External::object(texture)) }?;
/// assert_eq!(frame.len(), 1919 * 4 * 1080);
/// # Ok(frame)
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Texels {
    texture: wgpu::Texture,
    mip_level: u32,
    /// All layers, if `None`.
    layers: Option<Range<u32>>,
}

/// The bytes, rows and layers of the texels of a mip level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct TexelLayout {
    /// The bytes of a texel, or of a block if the format is compressed. wgpu copies only whole ones, so
    /// a copy that begins or ends inside one reads it first.
    pub block_bytes: u64,
    /// The bytes of a row of texels, or of blocks.
    pub row_bytes: u64,
    /// Rows of texels, or of blocks, in a layer.
    pub rows: u64,
    /// Layers of an array, or slices of a texture of three dimensions.
    pub layers: u64,
}

impl TexelLayout {
    /// The bytes of all texels.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.row_bytes * self.rows * self.layers
    }
}

impl Texels {
    /// Selects all layers of mip level 0.
    #[must_use]
    pub const fn new(texture: wgpu::Texture) -> Texels {
        Texels {
            texture,
            mip_level: 0,
            layers: None,
        }
    }

    /// Selects another mip level; 0 is the largest.
    #[must_use]
    pub fn with_mip_level(mut self, mip_level: u32) -> Texels {
        self.mip_level = mip_level;
        self
    }

    /// Selects these layers of the array, or slices of the level's depth.
    #[must_use]
    pub fn with_layers(mut self, layers: Range<u32>) -> Texels {
        self.layers = Some(layers);
        self
    }

    /// The texture.
    #[must_use]
    pub const fn texture(&self) -> &wgpu::Texture {
        &self.texture
    }

    /// Returns how the texels lie in a buffer. `None` if the level or the layers do not exist, or if
    /// texels of the format cannot be copied one by one (depth, stencil and planar formats).
    #[must_use]
    pub fn layout(&self) -> Option<TexelLayout> {
        let window = self.window().ok()?;
        Some(TexelLayout {
            block_bytes: window.block.bytes,
            row_bytes: window.row_bytes(),
            rows: window.size[1].into(),
            layers: window.size[2].into(),
        })
    }

    /// # Errors
    /// The defect of the texture or of the selection.
    fn window(&self) -> Result<Window<'_>, String> {
        let texture = &self.texture;
        let window = Window::of_level(texture, self.mip_level)?;
        let all = window.size[2];
        let layers = self.layers.clone().unwrap_or(0..all);
        if layers.is_empty() || layers.end > all {
            return Err(format!(
                "layers {layers:?} are not among the {all} of mip level {}",
                self.mip_level
            ));
        }
        Ok(window.of_layers(layers))
    }
}

/// The texels behind a buffer, if there are any.
pub(crate) fn window(buffer: &Buffer) -> Option<Window<'_>> {
    if let Some(texture) = buffer.native::<wgpu::Texture>() {
        return Window::of_level(texture, 0).ok();
    }
    buffer.native::<Texels>()?.window().ok()
}

/// A user's own texture, or texels of it, which the buffer keeps as it was handed over.
pub(crate) fn adopt<T: AsTexels>(
    gpu: &Gpu,
    memory: MemoryId,
    owner: T,
) -> Result<Buffer, ImportError> {
    let texels = owner.texels();
    let invalid = |reason: String| ImportError::Invalid {
        memory,
        kind: ExternalKind::Object,
        reason: reason.into(),
    };
    let window = texels.window().map_err(invalid)?;
    let usage = texels.texture.usage();
    let copied = wgpu::TextureUsages::COPY_SRC | wgpu::TextureUsages::COPY_DST;
    if !usage.intersects(copied) {
        return Err(invalid(format!(
            "its usages {usage:?} have neither COPY_SRC nor COPY_DST"
        )));
    }
    if gpu.is_private() {
        return Err(invalid(PRIVATE.to_owned()));
    }
    gpu.try_out(memory, |encoder| {
        window.copy_nothing(encoder, &gpu.device);
    })?;
    let handle = handle_of(gpu.identity, &texels.texture);
    let info = StorageInfo {
        base: window.position(),
        writable: usage.contains(wgpu::TextureUsages::COPY_DST),
        ..info(memory, handle, window.len_bytes())
    };
    // SAFETY: the host cannot reach it; the handle names the texture, and within it each texel has one
    // position.
    Ok(unsafe { gpu.storage(info, owner) })
}

/// An object that users import.
pub(crate) trait AsTexels: transload_hal::Owner + Sized {
    fn texels(&self) -> Texels;
}

impl AsTexels for wgpu::Texture {
    fn texels(&self) -> Texels {
        Texels::new(self.clone())
    }
}

impl AsTexels for Texels {
    fn texels(&self) -> Texels {
        self.clone()
    }
}
