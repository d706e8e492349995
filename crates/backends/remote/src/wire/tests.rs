use super::*;
use crate::numbers::Numbers;

#[test]
fn messages_round_trip() {
    let mut numbers = Numbers(1);
    for _ in 0..10_000 {
        let message = message(&mut numbers);
        let mut frame = Vec::new();
        message.encode(&mut frame).unwrap();
        let (header, body) = frame.split_at(HEADER_LEN);
        let header = Header::from_bytes(header.try_into().unwrap()).unwrap();
        assert_eq!(header.len, body.len());
        assert_eq!(Message::decode(header.kind, body), Ok(message));
    }
}

#[test]
fn bytes_of_no_message_are_refused_and_take_little_memory() {
    let mut numbers = Numbers(2);
    for _ in 0..fuzz_count() {
        let mut frame = Vec::new();
        let message = message(&mut numbers);
        let kind = message.kind();
        message.encode(&mut frame).unwrap();
        let mut body = frame.split_off(HEADER_LEN);
        mutate(&mut body, &mut numbers);
        let mut decoded = None;
        let memory = allocation_counter::measure(|| {
            decoded = Some(Message::decode(kind, &body));
        });
        // A use has 4 bytes at least and 32 in memory, and a list of them grows by doubling. Errors have a text.
        let limit = 64 * body.len() as u64 + 512;
        assert!(memory.bytes_max <= limit, "{memory:?} for {body:?}");
        if let Some(Ok(message)) = decoded {
            let mut again = Vec::new();
            message.encode(&mut again).unwrap();
            assert_eq!(Message::decode(kind, &again[HEADER_LEN..]), Ok(message));
        }
    }
}

#[test]
fn a_list_that_claims_to_be_long_takes_no_memory() {
    // An `Enter` with 2^32 uses, of which none follows.
    let (id, mut frame) = (1, Vec::new());
    let uses = Vec::new();
    Message::Enter { id, uses }.encode(&mut frame).unwrap();
    let body = [frame[HEADER_LEN], 1, 0x80, 0x80, 0x80, 0x80, 0x10];
    let mut decoded = None;
    let memory = allocation_counter::measure(|| {
        decoded = Some(Message::decode(Kind::Control, &body));
    });
    assert!(
        matches!(decoded, Some(Err(ProtocolError::Message { len: 7, .. }))),
        "{decoded:?}"
    );
    assert!(memory.bytes_max < 256, "{memory:?}");
}

#[test]
fn headers_tell_what_exceeds_which_limit() {
    let header = |len: u32, rest: [u8; 4]| {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4..].copy_from_slice(&rest);
        Header::from_bytes(bytes)
    };
    let limits = [
        (1, 1, LONGEST_CONTROL),
        (2, 17, LONGEST_PAYLOAD + 16),
        (3, 1, LONGEST_INVENTORY),
    ];
    for (kind, least, limit) in limits {
        for len in [least, limit] {
            let found = header(len as u32, [kind, 0, 0, 0]).unwrap();
            assert_eq!(header(len as u32, [kind, 0, 0, 0]), Ok(found));
            assert_eq!((found.kind as u8, found.len), (kind, len));
            assert_eq!(Header::from_bytes(found.to_bytes()), Ok(found));
        }
        let len = least - 1;
        assert_eq!(
            header(len as u32, [kind, 0, 0, 0]),
            Err(ProtocolError::TooShort { kind, len, least })
        );
        for len in [limit + 1, u32::MAX as usize] {
            assert_eq!(
                header(len as u32, [kind, 0, 0, 0]),
                Err(ProtocolError::TooLong { kind, len, limit })
            );
        }
    }
    for kind in [0, 4, 255] {
        assert_eq!(
            header(1, [kind, 0, 0, 0]),
            Err(ProtocolError::Kind { kind })
        );
    }
    let bytes = [0, 1, 0];
    assert_eq!(
        header(1, [1, 0, 1, 0]),
        Err(ProtocolError::Reserved { bytes })
    );
}

#[test]
fn a_frame_has_one_message_of_its_kind() {
    let mut frame = Vec::new();
    Message::Ping.encode(&mut frame).unwrap();
    let body = &frame[HEADER_LEN..];
    let two = [body, body].concat();
    let (len, left) = (two.len(), body.len());
    assert_eq!(
        Message::decode(Kind::Control, &two),
        Err(ProtocolError::Trailing { len, left })
    );
    assert_eq!(
        Message::decode(Kind::Inventory, body),
        Err(ProtocolError::WrongKind { kind: 3 })
    );
    let name = "x".repeat(LONGEST_INVENTORY);
    let device = Device {
        name,
        ..device(&mut Numbers(1))
    };
    let devices = vec![device];
    let refused = Message::Inventory(Inventory {
        devices,
        ..Inventory::default()
    })
    .encode(&mut frame);
    assert!(matches!(
        refused,
        Err(ProtocolError::TooLong {
            kind: 3,
            limit: LONGEST_INVENTORY,
            ..
        })
    ));
    assert_eq!(frame.len(), HEADER_LEN + left, "nothing was appended");
}

/// Returns how many inputs a fuzz test tries.
pub(crate) fn fuzz_count() -> u64 {
    let count = std::env::var("TRANSLOAD_FUZZ").ok();
    count.map_or(20_000, |count| count.parse().unwrap())
}

/// Changes bytes here and there, and sometimes the length.
pub(crate) fn mutate(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(bytes.len() + 1);
        match numbers.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, numbers.next() as u8),
            2 => {
                let len = numbers.below(12);
                let more = numbers.bytes(len);
                bytes.splice(at..at, more);
            }
            3 if at < bytes.len() => bytes[at] ^= 1 << numbers.below(8),
            _ if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][numbers.below(5)],
            _ => {}
        }
    }
}

/// Returns a message with numbers and texts of all lengths.
pub(crate) fn message(numbers: &mut Numbers) -> Message {
    let [id, lease, offset, len] = [(); 4].map(|()| number(numbers));
    let reservation = id ^ 1;
    match numbers.below(30) {
        0 => Message::Hello {
            version: id as u16,
            trusted_network: id % 2 == 0,
        },
        1 => Message::Inventory(Inventory {
            devices: (0..numbers.below(4)).map(|_| device(numbers)).collect(),
            memories: (0..numbers.below(4)).map(|_| memory(numbers)).collect(),
            forwards: id % 2 == 0,
            descriptors: (lease % 2 == 0).then(|| token(numbers)),
        }),
        2 => Message::Allocate {
            id,
            memory: text(numbers),
            len,
            align: 1 << numbers.below(64),
            mapped: id % 2 == 0,
        },
        3 => Message::Allocated {
            id,
            number: len,
            descriptor: (id % 2 == 0).then(|| token(numbers)),
        },
        4 => Message::Refused {
            id,
            fault: fault(numbers),
        },
        5 => Message::Open {
            id,
            token: token(numbers),
        },
        6 => Message::Free { lease },
        7 => Message::Available {
            id,
            memory: text(numbers),
        },
        8 => Message::AvailableBytes {
            id,
            bytes: (id % 2 == 0).then_some(len),
        },
        9 => Message::Enter {
            id,
            uses: (0..numbers.below(9)).map(|_| usage(numbers)).collect(),
        },
        10 => Message::Entered { id },
        11 => Message::Leave { reservation },
        12 => Message::Write {
            id,
            reservation,
            lease,
            offset,
            apart: (id % 3 == 0).then(|| Elements {
                element_bytes: offset,
                axes: (0..numbers.below(9))
                    .map(|_| (numbers.below(99) as u64, -(id as i64)))
                    .collect(),
            }),
            len,
            network: [Network::Tls, Network::Ucx][id as usize % 2],
            eager: id % 2 == 0,
        },
        13 => Message::Go { id, offset, len },
        14 => Message::Read {
            id,
            reservation,
            lease,
            offset,
            apart: (id % 3 == 0).then(|| Elements {
                element_bytes: offset,
                axes: (0..numbers.below(9))
                    .map(|_| (numbers.below(99) as u64, -(id as i64)))
                    .collect(),
            }),
            len,
            network: [Network::Tls, Network::Ucx][id as usize % 2],
        },
        15 => Message::Copy {
            id,
            reservation,
            src: Place { lease, offset },
            dst: match id % 2 == 0 {
                true => Destination::Lease(Place { lease: len, offset }),
                false => Destination::Node {
                    address: text(numbers),
                    key: numbers.bytes(32).try_into().unwrap(),
                    token: token(numbers),
                },
            },
            len,
        },
        16 => Message::Ended {
            id,
            outcome: match numbers.below(4) {
                0 => Outcome::Done,
                1 => Outcome::Stopped { leading_bytes: len },
                2 => Outcome::Failed(fault(numbers)),
                _ => Outcome::Lost(fault(numbers)),
            },
        },
        17 => Message::Stop { id },
        18 => Message::Ping,
        19 => Message::Pong,
        20 => Message::Share { id, lease },
        23 => Message::Grant {
            id,
            reservation,
            lease,
            offset,
            len,
        },
        24 => Message::Granted {
            id,
            token: token(numbers),
        },
        25 => Message::WriteGranted {
            id,
            token: token(numbers),
            offset,
            len,
            network: [Network::Tls, Network::Ucx][id as usize % 2],
        },
        26 => Message::Move {
            id,
            offset,
            len,
            tag: id as u32,
        },
        27 => Message::Ucx(Reach::Worker {
            address: numbers.bytes(40),
            checksums: id % 2 == 0,
        }),
        28 => Message::Ucx(Reach::None {
            reason: text(numbers),
        }),
        21 => Message::Shared {
            id,
            token: token(numbers),
        },
        22 => Message::Opened {
            id,
            number: lease,
            memory: text(numbers),
            len,
            descriptor: (id % 2 == 0).then(|| token(numbers)),
        },
        _ => Message::Bye {
            reason: text(numbers),
        },
    }
}

fn number(numbers: &mut Numbers) -> u64 {
    let shift = numbers.below(64);
    numbers.next() >> shift
}

fn text(numbers: &mut Numbers) -> String {
    let letters = ['a', '/', '"', 'ä', '漢', '\0'];
    let len = numbers.below(40);
    (0..len).map(|_| letters[numbers.below(6)]).collect()
}

fn token(numbers: &mut Numbers) -> [u8; 16] {
    numbers.bytes(16).try_into().unwrap()
}

fn device(numbers: &mut Numbers) -> Device {
    Device {
        id: text(numbers),
        name: text(numbers),
        software: numbers.below(2) == 0,
        simulated: numbers.below(2) == 0,
        memory_bytes: Some(number(numbers)).filter(|bytes| bytes % 2 == 0),
        driver: Some(text(numbers)).filter(|name| name.len() % 2 == 0),
    }
}

fn memory(numbers: &mut Numbers) -> Memory {
    let mut way = || {
        let piece = |_| Piece {
            from_bytes: number(numbers),
            fixed_ns: number(numbers),
            bytes_per_second: number(numbers),
        };
        Way {
            cost: (0..3).map(piece).collect(),
            passes: text(numbers),
        }
    };
    let (into, out_of) = (way(), way());
    Memory {
        id: text(numbers),
        total_bytes: Some(number(numbers)).filter(|bytes| bytes % 2 == 0),
        max_alloc_bytes: number(numbers),
        alignment: number(numbers),
        into,
        out_of,
    }
}

fn usage(numbers: &mut Numbers) -> Use {
    let [lease, offset, len] = [(); 3].map(|()| number(numbers));
    Use {
        lease,
        offset,
        len,
        writes: len % 2 == 0,
    }
}

fn fault(numbers: &mut Numbers) -> Fault {
    let classes = [
        Class::Caller,
        Class::Unsupported,
        Class::Exhausted,
        Class::Lost,
        Class::Failed,
    ];
    Fault {
        class: classes[numbers.below(5)],
        code: Some(number(numbers) as i64).filter(|code| code % 2 == 0),
        message: text(numbers),
    }
}
