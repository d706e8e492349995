//! Messages over UCX between workers of one process and of two. On the loopback interface, and in network namespaces of
//! their own. The variable `TRANSLOAD_UCX` chooses the library.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod two;

use std::time::Instant;

use transload_remote::ucx::{EndpointId, Event};
use two::{Other, Side, assert_each_once, from_hex, hear, hex, pattern, role, say, skip, ucx};

const SIZES: [usize; 7] = [0, 1, 8191, 64 << 10, 1 << 20, 16 << 20, 100 << 20];
const TRUNCATED: i8 = -9;

/// Sends a message of each size, and receives one of each at the same time.
fn exchange(side: &mut Side, peer: &[u8], own_seed: u64, peer_seed: u64) {
    let endpoint = side.connect(peer);
    let sources: Vec<Vec<u8>> = SIZES.iter().map(|&size| pattern(size, own_seed)).collect();
    let mut targets: Vec<Vec<u8>> = SIZES.iter().map(|&size| vec![0xEE; size + 1]).collect();
    for (at, (source, target)) in sources.iter().zip(&mut targets).enumerate() {
        let at = at as u64;
        side.receive(100 + at, at, target);
        side.send(at, endpoint, at, source);
    }
    for (at, (&size, target)) in SIZES.iter().zip(&targets).enumerate() {
        assert_eq!(side.done(100 + at as u64), size);
        assert_eq!(side.done(at as u64), size);
        assert!(
            target[..size] == pattern(size, peer_seed)[..],
            "the bytes of {size} differ"
        );
        assert_eq!(target[size], 0xEE);
    }
}

#[test]
fn every_size_arrives_in_both_directions_at_once() {
    let Some(ucx) = ucx("every_size_arrives_in_both_directions_at_once") else {
        return;
    };
    println!("{ucx:?}");
    let (mut one, mut other) = (Side::new(ucx), Side::new(ucx));
    let (address, to) = (
        one.worker.address().to_vec(),
        other.worker.address().to_vec(),
    );
    let thread = std::thread::spawn(move || {
        exchange(&mut other, &address, 2, 1);
        other
    });
    exchange(&mut one, &to, 1, 2);
    let other = thread.join().unwrap();
    one.end();
    other.end();
}

#[test]
fn every_size_arrives_between_processes() {
    let Some(ucx) = ucx("every_size_arrives_between_processes") else {
        return;
    };
    let mut side = Side::new(ucx);
    if role().is_some() {
        say(&hex(side.worker.address()));
        exchange(&mut side, &from_hex(&hear()), 2, 1);
        // This side ends after the first one: ending is a loss to the peer.
        assert_eq!(hear(), "end");
        return;
    }
    let mut other = Other::start("every_size_arrives_between_processes", "peer", &[]);
    other.say(&hex(side.worker.address()));
    let address = other.hear_bytes();
    exchange(&mut side, &address, 1, 2);
    other.say("end");
    other.succeeds();
}

#[test]
fn a_killed_peer_is_reported_and_everything_ends() {
    const TEST: &str = "a_killed_peer_is_reported_and_everything_ends";
    let Some(ucx) = ucx(TEST) else {
        return;
    };
    let mut side = Side::new(ucx);
    if role().is_some() {
        // Sends for ever, and receives one message of those that it is sent.
        say(&hex(side.worker.address()));
        let endpoint = side.connect(&from_hex(&hear()));
        let (bytes, mut first) = (pattern(32 << 20, 1), [0]);
        side.receive(1000, 5, &mut first);
        side.done(1000);
        for id in 0.. {
            side.send(id, endpoint, 7, &bytes);
            if id > 2 {
                side.done(id - 2);
            }
        }
    }
    let mut other = Other::start(TEST, "peer", &[]);
    let endpoint = side.connect(&other.hear_bytes());
    other.say(&hex(side.worker.address()));
    // Two that the peer has not posted receives for, and one that it has.
    let large = pattern(8 << 20, 3);
    side.send(0, endpoint, 6, &large);
    side.send(1, endpoint, 6, &large);
    side.send(2, endpoint, 5, &[1]);
    let mut targets: Vec<Vec<u8>> = (0..8).map(|_| vec![0; 32 << 20]).collect();
    for (at, target) in targets.iter_mut().enumerate() {
        side.receive(10 + at as u64, 7, target);
    }
    side.done(10);
    // The second message or a later one is on its way.
    other.child.kill().unwrap();
    let killed = Instant::now();
    let lost = side.wait(|event| matches!(event, Event::EndpointLost { .. }));
    println!("a kill is seen after {:?}: {lost:?}", killed.elapsed());
    for id in [0, 1] {
        let outcome = side.outcome(id);
        assert!(matches!(outcome, Event::Failed { .. }), "{outcome:?}");
    }
    // No peer matches the rest.
    for id in 11..18 {
        side.worker.cancel(id);
    }
    for id in 11..18 {
        println!("{:?}", side.outcome(id));
    }
    side.send(3, endpoint, 6, &[1]);
    assert!(matches!(side.outcome(3), Event::Failed { .. }));
    other.child.wait().unwrap();
    assert_each_once(&side.end(), &[2]);
}

#[test]
fn aborting_ends_what_a_stopped_peer_has_begun() {
    const TEST: &str = "aborting_ends_what_a_stopped_peer_has_begun";
    let Some(ucx) = ucx(TEST) else {
        return;
    };
    let mut side = Side::new(ucx);
    if role().is_some() {
        say(&hex(side.worker.address()));
        let endpoint = side.connect(&from_hex(&hear()));
        let bytes = pattern(64 << 20, 1);
        for id in 0..4 {
            side.send(id, endpoint, 7, &bytes);
        }
        side.done(0);
        // Nothing moves any more.
        // SAFETY: the process stops itself.
        unsafe { libc::raise(libc::SIGSTOP) };
        return;
    }
    let mut other = Other::start(TEST, "peer", &[]);
    let endpoint = side.connect(&other.hear_bytes());
    other.say(&hex(side.worker.address()));
    let mut targets: Vec<Vec<u8>> = (0..4).map(|_| vec![0; 64 << 20]).collect();
    for (at, target) in targets.iter_mut().enumerate() {
        side.receive(at as u64, 7, target);
    }
    let large = pattern(8 << 20, 1);
    side.send(10, endpoint, 6, &large);
    side.done(0);
    side.worker.abort(endpoint);
    (1..4).for_each(|id| side.worker.cancel(id));
    side.wait(|event| matches!(event, Event::EndpointClosed { .. }));
    let events = side.end();
    println!("{events:?}");
    assert_each_once(&events, &[1, 2, 3, 10]);
    other.child.kill().unwrap();
    other.child.wait().unwrap();
}

#[test]
fn an_unmatched_receive_is_cancelled() {
    let Some(ucx) = ucx("an_unmatched_receive_is_cancelled") else {
        return;
    };
    let mut side = Side::new(ucx);
    let mut bytes = [0; 64];
    side.receive(1, 1, &mut bytes);
    side.worker.cancel(1);
    let outcome = side.outcome(1);
    assert!(outcome.is_cancelled(), "{outcome:?}");
}

#[test]
fn a_message_that_is_too_long_fails_and_writes_nothing_past_the_end() {
    let Some(ucx) = ucx("a_message_that_is_too_long_fails_and_writes_nothing_past_the_end") else {
        return;
    };
    let (mut one, mut other) = (Side::new(ucx), Side::new(ucx));
    let endpoint = one.connect(other.worker.address());
    for (id, size) in [1, 1000, 64 << 10, 4 << 20].into_iter().enumerate() {
        let id = id as u64;
        let source = pattern(size + 1, 9);
        let mut target = vec![0xEE; size + 4096];
        other.receive(id, id, &mut target[..size]);
        one.send(id, endpoint, id, &source);
        let outcome = other.outcome(id);
        assert!(
            matches!(&outcome, Event::Failed { status, .. } if status.code == TRUNCATED),
            "{outcome:?}"
        );
        assert!(target[size..].iter().all(|byte| *byte == 0xEE));
        one.outcome(id);
    }
}

#[test]
fn dropping_a_worker_ends_everything_once() {
    let Some(ucx) = ucx("dropping_a_worker_ends_everything_once") else {
        return;
    };
    let (one, mut other) = (Side::new(ucx), Side::new(ucx));
    let endpoint = one.connect(other.worker.address());
    let (large, mut targets) = (pattern(8 << 20, 4), vec![[0; 8]; 4]);
    // The other side posts no receives for these.
    one.send(0, endpoint, 1, &large);
    one.send(1, endpoint, 1, &large);
    one.send(2, endpoint, 1, &[1]);
    for (at, target) in targets.iter_mut().enumerate() {
        one.receive(10 + at as u64, 3, target);
    }
    // A message that did arrive shows that the sends above are under way.
    let mut seen = [0];
    other.receive(0, 2, &mut seen);
    one.send(3, endpoint, 2, &[1]);
    other.done(0);
    let start = Instant::now();
    let events = one.end();
    println!("dropping took {:?}: {events:?}", start.elapsed());
    assert_each_once(&events, &[0, 1, 2, 3, 10, 11, 12, 13]);
    // The peer is well.
    other.receive(1, 9, &mut seen);
    other.worker.cancel(1);
    assert!(other.outcome(1).is_cancelled());
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn connections_and_workers_leave_no_descriptors() {
    const TEST: &str = "connections_and_workers_leave_no_descriptors";
    let Some(ucx) = ucx(TEST) else {
        return;
    };
    if role().is_none() {
        // In a process of its own, where no other test opens any.
        return Other::start(TEST, "alone", &[]).succeeds();
    }
    let mut last = None;
    for _ in 0..3 {
        let (mut one, mut other) = (Side::new(ucx), Side::new(ucx));
        let mut target = [0];
        for cycle in 0..350 {
            let endpoint = one.connect(other.worker.address());
            other.receive(cycle, 1, &mut target);
            one.send(cycle, endpoint, 1, &[cycle as u8]);
            assert_eq!(other.done(cycle), 1);
            assert_eq!(target, [cycle as u8]);
            one.done(cycle);
            one.worker.close(endpoint);
            one.wait(|event| matches!(event, Event::EndpointClosed { endpoint: closed } if *closed == endpoint));
            if cycle == 10 || cycle == 349 {
                println!("{} descriptors after {cycle} cycles", descriptors());
            }
        }
        one.end();
        other.end();
        let now = descriptors();
        println!("{now} descriptors after the workers");
        assert!(last.is_none_or(|last| last == now));
        last = Some(now);
    }
}

/// Two namespaces with a pair of interfaces between them; removed when dropped.
struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    fn make() -> Result<Namespaces, String> {
        let id = std::process::id();
        let names = [format!("tlucx{id}a"), format!("tlucx{id}b")];
        let [a, b] = &names;
        let made = Namespaces {
            names: names.clone(),
        };
        for line in [
            format!("ip netns add {a}"),
            format!("ip netns add {b}"),
            format!("ip -n {a} link add ve0 type veth peer name ve0 netns {b}"),
            format!("ip -n {a} addr add 192.0.2.1/24 dev ve0"),
            format!("ip -n {b} addr add 192.0.2.2/24 dev ve0"),
            format!("ip -n {a} link set ve0 up"),
            format!("ip -n {b} link set ve0 up"),
            format!("ip -n {a} link set lo up"),
            format!("ip -n {b} link set lo up"),
        ] {
            run(&line)?;
        }
        Ok(made)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run(&format!("ip netns del {name}"));
        }
    }
}

/// A few messages to and fro, after which the handshake of UCX is over.
fn rally(side: &mut Side, endpoint: EndpointId, serves: bool) {
    let mut target = [0];
    for round in 0..4 {
        side.receive(100 + round, round, &mut target);
        for turn in [serves, !serves] {
            if turn {
                side.send(200 + round, endpoint, round, &[1]);
                side.done(200 + round);
            } else {
                side.done(100 + round);
            }
        }
    }
}

/// The kernel tells the carrier of a new pair a moment after both ends are up, and UCX takes no interface without one.
fn wait_for_carrier() {
    let has_come = (0..10_000_000).any(|_| {
        let carrier = std::fs::read_to_string("/sys/class/net/ve0/carrier");
        std::thread::yield_now();
        carrier.map_or(true, |carrier| carrier.trim() == "1")
    });
    assert!(has_come, "no carrier");
}

fn run(line: &str) -> Result<(), String> {
    let mut words = line.split(' ');
    let output = std::process::Command::new(words.next().unwrap())
        .args(words)
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("{line}: {error}")),
    }
}

#[test]
fn a_black_hole_is_seen_within_five_seconds() {
    const TEST: &str = "a_black_hole_is_seen_within_five_seconds";
    let Some(ucx) = ucx(TEST) else {
        return;
    };
    match role().as_deref() {
        None => {
            let namespaces = match Namespaces::make() {
                Ok(namespaces) => namespaces,
                Err(reason) => return skip(&format!("{TEST}: no network namespaces: {reason}")),
            };
            let [a, b] = &namespaces.names;
            for case in ["idle", "busy"] {
                let role = format!("first {case} {b}");
                let mut first = Other::start(TEST, &role, &["ip", "netns", "exec", a]);
                if first.hear() == "cut" {
                    run(&format!("ip netns exec {a} nft add table inet hole")).unwrap();
                    for hook in ["input", "output"] {
                        run(&format!("ip netns exec {a} nft add chain inet hole {hook} {{ type filter hook {hook} priority 0 ; policy drop ; }}")).unwrap();
                    }
                }
                first.say("is cut");
                println!("{case}: {}", first.hear());
                run(&format!("ip netns exec {a} nft delete table inet hole")).unwrap();
                first.succeeds();
            }
        }
        Some("second") => {
            wait_for_carrier();
            let mut side = Side::on(ucx, "ve0");
            say(&hex(side.worker.address()));
            let endpoint = side.connect(&from_hex(&hear()));
            rally(&mut side, endpoint, false);
            hear();
            let start = Instant::now();
            if !side.worker.skipped_settings().is_empty() {
                // This version of UCX asks silent peers only from the side that has connected. The owner ends it.
                side.worker.abort(endpoint);
            }
            side.wait(|event| {
                matches!(
                    event,
                    Event::EndpointLost { .. } | Event::EndpointClosed { .. }
                )
            });
            let took = start.elapsed();
            say(&format!("{took:?}"));
            hear();
        }
        Some(first) => {
            let mut words = first.split(' ').skip(1);
            let (case, namespace) = (words.next().unwrap(), words.next().unwrap());
            wait_for_carrier();
            let mut side = Side::on(ucx, "ve0");
            let mut second = Other::start(TEST, "second", &["ip", "netns", "exec", namespace]);
            let endpoint = side.connect(&second.hear_bytes());
            second.say(&hex(side.worker.address()));
            rally(&mut side, endpoint, true);
            say("cut");
            assert_eq!(hear(), "is cut");
            second.say("is cut");
            let start = Instant::now();
            let large = pattern(8 << 20, 1);
            if case == "busy" {
                side.send(1, endpoint, 2, &large);
            }
            if case == "busy" && !side.worker.skipped_settings().is_empty() {
                // This version of UCX has no limit for data that waits for an answer. The owner ends it.
                side.worker.abort(endpoint);
            }
            let lost = side.wait(|event| {
                matches!(
                    event,
                    Event::EndpointLost { .. } | Event::EndpointClosed { .. }
                )
            });
            let took = start.elapsed();
            // The hole stays until both sides have seen it.
            let other = if case == "idle" {
                second.hear()
            } else {
                "-".into()
            };
            say(&format!(
                "seen after {took:?}: {lost:?}, by the other side after {other}; without {:?}",
                side.worker.skipped_settings()
            ));
            if case == "busy" {
                assert!(matches!(side.outcome(1), Event::Failed { .. }));
            }
            second.child.kill().unwrap();
            second.child.wait().unwrap();
        }
    }
}
