//! Backends and devices that a manager discovers where adapters exist.
#![cfg(adapters)]

use crate::adapter;
use std::process::Command;
use std::thread;
use std::{env, fs};

use transload::profile::{MeasuredLink, Point};
use transload::wgpu_backend::Wgpu;
use transload::{AllocSpec, DeviceKind, PlaceError, Profile, Request, TransferManager};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const MIB: usize = 1 << 20;

/// A discovered manager; `None`, with a printed line, where it found no adapter.
fn discovered() -> Option<TransferManager> {
    let manager = TransferManager::discover().unwrap();
    if manager.backend::<Wgpu>().is_none() {
        adapter::skip();
        return None;
    }
    Some(manager)
}

#[test]
fn adapters_are_found_behind_the_host_and_named_by_their_drivers() {
    let Some(manager) = discovered() else { return };
    let backends = manager.backends();
    let backends: Vec<String> = backends.iter().map(|b| b.id.to_string()).collect();
    let ends = (backends.first(), backends.last());
    assert_eq!(ends, (Some(&"host".into()), Some(&"wgpu".into())));
    let mut adapters = manager.devices();
    adapters.retain(|device| device.id.kind == DeviceKind::WGPU);
    assert_eq!(
        Some(adapters.len()),
        manager.backend::<Wgpu>().map(|wgpu| wgpu.len())
    );
    for adapter in &adapters {
        assert!(!adapter.name.is_empty() && !adapter.simulated);
        assert!(
            adapter
                .driver
                .as_ref()
                .is_some_and(|driver| !driver.is_empty())
        );
    }
    // A program that takes the first adapter gets hardware if the machine has any.
    assert!(adapters.is_sorted_by_key(|adapter| adapter.software));
}

#[test]
fn a_manager_with_the_host_alone_asks_no_driver() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    assert!(manager.backend::<Wgpu>().is_none());
    let error = manager
        .allocate("wgpu:0".parse()?, AllocSpec::bytes(1))
        .unwrap_err();
    assert!(error.to_string().contains("wgpu:0"), "{error}");
    Ok(())
}

#[test]
fn managers_that_discover_side_by_side_work_and_keep_their_buffers_apart() -> Outcome {
    let (Some(one), Some(other)) = (discovered(), discovered()) else {
        return Ok(());
    };
    let there_and_back = |manager: &TransferManager, byte: u8| {
        for round in 0..8 {
            let src = manager.adopt(vec![byte ^ round; MIB + 3]).unwrap();
            let there = manager
                .allocate("wgpu:0".parse().unwrap(), AllocSpec::bytes(src.len()))
                .unwrap();
            manager
                .submit(&Request::new(&src, &there).verify())
                .wait()
                .unwrap();
            let mut back = vec![0; MIB + 3];
            manager.copy_into_slice(&there, &mut back).unwrap();
            assert!(back.iter().all(|found| *found == byte ^ round));
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| there_and_back(&one, 0x50));
        scope.spawn(|| there_and_back(&other, 0xA0));
    });
    let theirs = other.allocate("wgpu:0".parse()?, AllocSpec::bytes(8))?;
    let ours = one.adopt(vec![1u8; 8])?;
    assert!(
        one.copy(&ours, &theirs).wait().is_err(),
        "a buffer of another manager"
    );
    // The other manager goes on.
    drop((one, ours));
    there_and_back(&other, 7);
    Ok(())
}

/// The kinds of devices that are open.
fn open_kinds(manager: &TransferManager) -> Vec<String> {
    let opened = manager.opened();
    let kinds = opened
        .devices()
        .iter()
        .map(|device| device.id.kind.to_string());
    let mut kinds: Vec<String> = kinds.collect();
    kinds.dedup();
    kinds
}

/// The libraries of drivers in this process.
#[cfg(target_os = "linux")]
fn drivers() -> Vec<&'static str> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let names = ["libvulkan", "libEGL", "libGL", "libcuda.so", "libnvidia"];
    names
        .into_iter()
        .filter(|name| maps.contains(name))
        .collect()
}

/// Runs a test again, in a process of its own, where nothing has opened a device. Returns false in that process.
#[cfg(target_os = "linux")]
fn ran_apart(test: &str) -> bool {
    const APART: &str = "TRANSLOAD_TEST_APART";
    if env::var_os(APART).is_some() {
        return false;
    }
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", &format!("discovery::{test}"), "--nocapture"]);
    for variable in [
        "XDG_RUNTIME_DIR",
        "WAYLAND_DISPLAY",
        "DISPLAY",
        "NODEVICE_SELECT",
    ] {
        child.env_remove(variable);
    }
    let ended = child.env(APART, "1").output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{told}");
    assert_eq!(told, "", "a driver wrote to standard error");
    true
}

#[cfg(target_os = "linux")]
#[test]
fn what_stays_on_the_host_opens_no_kind_of_device() -> Outcome {
    if ran_apart("what_stays_on_the_host_opens_no_kind_of_device") {
        return Ok(());
    }
    let manager = TransferManager::shared()?;
    let src = manager.adopt(vec![7u8; MIB])?;
    let shared = manager.allocate("cpu:0/shared".parse()?, AllocSpec::bytes(MIB as u64))?;
    manager
        .submit(&Request::new(&src, &shared).verify())
        .wait()?;
    let mut back = vec![0u8; MIB];
    manager.copy_into_slice(&shared, &mut back)?;
    let file = manager.open_file("/proc/self/exe")?;
    manager.read_to_vec(file.slice(..4096)?)?;
    manager.explain(&Request::new(&src, &shared))?;
    manager.explain_sizes("cpu:0".parse()?, "cpu:0/shared".parse()?)?;
    manager.prefetch(&src, "cpu:0".parse()?)?;
    assert!(manager.available_bytes(shared.memory()).is_some());
    assert!(
        manager.resolve("cpu:1".parse()?).is_err()
            && manager.resolve("box2/wgpu:0".parse()?).is_err()
    );
    let _ = (
        manager.take_trace(),
        manager.stats(),
        format!("{manager:?}"),
    );
    manager.clear_cache();
    assert_eq!(open_kinds(manager), ["cpu"]);
    assert_eq!(drivers(), [""; 0]);
    // The list of libraries shows a driver where one is opened.
    if manager
        .devices()
        .iter()
        .any(|device| device.id.kind == DeviceKind::WGPU)
    {
        assert_ne!(drivers(), [""; 0]);
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn a_place_opens_its_own_kind_and_threads_that_name_it_at_once_open_it_once() -> Outcome {
    let test = "a_place_opens_its_own_kind_and_threads_that_name_it_at_once_open_it_once";
    if ran_apart(test) {
        return Ok(());
    }
    let manager = TransferManager::builder()
        .discover()
        .default_costs()
        .build()?;
    assert!(matches!(
        manager.resolve("metal:0".parse()?),
        Err(PlaceError::UnknownDevice { known, .. }) if known.contains("those of wgpu, which is not open yet")
    ));
    assert_eq!(open_kinds(&manager), ["cpu"]);
    let (src, spec) = (manager.adopt(vec![9u8; MIB])?, AllocSpec::bytes(MIB as u64));
    let there = thread::scope(|scope| {
        let one = || {
            let there = manager.allocate("wgpu:0".parse().unwrap(), spec)?;
            // Copies on the host go on meanwhile, and the kind takes part as soon as it is there.
            manager.copy(&src, &there).wait()?;
            Ok::<_, transload::Error>(there)
        };
        let asked: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        let there = asked.into_iter().map(|thread| thread.join().unwrap());
        there.collect::<Result<Vec<_>, _>>()
    });
    let there = match there {
        Err(error) if manager.lacks(DeviceKind::WGPU).is_some() => {
            let reason = manager.lacks(DeviceKind::WGPU).unwrap();
            assert!(error.to_string().contains(&reason), "{error}");
            return Ok(());
        }
        there => there?,
    };
    assert_eq!(open_kinds(&manager), ["cpu", "wgpu"]);
    for pair in there.windows(2) {
        manager.copy(&pair[0], &pair[1]).wait()?;
    }
    assert!(
        manager
            .read_to_vec(&there[3])?
            .iter()
            .all(|byte| *byte == 9)
    );
    let names = manager
        .backends()
        .into_iter()
        .map(|backend| backend.id.to_string());
    assert_eq!(names.filter(|name| name == "wgpu").count(), 1);
    Ok(())
}

#[test]
fn a_kind_that_opens_late_takes_its_costs_from_the_profile_unless_its_driver_has_changed() -> Outcome
{
    let Some(measured) = discovered() else {
        return Ok(());
    };
    let topology = measured.topology();
    let links = topology.links().iter().map(|link| link.id);
    let links: Vec<_> = links
        .map(|link| MeasuredLink::new(link, vec![Point::new(1 << 20, 1_000, 900..=1_100, 9)]))
        .collect();
    let profile = Profile::new(&topology, links);
    let folder = env::temp_dir().join(format!("transload-late-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let path = folder.join("profile.toml");
    profile.save(&path)?;
    let text = fs::read_to_string(&path)?;
    let adapter = topology
        .devices()
        .iter()
        .find(|of| of.id.kind == DeviceKind::WGPU);
    let adapter = adapter.unwrap();
    let driver = adapter.driver.clone().unwrap();
    let there = |id: &transload::model::LinkId| id.src.device == adapter.id;
    for (is_same, text) in [
        (true, text.clone()),
        (false, text.replace(&driver, "another driver")),
    ] {
        fs::write(&path, text)?;
        let profile = Profile::load(&path)?;
        let manager = TransferManager::builder()
            .discover()
            .default_costs()
            .build()?;
        manager.apply_profile(&profile)?;
        let opened = manager.opened();
        assert!(
            opened
                .links()
                .iter()
                .all(|link| opened.is_measured(link.id))
        );
        let opened = manager.topology();
        let late: Vec<_> = opened
            .links()
            .iter()
            .filter(|link| there(&link.id))
            .collect();
        assert!(!late.is_empty());
        assert!(
            late.iter()
                .all(|link| opened.is_measured(link.id) == is_same)
        );
        assert_eq!(profile.check(&opened).is_ok(), is_same);
        let refused = manager.apply_profile(&profile).is_err();
        assert_eq!(refused, !is_same);
    }
    fs::remove_dir_all(&folder)?;
    Ok(())
}
