//! A machine that many others write to at once, each over its own network, as clients of a server do: simulated machines
//! and networks, in virtual time.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use transload::model::Plan;
use transload::{Method, Report, Request, StagingBudget, TransferError};
use transload_testkit::sim::{Completion, Rule, Script};

use crate::fixture::{Fixture, bytes};

/// Networks of 1 Gbit/s, and of a client that is slow.
const RATE: u64 = 125_000_000;
const SLOW_RATE: u64 = RATE / 1_000;

/// The client whose network is slow.
const SLOW: usize = 0;
/// The client whose network is lost after some chunks.
const LOST: usize = 1;
/// The client that falls silent after some chunks.
const SILENT: usize = 2;

/// A server with a device that is reached through staging slots, and so many clients.
fn server(clients: usize) -> String {
    let mut text = String::from(
        "schema = 1\nname = \"server\"\n\
         [[device]]\nid = \"cpu:0\"\nname = \"host\"\nmemory = [{ kind = \"pinned\", memory_bytes = 8_000_000_000 }]\n\
         [[device]]\nid = \"sim:0\"\nname = \"GPU\"\nmemory = [{ kind = \"device\", memory_bytes = 8_000_000_000 }]\n\
         [[link]]\nsrc = \"cpu:0/pinned\"\ndst = \"sim:0/device\"\nengine = \"sim:0#0\"\nclass = \"pcie\"\n\
         latency_ns = 1000\nbytes_per_second = 25_000_000_000\n",
    );
    for client in 0..clients {
        let rate = if client == SLOW { SLOW_RATE } else { RATE };
        let id = name(client);
        writeln!(
            text,
            "[[device]]\nid = \"{id}\"\nname = \"client\"\nmemory = [{{ kind = \"device\", memory_bytes = 1_000_000_000 }}]\n\
             [[link]]\nsrc = \"{id}/device\"\ndst = \"cpu:0/pinned\"\nengine = \"{id}#0\"\nclass = \"network\"\n\
             latency_ns = 50_000\nbytes_per_second = {rate}"
        )
        .unwrap();
    }
    text
}

fn name(client: usize) -> String {
    format!("c{client}/sim:0")
}

/// All clients write `len` bytes each to the server's device, within `budget`. Returns what came of each.
fn write(
    clients: usize,
    len: usize,
    budget: &Arc<StagingBudget>,
) -> Vec<Result<Report, TransferError>> {
    let rule = |rule: Rule, client| {
        let src = format!("{}/device", name(client)).parse().unwrap();
        let nth = if len > 1 << 20 { 2 } else { 1 };
        rule.over(src, "cpu:0/pinned".parse().unwrap()).nth(nth)
    };
    let script = Script::new()
        .with(rule(Rule::lose_device(), LOST))
        .with(rule(Rule::never_answer(), SILENT));
    let fixture = Fixture::scripted(&server(clients), Completion::Pumped, budget, script);
    let wanted = bytes(len, 7);
    let ends: Vec<_> = (0..clients)
        .map(|client| {
            (
                fixture.filled(&name(client), &wanted),
                fixture.empty("sim:0", len),
            )
        })
        .collect();
    let transfers: Vec<_> = { ends.iter().enumerate() }
        .map(|(client, (src, dst))| {
            let request = Request::new(src, dst);
            let limit = fixture.manager.now() + Duration::from_secs(5);
            fixture.manager.submit(&if client == SILENT {
                request.deadline(limit)
            } else {
                request
            })
        })
        .collect();
    let mut open = transfers.iter().peekable();
    fixture.run_until(|| {
        while open.next_if(|transfer| transfer.is_over()).is_some() {}
        open.peek().is_none()
    });
    let results: Vec<_> = transfers
        .into_iter()
        .map(|transfer| transfer.wait())
        .collect();
    for ((_, dst), result) in ends.iter().zip(&results) {
        assert!(result.is_err() || fixture.bytes_of(dst) == wanted);
    }
    assert!(fixture.sim.violations().is_empty());
    // The silent client's operation may still write to its slot.
    let slot = { results.iter().flatten() }.filter_map(|report| report.plan());
    let slot = slot.map(Plan::chunk_bytes).max();
    fixture.manager.clear_cache();
    assert!(budget.used_bytes() <= slot.unwrap_or(0), "{budget:?}");
    results
}

#[test]
fn clients_share_a_servers_slots_and_none_holds_up_another() {
    for (clients, len, budget_bytes) in [
        (3, 4 << 20, 1 << 20),
        (64, 4 << 20, 16 << 20),
        (128, 4 << 10, 64 << 20),
    ] {
        let budget = Arc::new(StagingBudget::new(budget_bytes));
        let results = write(clients, len, &budget);
        assert!(budget.peak_bytes() <= budget_bytes, "{budget:?}");
        let alone_ms = len as u64 * 1_000 / RATE + 1;
        for (client, result) in results.iter().enumerate() {
            match (client, result) {
                (LOST, Err(error)) => assert!(error.to_string().contains(&name(LOST)), "{error}"),
                (SILENT, Err(TransferError::Deadline { .. })) => {}
                (LOST | SILENT, other) => panic!("{client}: {other:?}"),
                (_, Ok(report)) => {
                    assert_eq!(report.method(), Method::HostStaged);
                    let waited_ms = report.waited().as_millis() as u64;
                    assert!(
                        waited_ms <= alone_ms * clients as u64,
                        "{client}: {waited_ms} ms"
                    );
                    let factor = if client == SLOW { RATE / SLOW_RATE } else { 1 };
                    let ms = report.elapsed().as_millis() as u64;
                    assert!(
                        ms <= alone_ms * factor * 2,
                        "{clients}, {client}: {ms} ms, alone {alone_ms}"
                    );
                }
                (_, Err(error)) => panic!("{client}: {error}"),
            }
        }
    }
}
