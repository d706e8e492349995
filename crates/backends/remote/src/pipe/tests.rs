use transload_hal::HostSpan;

use super::*;
use crate::numbers::Numbers;
use crate::tls::RECORD;
use crate::wire::tests::{fuzz_count, message, mutate};
use crate::wire::{LONGEST_CONTROL, LONGEST_PAYLOAD, data_header};

#[test]
fn bytes_arrive_in_order_whatever_the_spans_of_the_two_sides_are() {
    let mut numbers = Numbers(1);
    for _ in 0..30 {
        let (mut client, mut node) = pair();
        let lens = [1, 300_000, numbers.below(90_000), 4096, 4097, 0];
        let sent = lens.map(|len| numbers.bytes(len));
        // A byte before and after each, which nothing may write.
        let mut got = lens.map(|len| vec![0xAA; len + 2]);
        let mut expected = 0;
        for (op, (from, to)) in (1..).zip(sent.iter().zip(&mut got)) {
            let (from, to) = (HostSpan::of(from), HostSpan::of_mut(to));
            for (start, len) in cuts(from.len(), &mut numbers) {
                let part = from.slice(start, len).unwrap();
                // SAFETY: the vectors outlive the pipes, and nothing else touches them.
                unsafe { client.send_data(op, start, part) };
            }
            for (start, len) in cuts(from.len(), &mut numbers) {
                let part = to.slice(start + 1, len).unwrap();
                // SAFETY: as above.
                unsafe { node.expect(op, start, part) };
                expected += 1;
            }
            client.send(&Message::Free { lease: op }).unwrap();
        }
        let events = shuttle(&mut client, &mut node, |_| ()).unwrap();
        let arrived = |event: &&Event| matches!(event, Event::Arrived { .. });
        assert_eq!(events.iter().filter(arrived).count(), expected);
        assert_eq!(events.len(), expected + lens.len());
        for (op, (from, to)) in (1..).zip(sent.iter().zip(&got)) {
            assert_eq!(to[1..=from.len()], from[..]);
            assert!(to[0] == 0xAA && to[from.len() + 1] == 0xAA);
            assert_eq!(node.progress(op), None);
        }
    }
}

#[test]
fn operations_take_turns_and_messages_go_first() {
    let (mut client, mut node) = pair();
    let bytes = Numbers(2).bytes(8 * outgoing::FRAME);
    let mut got = [(); 2].map(|()| vec![0; bytes.len()]);
    for (op, to) in (1..).zip(&mut got) {
        // SAFETY: the vectors outlive the pipes, and nothing else touches them.
        unsafe { client.send_data(op, 0, HostSpan::of(&bytes)) };
        // SAFETY: as above.
        unsafe { node.expect(op, 0, HostSpan::of_mut(to)) };
    }
    let mut most = 0;
    while client.progress(1).is_some() {
        let output = client.poll_output().unwrap().to_vec();
        client.handle_sent(output.len());
        client.send(&Message::Ping).unwrap();
        let events = take(&output, &mut node).unwrap();
        most = most.max(output.len());
        let ends = [1, 2].map(|op| node.progress(op).unwrap_or(bytes.len() as u64));
        assert!(ends[0].abs_diff(ends[1]) <= outgoing::FRAME as u64);
        let is_ping = |event: &Event| *event == Event::Message(Message::Ping);
        assert!(ends[0] <= 2 * outgoing::FRAME as u64 || events.iter().any(is_ping));
    }
    assert!(most <= OUTPUT);
}

#[test]
fn a_cancelled_operation_leaves_its_memory_and_the_others_alone() {
    let (mut client, mut node) = pair();
    let bytes = Numbers(3).bytes(8 * outgoing::FRAME);
    let mut got = vec![0; bytes.len()];
    let mut rest = vec![0; 100];
    // SAFETY: the vectors outlive the pipes, and nothing else touches them.
    unsafe { client.send_data(1, 0, HostSpan::of(&bytes)) };
    // SAFETY: as above.
    unsafe { node.expect(1, 0, HostSpan::of_mut(&mut got)) };
    // SAFETY: as above.
    unsafe { node.expect(2, 0, HostSpan::of_mut(&mut rest)) };
    client.poll_output().unwrap();
    let left = client.cancel(1).unwrap();
    assert_eq!(left, 2 * outgoing::FRAME as u64);
    assert_eq!(client.cancel(1), None);
    // SAFETY: as above.
    unsafe { client.send_data(2, 0, HostSpan::of(&bytes[..100])) };
    let arrived = shuttle(&mut client, &mut node, |_| ()).unwrap();
    let (op, offset, len) = (2, 0, 100);
    assert_eq!(arrived, [Event::Arrived { op, offset, len }]);
    assert_eq!(node.progress(1), Some(left));
    assert_eq!(got[..left as usize], bytes[..left as usize]);
    // What still comes after that is dropped, until the operation is forgotten.
    node.discard(1);
    let before = got.clone();
    // SAFETY: as above.
    unsafe { client.send_data(1, left, HostSpan::of(&bytes[left as usize..])) };
    assert_eq!(shuttle(&mut client, &mut node, |_| ()).unwrap(), []);
    assert_eq!(got, before);
    // SAFETY: as above.
    unsafe { node.expect(3, 0, HostSpan::of_mut(&mut got)) };
    node.forget(3);
    // SAFETY: as above.
    unsafe { client.send_data(3, 0, HostSpan::of(&bytes[..1])) };
    assert!(shuttle(&mut client, &mut node, |_| ()).is_err());
}

#[test]
fn data_that_is_not_expected_ends_the_session_and_writes_nothing() {
    // Bytes 100 to 199 of operation 7 are expected, and 50 of them have come.
    let cases = [
        (8, 150, 1, 150),
        (7, 149, 1, 149),
        (7, 100, 50, 100),
        (7, 0, 200, 0),
        (7, 150, 51, 200),
        (7, 200, 1, 200),
        (7, u64::MAX, 1, u64::MAX),
        (7, u64::MAX - 5, 6, u64::MAX - 5),
    ];
    for (op, offset, len, wrong) in cases {
        let (mut client, mut node) = pair();
        let mut to = vec![0; 300];
        let span = HostSpan::of_mut(&mut to).slice(100, 100).unwrap();
        // SAFETY: the vector outlives the pipe, and nothing else touches it.
        unsafe { node.expect(7, 100, span) };
        seal(&mut client, &data(7, 100, &[1; 50]));
        assert_eq!(shuttle(&mut client, &mut node, |_| ()).unwrap(), []);
        seal(&mut client, &data(op, offset, &vec![2; len]));
        let error = shuttle(&mut client, &mut node, |_| ()).unwrap_err();
        assert!(
            matches!(error, PipeError::Protocol(ProtocolError::Data { op: o, offset, .. }) if (o, offset) == (op, wrong)),
            "{error}"
        );
        let all = to.iter().enumerate();
        for (at, byte) in all {
            let may = (100..150).contains(&at) || (150..200).contains(&at) && wrong == 200;
            assert!(*byte == 0 || may, "byte {at}");
        }
    }
}

#[test]
fn a_frame_with_a_wrong_header_ends_the_session_before_its_body_comes() {
    let header = |len: usize, kind| [&(len as u32).to_le_bytes()[..], &[kind, 0, 0, 0]].concat();
    let cases = [
        header(LONGEST_CONTROL + 1, 1),
        header(LONGEST_PAYLOAD + 17, 2),
        header(u32::MAX as usize, 3),
        header(16, 2),
        header(0, 1),
        header(1, 9),
        // An inventory, which only a node sends.
        header(1, 3),
    ];
    for case in cases {
        let (mut client, mut node) = pair();
        seal(&mut client, &case);
        let error = shuttle(&mut client, &mut node, |_| ()).unwrap_err();
        assert!(matches!(error, PipeError::Protocol(_)), "{error}");
    }
}

#[test]
fn an_altered_record_ends_the_session() {
    let mut numbers = Numbers(4);
    for _ in 0..200 {
        let (mut client, mut node) = pair();
        let mut to = vec![0; 100];
        // SAFETY: the vector outlives the pipe, and nothing else touches it.
        unsafe { node.expect(7, 0, HostSpan::of_mut(&mut to)) };
        seal(&mut client, &data(7, 0, &[1; 100]));
        let result = shuttle(&mut client, &mut node, |bytes| {
            // All but the first three bytes of a record, its outer type and version: rustls authenticates what they must
            // be instead of what they are.
            let at = 3 + numbers.below(bytes.len() - 3);
            bytes[at] ^= 1 << numbers.below(8);
        });
        // A longer length makes the record wait for bytes that do not come.
        match result {
            Ok(events) => assert_eq!(events, []),
            Err(error) => assert!(matches!(error, PipeError::Channel(_)), "{error}"),
        }
        assert_eq!(to, [0; 100]);
    }
}

#[test]
fn a_record_is_not_accepted_twice_nor_out_of_order() {
    for order in [&[0, 0][..], &[0, 1, 0], &[1], &[0, 2]] {
        let (mut client, mut node) = pair();
        let records = [0, 1, 2].map(|lease| {
            client.send(&Message::Free { lease }).unwrap();
            let record = client.poll_output().unwrap().to_vec();
            client.handle_sent(record.len());
            record
        });
        let (last, good) = order.split_last().unwrap();
        for index in good {
            feed(&records[*index], &mut node).unwrap();
            assert_eq!(events(&mut node).unwrap().len(), 1);
        }
        feed(&records[*last], &mut node).unwrap();
        let error = events(&mut node).unwrap_err();
        assert!(matches!(error, PipeError::Channel(_)), "{error}");
    }
}

#[test]
fn a_flood_of_requests_without_reading_answers_stops_being_read() {
    let (mut client, mut node) = pair();
    let mut answers: usize = 0;
    let mut read = 0;
    loop {
        for id in 0..100 {
            client.send(&Message::Enter { id, uses: vec![] }).unwrap();
        }
        let output = client.poll_output().unwrap().to_vec();
        client.handle_sent(output.len());
        let fed = feed(&output, &mut node).unwrap();
        read += fed;
        while let Some(event) = node.poll_event().unwrap() {
            assert!(matches!(event, Event::Message(Message::Enter { .. })));
            answers += 1;
            let fault = transload_hal::Fault::new(transload_hal::ErrorClass::Exhausted, "full");
            let fault = fault.into();
            node.send(&Message::Refused { id: 1, fault }).unwrap();
        }
        // The node's output is never read.
        node.poll_output().unwrap();
        if fed < output.len() {
            break;
        }
    }
    assert!(node.space().is_empty());
    let a_record = RECORD * 4;
    assert!(
        node.outgoing.queued() <= MOST_QUEUED + a_record,
        "{answers}"
    );
    assert!(read < 2 << 20, "{read}");
    // It goes on when the client reads.
    while node.has_messages() {
        let len = node.poll_output().unwrap().len();
        node.handle_sent(len);
    }
    assert!(node.poll_event().unwrap().is_some());
}

#[test]
fn no_input_makes_the_reader_panic_or_write_elsewhere() {
    let mut numbers = Numbers(5);
    for _ in 0..fuzz_count() {
        let mut plain = Vec::new();
        let mut bytes = [0xAA; 64];
        let span = HostSpan::of_mut(&mut bytes).slice(16, 32).unwrap();
        let mut incoming = Incoming::new(numbers.below(2) == 0);
        incoming.expect(3, 5, span.len() as u64, Some(span));
        for _ in 0..numbers.below(4) {
            match numbers.below(3) {
                0 => message(&mut numbers).encode(&mut plain).unwrap(),
                _ => {
                    let offset = [5, 5, 21, 37, 0][numbers.below(5)];
                    let len = 1 + numbers.below(40);
                    plain.extend(data(3, offset, &vec![1; len]));
                }
            }
        }
        if numbers.below(4) > 0 {
            mutate(&mut plain, &mut numbers);
        }
        let mut events = VecDeque::new();
        let mut rest = &plain[..];
        while !rest.is_empty() {
            let (part, later) = rest.split_at(1 + numbers.below(rest.len()));
            rest = later;
            if incoming.accept(part, &mut events).is_err() {
                break;
            }
        }
        drop(incoming);
        assert!(
            bytes[..16]
                .iter()
                .chain(&bytes[48..])
                .all(|byte| *byte == 0xAA)
        );
    }
}

#[test]
fn what_has_arrived_of_an_operation_that_was_given_up_is_not_told() {
    let span: fn(&mut Pipe, u64) = |node, op| node.discard_span(op, 0);
    for give_up in [Pipe::discard, Pipe::forget, span] {
        let (mut client, mut node) = pair();
        let mut got = [0; 8];
        // SAFETY: the bytes outlive the pipe, and nothing else touches them.
        unsafe { node.expect(5, 0, HostSpan::of_mut(&mut got)) };
        // In one record, so that the bytes are there when the message is polled.
        let (free, mut plain) = (Message::Free { lease: 1 }, Vec::new());
        free.encode(&mut plain).unwrap();
        plain.extend(data(5, 0, &[7; 8]));
        seal(&mut client, &plain);
        let output = client.poll_output().unwrap().to_vec();
        assert_eq!(feed(&output, &mut node).unwrap(), output.len());
        assert_eq!(node.poll_event().unwrap(), Some(Event::Message(free)));
        give_up(&mut node, 5);
        assert_eq!(node.poll_event().unwrap(), None);
    }
}

/// Returns two pipes between which TLS is established.
pub(crate) fn pair() -> (Pipe, Pipe) {
    let [client, node] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let mut ends = (
        Pipe::client(&client, node.public()).unwrap(),
        Pipe::server(&node, &[client.public()]).unwrap(),
    );
    for _ in 0..3 {
        events(&mut ends.0).unwrap();
        shuttle(&mut ends.0, &mut ends.1, |_| ()).unwrap();
        shuttle(&mut ends.1, &mut ends.0, |_| ()).unwrap();
    }
    assert_eq!(ends.0.peer(), Some(node.public()));
    assert_eq!(ends.1.peer(), Some(client.public()));
    ends
}

/// Moves all output of one side to the other, and returns what happened there.
pub(crate) fn shuttle(
    from: &mut Pipe,
    to: &mut Pipe,
    mut alter: impl FnMut(&mut [u8]),
) -> Result<Vec<Event>, PipeError> {
    let mut all = Vec::new();
    loop {
        let mut output = from.poll_output()?.to_vec();
        from.handle_sent(output.len());
        if output.is_empty() {
            return Ok(all);
        }
        alter(&mut output);
        all.extend(take(&output, to)?);
    }
}

/// Gives a side bytes, and returns what happened there.
fn take(mut bytes: &[u8], to: &mut Pipe) -> Result<Vec<Event>, PipeError> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let fed = feed(bytes, to)?;
        bytes = &bytes[fed..];
        all.extend(events(to)?);
    }
    Ok(all)
}

/// Gives a side as many bytes as it takes now, and returns how many.
fn feed(bytes: &[u8], to: &mut Pipe) -> Result<usize, PipeError> {
    let space = to.space();
    let len = bytes.len().min(space.len());
    space[..len].copy_from_slice(&bytes[..len]);
    to.handle_received(len);
    Ok(len)
}

fn events(of: &mut Pipe) -> Result<Vec<Event>, PipeError> {
    let mut all = Vec::new();
    while let Some(event) = of.poll_event()? {
        all.push(event);
    }
    Ok(all)
}

/// Has a side send bytes that it would not send itself.
fn seal(from: &mut Pipe, plain: &[u8]) {
    from.channel.seal(plain, &mut from.output).unwrap();
}

fn data(op: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    let header = data_header(op, offset, payload.len()).unwrap();
    [&header[..], payload].concat()
}

/// Cuts a length into up to four parts, each with its start.
fn cuts(len: usize, numbers: &mut Numbers) -> Vec<(u64, u64)> {
    let mut ends = [0, 0, 0, len];
    for end in &mut ends[..3] {
        *end = numbers.below(len + 1);
    }
    ends.sort();
    let mut start = 0;
    ends.map(|end| {
        let part = (start as u64, (end - start) as u64);
        start = end;
        part
    })
    .into()
}
