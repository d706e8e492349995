//! The position of texels in a texture and in its bytes.

use std::ops::Range;

use super::shifter::CHUNK;

/// Rows of a texture may be this long, so that two of them fit into a scratch buffer. The longest rows
/// of any adapter fit: 32768 texels of 16 bytes.
const LONGEST_ROW: u64 = CHUNK / 2;

/// Texels of one mip level: all of its layers, some of them, or a rectangle of one. Its bytes are those
/// of its rows, one after the other, through all layers. Columns and rows are those of blocks, which are
/// single texels where the format is not compressed.
#[derive(Clone, Copy)]
pub(crate) struct Window<'a> {
    pub(crate) texture: &'a wgpu::Texture,
    mip_level: u32,
    pub(crate) block: Block,
    /// Column, row and layer of the first block.
    origin: [u32; 3],
    /// Columns, rows and layers.
    pub(crate) size: [u32; 3],
}

/// The smallest unit that wgpu copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pub(crate) bytes: u64,
    /// In texels.
    width: u32,
    height: u32,
}

/// Blocks that one command copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) texture: wgpu::Texture,
    mip_level: u32,
    origin: wgpu::Origin3d,
    pub(crate) extent: wgpu::Extent3d,
}

/// A part of a window that one command can copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rect {
    /// The first byte of it within the window.
    pub(crate) at: u64,
    /// Column, row and layer within the window.
    origin: [u32; 3],
    /// Columns, rows and layers. More than one row are whole rows, more than one layer whole layers.
    pub(crate) size: [u32; 3],
}

impl<'a> Window<'a> {
    /// The window of a whole mip level.
    ///
    /// # Errors
    /// The reason why wgpu cannot copy texels of this texture one by one.
    pub(crate) fn of_level(
        texture: &'a wgpu::Texture,
        mip_level: u32,
    ) -> Result<Window<'a>, String> {
        let format = texture.format();
        if texture.sample_count() != 1 {
            return Err(format!(
                "the texture has {} samples for each texel, and wgpu copies those of 1",
                texture.sample_count()
            ));
        }
        if mip_level >= texture.mip_level_count() {
            return Err(format!(
                "mip level {mip_level} is not one of its {}",
                texture.mip_level_count()
            ));
        }
        if format.is_depth_stencil_format() {
            return Err(format!("wgpu copies no part of a level of {format:?}"));
        }
        let Some(bytes) = format.block_copy_size(None) else {
            return Err(format!("wgpu copies no texels of {format:?}"));
        };
        let (width, height) = format.block_dimensions();
        let level = texture
            .size()
            .mip_level_size(mip_level, texture.dimension());
        let all = level.physical_size(format);
        let window = Window {
            texture,
            mip_level,
            block: Block {
                bytes: bytes.into(),
                width,
                height,
            },
            origin: [0; 3],
            size: [
                all.width / width,
                all.height / height,
                all.depth_or_array_layers,
            ],
        };
        match window.row_bytes() {
            row if row > LONGEST_ROW => Err(format!(
                "its rows have {row} bytes, and {LONGEST_ROW} is the most"
            )),
            _ => Ok(window),
        }
    }

    /// Some of its layers.
    pub(crate) fn of_layers(mut self, layers: Range<u32>) -> Window<'a> {
        self.origin[2] += layers.start;
        self.size[2] = layers.end - layers.start;
        self
    }

    /// `rows` rows of `len` bytes each, one below the other, the first of which begins at `offset`.
    /// `None` if those are not whole blocks, or lie neither in one layer nor in whole columns of
    /// several.
    pub(crate) fn rectangle(&self, offset: u64, len: u64, rows: u64) -> Option<Window<'a>> {
        let column = offset % self.row_bytes();
        let is_whole = (column | len).is_multiple_of(self.block.bytes);
        if !is_whole || column + len > self.row_bytes() {
            return None;
        }
        let [x, y, z] = place_of(offset, self.block.bytes, [self.size[0], self.size[1]]);
        let height = u64::from(self.size[1]);
        let (rows, layers) = match y {
            y if u64::from(y) + rows <= height => (rows, 1),
            0 if rows.is_multiple_of(height) => (height, rows / height),
            _ => return None,
        };
        let [left, top, front] = self.origin;
        Some(Window {
            origin: [left + x, top + y, front + z],
            size: [(len / self.block.bytes) as u32, rows as u32, layers as u32],
            ..*self
        })
    }

    pub(crate) fn row_bytes(&self) -> u64 {
        u64::from(self.size[0]) * self.block.bytes
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.row_bytes() * u64::from(self.size[1]) * u64::from(self.size[2])
    }

    /// The position of its first byte among those of all levels of the texture.
    pub(crate) fn position(&self) -> u64 {
        let levels = (0..self.mip_level).filter_map(|level| {
            let all = Window::of_level(self.texture, level).ok()?;
            Some(all.len_bytes())
        });
        let layer = self.row_bytes() * u64::from(self.size[1]);
        levels.sum::<u64>() + layer * u64::from(self.origin[2])
    }

    /// Whether the texture was created without `COPY_SRC`.
    pub(crate) fn is_unreadable(&self) -> bool {
        let usage = self.texture.usage();
        !usage.contains(wgpu::TextureUsages::COPY_SRC)
    }

    /// Whether both may share bytes.
    pub(crate) fn is_beside(&self, other: &Window<'_>) -> bool {
        self.texture == other.texture && self.mip_level == other.mip_level
    }

    /// Whether texels of one can be copied to the other as they are.
    pub(crate) fn is_like(&self, other: &Window<'_>) -> bool {
        let plain = |window: &Window<'_>| window.texture.format().remove_srgb_suffix();
        plain(self) == plain(other) && self.texture.dimension() == other.texture.dimension()
    }

    /// The bytes from the first block that holds some of `range` to the last.
    pub(crate) fn around(&self, range: &Range<u64>) -> Range<u64> {
        let block = self.block.bytes;
        range.start / block * block..range.end.next_multiple_of(block)
    }

    /// `range`, whole blocks, as parts that one command copies each, at most five; with `singly` as
    /// single rows.
    pub(crate) fn rects(
        &self,
        range: Range<u64>,
        singly: bool,
    ) -> impl Iterator<Item = Rect> + use<> {
        let (block, row) = (self.block, self.row_bytes());
        let [width, height, _] = self.size;
        let mut at = range.start;
        std::iter::from_fn(move || {
            let left = range.end.checked_sub(at).filter(|left| *left > 0)?;
            let column = at % row;
            let origin = place_of(at, block.bytes, [width, height]);
            let size = if column > 0 || left < row {
                [((row - column).min(left) / block.bytes) as u32, 1, 1]
            } else if singly {
                [width, 1, 1]
            } else {
                let rows = left / row;
                match origin[1] {
                    0 if rows >= height.into() => {
                        [width, height, (rows / u64::from(height)) as u32]
                    }
                    y => [width, rows.min(u64::from(height - y)) as u32, 1],
                }
            };
            let rect = Rect { at, origin, size };
            at += rect.bytes(block);
            Some(rect)
        })
    }

    /// The arguments of a command for a part.
    pub(crate) fn place(&self, rect: &Rect) -> Place {
        let block = self.block;
        let at = |axis: usize| self.origin[axis] + rect.origin[axis];
        Place {
            texture: self.texture.clone(),
            mip_level: self.mip_level,
            origin: wgpu::Origin3d {
                x: at(0) * block.width,
                y: at(1) * block.height,
                z: at(2),
            },
            extent: wgpu::Extent3d {
                width: rect.size[0] * block.width,
                height: rect.size[1] * block.height,
                depth_or_array_layers: rect.size[2],
            },
        }
    }

    /// Records a command that copies no texel, so that wgpu validates the texture.
    pub(crate) fn copy_nothing(&self, encoder: &mut wgpu::CommandEncoder, device: &wgpu::Device) {
        let copied = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("transload probe"),
            size: 16,
            usage: copied,
            mapped_at_creation: false,
        });
        let rect = Rect {
            at: 0,
            origin: [0; 3],
            size: [0; 3],
        };
        let place = self.place(&rect);
        let nothing = wgpu::TexelCopyBufferInfo {
            buffer: &buffer,
            layout: wgpu::TexelCopyBufferLayout::default(),
        };
        match self.texture.usage().contains(wgpu::TextureUsages::COPY_SRC) {
            true => encoder.copy_texture_to_buffer(place.info(), nothing, place.extent),
            false => encoder.copy_buffer_to_texture(nothing, place.info(), place.extent),
        }
    }
}

/// Column, row and layer of the block at `offset`.
fn place_of(offset: u64, block: u64, [columns, rows]: [u32; 2]) -> [u32; 3] {
    let blocks = offset / block;
    let (row, column) = (blocks / u64::from(columns), blocks % u64::from(columns));
    let (layer, row) = (row / u64::from(rows), row % u64::from(rows));
    // Each is at most the texture's own size, so it fits.
    [column as u32, row as u32, layer as u32]
}

impl Rect {
    pub(crate) fn bytes(&self, block: Block) -> u64 {
        let [columns, rows, layers] = self.size.map(u64::from);
        columns * rows * layers * block.bytes
    }

    /// Rows through all layers.
    pub(crate) fn rows(&self) -> u64 {
        u64::from(self.size[1]) * u64::from(self.size[2])
    }
}

impl Place {
    pub(crate) fn info(&self) -> wgpu::TexelCopyTextureInfo<'_> {
        wgpu::TexelCopyTextureInfo {
            texture: &self.texture,
            mip_level: self.mip_level,
            origin: self.origin,
            aspect: wgpu::TextureAspect::All,
        }
    }
}
