//! Two channels of one process, over the loopback device. Skipped where UCX is not installed.

use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};

use super::super::error::Status;
use super::super::raw::UCS_ERR_NOT_CONNECTED;
use super::*;

/// Makes two channels that reach each other, with or without checksums.
fn pair(checksums: bool) -> Option<[Channel; 2]> {
    if let Err(error) = Ucx::load(None) {
        println!("skipped: {error}");
        return None;
    }
    let limits = crate::Options {
        checksums,
        ..crate::Options::default()
    };
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut both = [(); 2].map(|()| {
        let session = SessionHandle::for_tests();
        Channel::open(address, session, limits.clone()).unwrap()
    });
    let reaches = [0, 1].map(|at: usize| both[at].reach());
    for (at, reach) in reaches.into_iter().enumerate() {
        let Reach::Worker { address, .. } = reach else {
            panic!("UCX is here");
        };
        assert!(both[1 - at].connect(&address, false));
        assert!(!both[1 - at].connect(&address, false));
    }
    Some(both)
}

type Told = [VecDeque<pipe::Event>; 2];

/// Waits for the next event of a channel, while all run.
fn next(both: &mut [Channel], told: &mut Told, at: usize) -> pipe::Event {
    loop {
        for (channel, events) in both.iter_mut().zip(told.iter_mut()) {
            channel.poll(events);
        }
        if let Some(event) = told[at].pop_front() {
            return event;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_range_with_another_checksum_is_refused() {
    let Some(mut both) = pair(true) else { return };
    for (tag, is_right) in [(2, true), (3, false)] {
        let (mut sent, mut came) = (vec![7u8; 100_000], vec![0u8; 100_000]);
        let [from, to] = [&mut sent, &mut came].map(|bytes| HostSpan::of_mut(bytes));
        // SAFETY: it lives until the event came.
        unsafe { both[0].start((1, 0), tag, to, false) }.unwrap();
        // SAFETY: no code writes it meanwhile.
        let sum = unsafe { sum(from) } ^ u64::from(!is_right);
        // SAFETY: as the first one.
        unsafe { both[1].start_with((1, 0), tag, from, true, sum) }.unwrap();
        let mut told = Told::default();
        let [event, is_sent] = [0, 1].map(|at| next(&mut both, &mut told, at));
        assert!(
            matches!(is_sent, pipe::Event::Sent { len: 100_000, .. }),
            "{is_sent:?}"
        );
        match event {
            pipe::Event::Arrived { len, .. } if is_right => assert_eq!(len, 100_000),
            pipe::Event::Failed { reason, .. } if !is_right => {
                assert!(reason.contains("checksum"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_question_that_was_sent_is_no_sign_of_the_other_side() {
    let Some(mut both) = pair(false) else { return };
    let mut came = vec![0u8; 16];
    // SAFETY: it lives until the channel is dropped.
    unsafe { both[0].start((1, 0), 2, HostSpan::of_mut(&mut came), false) }.unwrap();
    let heard = both[0].heard;
    both[0].handle_time(heard + Duration::from_millis(1500));
    let is_saying = |channel: &Channel| {
        let mut kinds = channel.messages.values();
        kinds.any(|kind| matches!(kind, Kind::Saying))
    };
    assert!(is_saying(&both[0]));
    // The other side does not look at what it is asked.
    while is_saying(&both[0]) {
        both[0].poll(&mut VecDeque::new());
        std::thread::yield_now();
    }
    assert_eq!(both[0].heard, heard);
    both.reverse();
    drop(both);
}

#[test]
fn a_side_that_answers_is_waited_for_and_a_silent_one_is_given_up() {
    let Some(mut both) = pair(false) else { return };
    let mut came = vec![0u8; 16];
    let (begun, silent) = (Instant::now(), both[0].limits.silent_after);
    // SAFETY: it lives until the event came.
    unsafe { both[0].start((1, 0), 2, HostSpan::of_mut(&mut came), false) }.unwrap();
    assert!(both[0].next_time().is_some());
    both[0].handle_time(begun + Duration::from_millis(1500));
    let asked = both[0].heard;
    while both[0].heard == asked {
        for channel in &mut both {
            channel.poll(&mut VecDeque::new());
        }
        std::thread::yield_now();
    }
    both[0].handle_time(both[0].heard + silent - Duration::from_millis(100));
    assert_eq!(both[0].fault(), None);
    both[0].handle_time(both[0].heard + silent);
    assert!(
        both[0].fault().unwrap().contains("no sign"),
        "{:?}",
        both[0].fault()
    );
    let event = next(&mut both[..1], &mut Told::default(), 0);
    let pipe::Event::Failed { op: 1, reason, .. } = event else {
        panic!("{event:?}");
    };
    assert!(reason.contains("no sign"), "{reason}");
    assert!(matches!(both[0].poll_word(), Some(Reach::None { .. })));
    assert_eq!(both[0].poll_word(), None);
}

#[test]
fn a_channel_that_is_dropped_has_ended_what_it_had_under_way() {
    let Some(both) = pair(false) else { return };
    let [mut first, second] = both;
    let (mut came, sent) = (vec![1u8; 64], vec![2u8; 4 << 20]);
    // SAFETY: it lives until the channel is dropped.
    unsafe { first.start((1, 0), 2, HostSpan::of_mut(&mut came), false) }.unwrap();
    // SAFETY: as above.
    unsafe { first.start((2, 0), 9, HostSpan::of(&sent), true) }.unwrap();
    drop(first);
    drop(second);
    assert_eq!(came, [1; 64]);
}

#[test]
fn a_message_with_fewer_bytes_than_its_range_is_refused() {
    let Some(mut both) = pair(false) else { return };
    let (mut came, sent) = (vec![0u8; 100_000], vec![7u8; 99_999]);
    // SAFETY: it lives until the event came.
    unsafe { both[0].start((1, 0), 2, HostSpan::of_mut(&mut came), false) }.unwrap();
    // SAFETY: no code writes it meanwhile.
    unsafe { both[1].start((1, 0), 2, HostSpan::of(&sent), true) }.unwrap();
    let mut told = Told::default();
    let [event, _] = [0, 1].map(|at| next(&mut both, &mut told, at));
    let pipe::Event::Failed { op: 1, reason, .. } = event else {
        panic!("{event:?}");
    };
    assert!(reason.contains("99999 bytes, and not 100000"), "{reason}");
    assert_eq!(both[0].fault(), None);
}

#[test]
fn a_side_that_gave_ucx_up_says_so_also_if_ucx_then_loses_the_other_one() {
    let Some(mut both) = pair(false) else { return };
    let mut came = vec![0u8; 16];
    // SAFETY: it lives until the channel is dropped.
    unsafe { both[0].start((1, 0), 2, HostSpan::of_mut(&mut came), false) }.unwrap();
    let silent = both[0].heard + both[0].limits.silent_after;
    both[0].handle_time(silent);
    let endpoint = both[0].endpoint.unwrap();
    let functions = Ucx::load(None).unwrap().functions;
    let status = Status::of(&functions, UCS_ERR_NOT_CONNECTED);
    let lost = Event::EndpointLost { endpoint, status };
    both[0].inbox.events().push(lost);
    both[0].poll(&mut VecDeque::new());
    let word = both[0].poll_word();
    let Some(Reach::None { reason }) = word else {
        panic!("{word:?}");
    };
    assert!(reason.contains("no sign"), "{reason}");
    both.reverse();
    drop(both);
}

#[test]
fn giving_ucx_up_in_the_middle_of_a_message_ends_it_on_both_sides() {
    const LEN: usize = 128 << 20;
    for round in 0..4 {
        let Some(mut both) = pair(false) else { return };
        let (mut came, sent) = (vec![0u8; LEN], vec![7u8; LEN]);
        let to = HostSpan::of_mut(&mut came);
        // SAFETY: it lives until the event came.
        unsafe { both[0].start((1, 0), 2, to, false) }.unwrap();
        // SAFETY: no code writes it meanwhile.
        unsafe { both[1].start((2, 0), 2, HostSpan::of(&sent), true) }.unwrap();
        let late = to.as_ptr().wrapping_add(LEN / 64);
        // SAFETY: the byte is there; UCX may write it meanwhile.
        while unsafe { late.read_volatile() } == 0 {
            std::thread::yield_now();
        }
        let first = round % 2;
        both[first].abandon("a cable".into());
        both[1 - first].abandon("the word of the other side".into());
        let mut told = Told::default();
        for at in [0, 1] {
            let event = next(&mut both, &mut told, at);
            assert!(matches!(event, pipe::Event::Failed { .. }), "{event:?}");
        }
        let before = came.clone();
        drop(both);
        assert!(came == before, "UCX writes after the end");
    }
}

#[test]
fn ucx_is_not_opened_without_descriptors_to_spare() {
    const IS_HERE: &str = "TRANSLOAD_TEST_FEW_DESCRIPTORS";
    let name = "ucx::channel::tests::ucx_is_not_opened_without_descriptors_to_spare";
    if Ucx::load(None).is_err() {
        println!("skipped: UCX is not here");
        return;
    }
    // The limit is the process's.
    if std::env::var_os(IS_HERE).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name]).env(IS_HERE, "1").output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut limit = getrlimit(Resource::Nofile);
    for count in [20, 24, 28, 32, 36, 40, 44, 48, 200] {
        limit.current = Some(count);
        let session = SessionHandle::for_tests();
        setrlimit(Resource::Nofile, limit).unwrap();
        let opened = Channel::open(address, session, crate::Options::default());
        match opened {
            Ok(_) => assert_eq!(count, 200),
            Err(reason) => assert!(reason.contains("to spare") && count < 200, "{reason}"),
        }
    }
}
