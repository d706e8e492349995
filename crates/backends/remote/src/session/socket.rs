//! The socket of a session: connecting, its options, and which of its directions are ready.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use mio::event::Event;
use mio::{Interest, Registry, Token};
use socket2::{SockRef, TcpKeepalive};

use super::{Options, Step};

/// A connection that never blocks, and what is known of its readiness. The system tells each change once.
pub(super) struct Socket {
    stream: mio::net::TcpStream,
    is_readable: bool,
    is_writable: bool,
    /// The peer sends nothing more, which a read has yet to tell.
    is_read_closed: bool,
}

impl Socket {
    pub(super) fn new(
        stream: TcpStream,
        options: &Options,
        registry: &Registry,
    ) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        // The session's own heartbeats see most losses. These see them while the session does not read.
        let keepalive = TcpKeepalive::new().with_time(options.silent_after.max(SECOND));
        socket.set_tcp_keepalive(&keepalive.with_interval(SECOND))?;
        #[cfg(any(target_os = "linux", target_os = "android"))]
        socket.set_tcp_user_timeout(Some(options.silent_after.max(SECOND)))?;
        let mut stream = mio::net::TcpStream::from_std(stream);
        registry.register(&mut stream, SOCKET, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Socket {
            stream,
            // Tried once before the first event.
            is_readable: true,
            is_writable: true,
            is_read_closed: false,
        })
    }

    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    pub(super) fn handle(&mut self, event: &Event) {
        self.is_read_closed |= event.is_read_closed() || event.is_error();
        self.is_readable |= event.is_readable() || self.is_read_closed;
        self.is_writable |= event.is_writable() || event.is_write_closed() || event.is_error();
    }

    /// Reads what there is; `None` if nothing has come, `Some(0)` at the end.
    pub(super) fn read(&mut self, space: &mut [u8]) -> io::Result<Option<usize>> {
        if !self.is_readable || space.is_empty() {
            return Ok(None);
        }
        match self.stream.read(space) {
            Ok(len) => {
                // There is no need to be told that nothing is left.
                if SHORT_IS_ALL && len < space.len() && !self.is_read_closed {
                    self.is_readable = false;
                }
                Ok(Some(len))
            }
            Err(error) => {
                self.is_readable = error.kind() != io::ErrorKind::WouldBlock;
                not_yet(error)
            }
        }
    }

    /// Writes what there is room for; `None` if there is none.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        if !self.is_writable || bytes.is_empty() {
            return Ok(None);
        }
        match self.stream.write(bytes) {
            Ok(len) => {
                if SHORT_IS_ALL && len < bytes.len() {
                    self.is_writable = false;
                }
                Ok(Some(len))
            }
            Err(error) => {
                self.is_writable = error.kind() != io::ErrorKind::WouldBlock;
                not_yet(error)
            }
        }
    }

    /// Tells the peer that no further bytes come.
    pub(super) fn end(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }
}

/// Connects to the first address of a name that answers. Blocks up to `limit` for each address, and on the resolver.
pub(super) fn connect(address: &str, limit: Duration) -> Result<TcpStream, (Step, io::Error)> {
    let addresses = address.to_socket_addrs();
    let none = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut last = (Step::Resolve, none);
    for address in addresses.map_err(|error| (Step::Resolve, error))? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = (Step::Connect, error),
        }
    }
    Err(last)
}

fn not_yet(error: io::Error) -> io::Result<Option<usize>> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}

pub(super) const SOCKET: Token = Token(0);

/// Whether a read or write of fewer bytes than asked for means that the next one would find none, and that the system
/// tells when that changes. epoll(7) and kqueue say so; on Windows, mio must see the call that would block.
const SHORT_IS_ALL: bool = cfg!(unix);

/// The unit of the system's timers for dead connections.
const SECOND: Duration = Duration::from_secs(1);
