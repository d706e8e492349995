//! Saves, read back by the library and by the crate `safetensors`.

use std::collections::BTreeMap;
use std::fs;

use safetensors::SafeTensors;
use transload_tensors::transload::{AllocSpec, Buffer, DeviceId, ErrorClass, TransferManager};
use transload_tensors::{DType, Loaded, Loader, Model, Save, SaveError, Tensor};

use crate::files::{Folder, Gguf};

fn manager() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8 ^ seed as u8)
        .collect()
}

fn buffer(manager: &TransferManager, bytes: &[u8]) -> Buffer {
    let spec = AllocSpec::bytes(bytes.len().max(1) as u64);
    let buffer = manager.allocate(DeviceId::CPU0.into(), spec).unwrap();
    let buffer = buffer.slice(..bytes.len() as u64).unwrap();
    manager.copy_from_slice(bytes, &buffer).unwrap();
    buffer
}

fn tensor(manager: &TransferManager, dtype: DType, shape: &[u64], bytes: &[u8]) -> Tensor {
    Tensor::new(&buffer(manager, bytes), dtype, shape).unwrap()
}

const TENSORS: [(&str, DType, &[u64]); 6] = [
    ("b", DType::BF16, &[700, 1001]),
    ("a", DType::F32, &[3, 5]),
    ("none", DType::U8, &[0, 7]),
    ("half a byte", DType::F4, &[6]),
    ("one", DType::F64, &[]),
    ("odd \"\u{1b}\n", DType::BOOL, &[13]),
];

fn described(manager: &TransferManager) -> (Save, BTreeMap<&'static str, Vec<u8>>) {
    let mut save = Save::new(manager).metadata("format", "pt");
    let mut expected = BTreeMap::new();
    for (number, (name, dtype, shape)) in TENSORS.iter().enumerate() {
        let bytes = bytes(dtype.len_bytes(shape).unwrap() as usize, number);
        save = save.tensor(*name, &tensor(manager, *dtype, shape, &bytes));
        expected.insert(*name, bytes);
    }
    (save, expected)
}

#[test]
fn what_is_saved_is_what_the_crate_reads_and_what_is_loaded() {
    let manager = manager();
    let folder = Folder::of(&[]);
    let path = folder.path("model.safetensors");
    let (save, expected) = described(&manager);
    let saving = save.start(&path).unwrap();
    let total: u64 = expected.values().map(|bytes| bytes.len() as u64).sum();
    assert_eq!(saving.progress().1, total);
    assert_eq!(saving.wait().unwrap(), std::slice::from_ref(&path));
    let file = fs::read(&path).unwrap();
    let theirs = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(theirs.len(), TENSORS.len());
    for (name, dtype, shape) in TENSORS {
        let view = theirs.tensor(name).unwrap();
        assert_eq!(view.dtype().to_string(), dtype.name());
        let sizes: Vec<u64> = view.shape().iter().map(|size| *size as u64).collect();
        assert_eq!(sizes, shape);
        assert!(view.data() == expected[name], "{name}");
        let at = view.data().as_ptr().addr() - file.as_ptr().addr();
        assert!(
            at.is_multiple_of(dtype.block().1 as usize),
            "{name} begins at {at}"
        );
    }
    let model = Model::open(&path).unwrap();
    let loader = Loader::new(&manager);
    for tensor in loader.load(&model).start().unwrap() {
        let tensor = tensor.unwrap();
        assert!(*tensor.buffer().read().unwrap() == expected[tensor.name()][..]);
    }
    assert_eq!(fs::read_dir(folder.path("")).unwrap().count(), 1);
}

/// Small tensors come together in memory on their way: more than all packs hold, beside large ones and empty ones.
#[test]
fn many_small_tensors_arrive_each_in_its_place() {
    let manager = manager();
    let folder = Folder::of(&[]);
    let path = folder.path("model.safetensors");
    let mut save = Save::new(&manager);
    let mut expected = BTreeMap::new();
    for number in 0..700usize {
        let len = match number % 50 {
            0 => (256 << 10) + 1,
            1 => 256 << 10,
            2 => 0,
            other => other * 2311 % 60_000,
        };
        let bytes = bytes(len, number);
        let tensor = tensor(&manager, DType::U8, &[len as u64], &bytes);
        save = save.tensor(format!("tensor {number}"), &tensor);
        expected.insert(format!("tensor {number}"), bytes);
    }
    // Elements that lie apart, and more files than one.
    let spread = buffer(&manager, &bytes(4000, 9));
    let view = Tensor::strided(&spread, 0, DType::U8, &[40, 3], &[100, 7]).unwrap();
    save = save.tensor("view", &view);
    let all = spread.read().unwrap().to_vec();
    let picked = (0..120).map(|at| all[at / 3 * 100 + at % 3 * 7]);
    expected.insert("view".into(), picked.collect());
    let saving = save.most_shard_bytes(17 << 20).start(&path).unwrap();
    let total: u64 = expected.values().map(|bytes| bytes.len() as u64).sum();
    assert_eq!(saving.progress().1, total);
    let paths = saving.wait().unwrap();
    let mut found = BTreeMap::new();
    for path in paths
        .iter()
        .filter(|path| path.extension().unwrap() == "safetensors")
    {
        let file = fs::read(path).unwrap();
        for (name, view) in SafeTensors::deserialize(&file).unwrap().tensors() {
            found.insert(name, view.data().to_vec());
        }
    }
    assert!(found == expected);
}

#[test]
fn shards_and_their_list_are_one_model_and_replace_an_older_one() {
    let manager = manager();
    let folder = Folder::of(&[("model.safetensors.index.json", b"old")]);
    let (save, expected) = described(&manager);
    let saving = save
        .most_shard_bytes(100)
        .start(folder.path("model.safetensors"))
        .unwrap();
    assert_eq!(
        fs::read(folder.path("model.safetensors.index.json")).unwrap(),
        b"old"
    );
    let paths = saving.wait().unwrap();
    let ends = |path: &std::path::Path, end: &str| path.to_str().unwrap().ends_with(end);
    assert_eq!(paths.len(), 4);
    for (number, path) in (1..).zip(&paths[..3]) {
        assert!(
            ends(path, &format!("-0000{number}-of-00003.safetensors")),
            "{path:?}"
        );
    }
    assert!(ends(&paths[3], "model.safetensors.index.json"));
    let model = Model::open(folder.path("")).unwrap();
    assert_eq!(model.tensors().len(), TENSORS.len());
    let loader = Loader::new(&manager);
    let loaded: Vec<Loaded> = loader
        .load(&model)
        .start()
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    for tensor in &loaded {
        assert!(*tensor.buffer().read().unwrap() == expected[tensor.name()][..]);
    }
    // A file of another ending is no older or newer version of it.
    let beside = Save::new(&manager).tensors(&loaded);
    let error = beside.start(folder.path("model.bin")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("model.safetensors.index.json is of an older model"),
        "{error}"
    );
    assert_eq!(error.class(), ErrorClass::Caller);
    assert!(!folder.path("model.bin").exists());
    // Nor shards beside such a file: their path would open as the file.
    let beside = Save::new(&manager).tensors(&loaded).most_shard_bytes(1);
    fs::write(folder.path("old.bin"), b"old").unwrap();
    let error = beside.start(folder.path("old.bin")).unwrap_err();
    assert!(matches!(error, SaveError::Hidden { .. }), "{error}");
    // And back into one file.
    let path = folder.path("again.safetensors");
    Save::new(&manager)
        .tensors(&loaded)
        .start(&path)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(Model::open(&path).unwrap().len_bytes(), model.len_bytes());
}

/// Safetensors has names of UTF-8 alone.
#[test]
fn a_name_that_is_no_utf8_chooses_its_tensor_and_is_kept() {
    let manager = manager();
    let gguf = Gguf::default()
        .tensor(b"t\xe4", &[2], 24, 0)
        .tensor(r"t\xE4", &[3], 24, 32)
        .file(32, 35);
    let folder = Folder::of(&[("m.gguf", &gguf)]);
    let loader = Loader::new(&manager);
    let load = |path: &str, only: &str| -> Vec<Loaded> {
        let model = Model::open(folder.path(path)).unwrap();
        let loading = loader.load(&model).only([only]).start().unwrap();
        loading.collect::<Result<_, _>>().unwrap()
    };
    let both = load("m.gguf", "*");
    let saving = Save::new(&manager)
        .tensors(&both)
        .start(folder.path("m.safetensors"));
    saving.unwrap().wait().unwrap();
    for path in ["m.gguf", "m.safetensors"] {
        for (name, len) in [(r"t\xE4", 2), (r"t\x5CxE4", 3)] {
            let [only] = &load(path, name)[..] else {
                panic!("{name} is one tensor of {path}");
            };
            assert_eq!((only.name(), only.len_bytes()), (name, len));
        }
    }
}

#[test]
fn a_save_has_the_bytes_of_its_start() {
    let manager = manager();
    let folder = Folder::of(&[]);
    let path = folder.path("model.safetensors");
    let (before, after) = (bytes(8 << 20, 1), bytes(8 << 20, 2));
    let tensor = tensor(&manager, DType::U8, &[8 << 20], &before);
    let save = Save::new(&manager).tensor("x", &tensor);
    let saving = save.start(&path).unwrap();
    manager.copy_from_slice(&after, tensor.buffer()).unwrap();
    saving.wait().unwrap();
    let file = fs::read(&path).unwrap();
    assert!(
        SafeTensors::deserialize(&file)
            .unwrap()
            .tensor("x")
            .unwrap()
            .data()
            == before
    );
    assert!(*tensor.buffer().read().unwrap() == after[..]);
}

#[test]
fn a_strided_tensor_is_dense_in_its_file() {
    let manager = manager();
    let folder = Folder::of(&[]);
    let path = folder.path("model.safetensors");
    let rows = buffer(&manager, &[0, 1, 2, 3, 4, 5]);
    let columns = Tensor::strided(&rows, 2, DType::U8, &[3, 2], &[-1, 3]).unwrap();
    let saving = Save::new(&manager)
        .tensor("x", &columns)
        .start(&path)
        .unwrap();
    assert_eq!(saving.progress().1, 6);
    saving.wait().unwrap();
    let file = fs::read(&path).unwrap();
    let theirs = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(theirs.tensor("x").unwrap().data(), [2, 5, 1, 4, 0, 3]);
}

#[test]
fn a_save_that_is_dropped_or_cancelled_leaves_what_was_there() {
    let manager = manager();
    let folder = Folder::of(&[("model.safetensors", b"before")]);
    let path = folder.path("model.safetensors");
    let tensor = tensor(&manager, DType::U8, &[8 << 20], &bytes(8 << 20, 1));
    let save = Save::new(&manager).tensor("x", &tensor);
    let saving = save.clone().start(&path).unwrap();
    assert_eq!(saving.partial_paths().count(), 1);
    drop(saving);
    let saving = save.start(&path).unwrap();
    saving.canceller().cancel();
    // The copy may have been faster.
    if saving.wait().is_err() {
        assert_eq!(fs::read(&path).unwrap(), b"before");
    }
    assert_eq!(fs::read_dir(folder.path("")).unwrap().count(), 1);
}

#[test]
fn what_safetensors_cannot_hold_is_refused_before_a_file_is_made() {
    let manager = manager();
    let folder = Folder::of(&[]);
    let path = folder.path("model.safetensors");
    let four = tensor(&manager, DType::U8, &[4], &[1; 4]);
    let blocks = tensor(&manager, DType::Q4_0, &[32], &[1; 18]);
    // More dimensions than a region has.
    let apart = buffer(&manager, &[0; 1 << 18]);
    let strides: Vec<i64> = (0..9).map(|at| 1 << (2 * at)).collect();
    let apart = Tensor::strided(&apart, 0, DType::U8, &[2; 9], &strides).unwrap();
    let save = || Save::new(&manager).tensor("a", &four);
    for (save, told) in [
        (save().tensor("a", &four), "two tensors have the name \"a\""),
        (
            save().tensor("b", &blocks),
            "tensor \"b\" has elements of Q4_0, a type that safetensors does not have",
        ),
        (
            save().tensor("__metadata__", &four),
            "no tensor of safetensors has the name \"__metadata__\"",
        ),
    ] {
        let error = save.start(&path).unwrap_err();
        assert_eq!(error.to_string(), told);
        assert_eq!(error.class(), ErrorClass::Caller);
    }
    let error = save().tensor("b", &apart).start(&path).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor \"b\": the array has 9 dimensions, and at most 8 are copied; copy parts of it"
    );
    assert_eq!(error.class(), ErrorClass::Unsupported);
    for other in ["model.gguf", "model.safetensors.index.json"] {
        let error = save().start(folder.path(other)).unwrap_err();
        assert!(matches!(error, SaveError::Ending { .. }), "{error}");
        assert!(!folder.path(other).exists());
    }
    let error = save()
        .start(folder.path("no/model.safetensors"))
        .unwrap_err();
    assert!(error.to_string().starts_with("cannot write "), "{error}");
    assert!(matches!(error, SaveError::File { .. }) && error.class() == ErrorClass::Caller);
    assert_eq!(fs::read_dir(folder.path("")).unwrap().count(), 0);
}
