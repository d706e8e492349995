//! Ownership during transfers: drops in every order, guards, events, batches, priorities.

use crate::common;
use std::sync::Arc;
use std::time::Duration;

use transload::host::Host;
use transload::{
    AllocSpec, Buffer, Event, IntoInnerReason, OnFailure, Priority, Region, Request, Shape,
    StagingBudget, Transfer, TransferError, TransferManager,
};
use transload_testkit::sim::{Call, Completion, HostSide, Rule, Sim};

use crate::common::{Bench, SLOT, Sketch, marked, mem, modes, place, two_devices};

const LEN: u64 = 3 * SLOT + 3;

/// A simulated device next to the real host, whose memory guards can read.
fn beside_the_host() -> (Sim, TransferManager) {
    let sketch = Sketch::new()
        .device("cpu:0", &["pageable"])
        .device("sim:0", &["device"])
        .link("cpu:0/pageable", "sim:0/device", "sim:0#0", "native")
        .link("sim:0/device", "cpu:0/pageable", "sim:0#1", "native");
    let sim = Sim::builder(&sketch.machine())
        .host(HostSide::Real)
        .build()
        .unwrap();
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .staging(Arc::new(StagingBudget::new(3 * SLOT)))
        .backend(Arc::new(Host::new()))
        .backend(Arc::new(sim.clone()))
        .build()
        .unwrap();
    (sim, manager)
}

fn bench() -> Bench {
    Bench::new(&two_devices(), Completion::Timed, 3)
}

/// The build without threads has no thread to end a transfer whose handles are all gone.
#[cfg(not(transload_local))]
#[test]
fn handles_may_go_in_any_order_at_any_time() {
    let machine = two_devices().machine();
    let mut combinations = 0;
    for mode in modes() {
        for order in permutations() {
            for events in [0, 1, 2, 5, 9] {
                let sim = Sim::builder(&machine).completion(mode).build().unwrap();
                let bench = Bench::over(sim, 3, 1);
                let src = bench.filled("sim:0", marked(LEN));
                let dst = bench.empty("sim:1", LEN);
                let Bench {
                    sim,
                    manager,
                    budget,
                } = bench;
                let transfer = manager.copy(&src, &dst);
                for _ in 0..events {
                    sim.step();
                    manager.turn();
                }
                let mut handles = [
                    Some(Handle::Src(src)),
                    Some(Handle::Dst(dst)),
                    Some(Handle::Manager(manager)),
                    Some(Handle::Transfer(transfer)),
                ];
                for at in order {
                    drop(handles[at].take());
                }
                let context = (mode, order, events);
                // The manager's own thread ends the transfers in flight, and then frees all resources.
                crate::common::come_to_rest(&sim, &budget, &context, || ());
                combinations += 1;
            }
        }
    }
    println!("{combinations} combinations of mode, order and moment");
}

#[cfg(not(transload_local))]
#[allow(dead_code, reason = "held to be dropped")]
enum Handle {
    Src(Buffer),
    Dst(Buffer),
    Manager(TransferManager),
    Transfer(Transfer),
}

#[cfg(not(transload_local))]
fn permutations() -> Vec<[usize; 4]> {
    let all = (0..256).map(|n| [n / 64, n / 16 % 4, n / 4 % 4, n % 4]);
    all.filter(|order| (0..4).all(|at| order.contains(&at)))
        .collect()
}

#[test]
fn into_inner_waits_for_nobody_and_gives_the_buffer_back() {
    let (sim, manager) = beside_the_host();
    let heap = manager.adopt(marked(LEN).to_vec()).unwrap();
    let device = manager
        .allocate(place("sim:0"), AllocSpec::bytes(LEN))
        .unwrap();
    let transfer = manager.copy(&heap, &device);
    let busy = heap.into_inner::<Vec<u8>>().unwrap_err();
    assert_eq!(busy.reason, IntoInnerReason::InUse);
    assert!(busy.to_string().contains("under way"), "{busy}");
    assert_eq!(busy.buffer.len(), LEN);
    transfer.wait().unwrap();
    assert!(busy.buffer.into_inner::<Vec<u8>>().unwrap() == marked(LEN));

    // Dropping the handle does not end the transfer.
    let heap = manager.adopt(vec![0u8; LEN as usize]).unwrap();
    let event = manager.event();
    drop(manager.submit(&Request::new(&device, &heap).then(&event)));
    let mut heap = Some(heap);
    let vector = (0..10_000_000)
        .find_map(|_| {
            settle(&sim, &manager);
            std::thread::yield_now();
            match heap.take()?.into_inner::<Vec<u8>>() {
                Ok(vector) => Some(vector),
                Err(busy) => {
                    heap = Some(busy.buffer);
                    None
                }
            }
        })
        .expect("a detached transfer lets go in the end");
    assert!(event.is_set(), "its owner came back before it was over");
    assert!(vector == marked(LEN));
}

#[test]
fn a_guard_waits_for_what_was_submitted_before_it() {
    let (_sim, manager) = beside_the_host();
    let heap = manager.adopt(vec![0u8; LEN as usize]).unwrap();
    let device = manager
        .allocate(place("sim:0"), AllocSpec::bytes(LEN))
        .unwrap();
    manager.copy_from_slice(marked(LEN), &device).unwrap();
    let back = manager.copy(&device, &heap);
    assert!(*heap.read().unwrap() == *marked(LEN), "looked too early");
    assert!(back.is_over());
    back.wait().unwrap();
}

#[test]
fn a_read_guard_keeps_writers_away_and_no_readers() {
    let (sim, manager) = beside_the_host();
    let heap = manager.adopt(marked(LEN).to_vec()).unwrap();
    let device = manager
        .allocate(place("sim:0"), AllocSpec::bytes(LEN))
        .unwrap();
    let other = manager
        .allocate(place("sim:0"), AllocSpec::bytes(LEN))
        .unwrap();
    let guard = heap.read().unwrap();
    let second = heap.read().unwrap();
    manager.copy(&heap, &device).wait().unwrap();
    let writer = manager.copy(&other, &heap);
    settle(&sim, &manager);
    assert!(!writer.is_over(), "it wrote under a guard");
    assert!(*guard == *marked(LEN));
    drop(guard);
    settle(&sim, &manager);
    assert!(!writer.is_over(), "it wrote under the second guard");
    drop(second);
    settle(&sim, &manager);
    assert!(writer.is_over());
    writer.wait().unwrap();
    assert!(*heap.read().unwrap() != *marked(LEN));
}

#[test]
fn a_write_guard_keeps_everybody_away() {
    let (sim, manager) = beside_the_host();
    let heap = manager.adopt(vec![0u8; LEN as usize]).unwrap();
    let device = manager
        .allocate(place("sim:0"), AllocSpec::bytes(LEN))
        .unwrap();
    let mut guard = heap.write().unwrap();
    let reader = manager.copy(&heap, &device);
    settle(&sim, &manager);
    assert!(!reader.is_over(), "it read under a guard that writes");
    guard.copy_from_slice(marked(LEN));
    drop(guard);
    reader.wait().unwrap();
    let mut back = vec![0; LEN as usize];
    sim.read(device.raw(), 0, &mut back).unwrap();
    assert!(back == marked(LEN), "it read before the guard had gone");
}

#[test]
fn conflicting_transfers_take_effect_in_their_order() {
    for mode in modes() {
        let bench = Bench::new(&two_devices(), mode, 3);
        let first = bench.filled("sim:0", &marked(2 * LEN)[..LEN as usize]);
        let second = bench.filled("sim:0", &marked(2 * LEN)[LEN as usize..]);
        let shared = bench.empty("sim:1", LEN);
        let outs = [(); 2].map(|()| bench.empty("sim:0", LEN));
        let transfers = [
            bench.manager.copy(&first, &shared),
            bench.manager.copy(&shared, &outs[0]),
            bench.manager.copy(&second, &shared),
            bench.manager.copy(&shared, &outs[1]),
        ];
        // The test waits for the last one first: the order of waiting must not matter.
        for transfer in transfers.into_iter().rev() {
            transfer.wait().unwrap();
        }
        assert!(bench.read(&outs[0]) == bench.read(&first), "{mode}");
        assert!(bench.read(&outs[1]) == bench.read(&second), "{mode}");
        assert_eq!(bench.sim.violations(), [], "{mode}");
    }
}

#[test]
fn what_does_not_conflict_does_not_wait() {
    let bench = bench();
    let host = bench.filled("cpu:0/pinned", marked(2 * LEN));
    let (near, far) = (bench.empty("sim:0", LEN), bench.empty("sim:1", LEN));
    let event = bench.manager.event();
    let held = bench
        .manager
        .submit(&Request::new(host.slice(..LEN).unwrap(), &near).after(&event));
    // A read of the same bytes and a write of other bytes of the same buffer do not conflict.
    for at in [0, LEN] {
        let view = host.slice(at..at + LEN).unwrap();
        bench.manager.copy(view, &far).wait().unwrap();
    }
    // Rows between the rows that the held copy reads do not conflict either.
    assert!(!held.is_over());
    event.set();
    held.wait().unwrap();
    assert!(bench.read(&near) == marked(LEN));
}

#[test]
fn interleaved_rows_of_one_buffer_move_at_one_time() {
    let bench = bench();
    let target = bench.empty("sim:0", 64 * 100);
    let src = bench.filled("cpu:0/pinned", marked(30 * 100));
    let rows = |offset| Region::new(&target, offset, Shape::pitched(30, 100, 64).unwrap()).unwrap();
    let event = bench.manager.event();
    let held = bench
        .manager
        .submit(&Request::new(&src, rows(0)).after(&event));
    bench.manager.copy(&src, rows(32)).wait().unwrap();
    assert!(!held.is_over());
    let crossing = bench.manager.copy(&src, rows(16));
    bench.run();
    assert!(!crossing.is_over(), "it overlaps the one that is held");
    event.set();
    held.wait().unwrap();
    crossing.wait().unwrap();
    assert_eq!(bench.sim.violations(), []);
}

#[test]
fn a_failed_predecessor_does_not_stop_its_successors() {
    let bench = bench();
    let [first, second] = [0, LEN]
        .map(|at| bench.filled("sim:0", &marked(2 * LEN)[at as usize..(at + LEN) as usize]));
    let dst = bench.empty("cpu:0/pinned", LEN);
    let onward = bench.empty("sim:1", LEN);
    bench.sim.add_rule(
        Rule::fail_after(99)
            .with_class(transload::hal::ErrorClass::Exhausted)
            .over(mem("sim:0/device"), mem("cpu:0/pinned")),
    );
    let failing = bench.manager.copy(&first, &dst);
    let next = bench.manager.copy(&second, &dst);
    let last = bench.manager.copy(&dst, &onward);
    assert!(failing.wait().is_err());
    next.wait().unwrap();
    last.wait().unwrap();
    assert!(bench.read(&onward) == bench.read(&second));
}

#[test]
fn events_tie_transfers_to_the_users_own_work() {
    let bench = bench();
    let (src, dst) = (
        bench.filled("sim:0", marked(LEN)),
        bench.empty("sim:1", LEN),
    );
    let [one, two, over]: [Event; 3] = std::array::from_fn(|_| bench.manager.event());
    let request = Request::new(&src, &dst).after(&one).after(&two).then(&over);
    let transfer = bench.manager.submit(&request);
    for event in [&one, &two] {
        bench.run();
        assert!(!transfer.is_over() && !over.is_set());
        assert_eq!(bench.sim.in_flight(), 0, "it began too early");
        event.set();
        event.set();
    }
    assert!(
        bench.sim.in_flight() > 0,
        "it begins on the thread that sets the event"
    );
    transfer.wait().unwrap();
    assert!(over.is_set());
    // An event that is already set holds up nothing. The end of one transfer can start another.
    let chained = bench.manager.event();
    let scratch = bench.empty("sim:1", LEN);
    let request = Request::new(&src, &scratch).after(&one).then(&chained);
    let first = bench.manager.submit(&request);
    let second = bench
        .manager
        .submit(&Request::new(&dst, &src).after(&chained));
    assert!(!chained.is_set());
    first.wait().unwrap();
    second.wait().unwrap();
}

#[test]
fn a_setter_runs_nothing_where_it_is_called() {
    let bench = bench();
    let (src, dst) = (
        bench.filled("sim:0", marked(LEN)),
        bench.empty("sim:1", LEN),
    );
    let event = bench.manager.event();
    let [first, second] = [(); 2].map(|()| event.setter());
    let transfer = bench
        .manager
        .submit(&Request::new(&src, &dst).after(&event));
    first();
    second();
    assert!(event.is_set());
    assert_eq!(bench.sim.in_flight(), 0, "the setter's thread began it");
    transfer.wait().unwrap();
    assert!(bench.read(&dst) == marked(LEN));
    // An event that outlives its manager has no transfer to start.
    let late = bench.manager.event().setter();
    drop((bench, src, dst, event));
    late();
}

#[test]
fn events_are_set_however_a_transfer_ends() {
    let bench = bench();
    let (src, dst) = (bench.empty("sim:0", LEN), bench.empty("cpu:0/pinned", LEN));
    let never = bench.manager.event();
    let ended = |request: Request| {
        let event = bench.manager.event();
        (bench.manager.submit(&request.then(&event)), event)
    };
    let (transfer, event) = ended(Request::new(&src, &dst).after(&never));
    drop(transfer.cancel());
    assert!(event.is_set(), "cancelled");
    let late = bench.manager.now().plus_ns(1);
    let (transfer, event) = ended(Request::new(&src, &dst).deadline(late));
    assert!(transfer.wait().is_err());
    bench.run();
    assert!(event.is_set(), "timed out");
    bench.sim.add_rule(Rule::refuse(
        Call::Submit,
        transload::hal::ErrorClass::Failed,
    ));
    let (transfer, event) = ended(Request::new(&src, &dst));
    assert!(transfer.wait().is_err());
    assert!(event.is_set(), "failed");
}

#[test]
fn a_batch_stops_at_its_first_failure_only_where_asked() {
    for on_failure in [OnFailure::GoOn, OnFailure::Stop] {
        let bench = bench();
        let src = bench.filled("sim:0", marked(LEN));
        let dsts = [(); 4].map(|()| bench.empty("cpu:0/pinned", LEN));
        // The second copy fails. All copies read one source and write to their own destinations, over one engine, which
        // this test keeps out of quarantine.
        let chain = bench.manager.event();
        let class = transload::hal::ErrorClass::Exhausted;
        let rule = Rule::refuse(Call::Submit, class).over(mem("sim:0/device"), mem("cpu:0/pinned"));
        bench.sim.add_rule(rule.nth(2));
        let requests = [
            Request::new(&src, &dsts[0]),
            Request::new(&src, &dsts[1]).then(&chain),
            Request::new(&src, &dsts[2]).after(&chain),
            Request::new(&src, &dsts[3]).after(&chain),
        ];
        let batch = bench.manager.copy_batch(&requests, on_failure).unwrap();
        let results = batch.wait();
        assert!(results[0].is_ok(), "it had begun");
        assert!(
            matches!(results[1], Err(TransferError::Failed(_))),
            "{:?}",
            results[1]
        );
        for (result, dst) in results[2..].iter().zip(&dsts[2..]) {
            if on_failure == OnFailure::Stop {
                assert_eq!(*result, Err(TransferError::BatchStopped));
                assert!(bench.read(dst) != marked(LEN));
            } else {
                assert!(result.is_ok());
                assert!(bench.read(dst) == marked(LEN));
            }
        }
    }
}

#[test]
fn priorities_decide_who_gets_slots_first() {
    let bench = bench();
    let pair = || {
        (
            bench.filled("sim:0", marked(LEN)),
            bench.empty("sim:1", LEN),
        )
    };
    let pairs: [(Buffer, Buffer); 5] = std::array::from_fn(|_| pair());
    let priorities = [
        Priority::Normal,
        Priority::Low,
        Priority::Normal,
        Priority::High,
        Priority::High,
    ];
    let requests = pairs
        .iter()
        .zip(priorities)
        .map(|((src, dst), priority)| Request::new(src, dst).priority(priority));
    // The first transfer takes all of the staging budget before the others start.
    let transfers: Vec<Transfer> = requests
        .map(|request| bench.manager.submit(&request))
        .collect();
    let mut order = Vec::new();
    loop {
        for (at, transfer) in transfers.iter().enumerate() {
            if transfer.is_over() && !order.contains(&at) {
                order.push(at);
            }
        }
        if !bench.sim.step() {
            break;
        }
        bench.manager.turn();
    }
    assert_eq!(order, [0, 3, 4, 2, 1]);
}

#[test]
fn a_transfer_has_its_own_turn_in_the_place_of_one_that_was_cancelled() {
    let bench = bench();
    let pair = || {
        (
            bench.filled("sim:0", marked(LEN)),
            bench.empty("sim:1", LEN),
        )
    };
    let pairs: [(Buffer, Buffer); 9] = std::array::from_fn(|_| pair());
    let submit = |at: usize, priority| {
        let (src, dst) = &pairs[at];
        let request = Request::new(src, dst).priority(priority);
        bench.manager.submit(&request)
    };
    // The first transfer takes all of the staging budget; the others wait for their slots.
    let mut transfers: Vec<Transfer> = (0..8).map(|at| submit(at, Priority::Normal)).collect();
    let cancelled = transfers.pop().unwrap();
    cancelled.cancel();
    let urgent = submit(8, Priority::High);
    while !urgent.is_over() {
        assert!(bench.sim.step(), "nothing moves");
        bench.manager.turn();
    }
    let over = transfers.iter().filter(|transfer| transfer.is_over());
    assert_eq!(over.count(), 1, "it waited behind normal ones");
    settle(&bench.sim, &bench.manager);
}

#[test]
fn borrowed_bytes_are_quiet_when_the_call_returns() {
    for mode in modes() {
        let sketch = Sketch::new()
            .device("cpu:0", &["pageable"])
            .device("sim:0", &["device"])
            .link("cpu:0/pageable", "sim:0/device", "sim:0#0", "native")
            .link("sim:0/device", "cpu:0/pageable", "sim:0#1", "native");
        for fault in [
            None,
            Some(Rule::fail_after(500)),
            Some(Rule::delay_ns(10_000_000)),
        ] {
            let bench = Bench::new(&sketch, mode, 3);
            let device = bench.empty("sim:0", LEN);
            if let Some(rule) = fault.clone() {
                bench.sim.add_rule(rule);
            }
            let mut bytes = marked(LEN).to_vec();
            let there = bench.manager.copy_from_slice(&bytes, &device);
            assert_eq!(bench.sim.in_flight(), 0, "{mode}");
            bytes.fill(0);
            if there.is_ok() {
                let back = bench.manager.copy_into_slice(&device, &mut bytes);
                assert_eq!(bench.sim.in_flight(), 0, "{mode}");
                assert!(back.is_err() || bytes == marked(LEN), "{mode}");
            } else {
                assert!(fault.is_some(), "{mode}: {there:?}");
            }
            assert_eq!(bench.sim.violations(), []);
        }
    }
}

#[test]
fn waiting_for_one_transfer_leaves_the_others_alone() {
    let bench = bench();
    let src = bench.filled("cpu:0/pinned", marked(LEN));
    let (near, far) = (bench.empty("sim:0", LEN), bench.empty("sim:1", LEN));
    let rule = Rule::never_answer().over(mem("cpu:0/pinned"), mem("sim:0/device"));
    bench.sim.add_rule(rule);
    let mut stuck = bench.manager.copy(&src, &near);
    bench.manager.copy(&src, &far).wait().unwrap();
    assert!(bench.now() < 1_000_000, "it waited for the one that hangs");
    assert_eq!(stuck.wait_timeout(Duration::from_millis(1)), None);
    bench.sim.lose_device(common::device("sim:0"));
    assert!(stuck.wait().is_err());
}

/// Runs all events that happen by themselves on a simulated device.
fn settle(sim: &Sim, manager: &TransferManager) {
    manager.turn();
    while sim.step() {
        manager.turn();
    }
    manager.turn();
}
