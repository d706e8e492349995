//! Threads that submit and wait in every way, in pseudo-random order.

use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use crate::dice::Dice;
use transload::{
    AllocSpec, Buffer, Event, OnFailure, Priority, Report, Request, Transfer, TransferError,
    TransferManager,
};

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mixed = |i: usize| (i as u64 ^ (seed << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..len).map(|i| (mixed(i) >> 48) as u8).collect()
}

fn at(manager: &TransferManager, place: &str, len: u64) -> Buffer {
    let spec = AllocSpec::bytes(len);
    manager.allocate(place.parse().unwrap(), spec).unwrap()
}

type Answer = Result<Report, TransferError>;

/// A copy, and the bytes that its destination holds after success.
struct Held {
    transfer: Transfer,
    #[allow(dead_code, reason = "it is there while the copy is")]
    src: Buffer,
    dst: Buffer,
    wanted: Vec<u8>,
}

impl Held {
    fn check(self, manager: &TransferManager, wait: impl FnOnce(Transfer) -> Answer) {
        match wait(self.transfer) {
            Ok(_) => {
                let mut found = vec![0xEE; self.wanted.len()];
                manager.copy_into_slice(&self.dst, &mut found).unwrap();
                assert!(found == self.wanted, "wrong bytes in {}", self.dst.memory());
            }
            Err(
                TransferError::Deadline { .. }
                | TransferError::Cancelled { .. }
                | TransferError::BatchStopped,
            ) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// One of the threads.
struct Party<'a> {
    manager: &'a TransferManager,
    dice: Dice,
    /// The places where memory is allocated.
    places: &'a [&'a str],
    /// Avoids all calls that make the manager start a thread of its own, which would receive outcomes for the others.
    is_unaided: bool,
    /// Events that a thread has to set.
    gates: &'a Mutex<Vec<Event>>,
    held: Vec<Held>,
}

impl Party<'_> {
    fn below(&mut self, end: u64) -> u64 {
        self.dice.below(end)
    }

    fn ends(&mut self) -> (Buffer, Buffer, Vec<u8>) {
        let len = match self.below(10) {
            0 => 100_000 + self.below(400_000),
            1..=4 => 4096 * (1 + self.below(8)),
            _ => 1 + self.below(9000),
        };
        let [from, to] =
            [(); 2].map(|()| self.places[self.dice.below(self.places.len() as u64) as usize]);
        let wanted = bytes(len as usize, self.below(1 << 20));
        let src = at(self.manager, from, len);
        self.manager.copy_from_slice(&wanted, &src).unwrap();
        (src, at(self.manager, to, len), wanted)
    }

    fn hold(&mut self, transfer: Transfer, (src, dst, wanted): (Buffer, Buffer, Vec<u8>)) {
        self.held.push(Held {
            transfer,
            src,
            dst,
            wanted,
        });
    }

    fn submit(&mut self) {
        match self.below(6) {
            0 => self.submit_batch(),
            1 => self.submit_neighbours(),
            choice => self.submit_one(choice),
        }
    }

    fn submit_batch(&mut self) {
        let on_failure = [OnFailure::GoOn, OnFailure::Stop][self.below(2) as usize];
        let ends: Vec<_> = (0..1 + self.below(40)).map(|_| self.ends()).collect();
        let requests = ends.iter().map(|(src, dst, _)| Request::new(src, dst));
        let batch = self
            .manager
            .copy_batch(&requests.collect::<Vec<_>>(), on_failure);
        for (transfer, ends) in batch.unwrap().into_transfers().into_iter().zip(ends) {
            self.hold(transfer, ends);
        }
    }

    /// Submits copies of neighbouring blocks.
    fn submit_neighbours(&mut self) {
        let (src, dst, wanted) = self.ends();
        let block = 1 + src.len() / (1 + self.below(30));
        for start in (0..src.len()).step_by(block as usize) {
            let end = (start + block).min(src.len());
            let [src, dst] = [&src, &dst].map(|buffer| buffer.slice(start..end).unwrap());
            let transfer = self.manager.copy(&src, &dst);
            self.hold(
                transfer,
                (src, dst, wanted[start as usize..end as usize].to_vec()),
            );
        }
    }

    fn submit_one(&mut self, choice: u64) {
        let ends = self.ends();
        let mut request = Request::new(&ends.0, &ends.1);
        if choice == 2 && !self.is_unaided {
            let limit = Duration::from_micros(self.below(300));
            request = request.deadline(self.manager.now() + limit);
        }
        if choice == 3 {
            let gate = self.manager.event();
            request = request.after(&gate);
            self.gates.lock().unwrap().push(gate);
        }
        if self.below(4) == 0 {
            request = request.priority([Priority::High, Priority::Low][self.below(2) as usize]);
        }
        if self.below(8) == 0 {
            request = request.verify();
        }
        let transfer = match self.below(4) {
            0 => self.manager.prepare(&request).unwrap().post(),
            _ => self.manager.submit(&request),
        };
        self.hold(transfer, ends);
    }

    /// Ends one of the transfers in one of the possible ways.
    fn look_after_one(&mut self) {
        let which = self.below(self.held.len() as u64) as usize;
        let mut one = self.held.swap_remove(which);
        let manager = self.manager;
        match self.below(10) {
            0 | 2 | 5 if self.is_unaided => {}
            0 => return drop(one),
            1 => return drop(one.transfer.cancel()),
            2 => return one.check(manager, pollster::block_on),
            3 => {
                while !one.transfer.is_over() {
                    manager.turn();
                    thread::yield_now();
                }
            }
            4 => {
                let limit = Duration::from_micros(self.below(200));
                return one.check(manager, |mut transfer| {
                    loop {
                        if let Some(answer) = transfer.wait_timeout(limit) {
                            return answer;
                        }
                    }
                });
            }
            5 => {
                let mut context = Context::from_waker(Waker::noop());
                if Pin::new(&mut one.transfer).poll(&mut context).is_ready() {
                    return;
                }
            }
            6 => {
                // This copy follows a transfer that no thread waits for.
                let far = at(manager, &one.dst.memory().to_string(), one.dst.len());
                manager.copy(&one.dst, &far).wait().unwrap();
                return self.held.push(one);
            }
            7 => {
                // Memory that the host does not reach has no guards.
                drop(one.dst.read());
                return self.held.push(one);
            }
            8 => {
                let limit = Duration::from_micros(self.below(500));
                let _is_idle = manager.wait_idle_timeout(limit);
                return self.held.push(one);
            }
            _ => {}
        }
        one.check(manager, Transfer::wait);
    }
}

/// Counts a thread as over, even when it panics.
struct Leaves<'a>(&'a AtomicUsize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs several parties, and one thread that sets the events, by hand or from a driver's callback.
pub(crate) fn all(
    manager: &TransferManager,
    seed: u64,
    places: &[&str],
    (threads, steps): (u64, u64),
    is_unaided: bool,
) {
    let gates = &Mutex::new(Vec::new());
    let working = &AtomicUsize::new(threads as usize);
    thread::scope(|scope| {
        for number in 0..threads {
            let seed = (seed * 100 + number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut party = Party {
                manager,
                dice: Dice(seed | 1),
                places,
                is_unaided,
                gates,
                held: Vec::new(),
            };
            scope.spawn(move || {
                let _leaves = Leaves(working);
                for _ in 0..steps {
                    party.submit();
                    party.look_after_one();
                }
                for one in party.held {
                    one.check(manager, Transfer::wait);
                }
            });
        }
        let mut dice = Dice(seed | 1);
        while working.load(Ordering::SeqCst) > 0 {
            let gate = gates.lock().unwrap().pop();
            match gate {
                Some(gate) if dice.below(2) == 0 => gate.set(),
                Some(gate) => gate.setter()(),
                None => thread::yield_now(),
            }
        }
    });
    manager.wait_idle();
}
