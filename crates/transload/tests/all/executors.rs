//! Transfers as futures, under common executors. The library needs none of them; each executor only calls `poll` and
//! provides wakers.
// Executors move futures between threads.
#![cfg(not(transload_local))]

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::fixture::{Fixture, Outcome, bytes, place, without_peers};
use transload::{AllocSpec, Buffer, Report, Transfer, TransferError, TransferManager};
use transload_testkit::sim::Completion;

/// A machine to await on: real memory, or a simulated machine whose outcomes a thread has to fetch.
struct Machine {
    manager: TransferManager,
    from: &'static str,
    to: &'static str,
}

fn machines() -> Vec<Machine> {
    let host = Machine {
        manager: TransferManager::builder().host().build().unwrap(),
        from: "cpu:0",
        to: "cpu:0/shared",
    };
    let simulated = [Completion::Timed, Completion::Pumped].map(|completion| Machine {
        manager: Fixture::new(&without_peers(2), completion, 256 << 10).manager,
        from: "sim:0",
        to: "sim:1",
    });
    let mut machines = vec![host];
    machines.extend(simulated);
    machines
}

impl Machine {
    fn ends(&self, wanted: &[u8]) -> (Buffer, Buffer) {
        let allocate = |at| {
            let spec = AllocSpec::bytes(wanted.len() as u64);
            self.manager.allocate(place(at), spec).unwrap()
        };
        let (src, dst) = (allocate(self.from), allocate(self.to));
        self.manager.copy_from_slice(wanted, &src).unwrap();
        (src, dst)
    }

    fn holds(&self, buffer: &Buffer, wanted: &[u8]) -> bool {
        let mut found = vec![0xEE; wanted.len()];
        self.manager.copy_into_slice(buffer, &mut found).unwrap();
        found == wanted
    }
}

/// Awaits one transfer, then many at once, then one that is dropped half-way.
async fn story(machine: &Machine) {
    let wanted = bytes(300_001, 1);
    let (src, dst) = machine.ends(&wanted);
    let report = machine.manager.copy(&src, &dst).await.unwrap();
    assert_eq!(report.bytes(), wanted.len() as u64);
    assert!(machine.holds(&dst, &wanted));

    let many: Vec<_> = (0..16).map(|i| bytes(100_000 + i, i as u64)).collect();
    let ends: Vec<_> = many.iter().map(|wanted| machine.ends(wanted)).collect();
    let all = ends.iter().map(|(src, dst)| machine.manager.copy(src, dst));
    for result in (Join {
        all: all.map(Slot::Running).collect(),
    })
    .await
    {
        result.unwrap();
    }
    for ((_, dst), wanted) in ends.iter().zip(&many) {
        assert!(machine.holds(dst, wanted));
    }

    let wanted = bytes(5 << 20, 3);
    let (src, dst) = machine.ends(&wanted);
    let mut transfer = machine.manager.copy(&src, &dst);
    let once = std::future::poll_fn(|context| {
        Poll::Ready(Pin::new(&mut transfer).poll(context).is_ready())
    });
    let _ready = once.await;
    drop(transfer);
    // The transfer goes on without its handle, and this copy follows it.
    assert!(machine.holds(&dst, &wanted));
}

/// Several transfers, polled together by one task.
struct Join {
    all: Vec<Slot>,
}

enum Slot {
    Running(Transfer),
    Ended(Option<Result<Report, TransferError>>),
}

impl Future for Join {
    type Output = Vec<Result<Report, TransferError>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        for slot in &mut self.all {
            if let Slot::Running(transfer) = slot
                && let Poll::Ready(result) = Pin::new(transfer).poll(context)
            {
                *slot = Slot::Ended(Some(result));
            }
        }
        let ended = |slot: &Slot| matches!(slot, Slot::Ended(_));
        if !self.all.iter().all(ended) {
            return Poll::Pending;
        }
        let results = self.all.iter_mut().filter_map(|slot| match slot {
            Slot::Ended(result) => result.take(),
            Slot::Running(_) => None,
        });
        Poll::Ready(results.collect())
    }
}

#[test]
fn pollster_awaits_transfers() {
    for machine in machines() {
        pollster::block_on(story(&machine));
    }
}

#[test]
fn a_tokio_runtime_of_one_thread_awaits_transfers() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    for machine in machines() {
        runtime.block_on(story(&machine));
    }
    Ok(())
}

#[test]
fn a_tokio_runtime_of_several_threads_awaits_transfers() -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .build()?;
    for machine in machines() {
        let machine = Arc::new(machine);
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let machine = Arc::clone(&machine);
                runtime.spawn(async move { story(&machine).await })
            })
            .collect();
        for task in tasks {
            runtime.block_on(task)?;
        }
    }
    Ok(())
}

#[test]
fn a_transfer_that_loses_a_race_in_tokio_still_completes() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    for machine in machines() {
        let wanted = bytes(8 << 20, 4);
        let (src, dst) = machine.ends(&wanted);
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = machine.manager.copy(&src, &dst) => {}
                () = std::future::ready(()) => {}
            }
        });
        assert!(machine.holds(&dst, &wanted));
    }
    Ok(())
}

#[test]
fn smol_awaits_transfers() {
    for machine in machines() {
        let machine = Arc::new(machine);
        let executor = smol::Executor::new();
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let machine = Arc::clone(&machine);
                executor.spawn(async move { story(&machine).await })
            })
            .collect();
        smol::block_on(executor.run(async {
            for task in tasks {
                task.await;
            }
        }));
    }
}

/// Counts its wake-ups, and lets a thread wait for the next one.
#[derive(Default)]
struct Bell {
    rung: AtomicUsize,
    heard: Mutex<usize>,
    rang: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.fetch_add(1, Ordering::SeqCst);
        *self.heard.lock().unwrap() += 1;
        self.rang.notify_all();
    }
}

impl Bell {
    fn await_ring(&self) {
        let mut heard = self.heard.lock().unwrap();
        while *heard == 0 {
            heard = self.rang.wait(heard).unwrap();
        }
        *heard -= 1;
    }
}

#[test]
fn a_waker_is_called_once_and_the_future_is_ready_then() {
    for machine in machines() {
        let wanted = bytes(6 << 20, 5);
        let (src, dst) = machine.ends(&wanted);
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        let mut context = Context::from_waker(&waker);
        let mut transfer = pin!(machine.manager.copy(&src, &dst));
        let mut polls = 0;
        let report = loop {
            polls += 1;
            match transfer.as_mut().poll(&mut context) {
                Poll::Ready(result) => break result.unwrap(),
                Poll::Pending => bell.await_ring(),
            }
        };
        assert_eq!(report.bytes(), wanted.len() as u64);
        // The transfer is ready at once, or after one call of the waker.
        assert_eq!(polls, 1 + bell.rung.load(Ordering::SeqCst));
        assert!(polls <= 2, "{polls} polls");
        assert!(machine.holds(&dst, &wanted));
    }
}

#[test]
fn only_the_latest_waker_is_called() {
    let machine = &machines()[1];
    let wanted = bytes(1 << 20, 6);
    let (src, dst) = machine.ends(&wanted);
    // A guard holds the transfer back, so that it cannot be over before the second poll.
    let held = machine
        .manager
        .allocate(place("cpu:0"), AllocSpec::bytes(src.len()))
        .unwrap();
    let guard = held.read().unwrap();
    let bells = [(); 2].map(|()| Arc::new(Bell::default()));
    let mut transfer = pin!(machine.manager.copy(&src, &held));
    for bell in &bells {
        let waker = Waker::from(Arc::clone(bell));
        let poll = transfer.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll.is_pending());
    }
    drop(guard);
    bells[1].await_ring();
    let waker = Waker::from(Arc::clone(&bells[1]));
    let poll = transfer.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(matches!(poll, Poll::Ready(Ok(_))));
    assert_eq!(bells[0].rung.load(Ordering::SeqCst), 0);
    drop(dst);
}
