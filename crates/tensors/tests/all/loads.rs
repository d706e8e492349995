//! Loads into the heap, and into a described machine.

use std::collections::BTreeMap;
use std::fs;
use std::future::poll_fn;
use std::pin::Pin;

use futures_core::Stream;

use transload_tensors::transload::{
    Advice, DeviceId, ErrorClass, MemoryKind, Place, Priority, TransferError, TransferManager,
};
use transload_tensors::{DType, LoadError, Loaded, Loader, Model, Reading, Save, TensorInfo};

use crate::files::{Folder, Gguf, safetensors};

fn manager() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

/// A safetensors file of tensors of those lengths, from the name `t{first}` on.
fn file(first: usize, lens: &[usize]) -> Vec<u8> {
    let mut at = 0;
    let entries: Vec<String> = (first..)
        .zip(lens)
        .map(|(number, len)| {
            let (begin, end) = (at, at + len);
            at = end;
            format!(
                r#""t{number}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{begin},{end}]}}"#
            )
        })
        .collect();
    let mut file = safetensors(&format!("{{{}}}", entries.join(",")), 0);
    // Bytes that repeat nowhere near.
    let byte = |at: usize| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8 ^ first as u8;
    file.extend((0..at).map(byte));
    file
}

/// Two shards, with tensors of no bytes, small ones, odd ones, and ones larger than a run.
fn model() -> (Folder, Model) {
    let lens = [
        64,
        0,
        128,
        1,
        63,
        4096,
        0,
        (20 << 20) + 7,
        192,
        192,
        (16 << 20) - 192,
        192,
    ];
    let (first, second) = (file(0, &lens), file(lens.len(), &[5, (3 << 20) + 1, 64]));
    let mut map: Vec<String> = (0..lens.len())
        .map(|at| format!(r#""t{at}":"a.safetensors""#))
        .collect();
    map.extend((lens.len()..lens.len() + 3).map(|at| format!(r#""t{at}":"b.safetensors""#)));
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, map.join(","));
    let folder = Folder::of(&[
        ("a.safetensors", &first),
        ("b.safetensors", &second),
        ("model.safetensors.index.json", index.as_bytes()),
    ]);
    let model = Model::open(folder.path("")).unwrap();
    (folder, model)
}

fn bytes_in_file(model: &Model, tensor: &Loaded) -> Vec<u8> {
    let file = fs::read(model.files()[tensor.info().file].path()).unwrap();
    let begin = tensor.info().offset as usize;
    file[begin..begin + tensor.info().len_bytes as usize].to_vec()
}

fn by_name(loading: impl Iterator<Item = Result<Loaded, LoadError>>) -> BTreeMap<String, Loaded> {
    let tensors = loading.map(|tensor| tensor.map(|of| (of.name().to_owned(), of)));
    tensors.collect::<Result<_, _>>().unwrap()
}

#[test]
fn every_tensor_has_the_bytes_of_its_file_at_a_multiple_of_64() {
    let (_folder, model) = model();
    let loader = Loader::new(&manager());
    let mut loading = loader.load(&model).verify().start().unwrap();
    let tensors = by_name(loading.by_ref());
    assert_eq!(loading.progress(), (model.len_bytes(), model.len_bytes()));
    assert!(loading.next().is_none());
    assert_eq!(tensors.len(), model.tensors().len());
    for (name, tensor) in &tensors {
        assert_eq!(model.tensor(name), Some(tensor.info()));
        let bytes = tensor.buffer().read().unwrap();
        assert!(*bytes == bytes_in_file(&model, tensor)[..], "{name}");
        assert!(
            bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(64),
            "{name}"
        );
    }
}

#[cfg(any(target_os = "linux", windows))]
#[test]
fn mapped_tensors_are_the_bytes_of_their_files_and_outlive_the_model() {
    let (_folder, model) = model();
    let loader = Loader::new(&manager());
    // SAFETY: nothing changes the files meanwhile.
    let tensors = unsafe { loader.map(&model) }.unwrap();
    let infos: Vec<&TensorInfo> = tensors.iter().map(Loaded::info).collect();
    assert_eq!(infos, model.tensors().iter().collect::<Vec<_>>());
    let wanted: Vec<Vec<u8>> = { tensors.iter() }
        .map(|tensor| bytes_in_file(&model, tensor))
        .collect();
    drop((model, loader));
    for (tensor, wanted) in tensors.iter().zip(wanted) {
        assert!(*tensor.buffer().read().unwrap() == wanted[..], "{tensor:?}");
        assert!(tensor.buffer().write().is_err(), "{tensor:?}");
    }
}

#[test]
fn blocks_of_gguf_with_padding_between_them_arrive_as_they_are() {
    let bytes = Gguf::default()
        .tensor("q", &[256], 12, 0)
        .tensor("odd", &[9], 0, 160)
        .tensor("next", &[8], 0, 224)
        .tensor("last", &[1], 24, 256)
        .file(32, 257);
    let folder = Folder::of(&[("m.gguf", &bytes)]);
    let model = Model::open(folder.path("m.gguf")).unwrap();
    let loader = Loader::new(&manager());
    let plan = loader.load(&model).plan().unwrap();
    // All bytes from the first to the last one are read, once.
    assert_eq!(
        (plan.len_bytes(), plan.read_bytes()),
        (144 + 36 + 32 + 1, 257)
    );
    // After `next` the file has too few bytes to fill its place.
    assert_eq!(plan.transfers(), 2);
    drop(plan);
    for tensor in by_name(loader.load(&model).verify().start().unwrap()).values() {
        assert!(*tensor.buffer().read().unwrap() == bytes_in_file(&model, tensor)[..]);
    }
}

#[test]
fn a_tensor_of_an_unknown_type_fails_alone() {
    let bytes = Gguf::default()
        .tensor("a", &[256], 142, 0)
        .tensor("b", &[8], 0, 160)
        .tensor("c", &[256], 31, 192)
        .file(32, 352);
    let folder = Folder::of(&[("m.gguf", &bytes)]);
    let model = Model::open(folder.path("m.gguf")).unwrap();
    let loader = Loader::new(&manager());
    let error = loader.load(&model).plan().unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor \"a\" is of the type GGML_142, which this version does not know, and one more is of such a type; \
         choose only the others"
    );
    assert_eq!(error.class(), ErrorClass::Unsupported);
    // In parts and in another type, too.
    let places = ["cpu:0".parse().unwrap(), "cpu:0/shared".parse().unwrap()];
    let load = loader.load(&model).only(["c"]).dtype(DType::F16);
    let error = load.to_split(&places, &[("c", 0)]).plan().unwrap_err();
    assert!(
        matches!(error, LoadError::UnknownDType { others: 0, .. }),
        "{error}"
    );
    let loaded = by_name(loader.load(&model).only(["b"]).start().unwrap());
    assert!(*loaded["b"].buffer().read().unwrap() == bytes_in_file(&model, &loaded["b"])[..]);
}

#[test]
fn the_plan_tells_what_is_read_before_anything_is() {
    let (_folder, model) = model();
    let loader = Loader::new(&manager());
    let plan = loader
        .load(&model)
        .only(["t1?"])
        .filter(|tensor| tensor.len_bytes > 100)
        .plan()
        .unwrap();
    let names: Vec<&str> = plan.tensors().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["t10", "t11", "t13"]);
    assert_eq!(plan.len_bytes(), (16 << 20) + (3 << 20) + 1);
    assert_eq!((plan.read_bytes(), plan.transfers()), (plan.len_bytes(), 2));
    let [(memory, bytes)] = plan.memories().collect::<Vec<_>>()[..] else {
        panic!("one memory was asked for");
    };
    assert!(memory.to_string() == "cpu:0/pageable" && bytes >= plan.len_bytes());
    let [explained] = &plan.explain().unwrap()[..] else {
        panic!("the file has one memory");
    };
    assert_eq!(explained.bytes, plan.read_bytes());
    let tensors = by_name(plan.start().unwrap());
    assert!(tensors.keys().eq(["t10", "t11", "t13"]));
}

#[test]
fn each_tensor_goes_where_it_is_to_go() {
    let (_folder, model) = model();
    let manager = manager();
    let loader = Loader::new(&manager);
    let [heap, shared] = ["cpu:0", "cpu:0/shared"].map(|place| place.parse::<Place>().unwrap());
    let is_right =
        |tensor: &Loaded| *tensor.buffer().read().unwrap() == bytes_in_file(&model, tensor)[..];
    // By a rule.
    let odd = |tensor: &TensorInfo| tensor.len_bytes % 2 == 1;
    let plan = loader
        .load(&model)
        .to_each(|tensor| if odd(tensor) { shared } else { heap })
        .plan()
        .unwrap();
    assert_eq!(plan.memories().count(), 2);
    let tensors = by_name(plan.start().unwrap());
    assert_eq!(tensors.len(), model.tensors().len());
    for tensor in tensors.values() {
        let expected = if odd(tensor.info()) {
            "cpu:0/shared"
        } else {
            "cpu:0/pageable"
        };
        assert_eq!(tensor.buffer().memory().to_string(), expected);
        assert!(is_right(tensor), "{}", tensor.name());
    }
    // In equal shares: 20 MiB of 39 are in one tensor.
    let plan = loader
        .load(&model)
        .to_shares(&[heap, shared])
        .plan()
        .unwrap();
    let shares: Vec<u64> = plan.memories().map(|(_, bytes)| bytes >> 20).collect();
    assert_eq!(shares, [20, 19]);
    // To both.
    let plan = loader
        .load(&model)
        .to_all(&[heap, shared])
        .verify()
        .plan()
        .unwrap();
    let mut loading = plan.start().unwrap();
    let all: Vec<Loaded> = loading.by_ref().collect::<Result<_, _>>().unwrap();
    assert_eq!(
        loading.progress(),
        (2 * model.len_bytes(), 2 * model.len_bytes())
    );
    assert_eq!(all.len(), 2 * model.tensors().len());
    assert!(all.iter().all(is_right));
    let in_heap = all
        .iter()
        .filter(|tensor| tensor.buffer().memory().to_string() == "cpu:0/pageable");
    assert_eq!(in_heap.count(), model.tensors().len());
    // The files were read once.
    let from_files = || {
        let paths = manager.stats().paths.into_iter();
        let paths = paths.filter(|path| path.src.kind == MemoryKind::File);
        paths.map(|path| path.total.bytes).sum::<u64>()
    };
    let before = from_files();
    drop(all);
    let plan = loader.load(&model).to_all(&[shared, heap]).plan().unwrap();
    plan.start().unwrap().for_each(drop);
    let once = model.len_bytes()..2 * model.len_bytes();
    assert!(once.contains(&(from_files() - before)));
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_not_in_the_cache_is_read_past_it() {
    let (_folder, model) = model();
    let manager = manager();
    for file in model.files() {
        let path = file.path();
        fs::File::open(path).unwrap().sync_all().unwrap();
        let file = manager.open_file(path).unwrap();
        manager.advise(&file, Advice::DontNeed).unwrap();
    }
    let loader = Loader::new(&manager);
    let plan = loader.load(&model).plan().unwrap();
    let ways: Vec<_> = plan.files().map(|(_, reading)| reading.clone()).collect();
    // A file system in memory has all of it.
    if ways.contains(&Reading::Cached) {
        eprintln!("skipped: the folder for temporary files keeps files in memory");
        return;
    }
    // A second look does not take for cached what the first one has read.
    let again = loader.load(&model).plan().unwrap();
    assert!(again.files().zip(&ways).all(|(seen, way)| seen.1 == way));
    let is_direct = ways.iter().all(|way| *way == Reading::Direct);
    let is_through = |way: &Reading| matches!(way, Reading::ThroughCache { .. });
    assert!(is_direct || ways.iter().all(is_through), "{ways:?}");
    for (name, tensor) in by_name(plan.start().unwrap()) {
        let arrived = manager.read_to_vec(tensor.buffer()).unwrap();
        assert!(arrived == bytes_in_file(&model, &tensor), "{name}");
    }
}

#[test]
fn a_load_is_a_stream_and_ends_at_its_deadline() {
    let (_folder, model) = model();
    let manager = manager();
    let loader = Loader::new(&manager);
    let mut loading = loader
        .load(&model)
        .priority(Priority::High)
        .start()
        .unwrap();
    let next = || pollster::block_on(poll_fn(|context| Pin::new(&mut loading).poll_next(context)));
    let tensors = by_name(std::iter::from_fn(next));
    assert_eq!(tensors.len(), model.tensors().len());
    for (name, tensor) in tensors {
        assert!(
            *tensor.buffer().read().unwrap() == bytes_in_file(&model, &tensor)[..],
            "{name}"
        );
    }
    let mut loading = loader.load(&model).deadline(manager.now()).start().unwrap();
    let late = loading.find_map(Result::err).unwrap();
    let LoadError::Transfer { source, .. } = &late else {
        panic!("{late}");
    };
    assert!(matches!(**source, TransferError::Deadline { .. }), "{late}");
    assert!(loading.next().is_none());
}

#[test]
fn memory_is_used_again_when_its_last_tensor_is_gone() {
    let (_folder, model) = model();
    let loader = Loader::new(&manager());
    let load = || by_name(loader.load(&model).start().unwrap());
    let address =
        |tensors: &BTreeMap<String, Loaded>| tensors["t0"].buffer().read().unwrap().as_ptr();
    let mut first = load();
    let place = address(&first);
    let last = first.remove("t9").unwrap();
    drop(first);
    let second = load();
    assert_ne!(address(&second), place, "t9 is still there");
    assert!(*last.buffer().read().unwrap() == bytes_in_file(&model, &last)[..]);
    drop(last);
    let third = load();
    assert_eq!(address(&third), place);
    drop((second, third));
    // A small tensor does not hold all of it.
    let mut small = by_name(loader.load(&model).only(["t4"]).start().unwrap());
    assert_ne!(
        small
            .remove("t4")
            .unwrap()
            .buffer()
            .read()
            .unwrap()
            .as_ptr(),
        place
    );
    loader.trim();
    // A tensor outlives its loader.
    let tensors = load();
    drop(loader);
    assert!(*tensors["t7"].buffer().read().unwrap() == bytes_in_file(&model, &tensors["t7"])[..]);
}

#[test]
fn a_file_that_was_cut_short_is_an_error_and_one_that_was_replaced_is_read_as_it_was() {
    let (folder, model) = model();
    let loader = Loader::new(&manager());
    let path = folder.path("b.safetensors");
    let before = fs::read(&path).unwrap();
    fs::write(folder.path("other"), vec![0; before.len()]).unwrap();
    fs::rename(folder.path("other"), &path).unwrap();
    let tensors = by_name(loader.load(&model).only(["t13"]).start().unwrap());
    let tensor = &tensors["t13"];
    let begin = tensor.info().offset as usize;
    let expected = &before[begin..begin + tensor.info().len_bytes as usize];
    assert!(*tensor.buffer().read().unwrap() == *expected);

    let path = folder.path("a.safetensors");
    let len = fs::metadata(&path).unwrap().len();
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(len - 1)
        .unwrap();
    let error = loader.load(&model).start().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} was cut short: its tensors end at byte {len}, and it has {} now",
            path.display(),
            len - 1
        )
    );
    assert_eq!(error.class(), ErrorClass::Failed);
}

#[test]
fn a_load_without_tensors_and_a_place_that_is_not_here_are_refused() {
    let (_folder, model) = model();
    let loader = Loader::new(&manager());
    let error = loader
        .load(&model)
        .only(["t*", "no such*"])
        .plan()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "no tensor has a name that fits \"no such*\"; a pattern has to fit the whole name, with * for any characters"
    );
    let error = loader.load(&model).filter(|_| false).plan().unwrap_err();
    assert_eq!(
        error.to_string(),
        "no tensor was chosen, of the 15 of the model"
    );
    let place: transload_tensors::transload::Place = "cuda:7".parse().unwrap();
    let error = loader.load(&model).to(place).plan().unwrap_err();
    assert!(error.to_string().contains("cuda:7"), "{error}");
    let error = loader
        .load(&model)
        .to("cpu:0/file".parse::<Place>().unwrap())
        .plan()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensors cannot lie in cpu:0/file: save them to a file"
    );
}

/// As a library of another language writes a state that has no tensors yet.
#[test]
fn a_model_without_tensors_is_loaded_and_has_none() {
    let manager = manager();
    let folder = Folder::of(&[("theirs.safetensors", &crate::files::safetensors("{}", 0))]);
    let ours = folder.path("ours.safetensors");
    let save = Save::new(&manager)
        .metadata("step", "7")
        .most_shard_bytes(1);
    assert_eq!(save.start(&ours).unwrap().wait().unwrap(), [&*ours]);
    let file = fs::read(&ours).unwrap();
    assert!(
        safetensors::SafeTensors::deserialize(&file)
            .unwrap()
            .is_empty()
    );
    let loader = Loader::new(&manager);
    for path in [folder.path("theirs.safetensors"), ours] {
        let model = Model::open(path).unwrap();
        let places = [DeviceId::CPU0.into()];
        for load in [
            loader.load(&model).to_all(&places),
            loader.load(&model).to_shares(&places).verify(),
        ] {
            let plan = load.dtype(DType::F16).plan().unwrap();
            assert_eq!((plan.read_bytes(), plan.explain().unwrap().len()), (0, 0));
            let mut loading = plan.start().unwrap();
            assert_eq!(loading.progress(), (0, 0));
            assert!(loading.next().is_none());
        }
        let error = loader.load(&model).only(["*"]).plan().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("no tensor has a name that fits"),
            "{error}"
        );
    }
}

#[test]
fn a_load_to_no_place_is_refused() {
    let (_folder, model) = model();
    let loader = Loader::new(&manager());
    let load = loader.load(&model);
    for load in [load.clone().to_all(&[]), load.to_shares(&[])] {
        let error = load.plan().unwrap_err();
        assert_eq!(error.to_string(), "no place for the tensors was named");
    }
}

#[test]
fn a_load_that_is_over_holds_no_memory() {
    let (_folder, model) = model();
    let loader = Loader::new(&manager());
    let address =
        |tensors: &BTreeMap<String, Loaded>| tensors["t0"].buffer().read().unwrap().as_ptr();
    let mut loading = loader.load(&model).start().unwrap();
    let tensors = by_name(loading.by_ref());
    let place = address(&tensors);
    drop(tensors);
    let again = by_name(loader.load(&model).start().unwrap());
    assert_eq!(address(&again), place);
    drop(loading);
}

#[test]
fn a_cancelled_load_ends_with_an_error() {
    let (_folder, model) = model();
    let loader = Loader::new(&manager());
    let mut loading = loader.load(&model).start().unwrap();
    loading.canceller().cancel();
    let arrived = loading.by_ref().take_while(Result::is_ok).count();
    // The copies may have been faster.
    assert!(arrived == model.tensors().len() || loading.next().is_none());
    drop(loader.load(&model).start().unwrap());
}
