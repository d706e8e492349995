//! Faults happen as the script says.

use super::*;

#[test]
fn a_failing_copy_moves_as_many_bytes_as_the_script_says() {
    let setup = setup(
        Completion::Timed,
        Script::new().with(Rule::fail_after(10).nth(2)),
    );
    let src = setup.buffer("cpu:0/pinned", &[3; 64]);
    let dst = setup.buffer("sim:0/device", &[0; 64]);
    copy(&setup.sim, &src, &dst.slice(0, 64).unwrap(), &[]).unwrap();
    setup.sim.run_until_idle();
    setup.sim.write(&dst, 0, &[0; 64]).unwrap();
    let fence = copy(&setup.sim, &src, &dst, &[]).unwrap();
    setup.sim.run_until_idle();
    let Some((told, Outcome::Failed(fault))) = setup.log.outcomes().pop() else {
        panic!("{:?}", setup.log.outcomes());
    };
    assert_eq!((told, fault.class), (fence, ErrorClass::Failed));
    assert!(fault.to_string().contains("simulated"));
    assert_eq!(setup.bytes(&dst)[..10], [3; 10]);
    assert_eq!(setup.bytes(&dst)[10..], [0; 54]);
    assert_eq!(setup.sim.script().rules()[0].fired(), 1);
}

#[test]
fn a_delay_adds_to_the_cost_and_a_corruption_flips_one_byte() {
    let script = Script::new()
        .with(Rule::delay_ns(5000))
        .with(Rule::corrupt(63).nth(2));
    let setup = setup(Completion::Timed, script);
    let src = setup.buffer("cpu:0/pinned", &[3; 64]);
    let dst = setup.buffer("sim:0/device", &[0; 64]);
    let slow = copy(&setup.sim, &src, &dst, &[]).unwrap();
    assert_eq!(setup.sim.run_until_idle(), Instant(6064));
    let wrong = copy(&setup.sim, &src, &dst, &[]).unwrap();
    setup.sim.run_until_idle();
    assert_eq!(
        setup.log.outcomes(),
        [(slow, Outcome::Done), (wrong, Outcome::Done)]
    );
    assert_eq!(setup.bytes(&dst)[..63], [3; 63]);
    assert_eq!(setup.bytes(&dst)[63], !3);
}

#[test]
fn what_waits_for_a_silent_operation_runs_when_its_device_is_lost() {
    let over = (mem("cpu:0/pinned"), mem("sim:0/device"));
    let script = Script::new().with(Rule::never_answer().over(over.0, over.1));
    let setup = setup(Completion::Timed, script);
    let src = setup.buffer("cpu:0/pinned", &[3; 64]);
    let gone = setup.buffer("sim:0/device", &[0; 64]);
    let dst = setup.buffer("sim:1/device", &[0; 64]);
    let silent = copy(&setup.sim, &src, &gone, &[]).unwrap();
    let second = copy(&setup.sim, &src, &dst, &[silent]).unwrap();
    let third = copy(&setup.sim, &src, &dst, &[second]).unwrap();
    assert!(!setup.sim.step());
    setup.sim.lose_device(DeviceId::new(DeviceKind::SIM, 0));
    setup.sim.run_until_idle();
    assert_eq!(setup.log.fences(), [silent, second, third]);
    assert_eq!(setup.bytes(&dst), [3; 64]);
}

#[test]
fn a_lost_device_settles_its_fences_and_refuses_everything_after() {
    let setup = setup(Completion::Timed, Script::new().with(Rule::lose_device()));
    let src = setup.buffer("cpu:0/pinned", &[3; 64]);
    let dst = setup.buffer("sim:0/device", &[0; 64]);
    let other = setup.buffer("sim:1/device", &[0; 64]);
    let first = copy(&setup.sim, &src, &dst, &[]).unwrap();
    let queued = copy(&setup.sim, &src, &dst, &[first]).unwrap();
    let elsewhere = copy(&setup.sim, &src, &other, &[]).unwrap();
    setup.sim.run_until_idle();
    let outcomes = setup.log.outcomes();
    assert_eq!(outcomes.len(), 3);
    for (fence, outcome) in outcomes {
        let lost = matches!(outcome, Outcome::Lost(_));
        assert_eq!(
            lost,
            fence == first || fence == queued,
            "{fence:?} {outcome:?}"
        );
        assert!(lost || fence == elsewhere);
    }
    assert_eq!(setup.bytes(&dst), [0; 64]);
    let refused = copy(&setup.sim, &src, &dst, &[]).unwrap_err();
    assert_eq!(refused.into_fault().class, ErrorClass::Lost);
    let spec = AllocSpec::bytes(1);
    let error = setup.sim.allocate(mem("sim:0/device"), &spec).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Lost);
    let error = setup.sim.connect(mem("cpu:0/pinned"), mem("sim:0/device"));
    assert_eq!(error.unwrap_err().class(), ErrorClass::Lost);
    assert!(copy(&setup.sim, &src, &other, &[]).is_ok());
}

#[test]
fn every_call_can_be_made_to_panic_and_leaves_the_machine_usable() {
    for call in Call::ALL {
        let setup = timed();
        let src = setup.buffer("cpu:0/pinned", &[3; 64]);
        let dst = setup.buffer("sim:0/device", &[0; 64]);
        let sim = setup.sim.clone();
        sim.add_rule(Rule::panic_in(call));
        let run = std::panic::AssertUnwindSafe(|| match call {
            Call::Inventory => drop(sim.inventory()),
            Call::Allocate => drop(sim.allocate(mem("sim:0/device"), &AllocSpec::bytes(1))),
            Call::Import => {
                let object = transload_hal::External::Object(Box::new(()));
                // SAFETY: the sim refuses an object that it did not make.
                drop(unsafe { sim.import(mem("sim:0/device"), object) });
            }
            Call::Export => {
                // SAFETY: no code writes the bytes.
                drop(unsafe { sim.export(&src, transload_hal::ExternalKind::Object) });
            }
            Call::Connect => drop(sim.connect(src.memory(), dst.memory())),
            Call::Submit => drop(copy(&sim, &src, &dst, &[])),
            Call::Attach => drop(sim.attach(Arc::new(Log::default()))),
            Call::Pump => sim.pump(),
            Call::Wait => drop(sim.wait(
                Fence::immediate(transload_testkit::sim::BACKEND),
                Duration::ZERO,
            )),
        });
        assert!(std::panic::catch_unwind(run).is_err(), "{call:?}");
        assert_eq!(sim.in_flight(), 0);
        let fence = copy(&sim, &src, &dst, &[]).unwrap();
        assert_eq!(sim.wait(fence, Duration::MAX), Waited::Settled);
        assert_eq!(setup.log.outcomes(), [(fence, Outcome::Done)], "{call:?}");
    }
}

#[test]
fn a_refused_submission_did_nothing() {
    let over = (mem("cpu:0/pinned"), mem("sim:1/device"));
    let rule = Rule::refuse(Call::Submit, ErrorClass::Exhausted).over(over.0, over.1);
    let setup = setup(
        Completion::Timed,
        Script::new().with(rule.kind(OpKind::Copy)),
    );
    let src = setup.buffer("cpu:0/pinned", &[3; 64]);
    let dst = setup.buffer("sim:0/device", &[0; 64]);
    let other = setup.buffer("sim:1/device", &[0; 64]);
    let ops = [
        Op::Copy {
            src: part(&src),
            dst: part(&dst),
        },
        Op::Copy {
            src: part(&src),
            dst: part(&other),
        },
    ];
    // SAFETY: the buffers outlive the test, and no other code touches them.
    let refused = unsafe { setup.sim.submit(None, &ops, &[]) }.unwrap_err();
    assert_eq!(refused.into_fault().class, ErrorClass::Exhausted);
    assert_eq!(setup.sim.next_event(), None);
    assert_eq!(setup.bytes(&dst), [0; 64]);
    // SAFETY: as above.
    assert!(unsafe { setup.sim.submit(None, &ops, &[]) }.is_ok());
}
