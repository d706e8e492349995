//! Texts of errors: they say what could not be done, to which thing, with which numbers, and what to do; and an error that
//! is printed with its sources says nothing twice.

use std::error::Error as StdError;
use std::fs;

use transload::{DeviceKind, Profile};
use transload_testkit::topology;

use super::files::Folder;
use super::*;

/// The error as `anyhow` prints it with `{:#}`.
fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        text.push_str(&format!(": {error}"));
        below = error.source();
    }
    text
}

#[test]
fn absent_devices_say_why() {
    let manager = host();
    let device = |name: &str| manager.resolve(place(name)).unwrap_err().to_string();
    let lacks = |kind: DeviceKind| manager.lacks(kind).unwrap();
    for (kind, name) in [
        (DeviceKind::CUDA, "cuda:0"),
        (DeviceKind::METAL, "metal:0"),
        (DeviceKind::WGPU, "wgpu:0"),
    ] {
        let why = lacks(kind);
        let wanted = format!("there is no device {name} here; there are: cpu:0; {why}");
        assert_eq!(device(name), wanted);
    }
    #[cfg(not(target_vendor = "apple"))]
    assert_eq!(lacks(DeviceKind::METAL), "only Apple's systems have Metal");
    let wanted = match cfg!(feature = "cuda") {
        true => "this manager was made without cuda devices, for which `Builder::discover` looks",
        false => "this build lacks the library's feature `cuda`",
    };
    assert_eq!(lacks(DeviceKind::CUDA), wanted);
    let text = device("cpu:0/pinned");
    let (there, why) = text
        .split_once("; CUDA devices bring pinned memory: ")
        .unwrap();
    assert!(there.starts_with("there is no memory cpu:0/pinned here; cpu:0 has: pageable, "));
    assert_eq!(why, wanted);
    // Discovery looks for none of these.
    assert_eq!(
        device("gpu:0"),
        "there is no device gpu:0 here; there are: cpu:0"
    );
    assert_eq!(manager.lacks(DeviceKind::CPU), None);
}

#[test]
fn two_managers_are_told_what_to_do_about_each_others_bytes() {
    let folder = Folder::new("claimed-text");
    fs::write(folder.path("file"), marked(100)).unwrap();
    let (one, other) = (host(), host());
    let held = one.create_file(folder.path("mine"), 100).unwrap();
    let error = other.open_file(folder.path("mine")).unwrap_err();
    let wanted = format!(
        "{}: cannot take a file into cpu:0/file: another manager of this process has some of its bytes, and one of the \
         two may write them; use one manager for both, or drop the other one's buffers first",
        folder.path("mine").display()
    );
    assert_eq!(chain(&error), wanted);
    drop(held);

    let there = other.adopt(vec![0u8; 100]).unwrap();
    let here = one.open_file(folder.path("file")).unwrap();
    let error = one.copy(&here, &there).wait().unwrap_err();
    let wanted = "a buffer in cpu:0/pageable belongs to another manager: make both ends of a transfer with the manager \
                  that copies them";
    assert_eq!(chain(&error), wanted);
    let error = one.share(&there, place("cpu:0/shared")).unwrap_err();
    let wanted =
        "a buffer in cpu:0/pageable belongs to another manager: ask the manager that made it";
    assert_eq!(chain(&error), wanted);
}

#[test]
fn a_file_opened_for_reading_says_how_to_open_it_for_writing() {
    let folder = Folder::new("read-only-text");
    fs::write(folder.path("file"), marked(100)).unwrap();
    let manager = host();
    let file = manager.open_file(folder.path("file")).unwrap();
    let error = manager.copy_from_slice(&[0; 100], &file).unwrap_err();
    let wanted = "the destination in cpu:0/file is read-only: `open_file` opens a file for reading; to write one that \
                  exists, open it with `HostFile::open_writable`, and take it in with `adopt_file`";
    assert_eq!(chain(&error), wanted);
    drop(file);
    // As it says.
    let file = transload::host::HostFile::open_writable(folder.path("file")).unwrap();
    let file = manager.adopt_file(file).unwrap();
    manager.copy_from_slice(&[7; 100], &file).unwrap();
    assert_eq!(fs::read(folder.path("file")).unwrap(), [7; 100]);
}

#[test]
fn no_error_repeats_the_text_of_its_source() {
    let folder = Folder::new("chains");
    let missing = folder.path("missing");
    let at = missing.display();
    let system = fs::metadata(&missing).unwrap_err();
    let manager = host();
    let error = Error::from(manager.open_file(&missing).unwrap_err());
    assert_eq!(chain(&error), format!("{at}: {system}"));
    let error = Profile::load(&missing).unwrap_err();
    assert_eq!(
        chain(&error),
        format!("cannot read the profile in {at}: {system}")
    );
    let error = topology::from_file(&missing).unwrap_err();
    assert_eq!(
        chain(&error),
        format!("cannot read the topology in {at}: {system}")
    );
    let error = topology::from_str("schema = 1\nname = \"m\"\n").unwrap_err();
    assert_eq!(
        chain(&error),
        "the text does not describe a machine: the machine \"m\" has no devices"
    );

    let (src, dst) = (manager.adopt(vec![0u8; 2]), manager.adopt(vec![0u8; 1]));
    let (src, dst) = (src.unwrap(), dst.unwrap());
    let batch = [Request::new(&src, &dst)];
    let error = Error::from(manager.copy_batch(&batch, OnFailure::Stop).unwrap_err());
    assert_eq!(
        chain(&error),
        "request 0 of the batch: the source has 2 bytes and the destination 1"
    );

    fs::write(folder.path("shrinks"), marked(2)).unwrap();
    let file = manager.open_file(folder.path("shrinks")).unwrap();
    fs::write(folder.path("shrinks"), []).unwrap();
    let error = manager.copy(&file, &src).wait().unwrap_err();
    let TransferError::Failed(failure) = &error else {
        panic!("{error}");
    };
    let fault = failure.fault.to_string();
    assert_eq!(chain(&error).matches(&fault).count(), 1, "{error}");
}
