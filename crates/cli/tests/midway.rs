//! Interference with a copy between two hops. The program reports a hop before it begins the next, so a reader that
//! does not read blocks the program there.
#![cfg(target_os = "linux")]

mod support;

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::thread;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use support::{Folder, Run, bytes};

const LEN: usize = 100_000;

/// A full pipe, which takes no byte more until it is read.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    for block in [&[b'\n'; 4096][..], b"\n"] {
        loop {
            match writer.write(block) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

/// Begins a copy of `model` whose first stop is the file `middle`, and returns after that hop, with the full pipe that
/// blocks the program there.
fn begin(folder: &Folder, arguments: &[&str]) -> (Child, PipeReader) {
    let (reader, writer) = full_pipe();
    let mut command = folder.command(arguments);
    let mut child = command
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !folder.path("middle").exists() {
        assert_eq!(child.try_wait().unwrap(), None, "it ended too early");
        thread::yield_now();
    }
    (child, reader)
}

/// Runs a copy of `model` whose first stop is the file `middle`, and calls `meddle` after that hop.
fn run(folder: &Folder, arguments: &[&str], meddle: impl FnOnce()) -> (Run, String) {
    let (child, mut reader) = begin(folder, arguments);
    meddle();
    let mut out = String::new();
    reader.read_to_string(&mut out).unwrap();
    let run = Run(child.wait_with_output().unwrap());
    (run, out.trim_start().to_owned())
}

#[test]
fn a_file_that_is_truncated_while_it_is_read_is_named_with_offset_and_length() {
    let folder = Folder::new("truncated");
    folder.file("model", LEN);
    let middle = folder.path("middle");
    let arguments = ["copy", "model", "cpu:0/file:middle", "cpu:0"];
    let (run, out) = run(&folder, &arguments, || {
        let file = OpenOptions::new().write(true).open(&middle).unwrap();
        file.set_len(1000).unwrap();
    });
    let said = run.stderr();
    assert_eq!(run.code(), 5, "{said}");
    for word in ["hop 2", "middle", "1000", "100000"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    // The program reported the hop that succeeded, and no other.
    assert_eq!(out.lines().count(), 2, "{out}");
}

#[test]
fn bytes_that_change_at_a_stop_are_told_and_not_delivered() {
    let folder = Folder::new("changed");
    folder.file("model", LEN);
    fs::write(folder.path("back"), b"before").unwrap();
    let middle = folder.path("middle");
    let arguments = [
        "copy",
        "model",
        "cpu:0/file:middle",
        "--out",
        "back",
        "--verify",
    ];
    let (run, _) = run(&folder, &arguments, || {
        let file = OpenOptions::new().write(true).open(&middle).unwrap();
        file.write_all_at(b"something else", 500).unwrap();
    });
    let said = run.stderr();
    assert_eq!(run.code(), 4, "{said}");
    let sum = format!("xxh3-64:{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes(LEN)));
    assert!(said.contains("middle") && said.contains(&sum), "{said}");
    assert_eq!(fs::read(folder.path("back")).unwrap(), b"before");
    assert_eq!(folder.names(), ["back", "middle", "model"]);
}

#[test]
fn a_signal_ends_a_copy_that_waits_for_its_reader() {
    let folder = Folder::new("unread");
    folder.file("model", LEN);
    let arguments = ["copy", "model", "cpu:0/file:middle", "--out", "back"];
    let (child, reader) = begin(&folder, &arguments);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let run = Run(child.wait_with_output().unwrap());
    drop(reader);
    assert_eq!(run.code(), 143);
    let told = "error: stopped by SIGTERM; removed what there was of back\n";
    assert_eq!(run.stderr(), told);
    // The hop that was over stays over.
    assert_eq!(folder.names(), ["middle", "model"]);
}

#[test]
fn a_reader_who_leaves_does_not_stop_the_copy() {
    let folder = Folder::new("left");
    let bytes = folder.file("model", LEN);
    for arguments in [
        &["copy", "model", "cpu:0", "--out", "back"][..],
        &["devices"],
        &["devices", "--json"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = folder.command(arguments);
        let child = command.stdout(writer).stderr(Stdio::piped()).spawn();
        let run = Run(child.unwrap().wait_with_output().unwrap());
        assert_eq!(
            (run.code(), run.stderr()),
            (0, String::new()),
            "{arguments:?}"
        );
    }
    assert!(fs::read(folder.path("back")).unwrap() == bytes);
}

#[test]
fn an_output_that_cannot_be_written_is_a_failure_that_is_told() {
    let folder = Folder::new("full");
    let Ok(full) = OpenOptions::new().write(true).open("/dev/full") else {
        panic!("every Linux has /dev/full");
    };
    let mut command = folder.command(&["devices"]);
    let child = command.stdout(full).stderr(Stdio::piped()).spawn();
    let run = Run(child.unwrap().wait_with_output().unwrap());
    assert_eq!(run.code(), 5);
    assert!(run.stderr().contains("output"), "{}", run.stderr());
}
