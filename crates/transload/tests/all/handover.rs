//! Threads that submit, wait, give up waiting, poll, drop, cancel and set events, in random order: every transfer ends,
//! and a manager without handles is freed.
#![cfg(not(any(loom, transload_local)))]

use crate::plain;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::dice::Dice;
use crate::fixture::{Fixture, modes, place, without_peers};
use crate::plain::Desk;
use crate::within::within_limit;
use transload::{AllocSpec, Buffer, Event, Request, Transfer, TransferManager};

const THREADS: u64 = 4;
const ACTS: u64 = 40;
const LEN: u64 = 70_000;

/// A manager, and two of its memories.
struct Machine {
    name: String,
    manager: TransferManager,
    places: [&'static str; 2],
    /// Freed when no part of the manager is left.
    canary: Arc<Desk>,
}

fn machines() -> Vec<Machine> {
    let (manager, mut desks) = plain::manager(&["plain"]);
    let mut machines = vec![Machine {
        name: "a backend with every default".into(),
        manager,
        places: ["plain:0", "plain:0"],
        canary: desks.remove(0),
    }];
    let (manager, mut desks) = plain::manager(&["plain"]);
    machines.push(Machine {
        name: "the host".into(),
        manager,
        places: ["cpu:0", "cpu:0/shared"],
        canary: desks.remove(0),
    });
    machines.extend(modes().into_iter().map(|completion| {
        let fixture = Fixture::advancing(&without_peers(2), completion, 256 << 10);
        Machine {
            name: completion.to_string(),
            canary: plain::register(&fixture.manager, "plain"),
            manager: fixture.manager,
            places: ["sim:0", "sim:1"],
        }
    }));
    machines
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Awaits the transfer on this thread.
fn block_on(transfer: Transfer) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut transfer = pin!(transfer);
    loop {
        match transfer.as_mut().poll(&mut context) {
            Poll::Ready(result) => break drop(result.unwrap()),
            Poll::Pending => thread::park(),
        }
    }
}

/// The work of one thread: transfers between its own buffers, and one buffer that all threads write.
struct Actor {
    manager: TransferManager,
    src: Buffer,
    dst: Buffer,
    common: Buffer,
    dice: Dice,
    events: Vec<Event>,
}

impl Actor {
    fn submit(&mut self) -> Transfer {
        let to = match self.dice.below(3) {
            0 => &self.common,
            _ => &self.dst,
        };
        let mut request = Request::new(&self.src, to);
        if self.dice.below(2) == 0 {
            let then = self.manager.event();
            request = request.then(&then);
            self.events.push(then);
        }
        if self.dice.below(3) > 0 {
            return self.manager.submit(&request);
        }
        let gate = self.manager.event();
        let transfer = self.manager.submit(&request.after(&gate));
        match self.dice.below(3) {
            0 => gate.setter()(),
            1 => gate.set(),
            // Another thread sets the event while this one waits.
            _ => drop(thread::spawn(move || gate.set())),
        }
        transfer
    }

    fn act(&mut self) {
        let mut transfer = self.submit();
        match self.dice.below(8) {
            0 => drop(transfer.wait().unwrap()),
            1 => {
                let limit = Duration::from_micros(self.dice.below(2000));
                if let Some(result) = transfer.wait_timeout(limit) {
                    result.unwrap();
                }
            }
            2 => {
                let mut context = Context::from_waker(Waker::noop());
                let _ = Pin::new(&mut transfer).poll(&mut context);
            }
            3 => block_on(transfer),
            4 => drop(transfer.cancel()),
            5 => {
                while !transfer.is_over() {
                    thread::yield_now();
                }
                transfer.wait().unwrap();
            }
            6 => {
                drop(transfer);
                self.manager.wait_idle();
            }
            _ => drop(transfer),
        }
    }

    fn run(mut self) {
        (0..ACTS).for_each(|_| self.act());
        // No thread waits for these events: transfers that advance by themselves set them.
        while !self.events.iter().all(Event::is_set) {
            thread::yield_now();
        }
    }
}

fn play(machine: Machine, seed: u64) {
    let Machine {
        manager,
        places: [from, to],
        canary,
        ..
    } = machine;
    let empty = |at: &str| {
        let spec = AllocSpec::bytes(LEN);
        manager.allocate(place(at), spec).unwrap()
    };
    let common = empty(to);
    let threads: Vec<_> = (1..=THREADS)
        .map(|number| Actor {
            manager: manager.clone(),
            src: empty(from),
            dst: empty(to),
            common: common.clone(),
            dice: Dice(seed * 1000 + number),
            events: Vec::new(),
        })
        .map(|actor| thread::spawn(move || actor.run()))
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    manager.wait_idle();
    drop((common, manager));
    // The test's own reference is the last one.
    while Arc::strong_count(&canary) > 1 {
        thread::yield_now();
    }
}

#[test]
fn every_transfer_ends_and_nothing_keeps_a_manager_without_handles() {
    for seed in 1..=4 {
        for machine in machines() {
            within_limit(&machine.name.clone(), move || play(machine, seed));
        }
    }
}

/// The transfers end on the manager's own threads, which must then free the manager.
#[test]
fn a_manager_whose_handles_are_dropped_first_goes_with_its_last_transfer() {
    for machine in machines() {
        within_limit(&machine.name.clone(), move || {
            let Machine {
                manager,
                places: [from, to],
                canary,
                ..
            } = machine;
            let [src, dst] =
                [from, to].map(|at| manager.allocate(place(at), AllocSpec::bytes(LEN)).unwrap());
            for _ in 0..20 {
                drop(manager.copy(&src, &dst));
            }
            drop((manager, src, dst));
            while Arc::strong_count(&canary) > 1 {
                thread::yield_now();
            }
        });
    }
}
