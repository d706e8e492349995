//! Copies of texels work like copies of bytes: whole, in part, at any offset.

use transload::{Buffer, Region, Shape};
use wasm_bindgen_test::wasm_bindgen_test;
use wgpu::TextureFormat as Format;

use crate::page::{Page, device, part, pattern};

/// Format, width, height, layers or depth, and whether the last number is a depth.
type Frame = (Format, u32, u32, u32, bool);

/// Rows of partial words, of whole words, of 256 bytes and of more; blocks of 1 to 16 bytes; layers; depth.
const FRAMES: [Frame; 10] = [
    (Format::R8Unorm, 13, 7, 1, false),
    (Format::R8Unorm, 1, 40, 1, false),
    (Format::R8Unorm, 256, 5, 1, false),
    (Format::Rg8Unorm, 5, 9, 1, false),
    (Format::Rgba8Unorm, 67, 11, 1, false),
    (Format::Rgba8Unorm, 1919, 108, 1, false),
    (Format::Rgba32Float, 17, 4, 1, false),
    (Format::R8Unorm, 7, 3, 4, false),
    (Format::Rgba8Unorm, 5, 4, 6, true),
    (Format::R8Unorm, 256, 2, 3, true),
];

fn texture(page: &Page, frame: Frame, usage: wgpu::TextureUsages) -> wgpu::Texture {
    let (format, width, height, depth_or_array_layers, is_solid) = frame;
    page.device.create_texture(&wgpu::TextureDescriptor {
        label: None,
        size: wgpu::Extent3d {
            width,
            height,
            depth_or_array_layers,
        },
        mip_level_count: 1,
        sample_count: 1,
        dimension: if is_solid {
            wgpu::TextureDimension::D3
        } else {
            wgpu::TextureDimension::D2
        },
        format,
        usage,
        view_formats: &[],
    })
}

const COPIED: wgpu::TextureUsages =
    wgpu::TextureUsages::COPY_SRC.union(wgpu::TextureUsages::COPY_DST);

fn row_bytes(frame: Frame) -> u32 {
    frame.0.block_copy_size(None).unwrap() * frame.1
}

/// Writes all texels as in wgpu's tutorials.
fn set(page: &Page, of: &wgpu::Texture, frame: Frame, bytes: &[u8]) {
    let layout = wgpu::TexelCopyBufferLayout {
        offset: 0,
        bytes_per_row: Some(row_bytes(frame)),
        rows_per_image: Some(frame.2),
    };
    page.queue
        .write_texture(of.as_image_copy(), bytes, layout, of.size());
}

/// Reads all texels: copies rows at a pitch of 256 bytes into a buffer, and takes the rows from it.
async fn get(page: &Page, of: &wgpu::Texture, frame: Frame) -> Vec<u8> {
    let row = row_bytes(frame);
    let pitch = row.next_multiple_of(wgpu::COPY_BYTES_PER_ROW_ALIGNMENT);
    let rows = frame.2 * frame.3;
    let padded = page.on_device(u64::from(pitch * rows));
    let mut encoder = page.device.create_command_encoder(&Default::default());
    encoder.copy_texture_to_buffer(
        of.as_image_copy(),
        wgpu::TexelCopyBufferInfo {
            buffer: padded.native().unwrap(),
            layout: wgpu::TexelCopyBufferLayout {
                offset: 0,
                bytes_per_row: Some(pitch),
                rows_per_image: Some(frame.2),
            },
        },
        of.size(),
    );
    page.queue.submit([encoder.finish()]);
    let bytes = page.look(&padded).await;
    let of_row = |number: u32| &bytes[(number * pitch) as usize..][..row as usize];
    (0..rows).flat_map(of_row).copied().collect()
}

/// Through the host and through a buffer of the device.
#[wasm_bindgen_test]
async fn whole_textures_go_there_and_back() {
    let page = Page::with(device().await);
    for frame in FRAMES {
        let mine = texture(&page, frame, COPIED);
        let adopted = page.adopt_native(mine.clone());
        let len = adopted.len();
        let sent = pattern(len, 1);
        page.manager
            .copy(page.adopt(&sent), &adopted)
            .await
            .unwrap();
        assert!(get(&page, &mine, frame).await == sent, "there: {frame:?}");
        let other = pattern(len, 2);
        page.manager
            .copy(page.holding(&other), &adopted)
            .await
            .unwrap();
        assert!(get(&page, &mine, frame).await == other, "on: {frame:?}");
        set(&page, &mine, frame, &sent);
        let back = page.adopt(&vec![0xA5; len as usize]);
        page.manager.copy(&adopted, &back).await.unwrap();
        assert!(*back.read().unwrap() == *sent, "back: {frame:?}");
        let aside = page.holding(&vec![0xA5; len as usize]);
        page.manager.copy(&adopted, &aside).await.unwrap();
        assert!(page.look(&aside).await == sent, "aside: {frame:?}");
    }
}

/// Parts that begin and end inside rows and inside texels.
#[wasm_bindgen_test]
async fn parts_of_textures_leave_the_rest_alone() {
    let page = Page::with(device().await);
    for frame in FRAMES {
        let mine = texture(&page, frame, COPIED);
        let adopted = page.adopt_native(mine.clone());
        let len = adopted.len();
        let source = pattern(len, 4);
        let here = page.adopt(&source);
        for (at, count) in [
            (0, 1),
            (1, 3),
            (len / 3 + 1, len / 2),
            (len - 1, 1),
            (3, len - 5),
        ] {
            let mut model = pattern(len, 3);
            set(&page, &mine, frame, &model);
            let from = len - at - count;
            page.manager
                .copy(part(&here, from, count), part(&adopted, at, count))
                .await
                .unwrap();
            model[at as usize..(at + count) as usize]
                .copy_from_slice(&source[from as usize..(from + count) as usize]);
            let found = get(&page, &mine, frame).await;
            assert!(found == model, "{count} bytes to {at} of {frame:?}");
            let back = page.adopt(&vec![0xA5; len as usize]);
            page.manager
                .copy(part(&adopted, at, count), part(&back, from, count))
                .await
                .unwrap();
            let mut wanted = vec![0xA5; len as usize];
            wanted[from as usize..(from + count) as usize]
                .copy_from_slice(&model[at as usize..(at + count) as usize]);
            assert!(
                *back.read().unwrap() == *wanted,
                "{count} bytes from {at} of {frame:?}"
            );
        }
    }
}

fn rectangle(of: &Buffer, at: u64, width: u64, height: u64, pitch: u64) -> Region {
    Region::new(of, at, Shape::pitched(width, height, pitch).unwrap()).unwrap()
}

#[wasm_bindgen_test]
async fn a_rectangle_of_texels_is_a_pitched_region() {
    let page = Page::with(device().await);
    let frame = (Format::Rgba8Unorm, 67, 31, 1, false);
    let mine = texture(&page, frame, COPIED);
    let adopted = page.adopt_native(mine.clone());
    let pitch = u64::from(row_bytes(frame));
    let (width, height, at) = (21 * 4, 17, 5 * pitch + 3 * 4);
    let mut model = pattern(adopted.len(), 1);
    set(&page, &mine, frame, &model);
    let sent = pattern(width * height, 2);
    let onto = rectangle(&adopted, at, width, height, pitch);
    page.manager.copy(page.adopt(&sent), onto).await.unwrap();
    for row in 0..height {
        let to = (at + row * pitch) as usize;
        let bytes = &sent[(row * width) as usize..][..width as usize];
        model[to..to + width as usize].copy_from_slice(bytes);
    }
    assert!(get(&page, &mine, frame).await == model);
    let back = page.adopt(&vec![0; (width * height) as usize]);
    let from = rectangle(&adopted, at, width, height, pitch);
    page.manager.copy(from, &back).await.unwrap();
    assert!(*back.read().unwrap() == *sent);
}

#[wasm_bindgen_test]
async fn a_texture_that_cannot_be_read_takes_whole_texels_alone() {
    use transload::hal::ErrorClass;
    let page = Page::with(device().await);
    let frame = (Format::Rgba8Unorm, 8, 8, 1, false);
    let adopted = page.adopt_native(texture(&page, frame, wgpu::TextureUsages::COPY_DST));
    let here = page.adopt(&pattern(256, 1));
    page.manager.copy(&here, &adopted).await.unwrap();
    page.manager
        .copy(part(&here, 0, 8), part(&adopted, 4, 8))
        .await
        .unwrap();
    let cut = page.manager.copy(part(&here, 0, 7), part(&adopted, 4, 7));
    assert_eq!(cut.await.unwrap_err().class(), ErrorClass::Caller);
    let read = page.manager.copy(&adopted, &here).await.unwrap_err();
    assert_eq!(read.class(), ErrorClass::Caller, "{read}");
}
