//! Probes of simulated machines, whose costs are known, and of the host.
#![cfg(not(loom))]

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::fixture::{Fixture, Outcome, bytes, place, without_peers};
use transload::model::{LinkId, Topology};
use transload::probe::{Found, LinkReport, ProbeOptions, ProbePhase, ProbeProgress, ProbeReport};
use transload::{Method, StagingBudget, TransferManager};
use transload_testkit::sim::{Completion, Rule, Script};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The probe ends after a number of samples: a slow machine that runs tests has hours.
fn options(sizes: &[u64], samples: u32) -> ProbeOptions {
    let mut options = ProbeOptions::quick();
    options.budget = Duration::from_secs(10_000);
    options.sizes = sizes.to_vec();
    options.samples = samples;
    options
}

fn scripted(script: Script) -> Fixture {
    let budget = Arc::new(StagingBudget::new(64 << 20));
    Fixture::scripted(&without_peers(1), Completion::Timed, &budget, script)
}

fn links<'a>(topology: &'a Topology, src: &str, dst: &str) -> &'a transload::model::Link {
    let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
    topology.links_between(src, dst).next().unwrap()
}

fn report(report: &ProbeReport, id: LinkId) -> &LinkReport {
    report.links.iter().find(|link| link.id == id).unwrap()
}

#[test]
fn a_probe_finds_the_costs_of_the_model() -> Outcome {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, 64 << 20);
    let model = fixture.manager.topology();
    let found = fixture
        .manager
        .probe(&options(&[4 * KIB, 64 * KIB, MIB, 4 * MIB], 2));
    assert!(found.simulated);
    assert_eq!(found.links.len(), model.links().len());
    let measured = fixture.manager.topology();
    for link in model.links() {
        let now = measured
            .links()
            .iter()
            .find(|known| known.id == link.id)
            .unwrap();
        assert!(measured.is_measured(link.id), "{:?}", link.id);
        for bytes in [1, 4 * KIB, 5000, 300_000, MIB, 3 * MIB, 4 * MIB, 16 * MIB] {
            let (now, wanted) = (now.cost.at(bytes), link.cost.at(bytes));
            // Beyond the measured sizes the fixed cost counts as a part of the rate.
            let most = if bytes > 4 * MIB {
                wanted / 50
            } else {
                1 + wanted / 1000
            };
            assert!(
                now.abs_diff(wanted) <= most,
                "{:?}, {bytes} bytes: {now} for {wanted}",
                link.id
            );
        }
        assert!(!report(&found, link.id).faulty);
    }
    assert_eq!(found.profile.links().len(), model.links().len());
    found.profile.check(&measured)?;
    assert!(
        fixture.sim.violations().is_empty(),
        "{:?}",
        fixture.sim.violations()
    );
    Ok(())
}

#[test]
fn every_ordered_pair_is_timed_the_way_that_the_planner_goes() -> Outcome {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, 64 << 20);
    let found = fixture.manager.probe(&options(&[4 * KIB, MIB], 6));
    let memories = fixture.manager.memories();
    assert_eq!(found.pairs.len(), memories.len() * memories.len() * 2);
    for pair in &found.pairs {
        let Found::Time(time) = &pair.found else {
            panic!("{pair:?}")
        };
        let explained =
            fixture
                .manager
                .explain_places(pair.src.into(), pair.dst.into(), pair.bytes)?;
        assert_eq!(pair.method, Some(explained.chosen.method), "{pair:?}");
        let predicted = explained.chosen.predicted_ns.unwrap();
        assert!(
            time.median_ns.abs_diff(predicted) <= 1 + predicted / 100,
            "{pair:?}, {predicted}"
        );
        assert_eq!(
            (time.low_ns, time.high_ns),
            (time.median_ns, time.median_ns)
        );
    }
    Ok(())
}

#[test]
fn a_link_that_moves_wrong_bytes_is_found_among_all_gets_no_cost_and_is_not_used() -> Outcome {
    let model = scripted(Script::new()).manager.topology();
    for link in model.links() {
        let (src, dst) = (link.id.src, link.id.dst);
        let fixture = scripted(Script::new().with(Rule::corrupt(5).over(src, dst).always()));
        let found = fixture.manager.probe(&options(&[4 * KIB, 64 * KIB], 1));
        assert_eq!(found.faulty().collect::<Vec<_>>(), [link.id]);
        for (_, size) in &report(&found, link.id).sizes {
            assert_eq!(size, &Found::WrongBytes);
        }
        assert!(!fixture.manager.topology().is_measured(link.id));
        let kept = found
            .profile
            .links()
            .iter()
            .find(|kept| kept.id == link.id)
            .unwrap();
        assert!(kept.faulty && kept.points.is_empty());
        // The planner goes around the link where it can, and reports an error where it cannot.
        assert_eq!(found.wrong_pairs().count(), 0, "{src} → {dst}");
        match fixture.manager.explain_places(src.into(), dst.into(), MIB) {
            Ok(explained) => assert_ne!(explained.chosen.route, [src, dst]),
            Err(error) => assert!(error.to_string().contains("wrong bytes"), "{error}"),
        }
    }
    Ok(())
}

/// One memory, and the link that copies within it.
const ALONE: &str = r#"
    schema = 1
    name = "alone"
    [[device]]
    id = "cpu:0"
    name = "host"
    memory = [{ kind = "pageable", memory_bytes = 1_000_000_000 }]
    [[link]]
    src = "cpu:0/pageable"
    dst = "cpu:0/pageable"
    engine = "cpu:0#0"
    class = "local"
    latency_ns = 100
    bytes_per_second = 10_000_000_000
"#;

#[test]
fn one_wrong_byte_once_at_one_size_is_enough() {
    // The first copy checks 4 KiB and the second one 64 KiB. The third is timed, and its bytes are not checked.
    for (nth, lies) in [(1, true), (2, true), (3, false)] {
        let script = Script::new().with(Rule::corrupt(4095).nth(nth));
        let budget = Arc::new(StagingBudget::new(64 << 20));
        let fixture = Fixture::scripted(ALONE, Completion::Timed, &budget, script);
        let found = fixture.manager.probe(&options(&[4 * KIB, 64 * KIB], 1));
        assert_eq!(found.links[0].faulty, lies, "{nth}: {found:?}");
        assert_eq!(found.profile.links()[0].faulty, lies);
    }
}

#[test]
fn a_link_that_fails_is_told_and_the_others_are_measured_round_it() -> Outcome {
    let model = scripted(Script::new()).manager.topology();
    for link in model.links() {
        let (src, dst) = (link.id.src, link.id.dst);
        let fixture = scripted(Script::new().with(Rule::fail_after(7).over(src, dst).always()));
        let found = fixture.manager.probe(&options(&[4 * KIB, 64 * KIB], 1));
        assert_eq!(found.faulty().count(), 0);
        for other in &found.links {
            for (_, size) in &other.sizes {
                match size {
                    Found::Failed(reason) => {
                        assert!(
                            other.id == link.id && reason.contains("simulated fault"),
                            "{other:?}"
                        );
                    }
                    Found::Time(_) => assert!(other.id != link.id, "{other:?}"),
                    unexpected => panic!("{unexpected:?}"),
                }
            }
        }
        assert_eq!(found.profile.links().len(), found.links.len() - 1);
    }
    Ok(())
}

#[test]
fn a_device_that_is_lost_meanwhile_is_told_and_the_rest_is_used() -> Outcome {
    for nth in [1, 9, 40] {
        let fixture = scripted(Script::new().with(Rule::lose_device().nth(nth)));
        let found = fixture.manager.probe(&options(&[4096, 1 << 20], 4));
        let timed = found
            .profile
            .links()
            .iter()
            .filter(|link| link.curve().is_some());
        assert!(timed.count() < fixture.manager.topology().links().len());
        let file = std::env::temp_dir().join(format!("transload-lost-{}", std::process::id()));
        found.profile.save(&file)?;
        let saved = transload::Profile::load(&file)?;
        std::fs::remove_file(&file)?;
        // A machine where the device works plans with what was measured.
        let whole = scripted(Script::new());
        whole.manager.apply_profile(&saved)?;
        let sent = bytes(1 << 20, 3);
        let src = whole.filled("cpu:0/pageable", &sent);
        let dst = whole.empty("sim:0", sent.len());
        whole.manager.copy(&src, &dst).wait()?;
        assert!(whole.bytes_of(&dst) == sent);
    }
    Ok(())
}

#[test]
fn a_link_that_hangs_does_not_hang_the_probe() -> Outcome {
    let (src, dst) = ("cpu:0/pinned".parse()?, "sim:0/device".parse()?);
    let fixture = scripted(Script::new().with(Rule::never_answer().over(src, dst).always()));
    let found = fixture.manager.probe(&options(&[4 * KIB, 64 * KIB], 1));
    let hangs = links(&fixture.manager.topology(), "cpu:0/pinned", "sim:0/device").id;
    assert_eq!(found.faulty().count(), 0);
    for link in &found.links {
        for (_, size) in &link.sizes {
            match size {
                // The thread that still waits for the copy that hangs advances the virtual clock, and with it the
                // deadlines of other links. A link whose bytes passed over such a link is not checked.
                Found::Failed(why) => assert!(
                    why.contains("deadline") || why.contains("no way leads there"),
                    "{link:?}"
                ),
                Found::Time(_) => assert!(link.id != hangs, "{link:?}"),
                unexpected => panic!("{unexpected:?}"),
            }
        }
    }
    assert!(found.profile.links().iter().all(|link| link.id != hangs));
    Ok(())
}

#[test]
fn what_was_measured_changes_which_way_the_planner_goes() -> Outcome {
    let (src, dst) = ("cpu:0/pageable".parse()?, "sim:0/device".parse()?);
    // The backend's own costs omit that each copy over the direct link takes 5 ms more.
    let slow = Script::new().with(Rule::delay_ns(5_000_000).over(src, dst).always());
    let fixture = scripted(slow.clone());
    let (from, to) = (place("cpu:0"), place("sim:0"));
    let before = fixture.manager.explain_places(from, to, 4 * KIB)?;
    assert_eq!(before.chosen.method, Method::DirectCopy);
    let found = fixture
        .manager
        .probe(&options(&[4 * KIB, 64 * KIB, MIB], 2));
    let after = fixture.manager.explain_places(from, to, 4 * KIB)?;
    assert_eq!(after.chosen.method, Method::HostStaged);
    let cost = links(
        &fixture.manager.topology(),
        "cpu:0/pageable",
        "sim:0/device",
    )
    .cost
    .clone();
    assert!(cost.at(4 * KIB) > 5_000_000);
    // The pairs were timed in the same way, and faster than by the default.
    let mut pairs = found.pairs.iter();
    let pair = pairs
        .find(|pair| (pair.src, pair.dst, pair.bytes) == (src, dst, 4 * KIB))
        .unwrap();
    assert_eq!(pair.method, Some(Method::HostStaged));
    assert!(matches!(&pair.found, Found::Time(time) if time.median_ns < 1_000_000));

    // The next program uses this plan from the start.
    let file = std::env::temp_dir().join(format!("transload-probe-{}.toml", std::process::id()));
    found.profile.save(&file)?;
    let next = scripted(slow);
    next.manager
        .apply_profile(&transload::Profile::load(&file)?)?;
    let good = fs::read_to_string(&file)?;
    assert_eq!(next.manager.explain_places(from, to, 4 * KIB)?, after);
    // Nor does a probe change it that measures nothing, with the profile's correction of a route.
    let route = { good.split("[[link]]\n").skip(1) }
        .map(|link| link.lines().take(4).collect::<Vec<_>>().join("\n"))
        .find(|link| {
            link.contains("src = \"cpu:0/pageable\"") && link.contains("dst = \"sim:0/device\"")
        })
        .unwrap();
    let point = "[[route.point]]\nbytes = 4096\npredicted_ns = 1000\nns = 3000";
    fs::write(
        &file,
        format!("{good}\n[[route]]\n[[route.link]]\n{route}\n{point}\n"),
    )?;
    let corrected = transload::Profile::load(&file)?;
    assert_eq!(corrected.routes().len(), 1);
    next.manager.apply_profile(&corrected)?;
    fs::remove_file(file)?;
    let after = next.manager.explain_places(from, to, 4 * KIB)?;
    let stop = &mut |_: ProbeProgress| ControlFlow::Break(());
    next.manager.probe_watched(&options(&[MIB], 1), stop);
    assert_eq!(next.manager.explain_places(from, to, 4 * KIB)?, after);
    Ok(())
}

#[test]
fn a_budget_that_is_over_ends_the_probe_and_nothing_is_made_up() {
    let fixture = scripted(Script::new());
    let mut all = options(&[4 * KIB], 3);
    all.budget = Duration::ZERO;
    let mut phases = Vec::new();
    let found = fixture.manager.probe_watched(&all, &mut |progress| {
        phases.push(progress.phase);
        ControlFlow::Continue(())
    });
    let sizes = found.links.iter().flat_map(|link| &link.sizes);
    assert!(sizes.clone().count() > 0);
    assert!({ sizes }.all(|(_, found)| found == &Found::NotReached));
    assert!(
        found
            .pairs
            .iter()
            .all(|pair| pair.found == Found::NotReached && pair.method.is_none())
    );
    assert_eq!(found.profile.links(), []);
    // A watcher is told of the phases in order.
    assert!(phases.contains(&ProbePhase::CheckingLinks));
    let order = |phase: &ProbePhase| *phase as u8;
    assert!(phases.is_sorted_by_key(order), "{phases:?}");
}

#[test]
fn a_probe_that_is_stopped_leaves_out_the_rest() {
    let fixture = scripted(Script::new());
    let mut asked = 0;
    let mut stop = |progress: ProbeProgress| match progress.phase {
        ProbePhase::CheckingLinks => ControlFlow::Continue(()),
        _ => {
            asked += 1;
            ControlFlow::Break(())
        }
    };
    let found = { fixture.manager }.probe_watched(&options(&[4 * KIB], 3), &mut stop);
    assert_eq!(asked, 1);
    assert!(
        { &found.pairs }
            .iter()
            .all(|pair| pair.found == Found::NotReached)
    );
}

#[test]
fn a_probe_that_is_stopped_condemns_no_link_for_another_one() {
    let model = scripted(Script::new()).manager.topology();
    for link in model.links() {
        for last in 1..=26 {
            let bad = Rule::corrupt(5).over(link.id.src, link.id.dst).always();
            let fixture = scripted(Script::new().with(bad));
            let mut asked = 0;
            let mut stop = |progress: ProbeProgress| {
                asked += 1;
                match asked < last && progress.phase == ProbePhase::CheckingLinks {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            };
            let sizes = options(&[4 * KIB, 64 * KIB], 1);
            let found = fixture.manager.probe_watched(&sizes, &mut stop);
            assert!(found.faulty().all(|of| of == link.id), "{link:?} {last}");
        }
    }
}

#[test]
fn the_host_is_probed_in_memory_shared_memory_and_files() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let found = manager.probe(&options(&[256, 64 * KIB], 6));
    assert!(!found.simulated);
    let memories = manager.memories().len();
    assert_eq!(found.pairs.len(), memories * memories * 2);
    for pair in &found.pairs {
        let Found::Time(time) = &pair.found else {
            panic!("{pair:?}")
        };
        // Which of them is cheaper depends on this machine and on its other load.
        let ways = [Method::DirectCopy, Method::HostStaged];
        assert!(ways.map(Some).contains(&pair.method), "{pair:?}");
        assert!(time.low_ns <= time.median_ns && time.median_ns <= time.high_ns);
        assert_eq!(time.samples, 6);
        assert!(time.confidence > 0.95);
    }
    found.profile.check(&manager.topology())?;
    assert_eq!(found.profile.links().len(), memories * memories);
    Ok(())
}
