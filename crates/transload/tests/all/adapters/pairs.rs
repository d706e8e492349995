//! Transfers from one adapter to another, whose drivers do not know of each other.

use transload::{Cancelled, Request};

use crate::adapters::machine::{Adapters, MIB, POISON, pattern};

/// Sizes around a word, a page and a chunk, and one that needs more slots than a ring has.
const SIZES: [u64; 9] = [1, 3, 4, 5, 4095, 4097, 65_537, MIB + 1, 20 * MIB + 3];

/// The offsets of the bytes in the source and in the destination.
const OFFSETS: [(u64, u64); 5] = [(0, 0), (1, 0), (0, 3), (2, 7), (4, 8)];

#[test]
fn bytes_go_from_one_driver_to_the_other_and_back() {
    let Some(adapters) = Adapters::open(2) else {
        return;
    };
    for (from, to) in adapters.pairs() {
        for len in SIZES {
            for (at, into) in OFFSETS {
                // The largest size runs with one pair of offsets: four more would test nothing new.
                if len > MIB + 1 && (at, into) != (2, 7) {
                    continue;
                }
                let sent = pattern(at + len + 5, len + at);
                let src = adapters.filled(from, &sent);
                let mut wanted = vec![POISON; (into + len + 9) as usize];
                let dst = adapters.filled(to, &wanted);
                let request = Request::new(
                    src.slice(at..at + len).unwrap(),
                    dst.slice(into..into + len).unwrap(),
                );
                let report = adapters.manager.submit(&request.verify()).wait().unwrap();
                assert_eq!(report.bytes(), len);
                assert!(report.checksum().is_some());
                assert!(report.fallbacks().is_empty(), "{report}");
                wanted[into as usize..(into + len) as usize]
                    .copy_from_slice(&sent[at as usize..(at + len) as usize]);
                let what = format!("{len} bytes from {from:?} at {at} to {to:?} at {into}");
                assert!(to.bytes_of(&dst) == wanted, "{what}");
                assert!(from.bytes_of(&src) == sent, "{what}: the source changed");
            }
        }
    }
}

#[test]
fn a_report_between_drivers_names_both_ends() {
    let Some(adapters) = Adapters::open(2) else {
        return;
    };
    for (from, to) in adapters.pairs() {
        let src = adapters.filled(from, &pattern(MIB, 1));
        let dst = adapters.buffer(to, MIB);
        let report = adapters.manager.copy(&src, &dst).wait().unwrap();
        println!("{report}");
        let route: Vec<_> = report.route().collect();
        assert_eq!(route.first(), Some(&from.memory()));
        assert_eq!(route.last(), Some(&to.memory()));
        assert!(!report.is_simulated());
    }
}

/// The transfer goes through slots, so that the cancellation can reach it half-way.
#[test]
fn a_cancelled_transfer_between_drivers_says_how_many_bytes_arrived() {
    let Some(adapters) = Adapters::open(2) else {
        return;
    };
    const LEN: u64 = 24 * MIB + 3;
    const BAND: u64 = 64;
    let blank = vec![POISON; (LEN + 2 * BAND) as usize];
    let sent = pattern(LEN, 8);
    for (from, to) in adapters.pairs() {
        let src = adapters.filled(from, &sent);
        let dst = adapters.buffer(to, LEN + 2 * BAND);
        let mut told = [0; 3];
        for part in 0..6 {
            to.fill(&dst, &blank);
            let transfer = adapters
                .manager
                .copy(&src, dst.slice(BAND..BAND + LEN).unwrap());
            let arrived = || transfer.progress().map_or(0, |(arrived, _)| arrived);
            while !transfer.is_over() && arrived() < LEN / 8 * part {
                adapters.manager.turn();
            }
            let (kind, arrived) = match transfer.cancel() {
                Cancelled::NotStarted => (0, 0),
                Cancelled::Stopped { leading_bytes } => (1, leading_bytes),
                Cancelled::Finished(result) => (2, result.unwrap().bytes()),
            };
            told[kind] += 1;
            let found = to.bytes_of(&dst);
            let (band, arrived) = (BAND as usize, arrived as usize);
            let what = format!("{from:?} to {to:?}, {arrived} bytes");
            assert!(found[band..band + arrived] == sent[..arrived], "{what}");
            let (before, after) = (&found[..band], &found[band + LEN as usize..]);
            let bands = before.iter().chain(after);
            assert!(bands.into_iter().all(|byte| *byte == POISON), "{what}");
            assert!(kind > 0 || found == blank, "{what}");
        }
        println!("{from:?} to {to:?}: {told:?} not started, stopped, finished");
    }
}
