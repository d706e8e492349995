//! Nodes that do not keep to the protocol, as their clients see them.

use std::net::TcpListener;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use transload::hal::{ErrorClass, HostSpan};
use transload::model::Name;
use transload::remote::{PrivateKey, PublicKey};
use transload::{AllocSpec, Buffer, Error, TransferManager};
use transload_remote::wire::{self, Message, Outcome, ProtocolError};
use transload_remote::{Event, Handler, Peer, Pipe, Session, SessionError, SessionHandle};

use super::raw::Raw;
use super::{manager, serve, session_options};

type Act = Box<dyn FnMut(&Message, &mut Pipe) + Send>;
type Later = Arc<Mutex<Vec<Box<dyn FnOnce(&mut Pipe) + Send>>>>;

/// A node that answers as it likes.
struct Evil {
    address: String,
    key: PublicKey,
    client: PrivateKey,
    session: Receiver<SessionHandle>,
    later: Later,
    closed: Receiver<SessionError>,
}

struct EvilHandler {
    inventory: Option<wire::Inventory>,
    act: Act,
    later: Later,
    closed: Sender<SessionError>,
}

impl Handler for EvilHandler {
    fn opened(&mut self, _: Peer, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        match self.inventory.take() {
            Some(inventory) => pipe.send(&Message::Inventory(inventory)),
            None => Ok(()),
        }
    }

    fn handle(&mut self, event: Event, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        match event {
            Event::Message(Message::Allocate { id, mapped, .. }) => {
                pipe.send(&Message::Allocated {
                    id,
                    number: 1,
                    descriptor: mapped.then_some([7; 16]),
                })?;
            }
            Event::Message(message) => (self.act)(&message, pipe),
            _ => {}
        }
        Ok(())
    }

    fn woken(&mut self, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        let later = std::mem::take(&mut *self.later.lock().unwrap());
        later.into_iter().for_each(|act| act(pipe));
        Ok(())
    }

    fn closed(&mut self, reason: SessionError) {
        let _ = self.closed.send(reason);
    }
}

/// Starts a node that accepts one session: that of `peer`, or else of the key in it.
fn evil(
    peer: Option<PublicKey>,
    inventory: wire::Inventory,
    act: impl FnMut(&Message, &mut Pipe) + Send + 'static,
) -> Evil {
    let [key, client] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let later = Later::default();
    let (told, closed) = mpsc::channel();
    let handler = EvilHandler {
        inventory: Some(inventory),
        act: Box::new(act),
        later: Arc::clone(&later),
        closed: told,
    };
    let (told, session) = mpsc::channel();
    let (public, allowed) = (key.public(), peer.unwrap_or(client.public()));
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let session = Session::accept(stream, &key, &[allowed], handler, session_options());
        let _ = told.send(session.unwrap());
    });
    Evil {
        address,
        key: public,
        client,
        session,
        later,
        closed,
    }
}

impl Evil {
    fn connect(&self, manager: &TransferManager, name: &str) -> Result<(), Error> {
        let name = Name::new(name).unwrap();
        let mut options = session_options();
        options.maps_memory = true;
        manager.connect_with(name, &self.address, &self.client, self.key, options)
    }
}

fn offer(memories: u32) -> wire::Inventory {
    let piece = wire::Piece {
        from_bytes: 0,
        fixed_ns: 50_000,
        bytes_per_second: 1_000_000_000,
    };
    let way = wire::Way {
        cost: vec![piece],
        passes: String::new(),
    };
    let memory = |index| wire::Memory {
        id: format!("cuda:{index}/device"),
        total_bytes: None,
        max_alloc_bytes: 1 << 40,
        alignment: 64,
        into: way.clone(),
        out_of: way.clone(),
    };
    let device = |index| wire::Device {
        id: format!("cuda:{index}"),
        name: "x".into(),
        software: false,
        simulated: false,
        memory_bytes: None,
        driver: None,
    };
    wire::Inventory {
        devices: (0..memories.min(8)).map(device).collect(),
        memories: (0..memories).map(|index| memory(index % 8)).collect(),
        forwards: true,
        descriptors: None,
    }
}

fn at(manager: &TransferManager, name: &str, bytes: u64) -> Buffer {
    let place = format!("{name}/cuda:0").parse().unwrap();
    manager.allocate(place, AllocSpec::bytes(bytes)).unwrap()
}

/// A node that offers `cpu:0/shared` and names a socket.
#[cfg(target_os = "linux")]
fn names(descriptors: [u8; 16]) -> TransferManager {
    let mut inventory = offer(1);
    inventory.devices[0].id = "cpu:0".into();
    inventory.memories[0].id = "cpu:0/shared".into();
    inventory.descriptors = Some(descriptors);
    let manager = manager();
    evil(None, inventory, |_, _| {})
        .connect(&manager, "box2")
        .unwrap();
    manager
}

#[cfg(target_os = "linux")]
#[test]
fn a_node_whose_socket_is_not_here_is_on_another_machine() {
    let manager = names([3; 16]);
    let place = "box2/cpu:0/shared".parse().unwrap();
    let explained = manager.explain_places("cpu:0".parse().unwrap(), place, 1 << 20);
    let told = explained.unwrap().to_string();
    assert!(told.contains("network namespace"), "{told}");
    let buffer = manager.allocate(place, AllocSpec::bytes(4096)).unwrap();
    let refused = buffer.read().unwrap_err();
    assert!(
        refused.to_string().contains("box2/cpu:0/shared"),
        "{refused}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_node_that_has_no_descriptor_for_its_token_gives_no_memory() {
    let socket = transload_remote::Descriptors::serve(|_| None).unwrap();
    let manager = names(socket.name());
    let place = "box2/cpu:0/shared".parse().unwrap();
    let refused = manager.allocate(place, AllocSpec::bytes(4096)).unwrap_err();
    let told = refused.to_string();
    assert!(
        told.contains("box2") && told.contains("no descriptor"),
        "{told}"
    );
}

#[test]
fn a_read_that_is_answered_as_a_turn_ends_the_session_before_the_copy() {
    const LEN: usize = 4096;
    static BYTES: [u8; LEN] = [0xEE; LEN];
    let (told, asked) = mpsc::channel();
    let evil = evil(None, offer(1), move |message, pipe| {
        if let Message::Read { id, .. } = message {
            pipe.send(&Message::Entered { id: *id }).unwrap();
            let _ = told.send(*id);
        }
    });
    let manager = manager();
    evil.connect(&manager, "box2").unwrap();
    let session = evil.session.recv().unwrap();
    let there = at(&manager, "box2", LEN as u64);
    let mut mine = vec![1; LEN];
    manager.copy_into_slice(&there, &mut mine).unwrap_err();
    let id = asked.recv().unwrap();
    let late = Box::new(move |pipe: &mut Pipe| {
        // SAFETY: the bytes live as long as the program, and no code writes them.
        unsafe { pipe.send_data(id, 0, HostSpan::of(&BYTES)) };
    });
    evil.later.lock().unwrap().push(late);
    session.wake();
    evil.closed.recv().unwrap();
    assert!(mine.iter().all(|byte| std::hint::black_box(*byte) == 1));
}

#[test]
fn a_grant_that_ends_before_it_was_given_fails_the_copy() {
    let one = evil(None, offer(1), |message, pipe| {
        if let Message::Grant { id, .. } = message {
            let (id, outcome) = (*id, Outcome::Done);
            pipe.send(&Message::Ended { id, outcome }).unwrap();
        }
    });
    let two = evil(None, offer(1), |_, _| {});
    let manager = manager();
    one.connect(&manager, "box2").unwrap();
    two.connect(&manager, "box3").unwrap();
    let (dst, src) = (at(&manager, "box2", 1 << 20), at(&manager, "box3", 1 << 20));
    let transfer = manager.copy(&src, &dst);
    // The first way is by the grant, the next one through this machine, where neither node ever answers.
    two.session.recv().unwrap().close();
    one.session.recv().unwrap().close();
    transfer.wait().unwrap_err();
}

#[test]
fn an_operation_that_a_node_never_ends_ends_with_its_session_once_it_is_cancelled() {
    let evil = evil(None, offer(1), |_, _| {});
    let manager = manager();
    evil.connect(&manager, "box2").unwrap();
    let there = at(&manager, "box2", 1 << 20);
    let source = manager.adopt(vec![1u8; 1 << 20]).unwrap();
    let transfer = manager.copy(&source, &there);
    transfer.cancel();
    // If the copy had begun, the session with it.
    manager.wait_idle();
}

#[test]
fn a_server_ends_while_a_node_keeps_a_copy_of_its_client() {
    let served = serve(1 << 20);
    let (told, asked) = mpsc::channel();
    let evil = evil(Some(served.key), offer(1), move |_, _| {
        let _ = told.send(());
    });
    let raw = Raw::connect(&served);
    raw.lease(1, 4096);
    raw.say(Message::Copy {
        id: 2,
        reservation: 0,
        src: wire::Place {
            lease: 1,
            offset: 0,
        },
        dst: wire::Destination::Node {
            address: evil.address.clone(),
            key: evil.key.0,
            token: [0; 16],
        },
        len: 4096,
    });
    asked.recv().unwrap();
    raw.handle.close();
    drop(served);
}

#[test]
fn a_node_that_offers_too_much_or_twice_the_same_is_refused() {
    let passing = |passes: &str| {
        let mut offer = offer(1);
        offer.memories[0].out_of.passes = passes.into();
        offer
    };
    for (offer, reason) in [
        (offer(3000), "3000 are more than 256"),
        (offer(9), "it is listed twice"),
        (passing(&"cpu:0/pinned ".repeat(9)), "more than 8 memories"),
        (passing("box3/cpu:0/pinned"), "belongs to a third machine"),
        (passing("nowhere"), "nowhere: "),
    ] {
        let evil = evil(None, offer, |_, _| {});
        let error = evil.connect(&manager(), "box2").unwrap_err();
        assert_eq!(error.class(), ErrorClass::Unsupported, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        evil.closed.recv().unwrap();
    }
}

#[test]
fn a_copy_whose_session_ends_midway_says_so_first_and_how_far_it_came() {
    const LEN: usize = 1 << 20;
    if session_options().trusted_network {
        // The node would have to answer UCX, which tells of whole messages alone.
        return;
    }
    let (told, asked) = mpsc::channel();
    let evil = evil(None, offer(1), move |message, pipe| {
        if let Message::Write { id, len, .. } = message {
            let (id, offset, len, of) = (*id, 0, *len / 2, *len);
            let room = vec![0; len as usize].leak();
            // SAFETY: the bytes live as long as the program, and no other code has them.
            unsafe { pipe.expect(id, offset, HostSpan::of_mut(room)) };
            pipe.send(&Message::Go { id, offset, len }).unwrap();
            let _ = told.send((len, of));
        }
    });
    let manager = manager();
    evil.connect(&manager, "box2").unwrap();
    let session = evil.session.recv().unwrap();
    let there = at(&manager, "box2", LEN as u64);
    let here = manager.adopt(vec![7u8; LEN]).unwrap();
    let transfer = manager.copy(&here, &there);
    let (sent, of) = asked.recv().unwrap();
    while !transfer.is_over() && transfer.progress().is_some_and(|(moved, _)| moved < sent) {
        thread::yield_now();
    }
    session.close();
    let route = "DirectCopy cpu:0/pageable → box2/cuda:0/device failed at box2, ";
    let lost = "has ended the session: it was closed; what was allocated there is lost with the session: allocate it again";
    let error = transfer.wait().unwrap_err();
    let told = error.to_string();
    assert_eq!(error.class(), ErrorClass::Lost, "{told}");
    assert!(told.starts_with(route), "{told}");
    let gone = format!("{lost}; {sent} of its {of} bytes had gone out");
    assert!(told.contains(&gone), "{told}");
    // The buffer is gone, and its transfers name their route, too.
    let again = manager.copy(&here, &there).wait().unwrap_err();
    let told = again.to_string();
    assert_eq!(again.class(), ErrorClass::Lost, "{told}");
    assert!(told.starts_with(route) && told.ends_with(lost), "{told}");
}
