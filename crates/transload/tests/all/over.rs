//! Copies over a link or a way that the caller chooses.
#![cfg(not(loom))]

use std::sync::Arc;
use std::time::Duration;

use crate::fixture::{Fixture, Outcome, bytes, place, without_peers};
use transload::model::{Access, LinkId};
use transload::probe::{Found, MeasuredWay};
use transload::{AllocSpec, Method, Request, StagingBudget, TransferError};
use transload_testkit::sim::{Completion, Rule, Script};

fn link(src: &str, dst: &str, engine: &str) -> LinkId {
    LinkId {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        engine: engine.parse().unwrap(),
        access: Access::Native,
    }
}

const LEN: usize = (40 << 20) + 3;

#[test]
fn the_link_is_taken_in_one_pass_although_another_way_costs_less() -> Outcome {
    let fixture = Fixture::new(&without_peers(1), Completion::Timed, 64 << 20);
    let src = fixture.filled("cpu:0", &bytes(LEN, 1));
    let dst = fixture.empty("sim:0", LEN);
    // The direct link moves 8 GB/s; the links to the pinned memory between the devices move 10 and 25 GB/s.
    assert_eq!(
        fixture.manager.copy(&src, &dst).wait()?.method(),
        Method::HostStaged
    );
    let direct = link("cpu:0/pageable", "sim:0/device", "sim:0#0");
    let second = fixture.filled("cpu:0", &bytes(LEN, 2));
    let report = fixture
        .manager
        .submit(&Request::new(&second, &dst).over(direct))
        .wait()?;
    assert_eq!(report.method(), Method::DirectCopy);
    let known = fixture.manager.topology();
    let cost = known.links_between(direct.src, direct.dst).next().unwrap();
    assert_eq!(
        report.elapsed().as_nanos(),
        u128::from(cost.cost.at(LEN as u64))
    );
    assert!(fixture.bytes_of(&dst) == bytes(LEN, 2));
    Ok(())
}

#[test]
fn there_is_no_other_way_when_the_link_fails_or_is_not_there() -> Outcome {
    let fails = Rule::fail_after(100).over("cpu:0/pageable".parse()?, "sim:0/device".parse()?);
    let budget = Arc::new(StagingBudget::new(64 << 20));
    let script = Script::new().with(fails);
    let fixture = Fixture::scripted(&without_peers(1), Completion::Timed, &budget, script);
    let src = fixture.filled("cpu:0", &bytes(1000, 1));
    let dst = fixture.empty("sim:0", 1000);
    let direct = link("cpu:0/pageable", "sim:0/device", "sim:0#0");
    let request = Request::new(&src, &dst).over(direct);
    let failed = fixture.manager.submit(&request).wait();
    assert!(
        matches!(&failed, Err(TransferError::Failed(failure)) if failure.routes_tried == 1),
        "{failed:?}"
    );
    // The rule struck once. A link that is barred for other transfers still serves a request that names it.
    fixture.manager.submit(&request).wait()?;
    assert!(fixture.bytes_of(&dst) == bytes(1000, 1));

    let elsewhere = fixture
        .manager
        .allocate(place("cpu:0/pinned"), AllocSpec::bytes(1000))?;
    for (request, told) in [
        (
            Request::new(&src, &elsewhere).over(direct),
            "goes from cpu:0/pageable to sim:0/device",
        ),
        (
            Request::new(&src, &dst).over(link("cpu:0/pageable", "sim:0/device", "sim:0#7")),
            "sim:0#7 has no such link",
        ),
    ] {
        let error = fixture.manager.submit(&request).wait().unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
    }
    Ok(())
}

#[test]
fn each_listed_way_carries_the_bytes_and_none_other_is_taken() -> Outcome {
    let fixture = Fixture::new(&without_peers(1), Completion::Timed, 64 << 20);
    let src = fixture.filled("cpu:0", &bytes(LEN, 1));
    let request = Request::new(&src, fixture.empty("sim:0", LEN));
    let ways = fixture.manager.candidates(&request)?;
    assert!(ways.len() > 3, "{ways:?}");
    let explained = fixture.manager.explain(&request)?.chosen;
    assert_eq!(
        (&ways[0].choice().route, ways[0].choice().chunk_bytes),
        (&explained.route, explained.chunk_bytes)
    );
    assert!(ways[1..].is_sorted_by_key(|way| way.choice().predicted_ns));
    for way in &ways {
        let dst = fixture.empty("sim:0", LEN);
        let report = fixture
            .manager
            .submit(&Request::new(&src, &dst).by(way))
            .wait()?;
        assert_eq!(report.route().collect::<Vec<_>>(), way.choice().route);
        assert_eq!(
            report.plan().map(|plan| plan.chunk_bytes()),
            way.choice().chunk_bytes
        );
        let predicted = way.choice().predicted_ns.map(u128::from);
        assert_eq!(
            Some(report.elapsed().as_nanos()),
            predicted,
            "{}",
            way.choice()
        );
        assert!(fixture.bytes_of(&dst) == bytes(LEN, 1));
    }

    let back = Request::new(request.dst().clone(), request.src().clone()).by(&ways[0]);
    let refused = fixture
        .manager
        .submit(&back)
        .wait()
        .unwrap_err()
        .to_string();
    assert!(refused.contains("the request names the way"), "{refused}");
    let other = Fixture::new(&without_peers(1), Completion::Timed, 64 << 20);
    let foreign = Request::new(other.filled("cpu:0", &bytes(8, 1)), other.empty("sim:0", 8));
    let refused = other.manager.submit(&foreign.by(&ways[0])).wait();
    assert_eq!(refused, Err(TransferError::ForeignWay));
    Ok(())
}

#[test]
fn a_measured_way_takes_the_predicted_time_and_the_chosen_one_is_the_first() -> Outcome {
    let fixture = Fixture::new(&without_peers(1), Completion::Timed, 64 << 20);
    let src = fixture.filled("cpu:0", &bytes(LEN, 1));
    let request = Request::new(&src, fixture.empty("sim:0", LEN));
    let ways = fixture.manager.measure(&request, Duration::ZERO)?;
    let listed = fixture.manager.candidates(&request)?;
    assert_eq!(ways.len(), listed.len());
    assert_eq!(&ways[0].choice, listed[0].choice());
    for way in &ways {
        assert_eq!(way.median_ns(), way.choice.predicted_ns, "{}", way.choice);
    }
    assert!(ways[1..].is_sorted_by_key(|way| way.median_ns()));
    assert!(fixture.bytes_of(request.dst().buffer()) == bytes(LEN, 1));
    Ok(())
}

#[test]
fn a_way_that_fails_while_it_is_measured_says_so_and_the_others_are_timed() -> Outcome {
    let fails = Rule::fail_after(100).over("cpu:0/pageable".parse()?, "sim:0/device".parse()?);
    let budget = Arc::new(StagingBudget::new(64 << 20));
    let script = Script::new().with(fails);
    let fixture = Fixture::scripted(&without_peers(1), Completion::Timed, &budget, script);
    let src = fixture.filled("cpu:0", &bytes(LEN, 1));
    let request = Request::new(&src, fixture.empty("sim:0", LEN));
    let ways = fixture.manager.measure(&request, Duration::ZERO)?;
    let failed = |way: &&MeasuredWay| matches!(way.found, Found::Failed(_));
    let failed: Vec<_> = ways.iter().filter(failed).collect();
    assert_eq!(failed.len(), 1, "{ways:?}");
    assert_eq!(failed[0].choice.method, Method::DirectCopy);
    assert_eq!(ways.last(), failed.first().copied());
    Ok(())
}
