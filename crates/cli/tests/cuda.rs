//! CUDA devices of the driver's double, and the program's messages where there are none.
#![cfg(target_os = "linux")]

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use support::{Folder, Run};

/// The path of the double's library, next to the tests.
fn double() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let library = tests.with_file_name("libcuda.so");
    assert!(library.exists(), "{} is not there", library.display());
    library
}

fn machine(name: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    format!("{root}/../../doubles/cuda-driver/topologies/{name}.toml")
}

/// A command that runs the program over the double.
fn over_double(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = folder.command(arguments);
    command.env("TRANSLOAD_CUDA_DRIVER", double());
    command.env("TRANSLOAD_DOUBLE_TOPOLOGY", machine("no-peer"));
    command
}

fn run(command: &mut Command) -> Run {
    Run(command.output().unwrap())
}

/// The libraries of drivers that the loader of the C library was asked for, by a run of the program that succeeds.
#[cfg(target_env = "gnu")]
fn drivers_of(folder: &Folder, arguments: &[&str]) -> Vec<&'static str> {
    let mut command = over_double(folder, arguments);
    command.env("LD_DEBUG", "files");
    command.env("LD_DEBUG_OUTPUT", folder.path("loaded"));
    let done = run(&mut command);
    assert_eq!(done.code(), 0, "{arguments:?}: {}", done.stderr());
    let mut told = String::new();
    // The name ends with the number of the process.
    for name in folder
        .names()
        .iter()
        .filter(|name| name.starts_with("loaded."))
    {
        told += &fs::read_to_string(folder.path(name)).unwrap();
        fs::remove_file(folder.path(name)).unwrap();
    }
    assert!(
        told.contains("libc.so"),
        "{arguments:?}: the loader tells nothing"
    );
    let drivers = ["libvulkan", "libEGL", "libGL", "libcuda"];
    drivers
        .into_iter()
        .filter(|name| told.contains(name))
        .collect()
}

#[cfg(target_env = "gnu")]
#[test]
fn a_command_loads_the_drivers_of_the_devices_that_it_names_and_no_other() {
    let folder = Folder::new("cuda-unnamed");
    folder.file("model", 100_000);
    folder.model("m.safetensors", 100_000);
    for arguments in [
        &["copy", "model", "cpu:0", "--out", "back"][..],
        &[
            "copy",
            "model",
            "cpu:0/shared",
            "cpu:0/file:back",
            "--verify",
            "--json",
        ],
        &["copy", "model", "cpu:0", "--trace", "trace.json"],
        &["explain", "cpu:0", "cpu:0/shared", "1MiB"],
        &[
            "explain",
            "cpu:0",
            "cpu:0",
            "1MiB",
            "--measure",
            "--html",
            "page.html",
        ],
        &["inspect", "m.safetensors"],
        &["load", "m.safetensors"],
        &[
            "load",
            "m.safetensors",
            "--to",
            "cpu:0/shared",
            "--verify",
            "--json",
        ],
        &["load", "m.safetensors", "--plan"],
    ] {
        assert_eq!(drivers_of(&folder, arguments), [""; 0], "{arguments:?}");
    }
    for arguments in [
        &["copy", "model", "cuda:0"][..],
        &["copy", "model", "cpu:0/pinned"],
        &["load", "m.safetensors", "--to", "cuda:1"],
    ] {
        assert_eq!(drivers_of(&folder, arguments), ["libcuda"], "{arguments:?}");
    }
    assert!(drivers_of(&folder, &["devices"]).contains(&"libcuda"));
}

fn reason_of(document: &Value) -> String {
    let absent = document["absent"].as_array().unwrap().iter();
    let mut cuda = absent.filter(|absent| absent["backend"] == "cuda");
    cuda.next().unwrap()["reason"].as_str().unwrap().to_owned()
}

#[test]
fn devices_are_listed_with_their_driver_and_where_they_are_plugged_in() {
    let folder = Folder::new("cuda-devices");
    let listed = run(&mut over_double(&folder, &["devices", "--json"]));
    assert_eq!(listed.code(), 0, "{}", listed.stderr());
    let value: Value = serde_json::from_str(&listed.stdout()).unwrap();
    let devices = value["devices"].as_array().unwrap().iter();
    let devices: Vec<&Value> = devices
        .filter(|device| device["backend"] == "cuda")
        .collect();
    assert_eq!(devices.len(), 2);
    for (index, device) in devices.iter().enumerate() {
        assert_eq!(device["id"], format!("cuda:{index}"));
        assert!(
            device["uuid"].is_string() && device["pci"].is_string(),
            "{device}"
        );
        assert!(
            device["driver"].as_str().unwrap().contains("CUDA 13"),
            "{device}"
        );
        let memories = device["memories"].as_array().unwrap();
        assert_eq!(memories[0], format!("cuda:{index}/device"));
    }
    let table = run(&mut over_double(&folder, &["devices"])).stdout();
    assert!(table.contains("cuda:1"), "{table}");
    assert!(table.contains("pinned"), "memory of the host's: {table}");
}

#[test]
fn a_file_comes_back_from_devices_as_it_went() {
    let folder = Folder::new("cuda-copy");
    let sent = folder.file("model", 9_000_001);
    let there = [
        "copy", "model", "cuda:0", "cuda:1", "cpu:0", "--verify", "--out", "back",
    ];
    let copied = run(&mut over_double(&folder, &there));
    assert_eq!(copied.code(), 0, "{}", copied.stderr());
    assert!(fs::read(folder.path("back")).unwrap() == sent);
    let table = copied.stdout();
    assert_eq!(table.matches("HostStaged").count(), 3, "{table}");
}

#[test]
fn a_model_goes_to_a_device() {
    let folder = Folder::new("cuda-load");
    folder.model("model", (20 << 20) + 3);
    let load = ["load", "model", "--to", "cuda:0", "--verify"];
    let value = run(&mut over_double(
        &folder,
        &[&load[..], &["--json"]].concat(),
    ))
    .json();
    assert_eq!(
        (&value["tensors"], &value["verified"]),
        (&json!(2), &json!(true))
    );
    assert_eq!(
        (&value["devices"], &value["simulated"]),
        (&json!(["cuda:0/device"]), &json!(true))
    );
    let told = run(&mut over_double(&folder, &load)).stdout();
    assert!(
        told.contains("\n2 tensors of 20 MiB from 1 file in cuda:0/device in "),
        "{told}"
    );
    assert!(told.contains("simulated: "), "{told}");
}

#[test]
fn the_way_between_two_devices_is_explained() {
    let folder = Folder::new("cuda-explain");
    let mut command = over_double(&folder, &["explain", "cuda:0", "cuda:1", "64MiB"]);
    let without = run(&mut command).stdout();
    assert!(
        without.contains("cuda:0/device → cpu:0/pinned → cuda:1/device"),
        "{without}"
    );
    assert!(
        without.contains("cuda:0 does not reach the memory of cuda:1"),
        "{without}"
    );
    command.env("TRANSLOAD_DOUBLE_TOPOLOGY", machine("nvlink-full"));
    let with = run(&mut command).stdout();
    let (_, chosen) = with.split_once("chosen\n").unwrap();
    assert!(chosen.starts_with("  PeerToPeer"), "{with}");
}

#[test]
fn without_a_driver_the_program_says_why_and_works() {
    let folder = Folder::new("cuda-none");
    folder.file("model", 100);
    let nowhere = |arguments: &[&str]| {
        let mut command = folder.command(arguments);
        command.env("TRANSLOAD_CUDA_DRIVER", "/nowhere/libcuda.so.1");
        run(&mut command)
    };
    let listed = nowhere(&["devices", "--json"]);
    let reason = reason_of(&serde_json::from_str(&listed.stdout()).unwrap());
    assert!(reason.contains("/nowhere/libcuda.so.1"), "{reason}");
    let refused = nowhere(&["copy", "model", "cuda:0", "cpu:0"]);
    assert_eq!(refused.code(), 3);
    assert!(
        refused.stderr().contains("/nowhere/libcuda.so.1"),
        "{}",
        refused.stderr()
    );
    let copied = nowhere(&["copy", "model", "cpu:0", "--verify"]);
    assert_eq!(copied.code(), 0, "{}", copied.stderr());
}

#[test]
fn a_driver_without_devices_says_so() {
    let folder = Folder::new("cuda-zero");
    let mut command = folder.command(&["devices", "--json"]);
    command.env("TRANSLOAD_CUDA_DRIVER", double());
    command.env("TRANSLOAD_DOUBLE_DEVICES", "0");
    let reason = reason_of(&serde_json::from_str(&run(&mut command).stdout()).unwrap());
    assert!(reason.contains("has no device"), "{reason}");
}

#[test]
fn what_a_stand_in_for_the_driver_did_says_so_in_json_too() {
    let folder = Folder::new("cuda-stand-in");
    folder.file("model", 100_000);
    let json = |arguments: &[&str]| -> Value {
        let arguments = [arguments, &["--json"]].concat();
        let run = run(&mut over_double(&folder, &arguments));
        assert_eq!(run.code(), 0, "{}", run.stderr());
        serde_json::from_str(&run.stdout()).unwrap()
    };
    let listed = json(&["devices"]);
    for device in listed["devices"].as_array().unwrap() {
        assert_eq!(device["simulated"], device["backend"] == "cuda", "{device}");
    }
    let copied = json(&["copy", "model", "cpu:0", "cuda:0"]);
    let hops = copied["hops"].as_array().unwrap().iter();
    let told: Vec<bool> = hops
        .map(|hop| hop["simulated"].as_bool().unwrap())
        .collect();
    assert_eq!(told, [false, true]);
    assert_eq!(
        json(&["explain", "cpu:0", "cuda:0", "1MiB"])["simulated"],
        true
    );
}

#[test]
fn a_driver_that_fails_once_leaves_a_reason() {
    let folder = Folder::new("cuda-late");
    let mut command = over_double(&folder, &["devices", "--json"]);
    command.env("TRANSLOAD_DOUBLE_FAULTS", "call=cuInit:999");
    let reason = reason_of(&serde_json::from_str(&run(&mut command).stdout()).unwrap());
    assert!(
        reason.contains("cuInit: CUDA_ERROR_UNKNOWN (999)"),
        "{reason}"
    );
}

#[test]
fn what_was_measured_over_a_stand_in_is_not_saved_unasked() {
    let folder = Folder::new("cuda-probe");
    let saved = folder.path("saved.toml");
    let mut command = over_double(&folder, &["probe", "--seconds", "2", "--json"]);
    let probed = run(command.env("TRANSLOAD_PROFILE", &saved));
    assert_eq!(probed.code(), 0, "{}", probed.stderr());
    let value: Value = serde_json::from_str(&probed.stdout()).unwrap();
    assert_eq!(value["simulated"], true);
    assert_eq!(value["profile_path"], Value::Null);
    assert!(!saved.exists());
}
