//! Loads into a simulated device beside the real host.

use std::fs;
use std::sync::Arc;
use std::thread;

use proptest::prelude::*;
use transload_tensors::transload::{AllocSpec, Place, StagingBudget, TransferManager};
use transload_tensors::{LoadError, Loaded, Loader, Model};
use transload_testkit::sim::{Completion, HostSide, Sim};
use transload_testkit::topology;

use crate::files::{Folder, safetensors};

/// A manager of this host and of two devices with so much memory each, whose allocations have at most so many bytes.
pub(crate) fn manager(memory_bytes: u64, max_alloc_bytes: u64) -> TransferManager {
    let link = |src: &str, device: &str| {
        format!(
            r#"
            [[link]]
            src = "{src}"
            dst = "{device}/device"
            engine = "{device}#0"
            class = "pcie"
            both = true
            back_engine = "{device}#1"
            latency_ns = 1000
            bytes_per_second = 10_000_000_000
            "#
        )
    };
    let device = |device: &str| {
        let links = link("cpu:0/pinned", device) + &link("cpu:0/pageable", device);
        format!(
            r#"
            [[device]]
            id = "{device}"
            name = "device"
            memory = [{{ kind = "device", memory_bytes = {memory_bytes}, max_alloc_bytes = {max_alloc_bytes} }}]
            {links}
            "#
        )
    };
    let machine = format!(
        r#"
        schema = 1
        name = "small"
        [[device]]
        id = "cpu:0"
        name = "host"
        memory = [
            {{ kind = "pageable", memory_bytes = 8_000_000_000 }},
            {{ kind = "pinned", memory_bytes = 8_000_000_000 }},
        ]
        {}{}
        "#,
        device("sim:0"),
        device("sim:1")
    );
    let machine = topology::from_str(&machine).unwrap();
    let sim = Sim::builder(&machine)
        .host(HostSide::Real)
        .completion(Completion::Timed);
    let builder = TransferManager::builder()
        .host()
        .backend(Arc::new(sim.build().unwrap()));
    builder
        .staging(Arc::new(StagingBudget::new(64 << 20)))
        .build()
        .unwrap()
}

pub(crate) fn place(name: &str) -> Place {
    name.parse().unwrap()
}

fn file(lens: &[usize], seed: usize) -> Vec<u8> {
    let mut at = 0;
    let entries = lens.iter().enumerate().map(|(number, len)| {
        let (begin, end) = (at, at + len);
        at = end;
        format!(r#""t{number}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{begin},{end}]}}"#)
    });
    let entries: Vec<String> = entries.collect();
    let mut file = safetensors(&format!("{{{}}}", entries.join(",")), 0);
    file.extend((0..at).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8 ^ seed as u8));
    file
}

fn is_right(manager: &TransferManager, file: &[u8], tensor: &Loaded) -> bool {
    let begin = tensor.info().offset as usize;
    manager.read_to_vec(tensor.buffer()).unwrap()
        == file[begin..][..tensor.info().len_bytes as usize]
}

#[test]
fn allocations_are_no_larger_than_the_device_allows() {
    let manager = manager(1 << 30, 4 << 20);
    let bytes = file(&[1 << 20; 8], 1);
    let folder = Folder::of(&[("m.safetensors", &bytes)]);
    let model = Model::open(folder.path("m.safetensors")).unwrap();
    let loader = Loader::new(&manager);
    let plan = loader.load(&model).to(place("sim:0")).plan().unwrap();
    assert_eq!(
        (plan.transfers(), plan.memories().next().unwrap().1),
        (2, 8 << 20)
    );
    let tensors: Vec<Loaded> = plan.start().unwrap().collect::<Result<_, _>>().unwrap();
    assert!(
        tensors.len() == 8
            && tensors
                .iter()
                .all(|tensor| is_right(&manager, &bytes, tensor))
    );

    // No other memory takes part.
    let one = [place("sim:0")];
    let plan = loader.load(&model).to_shares(&one).plan().unwrap();
    assert_eq!(plan.memories().count(), 1);

    let large = file(&[(4 << 20) + 1], 1);
    fs::write(folder.path("large.safetensors"), large).unwrap();
    let model = Model::open(folder.path("large.safetensors")).unwrap();
    let error = loader.load(&model).to(place("sim:0")).plan().unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor \"t0\" takes 4194305 bytes, and one allocation in sim:0/device has at most 4194304; split it, or load it into another memory"
    );
}

#[test]
fn a_device_that_is_too_small_is_told_before_anything_is_read() {
    let manager = manager(3 << 20, 3 << 20);
    let folder = Folder::of(&[("m.safetensors", &file(&[1 << 20; 4], 1))]);
    let model = Model::open(folder.path("m.safetensors")).unwrap();
    let loader = Loader::new(&manager);
    let error = loader.load(&model).to(place("sim:0")).plan().unwrap_err();
    assert!(matches!(error, LoadError::NoRoom { .. }));
    assert_eq!(
        error.to_string(),
        "the tensors take 4194304 bytes, and sim:0/device has 3145728 left; choose fewer, or another memory"
    );
    // Shares are like the room that is left.
    let places = ["sim:0", "sim:1"].map(place);
    let used = manager
        .allocate(places[0], AllocSpec::bytes(2 << 20))
        .unwrap();
    let sim = used.memory();
    assert_eq!(manager.available_bytes(sim), Some(1 << 20));
    let shares = |lens: [u64; 2]| {
        let plan = loader.load(&model).to_shares(&places).plan().unwrap();
        assert_eq!(plan.memories().map(|of| of.1).collect::<Vec<_>>(), lens);
        let tensors = plan
            .start()
            .unwrap()
            .collect::<Result<Vec<Loaded>, _>>()
            .unwrap();
        assert_eq!(tensors.len(), 4);
        tensors
    };
    let tensors = shares([1 << 20, 3 << 20]);
    assert_eq!(manager.available_bytes(sim), Some(0));
    drop(tensors);
    // Nothing is free, but what the loader keeps.
    shares([1 << 20, 3 << 20]);
    drop(used);
    shares([2 << 20, 2 << 20]);
}

#[test]
fn threads_share_a_loader_and_drop_loads_midway() {
    let manager = manager(4 << 30, 4 << 30);
    let loader = Loader::new(&manager);
    let lens = [(3 << 20) + 5, 1000, 64, (17 << 20) + 1, 9000, 5, 2 << 20];
    let files: Vec<Vec<u8>> = (0..3).map(|seed| file(&lens, seed * 77 + 1)).collect();
    let folder = Folder::of(&[("0", &files[0]), ("1", &files[1]), ("2", &files[2])]);
    thread::scope(|scope| {
        for (number, file) in files.iter().enumerate() {
            let (loader, manager) = (&loader, &manager);
            let model = Model::open(folder.path(&number.to_string())).unwrap();
            scope.spawn(move || {
                for round in 0..8 {
                    let to = place(["sim:0", "cpu:0"][(round / 2 + number) % 2]);
                    let loading = loader.load(&model).to(to).start().unwrap();
                    let taken = loading.take([7, 0, 2, 1][round % 4]);
                    let tensors: Vec<Loaded> = taken.collect::<Result<_, _>>().unwrap();
                    assert!(tensors.iter().all(|tensor| is_right(manager, file, tensor)));
                }
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_tensors_arrive_anywhere(
        lens in prop::collection::vec(prop_oneof![
            Just(0usize), 1usize..300, (0usize..40).prop_map(|of| of * 64), 0usize..20_000,
        ], 1..600),
        keep in prop::collection::vec(any::<bool>(), 600),
        verify in prop::bool::weighted(0.3),
        to in 0usize..4,
    ) {
        let manager = manager(1 << 30, 1 << 24);
        let loader = Loader::new(&manager);
        let bytes = file(&lens, lens.len());
        let folder = Folder::of(&[("m.safetensors", &bytes)]);
        let model = Model::open(folder.path("m.safetensors")).unwrap();
        let mut keep = keep.iter();
        let load = loader.load(&model).filter(|_| *keep.next().unwrap());
        let places = [place("sim:0"), place("cpu:0/shared")];
        let load = match to {
            0 => load.to(places[0]),
            1 => load.to_all(&places),
            2 => load.to_shares(&places),
            _ => load.to_each(|tensor| places[tensor.len_bytes as usize % 2]),
        };
        let load = if verify { load.verify() } else { load };
        if let Ok(plan) = load.plan() {
            let expected = plan.tensors().len() * if to == 1 { 2 } else { 1 };
            let mut seen = 0;
            for tensor in plan.start().unwrap() {
                let tensor = tensor.unwrap();
                prop_assert!(is_right(&manager, &bytes, &tensor), "{:?}", tensor.info());
                seen += 1;
            }
            prop_assert_eq!(seen, expected);
        }
    }
}
