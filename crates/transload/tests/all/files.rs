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

/// A file that is read past the cache where its folder allows that, and the same bytes as a file and in memory.
#[cfg(target_os = "linux")]
#[test]
fn bytes_on_the_disk_are_those_that_every_twin_of_the_file_has_written() -> Outcome {
    let folder = Folder::new("disk-twins");
    let manager = TransferManager::builder().host().build()?;
    const LEN: u64 = (3 << 20) + 1777;
    let path = folder.path("file");
    let file = manager.create_file(&path, LEN)?;
    let mut disk = HostFile::open_writable(&path)?;
    if let Err(error) = disk.read_directly() {
        eprintln!("skipped: no reads past the cache here: {error}");
        return Ok(());
    }
    let disk = manager.adopt_file(disk)?;
    assert_eq!(disk.memory().to_string(), "cpu:0/disk");
    // SAFETY: nothing else changes the file, or shortens it.
    let shared = unsafe { manager.import("cpu:0/shared".parse::<Place>()?, mapped(&path)?) }?;
    let mut model = vec![0u8; LEN as usize];
    let mut dice = 1u64;
    let mut roll = |most: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (dice >> 33) % most
    };
    for turn in 0..150u8 {
        let (start, len) = (roll(LEN), 1 + roll([9, 5000, 1 << 20][turn as usize % 3]));
        let (from, to) = (start, (start + len).min(LEN));
        let (wrote, read) = (
            [&file, &disk, &shared][roll(3) as usize],
            roll(LEN - (200 << 10)),
        );
        let new: Vec<u8> = (from..to).map(|at| at as u8 ^ turn).collect();
        let new = manager.adopt(new)?;
        // Others write and read other bytes of the same pages meanwhile.
        let back = manager.allocate("cpu:0".parse::<Place>()?, AllocSpec::bytes(LEN - read))?;
        let written = manager.copy(&new, &wrote.slice(from..to)?);
        let both = manager.copy(&disk.slice(read..LEN)?, &back);
        written.wait()?;
        both.wait()?;
        for (at, byte) in (from..to).zip(&mut model[from as usize..to as usize]) {
            *byte = at as u8 ^ turn;
        }
        let found = manager.read_to_vec(&back)?;
        assert!(found == model[read as usize..], "turn {turn}");
    }
    drop((shared, file));
    // A file that was cut says so, and one that grew is as long as it was.
    fs::OpenOptions::new()
        .write(true)
        .open(&path)?
        .set_len(LEN + 5000)?;
    assert!(manager.read_to_vec(&disk)? == model);
    fs::OpenOptions::new()
        .write(true)
        .open(&path)?
        .set_len(LEN - 1)?;
    let error = manager.read_to_vec(&disk).unwrap_err();
    assert!(error.to_string().contains("ends at byte"), "{error}");
    Ok(())
}

/// The file as an external that is mapped for writing.
#[cfg(target_os = "linux")]
fn mapped(path: &std::path::Path) -> Result<transload::hal::External, Box<dyn Error>> {
    let file = HostFile::open_writable(path)?;
    Ok(transload::hal::External::Object(Box::new(file)))
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_the_manager_maps_is_not_created_anew_under_the_mapping() -> Outcome {
    let folder = Folder::new("mapped");
    let manager = TransferManager::builder().host().build()?;
    let path = folder.path("file");
    fs::write(&path, [1; 4096])?;
    // SAFETY: no other program knows the file, and this one changes it after the buffer is gone.
    let mapped = unsafe { manager.map_file(&path) }?;
    let guard = mapped.read()?;
    let refused = manager.create_file(&path, 4096).unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Caller);
    let told = refused.to_string();
    let parts = [path.to_str().unwrap(), "maps", "drop that buffer first"];
    assert!(parts.iter().all(|part| told.contains(part)), "{told}");
    assert_eq!(*guard, [1; 4096]);
    drop(guard);
    // A later guard would look past the end of a shorter file.
    assert!(manager.create_file(&path, 10).is_err());
    assert_eq!(mapped.read()?.len(), 4096);
    drop(mapped);
    let created = manager.create_file(&path, 10)?;
    // A file that is written in place may be mapped: the order of transfers holds for both.
    // SAFETY: as above.
    let mapped = unsafe { manager.map_file(&path) }?;
    manager.copy_from_slice(&[3; 10], &created)?;
    assert_eq!(*mapped.read()?, [3; 10]);
    Ok(())
}

/// The limit is one of the whole process, so the test runs itself in a process of its own.
#[cfg(target_os = "linux")]
#[test]
fn a_process_without_descriptors_is_told_the_limit_and_goes_on_when_it_has_some_again() -> Outcome {
    const CHILD: &str = "TRANSLOAD_TEST_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let name = "files::a_process_without_descriptors_is_told_the_limit_and_goes_on_when_it_has_some_again";
        let mut child = std::process::Command::new(std::env::current_exe()?);
        child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        assert!(child.status()?.success());
        return Ok(());
    }
    let folder = Folder::new("descriptors");
    let manager = TransferManager::builder().host().build()?;
    let path = folder.path("file");
    fs::write(&path, [7; 100])?;
    let limit = libc::rlimit {
        rlim_cur: 40,
        rlim_max: 40,
    };
    // SAFETY: the call reads the limits alone.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let mut files = Vec::new();
    let opened = loop {
        match fs::File::open(&path) {
            Ok(file) => files.push(file),
            Err(_) => break manager.open_file(&path).map_err(transload::Error::from),
        }
    };
    let shared = AllocSpec::bytes(1 << 20);
    let errors = [
        opened.err(),
        manager
            .create_file(folder.path("new"), 5)
            .err()
            .map(Into::into),
        // Shared memory of this size has a descriptor.
        manager.allocate("cpu:0/shared".parse()?, shared).err(),
    ];
    for error in errors {
        let error = error.ok_or("it was done without a descriptor")?;
        assert_eq!(error.class(), ErrorClass::Exhausted, "{error}");
        let told = error.to_string();
        for part in ["Too many open files", "may have 40 open", "ulimit -n"] {
            assert_eq!(told.matches(part).count(), 1, "{told}");
        }
        assert!(!told.contains("no room"), "{told}");
    }
    drop(files);
    manager.open_file(&path)?;
    manager.allocate("cpu:0/shared".parse()?, shared)?;
    Ok(())
}
