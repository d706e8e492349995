//! The whole program over the double of the driver: its output is complete, and it holds nothing at its end.
#![cfg(target_os = "linux")]

mod common;

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use common::{Folder, PROGRAM, assert_whole, case, contestants, double, results, run};
use serde_json::Value;
use transload_cuda::raw::Version;

#[test]
fn a_quick_run_is_whole_says_what_it_ran_on_and_leaks_nothing() {
    let folder = Folder::new("quick");
    let two = [("TRANSLOAD_DOUBLE_DEVICES", "2")];
    let (stdout, stderr) = run(folder.command(&two).arg("--quick"), 0);
    let document = folder.json();
    assert_whole(&document);
    folder.assert_nothing_leaked();

    // The document says that these figures are not a GPU's.
    assert_eq!(document["double"], true);
    assert_eq!(document["quick"], true);
    for told in [&stdout, &stderr, &document["warnings"].to_string()] {
        assert!(
            told.contains("nothing ran on a GPU, and every time is modelled"),
            "{told}"
        );
    }
    let [first, second] = &document["devices"].as_array().unwrap()[..] else {
        panic!("{document:#}")
    };
    assert_eq!(first["name"], "Double of a CUDA device");
    assert_eq!(first["attributes"]["ASYNC_ENGINE_COUNT"], 2);
    assert_ne!(first["uuid"], second["uuid"]);
    assert!(first["peers"]["1"]["can_access"].is_number(), "{first:#}");
    assert_eq!(
        document["driver"]["symbols"]["cuMemcpyBatchAsync_v2"],
        "present"
    );
    assert!(document["machine"]["memory_bytes"].as_u64() > Some(0));

    let absent = &document["rivals"]["absent"]["torch"];
    assert!(
        absent.as_str().unwrap().contains("/nowhere/python3"),
        "{absent}"
    );
    let suite = &document["conformance"];
    assert_eq!(suite["failed"], 0, "{suite:#}");
    assert!(suite["passed"].as_u64() > Some(0), "{suite:#}");
    assert!(stdout.contains("conformance: "), "{stdout}");
    let links = document["probe"].as_array().unwrap();
    let up = links
        .iter()
        .find(|of| of["link"] == "cpu:0/pinned → cuda:0/device");
    assert!(
        up.unwrap()["sizes"]["65536"].as_f64() > Some(0.0),
        "{up:#?}"
    );
    assert_ways(&document);

    // Another test covers transfers between two drivers.
    let own = results(&document)
        .iter()
        .filter(|of| !of["group"].to_string().contains("wgpu"));
    let skipped: Vec<_> = own.filter(|of| !of["skipped"].is_null()).collect();
    assert!(
        skipped.is_empty(),
        "a GiB is enough for a quick run: {skipped:#?}"
    );
}

/// Asserts that every way of every case takes part.
fn assert_ways(document: &Value) {
    let expected = [
        ("up/1MiB", &["cuMemcpyHtoD", "pinned", "pinned, again"][..]),
        ("down/1MiB", &["cuMemcpyDtoH", "pinned", "pinned, again"]),
        (
            "both/64KiB",
            &["pinned, two streams", "pageable, two threads"],
        ),
        ("device/64KiB", &["cuMemcpyDtoDAsync"]),
        (
            "peers/64KiB",
            &["cuMemcpyPeerAsync", "pinned, one after the other"],
        ),
        (
            "managed-up/1MiB",
            &["no prefetch", "prefetch", "a pinned copy instead"],
        ),
        (
            "managed-down/1MiB",
            &["no prefetch", "prefetch", "a pinned copy instead"],
        ),
        ("load/1MiB", &["pread into pinned memory, 4 threads"]),
        (
            "blocks-up/100x4KiB",
            &[
                "transload, one list",
                "transload, probed, one list",
                "cuMemcpyBatchAsync",
                "a loop of asynchronous copies",
                "coalesced through pinned memory",
            ],
        ),
        (
            "blocks-down/100x16KiB",
            &[
                "cuMemcpyBatchAsync",
                "a loop of asynchronous copies",
                "coalesced through pinned memory",
            ],
        ),
        (
            "latency-up/4KiB",
            &[
                "raw call and wait, pinned",
                "raw call and wait, pinned, again",
                "raw call and wait, pageable",
            ],
        ),
    ];
    for (name, ways) in expected {
        let case = case(document, name);
        let here = contestants(case);
        for party in ["transload", "transload, probed"] {
            assert!(here.contains(&party), "{name} lacks {party}: {here:?}");
            assert!(case["facts"][party].is_string(), "{name}: {case:#}");
        }
        for way in ways {
            assert!(here.contains(way), "{name} lacks {way}: {here:?}");
        }
    }
    // The kernel decides whether there are huge pages.
    let registration = case(document, "registration/1MiB");
    assert!(contestants(registration).contains(&"small pages"));
    let huge = contestants(registration).contains(&"huge pages");
    assert!(
        huge || registration["absent"]["huge pages"].is_string(),
        "{registration:#}"
    );
}

#[test]
fn bytes_go_between_wgpu_and_cuda_where_there_is_an_adapter() {
    let folder = Folder::new("wgpu");
    for group in ["wgpu-cuda", "cuda-wgpu"] {
        run(folder.command(&[]).args(["--quick", "--case", group]), 0);
        let document = folder.json();
        assert_whole(&document);
        let case = case(&document, &format!("{group}/1MiB"));
        if let Some(reason) = case["skipped"].as_str() {
            // The test runner sets the variable where it provides adapters.
            assert!(env::var_os("TRANSLOAD_ADAPTER").is_none(), "{reason}");
            let test = "bytes_go_between_wgpu_and_cuda_where_there_is_an_adapter";
            return common::skip(test, reason);
        }
        assert_eq!(
            contestants(case),
            ["transload", "by hand, mapped and pinned"]
        );
        let way = case["facts"]["transload"].as_str().unwrap();
        assert!(way.contains("cpu:0/pinned"), "{way}");
        folder.assert_nothing_leaked();
    }
}

#[test]
fn what_no_longer_fits_is_skipped_with_the_reason() {
    let folder = Folder::new("deadline");
    run(folder.command(&[]).args(["--quick", "--limit", "0"]), 0);
    let document = folder.json();
    assert_whole(&document);
    for case in results(&document) {
        let reason = case["skipped"].as_str().unwrap();
        assert!(reason.ends_with("and 0.0 s are left"), "{reason}");
        assert!(contestants(case).is_empty());
    }
    folder.assert_nothing_leaked();
}

#[test]
fn one_device_alone_has_no_peers() {
    let folder = Folder::new("alone");
    run(folder.command(&[]).args(["--quick", "--case", "peers"]), 0);
    let document = folder.json();
    for case in results(&document) {
        assert_eq!(case["skipped"], "there is one device");
    }
    assert_eq!(results(&document).len(), 2);
    folder.assert_nothing_leaked();
}

#[test]
fn what_the_device_has_no_room_for_is_skipped_with_the_reason() {
    let folder = Folder::new("room");
    let mut command = folder.command(&[]);
    // The case needs seven of these at a time, and there is one GiB.
    run(command.args(["--case", "both/256MiB", "--limit", "20"]), 0);
    let document = folder.json();
    let reason = case(&document, "both/256MiB")["skipped"].to_string();
    assert!(
        reason.contains("it needs 1792 MiB of the device"),
        "{reason}"
    );
    folder.assert_nothing_leaked();
}

#[test]
fn a_driver_of_another_version_lacks_ways_and_says_so() {
    let folder = Folder::new("downgraded");
    let older = folder.path("libcuda.so.1");
    let mut library = fs::read(double()).unwrap();
    cuda::downgrade(&mut library, Version::new(12, 1), &[]).unwrap();
    fs::write(&older, library).unwrap();
    let measured = |beginning| {
        let mut command = folder.command(&[]);
        command.env("TRANSLOAD_CUDA_DRIVER", &older);
        run(command.args(["--quick", "--case", beginning]), 0);
        let document = folder.json();
        assert_whole(&document);
        document
    };
    let document = measured("blocks-up");
    assert_eq!(document["driver"]["version"], "12.1");
    let told = &document["driver"]["symbols"]["cuMemcpyBatchAsync"];
    assert_eq!(told, "missing; came with CUDA 12.8");
    let blocks = case(&document, "blocks-up/100x4KiB");
    let why = blocks["absent"]["cuMemcpyBatchAsync"].as_str().unwrap();
    assert!(
        why.contains("of CUDA 12.1, has no cuMemcpyBatchAsync nor"),
        "{why}"
    );
    assert_eq!(contestants(blocks).len(), 6);
    // A driver of that version has another signature of the prefetch.
    let document = measured("managed-up");
    assert!(contestants(case(&document, "managed-up/1MiB")).contains(&"prefetch"));
    folder.assert_nothing_leaked();
}

#[test]
fn a_device_that_fails_is_told_case_by_case() {
    let folder = Folder::new("ecc");
    let faults = [("TRANSLOAD_DOUBLE_FAULTS", "ecc@40")];
    let (stdout, _) = run(folder.command(&faults).arg("--quick"), 5);
    assert!(stdout.contains("FAILED"), "{stdout}");
    let document = folder.json();
    let last = results(&document).last().unwrap();
    assert!(
        last["failed"].to_string().contains("CUDA_ERROR_ECC"),
        "{last:#}"
    );
}

#[test]
fn without_a_driver_it_ends_with_the_reason() {
    let folder = Folder::new("none");
    let mut command = folder.command(&[]);
    command.env("TRANSLOAD_CUDA_DRIVER", "/nonexistent");
    let (_, stderr) = run(&mut command, 3);
    let reason = "error: no CUDA driver: /nonexistent, which TRANSLOAD_CUDA_DRIVER names: ";
    assert!(stderr.starts_with(reason), "{stderr}");
    assert_eq!(stderr.matches("No such file").count(), 1, "{stderr}");
    assert!(!folder.path("gpu.json").exists());
    let zero = [("TRANSLOAD_DOUBLE_DEVICES", "0")];
    let (_, stderr) = run(&mut folder.command(&zero), 3);
    // The text appears once, though the error and its source both contain it.
    assert_eq!(
        stderr.matches("CUDA_ERROR_NO_DEVICE").count(),
        1,
        "{stderr}"
    );
}

#[test]
fn arguments_that_mean_nothing_are_told_with_what_there_is() {
    let folder = Folder::new("usage");
    let quick = |arguments: &[&str], code| {
        let mut command = folder.command(&[]);
        run(command.args(["--quick", "--alone"]).args(arguments), code).1
    };
    let stderr = quick(&["--case", "sideways"], 2);
    assert!(stderr.contains("`sideways`; there are "), "{stderr}");
    assert!(stderr.contains("latency-up"), "{stderr}");
    let stderr = quick(&["--limit=-1"], 2);
    assert!(stderr.contains("--limit -1: "), "{stderr}");
    let stderr = quick(&["--device", "4"], 3);
    assert!(stderr.contains("no device 4: the driver has 1"), "{stderr}");
    assert!(!folder.path("gpu.json").exists());
}

#[test]
fn the_script_finds_the_program_and_hands_its_end_on() {
    let folder = Folder::new("script");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("run.sh");
    let out = folder.path("out");
    let mut command = Command::new(&script);
    command
        .arg(PROGRAM)
        .arg(&out)
        .args(["--quick", "--case", "latency"]);
    folder.over_the_double(&mut command, &[]);
    let (stdout, _) = run(&mut command, 0);
    assert!(stdout.contains("latency-up/4KiB"), "{stdout}");
    assert!(out.join("gpu.json").is_file());

    // The tests put a copy of the script next to the program.
    let moved = folder.path("run.sh");
    fs::copy(&script, &moved).unwrap();
    fs::copy(PROGRAM, folder.path("transload-gpu-bench")).unwrap();
    let mut command = Command::new(&moved);
    command.arg(&out).arg("--quick");
    folder.over_the_double(&mut command, &[("TRANSLOAD_DOUBLE_DEVICES", "0")]);
    run(&mut command, 3);

    let (_, stderr) = run(&mut Command::new(&script), 2);
    assert!(stderr.starts_with("usage: "), "{stderr}");
    let (stdout, _) = run(Command::new(&script).arg("--help"), 0);
    assert!(stdout.starts_with("Measures") && stdout.contains("Exit codes"));
}
