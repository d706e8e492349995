//! Bytes of other machines over UCX. Tests are skipped where UCX is not installed.

use std::process::Command;

use transload::Method;
use transload::remote::PrivateKey;
use transload_remote::wire::{Message, Network, Outcome, Reach};

use super::raw::Raw;
use super::{serve, serve_as, there};
use crate::adapters::machine::skip;

const IS_HERE: &str = "TRANSLOAD_TEST_TRUSTED";

/// Runs a test, or all tests of nodes, in a process whose sessions take the network for trusted. Returns whether this is the
/// process.
fn is_trusting(test: &str) -> bool {
    if std::env::var_os(IS_HERE).is_some() {
        return true;
    }
    if let Err(error) = transload_remote::ucx::Ucx::load(None) {
        skip(&error.to_string());
        return false;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(IS_HERE, "1").arg(test);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} failed over UCX");
    false
}

#[test]
fn the_other_tests_pass_over_ucx() {
    is_trusting("nodes::");
}

#[test]
fn large_copies_go_over_ucx_and_small_ones_over_tls() {
    if !is_trusting("nodes::ucx::large_copies") {
        return;
    }
    let served = serve(1 << 30);
    let manager = served.connect();
    for (bytes, method) in [(4096, Method::DirectCopy), (8 << 20, Method::PeerToPeer)] {
        let sent: Vec<u8> = (0..bytes).map(|at| (at * 7 / 3) as u8).collect();
        let remote = there(&manager, bytes as u64);
        let source = manager.adopt(sent.clone()).unwrap();
        let report = manager.copy(&source, &remote).wait().unwrap();
        assert_eq!(report.method(), method, "{report}");
        assert!(manager.read_to_vec(&remote).unwrap() == sent);
    }
}

#[test]
fn both_sides_must_trust_the_network() {
    if !is_trusting("nodes::ucx::both_sides") {
        return;
    }
    let served = serve_as(PrivateKey::generate().unwrap(), 1 << 20, |options| {
        options.session.trusted_network = false;
    });
    let manager = served.connect();
    let explained = manager
        .explain_places(
            "cpu:0".parse().unwrap(),
            "box2/cpu:0".parse().unwrap(),
            1 << 20,
        )
        .unwrap()
        .to_string();
    assert!(
        explained.contains("UCX: the other machine does not take the network for trusted"),
        "{explained}"
    );
}

#[test]
fn a_node_that_learns_that_ucx_is_lost_ends_what_it_carried_and_goes_on_over_tls() {
    if !is_trusting("nodes::ucx::a_node_that") {
        return;
    }
    let served = serve(1 << 20);
    let raw = Raw::connect(&served);
    raw.lease(1, 4096);
    let write = |id, network| Message::Write {
        id,
        reservation: 0,
        lease: 1,
        offset: 0,
        apart: None,
        len: 4096,
        network,
        eager: false,
    };
    let moves = raw.ask(write(2, Network::Ucx));
    assert!(
        matches!(
            moves,
            Some(Message::Move {
                id: 2,
                len: 4096,
                ..
            })
        ),
        "{moves:?}"
    );
    let reason = "a cable".to_owned();
    let ended = raw.ask(Message::Ucx(Reach::None { reason }));
    let Some(Message::Ended {
        id: 2,
        outcome: Outcome::Failed(fault),
    }) = ended
    else {
        panic!("{ended:?}");
    };
    assert!(
        fault.message.contains("UCX") && fault.message.contains("a cable"),
        "{fault:?}"
    );
    let refused = raw.ask(write(3, Network::Ucx));
    assert!(
        matches!(refused, Some(Message::Refused { id: 3, .. })),
        "{refused:?}"
    );
    raw.sends(true);
    let goes = raw.ask(write(4, Network::Tls));
    assert!(matches!(goes, Some(Message::Go { id: 4, .. })), "{goes:?}");
    let done = raw.hear();
    assert!(
        matches!(
            done,
            Some(Message::Ended {
                id: 4,
                outcome: Outcome::Done
            })
        ),
        "{done:?}"
    );
    raw.handle.close();
    served.wait_until_empty();
}
