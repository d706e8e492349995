//! Peers that do not keep to the protocol, or that go away in the middle.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use transload::hal::HostSpan;
use transload_remote::wire::{self, Message, Network, ProtocolError};
use transload_remote::{Event, Handler, Peer, Pipe, Session, SessionError, SessionHandle};

use super::{Served, serve, session_options, there};

/// A program that speaks the protocol as it likes.
pub(super) struct Raw {
    pub(super) handle: SessionHandle,
    events: mpsc::Receiver<Message>,
    orders: Arc<Mutex<Vec<Message>>>,
    /// Whether it sends the bytes that it is asked for.
    sends: Arc<AtomicBool>,
}

struct RawHandler {
    events: mpsc::Sender<Message>,
    orders: Arc<Mutex<Vec<Message>>>,
    /// Whether it sends the bytes that it is asked for.
    sends: Arc<AtomicBool>,
}

impl Handler for RawHandler {
    fn opened(&mut self, _: Peer, _: &mut Pipe) -> Result<(), ProtocolError> {
        Ok(())
    }

    fn handle(&mut self, event: Event, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        if let Event::Message(message) = event {
            if let Message::Go { id, offset, len } = &message {
                self.send((*id, *offset), *len, pipe);
            }
            let _ = self.events.send(message);
        }
        Ok(())
    }

    fn woken(&mut self, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        let orders = std::mem::take(&mut *self.orders.lock().unwrap());
        for message in &orders {
            pipe.send(message)?;
            if let Message::Write {
                id,
                len,
                eager: true,
                ..
            } = message
            {
                self.send((*id, 0), *len, pipe);
            }
        }
        Ok(())
    }

    fn closed(&mut self, _: SessionError) {}
}

impl RawHandler {
    fn send(&self, (id, offset): (u64, u64), len: u64, pipe: &mut Pipe) {
        static BYTES: [u8; 65_536] = [9; 65_536];
        if self.sends.load(Ordering::Relaxed) {
            let span = HostSpan::of(&BYTES[..len as usize]);
            // SAFETY: the bytes live as long as the program, and no code writes them.
            unsafe { pipe.send_data(id, offset, span) };
        }
    }
}

impl Raw {
    pub(super) fn connect(served: &Served) -> Raw {
        let (events, seen) = mpsc::channel();
        let orders = Arc::<Mutex<Vec<Message>>>::default();
        let sends = Arc::<AtomicBool>::default();
        let handler = RawHandler {
            events,
            orders: Arc::clone(&orders),
            sends: Arc::clone(&sends),
        };
        let address = served.server.address().to_string();
        let options = session_options();
        let handle = Session::connect(address, &served.client, served.key, handler, options);
        let raw = Raw {
            handle: handle.unwrap(),
            events: seen,
            orders,
            sends,
        };
        assert!(matches!(raw.hear(), Some(Message::Inventory(_))));
        raw
    }

    /// Sets whether it sends the bytes that it is asked for.
    pub(super) fn sends(&self, sends: bool) {
        self.sends.store(sends, Ordering::Relaxed);
    }

    pub(super) fn say(&self, message: Message) {
        self.orders.lock().unwrap().push(message);
        self.handle.wake();
    }

    /// The next message; none once the session has ended.
    pub(super) fn hear(&self) -> Option<Message> {
        self.events.recv_timeout(Duration::from_secs(600)).ok()
    }

    pub(super) fn ask(&self, message: Message) -> Option<Message> {
        self.say(message);
        self.hear()
    }

    pub(super) fn lease(&self, id: u64, len: u64) {
        let memory = "cpu:0/pageable".into();
        let answer = self.ask(Message::Allocate {
            id,
            memory,
            len,
            align: 1,
            mapped: false,
        });
        assert!(
            matches!(answer, Some(Message::Allocated { .. })),
            "{answer:?}"
        );
    }
}

pub(super) fn use_of(lease: u64, len: u64) -> wire::Use {
    wire::Use {
        lease,
        offset: 0,
        len,
        writes: true,
    }
}

#[test]
fn a_client_that_owes_the_bytes_of_ever_more_writes_is_cut_off() {
    let served = serve(1 << 20);
    let is_stopped = |raw: &Raw, id| {
        raw.say(Message::Write {
            id,
            reservation: 0,
            lease: 1,
            offset: 0,
            apart: None,
            len: 64,
            network: Network::Tls,
            eager: false,
        });
        let goes = matches!(raw.hear(), Some(Message::Go { .. }));
        raw.say(Message::Stop { id });
        goes && matches!(raw.hear(), Some(Message::Ended { .. }))
    };
    let is_refused = |raw: &Raw, id| {
        let answer = raw.ask(eager(id, 99, 1));
        matches!(answer, Some(Message::Refused { .. }))
    };
    for (is_owed, number, most) in [
        (&is_stopped as &dyn Fn(&Raw, u64) -> bool, None, 10_000),
        (&is_refused, None, 10_000),
        // A number whose bytes are owed is not free.
        (&is_stopped, Some(2), 1),
    ] {
        let raw = Raw::connect(&served);
        raw.lease(1, 64);
        let owed = (2..20_000).take_while(|id| is_owed(&raw, number.unwrap_or(*id)));
        assert!(owed.count() <= most);
        served.wait_until_empty();
    }
}

fn eager(id: u64, lease: u64, len: u64) -> Message {
    Message::Write {
        id,
        reservation: 0,
        lease,
        offset: 0,
        apart: None,
        len,
        network: Network::Tls,
        eager: true,
    }
}

#[test]
fn a_write_whose_bytes_follow_at_once_needs_no_word_between() {
    let served = serve(1 << 20);
    let raw = Raw::connect(&served);
    raw.lease(1, 65_536);
    raw.sends(true);
    for (id, len) in [(2, 65_536), (3, 1), (4, 0)] {
        let ended = raw.ask(eager(id, 1, len));
        let outcome = wire::Outcome::Done;
        assert_eq!(ended, Some(Message::Ended { id, outcome }));
    }
    // The bytes of a refused one come, too, and harm nothing.
    let refused = raw.ask(eager(5, 99, 4096));
    assert!(
        matches!(refused, Some(Message::Refused { id: 5, .. })),
        "{refused:?}"
    );
    let beyond = raw.ask(Message::Write {
        id: 6,
        reservation: 0,
        lease: 1,
        offset: 65_000,
        apart: None,
        len: 4096,
        network: Network::Tls,
        eager: true,
    });
    assert!(
        matches!(beyond, Some(Message::Refused { id: 6, .. })),
        "{beyond:?}"
    );
    let ended = raw.ask(eager(7, 1, 4096));
    assert!(
        matches!(ended, Some(Message::Ended { id: 7, .. })),
        "{ended:?}"
    );
    // One whose bytes do not come can be stopped, and more than the window ends the session.
    raw.sends(false);
    raw.say(eager(8, 1, 4096));
    let outcome = wire::Outcome::Stopped { leading_bytes: 0 };
    let ended = raw.ask(Message::Stop { id: 8 });
    assert_eq!(ended, Some(Message::Ended { id: 8, outcome }));
    (10..26).for_each(|id| raw.say(eager(id, 1, 65_536)));
    assert_eq!(raw.ask(eager(26, 1, 1)), None);
    served.wait_until_empty();
    let raw = Raw::connect(&served);
    raw.lease(1, 65_537);
    assert_eq!(raw.ask(eager(2, 1, 65_537)), None);
    served.wait_until_empty();
}

#[test]
fn elements_that_a_client_makes_up_are_refused() {
    let served = serve(1 << 20);
    let raw = Raw::connect(&served);
    raw.lease(1, 4096);
    let axes = |axes: &[(u64, i64)]| axes.to_vec();
    for (at, (offset, element_bytes, axes, len)) in [
        // Past the end, more bytes than told, fewer, more than a number holds, and twice the same.
        (0, 4, axes(&[(1024, 8)]), 4096),
        (4072, 4, axes(&[(4, -8)]), 16),
        (0, 4, axes(&[(4, 8)]), 20),
        (0, 4, axes(&[(4, 8)]), 12),
        (0, u64::MAX, axes(&[(u64::MAX, i64::MAX); 8]), 16),
        (u64::MAX, 4, axes(&[(4, 8)]), 16),
        (0, 1, axes(&[(2, 3); 40]), 16),
        (0, 4, axes(&[(4, 0)]), 16),
    ]
    .into_iter()
    .enumerate()
    {
        let id = at as u64 + 2;
        let answer = raw.ask(Message::Write {
            id,
            reservation: 0,
            lease: 1,
            offset,
            apart: Some(wire::Elements {
                element_bytes,
                axes,
            }),
            len,
            network: Network::Tls,
            eager: false,
        });
        let is_failed = |outcome: &wire::Outcome| matches!(outcome, wire::Outcome::Failed(_));
        let is_refused = match &answer {
            Some(Message::Refused { id: of, .. }) => *of == id,
            Some(Message::Ended { id: of, outcome }) => *of == id && is_failed(outcome),
            _ => false,
        };
        assert!(is_refused, "{at}: {answer:?}");
    }
}

#[test]
fn a_place_in_the_order_goes_with_its_session() {
    let served = serve(1 << 30);
    let holder = Raw::connect(&served);
    holder.lease(1, 4096);
    let Some(Message::Shared { token, .. }) = holder.ask(Message::Share { id: 2, lease: 1 }) else {
        panic!("the lease is shared");
    };
    let uses = vec![use_of(1, 4096)];
    assert_eq!(
        holder.ask(Message::Enter { id: 3, uses }),
        Some(Message::Entered { id: 3 })
    );
    let other = Raw::connect(&served);
    let opened = other.ask(Message::Open { id: 1, token });
    assert!(
        matches!(opened, Some(Message::Opened { len: 4096, .. })),
        "{opened:?}"
    );
    // Without a place of its own it touches nothing.
    let write = Message::Write {
        id: 2,
        reservation: 3,
        lease: 1,
        offset: 0,
        apart: None,
        len: 1,
        network: Network::Tls,
        eager: false,
    };
    let refused = other.ask(write);
    assert!(
        matches!(refused, Some(Message::Refused { id: 2, .. })),
        "{refused:?}"
    );
    other.say(Message::Enter {
        id: 4,
        uses: vec![use_of(1, 1)],
    });
    let available = Message::Available {
        id: 5,
        memory: "cpu:0/pageable".into(),
    };
    let answer = other.ask(available);
    assert!(
        matches!(answer, Some(Message::AvailableBytes { id: 5, .. })),
        "{answer:?}"
    );
    holder.handle.close();
    assert_eq!(other.hear(), Some(Message::Entered { id: 4 }));
    other.handle.close();
    served.wait_until_empty();
}

#[test]
fn what_makes_no_sense_is_refused_or_ends_the_session_and_harms_no_other() {
    let served = serve(1 << 20);
    let bystander = served.connect();
    let kept = there(&bystander, 4096);
    bystander.copy_from_slice(&[5; 4096], &kept).unwrap();
    let at = |lease, offset| wire::Place { lease, offset };
    let refused = [
        Message::Allocate {
            id: 9,
            memory: "cpu:0/file".into(),
            len: 1,
            align: 1,
            mapped: false,
        },
        Message::Allocate {
            id: 9,
            memory: "../cpu".into(),
            len: 1,
            align: 1,
            mapped: false,
        },
        Message::Allocate {
            id: 9,
            memory: "cpu:0/pageable".into(),
            len: u64::MAX,
            align: 1,
            mapped: false,
        },
        Message::Allocate {
            id: 9,
            memory: "cpu:0/pageable".into(),
            len: 1,
            align: 3,
            mapped: false,
        },
        Message::Allocate {
            id: 1,
            memory: "cpu:0/pageable".into(),
            len: 1,
            align: 1,
            mapped: false,
        },
        Message::Open {
            id: 9,
            token: [0; 16],
        },
        Message::Share { id: 9, lease: 2 },
        Message::Enter {
            id: 9,
            uses: vec![use_of(1, 4097)],
        },
        Message::Enter {
            id: 9,
            uses: vec![wire::Use {
                offset: u64::MAX,
                ..use_of(1, 2)
            }],
        },
        Message::Write {
            id: 9,
            reservation: 0,
            lease: 1,
            offset: 4096,
            apart: None,
            len: 1,
            network: Network::Tls,
            eager: false,
        },
        Message::Write {
            id: 9,
            reservation: 0,
            lease: 1,
            offset: u64::MAX,
            apart: None,
            len: 2,
            network: Network::Tls,
            eager: false,
        },
        Message::Write {
            id: 9,
            reservation: 0,
            lease: 2,
            offset: 0,
            apart: None,
            len: 1,
            network: Network::Tls,
            eager: false,
        },
        Message::Read {
            id: 9,
            reservation: 0,
            lease: 1,
            offset: 1,
            apart: None,
            len: u64::MAX,
            network: Network::Tls,
        },
        Message::Copy {
            id: 9,
            reservation: 0,
            src: at(1, 0),
            dst: wire::Destination::Lease(at(2, 0)),
            len: 1,
        },
        Message::Copy {
            id: 9,
            reservation: 0,
            src: at(1, 0),
            dst: wire::Destination::Lease(at(1, 4000)),
            len: 97,
        },
    ];
    let raw = Raw::connect(&served);
    raw.lease(1, 4096);
    for message in refused {
        let answer = raw.ask(message.clone());
        assert!(
            matches!(answer, Some(Message::Refused { id: 9 | 1, .. })),
            "{message:?}: {answer:?}"
        );
    }
    raw.handle.close();
    let ends = [
        Message::Free { lease: 7 },
        Message::Entered { id: 1 },
        Message::Go {
            id: 1,
            offset: 0,
            len: 1,
        },
        Message::Inventory(wire::Inventory::default()),
        Message::Hello {
            version: 1,
            trusted_network: true,
        },
    ];
    for message in ends {
        let raw = Raw::connect(&served);
        raw.lease(1, 4096);
        assert_eq!(raw.ask(message), None);
    }
    assert!(bystander.read_to_vec(&kept).unwrap() == [5; 4096]);
    drop((kept, bystander));
    served.wait_until_empty();
}

#[test]
fn a_client_that_stops_anywhere_leaves_nothing_behind() {
    let served = serve(1 << 20);
    // What a whole exchange says, cut off after each message.
    let script = |token: [u8; 16]| {
        let at = |lease, offset| wire::Place { lease, offset };
        vec![
            Message::Allocate {
                id: 1,
                memory: "cpu:0/pageable".into(),
                len: 65_536,
                align: 64,
                mapped: false,
            },
            Message::Allocate {
                id: 2,
                memory: "cpu:0/shared".into(),
                len: 65_536,
                align: 64,
                mapped: false,
            },
            Message::Share { id: 3, lease: 1 },
            Message::Open { id: 4, token },
            Message::Enter {
                id: 5,
                uses: vec![use_of(1, 65_536), use_of(2, 65_536)],
            },
            Message::Enter {
                id: 6,
                uses: vec![use_of(2, 1)],
            },
            Message::Write {
                id: 7,
                reservation: 5,
                lease: 1,
                offset: 0,
                apart: None,
                len: 65_536,
                network: Network::Tls,
                eager: false,
            },
            Message::Read {
                id: 8,
                reservation: 5,
                lease: 2,
                offset: 0,
                apart: None,
                len: 65_536,
                network: Network::Tls,
            },
            Message::Copy {
                id: 9,
                reservation: 5,
                src: at(2, 0),
                dst: wire::Destination::Lease(at(1, 0)),
                len: 4096,
            },
            Message::Grant {
                id: 10,
                reservation: 5,
                lease: 1,
                offset: 0,
                len: 4096,
            },
            Message::WriteGranted {
                id: 11,
                token,
                offset: 0,
                len: 1,
                network: Network::Tls,
            },
            Message::Copy {
                id: 12,
                reservation: 5,
                src: at(2, 0),
                dst: wire::Destination::Node {
                    address: "127.0.0.1:1".into(),
                    key: [7; 32],
                    token,
                },
                len: 4096,
            },
            Message::Stop { id: 7 },
            Message::Stop { id: 10 },
            Message::Leave { reservation: 5 },
            Message::Free { lease: 1 },
        ]
    };
    let whole = script([0; 16]).len();
    for cut in 0..=whole {
        let raw = Raw::connect(&served);
        for message in script([cut as u8; 16]).into_iter().take(cut) {
            raw.say(message);
        }
        if cut % 2 == 0 {
            // So that the other side has seen some of it.
            let _ =
                raw.events
                    .recv_timeout(Duration::from_millis(if cut == 0 { 0 } else { 20_000 }));
        }
        raw.handle.close();
        raw.handle.join();
    }
    served.wait_until_empty();
}
