//! The effect of a signal: no unfinished file where the program can avoid it, and a message about it.
#![cfg(target_os = "linux")]

mod support;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use support::{Folder, Run};

/// Those that ask a program to end, by name, and the exit codes that shells give for them.
const SIGNALS: [(Signal, &str, i32); 3] = [
    (Signal::HUP, "SIGHUP", 129),
    (Signal::INT, "SIGINT", 130),
    (Signal::TERM, "SIGTERM", 143),
];

/// Begins a copy that takes longer than any test, and returns when the program writes its file. The source takes no
/// room on the disk, and neither does the end of the written part.
fn begin(folder: &Folder, options: &[&str]) -> Child {
    let huge = File::create(folder.path("huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    // With a comparison, because some file systems copy such a file at once.
    let copy = ["copy", "huge", "cpu:0/file:back", "--verify"];
    let mut command = folder.command(&[&copy[..], options].concat());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    while partial(folder).is_empty() {
        assert_eq!(child.try_wait().unwrap(), None, "it ended too early");
        thread::yield_now();
    }
    child
}

/// The unfinished files in a folder.
fn partial(folder: &Folder) -> Vec<String> {
    let mut names = folder.names();
    names.retain(|name| name.ends_with(".partial"));
    names
}

fn end(child: Child, signal: Signal) -> Run {
    let process = Pid::from_child(&child);
    kill_process(process, signal).unwrap();
    Run(child.wait_with_output().unwrap())
}

#[test]
fn a_signal_removes_the_unfinished_file_and_says_so() {
    let folder = Folder::new("signal");
    for (signal, name, code) in SIGNALS {
        let run = end(begin(&folder, &[]), signal);
        let told = format!("error: stopped by {name}; removed what there was of back\n");
        assert_eq!((run.code(), run.stderr()), (code, told));
        assert_eq!(run.stdout(), "");
        assert_eq!(folder.names(), ["huge"]);
    }
}

/// As by `nohup`, and in the background of a shell.
#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    let folder = Folder::new("signal-ignored");
    File::create(folder.path("huge"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let script = "trap '' HUP INT; exec \"$0\" copy huge cpu:0/file:back --verify";
    let mut command = Command::new("sh");
    command.current_dir(&folder.0).env("TRANSLOAD_PROFILE", "");
    command.args(["-c", script, env!("CARGO_BIN_EXE_transload")]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    while partial(&folder).is_empty() {
        assert_eq!(child.try_wait().unwrap(), None, "it ended too early");
        thread::yield_now();
    }
    let process = Pid::from_child(&child);
    for signal in [Signal::HUP, Signal::INT] {
        kill_process(process, signal).unwrap();
    }
    // A signal that is not ignored would have been taken first: the lower number is.
    let run = end(child, Signal::TERM);
    assert_eq!(run.code(), 143, "{}", run.stderr());
}

#[test]
fn a_program_is_told_of_a_signal_by_the_one_object() {
    let folder = Folder::new("signal-json");
    for (signal, name, code) in SIGNALS {
        let run = end(begin(&folder, &["--json"]), signal);
        assert_eq!(run.code(), code);
        let error = &run.json()["error"];
        assert_eq!(error["kind"], "stopped");
        assert_eq!(error["exit_code"], code);
        assert!(error["message"].as_str().unwrap().contains(name), "{error}");
        assert_eq!(folder.names(), ["huge"]);
    }
}

#[test]
fn what_a_killed_copy_left_goes_with_the_next_copy_to_its_folder() {
    let folder = Folder::new("killed");
    let mut child = begin(&folder, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    let left = partial(&folder);
    assert_eq!(left.len(), 1, "{left:?}");

    let bytes = folder.file("model", 1000);
    fs::create_dir(folder.path("elsewhere")).unwrap();
    folder.json(&["copy", "model", "cpu:0", "--out", "elsewhere/back"]);
    assert_eq!(partial(&folder), left);
    folder.json(&["copy", "model", "cpu:0", "--out", "other"]);
    assert_eq!(fs::read(folder.path("other")).unwrap(), bytes);
    assert_eq!(folder.names(), ["elsewhere", "huge", "model", "other"]);
}

/// Whether the process has an open file without a name: the probe's own files have none.
fn works_in_a_nameless_file(child: &Child) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{}/fd", child.id())) else {
        return false;
    };
    let links = open
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    let is_deleted = |path: &Path| path.to_string_lossy().ends_with(" (deleted)");
    { links }.any(|path| path.starts_with(std::env::temp_dir()) && is_deleted(&path))
}

#[test]
fn a_signal_during_a_probe_leaves_the_old_profile() {
    let folder = Folder::new("signal-probe");
    fs::write(folder.path("profile.toml"), "the old one").unwrap();
    for (signal, name, code) in SIGNALS {
        let mut command = folder.command(&["probe", "--profile", "profile.toml"]);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        while !works_in_a_nameless_file(&child) {
            assert_eq!(child.try_wait().unwrap(), None, "it ended too early");
            thread::yield_now();
        }
        let run = end(child, signal);
        assert_eq!(
            (run.code(), run.stderr()),
            (code, format!("error: stopped by {name}\n"))
        );
        assert_eq!(run.stdout(), "");
        assert_eq!(folder.names(), ["profile.toml"]);
        assert_eq!(
            fs::read(folder.path("profile.toml")).unwrap(),
            b"the old one"
        );
    }
}

#[test]
fn a_limit_on_the_length_of_files_is_an_error_and_leaves_no_file() {
    let folder = Folder::new("limit");
    folder.model("model", 1 << 20);
    // The first three are refused before a byte is written, the last one by the write itself, for which the system has
    // a signal that ends programs.
    for arguments in [
        &["load", "model", "--save", "saved.safetensors"][..],
        &["copy", "model", "cpu:0", "--out", "back"],
        &["copy", "model", "cpu:0/file:back"],
        &[
            "explain",
            "cpu:0",
            "cpu:0",
            "1KiB",
            "--measure",
            "--html",
            "page.html",
        ],
    ] {
        let program = folder.command(&[arguments, &["--json"]].concat());
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -f 1; exec \"$@\"", "sh"]);
        limited.arg(program.get_program()).args(program.get_args());
        limited
            .current_dir(folder.path(""))
            .env("TRANSLOAD_PROFILE", "");
        let run = Run(limited.output().unwrap());
        assert_eq!(run.code(), 5, "{arguments:?}: {}", run.stdout());
        let error = &run.json()["error"];
        let told = error["message"].as_str().unwrap();
        assert!(told.contains("RLIMIT_FSIZE"), "{arguments:?}: {told}");
        assert_eq!(folder.names(), ["model"], "{arguments:?}");
    }
}
