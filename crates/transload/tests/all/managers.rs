//! Two managers of one process and the same bytes: both share one order, or the second manager is refused.

#[cfg(not(transload_local))]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
#[cfg(not(transload_local))]
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use transload::hal::{ErrorClass, ExternalKind, ImportError};
use transload::host::HostFile;
use transload::{AllocSpec, Buffer, Error, OpenError, Place, ShareError, TransferManager};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn place(name: &str) -> Place {
    name.parse().unwrap()
}

fn managers() -> (TransferManager, TransferManager) {
    let manager = || TransferManager::builder().host().build().unwrap();
    (manager(), manager())
}

fn is_claimed(error: &Error) -> bool {
    assert_eq!(error.class(), ErrorClass::Caller, "{error}");
    matches!(error, Error::Import(ImportError::Claimed { .. }))
}

fn is_refused(opened: Result<Buffer, OpenError>) -> bool {
    match opened {
        Ok(_) => false,
        Err(OpenError::Manager { source, .. }) => is_claimed(&source),
        Err(error) => panic!("{error}"),
    }
}

/// A file that the test deletes at its end.
struct Named(PathBuf);

impl Named {
    fn new(name: &str, bytes: &[u8]) -> Named {
        let name = format!("transload-managers-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).unwrap();
        Named(path)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn memory_that_is_seen_as_a_file_is_changed_by_no_other_manager() -> Outcome {
    let (one, other) = managers();
    let shared = one.allocate(place("cpu:0/shared"), AllocSpec::bytes(2 << 20))?;
    let view = one.share(&shared, place("cpu:0/file"))?;
    let file = view.into_inner::<HostFile>()?;
    let guard = shared.read()?;
    assert!(is_refused(other.adopt_file(file)));
    assert!(guard.iter().all(|byte| *byte == 0));
    drop(guard);

    // A view of another kind keeps the claim on the bytes when the first view has gone.
    let plain = one.share(&shared, place("cpu:0/pageable"))?;
    let file = one.share(&shared, place("cpu:0/file"))?;
    let file = file.into_inner::<HostFile>()?;
    drop(shared);
    let guard = plain.read()?;
    assert!(is_refused(other.adopt_file(file)));
    drop(guard);
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn memory_is_free_for_another_manager_when_the_first_one_has_let_it_go() -> Outcome {
    let (one, other) = managers();
    let shared = one.allocate(place("cpu:0/shared"), AllocSpec::bytes(2 << 20))?;
    shared.write()?.fill(7);
    let file = one.share(&shared, place("cpu:0/file"))?;
    let file = file.into_inner::<HostFile>()?;
    drop(shared);
    let theirs = other.adopt_file(file)?;
    let dst = other.adopt(vec![0u8; 2 << 20])?;
    other.copy(&theirs, &dst).wait()?;
    assert!(dst.read()?.iter().all(|byte| *byte == 7));
    Ok(())
}

#[test]
fn a_file_that_one_manager_writes_is_no_other_s() -> Outcome {
    let (one, other) = managers();
    let named = Named::new("written", &[1; 100]);
    let path = &named.0;
    let writable = || HostFile::open_writable(path);
    let first = one.adopt_file(writable()?)?;
    // One manager orders both buffers.
    let again = one.adopt_file(writable()?)?;
    assert!(is_refused(other.open_file(path)));
    assert!(is_refused(other.adopt_file(writable()?)));
    drop(first);
    assert!(is_refused(other.open_file(path)), "another view lives");
    drop(again);
    let read = other.open_file(path)?;
    // Readers do not disturb each other.
    let read_too = one.open_file(path)?;
    assert!(is_refused(one.adopt_file(writable()?)));
    drop((read, read_too));
    one.adopt_file(writable()?)?;
    Ok(())
}

#[test]
fn a_file_that_another_manager_has_is_not_cut_off() -> Outcome {
    let (one, other) = managers();
    let named = Named::new("kept", &[1; 100]);
    let path = &named.0;
    let read = one.open_file(path)?;
    assert!(is_refused(other.create_file(path, 10)));
    assert_eq!(std::fs::read(path)?, [1; 100]);
    drop(read);
    other.create_file(path, 10)?;
    assert_eq!(std::fs::read(path)?, [0; 10]);
    Ok(())
}

#[cfg(not(transload_local))]
#[test]
fn a_file_has_the_length_of_the_buffer_while_managers_race_for_it() {
    let (one, other) = managers();
    let named = Named::new("raced", &[1; 100]);
    let path = &named.0;
    let has_its_length = |opened: Result<Buffer, OpenError>| match opened {
        Ok(buffer) => {
            let len_bytes = std::fs::metadata(path).unwrap().len();
            assert_eq!(len_bytes, buffer.len(), "another manager cut it off");
            true
        }
        refused => !is_refused(refused),
    };
    let is_over = AtomicBool::new(false);
    let (opened, created) = std::thread::scope(|scope| {
        let creator = scope.spawn(|| {
            let mut created = 0;
            while !is_over.load(Relaxed) {
                let len_bytes = 10 + created as u64 % 90;
                created += usize::from(has_its_length(other.create_file(path, len_bytes)));
            }
            created
        });
        let open = |round: u64| match round % 4 {
            0 => one.create_file(path, 100),
            _ => one.open_file(path),
        };
        let rounds = 0..20_000;
        let opened = catch_unwind(AssertUnwindSafe(|| {
            rounds.filter(|&round| has_its_length(open(round))).count()
        }));
        is_over.store(true, Relaxed);
        (opened.unwrap(), creator.join().unwrap())
    });
    assert!(opened > 0 && created > 0, "{opened} and {created}");
}

#[test]
fn managers_may_write_different_ranges_of_a_file() -> Outcome {
    let (one, other) = managers();
    let named = Named::new("ranges", &[1; 100]);
    let range = |offset, len| -> Result<HostFile, Box<dyn std::error::Error>> {
        let span = transload::Span::new(offset, len);
        Ok(HostFile::open_writable(&named.0)?.slice(span)?)
    };
    let first = one.adopt_file(range(0, 50)?)?;
    let second = other.adopt_file(range(50, 50)?)?;
    assert!(is_refused(other.adopt_file(range(49, 1)?)));
    one.copy_from_slice(&[2; 50], &first)?;
    other.copy_from_slice(&[3; 50], &second)?;
    assert_eq!(std::fs::read(&named.0)?, [[2; 50], [3; 50]].concat());
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn memory_that_was_given_out_is_not_taken_in_by_a_second_manager() -> Outcome {
    let (one, other) = managers();
    let shared = one.allocate(place("cpu:0/shared"), AllocSpec::bytes(2 << 20))?;
    for kind in [ExternalKind::File, ExternalKind::Host] {
        let at = match kind {
            ExternalKind::File => place("cpu:0/shared"),
            _ => place("cpu:0/pageable"),
        };
        let given = one.export(&shared, kind)?;
        // SAFETY: the manager gave the descriptor out a moment ago, and the buffer is alive.
        let error = unsafe { other.import(at, given) }.unwrap_err();
        assert!(is_claimed(&error), "{error}");
        let given = one.export(&shared, kind)?;
        // SAFETY: as above.
        unsafe { one.import(at, given) }?;
    }
    Ok(())
}

#[test]
fn a_buffer_is_shared_by_its_own_manager() -> Outcome {
    let (one, other) = managers();
    let buffer = one.adopt(vec![1u8; 10])?;
    let memory = buffer.memory();
    let refused = ShareError::ForeignBuffer { memory };
    for at in ["cpu:0/pageable", "cpu:0/file"] {
        assert_eq!(other.share(&buffer, place(at)).unwrap_err(), refused);
    }
    assert!(other.place(&buffer, place("cpu:0/pageable")).is_err());
    Ok(())
}
