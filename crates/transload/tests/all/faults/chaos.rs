//! Random mixtures of transfers, faults, cancels, drops, deadlines, events and clearing.

use std::time::Duration;

use transload::hal::ErrorClass;
use transload::{Buffer, Cancelled, Event, Priority, Report, Request, Transfer, TransferError};
use transload_testkit::sim::{Call, Completion, Rule};

use crate::common::{Bench, SECOND, SLOT, come_to_rest, expect_scripted_panics, marked, modes};
use crate::faults::scenarios::PEER;

const LEN: u64 = 2 * SLOT + 9;

#[test]
fn whatever_happens_bytes_are_right_and_nothing_stays_behind() {
    expect_scripted_panics();
    let machine = PEER.machine(true);
    let mut tally = [0u32; 4];
    for seed in 0..60 {
        for mode in modes() {
            let bench = PEER.bench(&machine, mode);
            Chaos::new(bench, mode, seed).run(&mut tally);
        }
    }
    let [ok, failed, stopped, dropped] = tally;
    println!("{ok} arrived, {failed} failed, {stopped} were stopped, {dropped} were let go");
    assert!(ok > 100 && failed > 100 && stopped > 100 && dropped > 100);
}

struct Chaos {
    bench: Bench,
    context: (Completion, u64),
    random: u64,
    sources: Vec<Buffer>,
    events: Vec<Event>,
    under_way: Vec<(Transfer, Buffer)>,
}

impl Chaos {
    fn new(bench: Bench, mode: Completion, seed: u64) -> Chaos {
        let places = ["sim:0", "cpu:0/pageable", "sim:0"];
        let sources = places.map(|at| bench.filled(at, marked(LEN))).into();
        Chaos {
            bench,
            context: (mode, seed),
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            sources,
            events: Vec::new(),
            under_way: Vec::new(),
        }
    }

    fn run(mut self, tally: &mut [u32; 4]) {
        for _ in 0..30 {
            match self.pick(12) {
                0..=3 => self.submit(),
                4 | 5 => {
                    self.bench.sim.step();
                    self.bench.manager.turn();
                }
                6 => self.add_rule(),
                7 => {
                    if let Some((transfer, dst)) = self.take() {
                        let answer = transfer.cancel();
                        self.check_cancelled(answer, &dst, tally);
                    }
                }
                8 => {
                    if let Some((transfer, _)) = self.take() {
                        drop(transfer);
                        tally[3] += 1;
                    }
                }
                9 => {
                    if let Some((mut transfer, dst)) = self.take() {
                        let limit = Duration::from_nanos(self.pick(30_000));
                        // The virtual clock stands still while all transfers wait for an event that is never set.
                        let moves = self.events.is_empty();
                        match moves.then(|| transfer.wait_timeout(limit)).flatten() {
                            Some(result) => self.check(result, &dst, tally),
                            None => self.under_way.push((transfer, dst)),
                        }
                    }
                }
                10 => {
                    if let Some(event) = self.events.pop() {
                        event.set();
                    }
                }
                _ => match self.pick(3) {
                    0 => self.bench.manager.clear_cache(),
                    _ => {
                        let ns = self.pick_ns();
                        self.bench.pass(ns);
                    }
                },
            }
        }
        self.events.drain(..).for_each(|event| event.set());
        while let Some((transfer, dst)) = self.take() {
            let result = transfer.wait();
            self.check(result, &dst, tally);
        }
        self.finish();
    }

    fn submit(&mut self) {
        let at = ["sim:1", "cpu:0/pinned", "sim:0"][self.pick(3) as usize];
        let from = self.pick(3) as usize;
        let src = self.sources[from].clone();
        let dst = self.bench.empty(at, LEN);
        let mut request = Request::new(&src, &dst);
        if self.pick(4) == 0 {
            request = request.verify();
        }
        if self.pick(3) == 0 {
            request = request.priority(Priority::High);
        }
        if self.pick(4) == 0 {
            let deadline = self.bench.manager.now().plus_ns(self.pick(60_000));
            request = request.deadline(deadline);
        }
        if self.pick(4) == 0 {
            let event = self.bench.manager.event();
            request = request.after(&event);
            self.events.push(event);
        }
        self.under_way
            .push((self.bench.manager.submit(&request), dst));
    }

    fn add_rule(&mut self) {
        let rule = match self.pick(5) {
            0 => Rule::fail_after(self.pick(LEN)),
            1 => Rule::refuse(Call::Submit, ErrorClass::Failed),
            2 => Rule::refuse(Call::Submit, ErrorClass::Exhausted),
            3 => Rule::panic_in(Call::Submit),
            _ => Rule::delay_ns(self.pick(1_000_000)),
        };
        let nth = 1 + self.pick(6);
        self.bench.sim.add_rule(rule.nth(nth));
    }

    fn check(&self, result: Result<Report, TransferError>, dst: &Buffer, tally: &mut [u32; 4]) {
        match result {
            Ok(report) => {
                assert!(
                    self.leads(dst, LEN),
                    "{:?}: wrong bytes after {report}",
                    self.context
                );
                tally[0] += 1;
            }
            Err(TransferError::Deadline { leading_bytes }) => {
                assert!(self.leads(dst, leading_bytes), "{:?}", self.context);
                tally[2] += 1;
            }
            Err(TransferError::Failed(_) | TransferError::NoRoute { .. }) => tally[1] += 1,
            Err(error) => panic!("{:?}: {error}", self.context),
        }
    }

    fn check_cancelled(&self, answer: Cancelled, dst: &Buffer, tally: &mut [u32; 4]) {
        match answer {
            Cancelled::NotStarted => tally[2] += 1,
            Cancelled::Stopped { leading_bytes } => {
                assert!(self.leads(dst, leading_bytes), "{:?}", self.context);
                tally[2] += 1;
            }
            Cancelled::Finished(result) => self.check(result, dst, tally),
        }
    }

    fn leads(&self, dst: &Buffer, leading: u64) -> bool {
        self.bench.read(dst)[..leading as usize] == marked(LEN)[..leading as usize]
    }

    fn finish(self) {
        for source in &self.sources {
            assert!(
                self.bench.read(source) == marked(LEN),
                "{:?}: a source changed",
                self.context
            );
        }
        drop(self.sources);
        let bench = self.bench;
        // The manager's own thread may be working on dropped transfers.
        come_to_rest(&bench.sim, &bench.budget, &self.context, || {
            bench.run();
            bench.manager.clear_cache();
        });
    }

    fn take(&mut self) -> Option<(Transfer, Buffer)> {
        let count = self.under_way.len() as u64;
        (count > 0).then(|| {
            let at = self.pick(count) as usize;
            self.under_way.swap_remove(at)
        })
    }

    fn pick(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below.max(1)
    }

    fn pick_ns(&mut self) -> u64 {
        match self.pick(2) {
            0 => self.pick(100_000),
            _ => 31 * SECOND,
        }
    }
}
