//! Copies of texels work like copies of bytes: whole, in part, as rectangles, at any offset.
#![cfg(not(transload_local))]

mod common;

use common::gallery::{COPIED, Frame, Gallery, array, flat, solid};
use common::{Numbers, adapters, fill, opened_with, part, pattern, read, run, skip};
use transload_hal::{
    AllocSpec, Backend, Buffer, ErrorClass, External, Layout, MemoryKind, Op, Outcome, Shape, Span,
};
use transload_wgpu::Texels;
use wgpu::TextureFormat as Format;

/// Rows of partial words, of whole words, of 256 bytes and of more; blocks of 1 to 16 bytes; layers; depth.
const SMALL: [Frame; 12] = [
    flat(Format::R8Unorm, 13, 7),
    flat(Format::R8Unorm, 1, 40),
    flat(Format::R8Unorm, 256, 5),
    flat(Format::Rg8Unorm, 5, 9),
    flat(Format::Rgba8Unorm, 67, 11),
    flat(Format::Rgba8Unorm, 64, 5),
    flat(Format::Rgba16Float, 3, 6),
    flat(Format::Rgba32Float, 17, 4),
    array(Format::R8Unorm, 7, 3, 4),
    array(Format::Rgba8Unorm, 128, 3, 3),
    solid(Format::Rgba8Unorm, 5, 4, 6),
    solid(Format::R8Unorm, 256, 2, 3),
];

fn copy(gallery: &Gallery, src: (&Buffer, u64), dst: (&Buffer, u64), len: u64) {
    let (src, dst) = (part(src.0, src.1, len), part(dst.0, dst.1, len));
    run(&gallery.backend, &[Op::Copy { src, dst }]).unwrap();
}

fn all_done(gallery: &Gallery) {
    let heard = gallery.heard.0.lock().unwrap();
    let other = heard.iter().find(|outcome| **outcome != Outcome::Done);
    assert_eq!(other, None);
}

/// Copies a whole texture there and back, and each time reads it by wgpu's own commands too.
fn there_and_back(gallery: &Gallery, frame: &Frame) {
    let texture = gallery.texture(frame);
    let adopted = gallery.adopt(texture.clone());
    let sent = pattern(adopted.len(), 1);
    copy(
        gallery,
        (&gallery.sending(&sent), 0),
        (&adopted, 0),
        adopted.len(),
    );
    assert!(gallery.get(&texture, 0) == sent, "there: {frame:?}");
    let other = pattern(adopted.len(), 2);
    gallery.set(&texture, 0, &other);
    let slot = gallery.receiving(adopted.len());
    copy(gallery, (&adopted, 0), (&slot, 0), adopted.len());
    assert!(read(&slot, 0, slot.len()) == other, "back: {frame:?}");
    all_done(gallery);
}

#[test]
fn whole_textures_go_there_and_back() {
    let galleries = Gallery::all();
    if galleries.is_empty() {
        return skip("whole_textures: no Vulkan adapter is here");
    }
    let large = [
        flat(Format::R8Unorm, 1921, 1080),
        flat(Format::Rgba8Unorm, 1919, 1080),
        flat(Format::Rgba8Unorm, 1920, 1080),
        flat(Format::Rgba16Float, 333, 500),
        flat(Format::Rgba32Float, 401, 300),
        array(Format::R8Unorm, 301, 200, 40),
        solid(Format::Rgba8Unorm, 65, 64, 33),
    ];
    for gallery in &galleries {
        for frame in large.iter().chain(&SMALL) {
            there_and_back(gallery, frame);
        }
    }
}

#[test]
fn compressed_textures_are_copied_by_their_blocks() {
    let Some(opened) = opened_with(wgpu::Features::TEXTURE_COMPRESSION_BC) else {
        return skip("compressed_textures: no adapter has BC formats");
    };
    let gallery = Gallery::new(opened);
    for frame in [
        flat(Format::Bc1RgbaUnorm, 1920, 1080),
        flat(Format::Bc7RgbaUnorm, 36, 20),
        array(Format::Bc1RgbaUnorm, 44, 12, 3),
    ] {
        there_and_back(&gallery, &frame);
        any_range(&gallery, &frame, 30);
    }
}

/// Random ranges, in both directions, compared with a model of the bytes.
fn any_range(gallery: &Gallery, frame: &Frame, rounds: u64) {
    let texture = gallery.texture(frame);
    let adopted = gallery.adopt(texture.clone());
    let len = adopted.len();
    let mut model = pattern(len, 3);
    gallery.set(&texture, 0, &model);
    let mut numbers = Numbers(len);
    let source = pattern(len + 64, 4);
    let sending = gallery.sending(&source);
    let shuttle = gallery.buffer(len + 64);
    for round in 0..rounds {
        let at = numbers.below(len);
        let count = match round % 3 {
            0 => numbers.below(len - at) + 1,
            1 => len - at,
            _ => (numbers.below(9) + 1).min(len - at),
        };
        let lead = numbers.below(64);
        let (first, end) = (at as usize, (at + count) as usize);
        // To the texture, from a slot or a buffer.
        let src = match round % 2 {
            0 => &sending,
            _ => {
                copy(gallery, (&sending, 0), (&shuttle, 0), len + 64);
                &shuttle
            }
        };
        copy(gallery, (src, lead), (&adopted, at), count);
        let lead = lead as usize;
        model[first..end].copy_from_slice(&source[lead..lead + count as usize]);
        let found = gallery.get(&texture, 0);
        assert!(found == model, "{count} bytes to {at} of {frame:?}");
        // And from the texture, into poison.
        let at = numbers.below(len);
        let count = numbers.below(len - at) + 1;
        let to = numbers.below(64);
        let slot = gallery.receiving(len + 64);
        fill(&slot, 0, &vec![0xA5; slot.len() as usize]);
        match round % 2 {
            0 => copy(gallery, (&adopted, at), (&slot, to), count),
            _ => {
                let poison = gallery.sending(&vec![0xA5; slot.len() as usize]);
                copy(gallery, (&poison, 0), (&shuttle, 0), slot.len());
                copy(gallery, (&adopted, at), (&shuttle, to), count);
                copy(gallery, (&shuttle, 0), (&slot, 0), slot.len());
            }
        }
        let mut wanted = vec![0xA5; slot.len() as usize];
        let bytes = &model[at as usize..(at + count) as usize];
        wanted[to as usize..(to + count) as usize].copy_from_slice(bytes);
        let found = read(&slot, 0, slot.len());
        assert!(
            found == wanted,
            "{count} bytes from {at} of {frame:?} to {to}"
        );
    }
    all_done(gallery);
}

#[test]
fn any_range_of_texels_leaves_its_neighbours_alone() {
    let galleries = Gallery::all();
    if galleries.is_empty() {
        return skip("any_range_of_texels: no Vulkan adapter is here");
    }
    for gallery in &galleries {
        for frame in &SMALL {
            any_range(gallery, frame, 24);
        }
    }
}

#[test]
fn a_pitched_region_is_a_rectangle_of_the_texture() {
    let galleries = Gallery::all();
    if galleries.is_empty() {
        return skip("a_pitched_region: no Vulkan adapter is here");
    }
    for gallery in &galleries {
        for frame in &SMALL {
            let texture = gallery.texture(frame);
            let adopted = gallery.adopt(texture.clone());
            let layout = Texels::new(texture.clone()).layout().unwrap();
            let mut numbers = Numbers(adopted.len() + 1);
            for round in 0..8 {
                rectangle(
                    gallery,
                    &texture,
                    &adopted,
                    layout.row_bytes,
                    &mut numbers,
                    round,
                );
            }
        }
        all_done(gallery);
    }
}

/// A random rectangle, of whole texels in most rounds, copied from a slot and into another one, without gaps or at a
/// pitch.
fn rectangle(
    gallery: &Gallery,
    texture: &wgpu::Texture,
    adopted: &Buffer,
    row: u64,
    numbers: &mut Numbers,
    round: u64,
) {
    let block = match round {
        0 | 1 => 1,
        _ => u64::from(texture.format().block_copy_size(None).unwrap()),
    };
    let rows = numbers.below(adopted.len() / row) + 1;
    let top = numbers.below(adopted.len() / row - rows + 1);
    let width = (numbers.below(row / block) + 1) * block;
    let left = numbers.below((row - width) / block + 1) * block;
    let inside = Shape::pitched(width, rows, row).unwrap();
    let gap = match round % 2 {
        0 => 0,
        _ => numbers.below(40),
    };
    let outside = Shape::pitched(width, rows, width + gap).unwrap();
    let at = top * row + left;

    let mut model = pattern(adopted.len(), 5);
    gallery.set(texture, 0, &model);
    let source = pattern(outside.extent_bytes(), 6);
    let sending = gallery.sending(&source);
    let on_texture = Layout {
        buffer: adopted,
        offset: at,
        shape: inside,
    };
    let beside = |buffer| Layout {
        buffer,
        offset: 0,
        shape: outside,
    };
    // The range begins and ends somewhere in the payload.
    let payload = width * rows;
    let start = match round % 4 {
        0 | 1 => 0,
        _ => numbers.below(payload),
    };
    let span = Span::new(start, payload - start);
    let ops = [Op::Pitched {
        src: beside(&sending),
        dst: on_texture,
        span,
    }];
    run(&gallery.backend, &ops).unwrap();
    for byte in start..payload {
        let (y, x) = (byte / width, byte % width);
        model[(at + y * row + x) as usize] = source[(y * (width + gap) + x) as usize];
    }
    let found = gallery.get(texture, 0);
    assert!(found == model, "{width} × {rows} at {at}, from {start}");

    let slot = gallery.receiving(outside.extent_bytes() + 3);
    let mut wanted = vec![0x5A; slot.len() as usize];
    fill(&slot, 0, &wanted);
    let ops = [Op::Pitched {
        src: on_texture,
        dst: beside(&slot),
        span,
    }];
    run(&gallery.backend, &ops).unwrap();
    for byte in start..payload {
        let (y, x) = (byte / width, byte % width);
        wanted[(y * (width + gap) + x) as usize] = model[(at + y * row + x) as usize];
    }
    let found = read(&slot, 0, slot.len());
    assert!(
        found == wanted,
        "{width} × {rows} at {at} back, from {start}"
    );
}

#[test]
fn texels_go_from_texture_to_texture() {
    let galleries = Gallery::all();
    if galleries.is_empty() {
        return skip("texels_go_from_texture_to_texture: no Vulkan adapter is here");
    }
    for gallery in &galleries {
        for frame in &SMALL {
            for other in [frame, &SMALL[0], &SMALL[4], &SMALL[10]] {
                let [a, b] = [frame, other].map(|frame| gallery.texture(frame));
                let [from, to] = [&a, &b].map(|texture| gallery.adopt(texture.clone()));
                let sent = pattern(from.len(), 7);
                let mut model = pattern(to.len(), 8);
                gallery.set(&a, 0, &sent);
                gallery.set(&b, 0, &model);
                let mut numbers = Numbers(from.len() + to.len());
                let most = from.len().min(to.len());
                for _ in 0..6 {
                    let len = numbers.below(most) + 1;
                    let at = numbers.below(from.len() - len + 1);
                    let onto = numbers.below(to.len() - len + 1);
                    copy(gallery, (&from, at), (&to, onto), len);
                    let bytes = &sent[at as usize..(at + len) as usize];
                    model[onto as usize..(onto + len) as usize].copy_from_slice(bytes);
                    assert!(gallery.get(&b, 0) == model, "{frame:?} to {other:?}");
                }
                if from.len() == to.len() {
                    copy(gallery, (&from, 0), (&to, 0), to.len());
                    assert!(gallery.get(&b, 0) == sent, "{frame:?}");
                }
            }
        }
        all_done(gallery);
    }
}

#[test]
fn within_one_texture_ranges_may_overlap() {
    let galleries = Gallery::all();
    if galleries.is_empty() {
        return skip("within_one_texture: no Vulkan adapter is here");
    }
    for gallery in &galleries {
        for frame in [
            flat(Format::R8Unorm, 999, 2500),
            flat(Format::Rgba8Unorm, 1024, 700),
        ] {
            let texture = gallery.texture(&frame);
            let adopted = gallery.adopt(texture.clone());
            let mut model = pattern(adopted.len(), 9);
            gallery.set(&texture, 0, &model);
            let len = adopted.len() - 5000;
            for (from, to) in [(0, 3001), (4999, 77), (5000, 0), (0, 5000), (12, 13)] {
                copy(gallery, (&adopted, from), (&adopted, to), len);
                model.copy_within(from as usize..(from + len) as usize, to as usize);
                assert!(gallery.get(&texture, 0) == model, "{from} to {to}");
            }
        }
        all_done(gallery);
    }
}

#[test]
fn mip_levels_and_layers_are_buffers_of_their_own() {
    let galleries = Gallery::all();
    if galleries.is_empty() {
        return skip("mip_levels_and_layers: no Vulkan adapter is here");
    }
    for gallery in &galleries {
        let frame = Frame {
            mips: 4,
            ..array(Format::Rgba8Unorm, 45, 22, 5)
        };
        let texture = gallery.texture(&frame);
        let texels = Texels::new(texture.clone()).with_mip_level(2);
        let level = gallery.adopt(texels.clone());
        let layers = gallery.adopt(texels.clone().with_layers(1..3));
        assert_eq!(level.len(), 11 * 4 * 5 * 5);
        assert_eq!(layers.len(), 11 * 4 * 5 * 2);
        // Both lie in one storage, at their offsets.
        assert_eq!(level.storage_id(), layers.storage_id());
        assert_eq!(layers.position(), level.position() + 11 * 4 * 5);
        let largest = gallery.adopt(texture.clone());
        assert_eq!(largest.position(), 0);
        assert_eq!(level.position(), largest.len() + 22 * 4 * 11 * 5);
        assert!(level.native::<Texels>() == Some(&texels));

        let mut model = pattern(level.len(), 10);
        let untouched = pattern(largest.len(), 11);
        gallery.set(&texture, 0, &untouched);
        gallery.set(&texture, 2, &model);
        let sent = pattern(layers.len(), 12);
        copy(
            gallery,
            (&gallery.sending(&sent), 0),
            (&layers, 0),
            layers.len(),
        );
        let first = (layers.position() - level.position()) as usize;
        model[first..first + sent.len()].copy_from_slice(&sent);
        assert!(gallery.get(&texture, 2) == model);
        assert!(gallery.get(&texture, 0) == untouched);
        let slot = gallery.receiving(level.len());
        copy(gallery, (&level, 0), (&slot, 0), level.len());
        assert!(read(&slot, 0, slot.len()) == model);
        // A copy from a level to another one of the same texture.
        let len = level.len();
        copy(gallery, (&level, 0), (&largest, 9), len);
        let mut wanted = untouched;
        wanted[9..9 + len as usize].copy_from_slice(&model);
        assert!(gallery.get(&texture, 0) == wanted);
        all_done(gallery);
    }
}

#[test]
fn textures_that_cannot_be_copied_are_refused_by_what_they_lack() {
    let Some(gallery) = Gallery::all().into_iter().next() else {
        return skip("textures_that_cannot_be_copied: no Vulkan adapter is here");
    };
    let refused = |object: Texels, said: &str| {
        let error = gallery.try_adopt(object).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Caller, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    };
    let many = gallery.device.create_texture(&wgpu::TextureDescriptor {
        label: None,
        size: wgpu::Extent3d {
            width: 8,
            height: 8,
            depth_or_array_layers: 1,
        },
        mip_level_count: 1,
        sample_count: 4,
        dimension: wgpu::TextureDimension::D2,
        format: Format::Rgba8Unorm,
        usage: COPIED | wgpu::TextureUsages::RENDER_ATTACHMENT,
        view_formats: &[],
    });
    refused(Texels::new(many), "4 samples");
    let plain = flat(Format::Rgba8Unorm, 8, 8);
    let unused = gallery.texture(&Frame {
        usage: wgpu::TextureUsages::TEXTURE_BINDING,
        ..plain
    });
    refused(Texels::new(unused), "COPY_SRC");
    let depth = gallery.texture(&flat(Format::Depth24Plus, 8, 8));
    refused(Texels::new(depth), "Depth24Plus");
    let whole = gallery.texture(&flat(Format::Depth32Float, 8, 8));
    refused(Texels::new(whole), "Depth32Float");
    let texture = gallery.texture(&plain);
    let level = Texels::new(texture.clone()).with_mip_level(1);
    assert_eq!(level.layout(), None);
    refused(level, "mip level 1");
    refused(Texels::new(texture.clone()).with_layers(0..2), "0..2");
    refused(Texels::new(texture.clone()).with_layers(1..1), "1..1");
}

#[test]
fn a_texture_of_another_device_is_refused() {
    let adapters = adapters();
    let Some(adapter) = adapters.first() else {
        return skip("a_texture_of_another_device: no Vulkan adapter is here");
    };
    let [gallery, other] =
        [0, 1].map(|_| Gallery::new(transload_wgpu::open_device(adapter).unwrap()));
    for usage in [COPIED, wgpu::TextureUsages::COPY_DST] {
        let frame = Frame {
            usage,
            ..flat(Format::Rgba8Unorm, 8, 8)
        };
        let error = gallery.try_adopt(other.texture(&frame)).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Caller, "{error}");
        assert!(error.to_string().contains("'mine'"), "{error}");
        gallery.adopt(gallery.texture(&frame));
    }
}

#[test]
fn things_are_one_storage_only_if_they_are_one_thing() {
    let adapters = [adapters(), adapters()];
    let [Some(one), Some(other)] = adapters.each_ref().map(|adapters| adapters.first()) else {
        return skip("things_are_one_storage: no Vulkan adapter is here");
    };
    // Each device has an instance of its own; wgpu gives the objects of both the same numbers.
    let devices = [one, other].map(|adapter| transload_wgpu::open_device(adapter).unwrap());
    let backend = transload_wgpu::Wgpu::with_devices(devices.clone());
    let mut known = Vec::new();
    for (at, (device, queue)) in devices.into_iter().enumerate() {
        let memory = backend.inventory().devices[at]
            .id
            .memory(MemoryKind::Device);
        let gallery = Gallery::new((device, queue));
        for _ in 0..10 {
            let texture = gallery.texture(&flat(Format::R8Unorm, 8, 8));
            // SAFETY: the texture is of this device.
            let adopt = |object| unsafe { backend.import(memory, object) }.unwrap();
            let [a, b] = [0, 1].map(|_| adopt(External::object(texture.clone())));
            assert_eq!(a.storage_id(), b.storage_id());
            let buffer = backend.allocate(memory, &AllocSpec::bytes(64)).unwrap();
            let own = buffer.native::<wgpu::Buffer>().unwrap().clone();
            assert_eq!(
                adopt(External::object(own)).storage_id(),
                buffer.storage_id()
            );
            known.push(a);
            known.push(buffer);
        }
    }
    for (at, buffer) in known.iter().enumerate() {
        let same = |other: &&Buffer| other.storage_id() == buffer.storage_id();
        assert_eq!(known.iter().filter(same).count(), 1, "{at}: {buffer:?}");
    }
}

#[test]
fn a_texture_that_is_destroyed_fails_its_copies_as_the_callers_mistake() {
    let Some(gallery) = Gallery::all().into_iter().next() else {
        return skip("a_texture_that_is_destroyed: no Vulkan adapter is here");
    };
    let frame = flat(Format::Rgba8Unorm, 67, 11);
    let [texture, other] = [0, 1].map(|_| gallery.texture(&frame));
    let [adopted, there] = [&texture, &other].map(|texture| gallery.adopt(texture.clone()));
    let slot = gallery.sending(&pattern(adopted.len(), 13));
    texture.destroy();
    for (src, dst) in [(&slot, &adopted), (&adopted, &there), (&there, &adopted)] {
        let (src, dst) = (part(src, 0, src.len()), part(dst, 0, dst.len()));
        let fault = run(&gallery.backend, &[Op::Copy { src, dst }]).unwrap_err();
        assert_eq!(fault.class, ErrorClass::Caller, "{fault}");
        assert!(fault.to_string().contains("'mine'"), "{fault}");
    }
    copy(&gallery, (&slot, 0), (&there, 0), slot.len());
    assert!(gallery.get(&other, 0) == pattern(slot.len(), 13));
}

#[test]
fn a_texture_without_a_usage_takes_part_as_far_as_the_other_goes() {
    let Some(gallery) = Gallery::all().into_iter().next() else {
        return skip("a_texture_without_a_usage: no Vulkan adapter is here");
    };
    let frame = flat(Format::Rgba8Unorm, 67, 11);
    let only = |usage| {
        gallery.texture(&Frame {
            usage: usage | wgpu::TextureUsages::TEXTURE_BINDING,
            ..frame
        })
    };
    let source = only(wgpu::TextureUsages::COPY_SRC);
    let adopted = gallery.adopt(source);
    assert!(!adopted.is_writable());
    let sink = only(wgpu::TextureUsages::COPY_DST);
    let adopted = gallery.adopt(sink);
    assert!(adopted.is_writable());
    let slot = gallery.sending(&pattern(adopted.len(), 14));
    copy(&gallery, (&slot, 0), (&adopted, 0), adopted.len());
    copy(&gallery, (&slot, 1), (&adopted, 268 * 3 + 8), 400);
    // The texture cannot be read, not even for the rest of a texel.
    let refused = |op| {
        let fault = run(&gallery.backend, &[op]).unwrap_err();
        assert_eq!(fault.class, ErrorClass::Caller, "{fault}");
        assert!(fault.to_string().contains("COPY_SRC"), "{fault}");
    };
    let back = gallery.receiving(64);
    refused(Op::Copy {
        src: part(&adopted, 0, 64),
        dst: part(&back, 0, 64),
    });
    refused(Op::Copy {
        src: part(&slot, 0, 7),
        dst: part(&adopted, 0, 7),
    });
}
