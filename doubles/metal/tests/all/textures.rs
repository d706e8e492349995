//! Rows of texels, between buffers and textures.

use crate::common;

use common::*;
use objc2::rc::Retained;
use objc2_metal::{
    MTLBlitCommandEncoder as _, MTLBuffer as _, MTLCommandBuffer as _, MTLCommandBufferStatus,
    MTLDevice as _, MTLOrigin, MTLPixelFormat, MTLRegion, MTLResource as _, MTLSize,
    MTLStorageMode, MTLTexture as _, MTLTextureDescriptor, MTLTextureType,
};
use transload_metal_double::{Misuse, counters};

const START: MTLOrigin = MTLOrigin { x: 0, y: 0, z: 0 };

fn size(width: usize, height: usize, depth: usize) -> MTLSize {
    MTLSize {
        width,
        height,
        depth,
    }
}

fn described(
    format: MTLPixelFormat,
    width: usize,
    height: usize,
    mode: MTLStorageMode,
) -> Retained<MTLTextureDescriptor> {
    // SAFETY: the sizes are small, and not zero.
    let descriptor = unsafe {
        MTLTextureDescriptor::texture2DDescriptorWithPixelFormat_width_height_mipmapped(
            format, width, height, false,
        )
    };
    descriptor.setStorageMode(mode);
    descriptor
}

/// Rows of a buffer, `row` bytes apart and `image` bytes from image to image.
#[derive(Clone, Copy)]
struct Rows<'a> {
    buffer: &'a Buffer,
    offset: usize,
    row: usize,
    image: usize,
}

fn to_texture(
    encoder: &Encoder,
    from: Rows<'_>,
    texture: &Texture,
    origin: MTLOrigin,
    size: MTLSize,
) {
    // SAFETY: the double looks at ranges itself, and the tests keep both.
    unsafe {
        encoder.copyFromBuffer_sourceOffset_sourceBytesPerRow_sourceBytesPerImage_sourceSize_toTexture_destinationSlice_destinationLevel_destinationOrigin(
            from.buffer, from.offset, from.row, from.image, size, texture, 0, 0, origin,
        );
    }
}

fn from_texture(
    encoder: &Encoder,
    texture: &Texture,
    origin: MTLOrigin,
    size: MTLSize,
    to: Rows<'_>,
) {
    // SAFETY: as above.
    unsafe {
        encoder.copyFromTexture_sourceSlice_sourceLevel_sourceOrigin_sourceSize_toBuffer_destinationOffset_destinationBytesPerRow_destinationBytesPerImage(
            texture, 0, 0, origin, size, to.buffer, to.offset, to.row, to.image,
        );
    }
}

#[test]
fn rows_with_gaps_go_through_a_texture_and_back() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let descriptor = described(MTLPixelFormat::R8Uint, 10, 6, MTLStorageMode::Private);
        let texture = device.newTextureWithDescriptor(&descriptor).unwrap();
        assert_eq!(
            (texture.width(), texture.height(), texture.depth()),
            (10, 6, 1)
        );
        let (from, to) = (buffer(&device, 200, SHARED), buffer(&device, 200, SHARED));
        write(&from, &pattern(200));
        run(&queue, |encoder| {
            // Five bytes of four rows, 17 apart, from byte 3 on.
            let rows = Rows {
                buffer: &from,
                offset: 3,
                row: 17,
                image: 0,
            };
            to_texture(
                encoder,
                rows,
                &texture,
                MTLOrigin { x: 2, y: 1, z: 0 },
                size(5, 4, 1),
            );
            let rows = Rows {
                buffer: &to,
                offset: 1,
                row: 11,
                image: 0,
            };
            from_texture(
                encoder,
                &texture,
                MTLOrigin { x: 2, y: 1, z: 0 },
                size(5, 4, 1),
                rows,
            );
        });
        let mut expected = vec![0; 200];
        for row in 0..4 {
            for column in 0..5 {
                expected[1 + row * 11 + column] = pattern(200)[3 + row * 17 + column];
            }
        }
        assert_eq!(read(&to), expected);
        let done = counters();
        assert_eq!(
            (
                done.copies_to_texture,
                done.copies_from_texture,
                done.copies
            ),
            (1, 1, 0)
        );
    });
}

#[test]
fn images_of_a_3d_texture_lie_one_behind_the_other() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let descriptor = described(MTLPixelFormat::RGBA8Uint, 4, 3, MTLStorageMode::Private);
        descriptor.setTextureType(MTLTextureType::Type3D);
        // SAFETY: the depth is small, and not zero.
        unsafe { descriptor.setDepth(2) };
        let texture = device.newTextureWithDescriptor(&descriptor).unwrap();
        let (from, to) = (buffer(&device, 96, SHARED), buffer(&device, 256, SHARED));
        write(&from, &pattern(96));
        run(&queue, |encoder| {
            let rows = Rows {
                buffer: &from,
                offset: 0,
                row: 16,
                image: 48,
            };
            to_texture(encoder, rows, &texture, START, size(4, 3, 2));
            let rows = Rows {
                buffer: &to,
                offset: 0,
                row: 16,
                image: 128,
            };
            from_texture(encoder, &texture, START, size(4, 3, 2), rows);
        });
        assert_eq!(read(&to)[..48], pattern(96)[..48]);
        assert_eq!(read(&to)[128..176], pattern(96)[48..]);
    });
}

#[test]
fn a_view_of_a_buffer_shows_its_bytes_in_place() {
    clean(|| {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let (from, to) = (buffer(&device, 256, SHARED), buffer(&device, 256, SHARED));
        write(&from, &pattern(256));
        let alignment = device.minimumLinearTextureAlignmentForPixelFormat(MTLPixelFormat::R8Uint);
        let descriptor = described(MTLPixelFormat::R8Uint, 5, 3, MTLStorageMode::Shared);
        let view = to
            .newTextureWithDescriptor_offset_bytesPerRow(&descriptor, alignment, 2 * alignment)
            .unwrap();
        assert_eq!(view.buffer().map(|parent| parent.length()), Some(256));
        run(&queue, |encoder| {
            let rows = Rows {
                buffer: &from,
                offset: 1,
                row: 7,
                image: 0,
            };
            to_texture(encoder, rows, &view, START, size(5, 3, 1));
        });
        let mut expected = vec![0; 256];
        for row in 0..3 {
            let at = alignment + row * 2 * alignment;
            expected[at..at + 5].copy_from_slice(&pattern(256)[1 + row * 7..][..5]);
        }
        assert_eq!(read(&to), expected);
    });
    misuses(Misuse::Misaligned, || {
        let to = buffer(&device(), 256, SHARED);
        let descriptor = described(MTLPixelFormat::R8Uint, 5, 3, MTLStorageMode::Shared);
        assert!(
            to.newTextureWithDescriptor_offset_bytesPerRow(&descriptor, 1, 16)
                .is_none()
        );
    });
}

#[test]
fn the_host_reads_and_writes_texels_of_a_shared_texture() {
    clean(|| {
        let device = device();
        let descriptor = described(MTLPixelFormat::R8Uint, 4, 4, MTLStorageMode::Shared);
        let texture = device.newTextureWithDescriptor(&descriptor).unwrap();
        assert_eq!(texture.storageMode(), MTLStorageMode::Shared);
        let region = MTLRegion {
            origin: MTLOrigin { x: 1, y: 1, z: 0 },
            size: size(2, 2, 1),
        };
        let bytes = [1_u8, 2, 0, 3, 4];
        let mut back = [0_u8; 4];
        // SAFETY: both arrays have two rows of two bytes, three and two apart.
        unsafe {
            let bytes = std::ptr::NonNull::from(&bytes).cast();
            texture.replaceRegion_mipmapLevel_withBytes_bytesPerRow(region, 0, bytes, 3);
        }
        // SAFETY: as above.
        unsafe {
            let back = std::ptr::NonNull::from(&mut back).cast();
            texture.getBytes_bytesPerRow_fromRegion_mipmapLevel(back, 2, region, 0);
        }
        assert_eq!(back, [1, 2, 3, 4]);
    });
}

#[test]
fn regions_outside_a_texture_are_seen() {
    for (origin, extent) in [((7, 0), (4, 1)), ((0, 5), (1, 2)), ((0, 0), (11, 1))] {
        misuses(Misuse::OutOfBounds, || {
            let device = device();
            let queue = device.newCommandQueue().unwrap();
            let descriptor = described(MTLPixelFormat::R8Uint, 10, 6, MTLStorageMode::Private);
            let texture = device.newTextureWithDescriptor(&descriptor).unwrap();
            let from = buffer(&device, 200, SHARED);
            let commands = run(&queue, |encoder| {
                let rows = Rows {
                    buffer: &from,
                    offset: 0,
                    row: 16,
                    image: 0,
                };
                let origin = MTLOrigin {
                    x: origin.0,
                    y: origin.1,
                    z: 0,
                };
                to_texture(encoder, rows, &texture, origin, size(extent.0, extent.1, 1));
            });
            assert_eq!(commands.status(), MTLCommandBufferStatus::Error);
        });
    }
}

#[test]
fn rows_outside_a_buffer_are_seen() {
    misuses(Misuse::OutOfBounds, || {
        let device = device();
        let queue = device.newCommandQueue().unwrap();
        let descriptor = described(MTLPixelFormat::R8Uint, 10, 6, MTLStorageMode::Private);
        let texture = device.newTextureWithDescriptor(&descriptor).unwrap();
        let to = buffer(&device, 59, SHARED);
        run(&queue, |encoder| {
            let rows = Rows {
                buffer: &to,
                offset: 0,
                row: 10,
                image: 0,
            };
            from_texture(encoder, &texture, START, size(10, 6, 1), rows);
        });
    });
}

#[test]
fn what_is_not_modelled_is_nil_and_told() {
    misuses(Misuse::NotModelled, || {
        let descriptor = described(MTLPixelFormat::BC1_RGBA, 16, 16, MTLStorageMode::Private);
        assert!(device().newTextureWithDescriptor(&descriptor).is_none());
    });
}
