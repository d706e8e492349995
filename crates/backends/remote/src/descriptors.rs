//! Shared memory between two processes of one machine: descriptors over a Unix socket, and their mappings (Linux).
//!
//! The socket has an abstract name: nothing is left to clean up, and processes of other network namespaces do not reach it.
//! The server tells the name over the session, in its inventory. For each descriptor the client connects, both check
//! that the other process is of their own user, the server sends one byte, the client a token of 16 bytes, and the
//! server one byte with the descriptor. Each step has its time.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::io::retry_on_intr;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use transload_hal::{HostSpan, spawn};

use crate::key::fill_random;

/// What names a socket or a descriptor: random bytes.
pub(crate) type Token = [u8; 16];

/// How long each step of a request may take, and the look at a server when a session begins. A process of this machine answers
/// within milliseconds.
const STEP: Duration = Duration::from_secs(1);

/// How long a client waits for its turn at the server, which others may hold up for a step each.
const TURN: Duration = Duration::from_secs(10);

/// After how long a server looks again when the system refused a connection, as for want of descriptors.
const RETRY: Duration = Duration::from_millis(100);

/// What the server sends: first when it takes a connection, then with a descriptor.
const READY: u8 = b'T';

/// Gives descriptors of shared memory to processes of this machine and user that know their tokens, until it is dropped.
/// One thread serves one request at a time.
#[derive(Debug)]
pub struct Descriptors {
    name: Token,
    socket: Arc<UnixListener>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Descriptors {
    /// Listens on an abstract socket with a random name. `find` returns the descriptor of a token, where there is one: that
    /// of a memfd, which then gets no further seals.
    ///
    /// # Errors
    /// When the system has no random bytes, no descriptor or no thread.
    pub fn serve(
        find: impl Fn(&[u8; 16]) -> Option<OwnedFd> + Send + 'static,
    ) -> io::Result<Descriptors> {
        let mut name = Token::default();
        fill_random(&mut name).map_err(io::Error::other)?;
        let address = SocketAddr::from_abstract_name(path(&name))?;
        let socket = Arc::new(UnixListener::bind_addr(&address)?);
        let is_over = Arc::new(AtomicBool::new(false));
        let (listening, over) = (Arc::clone(&socket), Arc::clone(&is_over));
        let listen = move || {
            while !over.load(Ordering::Acquire) {
                match listening.accept() {
                    // A client learns of a refusal by the end of the connection.
                    Ok((stream, _)) => drop(answer(stream.as_fd(), own_user(), &find)),
                    Err(_) if over.load(Ordering::Acquire) => {}
                    Err(_) => thread::park_timeout(RETRY),
                }
            }
        };
        let thread = spawn("transload-memfd".into(), listen)?;
        Ok(Descriptors {
            name,
            socket,
            is_over,
            thread: Some(thread),
        })
    }

    /// Returns the bytes that the socket's name is made of.
    pub fn name(&self) -> [u8; 16] {
        self.name
    }
}

impl Drop for Descriptors {
    /// Blocks until the request that is served now is over, a few seconds at most.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Linux wakes the thread that accepts, whose call fails from now on.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there has been reported already.
            let _ = thread.join();
        }
    }
}

/// Serves one request.
fn answer(
    stream: BorrowedFd<'_>,
    user: u32,
    find: impl Fn(&Token) -> Option<OwnedFd>,
) -> io::Result<()> {
    limit(stream, STEP)?;
    check_user(stream, user).map_err(io::Error::other)?;
    rustix::net::send(stream, &[READY], SendFlags::NOSIGNAL)?;
    let mut token = Token::default();
    let (_, len) = retry_on_intr(|| rustix::net::recv(stream, &mut token[..], RecvFlags::empty()))?;
    // A client that only looks sends none.
    let Some(file) = (len == token.len()).then(|| find(&token)).flatten() else {
        return Ok(());
    };
    if !fcntl_get_seals(&file)?.contains(SealFlags::SEAL) {
        fcntl_add_seals(&file, SealFlags::SEAL)?;
    }
    give(stream, file.as_fd())?;
    Ok(())
}

/// Sends a descriptor.
fn give(stream: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), rustix::io::Errno> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    let byte = [IoSlice::new(&[READY])];
    rustix::net::sendmsg(stream, &byte, &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Checks that a server of this machine and user listens on the socket of that name.
pub(crate) fn check(name: &Token) -> Result<(), String> {
    connect(name, own_user(), STEP).map(drop)
}

/// Shared memory of another process, mapped until it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// All that is mapped.
    start: NonNull<u8>,
    len: usize,
    span: HostSpan,
}

// SAFETY: the mapping is an address range that this value alone unmaps; it hands out addresses, and the code that uses
// them ensures exclusion between threads.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method changes the mapping through a shared reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Asks the server for the descriptor of a token, checks it, and maps its `len` bytes at a multiple of `align`, a power
    /// of two. Blocks for 30 s at most.
    pub(crate) fn of(name: &Token, token: &Token, len: u64, align: u64) -> Result<Self, String> {
        let stream = connect(name, own_user(), TURN)?;
        rustix::net::send(&stream, token, SendFlags::NOSIGNAL).map_err(told("asking for it"))?;
        let file = receive(stream.as_fd())?;
        check_file(file.as_fd(), len)?;
        let too_long = |_| format!("{len} bytes do not fit in the address space");
        let len = usize::try_from(len).map_err(too_long)?;
        let align = usize::try_from(align).map_err(too_long)?;
        Self::map(file.as_fd(), len, align).map_err(told("mapping it"))
    }

    fn map(file: BorrowedFd<'_>, len: usize, align: usize) -> Result<Self, rustix::io::Errno> {
        if len == 0 {
            let start = NonNull::dangling();
            let span = HostSpan::new(start, 0);
            return Ok(Self { start, len, span });
        }
        let more = match align <= rustix::param::page_size() {
            true => 0,
            false => align,
        };
        let room = len.checked_add(more).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: without a wanted address a new mapping disturbs no existing one.
        let start =
            unsafe { mmap_anonymous(null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        // The kernel maps address 0 only on request; treated as a refusal all the same.
        let start = NonNull::new(start.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM)?;
        let mut mapping = Self {
            start,
            len: room,
            span: HostSpan::new(start, len),
        };
        let address = start.addr().get();
        let head = address.next_multiple_of(align.max(1)) - address;
        let first = start.as_ptr().wrapping_add(head.min(more));
        let (access, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::FIXED,
        );
        // SAFETY: the wanted range lies in the reservation, which nothing else uses.
        unsafe { mmap(first.cast(), len, access, flags, file, 0) }?;
        let first = NonNull::new(first).ok_or(rustix::io::Errno::NOMEM)?;
        mapping.span = HostSpan::new(first, len);
        Ok(mapping)
    }

    /// Returns where the bytes are.
    pub(crate) fn span(&self) -> HostSpan {
        self.span
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the range is this value's own, and its buffers are gone.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

/// Connects to a server of that user.
fn connect(name: &Token, user: u32, step: Duration) -> Result<OwnedFd, String> {
    let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(unix, stream, SocketFlags::CLOEXEC, None)
        .map_err(told("making a socket"))?;
    limit(socket.as_fd(), step).map_err(told("setting the limits of a socket"))?;
    let address = SocketAddrUnix::new_abstract_name(path(name).as_bytes());
    // A handler of a signal ends calls that have a time.
    let connected = address.and_then(|to| retry_on_intr(|| rustix::net::connect(&socket, &to)));
    connected.map_err(|error| match error {
        rustix::io::Errno::CONNREFUSED => {
            "the server is not in this machine and network namespace".to_owned()
        }
        error => told("connecting to the server's socket")(error),
    })?;
    check_user(socket.as_fd(), user)?;
    let mut ready = [0];
    let received = retry_on_intr(|| rustix::net::recv(&socket, &mut ready[..], RecvFlags::empty()));
    match received.map_err(told("waiting for the server's socket"))? {
        (_, 1) if ready == [READY] => Ok(socket),
        _ => Err("the server takes no connection of this process".into()),
    }
}

/// Receives one descriptor.
fn receive(stream: BorrowedFd<'_>) -> Result<OwnedFd, String> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    retry_on_intr(|| rustix::net::recvmsg(stream, &mut bytes, &mut control, flags))
        .map_err(told("waiting for the descriptor"))?;
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.flatten().next();
    file.ok_or_else(|| "the server has no descriptor for the token".into())
}

/// Checks that no process can make a file shorter while it is mapped, or refuse writes to it, and that it has that length.
fn check_file(file: BorrowedFd<'_>, len: u64) -> Result<(), String> {
    let seals = fcntl_get_seals(file).map_err(told("asking for its seals"))?;
    let wanted = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if !seals.contains(wanted) || seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(format!("its seals are {seals:?}, and not {wanted:?}"));
    }
    let found = fstat(file).map_err(told("asking for its length"))?.st_size;
    match u64::try_from(found) == Ok(len) {
        true => Ok(()),
        false => Err(format!("it has {found} bytes, and not {len}")),
    }
}

/// Checks that the process at the other end is of a user.
fn check_user(socket: BorrowedFd<'_>, user: u32) -> Result<(), String> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // rustix's call takes 0 for no process id, which is that of a process in another namespace of processes.
    // SAFETY: the system writes at most `len` bytes, which the place has.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        return Err(format!("asking for the other process's user: {error}"));
    }
    match peer.uid == user {
        true => Ok(()),
        false => Err(format!(
            "the other process is of user {}, and not of {user}",
            peer.uid
        )),
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn limit(socket: BorrowedFd<'_>, step: Duration) -> Result<(), rustix::io::Errno> {
    set_socket_timeout(socket, Timeout::Recv, Some(step))?;
    set_socket_timeout(socket, Timeout::Send, Some(step))
}

/// The name of a socket. A server that a client trusts with bytes cannot name other programs' sockets.
fn path(name: &Token) -> String {
    format!("transload-{:032x}", u128::from_be_bytes(*name))
}

fn told(doing: &'static str) -> impl Fn(rustix::io::Errno) -> String {
    move |error| format!("{doing}: {error}")
}

#[cfg(test)]
mod tests;
