//! A child of fork() has none of the manager's threads: its calls on the parent's manager return an error at once.
#![cfg(all(target_os = "linux", not(any(loom, transload_local))))]

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::fixture::{bytes, place};
use transload::hal::{ErrorClass, ExternalKind};
use transload::host::Host;
use transload::probe::ProbeOptions;
use transload::{
    Advice, AllocSpec, Buffer, Error, Event, IntoInnerReason, OnFailure, Request, TransferManager,
};

const LEN: usize = 8 << 20;

/// Seconds after which the system kills a child that hangs.
const LIMIT_S: u32 = 300;

/// How a child ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Child {
    AsItShould,
    /// The child wrote its failure to the standard error stream.
    Otherwise,
    Hung,
    Killed(i32),
}

/// Runs `case` in a child of this process, and waits for the child's end. The child never returns to the test.
fn fork(case: impl FnOnce() -> Result<(), String>) -> Child {
    // SAFETY: the child runs `case` and exits. The C library makes its allocator usable in the child.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: no handler is installed, so the alarm kills the child.
        unsafe { libc::alarm(LIMIT_S) };
        let code = match catch_unwind(AssertUnwindSafe(case)) {
            Ok(Ok(())) => 0,
            Ok(Err(what)) => {
                let _ = writeln!(std::io::stderr(), "the child: {what}");
                1
            }
            Err(_) => 2,
        };
        // SAFETY: the child exits without running the parent's destructors.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the status is written while the call lasts.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(ended, child);
    match (libc::WIFSIGNALED(status), libc::WTERMSIG(status)) {
        (true, libc::SIGALRM) => Child::Hung,
        (true, signal) => Child::Killed(signal),
        (false, _) if libc::WEXITSTATUS(status) == 0 => Child::AsItShould,
        (false, _) => Child::Otherwise,
    }
}

/// A manager whose threads run, with one transfer that waits for an event.
struct Parent {
    manager: TransferManager,
    src: Buffer,
    dst: Buffer,
    gate: Event,
    wanted: Vec<u8>,
}

impl Parent {
    fn new() -> Parent {
        let manager = TransferManager::builder().host().build().unwrap();
        let wanted = bytes(LEN, 1);
        let parent = Parent {
            src: manager.adopt(wanted.clone()).unwrap(),
            dst: manager.adopt(vec![0u8; LEN]).unwrap(),
            gate: manager.event(),
            manager,
            wanted,
        };
        // The copy starts the pool's threads and the manager's own.
        pollster::block_on(parent.manager.copy(&parent.src, &parent.dst)).unwrap();
        parent
    }

    fn gated(&self) -> Request {
        Request::new(&self.src, &self.dst).after(&self.gate)
    }

    /// Asserts that the parent's manager still works.
    fn goes_on(&self) {
        self.gate.set();
        for _ in 0..3 {
            self.dst.write().unwrap().fill(0);
            self.manager.copy(&self.src, &self.dst).wait().unwrap();
            assert!(*self.dst.read().unwrap() == *self.wanted);
            pollster::block_on(self.manager.copy(&self.src, &self.dst)).unwrap();
        }
        self.manager.wait_idle();
    }
}

/// Checks that the answer is an error that names the fork.
fn says_fork<T, E: Into<Error>>(answer: Result<T, E>) -> Result<(), String> {
    let Err(error) = answer else {
        return Err("there was no error".into());
    };
    let error: Error = error.into();
    let text = error.to_string();
    match (error.class(), text.contains("fork")) {
        (ErrorClass::Caller, true) => Ok(()),
        (class, _) => Err(format!("{class:?}: {text}")),
    }
}

#[test]
fn a_copy_in_a_child_is_an_error() {
    let parent = Parent::new();
    for len in [1000, LEN as u64] {
        let [src, dst] = [&parent.src, &parent.dst].map(|end| end.slice(..len).unwrap());
        let child = fork(|| says_fork(parent.manager.copy(&src, &dst).wait()));
        assert_eq!(child, Child::AsItShould, "{len} bytes");
        let child = fork(|| says_fork(pollster::block_on(parent.manager.copy(&src, &dst))));
        assert_eq!(child, Child::AsItShould, "{len} bytes, awaited");
    }
    parent.goes_on();
}

#[test]
fn a_copy_of_borrowed_bytes_in_a_child_is_an_error() {
    let parent = Parent::new();
    let mut found = vec![0; LEN];
    let child = fork(|| says_fork(parent.manager.copy_into_slice(&parent.src, &mut found)));
    assert_eq!(child, Child::AsItShould);
    let child = fork(|| says_fork(parent.manager.copy_from_slice(&parent.wanted, &parent.dst)));
    assert_eq!(child, Child::AsItShould);
    parent.goes_on();
}

#[test]
fn a_transfer_of_the_parents_is_not_awaited_in_a_child() {
    let parent = Parent::new();
    let mut held = Some(parent.manager.submit(&parent.gated()));
    let awaited = fork(|| says_fork(pollster::block_on(held.take().unwrap())));
    let waited = fork(|| says_fork(held.take().unwrap().wait()));
    let limited = fork(|| {
        let answer = held.take().unwrap().wait_timeout(Duration::from_secs(3600));
        answer.map_or(Err("it ran out of time".into()), says_fork)
    });
    assert_eq!([awaited, waited, limited], [Child::AsItShould; 3]);
    parent.goes_on();
    // The child's copy of the handle was a handle of its own.
    held.take().unwrap().wait().unwrap();
}

#[test]
fn cancelling_a_transfer_of_the_parents_returns_in_a_child() {
    let parent = Parent::new();
    let mut held = Some(parent.manager.submit(&parent.gated()));
    let child = fork(|| {
        let _ = held.take().unwrap().cancel();
        Ok(())
    });
    assert_eq!(child, Child::AsItShould);
    parent.goes_on();
    held.take().unwrap().wait().unwrap();
}

#[test]
fn memory_is_not_allocated_in_a_child() {
    let parent = Parent::new();
    for at in ["cpu:0", "cpu:0/shared"] {
        let child = fork(|| says_fork(parent.manager.allocate(place(at), AllocSpec::bytes(100))));
        assert_eq!(child, Child::AsItShould, "{at}");
    }
    parent.goes_on();
}

#[test]
fn a_child_does_not_wait_until_the_parents_manager_is_idle() {
    let parent = Parent::new();
    drop(parent.manager.submit(&parent.gated()));
    let child = fork(|| {
        // Both answers are allowed: the call has no error to return.
        let _ = parent.manager.wait_idle_timeout(Duration::from_secs(3600));
        parent.manager.wait_idle();
        Ok(())
    });
    assert_eq!(child, Child::AsItShould);
    parent.goes_on();
}

#[test]
fn handles_and_managers_are_dropped_in_a_child() {
    let mut parent = Some(Parent::new());
    let held = parent.as_ref().unwrap();
    let mut held = Some(held.manager.submit(&held.gated()));
    let first = fork(|| {
        drop(held.take());
        drop(parent.take());
        Ok(())
    });
    let second = fork(|| {
        drop(parent.take());
        drop(held.take());
        Ok(())
    });
    assert_eq!([first, second], [Child::AsItShould; 2]);
    parent.unwrap().goes_on();
    held.unwrap().wait().unwrap();
}

#[test]
fn an_idle_manager_is_dropped_in_a_child() {
    let mut parent = Some(Parent::new());
    parent.as_ref().unwrap().manager.wait_idle();
    let child = fork(|| {
        drop(parent.take());
        Ok(())
    });
    assert_eq!(child, Child::AsItShould);
    parent.unwrap().goes_on();
}

#[test]
fn a_manager_of_the_childs_own_works() {
    let parent = Parent::new();
    let child = fork(|| {
        let own = Parent::new();
        own.goes_on();
        Ok(())
    });
    assert_eq!(child, Child::AsItShould);
    parent.goes_on();
}

#[test]
fn batches_and_prepared_copies_of_the_parents_are_errors_in_a_child() {
    let parent = Parent::new();
    let request = Request::new(&parent.src, &parent.dst);
    let prepared = parent.manager.prepare(&request).unwrap();
    let posted = fork(|| says_fork(prepared.post().wait()));
    let anew = fork(|| says_fork(parent.manager.prepare(&request)));
    let batch = fork(|| {
        for requests in [&[request.clone(), request.clone()][..], &[]] {
            says_fork(parent.manager.copy_batch(requests, OnFailure::GoOn))?;
        }
        Ok(())
    });
    let requests = [parent.gated(), parent.gated()];
    let mut held = Some(
        parent
            .manager
            .copy_batch(&requests, OnFailure::Stop)
            .unwrap(),
    );
    let waited = fork(|| {
        held.take()
            .unwrap()
            .wait()
            .into_iter()
            .try_for_each(says_fork)
    });
    assert_eq!([posted, anew, batch, waited], [Child::AsItShould; 4]);
    parent.goes_on();
    for result in held.take().unwrap().wait() {
        result.unwrap();
    }
    prepared.post().wait().unwrap();
}

#[test]
fn guards_are_not_given_and_those_of_the_parents_are_dropped_in_a_child() {
    let parent = Parent::new();
    let read = fork(|| says_fork(parent.src.read()));
    let write = fork(|| says_fork(parent.dst.write()));
    let mut held = Some((parent.src.read().unwrap(), parent.dst.write().unwrap()));
    let dropped = fork(|| {
        let (src, _) = held.as_ref().unwrap();
        if **src != *parent.wanted {
            return Err("the bytes are not the parent's".into());
        }
        drop(held.take());
        Ok(())
    });
    assert_eq!([read, write, dropped], [Child::AsItShould; 3]);
    drop(held.take());
    parent.goes_on();
}

#[test]
fn events_of_the_parents_are_not_set_in_a_child() {
    let parent = Parent::new();
    let held = parent.manager.submit(&parent.gated());
    let mut setter = Some(parent.gate.setter());
    let child = fork(|| {
        parent.gate.set();
        parent.gate.setter()();
        setter.take().unwrap()();
        let own = parent.manager.event();
        own.set();
        match parent.gate.is_set() || own.is_set() {
            false => Ok(()),
            true => Err("an event was set".into()),
        }
    });
    assert_eq!(child, Child::AsItShould);
    assert!(!held.is_over());
    setter.take().unwrap()();
    held.wait().unwrap();
    parent.goes_on();
}

#[test]
fn an_adopted_object_stays_with_the_parent() {
    let parent = Parent::new();
    let mut held = Some(parent.manager.adopt(vec![7u8; 100]).unwrap());
    let child = fork(|| {
        let error = held.take().unwrap().into_inner::<Vec<u8>>();
        match error.map_err(|error| error.reason) {
            Err(IntoInnerReason::Forked) => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    });
    assert_eq!(child, Child::AsItShould);
    assert_eq!(
        held.take().unwrap().into_inner::<Vec<u8>>().unwrap(),
        [7; 100]
    );
}

#[test]
fn a_child_has_a_staging_budget_of_its_own() {
    let parent = Parent::new();
    let of_default = |manager: &TransferManager| {
        let other = TransferManager::builder().host().build().unwrap();
        Arc::ptr_eq(&manager.staging(), &other.staging())
    };
    assert!(of_default(&parent.manager));
    let child = fork(|| match of_default(&parent.manager) {
        false => Ok(()),
        true => Err("the budget is the parent's".into()),
    });
    assert_eq!(child, Child::AsItShould);
}

#[test]
fn a_child_discovers_a_shared_manager_of_its_own() {
    let copy = |manager: &TransferManager| {
        let src = manager.adopt(bytes(1000, 1)).unwrap();
        let dst = manager.adopt(vec![0u8; 1000]).unwrap();
        manager.copy(&src, &dst).wait().unwrap();
    };
    let shared = TransferManager::shared().unwrap();
    copy(shared);
    let child = fork(|| {
        copy(TransferManager::shared().unwrap());
        says_fork(shared.resolve(place("cpu:0")))
    });
    assert_eq!(child, Child::AsItShould);
    copy(TransferManager::shared().unwrap());
}

/// Makes every call on a manager of the parent's.
fn everything(parent: &Parent) -> Result<(), String> {
    let Parent {
        manager, src, dst, ..
    } = parent;
    let limit = Duration::from_secs(3600);
    let host = || place("cpu:0");
    says_fork(manager.copy(src, dst).wait())?;
    says_fork(manager.read_to_vec(src))?;
    says_fork(manager.allocate(host(), AllocSpec::bytes(100)))?;
    says_fork(manager.adopt(vec![0u8; 100]))?;
    says_fork(manager.export(src, ExternalKind::Host))?;
    says_fork(manager.share(src, place("cpu:0/shared")))?;
    says_fork(manager.place(src, place("cpu:0/shared")))?;
    says_fork(manager.prefetch(src, host()))?;
    says_fork(manager.advise(src, Advice::Sequential))?;
    says_fork(manager.resolve(host()))?;
    says_fork(manager.explain(&Request::new(src, dst)))?;
    says_fork(manager.explain_places(host(), host(), 100))?;
    says_fork(manager.register_backend(Host::new()))?;
    says_fork(manager.open_file("/proc/self/exe"))?;
    says_fork(manager.apply_profile(&manager.probe(&ProbeOptions::quick()).profile))?;
    says_fork(src.read())?;
    manager.reset_stats();
    manager.clear_cache();
    let _ = (manager.staging(), manager.stats(), format!("{manager:?}"));
    let is_empty = manager.turn().is_none()
        && manager.backends().is_empty()
        && manager.devices().is_empty()
        && manager.memories().is_empty()
        && manager.topology().devices().is_empty()
        && manager.backend::<Host>().is_none()
        && !manager.wait_idle_timeout(limit);
    match is_empty {
        true => Ok(()),
        false => Err("the manager was asked".into()),
    }
}

#[test]
fn no_call_reaches_the_parents_manager() {
    let parent = Parent::new();
    let mut held = Some(parent.manager.submit(&parent.gated()));
    let child = fork(|| {
        everything(&parent)?;
        let held = held.take().unwrap();
        match (held.is_over(), held.progress(), held.fences()) {
            (true, None, None) => says_fork(held.wait()),
            answer => Err(format!("{answer:?}")),
        }
    });
    assert_eq!(child, Child::AsItShould);
    parent.goes_on();
    held.take().unwrap().wait().unwrap();
}

#[test]
fn a_manager_of_the_childs_own_refuses_what_is_the_parents() {
    let parent = Parent::new();
    let child = fork(|| {
        let own = Parent::new();
        says_fork(own.manager.copy(&parent.src, &own.dst).wait())?;
        says_fork(own.manager.copy(&own.src, &parent.dst).wait())?;
        says_fork(own.manager.read_to_vec(&parent.src))?;
        says_fork(own.manager.copy_from_slice(&[0; LEN], &parent.dst))?;
        says_fork(own.manager.prefetch(&parent.src, place("cpu:0")))?;
        let after = Request::new(&own.src, &own.dst).after(&parent.gate);
        says_fork(own.manager.submit(&after).wait())?;
        says_fork(own.manager.export(&parent.src, ExternalKind::Host))?;
        says_fork(own.manager.share(&parent.src, place("cpu:0/shared")))
    });
    assert_eq!(child, Child::AsItShould);
}

/// At the time of the fork other threads may hold the engine's lock.
#[test]
fn children_of_a_busy_parent_are_told_too() {
    let parent = Parent::new();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (manager, is_over) = (&parent.manager, &is_over);
            scope.spawn(move || {
                let src = manager.adopt(bytes(1000, seed)).unwrap();
                let dst = manager.adopt(vec![0u8; 1000]).unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    manager.copy(&src, &dst).wait().unwrap();
                    pollster::block_on(manager.copy(&dst, &src)).unwrap();
                }
            });
        }
        let children: Vec<Child> = (0..60)
            .map(|_| fork(|| everything(&parent)))
            .take_while(|child| *child == Child::AsItShould)
            .collect();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(children.len(), 60, "a child was not told");
    });
    parent.goes_on();
}
