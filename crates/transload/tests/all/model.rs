//! Random regions, shapes and interleavings against plain arrays of bytes.
//!
//! Conflicting transfers take effect in the order of submission, in whatever order they settle, and no byte outside a
//! destination changes. One comparison with the ledger checks both.

mod acts;
mod ledger;

use std::error::Error;

use crate::fixture::{Fixture, Outcome, bytes, modes, place, without_peers};
use acts::{Act, Ends, How, acts};
use ledger::{Area, CopyId, Fate, Ledger};
use proptest::prelude::*;
use transload::{
    AllocSpec, Buffer, Cancelled, OnFailure, Priority, Region, Request, Transfer, TransferError,
    TransferManager,
};

/// A manager, its buffers, and their expected bytes.
struct World<'a> {
    manager: &'a TransferManager,
    buffers: Vec<Buffer>,
    lens: Vec<u64>,
    ledger: Ledger,
    pending: Vec<Pending>,
}

struct Pending {
    transfer: Transfer,
    copy: CopyId,
    len: u64,
    verified: bool,
    /// Whether it belongs to a batch that stops at the first failure.
    may_stop: bool,
}

/// Three halves of a chunk, so that copies within a buffer take one chunk or two.
const LEN: u64 = 98_304 + 7;

impl<'a> World<'a> {
    fn new(manager: &'a TransferManager, places: &[&str]) -> World<'a> {
        let buffers: Vec<Buffer> = places
            .iter()
            .map(|at| manager.allocate(place(at), AllocSpec::bytes(LEN)).unwrap())
            .collect();
        let initial: Vec<Vec<u8>> = (0..buffers.len())
            .map(|seed| bytes(LEN as usize, seed as u64))
            .collect();
        for (buffer, bytes) in buffers.iter().zip(&initial) {
            manager.copy_from_slice(bytes, buffer).unwrap();
        }
        World {
            manager,
            lens: vec![LEN; buffers.len()],
            buffers,
            ledger: Ledger::new(initial),
            pending: Vec::new(),
        }
    }

    fn act(&mut self, act: &Act) -> Outcome {
        match act {
            Act::Copy {
                ends,
                verify,
                priority,
            } => self.copy(ends, *verify, *priority),
            Act::Batch {
                all,
                stop_at_failure,
            } => self.batch(all, *stop_at_failure),
            Act::Read(cut) => {
                let area = cut.range(&self.lens);
                if let Ok(guard) = self.view(&area)?.read() {
                    self.compare(&area, &guard);
                }
                Ok(())
            }
            Act::Write(cut, seed) => {
                let area = cut.range(&self.lens);
                let fresh = bytes(area.len(), *seed);
                if let Ok(mut guard) = self.view(&area)?.write() {
                    self.compare(&area, &guard);
                    guard.copy_from_slice(&fresh);
                    self.ledger.fill(area, fresh);
                }
                Ok(())
            }
            Act::FromSlice(cut, seed) => {
                let area = cut.alone(&self.lens);
                let fresh = bytes(area.len(), *seed);
                self.manager.copy_from_slice(&fresh, self.region(&area)?)?;
                self.ledger.fill(area, fresh);
                Ok(())
            }
            Act::IntoSlice(cut) => {
                let area = cut.alone(&self.lens);
                let mut found = vec![0xEE; area.len()];
                self.manager
                    .copy_into_slice(self.region(&area)?, &mut found)?;
                self.compare(&area, &found);
                Ok(())
            }
            Act::Settle(which, how) => match self.take(*which) {
                Some(pending) => self.settle(pending, *how),
                None => Ok(()),
            },
            Act::Detach(which) => {
                // The test could not learn whether a batch stopped it.
                match self.take(*which) {
                    Some(pending) if pending.may_stop => self.pending.push(pending),
                    detached => drop(detached),
                }
                Ok(())
            }
            Act::Cancel(which) => match self.take(*which) {
                Some(pending) => self.cancel(pending),
                None => Ok(()),
            },
        }
    }

    fn copy(&mut self, ends: &Ends, verify: bool, priority: u8) -> Outcome {
        let Some((src, dst)) = ends.areas(&self.lens) else {
            return Ok(());
        };
        // An overlapping copy changes its own source, so there is nothing to compare with.
        let verify = verify && !src.meets(&dst);
        let mut request = self.request(&src, &dst)?;
        if verify {
            request = request.verify();
        }
        request = request.priority(match priority {
            0 => Priority::Low,
            1 => Priority::Normal,
            _ => Priority::High,
        });
        let transfer = self.manager.submit(&request);
        if is_refused(&src, &dst) {
            let refused = transfer.wait();
            assert!(matches!(refused, Err(TransferError::Overlap { .. })));
            return Ok(());
        }
        self.note(transfer, (src, dst), verify, false);
        Ok(())
    }

    fn batch(&mut self, all: &[Ends], stop_at_failure: bool) -> Outcome {
        let areas: Vec<(Area, Area)> = all
            .iter()
            .filter_map(|ends| ends.areas(&self.lens))
            .collect();
        let requests: Vec<Request> = areas
            .iter()
            .map(|(src, dst)| self.request(src, dst))
            .collect::<Result<_, _>>()?;
        let first_refused = areas.iter().position(|(src, dst)| is_refused(src, dst));
        let on_failure = match stop_at_failure {
            true => OnFailure::Stop,
            false => OnFailure::GoOn,
        };
        match self.manager.copy_batch(&requests, on_failure) {
            // The copy is refused as a whole, so the ledger has no record of it.
            Err(error) => {
                assert_eq!(Some(error.index), first_refused);
                assert!(matches!(error.source, TransferError::Overlap { .. }));
            }
            Ok(batch) => {
                assert_eq!(first_refused, None);
                for (transfer, ends) in batch.into_transfers().into_iter().zip(areas) {
                    self.note(transfer, ends, false, stop_at_failure);
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, transfer: Transfer, (src, dst): (Area, Area), verified: bool, stop: bool) {
        self.pending.push(Pending {
            transfer,
            copy: self.ledger.copy(src, dst),
            len: src.len() as u64,
            verified,
            may_stop: stop,
        });
    }

    fn settle(&mut self, mut pending: Pending, how: How) -> Outcome {
        let result = match how {
            How::Wait => pending.transfer.wait(),
            // With one thread no other thread waits for the machine while this one polls, so virtual time would stand
            // still.
            How::Await if cfg!(transload_local) => pending.transfer.wait(),
            How::Await => pollster::block_on(pending.transfer),
            How::Patience(ns) => {
                let limit = std::time::Duration::from_nanos(ns);
                match pending.transfer.wait_timeout(limit) {
                    Some(result) => result,
                    None => {
                        // The transfer was not detached, so the test can still wait for it.
                        let (came, all) = pending.transfer.progress().ok_or("gone")?;
                        assert!(came <= all && all == pending.len);
                        self.pending.push(pending);
                        return Ok(());
                    }
                }
            }
        };
        match result {
            Ok(report) => {
                assert_eq!(report.bytes(), pending.len);
                assert_eq!(report.checksum().is_some(), pending.verified);
                assert!(report.fallbacks().is_empty());
                Ok(())
            }
            Err(TransferError::BatchStopped) if pending.may_stop => {
                self.ledger.settle(pending.copy, Fate::Untouched);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn cancel(&mut self, pending: Pending) -> Outcome {
        let fate = match pending.transfer.cancel() {
            Cancelled::NotStarted => Fate::Untouched,
            Cancelled::Stopped { leading_bytes } => {
                assert!(leading_bytes <= pending.len);
                Fate::Stopped {
                    leading: leading_bytes,
                }
            }
            Cancelled::Finished(Ok(_)) => Fate::Done,
            Cancelled::Finished(Err(TransferError::BatchStopped)) if pending.may_stop => {
                Fate::Untouched
            }
            Cancelled::Finished(Err(error)) => return Err(error.into()),
        };
        self.ledger.settle(pending.copy, fate);
        if pending.may_stop {
            // The ledger must know the other copies of the batch before the next comparison.
            self.settle_batches()?;
        }
        Ok(())
    }

    fn settle_batches(&mut self) -> Outcome {
        let (batches, others) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|pending| pending.may_stop);
        self.pending = others;
        let batches: Vec<Pending> = batches;
        for pending in batches {
            self.settle(pending, How::Wait)?;
        }
        Ok(())
    }

    /// Waits for all transfers in some order, and compares all bytes.
    fn finish(&mut self, order: usize) -> Outcome {
        let mut turn = order;
        while let Some(pending) = self.take(turn) {
            turn = turn.wrapping_mul(31).wrapping_add(7);
            self.settle(pending, How::Wait)?;
        }
        // This read follows all transfers without a handle.
        for (at, wanted) in self.ledger.buffers().iter().enumerate() {
            let mut found = vec![0xEE; LEN as usize];
            self.manager
                .copy_into_slice(&self.buffers[at], &mut found)?;
            assert_eq!(wanted.first_difference(&found), None, "buffer {at}");
        }
        Ok(())
    }

    fn compare(&self, area: &Area, found: &[u8]) {
        let wanted = self.ledger.buffers()[area.buffer].payload(area);
        assert_eq!(wanted.first_difference(found), None, "{area:?}");
    }

    fn take(&mut self, which: usize) -> Option<Pending> {
        let len = self.pending.len();
        (len > 0).then(|| self.pending.swap_remove(which % len))
    }

    fn view(&self, area: &Area) -> Result<Buffer, Box<dyn Error>> {
        let end = area.offset + area.shape.extent_bytes();
        Ok(self.buffers[area.buffer].slice(area.offset..end)?)
    }

    fn region(&self, area: &Area) -> Result<Region, Box<dyn Error>> {
        let buffer = &self.buffers[area.buffer];
        Ok(Region::new(buffer, area.offset, area.shape)?)
    }

    fn request(&self, src: &Area, dst: &Area) -> Result<Request, Box<dyn Error>> {
        Ok(Request::new(self.region(src)?, self.region(dst)?))
    }
}

/// Rows that share bytes cannot be copied in any order.
fn is_refused(src: &Area, dst: &Area) -> bool {
    src.meets(dst) && !(src.shape.is_contiguous() && dst.shape.is_contiguous())
}

fn run(manager: &TransferManager, places: &[&str], acts: &[Act], order: usize) -> Vec<Buffer> {
    let mut world = World::new(manager, places);
    for act in acts {
        if let Err(error) = world.act(act) {
            panic!("{act:?}: {error}");
        }
    }
    if let Err(error) = world.finish(order) {
        panic!("{error}");
    }
    world.buffers
}

proptest! {
    #[test]
    fn simulated_memories_hold_what_the_ledger_says(
        acts in acts(),
        mode in 0..16usize,
        seed in any::<u64>(),
        slots in 1..5u64,
        order in any::<usize>(),
    ) {
        let all = modes();
        let completion = match all[mode % all.len()] {
            transload_testkit::sim::Completion::OutOfOrder { .. } => {
                transload_testkit::sim::Completion::OutOfOrder { seed }
            }
            completion => completion,
        };
        let fixture = Fixture::new(&without_peers(2), completion, slots << 16);
        let again = fixture.manager.clone();
        fixture.sim.set_hook(move |_: transload::hal::Fence, _: &transload::hal::Outcome| {
            again.turn();
        });
        let places = ["cpu:0/pageable", "cpu:0/pinned", "sim:0", "sim:1"];
        let buffers = run(&fixture.manager, &places, &acts, order);
        fixture.sim.set_hook(|_: transload::hal::Fence, _: &transload::hal::Outcome| {});
        for buffer in &buffers {
            // A read that bypasses the engine returns the same bytes.
            let mut found = vec![0; LEN as usize];
            fixture.manager.copy_into_slice(buffer, &mut found).unwrap();
            prop_assert!(fixture.bytes_of(buffer) == found);
        }
        prop_assert!(fixture.sim.violations().is_empty(), "{:?}", fixture.sim.violations());
        let staging = fixture.manager.staging();
        prop_assert!(staging.peak_bytes() <= staging.limit_bytes());
        drop(buffers);
        fixture.manager.clear_cache();
        prop_assert_eq!(staging.used_bytes(), 0);
        prop_assert!(fixture.sim.leaks().is_empty(), "{:?}", fixture.sim.leaks());
    }

    #[test]
    fn memories_of_the_host_hold_what_the_ledger_says(acts in acts(), order in any::<usize>()) {
        let manager = TransferManager::builder().host().build().unwrap();
        let places = ["cpu:0", "cpu:0", "cpu:0/shared", "cpu:0/file"];
        run(&manager, &places, &acts, order);
    }
}
