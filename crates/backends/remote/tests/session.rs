//! Sessions between two threads of this process, over the loopback device.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use common::numbers::Numbers;
use common::{PATIENCE, Side, pair, pair_with};
use transload_hal::HostSpan;
use transload_remote::wire::{Message, ProtocolError, VERSION};
use transload_remote::{
    Event, Options, Pipe, PrivateKey, PublicKey, Rejection, SessionError, Step,
};

#[test]
fn both_sides_move_64_mib_at_once_and_talk_meanwhile() {
    const LEN: usize = 64 << 20;
    let (client, node) = pair(&Options::default());
    let mut numbers = Numbers(1);
    let sent = [(); 2].map(|()| numbers.bytes(LEN));
    let mut got = [(); 2].map(|()| vec![0; LEN]);
    let sides = [&client, &node];
    for (side, (op, to)) in sides.iter().zip([11, 10].into_iter().zip(&mut got)) {
        let to = HostSpan::of_mut(to);
        // SAFETY: the vectors outlive the events that are awaited below, and nothing else touches them.
        side.run(move |pipe| unsafe { pipe.expect(op, 0, to) })
            .recv()
            .unwrap();
    }
    for (side, (op, from)) in sides.iter().zip([10, 11].into_iter().zip(&sent)) {
        let from = HostSpan::of(from);
        // SAFETY: as above.
        side.run(move |pipe| unsafe { pipe.send_data(op, 0, from) });
    }
    for id in 0..100 {
        client.send(Message::Free { lease: id });
    }
    let mut leases = 0..100;
    for (side, other) in [(&client, 11), (&node, 10)] {
        let mut left = 2;
        while left > 0 {
            match side.event() {
                Event::Arrived { op, offset: 0, len } if op == other => {
                    assert_eq!(len, LEN as u64);
                    left -= 1;
                }
                Event::Sent { op, offset: 0, len } if op == 21 - other => {
                    assert_eq!(len, LEN as u64);
                    left -= 1;
                }
                Event::Message(Message::Free { lease }) => {
                    assert_eq!(leases.next(), Some(lease));
                }
                event => panic!("{event:?}"),
            }
        }
    }
    assert_eq!(leases.next(), None, "messages pass bulk data");
    client.handle.close();
    assert!(matches!(client.closed(), SessionError::Closed { .. }));
    let reason = node.closed();
    assert!(
        matches!(&reason, SessionError::PeerClosed { reason, .. } if reason == "it was closed")
    );
    assert!(got[0] == sent[1] && got[1] == sent[0]);
}

#[test]
fn each_side_learns_that_the_clients_key_is_not_allowed() {
    let [client, node, other] = [(); 3].map(|()| PrivateKey::generate().unwrap());
    let options = Options::default();
    let allowed = [other.public()];
    let (here, there) = pair_with(&client, node.public(), &node, &allowed, &options);
    let expected = Rejection::RefusedByNode {
        key: client.public(),
    };
    let reason = here.closed();
    assert!(
        matches!(&reason, SessionError::WrongKey { rejection, .. } if *rejection == expected),
        "{reason}"
    );
    let expected = Rejection::UnknownClient {
        shown: client.public(),
        allowed: 1,
    };
    let reason = there.closed();
    assert!(
        matches!(&reason, SessionError::WrongKey { rejection, .. } if *rejection == expected),
        "{reason}"
    );
}

#[test]
fn each_side_learns_that_the_nodes_key_is_another() {
    let [client, node, other] = [(); 3].map(|()| PrivateKey::generate().unwrap());
    let options = Options::default();
    let allowed = [client.public()];
    let (here, there) = pair_with(&client, other.public(), &node, &allowed, &options);
    let expected = Rejection::UnexpectedNode {
        expected: other.public(),
        shown: node.public(),
    };
    let reason = here.closed();
    assert!(
        matches!(&reason, SessionError::WrongKey { rejection, .. } if *rejection == expected),
        "{reason}"
    );
    let expected = Rejection::RefusedByClient { key: node.public() };
    let reason = there.closed();
    assert!(
        matches!(&reason, SessionError::WrongKey { rejection, .. } if *rejection == expected),
        "{reason}"
    );
}

#[test]
fn a_handshake_that_stops_anywhere_ends_in_time() {
    let [client, node] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let options = impatient();
    let allowed = [client.public()];
    // Each side's part has about 600 bytes. The last cuts pass all of TLS, and lack `Hello`.
    for cut in (0..12).chain((12..1000).step_by(61)) {
        let (stream, accepted) = connection();
        let side = Side::accept(accepted, &node, &allowed, options.clone());
        let pipe = Pipe::client(&client, node.public()).unwrap();
        stall(pipe, stream, cut);
        let reason = side.closed();
        assert!(is_timeout(&reason), "{cut}: {reason}");

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let side = Side::connect(&address, &client, node.public(), options.clone());
        let (stream, _) = listener.accept().unwrap();
        stall(Pipe::server(&node, &allowed).unwrap(), stream, cut);
        let reason = side.closed();
        assert!(is_timeout(&reason), "{cut}: {reason}");
    }
}

#[test]
fn what_is_not_tls_ends_the_session() {
    let mut numbers = Numbers(3);
    let [client, node] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let mut cases: Vec<Vec<u8>> = (1..30).map(|len| numbers.bytes(len * 10)).collect();
    cases.push(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec());
    for garbage in cases {
        let (mut stream, accepted) = connection();
        let side = Side::accept(accepted, &node, &[client.public()], impatient());
        stream.write_all(&garbage).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let reason = side.closed();
        let is_told = matches!(
            &reason,
            SessionError::Tls {
                step: Step::Handshake,
                ..
            }
        );
        let is_short = matches!(
            &reason,
            SessionError::Cut {
                step: Step::Handshake,
                ..
            }
        );
        assert!(is_told || is_short, "{reason}");
    }
}

#[test]
fn each_end_of_a_session_has_its_reason() {
    // A connection that ends without a word, and one that is reset.
    for is_reset in [false, true] {
        let (stream, side) = open_by_hand();
        if is_reset {
            let socket = socket2::SockRef::from(&stream.1);
            socket.set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(stream);
        let reason = side.closed();
        let is_cut = matches!(
            &reason,
            SessionError::Cut {
                step: Step::Open,
                ..
            }
        );
        let is_io = matches!(
            &reason,
            SessionError::Io {
                step: Step::Open,
                ..
            }
        );
        assert!(if is_reset { is_io } else { is_cut }, "{reason}");
    }
    // A peer that says nothing more.
    let (stream, side) = open_by_hand();
    let reason = side.closed();
    assert!(
        matches!(&reason, SessionError::Silent { ms, .. } if *ms >= 100),
        "{reason}"
    );
    drop(stream);
    // A peer that breaks the protocol learns why.
    let (client, node) = pair(&Options::default());
    client.send(Message::Hello {
        version: 1,
        trusted_network: false,
    });
    let reason = node.closed();
    assert!(
        matches!(
            &reason,
            SessionError::Protocol {
                source: ProtocolError::Hello,
                ..
            }
        ),
        "{reason}"
    );
    let told = client.closed();
    assert!(
        matches!(&told, SessionError::PeerClosed { reason, .. } if *reason == ProtocolError::Hello.to_string()),
        "{told}"
    );
}

#[test]
fn a_peer_of_another_version_is_told_so() {
    let [client, node] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let (stream, accepted) = connection();
    let side = Side::accept(accepted, &node, &[client.public()], Options::default());
    let mut pipe = Pipe::client(&client, node.public()).unwrap();
    pipe.send(&Message::Hello {
        version: 77,
        trusted_network: true,
    })
    .unwrap();
    drive(&mut pipe, &stream, |_| false);
    let reason = side.closed();
    let (ours, theirs) = (VERSION, 77);
    let expected = ProtocolError::Version { ours, theirs };
    assert!(
        matches!(&reason, SessionError::Protocol { source, step: Step::Hello, .. } if *source == expected),
        "{reason}"
    );
}

#[test]
fn an_idle_session_stays_open() {
    let mut options = Options::default();
    options.ping_after = Duration::from_millis(10);
    options.silent_after = Duration::from_secs(300);
    let (stream, side) = {
        let [client, node] = [(); 2].map(|()| PrivateKey::generate().unwrap());
        let (stream, accepted) = connection();
        let side = Side::accept(accepted, &node, &[client.public()], options);
        (greet(stream, &client, node.public()), side)
    };
    side.opened();
    let (mut pipe, stream) = stream;
    let mut pings = 0;
    drive(&mut pipe, &stream, |event| {
        assert_eq!(event, Event::Message(Message::Ping));
        pings += 1;
        pings == 5
    });
    // Any number of pings is answered.
    let mut pongs = 0;
    for _ in 0..100 {
        pipe.send(&Message::Ping).unwrap();
    }
    drive(&mut pipe, &stream, |event| {
        pongs += u32::from(event == Event::Message(Message::Pong));
        pongs > 0
    });
    side.handle.close();
    assert!(matches!(side.closed(), SessionError::Closed { .. }));
}

#[test]
fn an_address_without_a_node_is_told_with_the_step() {
    let key = PrivateKey::generate().unwrap();
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    for (address, expected) in [(&*address, Step::Connect), ("no.invalid:1", Step::Resolve)] {
        let reason = Side::connect(address, &key, key.public(), Options::default()).closed();
        assert!(
            matches!(&reason, SessionError::Io { step, .. } if *step == expected),
            "{reason}"
        );
        assert!(reason.to_string().contains(address));
    }
}

#[test]
fn no_wake_is_lost() {
    let (client, node) = pair(&Options::default());
    thread::scope(|scope| {
        for _ in 0..4 {
            let runner = client.runner();
            scope.spawn(move || {
                // Half of the wakes meet a thread that sleeps, and half one that was just woken.
                for _ in 0..500 {
                    let first = runner.run(|_| ());
                    runner.run(|_| ()).recv_timeout(PATIENCE).unwrap();
                    first.recv_timeout(PATIENCE).unwrap();
                }
            });
        }
    });
    client.handle.close();
    client.closed();
    node.closed();
}

#[test]
fn a_handler_may_close_its_session_and_wait_for_it() {
    let (client, node) = pair(&Options::default());
    let handle = client.handle.clone();
    client.run(move |_| {
        handle.close();
        handle.join();
    });
    assert!(matches!(client.closed(), SessionError::Closed { .. }));
    assert!(matches!(node.closed(), SessionError::PeerClosed { .. }));
}

fn impatient() -> Options {
    let mut options = Options::default();
    options.handshake = Duration::from_millis(20);
    options.close = Duration::from_millis(200);
    options
}

fn is_timeout(reason: &SessionError) -> bool {
    matches!(reason, SessionError::Timeout { limit_ms: 20, .. })
}

/// Returns the two ends of a connection.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (stream, listener.accept().unwrap().0)
}

/// Plays a side of TLS that sends `cut` bytes and then only reads, until the other side ends the connection.
fn stall(mut pipe: Pipe, mut stream: TcpStream, mut cut: usize) {
    loop {
        while let Ok(Some(_)) = pipe.poll_event() {}
        let output = pipe.poll_output().map_or(0, <[u8]>::len).min(cut);
        if output > 0 {
            let bytes = &pipe.poll_output().unwrap()[..output];
            if stream.write_all(bytes).is_err() {
                return;
            }
            pipe.handle_sent(output);
            cut -= output;
        }
        match stream.read(pipe.space()) {
            Ok(0) | Err(_) => return,
            Ok(len) => pipe.handle_received(len),
        }
    }
}

/// Plays a side that keeps to the protocol until it has seen an event, or the connection ends.
fn drive(pipe: &mut Pipe, mut stream: &TcpStream, mut is_last: impl FnMut(Event) -> bool) {
    loop {
        while let Ok(Some(event)) = pipe.poll_event() {
            if is_last(event) {
                return;
            }
        }
        let output = pipe.poll_output().unwrap();
        let len = output.len();
        if stream.write_all(output).is_err() {
            return;
        }
        pipe.handle_sent(len);
        match stream.read(pipe.space()) {
            Ok(0) | Err(_) => return,
            Ok(len) => pipe.handle_received(len),
        }
    }
}

/// Plays a client until it has the node's `Hello`.
fn greet(stream: TcpStream, key: &PrivateKey, node: PublicKey) -> (Pipe, TcpStream) {
    let mut pipe = Pipe::client(key, node).unwrap();
    pipe.send(&Message::Hello {
        version: VERSION,
        trusted_network: true,
    })
    .unwrap();
    drive(&mut pipe, &stream, |event| {
        matches!(event, Event::Message(Message::Hello { .. }))
    });
    (pipe, stream)
}

/// Returns a node with an open session, and its client, which does nothing more.
fn open_by_hand() -> ((Pipe, TcpStream), Side) {
    let [client, node] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let (stream, accepted) = connection();
    let mut options = Options::default();
    options.ping_after = Duration::from_millis(20);
    options.silent_after = Duration::from_millis(100);
    let side = Side::accept(accepted, &node, &[client.public()], options);
    let stream = greet(stream, &client, node.public());
    let peer = side.opened();
    assert!(peer.key == client.public() && peer.trusted_network);
    (stream, side)
}
