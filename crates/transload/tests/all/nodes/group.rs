//! Transfers and broadcasts of memory that several clients use.

use std::time::Duration;

use transload::hal::ExternalKind;
use transload::{Buffer, Request};

use super::{serve, there};

#[test]
fn both_ends_of_a_copy_may_be_shared_whichever_came_first() {
    let served = serve(1 << 30);
    let manager = served.connect();
    for share in [[true, false], [false, true], [true, true]] {
        let (dst, src) = (there(&manager, 4096), there(&manager, 4096));
        manager.copy_from_slice(&[1; 4096], &src).unwrap();
        manager.copy_from_slice(&[2; 4096], &dst).unwrap();
        for (end, _) in [&dst, &src].into_iter().zip(share).filter(|(_, is)| *is) {
            manager.export(end, ExternalKind::Remote).unwrap();
        }
        manager.copy(&src, &dst).wait().unwrap();
        let first = [&src, &dst].map(|end| manager.read_to_vec(end).unwrap()[0]);
        assert_eq!(first, [1, 1], "destination and source shared: {share:?}");
    }
}

#[test]
fn a_transfer_that_is_over_holds_up_no_other_although_nobody_has_its_result() {
    let served = serve(1 << 30);
    let manager = served.connect();
    let shared = there(&manager, 4096);
    manager.export(&shared, ExternalKind::Remote).unwrap();
    let source = manager.adopt(vec![7u8; 4096]).unwrap();
    let back = manager.adopt(vec![0u8; 4096]).unwrap();
    let first = manager.copy(&source, &shared);
    manager.copy(&shared, &back).wait().unwrap();
    first.wait().unwrap();
    assert_eq!(manager.read_to_vec(&back).unwrap(), [7; 4096]);
}

#[test]
fn a_transfer_that_is_over_holds_up_no_other_client_although_no_thread_waits_for_it() {
    let served = serve(1 << 30);
    let (first, other) = (served.connect(), served.connect());
    let shared = there(&first, 4096);
    let others = super::opened(&first, &shared, &other);
    let source = first.adopt(vec![1u8; 4096]).unwrap();
    let written = other.adopt(vec![2u8; 4096]).unwrap();
    // The other client's copy may be under way as a whole when the call that submits it returns.
    for round in 0..400 {
        let theirs = other.copy(&written, &others);
        let mut ours = first.copy(&source, &shared);
        let ended = ours.wait_timeout(Duration::from_secs(600));
        ended
            .unwrap_or_else(|| panic!("round {round}: it waits"))
            .unwrap();
        theirs.wait().unwrap();
    }
}

#[test]
fn a_broadcast_has_one_turn_for_all_its_shared_ends() {
    const LEN: u64 = 1 << 20;
    let served = serve(1 << 30);
    let manager = served.connect();
    let mut all: Vec<Buffer> = (0..4).map(|_| there(&manager, LEN)).collect();
    for end in &all {
        manager.export(end, ExternalKind::Remote).unwrap();
    }
    // The leases are in no order that their machine knows.
    all.swap(0, 2);
    let (source, to) = all.split_first().unwrap();
    for (value, verify) in [(3, false), (4, true)] {
        let bytes = vec![value; LEN as usize];
        manager.copy_from_slice(&bytes, source).unwrap();
        let request = |to| match verify {
            true => Request::new(source, to).verify(),
            false => Request::new(source, to),
        };
        let requests: Vec<Request> = to.iter().map(request).collect();
        let batch = manager.broadcast(&requests).unwrap();
        while !batch.is_over() {
            std::thread::yield_now();
        }
        for (result, to) in batch.wait().into_iter().zip(to) {
            result.unwrap();
            assert!(manager.read_to_vec(to).unwrap() == bytes);
        }
    }
}

#[test]
fn what_other_clients_write_waits_until_the_whole_broadcast_is_over() {
    const LEN: u64 = 1 << 20;
    let served = serve(1 << 30);
    let (first, other) = (served.connect(), served.connect());
    let to: Vec<Buffer> = (0..3).map(|_| there(&first, LEN)).collect();
    let others: Vec<Buffer> = { to.iter() }
        .map(|to| super::opened(&first, to, &other))
        .collect();
    let source = first.adopt(vec![0x11u8; LEN as usize]).unwrap();
    let written = other.adopt(vec![0xCCu8; LEN as usize]).unwrap();
    for _ in 0..20 {
        let requests: Vec<Request> = to.iter().map(|to| Request::new(&source, to)).collect();
        let batch = first.broadcast(&requests).unwrap();
        let writes = other.copy(&written, &others[0]);
        let reads: Vec<u8> = others[1..]
            .iter()
            .flat_map(|of| other.read_to_vec(of).unwrap())
            .collect();
        drop(reads);
        batch
            .wait()
            .into_iter()
            .for_each(|result| drop(result.unwrap()));
        writes.wait().unwrap();
        for of in &to[1..] {
            assert!(
                first
                    .read_to_vec(of)
                    .unwrap()
                    .iter()
                    .all(|byte| *byte == 0x11)
            );
        }
    }
}
