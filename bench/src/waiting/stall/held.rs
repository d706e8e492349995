//! The operation that does not end until it is released.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use transload::{Buffer, TransferManager};

use super::super::pause::pause;
use super::scene::{Pair, STALLS, Scene, plain};

/// The length of the copy on the third party's backend.
const PLAIN: u64 = 1000;

/// The operation that does not end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// A copy out of a heap page whose fault is not resolved.
    #[cfg(target_os = "linux")]
    Page,
    /// A read of a file: its destination has such a page.
    #[cfg(target_os = "linux")]
    File,
    /// A copy by the driver's thread of an adapter out of such a page, which is imported.
    #[cfg(target_os = "linux")]
    Adapter,
    /// A copy by the double of CUDA's driver out of such a page, which is registered.
    #[cfg(target_os = "linux")]
    Cuda,
    /// An operation of a third party's backend that has the required methods alone.
    Plain,
}

/// The program's treatment of the transfer's handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Handle {
    Waited,
    Awaited,
    Dropped,
}

pub(super) const HANDLES: [Handle; 3] = [Handle::Waited, Handle::Awaited, Handle::Dropped];

/// An operation in flight.
pub(super) struct Held {
    thread: JoinHandle<Result<()>>,
    release: Box<dyn FnOnce() -> Result<()>>,
    check: Box<dyn FnOnce() -> Result<bool>>,
}

impl Held {
    /// Returns when the operation has stalled. `None` where this machine cannot run it.
    pub(super) fn begin(
        operation: Operation,
        scene: &Scene,
        handle: Handle,
    ) -> Result<Option<Held>> {
        let pair = match operation {
            #[cfg(target_os = "linux")]
            Operation::Page => super::blocked::page(scene)?,
            #[cfg(target_os = "linux")]
            Operation::File => super::blocked::file(scene)?,
            #[cfg(target_os = "linux")]
            Operation::Adapter => super::blocked::adapter(scene)?,
            #[cfg(target_os = "linux")]
            Operation::Cuda => super::blocked::cuda(scene)?,
            Operation::Plain => Some(third_party(scene)),
        };
        let Some(pair) = pair else {
            return Ok(None);
        };
        let (manager, src, dst) = (scene.manager.clone(), pair.src, pair.dst);
        let thread = thread::spawn(move || copy(&manager, &src, &dst, handle));
        (pair.stalled)()?;
        // The threads that work on the transfer park.
        pause(Duration::from_millis(20));
        Ok(Some(Held {
            thread,
            release: pair.release,
            check: pair.check,
        }))
    }

    /// Endpoints the operation. Returns whether its bytes arrived.
    pub(super) fn finish(self, scene: &Scene) -> Result<bool> {
        (self.release)()?;
        let joined = self.thread.join();
        joined.map_err(|_| anyhow!("the thread of the stalled copy panicked"))??;
        scene.manager.wait_idle();
        (self.check)()
    }
}

fn copy(manager: &TransferManager, src: &Buffer, dst: &Buffer, handle: Handle) -> Result<()> {
    let transfer = manager.copy(src, dst);
    match handle {
        Handle::Waited => drop(transfer.wait()?),
        Handle::Awaited => drop(pollster::block_on(transfer)?),
        Handle::Dropped => drop(transfer),
    }
    Ok(())
}

fn third_party(scene: &Scene) -> Pair {
    let filled = |byte| plain::filled(&scene.manager, STALLS, PLAIN, byte);
    let (src, dst) = (filled(7), filled(0));
    scene.stalls.stall(PLAIN);
    let [began, desk] = [(); 2].map(|()| scene.stalls.clone());
    let there = dst.clone();
    Pair {
        src,
        dst,
        stalled: Box::new(move || {
            while began.submitted().is_empty() {
                thread::yield_now();
            }
            Ok(())
        }),
        release: Box::new(move || {
            desk.release(PLAIN);
            Ok(())
        }),
        check: Box::new(move || Ok(there.read()?.iter().all(|byte| *byte == 7))),
    }
}
