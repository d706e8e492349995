//! A backend whose threads sleep until the engine expects an outcome: a waiting caller still learns the outcome.
#![cfg(not(any(loom, transload_local)))]

use crate::every_way;
use crate::fixture;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use transload::hal::{Backend, CompletionSink, Fence, Op, Outcome, SubmitError, Waited};
use transload::model::LinkId;
use transload::{AllocSpec, StagingBudget, TransferManager};
use transload_testkit::sim::{Completion, Sim};
use transload_testkit::topology;

/// The submitted operations, and the sink that is told of their outcomes.
#[derive(Default)]
struct Post {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    sink: Option<Arc<dyn CompletionSink>>,
    /// Submitted fences that the engine does not expect.
    unheard: Vec<Fence>,
    /// Expected fences, for the thread to report.
    expected: Vec<Fence>,
    /// Fences that may be reported.
    may_tell: HashSet<Fence>,
    /// Fences that have ended, but were not reported.
    ended: HashMap<Fence, Outcome>,
    is_closing: bool,
}

impl State {
    fn allow(&mut self, fence: Fence) {
        match self.ended.remove(&fence) {
            Some(outcome) => self.sink.as_ref().unwrap().settle(fence, outcome),
            None => drop(self.may_tell.insert(fence)),
        }
    }
}

struct Ear(Arc<Post>);

impl CompletionSink for Ear {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        let mut state = self.0.state.lock().unwrap();
        if state.may_tell.remove(&fence) {
            state.sink.as_ref().unwrap().settle(fence, outcome);
        } else {
            state.ended.insert(fence, outcome);
        }
    }
}

struct Sleepy {
    sim: Sim,
    post: Arc<Post>,
    /// Whether the backend panics when the engine waits for it.
    is_brittle: Arc<AtomicBool>,
}

impl Sleepy {
    fn new(sim: Sim) -> Sleepy {
        let post = Arc::new(Post::default());
        let (of_thread, machine) = (Arc::clone(&post), sim.clone());
        thread::spawn(move || {
            let mut state = of_thread.state.lock().unwrap();
            loop {
                if let Some(fence) = state.expected.pop() {
                    drop(state);
                    while machine.wait(fence, Duration::MAX) != Waited::Settled {}
                    state = of_thread.state.lock().unwrap();
                } else if state.is_closing {
                    return;
                } else {
                    state = of_thread.work.wait(state).unwrap();
                }
            }
        });
        Sleepy {
            sim,
            post,
            is_brittle: Arc::default(),
        }
    }
}

impl Drop for Sleepy {
    fn drop(&mut self) {
        self.post.state.lock().unwrap().is_closing = true;
        self.post.work.notify_all();
    }
}

// SAFETY: the simulated machine executes the operations. Each outcome is reported once, later than the machine reports
// it.
unsafe impl Backend for Sleepy {
    left_to_the_sim!(inventory allocate exchange connect);

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        // SAFETY: the caller keeps the same promise that the machine asks for.
        let fence = unsafe { self.sim.submit(via, ops, after) }?;
        if !fence.is_immediate() {
            self.post.state.lock().unwrap().unheard.push(fence);
        }
        Ok(fence)
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.post.state.lock().unwrap().sink = Some(sink);
        self.sim.attach(Arc::new(Ear(Arc::clone(&self.post))))
    }

    fn completes_unattended(&self) -> bool {
        true
    }

    fn expect(&self) {
        let mut state = self.post.state.lock().unwrap();
        let unheard = std::mem::take(&mut state.unheard);
        for fence in unheard {
            state.allow(fence);
            state.expected.push(fence);
        }
        drop(state);
        self.post.work.notify_all();
    }

    fn pump(&self) {}

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        assert!(!self.is_brittle.load(Ordering::Relaxed), "simulated fault");
        let mut state = self.post.state.lock().unwrap();
        if let Some(at) = state.unheard.iter().position(|unheard| *unheard == fence) {
            state.unheard.swap_remove(at);
            state.allow(fence);
        }
        drop(state);
        self.sim.wait(fence, limit)
    }
}

fn sleepy(budget: &Arc<StagingBudget>) -> TransferManager {
    brittle(budget).0
}

/// The same, with a switch that makes the backend panic.
fn brittle(budget: &Arc<StagingBudget>) -> (TransferManager, Arc<AtomicBool>) {
    let machine = topology::from_str(&fixture::without_peers(2)).unwrap();
    let sim = Sim::builder(&machine)
        .completion(Completion::Timed)
        .build()
        .unwrap();
    let sleepy = Sleepy::new(sim);
    let is_brittle = Arc::clone(&sleepy.is_brittle);
    let manager = TransferManager::builder()
        .backend(Arc::new(sleepy))
        .staging(Arc::clone(budget))
        .build()
        .unwrap();
    (manager, is_brittle)
}

#[test]
fn a_borrowed_copy_ends_though_its_backend_panics_when_it_is_waited_for() {
    let budget = Arc::new(StagingBudget::new(1 << 20));
    let (manager, is_brittle) = brittle(&budget);
    let wanted = fixture::bytes(1000, 1);
    let at = fixture::place("cpu:0/pinned");
    let far = manager.allocate(at, AllocSpec::bytes(1000)).unwrap();
    manager.copy_from_slice(&wanted, &far).unwrap();
    is_brittle.store(true, Ordering::Relaxed);
    // The engine lets go of the caller's bytes when no operation uses them, and not before.
    manager
        .copy_from_slice(&fixture::bytes(1000, 2), &far)
        .unwrap();
    assert!(*far.read().unwrap() == fixture::bytes(1000, 2));
}

fn everything(threads: u64, is_unaided: bool) {
    for seed in 1..=4 {
        let budget = Arc::new(StagingBudget::new((256 << 10) << seed));
        let manager = sleepy(&budget);
        let places = ["cpu:0/pinned", "cpu:0", "sim:0", "sim:1"];
        every_way::all(&manager, seed, &places, (threads, 40), is_unaided);
        // The backend may deliver a slot after the transfer that asked for it is over.
        while budget.used_bytes() > 0 {
            manager.clear_cache();
            thread::yield_now();
        }
    }
}

#[test]
fn threads_that_wait_in_every_way_all_hear() {
    everything(4, false);
}

#[test]
fn threads_without_the_managers_own_all_hear() {
    everything(4, true);
}

#[test]
fn a_thread_that_is_alone_hears() {
    everything(1, true);
}

#[test]
fn who_only_turns_the_engine_hears() {
    let budget = Arc::new(StagingBudget::new(1 << 20));
    let manager = sleepy(&budget);
    let [src, dst] = ["cpu:0/pinned", "sim:0"].map(|at| {
        let spec = AllocSpec::bytes(1000);
        manager.allocate(fixture::place(at), spec).unwrap()
    });
    let transfer = manager.copy(&src, &dst);
    while !transfer.is_over() {
        manager.turn();
        thread::yield_now();
    }
    transfer.wait().unwrap();
}
