//! Transfers to and from files.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use transload::hal::ErrorClass;
use transload::host::HostFile;
use transload::{AllocSpec, Place, Request, Span, TransferManager};

type Outcome = Result<(), Box<dyn Error>>;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("transload-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect()
}

#[test]
fn a_file_moves_to_the_heap_and_into_a_new_file() -> Outcome {
    let folder = Folder::new("files");
    let manager = TransferManager::builder().host().build()?;
    for len in [0, 1, 4095, (9 << 20) + 7] {
        let (from, to) = (folder.path("from"), folder.path("to"));
        let wanted = bytes(len);
        fs::write(&from, &wanted)?;
        fs::write(&to, b"what was there before")?;
        let src = manager.open_file(&from)?;
        let heap = manager.allocate("cpu:0".parse::<Place>()?, AllocSpec::bytes(src.len()))?;
        let dst = manager.create_file(&to, src.len())?;
        manager.copy(&src, &heap).wait()?;
        manager.submit(&Request::new(&heap, &dst).verify()).wait()?;
        assert!(fs::read(&to)? == wanted, "{len} bytes");
        assert!(!src.is_writable() && dst.is_writable());
    }
    Ok(())
}

#[test]
fn a_range_of_a_file_is_a_buffer_of_its_own_and_comes_back() -> Outcome {
    let folder = Folder::new("range");
    let manager = TransferManager::builder().host().build()?;
    let path = folder.path("file");
    fs::write(&path, [7; 100])?;
    let part = HostFile::open_writable(&path)?.slice(Span::new(10, 20))?;
    let part = manager.adopt_file(part)?;
    manager.copy_from_slice(&[9; 20], &part)?;
    let written = fs::read(&path)?;
    assert_eq!(written[..10], [7; 10]);
    assert_eq!(written[10..30], [9; 20]);
    assert_eq!(written[30..], [7; 70]);
    assert_eq!(part.into_inner::<HostFile>()?.path(), path);
    Ok(())
}

#[test]
fn a_file_that_is_truncated_while_it_is_read_is_an_error_that_names_it() -> Outcome {
    let folder = Folder::new("truncated");
    let manager = TransferManager::builder().host().build()?;
    let path = folder.path("file");
    fs::write(&path, bytes(1 << 20))?;
    let src = manager.open_file(&path)?;
    fs::OpenOptions::new()
        .write(true)
        .open(&path)?
        .set_len(1000)?;
    let heap = manager.allocate("cpu:0".parse::<Place>()?, AllocSpec::bytes(src.len()))?;
    let error = manager.copy(&src, &heap).wait().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller);
    let said = error.to_string();
    let path = path.display().to_string();
    for word in [path.as_str(), "ends at byte 1000", "1048576"] {
        assert!(said.contains(word), "{said}");
    }
    // The engine stays usable, and so does the route from files.
    manager
        .copy(&src.slice(..1000)?, &heap.slice(..1000)?)
        .wait()?;
    assert_eq!(heap.read()?[..1000], bytes(1000));
    Ok(())
}

#[test]
fn what_is_no_file_is_refused_by_name() -> Outcome {
    let folder = Folder::new("refused");
    let manager = TransferManager::builder().host().build()?;
    for path in [folder.path("missing"), folder.0.clone()] {
        let error = manager.open_file(&path).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Caller);
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
    let error = manager
        .create_file(folder.path("no/folder"), 10)
        .unwrap_err();
    assert!(error.to_string().contains("no/folder"), "{error}");
    Ok(())
}

#[test]
fn a_manager_without_the_host_takes_no_files_and_says_so() -> Outcome {
    let folder = Folder::new("hostless");
    let path = folder.path("file");
    fs::write(&path, b"bytes")?;
    let error = TransferManager::new().open_file(&path).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unsupported);
    assert!(
        error.to_string().contains(path.to_str().unwrap()),
        "{error}"
    );
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn a_mapped_file_is_read_in_place() -> Outcome {
    let folder = Folder::new("mapped");
    let manager = TransferManager::builder().host().build()?;
    let path = folder.path("file");
    let wanted = bytes(100_000);
    fs::write(&path, &wanted)?;
    // SAFETY: only this test knows the file.
    let mapped = unsafe { manager.map_file(&path) }?;
    assert_eq!(mapped.memory().to_string(), "cpu:0/shared");
    assert!(*mapped.read()? == wanted[..]);
    let heap = manager.adopt(vec![0u8; wanted.len()])?;
    manager.copy(&mapped, &heap).wait()?;
    assert!(*heap.read()? == wanted[..]);
    assert!(manager.copy(&heap, &mapped).wait().is_err());
    Ok(())
}
