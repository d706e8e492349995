//! Copies of one source to many destinations, over simulated machines and networks.

use std::fmt::Write;
use std::sync::Arc;

use transload::{Buffer, MemoryId, Report, Request, StagingBudget, TransferError};
use transload_testkit::sim::{Completion, Rule, Script};

use crate::fixture::Fixture;

/// Networks of 1 Gbit/s, with a round trip of 50 µs.
const RATE: u64 = 125_000_000;
const LATENCY_NS: u64 = 50_000;

/// A machine and `nodes` others. Each sends over a network of its own to the `reach` that follow it, the last ones to the
/// first, and this machine to all of them.
fn cluster(nodes: usize, reach: usize, slow: &[usize]) -> String {
    connected(nodes, reach, slow, 1)
}

/// The same with so many networks of each machine, which its links take in turn.
fn connected(nodes: usize, reach: usize, slow: &[usize], networks: usize) -> String {
    let mut text = String::from("schema = 1\nname = \"cluster\"\n");
    let mut device = |id: &str| {
        writeln!(
            text,
            "[[device]]\nid = \"{id}\"\nname = \"memory\"\nmemory = [{{ kind = \"device\", memory_bytes = 4_000_000_000 }}]"
        )
        .unwrap();
    };
    device("sim:0");
    (0..nodes).for_each(|node| device(&name(node)));
    let mut links = 0;
    let mut link = |src: &str, dst: &str, rate: u64| {
        links += 1;
        let network = links % networks;
        writeln!(
            text,
            "[[link]]\nsrc = \"{src}/device\"\ndst = \"{dst}/device\"\nengine = \"{src}#{network}\"\nclass = \"network\"\n\
             latency_ns = {LATENCY_NS}\nbytes_per_second = {rate}"
        )
        .unwrap();
    };
    let rate = |node: usize| {
        if slow.contains(&node) {
            RATE / 50
        } else {
            RATE
        }
    };
    for node in 0..nodes {
        // Where each link is a network, this machine reaches the first of the others best.
        let away = if networks > 1 && node > 0 { 2 } else { 1 };
        link("sim:0", &name(node), rate(node) / away);
        let others = (1..nodes.min(reach + 1)).map(|step| (node + step) % nodes);
        for next in others {
            link(&name(node), &name(next), rate(node).min(rate(next)));
        }
    }
    text
}

fn memory(text: &str) -> MemoryId {
    text.parse().unwrap()
}

fn name(node: usize) -> String {
    format!("n{node}/sim:0")
}

/// Sends `bytes` bytes to all, and returns the results, and the time by the simulated clock.
fn send(
    fixture: &Fixture,
    nodes: usize,
    bytes: &[u8],
) -> (Vec<Result<Report, TransferError>>, Vec<Buffer>, u64) {
    let source = fixture.filled("sim:0/device", bytes);
    let all: Vec<Buffer> = (0..nodes)
        .map(|node| fixture.empty(&format!("{}/device", name(node)), bytes.len()))
        .collect();
    let (results, ns) = finish(fixture, &source, &all);
    (results, all, ns)
}

fn finish(
    fixture: &Fixture,
    source: &Buffer,
    all: &[Buffer],
) -> (Vec<Result<Report, TransferError>>, u64) {
    let requests: Vec<Request> = all.iter().map(|to| Request::new(source, to)).collect();
    let begun = fixture.sim.clock().now_ns();
    let results = broadcast(fixture, &requests);
    (results, fixture.sim.clock().now_ns() - begun)
}

fn broadcast(fixture: &Fixture, requests: &[Request]) -> Vec<Result<Report, TransferError>> {
    let batch = fixture.manager.broadcast(requests).unwrap();
    fixture.run_until(|| batch.is_over());
    batch.wait()
}

fn assert_arrived(fixture: &Fixture, at: &Buffer, bytes: &[u8]) {
    assert!(fixture.bytes_of(at) == bytes);
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

/// The time of a chain in which each machine passes on each chunk as soon as it has it.
fn ideal_ns(nodes: u64, bytes: u64, chunk_bytes: u64) -> u64 {
    let ns = |bytes: u64| bytes * 1_000_000_000 / RATE;
    ns(bytes) + (nodes - 1) * (ns(chunk_bytes) + LATENCY_NS)
}

#[test]
fn a_source_sends_its_bytes_once_however_many_machines_get_them() {
    let bytes = pattern(64 << 20);
    for nodes in [1, 2, 4, 16] {
        let fixture = Fixture::new(&cluster(nodes, 4, &[]), Completion::Pumped, 1 << 30);
        let (results, all, ns) = send(&fixture, nodes, &bytes);
        let chunk = results[0].as_ref().unwrap().plan().unwrap().chunk_bytes();
        let from_source = results.iter().filter(|report| {
            report
                .as_ref()
                .unwrap()
                .route()
                .next()
                .unwrap()
                .device
                .node
                .is_here()
        });
        assert_eq!(from_source.count(), 1);
        all.iter()
            .for_each(|at| assert_arrived(&fixture, at, &bytes));
        let ideal = ideal_ns(nodes as u64, bytes.len() as u64, chunk);
        assert!(
            ns * 10 <= ideal * 11,
            "{nodes} machines: {ns} ns, and {ideal} ns at best"
        );
    }
}

#[test]
fn a_thousand_machines_take_little_longer_than_the_ideal_chain() {
    let nodes = 1000;
    let bytes = pattern(2 << 20);
    let fixture = Fixture::new(&cluster(nodes, 2, &[]), Completion::Pumped, 1 << 30);
    let (results, all, ns) = send(&fixture, nodes, &bytes);
    let chunk = results[0].as_ref().unwrap().plan().unwrap().chunk_bytes();
    all.iter()
        .for_each(|at| assert_arrived(&fixture, at, &bytes));
    let ideal = ideal_ns(nodes as u64, bytes.len() as u64, chunk);
    assert!(ns * 10 <= ideal * 11, "{ns} ns, and {ideal} ns at best");
}

#[test]
fn ten_thousand_machines_get_the_bytes_although_some_are_lost() {
    let nodes = 10_000;
    let bytes = pattern(64 << 10);
    let lost = [1, 17, 5_000, 9_998];
    let script = lost.iter().fold(Script::new(), |script, at: &usize| {
        let (src, dst) = (name(at - 1), name(*at));
        let [src, dst] = [src, dst].map(|of| memory(&format!("{of}/device")));
        script.with(Rule::lose_device().over(src, dst).nth(1))
    });
    let budget = Arc::new(StagingBudget::new(1 << 20));
    let text = cluster(nodes, 4, &[]);
    let fixture = Fixture::scripted(&text, Completion::Pumped, &budget, script);
    let (results, all, ns) = send(&fixture, nodes, &bytes);
    let failed: Vec<usize> = (0..nodes).filter(|at| results[*at].is_err()).collect();
    assert!(failed.len() <= lost.len(), "{failed:?}");
    for at in (0..nodes).filter(|at| !failed.contains(at)) {
        assert_arrived(&fixture, &all[at], &bytes);
    }
    let ideal = ideal_ns(nodes as u64, bytes.len() as u64, bytes.len() as u64);
    assert!(
        ns <= ideal * 2,
        "{ns} ns, and {ideal} ns at best, of {failed:?}"
    );
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn a_slow_machine_delays_no_other() {
    let bytes = pattern(64 << 20);
    let fixture = Fixture::new(&cluster(6, 5, &[2]), Completion::Pumped, 1 << 30);
    let (results, all, _) = send(&fixture, 6, &bytes);
    let times: Vec<u128> = { results.iter() }
        .map(|report| report.as_ref().unwrap().elapsed().as_millis())
        .collect();
    let others = [0, 1, 3, 4, 5].map(|node| times[node]);
    assert!(
        others.iter().all(|time| time * 10 < times[2]),
        "{times:?} ms"
    );
    all.iter()
        .for_each(|at| assert_arrived(&fixture, at, &bytes));
}

#[test]
fn a_machine_that_turns_slow_is_cut_out() {
    let bytes = pattern(256 << 20);
    // Its network gives up its speed after the first chunks, which no plan can know.
    let over = |src: &str, dst: &str| (memory(src), memory(dst));
    let (src, dst) = over("sim:0/device", "n0/sim:0/device");
    let rule = Rule::delay_ns(60_000_000_000)
        .over(src, dst)
        .nth(8)
        .times(4);
    let budget = Arc::new(StagingBudget::new(1 << 30));
    let script = Script::new().with(rule);
    let text = connected(4, 3, &[], 100);
    let fixture = Fixture::scripted(&text, Completion::Pumped, &budget, script);
    let (results, all, _) = send(&fixture, 4, &bytes);
    let reports: Vec<Report> = results.into_iter().map(Result::unwrap).collect();
    let times: Vec<u128> = reports
        .iter()
        .map(|report| report.elapsed().as_secs().into())
        .collect();
    assert!(
        times[0] >= 60 && times[1..].iter().all(|time| *time < 20),
        "{times:?} s"
    );
    let told = |report: &Report| {
        report
            .fallbacks()
            .iter()
            .any(|of| of.fault.to_string().contains("n0/sim:0"))
    };
    assert!(reports[1..].iter().any(told), "{reports:?}");
    all.iter()
        .for_each(|at| assert_arrived(&fixture, at, &bytes));
}

#[test]
fn a_machine_that_is_lost_fails_alone() {
    let bytes = pattern(64 << 20);
    let rule = |nth| {
        Rule::lose_device()
            .over(memory("n0/sim:0/device"), memory("n1/sim:0/device"))
            .nth(nth)
    };
    for nth in [1, 5, 12] {
        let budget = Arc::new(StagingBudget::new(1 << 30));
        let script = Script::new().with(rule(nth));
        let text = cluster(5, 4, &[]);
        let fixture = Fixture::scripted(&text, Completion::Pumped, &budget, script);
        let (results, all, _) = send(&fixture, 5, &bytes);
        let failed: Vec<usize> = (0..5).filter(|at| results[*at].is_err()).collect();
        assert!(failed.len() <= 1, "{failed:?}: {results:?}");
        for at in (0..5).filter(|at| !failed.contains(at)) {
            assert_arrived(&fixture, &all[at], &bytes);
        }
        assert_eq!(budget.used_bytes(), 0);
    }
}

#[test]
fn each_destination_is_compared_with_the_source() {
    let bytes = pattern(16 << 20);
    let fixture = Fixture::new(&cluster(3, 2, &[]), Completion::Pumped, 1 << 30);
    let source = fixture.filled("sim:0/device", &bytes);
    let all: Vec<Buffer> = (0..3)
        .map(|node| fixture.empty(&name(node), bytes.len()))
        .collect();
    let requests: Vec<Request> = all
        .iter()
        .map(|to| Request::new(&source, to).verify())
        .collect();
    let results = fixture.manager.broadcast(&requests);
    // This machine reads no other's memory, so nothing there can be compared.
    assert!(results.is_err(), "{results:?}");
}

#[test]
fn what_was_corrupted_on_the_way_is_passed_on_to_nobody_as_good() {
    let bytes = pattern(8 << 20);
    for verify in [[true; 3], [true, false, false]] {
        let mut text = cluster(3, 2, &[]);
        text += "[transform]\nengine = \"cpu:0#2\"\nlatency_ns = 100\nbytes_per_second = 20_000_000_000\n\
                 [[device]]\nid = \"cpu:0\"\nname = \"host\"\nmemory = [{ kind = \"pinned\", memory_bytes = 8_000_000_000 }]\n";
        let names = [String::from("sim:0"), name(0), name(1), name(2)];
        for of in &names {
            // What is compared comes to this machine, slowly.
            writeln!(
                text,
                "[[link]]\nsrc = \"{of}/device\"\ndst = \"cpu:0/pinned\"\nengine = \"{of}#5\"\nclass = \"pcie\"\nboth = true\n\
                 back_engine = \"{of}#6\"\nlatency_ns = {LATENCY_NS}\nbytes_per_second = 20_000_000"
            )
            .unwrap();
        }
        let first = memory("n0/sim:0/device");
        let rule = Rule::corrupt(3).over(memory("sim:0/device"), first);
        let script = Script::new().with(rule.nth(1).times(1));
        let budget = Arc::new(StagingBudget::new(1 << 30));
        let fixture = Fixture::scripted(&text, Completion::Pumped, &budget, script);
        let source = fixture.filled("sim:0/device", &bytes);
        let all: Vec<Buffer> = { names[1..].iter() }
            .map(|of| fixture.empty(&format!("{of}/device"), bytes.len()))
            .collect();
        let requests: Vec<Request> = { all.iter().zip(verify) }
            .map(|(to, verify)| match verify {
                true => Request::new(&source, to).verify(),
                false => Request::new(&source, to),
            })
            .collect();
        let results = broadcast(&fixture, &requests);
        let fallbacks = { results.iter() }.map(|result| result.as_ref().unwrap().fallbacks().len());
        assert!(fallbacks.sum::<usize>() > 0, "nothing was corrupted");
        all.iter()
            .for_each(|at| assert_arrived(&fixture, at, &bytes));
    }
}

#[test]
fn others_wait_for_all_of_it_and_it_waits_for_them() {
    let bytes = pattern(32 << 20);
    let fixture = Fixture::new(&cluster(3, 2, &[]), Completion::Pumped, 1 << 30);
    let [first, second] =
        [1, 2].map(|value| fixture.filled("sim:0/device", &vec![value; bytes.len()]));
    let all: Vec<Buffer> = (0..3)
        .map(|node| fixture.empty(&name(node), bytes.len()))
        .collect();
    let to_all = |source: &Buffer| -> Vec<Request> {
        all.iter().map(|to| Request::new(source, to)).collect()
    };
    let source = fixture.filled("sim:0/device", &bytes);
    let before = fixture.manager.copy(&first, &all[2]);
    let one = fixture.manager.broadcast(&to_all(&source)).unwrap();
    let between = fixture.manager.copy(&second, &all[0]);
    let two = fixture.manager.broadcast(&to_all(&first)).unwrap();
    before.wait().unwrap();
    one.wait()
        .into_iter()
        .for_each(|result| drop(result.unwrap()));
    between.wait().unwrap();
    two.wait()
        .into_iter()
        .for_each(|result| drop(result.unwrap()));
    all.iter()
        .for_each(|at| assert_arrived(&fixture, at, &vec![1; bytes.len()]));
}

#[test]
fn one_that_is_cancelled_leaves_the_others_their_bytes() {
    let bytes = pattern(64 << 20);
    let fixture = Fixture::new(&cluster(4, 3, &[]), Completion::Pumped, 1 << 30);
    let source = fixture.filled("sim:0/device", &bytes);
    let all: Vec<Buffer> = (0..4)
        .map(|node| fixture.empty(&name(node), bytes.len()))
        .collect();
    let requests: Vec<Request> = all.iter().map(|to| Request::new(&source, to)).collect();
    for cancelled in 0..4 {
        let batch = fixture.manager.broadcast(&requests).unwrap();
        for (at, transfer) in batch.into_transfers().into_iter().enumerate() {
            if at == cancelled {
                drop(transfer.cancel());
            } else {
                transfer.wait().unwrap();
                assert_arrived(&fixture, &all[at], &bytes);
            }
        }
    }
    let batch = fixture.manager.broadcast(&requests).unwrap();
    batch.cancel();
    fixture.manager.wait_idle();
}

#[test]
fn what_is_no_broadcast_is_refused_whole() {
    let fixture = Fixture::new(&cluster(2, 1, &[]), Completion::Pumped, 1 << 30);
    let [source, other] = [1, 2].map(|_| fixture.empty("sim:0/device", 4096));
    let to = fixture.empty(&name(0), 4096);
    let refused = |requests: &[Request]| {
        let error = fixture.manager.broadcast(requests).unwrap_err();
        assert_eq!(error.index, 1);
        error.source
    };
    let twice = refused(&[Request::new(&source, &to), Request::new(&source, &to)]);
    assert!(
        matches!(twice, TransferError::SharedDestination { .. }),
        "{twice}"
    );
    let others = refused(&[
        Request::new(&source, &to),
        Request::new(&other, fixture.empty(&name(1), 4096)),
    ]);
    assert!(
        matches!(others, TransferError::OtherSource { .. }),
        "{others}"
    );
    let short = fixture.empty(&name(1), 4095);
    let short = refused(&[Request::new(&source, &to), Request::new(&source, &short)]);
    assert!(
        matches!(short, TransferError::LengthMismatch { .. }),
        "{short}"
    );
    assert!(fixture.manager.broadcast(&[]).unwrap().wait().is_empty());
    fixture.manager.wait_idle();
}

#[test]
fn sixty_four_gpus_get_their_bytes_over_rails_and_fabrics() {
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../topologies/cluster.toml"
    ));
    let fixture = Fixture::new(&text.unwrap(), Completion::Pumped, 1 << 30);
    let bytes = pattern(32 << 20);
    let source = fixture.filled("sim:0/device", &bytes);
    let others = (0..8).flat_map(|node| (0..8).map(move |gpu| (node, gpu)));
    let place = |(node, gpu): (u32, u32)| match node {
        0 => format!("sim:{gpu}/device"),
        node => format!("n{node}/sim:{gpu}/device"),
    };
    let all: Vec<Buffer> = others
        .skip(1)
        .map(|at| fixture.empty(&place(at), bytes.len()))
        .collect();
    let (results, ns) = finish(&fixture, &source, &all);
    all.iter()
        .for_each(|at| assert_arrived(&fixture, at, &bytes));
    // No memory of a host, and no network card, has the bytes more than once.
    let rails = results.iter().filter(|report| {
        let route: Vec<MemoryId> = report.as_ref().unwrap().route().collect();
        route
            .windows(2)
            .any(|hop| hop[0].device.node != hop[1].device.node)
    });
    assert!(rails.count() < all.len() / 2);
    // Sixteen chunks of 2 MiB over one rail, one after the other.
    let once = 16 * (50_000 + (2 << 20) / 50);
    assert!(ns < 4 * once, "{ns} ns, and {once} ns over one rail");
}
