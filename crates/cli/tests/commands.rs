//! Every command, on this machine and with simulated devices.

mod support;

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::process::Stdio;
use std::thread;

use serde_json::{Value, json};
use support::{Folder, Run, fields, topology};
use xxhash_rust::xxh3::xxh3_64;

/// Sizes around those of chunks and file blocks.
const SIZES: [usize; 6] = [0, 1, 4095, 4096, 262_145, (5 << 20) + 3];

#[test]
fn devices_lists_the_host_and_says_why_others_are_absent() {
    let folder = Folder::new("devices");
    let value = folder.json(&["devices"]);
    assert_eq!(fields(&value), ["absent", "devices", "notes", "schema"]);
    let host = &value["devices"][0];
    assert_eq!(
        fields(host),
        [
            "backend",
            "driver",
            "id",
            "memories",
            "memory_bytes",
            "name",
            "pci",
            "software",
            "uuid"
        ]
    );
    let memories = json!(["cpu:0/pageable", "cpu:0/shared", "cpu:0/file", "cpu:0/disk"]);
    assert_eq!(host["memories"], memories);
    assert_eq!(
        (&host["id"], &host["backend"]),
        (&json!("cpu:0"), &json!("host"))
    );
    assert_eq!(host["software"], false);
    assert!(!host["name"].as_str().unwrap().is_empty());
    let others = &value["devices"].as_array().unwrap()[1..];
    let of = |name: &str| {
        others
            .iter()
            .filter(|other| other["backend"] == name)
            .count()
    };
    let (cuda, metal, adapters) = (of("cuda"), of("metal"), of("wgpu"));
    assert_eq!(cuda + metal + adapters, others.len());
    let absent = value["absent"].as_array().unwrap();
    let mut names: Vec<&Value> = absent.iter().map(|absent| &absent["backend"]).collect();
    // The device is present or reported as absent.
    for (name, count) in [("wgpu", adapters), ("cuda", cuda), ("metal", metal)] {
        if count == 0 {
            assert_eq!(names.remove(0), name);
        }
    }
    assert!(names.is_empty(), "{names:?}");
    for absent in absent {
        assert_eq!(fields(absent), ["backend", "reason"]);
        let reason = absent["reason"].as_str().unwrap();
        assert!(!reason.is_empty());
        if absent["backend"] == "metal" && cfg!(not(target_vendor = "apple")) {
            assert!(reason.contains("Apple"), "{reason}");
        }
    }

    let run = folder.run(&["devices"]);
    assert_eq!(run.code(), 0);
    for word in ["cpu:0", "host", "shared", "wgpu", "cuda", "metal"] {
        assert!(run.stdout().contains(word), "{}", run.stdout());
    }
}

#[test]
fn simulated_devices_are_listed_with_a_topology_only_and_say_so() {
    let folder = Folder::new("devices-simulated");
    let value = folder.json(&["devices", "--topology", &topology("workstation.toml")]);
    let devices = value["devices"].as_array().unwrap();
    assert_eq!(devices[0]["id"], "cpu:0");
    // Adapters of this machine are as real as the host.
    let simulated = |device: &&Value| device["backend"] == "sim";
    let ids: Vec<&Value> = devices
        .iter()
        .filter(simulated)
        .map(|device| &device["id"])
        .collect();
    assert_eq!(ids, ["sim:0", "sim:1"]);
    for device in devices {
        let named = device["name"].as_str().unwrap().contains("simulated");
        let wanted = simulated(&device);
        assert_eq!((&device["simulated"], named), (&json!(wanted), wanted));
    }
    let run = folder.run(&["devices", "--topology", &topology("workstation.toml")]);
    let simulated = run
        .stdout()
        .lines()
        .filter(|l| l.contains("simulated"))
        .count();
    assert_eq!(simulated, 2);
}

#[test]
fn a_file_moves_through_heap_and_shared_memory_into_a_file() {
    let folder = Folder::new("chain");
    for len in SIZES {
        let bytes = folder.file("model", len);
        let value = folder.json(&[
            "copy",
            "model",
            "cpu:0",
            "cpu:0/shared",
            "cpu:0/file:back",
            "--verify",
        ]);
        assert!(
            fs::read(folder.path("back")).unwrap() == bytes,
            "{len} bytes"
        );
        assert_eq!(
            fields(&value),
            ["bytes", "checksum", "hops", "notes", "schema", "verified"]
        );
        assert_eq!(value["bytes"], len);
        assert_eq!(value["verified"], true);
        let checksum = format!("xxh3-64:{:016x}", xxh3_64(&bytes));
        assert_eq!(value["checksum"], checksum);
        let hops = value["hops"].as_array().unwrap();
        let ends: Vec<(&str, &str)> = hops
            .iter()
            .map(|hop| (hop["src"].as_str().unwrap(), hop["dst"].as_str().unwrap()))
            .collect();
        assert_eq!(
            ends,
            [
                ("cpu:0/file:model", "cpu:0"),
                ("cpu:0", "cpu:0/shared"),
                ("cpu:0/shared", "cpu:0/file:back"),
            ]
        );
        for hop in hops {
            assert_eq!(
                fields(hop),
                [
                    "check_seconds",
                    "dst",
                    "fallbacks",
                    "gb_per_s",
                    "lanes",
                    "method",
                    "route",
                    "seconds",
                    "src"
                ]
            );
            assert_eq!(hop["method"], "DirectCopy");
            assert_eq!(hop["fallbacks"], json!([]));
            assert!(hop["seconds"].as_f64().unwrap() >= 0.0);
            assert!(hop["check_seconds"].as_f64().unwrap() >= 0.0);
            let rate = &hop["gb_per_s"];
            assert!(rate.is_null() || rate.as_f64().unwrap() > 0.0, "{rate}");
        }
        assert_eq!(hops[0]["route"], json!(["cpu:0/file", "cpu:0/pageable"]));
        assert_eq!(hops[1]["route"], json!(["cpu:0/pageable", "cpu:0/shared"]));
    }
    // No unfinished file is left.
    assert_eq!(folder.names(), ["back", "model"]);
}

#[test]
fn out_writes_what_arrived_and_replaces_what_was_there() {
    let folder = Folder::new("out");
    fs::write(folder.path("back"), vec![1; 10 << 20]).unwrap();
    for len in SIZES {
        let bytes = folder.file("model", len);
        let value = folder.json(&["copy", "model", "cpu:0/shared", "--out", "back"]);
        assert!(
            fs::read(folder.path("back")).unwrap() == bytes,
            "{len} bytes"
        );
        assert_eq!(value["verified"], false);
        assert_eq!(value["checksum"], Value::Null);
        assert_eq!(value["hops"].as_array().unwrap().len(), 2);
        assert_eq!(value["hops"][0]["check_seconds"], Value::Null);
    }
    assert_eq!(folder.names(), ["back", "model"]);
}

#[test]
fn a_file_may_be_replaced_by_itself() {
    let folder = Folder::new("itself");
    let bytes = folder.file("model", 1 << 20);
    folder.json(&["copy", "model", "cpu:0/file:model", "--verify"]);
    assert!(fs::read(folder.path("model")).unwrap() == bytes);
    assert_eq!(folder.names(), ["model"]);
}

#[test]
fn each_hop_is_reported_on_a_line_of_its_own() {
    let folder = Folder::new("rows");
    let bytes = folder.file("model", 1 << 20);
    let run = folder.run(&["copy", "model", "cpu:0", "--out", "back", "--verify"]);
    assert_eq!((run.code(), run.stderr()), (0, String::new()));
    let out = run.stdout();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("HOP"), "{out}");
    assert!(lines[0].ends_with("TIME     RATE       CHECK"), "{out}");
    assert!(
        lines[1].starts_with('1') && lines[1].contains("cpu:0/file:model"),
        "{out}"
    );
    assert!(
        lines[2].starts_with('2') && lines[2].contains("cpu:0/file:back"),
        "{out}"
    );
    let checksum = format!("xxh3-64:{:016x}", xxh3_64(&bytes));
    assert!(
        out.contains("\n1 MiB (1,048,576 bytes), verified at every stop: ")
            && out.contains(&checksum),
        "{out}"
    );
    assert!(!out.contains('\u{1b}'), "no colours in a pipe: {out:?}");
    let name = "a-file-whose-name-alone-takes-half-the-line-or-more.safetensors";
    folder.file(name, 1);
    for verify in [&["--verify"][..], &[]] {
        let copy = ["copy", name, "cpu:0", "--out", name];
        let out = folder.run(&[&copy, verify].concat()).stdout();
        let widest = out.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{out}");
        assert_eq!(out.matches(".safetensors  ").count(), 2, "{out}");
        assert_eq!(out.contains("CHECK"), !verify.is_empty(), "{out}");
    }
}

#[test]
fn real_bytes_pass_through_simulated_devices_and_the_hops_say_so() {
    let folder = Folder::new("simulated");
    let machine = topology("workstation.toml");
    for len in SIZES {
        let bytes = folder.file("model", len);
        let copy = ["copy", "model", "cpu:0", "sim:0", "sim:1", "--out", "back"];
        let verify = ["--verify", "--topology", &machine];
        let value = folder.json(&[&copy[..], &verify[..]].concat());
        assert!(
            fs::read(folder.path("back")).unwrap() == bytes,
            "{len} bytes"
        );
        let checksum = format!("xxh3-64:{:016x}", xxh3_64(&bytes));
        assert_eq!(value["checksum"], checksum);
        let hops = value["hops"].as_array().unwrap();
        let simulated: Vec<bool> = hops
            .iter()
            .map(|hop| hop["simulated"].as_bool().unwrap())
            .collect();
        assert_eq!(simulated, [false, true, true, true]);
    }
}

#[test]
fn simulated_hops_take_the_time_of_the_model() {
    let folder = Folder::new("modelled");
    folder.file("model", 16 << 20);
    let machine = topology("eight-gpu.toml");
    let copy = [
        "copy",
        "model",
        "cpu:0",
        "sim:0",
        "sim:1",
        "--topology",
        &machine,
    ];
    let hop = |run: &Value| run["hops"][2].clone();
    let first = hop(&folder.json(&copy));
    assert_eq!(first["method"], "PeerToPeer");
    // The time is the same to the nanosecond in every run, whatever the load of this machine.
    assert_eq!(first, hop(&folder.json(&copy)));
    let plan = folder.json(&["explain", "sim:0", "sim:1", "16MiB", "--topology", &machine]);
    assert!(first["seconds"].as_f64() >= plan["chosen"]["predicted_s"].as_f64());

    let out = folder.run(&copy).stdout();
    assert_eq!(
        out.lines().filter(|l| l.contains("simulated")).count(),
        3,
        "{out}"
    );
    assert!(out.contains("modelled"), "{out}");
}

#[test]
fn a_hop_over_several_routes_at_once_names_them_all() {
    let folder = Folder::new("lanes");
    folder.file("model", 64 << 20);
    // As fast as the way through the host.
    let link = "\n[[link]]\nsrc = \"sim:0/device\"\ndst = \"sim:1/device\"\naccess = \"peer\"\nengine = \"sim:0#2\"\n\
         class = \"fabric\"\nlatency_ns = 6_000\nbytes_per_second = 20_000_000_000\n";
    let machine = fs::read_to_string(topology("workstation.toml")).unwrap() + link;
    fs::write(folder.path("two.toml"), machine).unwrap();
    let copy = ["copy", "model", "sim:0", "sim:1", "--topology", "two.toml"];
    let run = folder.json(&copy);
    let lanes = run["hops"][1]["lanes"].as_array().unwrap();
    let shares = lanes.iter().map(|lane| lane["share"].as_f64().unwrap());
    assert_eq!((lanes.len(), shares.sum::<f64>()), (2, 1.0));
    let ends = json!(["sim:0/device", "sim:1/device"]);
    for lane in lanes {
        let route = lane["route"].as_array().unwrap();
        assert_eq!(json!([route.first(), route.last()]), ends);
    }
    let out = folder.run(&copy).stdout();
    assert!(
        out.contains(" % direct; ") && out.contains(" % via "),
        "{out}"
    );
}

#[test]
fn explain_tells_the_route_on_this_machine() {
    let folder = Folder::new("explain");
    for size in ["0", "1", "64MiB", "1.5GB"] {
        let value = folder.json(&["explain", "cpu:0", "cpu:0/shared", size]);
        assert_eq!(
            fields(&value),
            [
                "chosen",
                "notes",
                "rejected",
                "schema",
                "simulated",
                "sizes"
            ]
        );
        let chosen = &value["chosen"];
        assert_eq!(
            fields(chosen),
            [
                "chunk_bytes",
                "lanes",
                "loads",
                "method",
                "predicted_s",
                "proof",
                "route"
            ]
        );
        assert_eq!(chosen["method"], "DirectCopy");
        assert_eq!(chosen["route"], json!(["cpu:0/pageable", "cpu:0/shared"]));
        assert!(chosen["chunk_bytes"].as_u64().unwrap() > 0);
        let predicted_s = chosen["predicted_s"].as_f64().unwrap();
        assert!(predicted_s >= 0.0);
        let loads = chosen["loads"].as_array().unwrap();
        let busy = |load: &Value| load["seconds"].as_f64().unwrap();
        assert!(loads.iter().all(|load| busy(load) <= predicted_s));
        assert_eq!(value["sizes"][0]["from_bytes"], 0);
        assert_eq!(value["simulated"], false);
    }
}

#[test]
fn explain_says_where_small_transfers_share_a_slot() {
    let folder = Folder::new("shared-slot");
    let machine = topology("workstation.toml");
    let shared = |to: &str, size: &str| {
        let arguments = ["explain", "sim:0", to, size, "--topology", &machine];
        let lane = folder.json(&arguments)["chosen"]["lanes"][0].clone();
        let text = folder.run(&arguments).stdout();
        let chunk = lane["chunk_bytes"].as_u64().unwrap();
        (lane["to_a_slot"].as_u64().unwrap(), chunk, text)
    };
    let (count, chunk, text) = shared("sim:1", "4KiB");
    assert_eq!(count, chunk / 4096);
    let line = format!("up to {count} transfers of this size share a slot");
    assert!(text.contains(&line), "{text}");
    for (to, size, count) in [("sim:1", "64MiB", 1), ("sim:0", "4KiB", 0)] {
        let (said, _, text) = shared(to, size);
        assert_eq!(said, count, "{to} {size}");
        assert!(!text.contains("share a slot"), "{text}");
    }
}

#[test]
fn explain_shows_a_chunk_only_where_there_is_more_than_one() {
    let folder = Folder::new("chunks");
    let chunk = |size: &str| {
        let value = folder.json(&["explain", "cpu:0", "cpu:0/shared", size]);
        value["chosen"]["chunk_bytes"].as_u64().unwrap()
    };
    let shown = |size: &str| {
        let run = folder.run(&["explain", "cpu:0", "cpu:0/shared", size]);
        run.stdout().contains("in chunks of")
    };
    let one = chunk("1GiB");
    for (bytes, several) in [(0, false), (64, false), (one, false), (one + 1, true)] {
        let size = bytes.to_string();
        assert_eq!(chunk(&size), one, "{bytes}");
        assert_eq!(shown(&size), several, "{bytes}");
    }
}

#[test]
fn the_help_lists_what_can_be_named() {
    let folder = Folder::new("explain-help");
    for command in ["explain", "copy"] {
        let help = folder.run(&[command, "--help"]).stdout();
        let words = [
            "cpu:0/shared",
            "cpu:0/file",
            "cpu:0/pinned",
            "cuda:N",
            "cuda:N/managed",
            "metal:N",
            "wgpu:N",
            "sim:N",
        ];
        for word in words {
            assert!(help.contains(word), "{help}");
        }
    }
    let help = folder.run(&["--help"]).stdout();
    for text in [
        "TRANSLOAD_PROFILE",
        "TRANSLOAD_CUDA_DRIVER",
        "1 KiB is 1024 bytes",
        "1 GB/s is 1,000,000,000 bytes per second",
        "wgpu is wgpu:0",
    ] {
        assert!(help.contains(text), "{help}");
    }
    // As it says, of every kind.
    for kind in ["cpu", "cuda", "metal", "sim", "wgpu"] {
        let named = |place: &str| {
            let run = folder.run(&["explain", place, place, "1MiB"]);
            (run.code(), run.stdout(), run.stderr())
        };
        assert_eq!(named(kind), named(&format!("{kind}:0")));
    }
}

#[test]
fn explain_plans_on_a_described_machine_and_says_that_it_is_one() {
    let folder = Folder::new("explain-simulated");
    let machine = topology("eight-gpu.toml");
    let explain = ["explain", "sim:0", "sim:1", "64MiB", "--topology", &machine];
    let value = folder.json(&explain);
    assert_eq!(value["simulated"], true);
    assert_eq!(value["chosen"]["method"], "PeerToPeer");
    assert_eq!(
        value["chosen"]["route"],
        json!(["sim:0/device", "sim:1/device"])
    );
    let rejected = value["rejected"].as_array().unwrap();
    assert!(!rejected.is_empty());
    for way in rejected {
        let names = [
            "measured",
            "method",
            "predicted_s",
            "proof",
            "reason",
            "route",
        ];
        assert_eq!(fields(way), names);
        assert!(way["predicted_s"].is_f64() && way["route"].is_array());
        assert!(!way["reason"].as_str().unwrap().is_empty());
    }
    // The file describes its processors too; the program must not use those of this machine.
    let between = [
        "explain",
        "cpu:0",
        "cpu:0/pinned",
        "1MiB",
        "--topology",
        &machine,
    ];
    assert_eq!(folder.json(&between)["simulated"], true);
    for arguments in [&explain, &between] {
        let out = folder.run(arguments).stdout();
        assert!(out.contains("simulated") && out.contains("chosen"), "{out}");
    }
}

#[test]
fn explain_lists_every_route_of_a_plan_that_splits_the_payload() {
    let folder = Folder::new("explain-split");
    let machine = topology("eight-gpu.toml");
    let explain = ["explain", "sim:0", "sim:1", "4GiB", "--topology", &machine];
    let chosen = &folder.json(&explain)["chosen"];
    let lanes = chosen["lanes"].as_array().unwrap();
    assert_eq!(lanes.len(), 2);
    assert_eq!(lanes[0]["route"], chosen["route"]);
    let share = |lane: &serde_json::Value| lane["share"].as_f64().unwrap();
    assert!((share(&lanes[0]) + share(&lanes[1]) - 1.0).abs() < 1e-9);
    let out = folder.run(&explain).stdout();
    assert!(out.contains("chosen: over 2 routes at once, "), "{out}");
    assert!(
        out.contains("sim:0/device → cpu:0/pinned → sim:1/device"),
        "{out}"
    );
}

#[test]
fn completions_name_every_command() {
    let folder = Folder::new("completions");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let run = folder.run(&["completions", shell]);
        assert_eq!(run.code(), 0);
        for command in ["devices", "copy", "explain", "probe", "completions"] {
            assert!(run.stdout().contains(command), "{shell}");
        }
        let value = folder.json(&["completions", shell]);
        assert_eq!(value["shell"], shell);
        assert_eq!(value["script"], run.stdout());
    }
}

#[test]
fn explain_runs_every_way_and_shows_what_each_takes() {
    let machine = topology("workstation.toml");
    let folder = Folder::new("explain-measure");
    let explain = [
        "explain",
        "sim:0",
        "sim:1",
        "1MiB",
        "--topology",
        &machine,
        "--measure",
    ];
    let value = folder.json(&explain);
    let ways = value["measured"].as_array().unwrap();
    assert!(ways.len() > 1, "{value}");
    assert_eq!(ways[0]["method"], value["chosen"]["method"]);
    assert_eq!(ways[0]["route"], value["chosen"]["route"]);
    for way in ways {
        // The machine keeps its model to the nanosecond.
        assert_eq!(way["seconds"], way["predicted_s"], "{way}");
        assert!(
            way["samples"].as_u64().unwrap() >= 3 && way["failure"].is_null(),
            "{way}"
        );
    }
    assert!(ways[1..].is_sorted_by_key(|way| way["seconds"].as_f64().unwrap().to_bits()));

    let out = folder.run(&explain).stdout();
    let header = out
        .lines()
        .position(|line| line.starts_with("MARGIN"))
        .unwrap();
    let rows: Vec<&str> = out.lines().skip(header + 1).collect();
    assert!(
        rows[0].starts_with("chosen") && rows[1].starts_with('+'),
        "{out}"
    );
    // Without the flag nothing is run, and no field says that it was.
    let plain = folder.json(&explain[..6]);
    assert!(plain.get("measured").is_none());
}

#[test]
fn a_trace_has_the_bytes_of_each_hop_and_a_place_of_its_own() {
    let folder = Folder::new("trace");
    let len = folder.file("model", (5 << 20) + 3).len() as u64;
    let copy = ["copy", "model", "cpu:0/shared", "--out", "back"];
    folder.json(&[&copy[..], &["--trace", "trace.json"]].concat());
    assert_eq!(folder.names(), ["back", "model", "trace.json"]);
    let text = fs::read_to_string(folder.path("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let moved = |name: &str| -> u64 {
        let events = trace["traceEvents"].as_array().unwrap().iter();
        let slices = events.filter(|event| event["name"] == name);
        let moved = slices.filter_map(|event| event["args"]["offset"].as_u64().map(|_| event));
        moved
            .map(|event| event["args"]["bytes"].as_u64().unwrap())
            .sum()
    };
    assert_eq!(moved("cpu:0/file → cpu:0/shared"), len);
    assert_eq!(moved("cpu:0/shared → cpu:0/file"), len);

    for (place, reason) in [
        ("-", "--trace - does not write to standard output"),
        (
            "model",
            "--trace would replace model, which is the file to copy; name another file",
        ),
        (
            "./back",
            "--trace would replace ./back, which is the one of --out; name another file",
        ),
        ("nowhere/trace.json", "nowhere/trace.json"),
        (".", "cannot replace .: "),
    ] {
        let run = folder.run(&[&copy[..], &["--trace", place]].concat());
        assert_ne!(run.code(), 0, "{place}: {}", run.stderr());
        assert!(run.stderr().contains(reason), "{place}: {}", run.stderr());
    }
    assert_eq!(folder.names(), ["back", "model", "trace.json"]);
}

/// Runs with bytes on standard input.
fn fed(folder: &Folder, bytes: &[u8], arguments: &[&str]) -> Run {
    let mut command = folder.command(arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let feeder = thread::spawn(move || {
        // A program that refuses its arguments reads nothing.
        let _ = stdin.write_all(&bytes);
    });
    let run = Run(child.wait_with_output().unwrap());
    feeder.join().unwrap();
    run
}

#[test]
fn standard_input_is_copied_and_standard_output_gets_what_arrived() {
    let folder = Folder::new("standard");
    for len in SIZES {
        let bytes = folder.file("model", len);
        let run = fed(
            &folder,
            &bytes,
            &["copy", "-", "cpu:0", "--out", "back", "--verify", "--json"],
        );
        let said = run.json();
        assert_eq!(said["bytes"], len);
        assert_eq!(
            (&said["hops"][0]["src"], &said["hops"][1]["dst"]),
            (&json!("-"), &json!("cpu:0/file:back"))
        );
        assert_eq!(fs::read(folder.path("back")).unwrap(), bytes);

        for copy in [
            &["copy", "model", "-"][..],
            &["copy", "model", "cpu:0/shared", "--verify", "--out", "-"],
            &["copy", "-", "cpu:0", "-"],
        ] {
            let run = fed(&folder, &bytes, copy);
            assert_eq!(run.code(), 0, "{}", run.stderr());
            assert!(run.0.stdout == bytes, "{copy:?}");
            // The table is out of the way.
            assert!(run.stderr().starts_with("HOP "), "{}", run.stderr());
            let run = fed(&folder, &bytes, &[copy, &["--json"]].concat());
            assert!(run.0.stdout == bytes, "{copy:?}");
            let said: Value = serde_json::from_str(&run.stderr()).unwrap();
            assert_eq!((&said["bytes"], &said["schema"]), (&json!(len), &json!(3)));
        }
    }
    // A file that was read in part gives its rest, and one without a length all that it has.
    let bytes = fs::read(folder.path("model")).unwrap();
    let mut file = fs::File::open(folder.path("model")).unwrap();
    file.seek(SeekFrom::Start(1000)).unwrap();
    let mut command = folder.command(&["copy", "-", "-"]);
    let run = Run(command.stdin(file.try_clone().unwrap()).output().unwrap());
    assert_eq!(run.code(), 0, "{}", run.stderr());
    assert!(run.0.stdout == bytes[1000..]);
    assert_eq!(file.stream_position().unwrap(), bytes.len() as u64);
    #[cfg(target_os = "linux")]
    {
        let file = fs::File::open("/proc/version").unwrap();
        let mut command = folder.command(&["copy", "-", "-"]);
        let run = Run(command.stdin(file).output().unwrap());
        assert_eq!(run.0.stdout, fs::read("/proc/version").unwrap());
    }
    // What cannot be copied leaves standard output empty.
    let run = fed(&folder, b"bytes", &["copy", "-", "cuda:99", "-"]);
    assert_eq!((run.code(), run.stdout()), (3, String::new()));
}

#[cfg(unix)]
#[test]
fn a_reader_that_wants_no_more_ends_a_copy_without_a_word() {
    let folder = Folder::new("closed");
    folder.file("model", 5 << 20);
    let mut command = folder.command(&["copy", "model", "-"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let run = Run(child.wait_with_output().unwrap());
    assert_eq!((run.code(), run.stderr()), (141, String::new()));
}

#[cfg(unix)]
#[test]
fn a_standard_stream_that_cannot_be_used_is_refused_and_an_empty_one_is_empty() {
    let folder = Folder::new("shut");
    let bytes = folder.file("model", 5000);
    let script = |script: &str, arguments: &[&str]| {
        fs::write(folder.path("back"), "kept").unwrap();
        let program = folder.command(arguments);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(program.get_program());
        shell.args(arguments).current_dir(&folder.0);
        let run = Run(shell.env("TRANSLOAD_PROFILE", "").output().unwrap());
        (run, fs::read(folder.path("back")).unwrap())
    };
    let (input, output) = (["copy", "-", "cpu:0/file:back"], ["copy", "model", "-"]);
    let temporary = "; TMPDIR names another directory\n";
    for (line, arguments, code, told) in [
        (
            r#"exec "$@" <&-"#,
            input,
            2,
            "cannot read standard input: it is closed",
        ),
        (
            r#"exec "$@" 0>other"#,
            input,
            2,
            "cannot read standard input: it is closed",
        ),
        (
            r#"exec "$@" <."#,
            input,
            2,
            "cannot read standard input: Is a directory",
        ),
        (r#"cat model | TMPDIR=/nowhere "$@""#, input, 2, temporary),
        (
            r#"cat model | (ulimit -f 1; exec "$@")"#,
            input,
            5,
            temporary,
        ),
        (r#"exec "$@" >&-"#, output, 2, "standard output is closed"),
        (
            r#"exec "$@" 1<model"#,
            output,
            2,
            "standard output is closed",
        ),
        (r#"TMPDIR=/nowhere exec "$@" | cat"#, output, 0, temporary),
    ] {
        let (run, back) = script(line, &arguments);
        assert_eq!(run.code(), code, "{line}: {}", run.stderr());
        let said = run.stderr();
        assert!(said.contains(told), "{line}: {said}");
        assert_eq!(said.contains("TMPDIR"), told == temporary, "{line}: {said}");
        assert_eq!(
            (&back[..], run.stdout()),
            (&b"kept"[..], String::new()),
            "{line}"
        );
    }
    let (run, back) = script(r#"exec "$@" </dev/null"#, &input);
    assert_eq!((run.code(), back), (0, Vec::new()), "{}", run.stderr());
    let (run, _) = script(r#"exec "$@" >/dev/null"#, &output);
    assert_eq!(run.code(), 0, "{}", run.stderr());
    let (run, back) = script(r#"cat model | "$@""#, &input);
    assert_eq!((run.code(), back), (0, bytes), "{}", run.stderr());
}

#[cfg(unix)]
#[test]
fn names_that_are_not_text_are_names_of_files_everywhere() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new("odd-names");
    let bytes = folder.file("model", 5000);
    folder.model("tensors", 100);
    let odd = |begin: &str| -> OsString {
        OsStr::from_bytes(&[begin.as_bytes(), b"odd\xff\xfe"].concat()).into()
    };
    let run = |arguments: &[OsString]| {
        let run = Run(folder
            .command(&["--json"])
            .args(arguments)
            .output()
            .unwrap());
        assert_eq!(run.code(), 0, "{}", run.stdout());
        run.json()
    };
    let text = |text: &str| OsString::from(text);
    let read = |name: &OsStr| fs::read(folder.0.join(name)).unwrap();
    let said = run(&[
        text("copy"),
        text("model"),
        odd("cpu:0/file:"),
        text("--trace"),
        odd("trace-"),
    ]);
    assert_eq!(read(&odd("")), bytes);
    assert!(!read(&odd("trace-")).is_empty());
    assert_eq!(said["hops"][0]["dst"], "cpu:0/file:odd\u{fffd}\u{fffd}");
    run(&[
        text("copy"),
        odd(""),
        text("cpu:0"),
        text("--out"),
        odd("out-"),
    ]);
    assert_eq!(read(&odd("out-")), bytes);
    run(&[text("load"), text("tensors"), text("--save"), odd("save-")]);
    run(&[text("inspect"), odd("save-")]);
    run(&[text("key"), odd("key-")]);
    fs::write(folder.0.join(odd("topology-")), support::TINY).unwrap();
    let described = [text("--topology"), odd("topology-")];
    let probe = [
        text("probe"),
        text("--quick"),
        text("--profile"),
        odd("profile-"),
        text("--html"),
        odd("page-"),
    ];
    run(&[&probe[..], &described].concat());
    let explain = [
        text("explain"),
        text("cpu:0"),
        text("cpu:0"),
        text("1MiB"),
        text("--profile"),
        odd("profile-"),
    ];
    run(&[&explain[..], &described].concat());
    assert!(!read(&odd("page-")).is_empty());
}

/// The figures are compared with those of the source. Where the folder is on a file system whose word on holes the host's
/// backend does not take, nothing is shown.
#[cfg(target_os = "linux")]
#[test]
fn holes_of_a_file_stay_holes_in_what_is_made_of_it() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let folder = Folder::new("sparse");
    // As in `holes.rs` of the host's backend: ext2 to ext4, XFS, Btrfs and tmpfs.
    let system = rustix::fs::statfs(&folder.0).unwrap().f_type as u32;
    if ![0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994].contains(&system) {
        support::skip(&format!(
            "needs a folder for temporary files on ext4, XFS, Btrfs or tmpfs, and its type is {system:#x}"
        ));
        return;
    }
    let sparse = fs::File::create(folder.path("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    for at in [0, (20 << 20) + 5, (63 << 20) + 1] {
        sparse.write_all_at(&support::bytes(70_000), at).unwrap();
    }
    let wanted = fs::read(folder.path("sparse")).unwrap();
    let blocks = |name: &str| fs::metadata(folder.path(name)).unwrap().blocks();
    // Bytes that passed memory have holes where whole blocks are zeros, of which each piece of content may have two.
    let most = blocks("sparse") + 3 * 2 * (64 << 10) / 512;
    for copy in [
        &["copy", "sparse", "cpu:0/file:back"][..],
        &["copy", "sparse", "cpu:0/file:back", "--verify"],
        &["copy", "sparse", "cpu:0/shared", "--out", "back"],
        &["copy", "sparse", "cpu:0", "+", "cpu:0/file:back"],
    ] {
        folder.json(copy);
        assert!(fs::read(folder.path("back")).unwrap() == wanted, "{copy:?}");
        assert!(
            blocks("back") <= most,
            "{copy:?}: {} of {}",
            blocks("back"),
            blocks("sparse")
        );
        fs::remove_file(folder.path("back")).unwrap();
    }

    let len = 32_u64 << 20;
    let header = format!(r#"{{"a":{{"dtype":"U8","shape":[{len}],"data_offsets":[0,{len}]}}}}"#);
    let model = fs::File::create(folder.path("model")).unwrap();
    model
        .write_all_at(&(header.len() as u64).to_le_bytes(), 0)
        .unwrap();
    model.write_all_at(header.as_bytes(), 8).unwrap();
    model.set_len(8 + header.len() as u64 + len).unwrap();
    model
        .write_all_at(&support::bytes(70_000), 20 << 20)
        .unwrap();
    folder.json(&["load", "model", "--save", "saved", "--verify"]);
    let saved = fs::read(folder.path("saved")).unwrap();
    let model = fs::read(folder.path("model")).unwrap();
    let tensor = |file: &[u8]| file[file.len() - len as usize..].to_vec();
    assert!(tensor(&saved) == tensor(&model));
    assert!(
        blocks("saved") <= blocks("model") + 3 * 2 * (64 << 10) / 512,
        "{}",
        blocks("saved")
    );
}
