//! Texels of the program's textures take part in transfers.

use crate::common;

use common::engine::{allocate, during, manager, odd, paged, read};
use common::{FIRST, User, assert_clean, pattern};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBuffer as _, MTLDevice as _, MTLPixelFormat, MTLStorageMode, MTLTexture,
    MTLTextureDescriptor, MTLTextureType,
};
use transload::hal::{Backend as _, ErrorClass, External, Op, Part};
use transload::{Buffer, Method, Region, Shape, TransferManager};
use transload_metal::{Metal, MetalTexture};
use transload_metal_double::Device;

const WIDTH: usize = 300;
/// A smaller texture would be staged: to wrap host memory takes longer than the host's copy of it.
const HEIGHT: usize = 1000;
const LEN: usize = WIDTH * HEIGHT * 4;

/// A user's own texture, with its surroundings.
fn texture(
    manager: &TransferManager,
    format: MTLPixelFormat,
    change: impl FnOnce(&MTLTextureDescriptor),
) -> Retained<ProtocolObject<dyn MTLTexture>> {
    let metal = manager.backend::<Metal>().unwrap();
    let user = User::new(&metal, FIRST);
    autoreleasepool(|_| {
        // SAFETY: the format is one that every device has.
        let descriptor = unsafe {
            MTLTextureDescriptor::texture2DDescriptorWithPixelFormat_width_height_mipmapped(
                format, WIDTH, HEIGHT, false,
            )
        };
        descriptor.setStorageMode(MTLStorageMode::Private);
        change(&descriptor);
        user.device.newTextureWithDescriptor(&descriptor).unwrap()
    })
}

fn adopt(
    manager: &TransferManager,
    texture: Retained<ProtocolObject<dyn MTLTexture>>,
) -> Result<Buffer, transload::Error> {
    let object = External::Object(Box::new(MetalTexture::new(texture)));
    // SAFETY: nothing else uses it.
    unsafe { manager.import("metal:0/device".parse().unwrap(), object) }
}

fn texels(manager: &TransferManager, format: MTLPixelFormat) -> Buffer {
    adopt(manager, texture(manager, format, |_| {})).unwrap()
}

fn end(manager: TransferManager) {
    drop(manager);
    assert_clean();
}

#[test]
fn texels_are_bytes_row_after_row() {
    let manager = manager(vec![Device::unified()]);
    let texels = texels(&manager, MTLPixelFormat::RGBA8Unorm);
    assert_eq!(texels.len(), LEN as u64);
    let bytes = pattern(LEN);
    for host in [odd(&manager, &bytes), paged(&manager, &bytes)] {
        manager.copy(&host, &texels).wait().unwrap();
        assert_eq!(read(&manager, &texels), bytes);
    }
    // From where it was sent last the device reads in place, all rows at once.
    let host = paged(&manager, &bytes);
    let counted = during(|| {
        let report = manager.copy(&host, &texels).wait().unwrap();
        assert_eq!(report.method(), Method::ZeroCopy);
    });
    assert_eq!((counted.copies, counted.copies_to_texture), (0, 1));
    // A range of them, from one row into another.
    let (from, len) = (4 * (WIDTH as u64 + 7), 4 * 5 * WIDTH as u64);
    let some = allocate(&manager, "metal:0/mapped", len as usize);
    let counted = during(|| {
        manager
            .copy(texels.slice(from..from + len).unwrap(), &some)
            .wait()
            .unwrap();
    });
    assert_eq!(counted.copies_from_texture, 3);
    let inside = from as usize..(from + len) as usize;
    assert_eq!(read(&manager, &some), bytes[inside]);
    drop((host, texels, some));
    end(manager);
}

#[test]
fn a_rectangle_of_texels_is_a_pitched_region() {
    let manager = manager(vec![Device::unified()]);
    let texels = texels(&manager, MTLPixelFormat::RGBA8Unorm);
    let bytes = pattern(LEN);
    manager.copy_from_slice(&bytes, &texels).unwrap();
    let (x, y, width, height) = (10, 20, 33, 44);
    let first = 4 * (y * WIDTH + x) as u64;
    let shape = Shape::pitched(4 * width as u64, height as u64, 4 * WIDTH as u64).unwrap();
    let rectangle = Region::new(&texels, first, shape).unwrap();
    let packed = allocate(&manager, "metal:0/mapped", 4 * width * height);
    manager.copy(rectangle.clone(), &packed).wait().unwrap();
    let row = |row: usize| &bytes[4 * ((y + row) * WIDTH + x)..][..4 * width];
    let wanted: Vec<u8> = (0..height).flat_map(row).copied().collect();
    assert_eq!(read(&manager, &packed), wanted);
    let inverse: Vec<u8> = wanted.iter().map(|byte| !byte).collect();
    manager.copy_from_slice(&inverse, &packed).unwrap();
    manager.copy(&packed, rectangle).wait().unwrap();
    let mut whole = bytes.clone();
    for at in 0..height {
        let from = 4 * ((y + at) * WIDTH + x);
        whole[from..from + 4 * width].copy_from_slice(&inverse[4 * width * at..][..4 * width]);
    }
    assert_eq!(read(&manager, &texels), whole);
    drop((texels, packed));
    end(manager);
}

#[test]
fn one_texture_is_copied_to_another_and_to_bytes_at_any_offset() {
    let manager = manager(vec![Device::discrete()]);
    let one = texels(&manager, MTLPixelFormat::RGBA8Unorm);
    let other = texels(&manager, MTLPixelFormat::R32Float);
    let bytes = pattern(LEN);
    manager.copy_from_slice(&bytes, &one).unwrap();
    manager.copy(&one, &other).wait().unwrap();
    assert_eq!(read(&manager, &other), bytes);
    let device = allocate(&manager, "metal:0/device", LEN + 3);
    let odd = device.slice(3..LEN as u64 + 3).unwrap();
    manager.copy(&other, &odd).wait().unwrap();
    assert_eq!(read(&manager, &odd), bytes);
    let back = texels(&manager, MTLPixelFormat::BGRA8Unorm);
    manager.copy(&odd, &back).wait().unwrap();
    assert_eq!(read(&manager, &back), bytes);
    drop((one, other, device, odd, back));
    end(manager);
}

#[test]
fn parts_of_texels_and_other_textures_are_refused() {
    let manager = manager(vec![Device::unified()]);
    let texels = texels(&manager, MTLPixelFormat::RGBA8Unorm);
    let mapped = allocate(&manager, "metal:0/mapped", 6);
    let part = texels.slice(4..10).unwrap();
    let error = manager.copy(&part, &mapped).wait().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unsupported);
    let whole = |buffer| Part {
        buffer,
        offset: 0,
        len_bytes: 6,
    };
    let op = Op::Copy {
        src: whole(part.raw()),
        dst: whole(mapped.raw()),
    };
    let metal = manager.backend::<Metal>().unwrap();
    // SAFETY: both buffers are alive, and nothing else uses them.
    let refused = unsafe { metal.submit(None, &[op], &[]) };
    let reason = refused.unwrap_err().to_string();
    assert!(reason.contains("no whole texels of 4 bytes"), "{reason}");
    drop((metal, part));
    let array = texture(&manager, MTLPixelFormat::RGBA8Unorm, |descriptor| {
        descriptor.setTextureType(MTLTextureType::Type2DArray);
    });
    let error = adopt(&manager, array).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller, "{error}");
    let told = "it is of MTLTextureType(3) with 1 samples a texel, and only MTLTextureType(2)";
    assert!(error.to_string().contains(told), "{error}");
    drop((texels, mapped));
    end(manager);
}

#[test]
fn texels_that_are_bytes_of_a_buffer_are_refused() {
    let manager = manager(vec![Device::unified()]);
    let metal = manager.backend::<Metal>().unwrap();
    let user = User::new(&metal, FIRST);
    autoreleasepool(|_| {
        // SAFETY: the format is one that every device has.
        let descriptor = unsafe {
            MTLTextureDescriptor::texture2DDescriptorWithPixelFormat_width_height_mipmapped(
                MTLPixelFormat::R8Uint,
                256,
                16,
                false,
            )
        };
        let buffer = user.buffer(256 * 16);
        descriptor.setStorageMode(MTLStorageMode::Shared);
        let view = buffer.newTextureWithDescriptor_offset_bytesPerRow(&descriptor, 0, 256);
        let error = adopt(&manager, view.unwrap()).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Caller, "{error}");
        assert!(error.to_string().contains("bytes of a buffer"), "{error}");
    });
    drop((user, metal));
    end(manager);
}
