//! The other process and its script, with a stand-in for PyTorch where there is Python.
#![cfg(target_os = "linux")]

mod common;

use std::process::{Command, Stdio};

use common::{Folder, assert_whole, case, contestants, run};

const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torch");

/// The program with the stand-in, unless there is no Python.
fn command(folder: &Folder, test: &str, stand_in: &str) -> Option<Command> {
    let there = Command::new("python3")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if !there.is_ok_and(|status| status.success()) {
        common::skip(test, "there is no python3");
        return None;
    }
    let mut command = folder.command(&[]);
    command
        .env("TRANSLOAD_BENCH_PYTHON", "python3")
        .env("PYTHONPATH", STAND_IN)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("STAND_IN", stand_in)
        .args(["--quick", "--case"]);
    Some(command)
}

#[test]
fn libraries_take_turns_with_everybody_else() {
    let folder = Folder::new("torch");
    let test = "libraries_take_turns_with_everybody_else";
    for (group, ways) in [
        ("up", ["torch .to", "torch pin_memory().to", "torch copy_"]),
        (
            "down",
            ["torch .to", "torch copy_", "torch copy_ to pinned"],
        ),
    ] {
        let Some(mut command) = command(&folder, test, "") else {
            return;
        };
        run(command.arg(group), 0);
        let document = folder.json();
        assert_whole(&document);
        assert_eq!(document["rivals"]["present"]["torch"], "stand-in");
        for size in ["64KiB", "1MiB"] {
            let here = contestants(case(&document, &format!("{group}/{size}")));
            assert!(ways.iter().all(|way| here.contains(way)), "{here:?}");
            assert!(here.contains(&"pinned"), "{here:?}");
        }
    }
}

#[test]
fn tensors_are_loaded_by_everybody_and_compared() {
    let folder = Folder::new("load");
    let test = "tensors_are_loaded_by_everybody_and_compared";
    for (stand_in, code) in [("", 0), ("lies", 4)] {
        let Some(mut command) = command(&folder, test, stand_in) else {
            return;
        };
        run(command.arg("load"), code);
        let document = folder.json();
        let here = contestants(case(&document, "load/1MiB"));
        assert!(here.contains(&"safetensors load_file"), "{here:?}");
        assert!(here.contains(&"transload"), "{here:?}");
    }
}

#[test]
fn a_library_that_moves_wrong_bytes_is_seen() {
    let folder = Folder::new("lies");
    let test = "a_library_that_moves_wrong_bytes_is_seen";
    let Some(mut command) = command(&folder, test, "lies") else {
        return;
    };
    let (stdout, _) = run(command.arg("up/64KiB"), 4);
    assert!(stdout.contains("torch .to BYTES DIFFER"), "{stdout}");
}

#[test]
fn a_library_that_hangs_is_given_up_at_the_deadline() {
    let folder = Folder::new("hangs");
    let test = "a_library_that_hangs_is_given_up_at_the_deadline";
    let Some(mut command) = command(&folder, test, "hangs") else {
        return;
    };
    // A slow machine spends the limit before the case begins, which is then left out.
    let output = command.args(["up/64KiB", "--limit", "5"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(matches!(output.status.code(), Some(0 | 5)), "{told}");
    let told = format!("{told}{}", case(&folder.json(), "up/64KiB"));
    let is_left_out = told.contains("it needs about");
    assert!(
        is_left_out || told.contains("the interpreter did not answer in time"),
        "{told}"
    );
    folder.assert_nothing_leaked();
}
