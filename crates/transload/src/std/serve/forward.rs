//! The other nodes that a server connects to for its clients.

use std::collections::HashMap;
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use transload_core::Name;
use transload_hal::{Backend, ErrorClass, Fault};
use transload_remote::{GrantedBytes, NodeError, Options, PrivateKey, PublicKey, Remote};

use crate::{BackendId, Region, TransferManager};

/// The most other nodes of a server. Each has a session with a thread.
const MOST_NODES: usize = 256;

/// Sessions with other nodes, one for each key. They last as long as the server. A session that has ended is begun again for
/// the next copy.
pub(super) struct Nodes {
    manager: TransferManager,
    /// The server's own, since it is known to the other nodes by it.
    key: PrivateKey,
    options: Options,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    nodes: HashMap<PublicKey, Node>,
    is_closed: bool,
}

#[derive(Default)]
struct Node {
    remote: Option<Arc<Remote>>,
    /// While a thread connects, those that wait for it.
    waiting: Option<Vec<Told>>,
}

/// Told on some thread when there is a session, or none.
type Told = Box<dyn FnOnce(Result<Arc<Remote>, Fault>) + Send>;

impl Nodes {
    pub(super) fn new(
        manager: TransferManager,
        key: PrivateKey,
        mut options: Options,
    ) -> Arc<Nodes> {
        // It writes granted bytes alone, and has no lease there.
        options.maps_memory = false;
        Arc::new(Nodes {
            manager,
            key,
            options,
            known: Mutex::default(),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Each change is whole when it may panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the session with a node, at once or from a thread that connects. Does not block.
    pub(super) fn reach(self: &Arc<Nodes>, address: &str, key: PublicKey, told: Told) {
        let mut known = self.known();
        let is_known = known.nodes.contains_key(&key);
        if known.is_closed || !is_known && known.nodes.len() >= MOST_NODES {
            drop(known);
            let message = format!("the server has ended or has {MOST_NODES} other nodes");
            return told(Err(Fault::new(ErrorClass::Exhausted, message)));
        }
        let node = known.nodes.entry(key).or_default();
        if let Some(remote) = node.remote.as_ref().filter(|remote| remote.is_connected()) {
            let remote = Arc::clone(remote);
            drop(known);
            return told(Ok(remote));
        }
        if let Some(waiting) = &mut node.waiting {
            return waiting.push(told);
        }
        node.waiting = Some(Vec::from([told]));
        let (nodes, address, remote) =
            (Arc::clone(self), String::from(address), node.remote.clone());
        drop(known);
        let spawned = transload_hal::spawn("transload-forward".into(), move || {
            let found = nodes.connect(remote, &address, key);
            nodes.settle(key, found);
        });
        if let Err(error) = spawned {
            let fault = Fault::of_io("cannot connect to the other node", &error);
            self.settle(key, Err(fault));
        }
    }

    fn settle(&self, key: PublicKey, found: Result<Arc<Remote>, Fault>) {
        let waiting = {
            let mut known = self.known();
            if let (true, Ok(remote)) = (known.is_closed, &found) {
                remote.close();
            }
            let Some(node) = known.nodes.get_mut(&key) else {
                return;
            };
            let waiting = node.waiting.take();
            match &found {
                Ok(remote) => node.remote = Some(Arc::clone(remote)),
                Err(_) if node.remote.is_none() => drop(known.nodes.remove(&key)),
                Err(_) => {}
            }
            waiting
        };
        for told in waiting.into_iter().flatten() {
            told(found.clone());
        }
    }

    fn connect(
        &self,
        known: Option<Arc<Remote>>,
        address: &str,
        key: PublicKey,
    ) -> Result<Arc<Remote>, Fault> {
        let failed = |error: &dyn std::fmt::Display| {
            let message = format!("it cannot send them to the node at {address}: {error}");
            Fault::new(ErrorClass::Failed, message)
        };
        let unconnected = |error| match error {
            // The name is of no use to others.
            NodeError::Session { error, .. } => failed(&error),
            other => failed(&other),
        };
        if let Some(remote) = known {
            return match remote.reconnect(address) {
                Ok(()) => Ok(remote),
                Err(error) => Err(unconnected(error)),
            };
        }
        let name = self
            .unused_name(key)
            .ok_or_else(|| failed(&"its names are taken"))?;
        let remote = Remote::connect(name, address, &self.key, key, self.options.clone());
        let remote = Arc::new(remote.map_err(unconnected)?);
        self.manager
            .register_shared(Arc::clone(&remote) as Arc<dyn Backend>)
            .map_err(|error| failed(&error))?;
        Ok(remote)
    }

    /// Returns a name for the node with that key. An earlier server of the manager may have had it as a node, too.
    fn unused_name(&self, key: PublicKey) -> Option<Name> {
        let hex: String = key.0[..5]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let taken = self.manager.registered();
        let names = (0..1000).map(|number| match number {
            0 => format!("n{hex}"),
            number => format!("n{hex}-{number}"),
        });
        let names = names.filter_map(|name| Name::new(&name));
        names
            .into_iter()
            .find(|name| taken.iter().all(|known| known.id != BackendId(*name)))
    }

    /// Returns granted bytes at a node.
    pub(super) fn region(&self, remote: &Remote, bytes: GrantedBytes) -> Result<Region, Fault> {
        let failed = |message: String| Fault::new(ErrorClass::Failed, message);
        let memories = remote.inventory().memories;
        let memory = memories
            .first()
            .ok_or_else(|| failed("it offers no memory".into()))?;
        // SAFETY: the node that has the bytes orders their use, and has no other session write them.
        let buffer = unsafe { self.manager.adopt_native(memory.id.into(), bytes) };
        let buffer = buffer.map_err(|error| failed(format!("{error}")))?;
        Ok((&buffer).into())
    }

    /// Ends all sessions. Does not block.
    pub(super) fn close(&self) {
        let mut known = self.known();
        known.is_closed = true;
        let remotes = known.nodes.values().filter_map(|node| node.remote.as_ref());
        remotes.for_each(|remote| remote.close());
    }
}
