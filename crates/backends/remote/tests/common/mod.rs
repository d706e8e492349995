//! A side of a session for tests: what it is told goes through a channel, and what it does are closures.
#![allow(
    dead_code,
    reason = "each test file is a program of its own and uses some of this"
)]

#[path = "../../src/numbers.rs"]
pub(crate) mod numbers;

use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use transload_remote::wire::{Message, ProtocolError};
use transload_remote::{
    Event, Handler, Options, Peer, Pipe, PrivateKey, PublicKey, Session, SessionError,
    SessionHandle,
};

#[derive(Debug)]
pub(crate) enum Told {
    Opened(Peer),
    Event(Event),
    Closed(SessionError),
}

type Deed = Box<dyn FnOnce(&mut Pipe) + Send>;

/// One side.
pub(crate) struct Side {
    pub(crate) told: Receiver<Told>,
    pub(crate) handle: SessionHandle,
    deeds: Arc<Mutex<Vec<Deed>>>,
}

pub(crate) struct Teller {
    tell: Sender<Told>,
    deeds: Arc<Mutex<Vec<Deed>>>,
}

impl Handler for Teller {
    fn opened(&mut self, peer: Peer, _: &mut Pipe) -> Result<(), ProtocolError> {
        let _ = self.tell.send(Told::Opened(peer));
        Ok(())
    }

    fn handle(&mut self, event: Event, _: &mut Pipe) -> Result<(), ProtocolError> {
        let _ = self.tell.send(Told::Event(event));
        Ok(())
    }

    fn woken(&mut self, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        let deeds = std::mem::take(&mut *self.deeds.lock().unwrap());
        deeds.into_iter().for_each(|deed| deed(pipe));
        Ok(())
    }

    fn closed(&mut self, reason: SessionError) {
        let _ = self.tell.send(Told::Closed(reason));
    }
}

impl Side {
    fn new(start: impl FnOnce(Teller) -> SessionHandle) -> Side {
        let (tell, told) = channel();
        let deeds = Arc::default();
        let handle = start(Teller {
            tell,
            deeds: Arc::clone(&deeds),
        });
        Side {
            told,
            handle,
            deeds,
        }
    }

    pub(crate) fn connect(
        address: &str,
        key: &PrivateKey,
        node: PublicKey,
        options: Options,
    ) -> Side {
        Side::new(|teller| Session::connect(address, key, node, teller, options).unwrap())
    }

    pub(crate) fn accept(
        stream: TcpStream,
        key: &PrivateKey,
        allowed: &[PublicKey],
        options: Options,
    ) -> Side {
        Side::new(|teller| Session::accept(stream, key, allowed, teller, options).unwrap())
    }

    /// Returns what has the session's thread do something.
    pub(crate) fn runner(&self) -> Runner {
        Runner {
            handle: self.handle.clone(),
            deeds: Arc::clone(&self.deeds),
        }
    }

    pub(crate) fn run(&self, deed: impl FnOnce(&mut Pipe) + Send + 'static) -> Receiver<()> {
        self.runner().run(deed)
    }

    pub(crate) fn send(&self, message: Message) {
        self.run(move |pipe| pipe.send(&message).unwrap());
    }

    pub(crate) fn next(&self) -> Told {
        self.told.recv_timeout(PATIENCE).unwrap()
    }

    pub(crate) fn event(&self) -> Event {
        match self.next() {
            Told::Event(event) => event,
            told => panic!("{told:?}"),
        }
    }

    pub(crate) fn opened(&self) -> Peer {
        match self.next() {
            Told::Opened(peer) => peer,
            told => panic!("{told:?}"),
        }
    }

    /// Returns why the session closed, and checks that this was the last word.
    pub(crate) fn closed(&self) -> SessionError {
        let reason = loop {
            match self.next() {
                Told::Closed(reason) => break reason,
                Told::Opened(_) | Told::Event(_) => {}
            }
        };
        self.handle.join();
        assert!(self.told.recv_timeout(PATIENCE).is_err());
        reason
    }
}

/// A side without what it is told, for other threads.
pub(crate) struct Runner {
    handle: SessionHandle,
    deeds: Arc<Mutex<Vec<Deed>>>,
}

impl Runner {
    /// Has the session's thread do something. What is returned tells when it is done.
    pub(crate) fn run(&self, deed: impl FnOnce(&mut Pipe) + Send + 'static) -> Receiver<()> {
        let (done, is_done) = channel();
        let deed = move |pipe: &mut Pipe| {
            deed(pipe);
            let _ = done.send(());
        };
        self.deeds.lock().unwrap().push(Box::new(deed));
        self.handle.wake();
        is_done
    }
}

/// Both sides of a session over the loopback device.
pub(crate) fn pair(options: &Options) -> (Side, Side) {
    let [client, node] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let (client, node) = pair_with(&client, node.public(), &node, &[client.public()], options);
    assert!(client.opened().address.ip().is_loopback());
    node.opened();
    (client, node)
}

pub(crate) fn pair_with(
    client: &PrivateKey,
    expected: PublicKey,
    node: &PrivateKey,
    allowed: &[PublicKey],
    options: &Options,
) -> (Side, Side) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let client = Side::connect(&address, client, expected, options.clone());
    let (stream, _) = listener.accept().unwrap();
    (client, Side::accept(stream, node, allowed, options.clone()))
}

/// Far more than anything takes, so that a hang fails a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
