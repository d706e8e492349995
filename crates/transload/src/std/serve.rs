//! Offers memories of this machine to other machines.

mod descriptors;
mod forward;
mod grant;
mod guest;
mod order;
mod ready;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::vec::Vec;

use transload_core::{ByteSize, MemoryId, Name, Place};
use transload_remote::{
    Listener, PrivateKey, PublicKey, Remote, STREAMS, Session, SessionHandle, Streams, wire,
};

use crate::{Error, TransferManager};
use descriptors::{Descriptors, Files};
use forward::Nodes;
use guest::Guest;
use order::Order;

/// The most sessions that a server has at once. Each has a thread.
const MOST_SESSIONS: usize = 1024;

/// What a server offers, and to which machines.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Where it listens. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// The server's key.
    pub key: PrivateKey,
    /// The keys of the machines that may connect.
    pub allow: Vec<PublicKey>,
    /// The memories in which they may allocate. A device stands for its default memory.
    pub offer: Vec<Place>,
    /// How many bytes all of them together may hold at once.
    pub limit_bytes: u64,
    /// Lets clients have this machine connect to other nodes, at addresses and with keys that the clients name, and write
    /// bytes there that those nodes have granted. The other nodes must allow this server's key. If `false`, clients copy
    /// through themselves. `true`.
    ///
    /// Such a node is a backend of the manager, `n` and the first digits of its key, as long as the manager lives.
    pub forward: bool,
    /// The limits of sessions, and whether the network is trusted.
    pub session: transload_remote::Options,
}

impl ServeOptions {
    /// Listens on a free port of the loopback, lets no machine connect and offers nothing yet.
    pub fn new(key: PrivateKey, limit_bytes: u64) -> ServeOptions {
        ServeOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            key,
            allow: Vec::new(),
            offer: Vec::new(),
            limit_bytes,
            forward: true,
            session: transload_remote::Options::default(),
        }
    }
}

/// Why memories are not offered to other machines.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {}", transload_hal::SystemError(error))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
    /// No machine could connect.
    #[error("no public key is allowed: name that of each machine that may connect")]
    NoKeys,
    /// Nothing could be allocated.
    #[error("no memory is offered: name one, as in cpu:0")]
    NoOffer,
    /// A memory that others cannot allocate in.
    #[error("{memory} cannot be offered: {reason}")]
    Offer {
        /// The memory.
        memory: MemoryId,
        /// Why not.
        reason: &'static str,
    },
    /// A place that is not on this machine, or a manager that cannot serve.
    #[error(transparent)]
    Manager(#[from] Error),
}

impl ServeError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> crate::ErrorClass {
        match self {
            ServeError::Manager(error) => error.class(),
            ServeError::Listen { error, .. } => crate::ErrorClass::of_io(error),
            _ => crate::ErrorClass::Caller,
        }
    }
}

/// Serves other machines until it is dropped. Each session has a thread.
#[derive(Debug)]
pub struct Server {
    serving: Arc<Serving>,
    address: SocketAddr,
    listener: Arc<Listener>,
    /// `None` if no process of this machine maps leases.
    descriptors: Option<Descriptors>,
    thread: Option<JoinHandle<()>>,
}

/// What the sessions of a server share.
pub(crate) struct Serving {
    manager: TransferManager,
    streams: Arc<Streams>,
    offered: Vec<MemoryId>,
    limit_bytes: u64,
    used_bytes: AtomicU64,
    /// The number of the next lease.
    leases: AtomicU64,
    sessions: Mutex<Sessions>,
    order: Mutex<Order>,
    /// `None` if this machine does not connect to other nodes.
    nodes: Option<Arc<Nodes>>,
    /// The leases of which processes of this machine get descriptors; `None` if none is offered that has one.
    files: Option<Files>,
}

#[derive(Default)]
struct Sessions {
    last: u64,
    /// `None` until a session has its handle.
    open: HashMap<u64, Option<SessionHandle>>,
}

impl Server {
    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns how many machines are connected.
    pub fn sessions(&self) -> usize {
        self.serving.sessions().open.len()
    }

    /// Returns how many bytes they hold.
    pub fn used_bytes(&self) -> u64 {
        self.serving.used_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    /// Ends all sessions, and blocks until they have ended.
    fn drop(&mut self) {
        self.listener.stop();
        // Its thread may hold a lease, and so what the sessions share.
        self.descriptors = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported already.
            let _ = thread.join();
        }
        let open: Vec<SessionHandle> = {
            let mut sessions = self.serving.sessions();
            sessions
                .open
                .drain()
                .filter_map(|(_, session)| session)
                .collect()
        };
        open.iter().for_each(SessionHandle::close);
        // Sessions wait for copies to other nodes.
        if let Some(nodes) = &self.serving.nodes {
            nodes.close();
        }
        open.iter().for_each(SessionHandle::join);
    }
}

impl Serving {
    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        // Each change is whole when it may panic.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        // Each change is whole when it may panic.
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes so many bytes of the limit.
    fn charge(self: &Arc<Serving>, bytes: u64) -> Result<Charge, transload_hal::Fault> {
        let fits = |used: u64| {
            used.checked_add(bytes)
                .filter(|sum| *sum <= self.limit_bytes)
        };
        let order = Ordering::Relaxed;
        match self.used_bytes.fetch_update(order, order, fits) {
            Ok(_) => Ok(Charge {
                serving: Arc::clone(self),
                bytes,
            }),
            Err(used) => {
                let [asked, used, limit] = [bytes, used, self.limit_bytes].map(ByteSize);
                let message =
                    format!("{asked} more than the {used} in use exceed the limit of {limit}");
                let class = transload_hal::ErrorClass::Exhausted;
                Err(transload_hal::Fault::new(class, message))
            }
        }
    }

    /// Describes what is offered, with the times that copies would take from the network and to it.
    fn inventory(&self) -> wire::Inventory {
        let topology = self.manager.opened();
        let is_offered = |memory: &&transload_hal::MemoryInfo| self.offered.contains(&memory.id);
        let memories = topology.memories().iter().filter(is_offered);
        let memories = memories.map(|memory| wire::Memory {
            id: memory.id.to_string(),
            total_bytes: memory.total_bytes,
            max_alloc_bytes: memory.max_alloc_bytes.min(self.limit_bytes),
            alignment: memory.alignment,
            into: self.way(STREAMS, memory.id),
            out_of: self.way(memory.id, STREAMS),
        });
        let has_offered = |device: &&transload_hal::DeviceInfo| {
            self.offered.iter().any(|of| of.device == device.id)
        };
        let devices = topology.devices().iter().filter(has_offered);
        wire::Inventory {
            devices: devices
                .map(|device| wire::Device {
                    id: device.id.to_string(),
                    name: device.name.clone(),
                    software: device.software,
                    simulated: device.simulated,
                    memory_bytes: device.memory_bytes,
                    driver: device.driver.clone(),
                })
                .collect(),
            memories: memories.collect(),
            forwards: self.nodes.is_some(),
            descriptors: self.files.as_ref().map(|files| files.name),
        }
    }

    /// Returns what a copy between two memories costs by this machine's plans, in straight pieces between a few sizes, and
    /// what the largest one passes.
    fn way(&self, src: MemoryId, dst: MemoryId) -> wire::Way {
        // No copy of 0 bytes is planned, so none has a price.
        const SIZES: [u64; 5] = [1, 64 << 10, 1 << 20, 16 << 20, 256 << 20];
        let mut passes = String::new();
        let mut predicted = |bytes| {
            let explained = self.manager.explain_places(src.into(), dst.into(), bytes);
            let chosen = explained.ok()?.chosen;
            if let [_, between @ .., _] = &chosen.route[..] {
                let names: Vec<String> = between.iter().map(ToString::to_string).collect();
                passes = names.join(" ");
            }
            chosen.predicted_ns
        };
        let times: Vec<(u64, u64)> = { SIZES.into_iter() }
            .filter_map(|bytes| Some((bytes, predicted(bytes)?)))
            .collect();
        let pieces = times.windows(2).map(|pair| {
            let [(from, from_ns), (to, to_ns)] = [pair[0], pair[1]];
            let (bytes, ns) = (to - from, to_ns.saturating_sub(from_ns).max(1));
            let rate = u128::from(bytes) * 1_000_000_000 / u128::from(ns);
            let before = u128::from(from) * u128::from(ns) / u128::from(bytes);
            wire::Piece {
                from_bytes: if from == 1 { 0 } else { from },
                fixed_ns: from_ns.saturating_sub(u64::try_from(before).unwrap_or(u64::MAX)),
                bytes_per_second: u64::try_from(rate).unwrap_or(u64::MAX),
            }
        });
        wire::Way {
            cost: pieces.collect(),
            passes,
        }
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("offered", &self.offered)
            .field("limit_bytes", &self.limit_bytes)
            .field("used_bytes", &self.used_bytes)
            .finish_non_exhaustive()
    }
}

/// A part of a server's limit that a lease has. Returned when the last holder drops it.
pub(crate) struct Charge {
    serving: Arc<Serving>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.serving
            .used_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl TransferManager {
    /// Offers memories of this machine to other machines, until the server is dropped. Does not block.
    ///
    /// A machine that connects proves that it has a key of [`ServeOptions::allow`], as this one proves its own. All that
    /// passes over the network is encrypted, unless [`ServeOptions::session`] takes the network for trusted. It can allocate in the
    /// memories that are offered, up to the limit, copy to and from what it has allocated, and have it copied to another machine
    /// (not without [`ServeOptions::forward`]), and nothing else. Its memory is freed when its session ends.
    ///
    /// On Linux, a client of the same user and machine gets descriptors of what it allocates in `cpu:0/shared`, and maps them: it
    /// may read and write these bytes at any time, also while this machine copies them, and keeps them when its session has ended.
    ///
    /// # Errors
    /// As [`ServeError`] lists.
    pub fn serve(&self, options: ServeOptions) -> Result<Server, ServeError> {
        if options.allow.is_empty() {
            return Err(ServeError::NoKeys);
        }
        if options.offer.is_empty() {
            return Err(ServeError::NoOffer);
        }
        let streams = match self.backend::<Streams>() {
            Some(streams) => streams,
            None => {
                let streams = Arc::new(Streams::new());
                self.register_shared(Arc::clone(&streams) as Arc<dyn crate::Backend>)
                    .map_err(Error::from)?;
                streams
            }
        };
        let mut offered = Vec::new();
        for place in options.offer {
            let memory = self.resolve(place).map_err(Error::from)?;
            let reason = match memory {
                STREAMS => Some("it stands for the sessions of other machines"),
                _ if !memory.device.node.is_here() => Some("it belongs to another machine"),
                _ if memory.kind.is_file() => Some("files are not allocated"),
                _ if memory.kind.takes_turns() => Some("it is for staging"),
                _ => None,
            };
            if let Some(reason) = reason {
                return Err(ServeError::Offer { memory, reason });
            }
            if !offered.contains(&memory) {
                offered.push(memory);
            }
        }
        let address = options.listen;
        let failed = |error| ServeError::Listen { address, error };
        let listener = Arc::new(Listener::bind(address).map_err(failed)?);
        let (files, descriptors) = Files::serve(self, &offered).unzip();
        let serving = Arc::new(Serving {
            manager: self.clone(),
            streams,
            files,
            offered,
            limit_bytes: options.limit_bytes,
            used_bytes: AtomicU64::new(0),
            leases: AtomicU64::new(1),
            sessions: Mutex::default(),
            order: Mutex::default(),
            nodes: (options.forward)
                .then(|| Nodes::new(self.clone(), options.key.clone(), options.session.clone())),
        });
        let address = listener.address();
        let thread = {
            let (serving, listener) = (Arc::clone(&serving), Arc::clone(&listener));
            let (key, allow, session) = (options.key, options.allow, options.session);
            let accept = move || {
                while let Some(stream) = listener.accept() {
                    serving.admit(stream, &key, &allow, &session);
                }
            };
            transload_hal::spawn("transload-serve".into(), accept).map_err(failed)?
        };
        Ok(Server {
            serving,
            address,
            listener,
            descriptors,
            thread: Some(thread),
        })
    }

    /// Connects to a machine that [serves](TransferManager::serve), and calls it `node`: its memories are places from now
    /// on, as in `box2/cuda:0`. Blocks until the other machine has said what it offers, at most about 10 s.
    ///
    /// Copies between two such machines go straight from one to the other where [`ServeOptions::forward`] of the one with the
    /// source allows it: it connects to the other one at the `address` that was given here, with its own key, which the other
    /// one must allow. If it cannot, the bytes go through this process.
    ///
    /// Where the other machine is this one, its shared memory is mapped: `box2/cpu:0/shared` has addresses for guards then.
    ///
    /// When the session ends, for whatever reason, the buffers at that machine are lost. The next allocation there connects
    /// again.
    ///
    /// # Errors
    /// When a backend or machine has that name; when the other machine cannot be reached, has another key, does not allow
    /// this machine's key, or speaks another version.
    pub fn connect(
        &self,
        node: Name,
        address: &str,
        key: &PrivateKey,
        peer: PublicKey,
    ) -> Result<(), Error> {
        self.connect_with(
            node,
            address,
            key,
            peer,
            transload_remote::Options::default(),
        )
    }

    /// As [`TransferManager::connect`], with other limits, or over a network that is trusted
    /// ([`trusted_network`](transload_remote::Options::trusted_network)).
    ///
    /// # Errors
    /// As [`TransferManager::connect`].
    pub fn connect_with(
        &self,
        node: Name,
        address: &str,
        key: &PrivateKey,
        peer: PublicKey,
        options: transload_remote::Options,
    ) -> Result<(), Error> {
        let backend = crate::BackendId(node);
        if self.registered().iter().any(|known| known.id == backend) {
            return Err(crate::RegisterError::Duplicate { backend }.into());
        }
        let others = self.backends_of::<Remote>();
        let remote = Remote::connect(node, address, key, peer, options)?;
        self.register_backend(remote.reaching(others))?;
        Ok(())
    }
}

impl Serving {
    /// Begins a session with a machine that has connected.
    fn admit(
        self: &Arc<Serving>,
        stream: std::net::TcpStream,
        key: &PrivateKey,
        allow: &[PublicKey],
        options: &transload_remote::Options,
    ) {
        let number = {
            let mut sessions = self.sessions();
            if sessions.open.len() >= MOST_SESSIONS {
                return;
            }
            sessions.last += 1;
            let number = sessions.last;
            sessions.open.insert(number, None);
            number
        };
        let guest = Guest::new(Arc::clone(self), number);
        let link = guest.link();
        // The peer learns of a failure by the end of the connection.
        let session = Session::accept(stream, key, allow, guest, options.clone());
        let mut sessions = self.sessions();
        match session {
            Ok(session) => {
                link.begin(session.clone());
                // Unless it has ended already.
                if let Some(open) = sessions.open.get_mut(&number) {
                    *open = Some(session);
                }
            }
            Err(_) => drop(sessions.open.remove(&number)),
        }
    }
}
