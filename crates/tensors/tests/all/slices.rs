//! Slices of tensors, and tensors split between places.

use std::ops::Range;

use proptest::prelude::*;
use transload_tensors::transload::{Place, TransferManager};
use transload_tensors::{DType, LoadError, Loaded, Loader, Model};

use crate::devices::{manager, place};
use crate::files::{Folder, Gguf, safetensors};

/// A file of tensors of U16 of those shapes.
fn file(shapes: &[Vec<u64>]) -> Vec<u8> {
    let mut at = 0;
    let entries = shapes.iter().enumerate().map(|(number, shape)| {
        let (begin, end) = (at, at + 2 * shape.iter().product::<u64>());
        at = end;
        format!(r#""t{number}":{{"dtype":"U16","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
    });
    let entries: Vec<String> = entries.collect();
    let mut file = safetensors(&format!("{{{}}}", entries.join(",")), 0);
    file.extend((0..at).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8));
    file
}

/// The bytes of a slice, element by element.
fn sliced(file: &[u8], tensor: &Loaded, ranges: &[Range<u64>]) -> Vec<u8> {
    let shape = &tensor.info().shape;
    let mut elements = vec![0u64];
    for (range, size) in ranges.iter().zip(shape) {
        let along = elements.iter().flat_map(|at| {
            let (at, range) = (at * size, range.clone());
            range.map(move |of| at + of)
        });
        elements = along.collect();
    }
    let begin = tensor.info().offset;
    let bytes = elements.iter().flat_map(|at| {
        let at = (begin + 2 * at) as usize;
        [file[at], file[at + 1]]
    });
    bytes.collect()
}

fn tensors(loading: impl Iterator<Item = Result<Loaded, LoadError>>) -> Vec<Loaded> {
    loading.collect::<Result<_, _>>().unwrap()
}

fn read(manager: &TransferManager, tensor: &Loaded) -> Vec<u8> {
    manager.read_to_vec(tensor.buffer()).unwrap()
}

prop_compose! {
    /// A shape, and a range along some of its first dimensions.
    fn shape_and_slice()(
        of in prop::collection::vec((1u64..7, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..6),
        last in 1u64..200,
        named in 0usize..7,
        is_sliced in any::<bool>(),
    ) -> (Vec<u64>, Option<Vec<Range<u64>>>) {
        let mut shape: Vec<u64> = of.iter().map(|of| of.0).collect();
        if let Some(size) = shape.last_mut() {
            *size *= last;
        }
        let ranges = of.iter().zip(&shape).map(|((_, a, b), size)| {
            let ends = [a, b].map(|index| index.index(*size as usize + 1) as u64);
            ends[0].min(ends[1])..ends[0].max(ends[1])
        });
        let ranges = ranges.take(named).collect();
        (shape, is_sliced.then_some(ranges))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_slices_arrive_anywhere(
        all in prop::collection::vec(shape_and_slice(), 1..20),
        is_device in any::<bool>(),
    ) {
        let manager = manager(1 << 30, 1 << 26);
        let loader = Loader::new(&manager);
        let shapes: Vec<Vec<u64>> = all.iter().map(|of| of.0.clone()).collect();
        let bytes = file(&shapes);
        let folder = Folder::of(&[("m.safetensors", &bytes)]);
        let model = Model::open(folder.path("m.safetensors")).unwrap();
        let to = place(if is_device { "sim:0" } else { "cpu:0" });
        let slice = |name: &str| all[name[1..].parse::<usize>().unwrap()].1.clone();
        let load = loader.load(&model).to(to).slice(|tensor| slice(&tensor.name));
        let plan = load.plan().unwrap();
        let len_bytes = plan.len_bytes();
        prop_assert!(plan.read_bytes() <= bytes.len() as u64);
        let tensors = tensors(plan.start().unwrap());
        prop_assert_eq!(tensors.len(), all.len());
        prop_assert_eq!(len_bytes, tensors.iter().map(|of| of.len_bytes()).sum::<u64>());
        for tensor in tensors {
            let whole = tensor.info().shape.iter().map(|size| 0..*size);
            let mut ranges = slice(tensor.name()).unwrap_or_default();
            let named = ranges.len();
            ranges.extend(whole.skip(named));
            let shape: Vec<u64> = ranges.iter().map(|range| range.end - range.start).collect();
            prop_assert_eq!(tensor.shape(), &shape[..]);
            prop_assert_eq!(tensor.dtype(), DType::U16);
            prop_assert!(read(&manager, &tensor) == sliced(&bytes, &tensor, &ranges), "{:?}", tensor);
        }
    }
}

#[test]
fn a_split_gives_each_place_its_part_and_what_no_rule_names_to_all() {
    let manager = manager(1 << 30, 1 << 30);
    let loader = Loader::new(&manager);
    // Rows of 6 KiB, whose halves lie 3 KiB apart; 5 rows for 2 places; no rule.
    let bytes = file(&[vec![4096, 3072], vec![5, 300], vec![7, 1]]);
    let folder = Folder::of(&[("m.safetensors", &bytes)]);
    let model = Model::open(folder.path("m.safetensors")).unwrap();
    let places = [place("sim:0"), place("cpu:0")];
    for verify in [false, true] {
        let load = loader
            .load(&model)
            .to_split(&places, &[("t0", 1), ("t1", 0), ("t*1", 1)]);
        let load = if verify { load.verify() } else { load };
        let plan = load.plan().unwrap();
        // Short rows are read with the gaps between them, for each place.
        let (rows, half) = (4096 * 6144, 2048 * 6144);
        assert_eq!(plan.len_bytes(), 2 * half + 3000 + 14);
        let over = plan.over_read_bytes();
        assert_eq!(plan.read_bytes() - over, 2 * half + 3000 + 14);
        assert!((rows - rows / 32..rows).contains(&over), "{over}");
        let tensors = tensors(plan.start().unwrap());
        let mut seen: Vec<_> = tensors
            .iter()
            .map(|tensor| {
                let whole: Vec<_> = tensor.info().shape.iter().map(|size| 0..*size).collect();
                let ranges = tensor.ranges().unwrap_or(&whole).to_vec();
                assert!(read(&manager, tensor) == sliced(&bytes, tensor, &ranges));
                (
                    tensor.name(),
                    tensor.buffer().memory().device.to_string(),
                    ranges,
                )
            })
            .collect();
        seen.sort_by_key(|of| {
            (
                of.0,
                of.2[0].start,
                of.1.clone(),
                of.2.last().unwrap().start,
            )
        });
        let of =
            |name, device: &str, ranges: &[Range<u64>]| (name, device.to_owned(), ranges.to_vec());
        let expected = [
            of("t0", "cpu:0", &[0..4096, 1536..3072]),
            of("t0", "sim:0", &[0..4096, 0..1536]),
            of("t1", "sim:0", &[0..2, 0..300]),
            of("t1", "cpu:0", &[2..5, 0..300]),
            of("t2", "cpu:0", &[0..7, 0..1]),
            of("t2", "sim:0", &[0..7, 0..1]),
        ];
        assert_eq!(seen, expected);
    }
}

/// The bits of a half, of bfloat16 or of an 8-bit form for whole numbers from 0 to 3, and the rounding of a single.
fn coded(dtype: &str, number: u32) -> Vec<u8> {
    let of = |all: [u16; 4]| all[number as usize].to_le_bytes().to_vec();
    match dtype {
        "F64" => f64::from(number).to_le_bytes().to_vec(),
        "F32" => (number as f32).to_le_bytes().to_vec(),
        "F16" => of([0, 0x3c00, 0x4000, 0x4200]),
        "BF16" => of([0, 0x3f80, 0x4000, 0x4040]),
        "F8_E4M3" => vec![[0, 0x38, 0x40, 0x44][number as usize]],
        "F8_E5M2" => vec![[0, 0x3c, 0x40, 0x42][number as usize]],
        _ => vec![number as u8],
    }
}

#[test]
fn numbers_arrive_in_the_wanted_type_anywhere() {
    let manager = manager(1 << 30, 1 << 26);
    let loader = Loader::new(&manager);
    let dtypes = ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "U8"];
    // Large ones, small ones, odd ones, and none; a row of each is 10 numbers.
    let rows = [1usize, 0, 60_000, 3, 64, 7];
    let mut at = 0;
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (number, (rows, dtype)) in rows
        .iter()
        .flat_map(|rows| dtypes.map(|dtype| (*rows, dtype)))
        .enumerate()
    {
        let bytes: Vec<u8> = (0..10 * rows as u32)
            .flat_map(|of| coded(dtype, of * 7 % 4))
            .collect();
        let end = at + bytes.len();
        entries.push(format!(
            r#""t{number}":{{"dtype":"{dtype}","shape":[{rows},10],"data_offsets":[{at},{end}]}}"#
        ));
        data.extend(bytes);
        at = end;
    }
    let mut bytes = safetensors(&format!("{{{}}}", entries.join(",")), 0);
    bytes.extend(data);
    let folder = Folder::of(&[("m.safetensors", &bytes)]);
    let model = Model::open(folder.path("m.safetensors")).unwrap();
    let places = [place("sim:0"), place("cpu:0")];
    for (wanted, to) in [
        ("F64", DType::F64),
        ("F32", DType::F32),
        ("F16", DType::F16),
        ("BF16", DType::BF16),
    ] {
        let load = loader.load(&model).to_all(&places).dtype(to).verify();
        // Columns, of every other tensor.
        let load = load
            .slice(|tensor| (tensor.name.len() % 2 == 0).then(|| vec![0..tensor.shape[0], 3..8]));
        let tensors = tensors(load.start().unwrap());
        assert_eq!(tensors.len(), 2 * model.tensors().len());
        for tensor in tensors {
            let dtype = if tensor.info().dtype == DType::U8 {
                "U8"
            } else {
                wanted
            };
            let columns = if tensor.ranges().is_some() {
                3..8
            } else {
                0..10
            };
            let numbers = (0..tensor.info().shape[0] as u32)
                .flat_map(|row| columns.clone().map(move |of| 10 * row + of));
            let expected: Vec<u8> = numbers.flat_map(|of| coded(dtype, of * 7 % 4)).collect();
            assert!(read(&manager, &tensor) == expected, "{tensor:?}");
            assert_eq!(tensor.dtype().to_string(), dtype);
        }
    }
    let error = loader
        .load(&model)
        .dtype(DType::F8_E4M3)
        .plan()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor \"t0\" is not converted from F64 to F8_E4M3: F64, F32, F16, BF16, F8_E4M3 and F8_E5M2 are converted, to the first four of these"
    );
    let error = loader
        .load(&model)
        .dtype_of(|_| DType::F32)
        .plan()
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("tensor \"t6\" is not converted from U8 to F32"),
        "{error}"
    );
}

#[test]
fn blocks_of_a_quantised_type_are_never_cut() {
    let manager = manager(1 << 30, 1 << 30);
    let loader = Loader::new(&manager);
    // Two rows of three blocks of Q4_0; ggml names the innermost dimension first.
    let bytes = Gguf::default().tensor("q", &[96, 2], 2, 0).file(32, 108);
    let folder = Folder::of(&[("m.gguf", &bytes)]);
    let model = Model::open(folder.path("m.gguf")).unwrap();
    let begin = model.tensors()[0].offset as usize;
    let places: [Place; 2] = [place("sim:0"), place("cpu:0")];
    let load = loader.load(&model).to_split(&places, &[("q", 1)]);
    let mut parts = tensors(load.start().unwrap());
    parts.sort_by_key(|part| part.shape()[1]);
    assert_eq!([parts[0].shape(), parts[1].shape()], [[2, 32], [2, 64]]);
    let right = [
        &bytes[begin + 18..begin + 54],
        &bytes[begin + 72..begin + 108],
    ]
    .concat();
    assert!(read(&manager, &parts[1]) == right);
    let said = |load: Result<_, LoadError>| {
        load.map(|_: transload_tensors::LoadPlan<'_>| ())
            .unwrap_err()
            .to_string()
    };
    let sliced =
        |ranges: &[Range<u64>]| said(loader.load(&model).slice(|_| Some(ranges.to_vec())).plan());
    assert_eq!(
        sliced(&[0..2, 16..48]),
        "tensor \"q\" of shape [2, 96]: 16..48 of the last dimension are no whole blocks: Q4_0 comes in blocks of 32 elements"
    );
    assert_eq!(
        sliced(&[0..3, 0..96]),
        "tensor \"q\" of shape [2, 96]: 0..3 is outside dimension 0, which has 2 elements"
    );
    assert_eq!(
        sliced(&[0..2, 0..96, 0..1]),
        "tensor \"q\" of shape [2, 96]: 3 ranges were given for 2 dimensions"
    );
    let four = [places[0], places[1], places[0], places[1]];
    assert_eq!(
        said(loader.load(&model).to_split(&four, &[("*", 1)]).plan()),
        "tensor \"q\" of shape [2, 96]: it has 3 blocks of 32 elements along dimension 1, too few for 4 places"
    );
    assert_eq!(
        said(loader.load(&model).to_split(&four, &[("*", 2)]).plan()),
        "tensor \"q\" of shape [2, 96]: it cannot be split along dimension 2: it has 2, counted from 0"
    );
}

#[test]
fn shapes_that_no_number_holds_are_refused_or_empty() {
    let manager = manager(1 << 30, 1 << 30);
    let loader = Loader::new(&manager);
    let huge = 1u64 << 63;
    let header =
        format!(r#"{{"x":{{"dtype":"U16","shape":[0,{huge},{huge}],"data_offsets":[0,0]}}}}"#);
    let folder = Folder::of(&[("m.safetensors", &safetensors(&header, 0))]);
    let model = Model::open(folder.path("m.safetensors")).unwrap();
    let places = [place("sim:0"), place("cpu:0")];
    let loads = [
        loader.load(&model).slice(|_| Some(Vec::new())),
        loader.load(&model).slice(|_| Some(vec![0..0, 3..huge])),
        loader.load(&model).to_split(&places, &[("x", 1)]),
    ];
    for load in loads {
        let tensors = tensors(load.start().unwrap());
        assert!(!tensors.is_empty() && tensors.iter().all(|of| of.buffer().is_empty()));
    }
    // A whole slice of a type whose last dimension is no whole blocks.
    let header = r#"{"x":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}}"#;
    let mut bytes = safetensors(header, 0);
    bytes.extend([1, 2, 3]);
    let folder = Folder::of(&[("m.safetensors", &bytes)]);
    let model = Model::open(folder.path("m.safetensors")).unwrap();
    let whole = loader.load(&model).slice(|_| Some(vec![0..2, 0..3]));
    assert_eq!(
        read(&manager, &tensors(whole.start().unwrap())[0]),
        [1, 2, 3]
    );
    let half = loader.load(&model).slice(|_| Some(vec![0..1, 0..3])).plan();
    assert!(
        half.unwrap_err()
            .to_string()
            .contains("F4 comes in blocks of 2 elements")
    );
}
