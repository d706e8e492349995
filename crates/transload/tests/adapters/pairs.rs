//! From one adapter to another, whose drivers know nothing of each other.

use transload::Request;

use crate::machine::{Adapters, MIB, POISON, pattern};

/// Around a word, a page, a chunk; and more than the slots of a ring.
const SIZES: [u64; 9] = [1, 3, 4, 5, 4095, 4097, 65_537, MIB + 1, 20 * MIB + 3];

/// Where the bytes begin in the source and in the destination.
const OFFSETS: [(u64, u64); 5] = [(0, 0), (1, 0), (0, 3), (2, 7), (4, 8)];

#[test]
fn bytes_go_from_one_driver_to_the_other_and_back() {
    let Some(adapters) = Adapters::open(2) else {
        return;
    };
    for (from, to) in adapters.pairs() {
        for len in SIZES {
            for (at, into) in OFFSETS {
                // The largest once: four more would show nothing new.
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
