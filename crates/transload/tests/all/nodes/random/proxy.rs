//! The way to a machine, which can be held up, slowed down and cut.
//!
//! It is a proxy. If `TRANSLOAD_DROPS` names a program, clients connect to the machine itself, and that program is called
//! with `drop` or `lift` and an address: as root, in a network namespace, it can have `nft` drop what goes there.

use std::env;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::dice::Dice;

const DROPS: &str = "TRANSLOAD_DROPS";

pub(super) enum Way {
    Proxy(SocketAddr, Arc<Shared>),
    /// Straight to the machine, and the program that drops.
    Dropped(SocketAddr, String),
}

/// What the threads of a proxy share.
pub(super) struct Shared {
    mode: Mutex<Mode>,
    changed: Condvar,
    /// Both ends of each connection.
    open: Mutex<Vec<[TcpStream; 2]>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Forward,
    Hold,
    /// Each piece waits so long.
    Delay(Duration),
    Ended,
}

impl Way {
    pub(super) fn to(machine: SocketAddr) -> Way {
        if let Ok(program) = env::var(DROPS) {
            return Way::Dropped(machine, program);
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            mode: Mutex::new(Mode::Forward),
            changed: Condvar::new(),
            open: Mutex::default(),
        });
        let own = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, machine, &own));
        Way::Proxy(address, shared)
    }

    pub(super) fn address(&self) -> SocketAddr {
        match self {
            Way::Proxy(address, _) | Way::Dropped(address, _) => *address,
        }
    }

    pub(super) fn set(&self, mode: Mode) {
        match (self, mode) {
            (Way::Proxy(_, shared), mode) => {
                *shared.mode.lock().unwrap() = mode;
                shared.changed.notify_all();
            }
            (Way::Dropped(..), Mode::Delay(_)) => {}
            (Way::Dropped(address, program), mode) => {
                let word = if mode == Mode::Hold { "drop" } else { "lift" };
                let mut command = Command::new(program);
                let status = command.arg(word).arg(address.to_string()).status();
                assert!(status.unwrap().success(), "{program} {word}");
            }
        }
    }

    /// Cuts some connections. Returns how many.
    pub(super) fn cut(&self, dice: &mut Dice) -> usize {
        let Way::Proxy(_, shared) = self else {
            return 0;
        };
        let open = shared.open.lock().unwrap();
        let all = dice.below(3) == 0;
        let one = dice.below(open.len().max(1) as u64) as usize;
        let some = open.iter().enumerate().filter(|(at, _)| all || *at == one);
        some.map(|(_, ends)| ends.iter().for_each(close)).count()
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.set(Mode::Ended);
        if let Way::Proxy(address, shared) = self {
            // So that the thread that accepts looks.
            let _ = TcpStream::connect(*address);
            shared.open.lock().unwrap().iter().flatten().for_each(close);
        }
    }
}

/// A side that is closed already stays so.
fn close(end: &TcpStream) {
    let _ = end.shutdown(Shutdown::Both);
}

fn accept(listener: &TcpListener, machine: SocketAddr, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        let client = client.unwrap();
        if *shared.mode.lock().unwrap() == Mode::Ended {
            return;
        }
        // The client sees the end when there is no machine.
        let Ok(server) = TcpStream::connect(machine) else {
            continue;
        };
        for end in [&client, &server] {
            end.set_nodelay(true).unwrap();
        }
        let ends = || [&client, &server].map(|end| end.try_clone().unwrap());
        let mut open = shared.open.lock().unwrap();
        // Those of which both sides are closed have no peer.
        open.retain(|ends| ends.iter().any(|end| end.peer_addr().is_ok()));
        open.push(ends());
        drop(open);
        let [from, to] = ends();
        for (from, to) in [(from, to), (server, client)] {
            let shared = Arc::clone(shared);
            thread::spawn(move || forward(from, to, &shared));
        }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut piece) {
        shared.wait();
        if to.write_all(&piece[..len]).is_err() {
            break;
        }
    }
    shared.wait();
    // It may be closed already.
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

impl Shared {
    /// Blocks as long as a piece has to wait.
    fn wait(&self) {
        let mode = self.mode.lock().unwrap();
        let holds = |mode: &mut Mode| *mode == Mode::Hold;
        let mode = self.changed.wait_while(mode, holds).unwrap();
        if let Mode::Delay(time) = *mode {
            let delays = |mode: &mut Mode| matches!(mode, Mode::Delay(_));
            let waited = self.changed.wait_timeout_while(mode, time, delays);
            drop(waited.unwrap());
        }
    }
}
