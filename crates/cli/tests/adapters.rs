//! Tests with adapters, if the machine has any: the first of them is `wgpu:0`.

mod support;

use std::fs;

use serde_json::json;
use support::Folder;
use xxhash_rust::xxh3::xxh3_64;

#[test]
fn adapters_are_listed_with_their_drivers_and_software_ones_say_so() {
    let folder = Folder::new("adapters");
    if !folder.has_adapters(1) {
        return;
    }
    let value = folder.json(&["devices"]);
    let out = folder.run(&["devices"]).stdout();
    let adapters = value["devices"].as_array().unwrap()[1..].iter();
    for (index, adapter) in adapters.enumerate() {
        let id = format!("wgpu:{index}");
        assert_eq!(adapter["id"], id);
        let memories = adapter["memories"].as_array().unwrap();
        for kind in ["device", "upload", "readback"] {
            assert!(
                memories.contains(&json!(format!("{id}/{kind}"))),
                "{adapter}"
            );
        }
        let row = out.lines().find(|line| line.starts_with(&id)).unwrap();
        for field in ["name", "driver"] {
            assert!(
                row.contains(adapter[field].as_str().unwrap()),
                "{field}: {out}"
            );
        }
        assert_eq!(
            row.contains("(software)"),
            adapter["software"] == true,
            "{out}"
        );
    }
}

#[test]
fn a_model_goes_to_an_adapter() {
    let folder = Folder::new("load-adapter");
    if !folder.has_adapters(1) {
        return;
    }
    folder.model("model", (20 << 20) + 3);
    for memory in ["wgpu:0", "wgpu:0/device"] {
        let value = folder.json(&["load", "model", "--to", memory, "--verify"]);
        assert_eq!(
            (&value["tensors"], &value["verified"]),
            (&json!(2), &json!(true))
        );
        let device = value["devices"][0].as_str().unwrap();
        assert!(device.starts_with(memory), "{device}");
    }
}

/// The Vulkan and OpenGL loaders of Linux take the paths of their drivers from these variables.
#[cfg(target_os = "linux")]
#[test]
fn where_no_adapter_is_the_program_says_what_brings_one() {
    let folder = Folder::new("no-adapter");
    folder.file("model", 100);
    let run = |arguments: &[&str]| {
        let mut command = folder.command(arguments);
        for variable in [
            "VK_DRIVER_FILES",
            "VK_ICD_FILENAMES",
            "__EGL_VENDOR_LIBRARY_FILENAMES",
        ] {
            command.env(variable, "/nowhere");
        }
        support::Run(command.output().unwrap())
    };
    let value = run(&["devices", "--json"]).json();
    let absent = value["absent"].as_array().unwrap();
    let Some(wgpu) = absent.iter().find(|absent| absent["backend"] == "wgpu") else {
        // A system whose OpenGL ignores these variables.
        assert_eq!(value["devices"][1]["backend"], "wgpu");
        return;
    };
    assert_eq!(value["devices"].as_array().unwrap().len(), 1);
    let reason = wgpu["reason"].as_str().unwrap();
    assert!(reason.contains("mesa-vulkan-drivers"), "{reason}");
    assert!(run(&["devices"]).stdout().contains(reason));
    for arguments in [
        &["copy", "model", "cpu:0", "wgpu:0"][..],
        &["explain", "wgpu:0", "cpu:0", "1MiB"],
    ] {
        let run = run(arguments);
        let said = run.stderr();
        assert_eq!(run.code(), 3, "{said}");
        assert!(said.contains("wgpu:0") && said.contains(reason), "{said}");
    }
    // Commands that need no adapter work.
    assert_eq!(run(&["copy", "model", "cpu:0", "--out", "back"]).code(), 0);
}

/// The loader ignores the driver, and so do all programs.
#[cfg(target_os = "linux")]
#[test]
fn a_driver_that_cannot_be_loaded_is_left_out_and_the_others_work() {
    let folder = Folder::new("broken-driver");
    if !folder.has_adapters(1) {
        return;
    }
    let driver = r#"{"file_format_version": "1.0.0", "ICD": {"library_path": "/nowhere/libvk.so", "api_version": "1.3.0"}}"#;
    fs::write(folder.path("broken.json"), driver).unwrap();
    let given = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];
    let given = given.into_iter().find_map(|name| std::env::var(name).ok());
    let system = "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json";
    let sound = given.unwrap_or_else(|| system.into());
    let before = folder.json(&["devices"]);
    let mut command = folder.command(&["devices", "--json"]);
    let broken = folder.path("broken.json").display().to_string();
    command.env("VK_DRIVER_FILES", format!("{broken}:{sound}"));
    let run = support::Run(command.output().unwrap());
    let found = run.json();
    let names = |value: &serde_json::Value| {
        let devices = value["devices"].as_array().unwrap().clone();
        devices
            .iter()
            .map(|device| device["name"].to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&found), names(&before));
}

#[test]
fn drivers_say_nothing_where_nobody_is_logged_in() {
    let folder = Folder::new("session");
    let mut command = folder.command(&["devices"]);
    for variable in [
        "XDG_RUNTIME_DIR",
        "WAYLAND_DISPLAY",
        "DISPLAY",
        // This setting would stop the layer that complains from being loaded.
        "NODEVICE_SELECT",
    ] {
        command.env_remove(variable);
    }
    let run = support::Run(command.output().unwrap());
    assert_eq!((run.code(), run.stderr()), (0, String::new()));
}

/// A cgroup with little memory, where the test may make one.
#[cfg(target_os = "linux")]
struct Group(std::path::PathBuf);

#[cfg(target_os = "linux")]
impl Group {
    fn new(limit_bytes: u64) -> Option<Group> {
        let name = format!("transload-test-{}", std::process::id());
        let versions = [("memory", "memory.limit_in_bytes"), ("", "memory.max")];
        versions.into_iter().find_map(|(controller, limit)| {
            let folder = std::path::Path::new("/sys/fs/cgroup")
                .join(controller)
                .join(&name);
            fs::create_dir(&folder).ok()?;
            let group = Group(folder);
            fs::write(group.0.join(limit), limit_bytes.to_string()).ok()?;
            Some(group)
        })
    }

    fn run(&self, folder: &Folder, arguments: &[&str]) -> support::Run {
        let program = folder.command(arguments);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", r#"echo $$ > "$0" && exec "$@""#]);
        command
            .arg(self.0.join("cgroup.procs"))
            .arg(program.get_program());
        command.args(program.get_args()).current_dir(&folder.0);
        for (name, value) in program.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        support::Run(command.output().unwrap())
    }
}

#[cfg(target_os = "linux")]
impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The kernel ends a process that touches more than its group has, so each allocation is refused before.
#[cfg(target_os = "linux")]
#[test]
fn an_adapter_in_software_and_a_probe_stay_within_the_memory_of_a_cgroup() {
    let folder = Folder::new("cgroup");
    if !folder.has_adapters(1) {
        return;
    }
    if folder.json(&["devices"])["devices"][1]["software"] != true {
        return support::skip("needs an adapter in software");
    }
    // Room for the drivers themselves, two of them in continuous integration.
    let Some(group) = Group::new(128 << 20) else {
        return support::skip("may make no cgroup");
    };
    folder.model("model", 120 << 20);
    for arguments in [
        &["copy", "model", "wgpu:0"][..],
        &["copy", "model", "wgpu:0/device"],
        &["load", "model", "--to", "wgpu:0"],
        &["load", "model", "--to", "wgpu:0/device"],
    ] {
        let run = group.run(&folder, arguments);
        assert_eq!(run.code(), 5, "{arguments:?}: {}", run.stderr());
        assert!(run.stderr().contains("wgpu:0/"), "{}", run.stderr());
    }
    // Some of them fit, and some without what carries them there.
    for mebibytes in [8, 56, 72, 88, 104] {
        folder.model("model", mebibytes << 20);
        let run = group.run(&folder, &["load", "model", "--to", "wgpu:0/device"]);
        let code = run.code();
        let may_fail = code == 5 && mebibytes > 8;
        assert!(code == 0 || may_fail, "{mebibytes} MiB: {}", run.stderr());
    }
    let run = group.run(&folder, &["probe", "--quick", "--no-save"]);
    assert_eq!(run.code(), 0, "{}", run.stderr());
}

#[test]
fn a_file_moves_through_an_adapter_and_comes_back_as_it_went() {
    let folder = Folder::new("through");
    if !folder.has_adapters(1) {
        return;
    }
    for len in [0, 1, 4095, 262_145, (5 << 20) + 3] {
        let bytes = folder.file("model", len);
        let stops = ["wgpu:0", "cpu:0", "wgpu:0", "cpu:0/file:middle", "wgpu:0"];
        let copy = [
            &["copy", "model"],
            &stops[..],
            &["--verify", "--out", "back"],
        ]
        .concat();
        let value = folder.json(&copy);
        for file in ["middle", "back"] {
            assert!(
                fs::read(folder.path(file)).unwrap() == bytes,
                "{file}: {len} bytes"
            );
        }
        assert_eq!(value["verified"], true);
        assert_eq!(
            value["checksum"],
            format!("xxh3-64:{:016x}", xxh3_64(&bytes))
        );
        assert_eq!(value["hops"].as_array().unwrap().len(), 6);
    }
    assert_eq!(folder.names(), ["back", "middle", "model"]);
}

#[test]
fn a_file_moves_from_one_adapter_to_another() {
    let folder = Folder::new("between");
    if !folder.has_adapters(2) {
        return;
    }
    let bytes = folder.file("model", (5 << 20) + 3);
    let stops = ["wgpu:0", "wgpu:1", "cpu:0", "wgpu:1", "wgpu:0"];
    let copy = [
        &["copy", "model"],
        &stops[..],
        &["--verify", "--out", "back"],
    ]
    .concat();
    let value = folder.json(&copy);
    assert!(fs::read(folder.path("back")).unwrap() == bytes);
    assert_eq!(
        value["checksum"],
        format!("xxh3-64:{:016x}", xxh3_64(&bytes))
    );
    let plan = folder.json(&["explain", "wgpu:0", "wgpu:1", &bytes.len().to_string()]);
    for field in ["method", "route"] {
        assert_eq!(value["hops"][1][field], plan["chosen"][field]);
    }
}

#[test]
fn files_stream_through_slots_and_never_lie_in_the_heap_as_a_whole() {
    let folder = Folder::new("stream");
    if !folder.has_adapters(1) {
        return;
    }
    let len = 24 << 20;
    let bytes = folder.file("model", len);
    // Memory that the host cannot reach, and the default memory of the adapter.
    for place in ["wgpu:0/device", "wgpu:0"] {
        let value = folder.json(&["copy", "model", place, "--out", "back"]);
        for (hop, [src, dst]) in [(0, ["cpu:0/file", place]), (1, [place, "cpu:0/file"])] {
            let hop = &value["hops"][hop];
            let plan = folder.json(&["explain", src, dst, &len.to_string()]);
            let plan = &plan["chosen"];
            assert_eq!(
                (&hop["method"], &hop["route"]),
                (&plan["method"], &plan["route"])
            );
            assert_eq!(hop["fallbacks"], json!([]));
            // Bytes that rest on the way do so in leased slots, each as large as a chunk, and a process has 64 MiB of
            // slots in all; on other routes the bytes never rest.
            let rests = plan["route"].as_array().unwrap().len() > 2;
            assert!(rests || place == "wgpu:0", "{plan}");
            assert_eq!(
                plan["method"],
                if rests { "HostStaged" } else { "ZeroCopy" }
            );
            let chunk_bytes = plan["chunk_bytes"].as_u64().unwrap();
            assert!(chunk_bytes * 3 <= len as u64, "{plan}");
        }
        assert!(fs::read(folder.path("back")).unwrap() == bytes, "{place}");
    }
}

#[test]
fn explain_names_the_lanes_to_and_from_an_adapter() {
    let folder = Folder::new("lanes");
    if !folder.has_adapters(1) {
        return;
    }
    for (src, dst) in [
        ("wgpu:0", "cpu:0"),
        ("cpu:0", "wgpu:0"),
        ("cpu:0/file", "wgpu:0"),
    ] {
        let value = folder.json(&["explain", src, dst, "64MiB"]);
        assert_eq!(value["simulated"], false);
        let lanes = value["chosen"]["lanes"].as_array().unwrap();
        assert!(!lanes.is_empty());
        let out = folder.run(&["explain", src, dst, "64MiB"]).stdout();
        for lane in lanes {
            let route: Vec<&str> = lane["route"]
                .as_array()
                .unwrap()
                .iter()
                .map(|memory| memory.as_str().unwrap())
                .collect();
            let ends = [route[0], route[route.len() - 1]];
            let named = |end: &str, place: &str| end.starts_with(place);
            assert!(named(ends[0], src) && named(ends[1], dst), "{route:?}");
            assert!(out.contains(&route.join(" → ")), "{out}");
            assert!(lane["chunk_bytes"].as_u64().unwrap() > 0);
        }
    }
}

#[test]
fn an_adapter_that_is_not_here_is_told_with_those_that_are() {
    let folder = Folder::new("ninth");
    if !folder.has_adapters(1) {
        return;
    }
    folder.file("model", 100);
    let copy = ["copy", "model", "cpu:0/file:back", "wgpu:0", "wgpu:9"];
    for arguments in [&copy[..], &["explain", "wgpu:9", "cpu:0", "64MiB"]] {
        let run = folder.run(arguments);
        let told = "error: there is no device wgpu:9 here; there are: cpu:0, wgpu:0";
        assert_eq!(run.code(), 3);
        assert!(run.stderr().starts_with(told), "{}", run.stderr());
    }
    assert_eq!(folder.names(), ["model"]);
}

#[test]
fn the_slots_of_an_adapter_are_no_stop_and_the_refusal_says_so() {
    let folder = Folder::new("slots");
    if !folder.has_adapters(1) {
        return;
    }
    folder.file("model", 100);
    for slots in ["wgpu:0/upload", "wgpu:0/readback"] {
        let run = folder.run(&["copy", "model", slots, "cpu:0"]);
        assert_eq!(run.code(), 3);
        let told = format!(
            "error: cannot allocate this in {slots}: it holds staging slots alone; name wgpu:0 instead"
        );
        assert!(run.stderr().starts_with(&told), "{}", run.stderr());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_copy_through_an_adapter_that_is_interrupted_leaves_no_file() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    use rustix::process::{Pid, Signal, kill_process};

    let folder = Folder::new("interrupted");
    if !folder.has_adapters(1) {
        return;
    }
    // The source is sparse and takes no room on the disk.
    let model = fs::File::create(folder.path("model")).unwrap();
    model.set_len(32 << 20).unwrap();
    // More hops than any test lasts, so that the signal comes in the middle.
    let stops = ["wgpu:0", "cpu:0"].repeat(400);
    let copy = [&["copy", "model"], &stops[..], &["--out", "back"]].concat();
    for _ in 0..2 {
        let mut command = folder.command(&copy);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut lines = out.lines();
        // The heading, and the first hops there and back.
        let begun: Vec<String> = lines.by_ref().take(4).map(Result::unwrap).collect();
        assert!(
            begun[3].starts_with('3') && begun[3].contains("wgpu:0"),
            "{begun:?}"
        );
        assert_eq!(
            folder.names().len(),
            2,
            "the file in the making, and its source"
        );
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        // The test reads on, so that the program stops in the middle of a hop and not at a full pipe.
        assert!(lines.count() < stops.len());
        let run = support::Run(child.wait_with_output().unwrap());
        let told = "error: stopped by SIGINT; removed what there was of back\n";
        assert_eq!((run.code(), run.stderr().as_str()), (130, told));
        assert_eq!(folder.names(), ["model"]);
    }
}
