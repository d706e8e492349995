//! The socket that a server listens on.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::{Events, Interest, Poll, Token, Waker};

const LISTENER: Token = Token(0);
const STOP: Token = Token(1);

/// Accepts connections until it is stopped.
#[derive(Debug)]
pub struct Listener {
    listening: Mutex<(Poll, mio::net::TcpListener)>,
    address: SocketAddr,
    waker: Waker,
    is_stopped: AtomicBool,
}

impl Listener {
    /// Listens on an address. Port 0 takes a free one.
    ///
    /// # Errors
    /// When the system refuses: another program listens there, the address is none of this machine's, or the port needs a
    /// privilege.
    pub fn bind(address: SocketAddr) -> io::Result<Listener> {
        let poll = Poll::new()?;
        let mut socket = mio::net::TcpListener::bind(address)?;
        let registry = poll.registry();
        registry.register(&mut socket, LISTENER, Interest::READABLE)?;
        let waker = Waker::new(registry, STOP)?;
        Ok(Listener {
            address: socket.local_addr()?,
            listening: Mutex::new((poll, socket)),
            waker,
            is_stopped: AtomicBool::new(false),
        })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Blocks until a machine has connected; `None` once it is stopped. For one thread.
    pub fn accept(&self) -> Option<TcpStream> {
        let mut listening = { self.listening.lock() }.unwrap_or_else(PoisonError::into_inner);
        let (poll, socket) = &mut *listening;
        let mut events = Events::with_capacity(2);
        loop {
            if self.is_stopped.load(Ordering::Acquire) {
                return None;
            }
            match socket.accept() {
                Ok((stream, _)) => return Some(stream.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // An interrupted wait looks again.
                    let _ = poll.poll(&mut events, None);
                }
                // Of a connection that has gone again, or for want of handles: it is tried again with the next one.
                Err(_) => {
                    let _ = poll.poll(&mut events, Some(RETRY));
                }
            }
        }
    }

    /// Has [`Listener::accept`] return `None` from now on.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        // If the system has no memory for it, the thread sees the stop with the next connection.
        let _ = self.waker.wake();
    }
}

/// After how long a listener looks again when the system refused a connection.
const RETRY: std::time::Duration = std::time::Duration::from_millis(100);
