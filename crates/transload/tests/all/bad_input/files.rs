//! Files with unexpected contents or lengths.

use std::fs;
use std::path::PathBuf;

use transload::OpenError;
use transload::host::FileError;

use super::*;

#[test]
fn files_that_are_missing_empty_or_no_files() {
    let folder = Folder::new("files");
    let manager = host();
    let missing = manager.open_file(folder.path("missing")).unwrap_err();
    assert_eq!(missing.class(), ErrorClass::Caller);
    let text = missing.to_string();
    assert!(text.contains("missing"), "{text}");
    assert!(
        missing.source().is_some() || text.contains("No such file"),
        "{text}"
    );
    let no_file = manager.open_file(&folder.0).unwrap_err();
    assert!(
        no_file.to_string().contains(folder.0.to_str().unwrap()),
        "{no_file}"
    );

    fs::write(folder.path("empty"), []).unwrap();
    let empty = manager.open_file(folder.path("empty")).unwrap();
    assert!(empty.is_empty());
    let heap = manager.adopt(Vec::<u8>::new()).unwrap();
    let report = manager.copy(&empty, &heap).wait().unwrap();
    assert_eq!(report.bytes(), 0);
    let past = empty.slice(0..1).unwrap_err();
    assert!(
        matches!(past, RegionError::OutOfBounds { limit: 0, .. }),
        "{past}"
    );
}

#[test]
fn a_length_that_no_file_can_have_is_refused_with_the_limit() {
    let folder = Folder::new("long");
    let path = folder.path("long");
    fs::write(&path, b"kept").unwrap();
    let error = host().create_file(&path, u64::MAX).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller);
    let said = error.to_string();
    let path_said = path.display().to_string();
    for part in [
        path_said.as_str(),
        "18446744073709551615",
        "9223372036854775807",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"kept", "it was replaced");
    let error = host()
        .allocate(place("cpu:0/file"), AllocSpec::bytes(u64::MAX))
        .unwrap_err();
    assert!(
        matches!(error, Error::Alloc(AllocError::TooLarge { .. })),
        "{error}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_with_content_and_no_length_is_refused() {
    let error = host().open_file("/proc/cpuinfo").unwrap_err();
    let OpenError::File(FileError::NoFixedLength { path }) = &error else {
        panic!("{error}");
    };
    assert_eq!(path.to_str(), Some("/proc/cpuinfo"));
    assert_eq!(error.class(), ErrorClass::Caller);
    let said = error.to_string();
    assert!(said.contains("/proc/cpuinfo has no fixed length"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_file_that_may_not_be_read_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("unreadable");
    let path = folder.path("secret");
    fs::write(&path, b"bytes").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&path).is_ok() {
        println!("skipped: this user may read everything");
        return;
    }
    let error = host().open_file(&path).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller);
    assert!(error.to_string().contains("secret"), "{error}");
}

#[test]
fn a_file_that_shrinks_under_a_copy_fails_it_by_name() {
    let folder = Folder::new("shrinks");
    let path = folder.path("shrinks");
    fs::write(&path, marked(3 << 20)).unwrap();
    let manager = host();
    let file = manager.open_file(&path).unwrap();
    let heap = manager.adopt(vec![0u8; 3 << 20]).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let error = manager.copy(&file, &heap).wait().unwrap_err();
    let TransferError::Failed(failure) = &error else {
        panic!("{error}");
    };
    assert!(failure.fault.to_string().contains("shrinks"), "{error}");
    assert_eq!(failure.backend.to_string(), "host");
    // The rest of the file can be read, and the engine goes on.
    let left = 0..1 << 20;
    let report = manager
        .copy(file.slice(left.clone()).unwrap(), heap.slice(left).unwrap())
        .wait();
    if report.is_err() {
        // This manager rests the path after its failure; another manager has not seen the failure.
        let manager = host();
        let file = manager.open_file(&path).unwrap();
        let heap = manager.adopt(vec![0u8; 1 << 20]).unwrap();
        manager.copy(&file, &heap).wait().unwrap();
        assert!(*heap.read().unwrap() == *marked(1 << 20));
    }
}

/// A folder that the test deletes at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let at = std::env::temp_dir().join(format!("transload-bad-{name}-{}", std::process::id()));
        fs::create_dir_all(&at).unwrap();
        Folder(at)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
