//! Pipes, sockets and devices in place of a file: the engine refuses them at once and names them.
#![cfg(unix)]

use std::fs::{self, OpenOptions};
#[cfg(target_os = "linux")]
use std::io::ErrorKind::WouldBlock;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use transload::hal::{ErrorClass, NotRegular};
use transload::host::{FileError, HostFile};
use transload::model::Topology;
use transload::{OpenError, Profile, ProfileError, TransferManager};
use transload_testkit::topology;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("transload-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn pipe(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs `act` on a thread of its own: if it blocks on the other end of a pipe, the test fails instead of hanging.
fn at_once<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (give, take) = mpsc::channel();
    thread::spawn(move || give.send(act()));
    let told = take.recv_timeout(Duration::from_secs(600));
    told.unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Paths to things that are not regular files, and a path to nothing, each with the word that errors use for it.
fn others(folder: &Folder) -> Vec<(PathBuf, &'static str)> {
    let (socket, link) = (folder.0.join("socket"), folder.0.join("link"));
    UnixListener::bind(&socket).unwrap();
    let pipe = folder.pipe("pipe");
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    vec![
        (pipe, "it is a pipe, not a regular file"),
        (socket, "it is a socket, not a regular file"),
        (link, "it is a pipe, not a regular file"),
        (folder.0.clone(), "it is a directory, not a regular file"),
        ("/dev/null".into(), "it is a device, not a regular file"),
    ]
}

#[test]
fn no_file_is_made_of_a_pipe_a_socket_or_a_device() {
    let folder = Folder::new("regular-files");
    type Open = fn(&Path) -> Result<HostFile, FileError>;
    let ways: [(&str, Open); 3] = [
        ("open", |path| HostFile::open(path)),
        ("open_writable", |path| HostFile::open_writable(path)),
        ("create", |path| HostFile::create(path, 4096)),
    ];
    for (path, told) in others(&folder) {
        for (name, open) in ways {
            let (what, at) = (format!("{name} {}", path.display()), path.clone());
            let error = at_once(&what, move || open(&at)).unwrap_err();
            assert!(matches!(error, FileError::NotRegular { .. }), "{error}");
            assert_eq!(error.to_string(), format!("{}: {told}", path.display()));
        }
        let at = path.clone();
        let (class, is_named) = at_once("open_file", move || {
            let manager = TransferManager::builder().host().build().unwrap();
            let error = manager.open_file(&at).unwrap_err();
            let is_named = matches!(&error, OpenError::File(FileError::NotRegular { path, .. }) if *path == at);
            (error.class(), is_named)
        });
        assert_eq!((class, is_named), (ErrorClass::Caller, true));
    }
    assert!(
        fs::metadata(folder.0.join("pipe"))
            .unwrap()
            .file_type()
            .is_fifo()
    );
}

#[test]
fn nothing_is_read_out_of_a_pipe_a_socket_or_a_device() {
    let folder = Folder::new("regular-texts");
    for (path, told) in others(&folder) {
        let at = path.clone();
        match at_once("a profile", move || Profile::load(at)) {
            Err(ProfileError::Read { source, .. }) => {
                assert!(NotRegular::find(&source).is_some(), "{source}");
                assert_eq!(source.to_string(), told);
            }
            other => panic!("{other:?}"),
        }
        let at = path.clone();
        match at_once("a topology", move || topology::from_file(at)) {
            Err(topology::TopologyError::Io { source, .. }) => {
                assert!(NotRegular::find(&source).is_some(), "{source}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn verdicts_are_neither_read_out_of_a_pipe_nor_put_in_its_place() {
    let folder = Folder::new("regular-verdicts");
    let verdicts = folder.pipe("profile.verdicts.toml");
    at_once("verdicts", move || {
        let builder = TransferManager::builder().host();
        builder.keep_verdicts(verdicts).build().unwrap();
    });
}

#[test]
fn a_profile_takes_the_place_of_regular_files_alone() {
    let folder = Folder::new("regular-places");
    for (path, _) in others(&folder) {
        let at = path.clone();
        let save = move || Profile::new(&Topology::new(), Vec::new()).save(at);
        let error = at_once("a profile", save).unwrap_err();
        assert!(matches!(error, ProfileError::Write { .. }), "{error}");
        assert!(!fs::metadata(&path).unwrap().is_file());
    }
}

#[test]
fn files_that_are_longer_than_any_description_are_not_read_to_the_end() {
    let folder = Folder::new("regular-lengths");
    let path = folder.0.join("huge");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    file.unwrap().set_len(1 << 40).unwrap();
    let told = [
        Profile::load(&path).unwrap_err().to_string(),
        topology::from_file(&path).unwrap_err().to_string(),
    ];
    for told in told {
        assert!(
            told.contains("it is longer than the limit of 16777216 bytes"),
            "{told}"
        );
        assert!(told.contains(path.to_str().unwrap()), "{told}");
    }
}

/// The system reports `/proc/kmsg` as a regular file, and a read of it waits for the kernel's next message.
#[cfg(target_os = "linux")]
#[test]
fn a_file_whose_reads_wait_for_bytes_is_refused_and_holds_nothing_up() {
    let path = PathBuf::from("/proc/kmsg");
    if fs::File::open(&path).is_err() {
        return;
    }
    let at = path.clone();
    match at_once("a profile", move || Profile::load(at)) {
        Err(ProfileError::Read { source, .. }) => assert_eq!(source.kind(), WouldBlock, "{source}"),
        other => panic!("{other:?}"),
    }
    match at_once("a topology", move || topology::from_file(path)) {
        Err(topology::TopologyError::Io { source, .. }) => {
            assert_eq!(source.kind(), WouldBlock, "{source}");
        }
        other => panic!("{other:?}"),
    }
}

/// The engine reads the file like any other. Through `io_uring`, a read from a descriptor that does not block gives up
/// where the page cache lacks the bytes.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_was_opened_without_blocking_blocks_like_any_other() {
    use std::os::fd::AsRawFd;
    let folder = Folder::new("regular-flags");
    let path = folder.0.join("file");
    let files = [
        HostFile::create(&path, 10).unwrap(),
        HostFile::open(&path).unwrap(),
        HostFile::open_writable(&path).unwrap(),
    ];
    for file in files {
        let number = file.file().unwrap().as_raw_fd();
        let told = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
        let flags = told.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = u32::from_str_radix(flags.unwrap().trim(), 8).unwrap();
        assert_eq!(flags & libc::O_NONBLOCK as u32, 0, "{told}");
    }
}
