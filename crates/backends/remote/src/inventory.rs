//! What another machine offers, as devices, memories and links of this one.

use transload_hal::{
    Access, BackendId, Cost, Curve, DeviceId, DeviceInfo, DeviceKind, EngineId, GUEST_KINDS,
    HOST_KINDS, HostReach, Inventory, Lack, Link, LinkClass, LinkId, MemoryId, MemoryInfo,
    MemoryKind, Name, Node, Passage, Piece, Uuid, defaults, host_links,
};

use crate::{NodeError, STREAMS, wire};

/// Operations of one transfer that keep a session busy: one waits for its answer while others move.
pub(crate) const DEPTH: u16 = 4;

/// The most that a machine may offer.
const MOST_DEVICES: usize = 256;
const MOST_MEMORIES: usize = 256;
const MOST_PIECES: usize = 64;
const MOST_PASSED: usize = 8;

/// The access of links over UCX, between two machines that trust each other. The first use proves it.
pub(crate) const UCX_ACCESS: Access = Access::Peer;

/// The memory of another machine that this process can map, if both are on one machine.
pub(crate) const MAPPABLE: MemoryId = DeviceId::CPU0.memory(MemoryKind::Shared);

/// The ways to another machine beside the session.
pub(crate) struct Ways {
    /// Whether this process can map its shared memory, where the other machine says so.
    pub(crate) mapped: Option<Result<(), String>>,
    /// Of UCX, if it was asked for: why it does not carry bytes, if it does not.
    pub(crate) ucx_fault: Option<Option<String>>,
}

/// Checks what the other machine offers, and describes it under the name that the machine has here.
pub(crate) fn inventory(
    node: Name,
    owner: [u8; 16],
    address: &str,
    offered: wire::Inventory,
    ways: &Ways,
) -> Result<Inventory, NodeError> {
    let refused = |what: &str, reason: &dyn std::fmt::Display| NodeError::Offer {
        node,
        what: what.into(),
        reason: reason.to_string(),
    };
    // What is known of each pair of memories takes room.
    for (what, count, most) in [
        ("devices", offered.devices.len(), MOST_DEVICES),
        ("memories", offered.memories.len(), MOST_MEMORIES),
    ] {
        if count > most {
            let reason = format!("{count} are more than {most}");
            return Err(refused(what, &reason));
        }
    }
    let (at, backend) = (Node::named(node), BackendId(node));
    let network = DeviceId::new(DeviceKind::NETWORK, 0).at(at);
    let mut all = Inventory {
        backend,
        devices: vec![DeviceInfo {
            id: network,
            backend,
            name: format!("TLS 1.3 to {address}"),
            // Processors encrypt.
            software: true,
            simulated: false,
            memory_bytes: None,
            driver: None,
            uuid: Some(Uuid(owner)),
            pci: None,
            numa_node: None,
        }],
        memories: Vec::new(),
        links: Vec::new(),
        lacks: Vec::new(),
        transform: None,
    };
    for device in offered.devices {
        let id: DeviceId = (device.id.parse()).map_err(|error| refused(&device.id, &error))?;
        if !id.node.is_here() {
            return Err(refused(&device.id, &"it belongs to a third machine"));
        }
        all.devices.push(DeviceInfo {
            id: id.at(at),
            backend,
            name: device.name,
            software: device.software,
            simulated: device.simulated,
            memory_bytes: device.memory_bytes,
            driver: device.driver,
            // Devices are named by UUIDs here, and this machine may be that one.
            uuid: None,
            pci: None,
            numa_node: None,
        });
    }
    // All that leaves this machine goes one way, whichever machine it goes to; the same holds for what comes.
    let engine = |index| EngineId {
        device: DeviceId::new(DeviceKind::NETWORK, 0),
        index,
    };
    for memory in offered.memories {
        let id: MemoryId = (memory.id.parse()).map_err(|error| refused(&memory.id, &error))?;
        let is_mapped = id == MAPPABLE && ways.mapped == Some(Ok(()));
        let lacking = ways.mapped.as_ref().filter(|_| id == MAPPABLE);
        let lacking = lacking.and_then(|mapped| mapped.as_ref().err());
        let id = id.device.at(at).memory(id.kind);
        if all.memories.iter().any(|known| known.id == id) {
            return Err(refused(&memory.id, &"it is listed twice"));
        }
        if !all.devices.iter().any(|device| device.id == id.device) {
            return Err(refused(&memory.id, &"its device was not listed"));
        }
        all.memories.push(MemoryInfo {
            id,
            backend,
            total_bytes: memory.total_bytes,
            max_alloc_bytes: memory.max_alloc_bytes,
            alignment: memory.alignment,
            host_addressable: is_mapped,
            staging: is_mapped,
            passage: passage(&memory, at).map_err(|error| refused(&memory.id, &error))?,
        });
        if is_mapped {
            let reach = HostReach::both_ways(id, Access::Native);
            all.links.extend(host_links(&[reach], &HOST_KINDS));
        }
        let [into, out_of] = [&memory.into, &memory.out_of].map(|way| curve(&way.cost));
        let into = into.map_err(|error| refused(&memory.id, &error))?;
        let out_of = out_of.map_err(|error| refused(&memory.id, &error))?;
        for kind in GUEST_KINDS {
            let here = DeviceId::CPU0.memory(kind);
            for (src, dst, index, there) in [(here, id, 0, &into), (id, here, 1, &out_of)] {
                all.lacks.extend(lacking.map(|reason| Lack {
                    src,
                    dst,
                    access: Access::Import,
                    reason: format!("this process cannot map it: {reason}").into(),
                }));
                let link = Link {
                    id: LinkId {
                        src,
                        dst,
                        engine: engine(index),
                        access: Access::Native,
                    },
                    backend,
                    class: LinkClass::Network,
                    cost: there.clone(),
                    pitched: true,
                    depth: DEPTH,
                };
                match &ways.ucx_fault {
                    None => {}
                    Some(None) => all.links.push(over_ucx(&link)),
                    Some(Some(reason)) => all.lacks.push(Lack {
                        src,
                        dst,
                        access: UCX_ACCESS,
                        reason: format!("UCX: {reason}").into(),
                    }),
                }
                all.links.push(link);
            }
        }
    }
    // The other machine copies among its own memories.
    let memories: Vec<MemoryId> = all.memories.iter().map(|memory| memory.id).collect();
    for src in &memories {
        for dst in &memories {
            all.links.push(Link {
                id: LinkId {
                    src: *src,
                    dst: *dst,
                    engine: EngineId {
                        device: dst.device,
                        index: 0,
                    },
                    access: Access::Native,
                },
                backend,
                class: LinkClass::Network,
                cost: Curve::from(Cost::from_rate(50_000, 10_000_000_000)),
                pitched: false,
                depth: DEPTH,
            });
        }
    }
    Ok(all)
}

/// Returns the link beside one over TLS, by the same network. It costs a message more, and no encryption.
fn over_ucx(link: &Link) -> Link {
    let mut over = link.clone();
    over.id.access = UCX_ACCESS;
    let pieces = link.cost.pieces().iter().map(|piece| Piece {
        cost: Cost::new(piece.cost.fixed_ns + 50_000, piece.cost.fs_per_byte / 2),
        ..*piece
    });
    if let Ok(cost) = Curve::new(pieces.collect()) {
        over.cost = cost;
    }
    over
}

/// Returns what bytes pass at the machine `at` between its network and a memory, its network included.
fn passage(memory: &wire::Memory, at: Node) -> Result<Passage, String> {
    let passes = |way: &wire::Way| {
        let names = way.passes.split_ascii_whitespace().take(MOST_PASSED + 1);
        let ids = names.map(|name| {
            let id: MemoryId = name.parse().map_err(|error| format!("{name}: {error}"))?;
            match id.device.node.is_here() {
                true => Ok(id.device.at(at).memory(id.kind)),
                false => Err(format!("{name} belongs to a third machine")),
            }
        });
        match ids.collect::<Result<Vec<_>, String>>()? {
            ids if ids.len() > MOST_PASSED => {
                Err(format!("more than {MOST_PASSED} memories on the way"))
            }
            ids => Ok(ids),
        }
    };
    let (mut into, mut out_of) = (passes(&memory.into)?, passes(&memory.out_of)?);
    let network = STREAMS.device.at(at).memory(STREAMS.kind);
    into.insert(0, network);
    out_of.push(network);
    Ok(Passage { into, out_of })
}

fn curve(pieces: &[wire::Piece]) -> Result<Curve, String> {
    if pieces.len() > MOST_PIECES {
        let count = pieces.len();
        return Err(format!(
            "{count} pieces of a curve are more than {MOST_PIECES}"
        ));
    }
    let pieces = pieces.iter().map(|piece| Piece {
        from_bytes: piece.from_bytes,
        cost: Cost::from_rate(piece.fixed_ns, piece.bytes_per_second.max(1)),
    });
    Curve::new(pieces.collect()).map_err(|error| error.to_string())
}

/// Returns the links by which one machine copies to another one, for the inventory of `backend`.
pub(crate) fn links_between_nodes(
    from: &Inventory,
    to: &Inventory,
    backend: BackendId,
) -> Vec<Link> {
    let pairs =
        { from.memories.iter() }.flat_map(|src| to.memories.iter().map(|dst| (src.id, dst.id)));
    // The two may take the network between them for trusted if this machine does so for both. They choose for themselves.
    let has_ucx = |of: &Inventory| of.links.iter().any(|link| link.id.access == UCX_ACCESS);
    let trusts = has_ucx(from) && has_ucx(to);
    let link = |(src, dst): (MemoryId, MemoryId)| {
        let link = Link {
            id: LinkId {
                src,
                dst,
                engine: EngineId {
                    device: DeviceId::new(DeviceKind::NETWORK, 0).at(src.device.node),
                    index: 2,
                },
                access: Access::Native,
            },
            backend,
            class: LinkClass::Network,
            cost: defaults::link_cost(LinkClass::Network).into(),
            pitched: false,
            depth: DEPTH,
        };
        let cost = over_ucx(&link).cost;
        match trusts {
            true => Link { cost, ..link },
            false => link,
        }
    };
    pairs.map(link).collect()
}
