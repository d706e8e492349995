//! What sessions leave behind. A program of its own, since other tests have threads and files too.
#![cfg(target_os = "linux")]

mod common;

use std::thread;
use std::time::Instant;

use common::{PATIENCE, pair};
use transload_remote::Options;

#[test]
fn two_hundred_sessions_leave_no_thread_and_no_file() {
    let count = |what: &str| {
        std::fs::read_dir(format!("/proc/self/{what}"))
            .unwrap()
            .count()
    };
    let counts = || ["task", "fd"].map(count);
    // The first one may start what the process keeps.
    let pairs = |count: usize| {
        let pairs: Vec<_> = (0..count).map(|_| pair(&Options::default())).collect();
        for (index, (client, node)) in pairs.iter().enumerate() {
            [client, node][index % 2].handle.close();
        }
        for (client, node) in pairs {
            client.closed();
            node.closed();
        }
    };
    pairs(1);
    let before = counts();
    for _ in 0..10 {
        pairs(20);
    }
    // The system lists a thread for a moment after it was joined.
    let begun = Instant::now();
    while counts() != before && begun.elapsed() < PATIENCE {
        thread::yield_now();
    }
    assert_eq!(counts(), before);
}
