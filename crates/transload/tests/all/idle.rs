//! Waiting for all transfers in flight.

#[cfg(not(transload_local))]
use std::sync::Mutex;
#[cfg(not(transload_local))]
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use crate::fixture::{Fixture, Outcome, bytes, modes, without_peers};
use transload::{AllocSpec, Place, Request, TransferManager};

#[test]
fn a_dropped_transfer_into_a_file_is_there_when_the_manager_is_idle() -> Outcome {
    let path = std::env::temp_dir().join(format!("transload-idle-{}", std::process::id()));
    let manager = TransferManager::builder().host().build()?;
    let wanted = bytes((9 << 20) + 7, 1);
    let src = manager.adopt(wanted.clone())?;
    let dst = manager.create_file(&path, src.len())?;
    drop(manager.copy(&src, &dst));
    manager.wait_idle();
    let written = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;
    assert!(written == wanted);
    Ok(())
}

#[test]
fn dropped_transfers_complete_however_a_backend_does() {
    for completion in modes() {
        let fixture = Fixture::new(&without_peers(2), completion, 256 << 10);
        let wanted = bytes(200_003, 2);
        let (src, dst) = (
            fixture.filled("sim:0", &wanted),
            fixture.empty("sim:1", wanted.len()),
        );
        drop(fixture.manager.copy(&src, &dst));
        fixture.manager.wait_idle();
        assert!(fixture.bytes_of(&dst) == wanted, "{completion}");
    }
}

#[test]
fn nothing_under_way_is_not_waited_for() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    manager.wait_idle();
    let buffer = manager.allocate("cpu:0".parse::<Place>()?, AllocSpec::bytes(100))?;
    let other = manager.allocate("cpu:0".parse::<Place>()?, AllocSpec::bytes(100))?;
    manager.copy(&buffer, &other).wait()?;
    let guard = buffer.write()?;
    manager.wait_idle();
    assert!(manager.wait_idle_timeout(Duration::ZERO));
    drop(guard);
    Ok(())
}

#[test]
fn a_transfer_behind_an_event_keeps_the_manager_busy_until_it_is_set() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let (src, dst) = (
        manager.adopt(vec![7u8; 100])?,
        manager.adopt(vec![0u8; 100])?,
    );
    let event = manager.event();
    drop(manager.submit(&Request::new(&src, &dst).after(&event)));
    assert!(!manager.wait_idle_timeout(Duration::ZERO));
    event.set();
    manager.wait_idle();
    assert_eq!(*dst.read()?, [7; 100]);
    Ok(())
}

#[test]
fn memory_comes_back_once_a_guard_has_waited_for_what_was_under_way() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let wanted = bytes(9 << 20, 3);
    let (src, mut dst) = (
        manager.adopt(wanted.clone())?,
        manager.adopt(vec![0u8; 9 << 20])?,
    );
    drop(manager.copy(&src, &dst));
    drop(dst.write()?);
    let back = loop {
        match dst.into_inner::<Vec<u8>>() {
            Ok(back) => break back,
            Err(error) => dst = error.buffer,
        }
    };
    assert!(back == wanted);
    Ok(())
}

/// Memory whose release blocks until the test allows it.
#[cfg(not(transload_local))]
struct Slow {
    bytes: Vec<u8>,
    began: Sender<()>,
    end: Mutex<Receiver<()>>,
}

// SAFETY: a vector's bytes stay in place, and no other code reaches this one's.
#[cfg(not(transload_local))]
unsafe impl transload::Adopt for Slow {
    const WRITABLE: bool = true;

    fn span(&mut self) -> transload::hal::HostSpan {
        transload::hal::HostSpan::of_mut(&mut self.bytes)
    }
}

#[cfg(not(transload_local))]
impl Drop for Slow {
    fn drop(&mut self) {
        self.began.send(()).unwrap();
        self.end.lock().unwrap().recv().unwrap();
    }
}

#[cfg(not(transload_local))]
#[test]
fn an_idle_manager_has_let_go_of_the_buffers_of_dropped_transfers() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let ((began, has_begun), (end, ends)) = (mpsc::channel(), mpsc::channel());
    let src = manager.adopt(Slow {
        bytes: vec![7; 100],
        began,
        end: Mutex::new(ends),
    })?;
    let dst = manager.adopt(vec![0u8; 100])?;
    let event = manager.event();
    drop(manager.submit(&Request::new(&src, &dst).after(&event)));
    drop(src);
    std::thread::scope(|scope| -> Outcome {
        scope.spawn(|| event.set());
        has_begun.recv()?;
        let is_idle = manager.wait_idle_timeout(Duration::ZERO);
        end.send(())?;
        assert!(!is_idle, "the transfer's buffers are not released yet");
        manager.wait_idle();
        // The wait has ended, so the buffer is free even if the thread that turned the engine is still busy.
        assert_eq!(dst.into_inner::<Vec<u8>>()?, [7; 100]);
        Ok(())
    })
}

#[cfg(not(transload_local))]
#[test]
fn a_thread_that_waits_learns_of_what_another_one_ends() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    for _ in 0..200 {
        let (src, dst) = (
            manager.adopt(vec![7u8; 100])?,
            manager.adopt(vec![0u8; 100])?,
        );
        let event = manager.event();
        let transfer = manager.submit(&Request::new(&src, &dst).after(&event));
        std::thread::scope(|scope| {
            scope.spawn(|| manager.wait_idle());
            scope.spawn(|| event.set());
        });
        assert!(transfer.is_over());
    }
    Ok(())
}
