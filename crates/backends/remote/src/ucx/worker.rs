//! The handle of a worker, and what it is asked and tells.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use transload_hal::HostSpan;

use super::error::{Status, UcxError};
use super::library::Ucx;
use super::progress;

/// An endpoint of a worker, by which it sends to one peer. A worker never uses a number twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EndpointId(pub(super) u64);

/// How a worker is made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The network interfaces that UCX may listen on and use, by name and separated by commas, as in `UCX_NET_DEVICES`:
    /// `eth1`, `mlx5_0:1`. `None` is UCX's choice, which is every interface.
    pub net_devices: Option<String>,
    /// The transports that UCX may use, as in `UCX_TLS`: `tcp`, `rc`. `None` is UCX's choice.
    pub transports: Option<String>,
    /// After how long without an answer a peer counts as lost, about. Seconds, at least 3. Default: 3 s. A peer whose sink
    /// blocks for longer while data for it is under way is lost, too.
    ///
    /// UCX before 1.22 sees a silent peer on TCP only if no data is under way to it, if this side's connection was the
    /// first, and if `transports` names `tcp`; else after a quarter of an hour. With these versions, watch the peer by other
    /// means and call [`Worker::abort`].
    pub lost_after: Duration,
    /// How many times the thread asks UCX for progress in vain before it sleeps. Each time costs a microsecond.
    /// Default: 1.
    pub spins: u32,
    /// Further options of UCX, by their names without `UCX_`. They override all above, and the environment. UCX before
    /// 1.17 takes the options of a transport without its name: `KEEPIDLE`, not `TCP_KEEPIDLE`.
    pub settings: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            net_devices: None,
            transports: None,
            lost_after: Duration::from_secs(3),
            spins: 1,
            settings: Vec::new(),
        }
    }
}

/// What a worker tells its sink.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A send or a receive is done. Its memory is quiet.
    Done {
        /// The number that the caller gave.
        id: u64,
        /// How many bytes were sent or received.
        len: usize,
    },
    /// A send or a receive failed, or was cancelled. Its memory is quiet; that of a receive is unspecified.
    Failed {
        /// The number that the caller gave.
        id: u64,
        /// Why.
        status: Status,
    },
    /// An endpoint failed or its peer closed it. All its sends fail. Comes at most once for an endpoint, and not with
    /// [`Event::EndpointClosed`].
    EndpointLost {
        /// The endpoint.
        endpoint: EndpointId,
        /// Why.
        status: Status,
    },
    /// An endpoint is closed, because it was asked to.
    EndpointClosed {
        /// The endpoint.
        endpoint: EndpointId,
    },
}

impl Event {
    /// Returns whether the event is the end of a cancelled operation.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Event::Failed { status, .. } if status.code == super::raw::UCS_ERR_CANCELED)
    }
}

/// A context and a worker of UCX, with a thread that makes every call.
///
/// Methods only queue and, if the thread sleeps, wake it. They may be called from the sink, and then cost no wake-up.
/// Outcomes go to the sink, each exactly once, in any order.
///
/// Dropping the worker cancels receives, gives sends and endpoints 2 s to end by agreement, destroys UCX's worker with the
/// rest, and joins the thread: every event is told before `drop` returns. If the sink drops the worker, the thread does the
/// same after the sink has returned.
pub struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    address: Vec<u8>,
    skipped: Vec<String>,
}

/// What the handle and the thread share.
pub(super) struct Shared {
    commands: Mutex<Vec<Command>>,
    pub(super) wake: OwnedFd,
    pub(super) asleep: AtomicBool,
    endpoints: AtomicU64,
}

pub(super) enum Command {
    Connect {
        endpoint: EndpointId,
        address: Vec<u8>,
    },
    Close {
        endpoint: EndpointId,
        by_force: bool,
    },
    Send {
        id: u64,
        endpoint: EndpointId,
        tag: u64,
        span: HostSpan,
    },
    Receive {
        id: u64,
        tag: u64,
        mask: u64,
        span: HostSpan,
    },
    Cancel {
        id: u64,
    },
    Stop {
        /// Nothing is waited for.
        at_once: bool,
    },
}

/// What the thread tells once it has started.
pub(super) struct Started {
    pub(super) address: Vec<u8>,
    pub(super) skipped: Vec<String>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a worker of UCX with an address of {} bytes",
            self.address.len()
        )
    }
}

impl Shared {
    fn commands(&self) -> MutexGuard<'_, Vec<Command>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves all commands to `taken`, which is empty.
    pub(super) fn take(&self, taken: &mut Vec<Command>) {
        std::mem::swap(&mut *self.commands(), taken);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.commands().is_empty()
    }

    fn push(&self, command: Command) {
        self.commands().push(command);
        if self.asleep.swap(false, Ordering::SeqCst) {
            // Fails only if the counter is full, and then the thread is awake.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

impl Worker {
    /// Makes a context and a worker of UCX with the feature "tag matching" alone, and starts the thread. Blocks until
    /// UCX has opened its transports. The sink runs on the thread; while it runs, nothing moves.
    ///
    /// UCX offers no access to this process's memory beyond posted receives to peers that keep to its protocol. See
    /// [the trust that it takes](super#trust).
    ///
    /// # Errors
    /// If UCX refuses an option or has no transport, or if the system gives no thread or descriptor.
    pub fn start(
        ucx: &'static Ucx,
        options: Options,
        sink: Box<dyn FnMut(Event) + Send>,
    ) -> Result<Worker, UcxError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(std::io::Error::from)?;
        let shared = Arc::new(Shared {
            commands: Mutex::new(Vec::new()),
            wake,
            asleep: AtomicBool::new(false),
            endpoints: AtomicU64::new(0),
        });
        let (tell, told) = mpsc::sync_channel(1);
        let of_thread = shared.clone();
        let thread = thread::Builder::new()
            .name("transload-ucx".into())
            .spawn(move || progress::run(ucx, &options, of_thread, sink, &tell))?;
        let started: Result<Started, UcxError> =
            told.recv().expect("the thread tells before it ends");
        match started {
            Ok(Started { address, skipped }) => {
                let thread = Some(thread);
                Ok(Worker {
                    shared,
                    thread,
                    address,
                    skipped,
                })
            }
            Err(error) => {
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// Returns the address by which peers connect to this worker. It is valid as long as the worker.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// Returns the options of UCX that the worker would have set by itself, to see lost peers, and that this version
    /// of UCX does not have.
    pub fn skipped_settings(&self) -> &[String] {
        &self.skipped
    }

    /// Makes an endpoint that sends to the worker with that address. Does not block: sends are accepted at once, and a
    /// peer that does not answer becomes [`Event::EndpointLost`].
    ///
    /// Both sides must connect if both send.
    ///
    /// # Safety
    /// `address` has the bytes that [`Worker::address`] returned, of any process. UCX parses them without bounds.
    pub unsafe fn connect(&self, address: &[u8]) -> EndpointId {
        let endpoint = EndpointId(self.shared.endpoints.fetch_add(1, Ordering::Relaxed));
        let address = address.to_vec();
        self.shared.push(Command::Connect { endpoint, address });
        endpoint
    }

    /// Closes an endpoint by agreement, once all its sends have ended; new sends fail. Tells
    /// [`Event::EndpointClosed`]. Does nothing to an endpoint that is lost or closed.
    ///
    /// To the peer this is a loss. Agree on it first.
    pub fn close(&self, endpoint: EndpointId) {
        let by_force = false;
        self.shared.push(Command::Close { endpoint, by_force });
    }

    /// Closes an endpoint at once and fails its sends, and the receives that messages of its peer have matched. For a peer
    /// that is known to be gone. Tells [`Event::EndpointClosed`]. Does nothing if UCX has begun to close the endpoint by
    /// agreement.
    ///
    /// If the peer is not gone, UCX may abort it: the peer's process ended in 4 of 27 runs of UCX 1.22 where an endpoint
    /// was closed by force in the middle of a message.
    pub fn abort(&self, endpoint: EndpointId) {
        let by_force = true;
        self.shared.push(Command::Close { endpoint, by_force });
    }

    /// Sends the bytes of `span` with a tag. A message of a few kilobytes is done when UCX has a copy; a longer one when
    /// the peer has received it.
    ///
    /// # Safety
    /// Until the outcome of `id` is told, `span` is valid for reads and no code writes it.
    pub unsafe fn send(&self, id: u64, endpoint: EndpointId, tag: u64, span: HostSpan) {
        self.shared.push(Command::Send {
            id,
            endpoint,
            tag,
            span,
        });
    }

    /// Receives one message whose tag equals `tag` in the bits of `mask`, from any peer. A message that is longer than
    /// `span` fails the receive, and nothing is written past the span. Receives that match the same message are served
    /// in the order of the calls.
    ///
    /// # Safety
    /// Until the outcome of `id` is told, `span` is valid for writes and no other code reads or writes it.
    pub unsafe fn receive(&self, id: u64, tag: u64, mask: u64, span: HostSpan) {
        self.shared.push(Command::Receive {
            id,
            tag,
            mask,
            span,
        });
    }

    /// Asks to cancel the receives of that number. A receive that no message has matched fails at once. A matched one
    /// ends as if it was not cancelled. Sends cannot be cancelled.
    pub fn cancel(&self, id: u64) {
        self.shared.push(Command::Cancel { id });
    }

    /// Has UCX make no progress any more, and destroys UCX's worker a second later, which ends all sends and receives. No call may
    /// follow. For peers that are lost, in place of [`Worker::abort`], after which UCX goes on and may abort this process, too.
    pub(super) fn end(&self) {
        self.shared.push(Command::Stop { at_once: true });
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.push(Command::Stop { at_once: false });
        if let Some(thread) = self
            .thread
            .take()
            .filter(|thread| thread.thread().id() != thread::current().id())
        {
            // A panic of the sink was reported when it happened.
            let _ = thread.join();
        }
    }
}
