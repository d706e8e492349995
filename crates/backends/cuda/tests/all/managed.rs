//! Managed memory: when the host sees bytes that a device wrote, and the hints that the driver gets in advance.

use crate::common;

use std::time::Duration;

use common::user::{User, seen};
use common::work::{Works, copy, device, managed, pattern, pinned, whole, write};
use common::{assert_clean, backend, control, made_up, now};
use transload_hal::{Access, Backend, ErrorClass, Fence, Op, Outcome, SubmitError, Waited};

const LEN: usize = 1 << 20;

/// The machine has simple times: a byte between host and device takes a nanosecond.
fn works(clock: &str, machine: &str) -> Works {
    let machine = made_up(machine);
    Works::new(backend(&[("CLOCK", clock), ("TOPOLOGY", &machine)]))
}

fn visible(buffer: &transload_hal::Buffer) -> Op<'_> {
    Op::MakeVisible {
        part: whole(buffer),
    }
}

#[track_caller]
fn refusal(submitted: Result<Fence, SubmitError>) -> SubmitError {
    submitted.expect_err("it was to be refused")
}

/// Work in a user's stream, of which the backend does not know.
fn what_a_user_writes_is_waited_for(works: &Works) {
    let bytes = pattern(7, LEN);
    let buffer = works.allocate(managed(0), LEN);
    buffer.expose();
    write(&buffer, &[0xA5; LEN]);
    let mut user = User::of(&works.cuda, 0);
    let from = user.upload(&bytes);
    user.start(from, buffer.position(), LEN).unwrap();
    let fence = works.submit(&[visible(&buffer)]).unwrap();
    assert_eq!(works.outcome(fence), Outcome::Done);
    let span = buffer.host(0, LEN as u64).unwrap();
    assert!(seen(span) == bytes);
}

#[test]
fn what_a_users_stream_still_writes_is_there_once_it_was_made_visible() {
    let works = works("real", "gigabyte");
    what_a_user_writes_is_waited_for(&works);
    drop(works);
    assert_clean();
}

#[test]
fn in_virtual_time_it_takes_what_the_users_copy_takes() {
    let works = works("virtual", "gigabyte");
    let begun = now();
    what_a_user_writes_is_waited_for(&works);
    // From pageable memory the user's copy takes two nanoseconds a byte, and to managed memory one.
    assert_eq!(now() - begun, 3 * LEN as u64);
    drop(works);
    assert_clean();
}

#[test]
fn a_stream_that_never_answers_holds_up_who_asks_and_nobody_else() {
    let works = works("real", "gigabyte");
    let buffer = works.allocate(managed(0), LEN);
    buffer.expose();
    let mut user = User::of(&works.cuda, 0);
    let from = user.upload(&[1; LEN]);
    control("fault stuck").unwrap();
    user.start(from, buffer.position(), LEN).unwrap();
    let asked = works.submit(&[visible(&buffer)]).unwrap();
    let limit = Duration::from_millis(1);
    assert_eq!(works.cuda.wait(asked, limit), Waited::TimedOut);
    // No stream can wait for the memory, so the caller has to.
    let other = works.allocate(device(0), LEN);
    let source = works.pinned(&pattern(3, LEN));
    let error = refusal(works.submit_after(&[copy(&source, &other)], &[asked]));
    let SubmitError::Refused(fault) = error else {
        panic!("{error}");
    };
    assert_eq!(fault.class, ErrorClass::Unsupported);
    works.run(&[copy(&source, &other)]);
    assert_eq!(works.cuda.wait(asked, limit), Waited::TimedOut);
    // Freeing would wait for all work of the device, which never ends.
    std::mem::forget((buffer, user, other, source));
}

#[test]
fn a_driver_that_will_not_wait_fails_the_one_who_asked() {
    let works = works("real", "gigabyte");
    let buffer = works.allocate(managed(0), LEN);
    buffer.expose();
    let source = works.pinned(&pattern(3, LEN));
    // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: another thread captures a stream into a graph.
    control("fault call=cuCtxSynchronize:900@1+").unwrap();
    let fence = works.submit(&[visible(&buffer)]).unwrap();
    let Outcome::Failed(fault) = works.outcome(fence) else {
        panic!("it did not fail");
    };
    assert_eq!(fault.class, ErrorClass::Failed);
    assert!(fault.to_string().contains("(900)"), "{fault}");
    control("fault none").unwrap();
    works.run(&[copy(&source, &buffer)]);
    works.run(&[visible(&buffer)]);
    // A single failure is harmless.
    control("fault call=cuCtxSynchronize:900").unwrap();
    works.run(&[visible(&buffer)]);
    drop((buffer, source));
    drop(works);
    assert_clean();
}

#[test]
fn a_device_that_is_lost_says_so_to_who_asks() {
    let works = works("real", "gigabyte");
    let buffer = works.allocate(managed(0), LEN);
    buffer.expose();
    let mut user = User::of(&works.cuda, 0);
    let from = user.upload(&[1; LEN]);
    control("fault ecc").unwrap();
    // The call may or may not report the loss already.
    let _ = user.start(from, buffer.position(), LEN);
    match works.submit(&[visible(&buffer)]) {
        Ok(fence) => {
            let Outcome::Lost(fault) = works.outcome(fence) else {
                panic!("it was not lost");
            };
            assert_eq!(fault.class, ErrorClass::Lost);
        }
        Err(SubmitError::Refused(fault)) => assert_eq!(fault.class, ErrorClass::Lost),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn memory_that_the_program_never_had_is_visible_at_once_while_nothing_is_under_way() {
    let works = works("virtual", "gigabyte");
    let buffer = works.allocate(managed(0), LEN);
    let bytes = pattern(3, LEN);
    let source = works.pinned(&bytes);
    works.run(&[copy(&source, &buffer)]);
    assert!(works.submit(&[visible(&buffer)]).unwrap().is_immediate());
    assert!(seen(buffer.host(0, LEN as u64).unwrap()) == bytes);
    // A copy of any buffer is under way: virtual time stands still.
    let sent = works.submit(&[copy(&source, &works.allocate(device(0), LEN))]);
    let asked = works.submit(&[visible(&buffer)]).unwrap();
    assert!(!asked.is_immediate());
    assert_eq!(works.outcome(sent.unwrap()), Outcome::Done);
    assert_eq!(works.outcome(asked), Outcome::Done);
    // A device that is lost is lost to this, too.
    control("fault ecc").unwrap();
    let _ = works
        .submit(&[copy(&source, &buffer)])
        .map(|fence| works.outcome(fence));
    let SubmitError::Refused(fault) = refusal(works.submit(&[visible(&buffer)])) else {
        panic!("it was not refused");
    };
    assert_eq!(fault.class, ErrorClass::Lost);
}

#[test]
fn making_visible_is_a_submission_of_its_own() {
    let works = works("real", "gigabyte");
    let buffer = works.allocate(managed(0), LEN);
    let source = works.pinned(&pattern(3, LEN));
    let ops = [visible(&buffer), copy(&source, &buffer)];
    for (first, second) in [(0, 1), (1, 0)] {
        let error = refusal(works.submit(&[ops[first], ops[second]]));
        assert!(
            matches!(error, SubmitError::Unsupported { index: 1, .. }),
            "{error}"
        );
    }
    // One wait of the driver answers several operations.
    works.run(&[visible(&buffer), visible(&buffer)]);
    drop((buffer, source));
    drop(works);
    assert_clean();
}

#[test]
fn it_is_behind_fences_of_every_lane_and_of_other_devices() {
    let works = works("real", "gigabyte");
    let buffer = works.allocate(managed(0), LEN);
    for number in [0, 1] {
        let bytes = pattern(3 + number as u8, LEN);
        let (source, there, landing) = (
            works.pinned(&bytes),
            works.allocate(device(number), LEN),
            works.pinned(&[0; LEN]),
        );
        let sent = works.submit(&[copy(&source, &there)]).unwrap();
        let back = works.submit_after(&[copy(&there, &landing)], &[sent]);
        let fences = [sent, back.unwrap()];
        let asked = works.submit_after(&[visible(&buffer)], &fences).unwrap();
        assert_eq!(works.outcome(asked), Outcome::Done);
        let span = landing.host(0, LEN as u64).unwrap();
        assert!(seen(span) == bytes, "device {number}");
        for fence in fences {
            assert_eq!(works.outcome(fence), Outcome::Done);
        }
    }
    drop(buffer);
    drop(works);
    assert_clean();
}

/// The host may not touch managed memory of a device that is working, so the backend gives out no host address.
#[test]
fn where_host_and_device_take_turns_only_the_device_touches_it() {
    let works = works("real", "page-tables");
    let memory = managed(1);
    let inventory = works.cuda.inventory();
    let of = |memory| {
        let mut memories = inventory.memories.iter();
        memories.find(|info| info.id == memory).unwrap()
    };
    assert!(of(managed(0)).host_addressable && !of(memory).host_addressable);
    let mut links = inventory.links.iter();
    let touches = |link: &&transload_hal::Link| [link.id.src, link.id.dst].contains(&memory);
    let foreign = links.find(|link| touches(link) && link.id.engine.device != memory.device);
    assert_eq!(foreign, None);
    let buffer = works.allocate(memory, LEN);
    assert_eq!(buffer.host(0, LEN as u64), None);
    let bytes = pattern(9, LEN);
    works.upload(&buffer, &bytes);
    let other = works.allocate(device(1), LEN);
    works.run(&[copy(&buffer, &other)]);
    works.run(&[copy(&other, &buffer)]);
    // The backend ignores hints there.
    works.run(&[Op::Prefetch {
        part: whole(&buffer),
        to: memory.device,
    }]);
    assert!(works.download(&buffer) == bytes);
    drop((buffer, other));
    drop(works);
    assert_clean();
}

#[test]
fn links_to_managed_memory_say_what_they_are() {
    let works = works("real", "gigabyte");
    let links = works.cuda.inventory().links;
    let mut count = 0;
    for link in links {
        if [link.id.src, link.id.dst].contains(&managed(0)) {
            assert_eq!(link.id.access, Access::Managed, "{link:?}");
            count += 1;
        }
    }
    // The device copies within itself, to its own memory and to pinned memory; the host copies to pageable memory,
    // shared memory, files and disks.
    assert_eq!(count, 1 + 2 + 2 + 8);
    let is_by_host = |link: &transload_hal::Link| link.id.engine.device != managed(0).device;
    let pinned_by_host = works
        .cuda
        .inventory()
        .links
        .into_iter()
        .any(|link| is_by_host(&link) && [link.id.src, link.id.dst] == [pinned(), managed(0)]);
    assert!(!pinned_by_host, "the device does that better");
}
