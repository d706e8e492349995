//! The common part of all copies: the route of the bytes, the times at which they are read and written, and the calls
//! that wait.
//!
//! Source: CUDA Driver API, API synchronization behavior. Bytes are read and written when their modelled time is over.
//! The exception is a copy from pageable memory to a device: the call waits for the stream, stages the bytes, and
//! returns before they have arrived. A copy from a device to pageable memory returns when it is done, an asynchronous
//! one too, as the documentation allows; so does a copy within the host. A device that walks the host's page tables
//! reads and writes pageable memory like pinned memory: nothing "must first be staged" there. Managed memory counts as
//! pinned host memory: the place of its pages is not modelled.

use std::sync::MutexGuard;

use transload_cuda::raw::{CUcontext, CUctx_flags, CUdevice, CUresult, CUstream};

use crate::access::Access;
use crate::answer::Answer;
use crate::bytes::{self, Memory, Place};
use crate::call::Call;
use crate::engine::{Action, Work};
use crate::log::Count;
use crate::machine::{self, Machine};
use crate::state::State;
use crate::stream::wait;
use crate::work::Leg;

/// Whether a function is one of those called synchronous. What that means depends on the memories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Synchronous,
    Asynchronous,
}

/// When a source is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// After what comes before it in the stream.
    Stream,
    /// Before the call returns, whatever comes before it.
    DuringCall,
    /// At any time. The bytes are read at the end, from pageable memory too: the caller promised not to change them.
    Any,
}

/// The kind of address that a function expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// One of the host's: not a device's memory.
    Host,
    /// One that devices reach: not pageable memory.
    Device,
    /// Any memory.
    Unified,
}

/// One end of a copy.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) place: Place,
    /// The context that owns the memory; null if no context does.
    pub(crate) context: CUcontext,
}

/// Planes of rows of bytes, in two memories. Lengths and steps are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) src: Steps,
    pub(crate) dst: Steps,
}

/// From one row to the next, and from one plane to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Steps {
    pub(crate) row: usize,
    pub(crate) plane: usize,
}

impl Shape {
    /// `len` bytes in a row.
    pub(crate) fn line(len: usize) -> Shape {
        Shape {
            width: len,
            height: 1,
            depth: 1,
            src: Steps::default(),
            dst: Steps::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.width * self.height * self.depth
    }

    /// From the first byte to the last; `None` if that exceeds the address space.
    pub(crate) fn extent(&self, steps: Steps) -> Option<usize> {
        if self.width == 0 || self.height == 0 || self.depth == 0 {
            return Some(0);
        }
        let planes = (self.depth - 1).checked_mul(steps.plane)?;
        let rows = (self.height - 1).checked_mul(steps.row)?;
        planes.checked_add(rows)?.checked_add(self.width)
    }

    /// Where each row begins, in the source and in the destination.
    fn rows(&self) -> impl Iterator<Item = (usize, usize)> {
        let shape = *self;
        let at = move |steps: Steps, plane, row| plane * steps.plane + row * steps.row;
        (0..shape.depth).flat_map(move |plane| {
            (0..shape.height).map(move |row| (at(shape.src, plane, row), at(shape.dst, plane, row)))
        })
    }
}

/// A copy.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) src: End,
    pub(crate) dst: End,
    pub(crate) shape: Shape,
    pub(crate) order: Order,
}

impl State {
    /// The end of a copy at an address.
    ///
    /// # Errors
    /// `INVALID_VALUE` if a part of it is unused, or if it is not of the kind that the function expects.
    pub(crate) fn end(&self, address: u64, len: usize, taken: Taken) -> Result<End, CUresult> {
        let place = self.space.place(address, len as u64)?;
        let fits = match (taken, place.memory) {
            (Taken::Unified, _) => true,
            (Taken::Host, memory) => !matches!(memory, Memory::Device(_)),
            (Taken::Device, memory) => memory != Memory::Pageable,
        };
        if !fits {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let owner = self.space.at(address).map(|of| of.context);
        Ok(End {
            place,
            context: owner.unwrap_or(CUcontext::NULL),
        })
    }
}

/// Whether synchronous functions are to wait in the current context, whatever the memories are.
///
/// # Errors
/// As [`Call::current`].
pub(crate) fn always_waits(call: &Call, state: &State) -> Result<bool, CUresult> {
    let (current, _) = call.current(state)?;
    Ok(state.context(current)?.flags & CUctx_flags::CU_CTX_SYNC_MEMOPS.0 != 0)
}

/// Puts copies that start together into a stream, and waits as far as the kind of the function and the memories require
/// it. Releases the lock under which the ends were found.
///
/// # Errors
/// `INVALID_VALUE` for mapped memory that no device may read, or write; what becomes of the context before the call
/// returns; and as [`State::enqueue`].
pub(crate) fn carry_out(
    call: &Call,
    mut state: MutexGuard<'_, State>,
    stream: CUstream,
    mode: Mode,
    transfers: Vec<Transfer>,
) -> Answer {
    let may = |of: &Transfer| of.src.place.access.is_read() && of.dst.place.access.is_written();
    if !transfers.iter().all(may) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let number = state.stream_number(stream)?;
    let (before, ruin) = state.unfinished(number)?;
    let always = mode == Mode::Synchronous && always_waits(call, &state)?;
    drop(state);
    let machine = &call.world.machine;
    if transfers.iter().any(|transfer| transfer.is_staged(machine)) {
        wait(call, &before, &ruin)?;
    }
    let waits = always || transfers.iter().any(|of| of.waits(mode, machine));
    let transfers = transfers.into_iter();
    let prepared: Vec<_> = transfers.map(|of| of.prepared(machine)).collect();
    let mut state = call.state();
    let legs = prepared
        .into_iter()
        .map(|(transfer, staged)| transfer.leg(call, &state, staged))
        .collect();
    let ticket = state.enqueue(call.world, stream, legs)?;
    drop(state);
    if waits {
        wait(call, &[ticket], &ruin)
    } else {
        Ok(())
    }
}

impl Transfer {
    /// Pageable memory on its way to a device is taken away in stream order.
    fn is_staged(&self, machine: &Machine) -> bool {
        let leaves_pageable = matches!(
            self.memories(machine),
            (Memory::Pageable, Memory::Device(_))
        );
        self.order == Order::Stream && leaves_pageable
    }

    /// The kinds of memory of the two ends: for a device that walks the page tables, pageable memory counts as pinned.
    fn memories(&self, machine: &Machine) -> (Memory, Memory) {
        use Memory::{Device, Pageable, Pinned};
        match (self.src.place.memory, self.dst.place.memory) {
            (Pageable, Device(device)) if machine.walks_page_tables(device) => {
                (Pinned, Device(device))
            }
            (Device(device), Pageable) if machine.walks_page_tables(device) => {
                (Device(device), Pinned)
            }
            ends => ends,
        }
    }

    fn waits(&self, mode: Mode, machine: &Machine) -> bool {
        use Memory::{Device, Managed, Pageable, Pinned};
        match self.memories(machine) {
            (Pageable | Device(_), Device(_)) => false,
            (_, Pageable) | (Pageable, _) | (Pinned, Pinned) => true,
            (Pinned | Managed, Device(_))
            | (Device(_), Pinned | Managed)
            | (Managed, Pinned)
            | (Pinned | Managed, Managed) => mode == Mode::Synchronous,
        }
    }

    /// With the bytes of the source, where they are to be taken away now.
    fn prepared(self, machine: &Machine) -> (Transfer, Option<Vec<u8>>) {
        let staged = (self.is_staged(machine) || self.order == Order::DuringCall).then(|| {
            let mut staged = vec![0; self.shape.len()];
            let width = self.shape.width;
            for ((from, _), row) in self.shape.rows().zip(staged.chunks_exact_mut(width)) {
                // SAFETY: the row lies within the source, which the caller promised to be readable now.
                unsafe { self.src.place.read(from, row) };
            }
            staged
        });
        (self, staged)
    }

    /// The works of the copy, which is counted as done.
    fn leg(self, call: &Call, state: &State, staged: Option<Vec<u8>>) -> Leg {
        let Transfer {
            src, dst, shape, ..
        } = self;
        let route = Route::between(call, state, &src, &dst);
        let len = shape.len() as u64;
        route.count(call, len);
        let spoils = matches!(route.peers, Some(Peers::Corrupting));
        let passes = route.passes.iter();
        let mut works: Vec<Work> = passes.map(|pass| work(call, *pass, len)).collect();
        if let Some(last) = works.last_mut() {
            last.action = Action::Move(Box::new(move || {
                match &staged {
                    Some(bytes) => write(bytes, &dst.place, shape),
                    None => copy(&src.place, &dst.place, shape),
                }
                if spoils {
                    spoil(&dst.place, shape);
                }
            }));
        }
        works
    }
}

/// The route of bytes from one device to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peers {
    /// Over a link between them.
    Direct,
    /// The same, and bytes arrive changed.
    Corrupting,
    /// Over the host.
    Staged,
}

impl State {
    pub(crate) fn peers(&self, call: &Call, src: (usize, &End), dst: (usize, &End)) -> Peers {
        let [from, to] = [src.0, dst.0].map(machine::Memory::Device);
        let linked = call.world.machine.way(from, to).is_some();
        if !linked || !self.is_enabled(src, dst) {
            Peers::Staged
        } else if call.world.faults.corrupts(src.0 as i32, dst.0 as i32) {
            Peers::Corrupting
        } else {
            Peers::Direct
        }
    }

    /// Whether one of the two devices reaches both ends.
    fn is_enabled(&self, src: (usize, &End), dst: (usize, &End)) -> bool {
        [src, dst].into_iter().any(|(device, own)| {
            let by = (CUdevice(device as i32), own.context);
            self.reaches(by, src, Access::reads) && self.reaches(by, dst, Access::writes)
        })
    }

    /// Whether a device reaches memory: its own, that to which a context of it was given access, and another process's
    /// that a context of it opened. For mapped memory only the access that was set for the device counts.
    fn reaches(
        &self,
        (device, own): (CUdevice, CUcontext),
        (at, end): (usize, &End),
        may: fn(Access, CUdevice) -> bool,
    ) -> bool {
        if end.place.access != Access::ALL {
            return may(end.place.access, device);
        }
        if at as i32 == device.0 {
            return true;
        }
        let opened = own == end.context && !own.is_null();
        opened
            || self.contexts.iter().any(|(number, context)| {
                let asked = own.is_null() || number == own.0.addr() as u64;
                asked && context.device == device && context.peers.contains(&end.context)
            })
    }
}

/// One link.
pub(crate) type Pass = (machine::Memory, machine::Memory);

/// The links that bytes go over, one after the other.
struct Route {
    passes: Vec<Pass>,
    /// How, if it is from one device to another.
    peers: Option<Peers>,
}

impl Route {
    fn between(call: &Call, state: &State, src: &End, dst: &End) -> Route {
        use machine::Memory::{Device, Pinned};
        let ends = (link_end(src.place.memory), link_end(dst.place.memory));
        match ends {
            (Device(from), Device(to)) if from != to => {
                let peers = state.peers(call, (from, src), (to, dst));
                let passes = match peers {
                    Peers::Staged => vec![(ends.0, Pinned), (Pinned, ends.1)],
                    Peers::Direct | Peers::Corrupting => vec![ends],
                };
                let peers = Some(peers);
                Route { passes, peers }
            }
            _ => Route {
                passes: vec![ends],
                peers: None,
            },
        }
    }

    fn count(&self, call: &Call, len: u64) {
        use machine::Memory::{Device, Pageable};
        let log = &call.world.log;
        match self.peers {
            Some(Peers::Staged) => log.add(Count::PeerStaged, 1),
            Some(Peers::Direct | Peers::Corrupting) => log.add(Count::PeerDirect, 1),
            None => {}
        }
        for (from, to) in &self.passes {
            if let (Pageable, Device(device)) | (Device(device), Pageable) = (from, to)
                && !call.world.machine.walks_page_tables(*device)
            {
                log.add(Count::PageableStaged, 1);
            }
            count_bytes(call, (*from, *to), len);
        }
    }
}

/// Counts bytes that are ordered to go over a link: those of work that is ruined or stuck, too.
pub(crate) fn count_bytes(call: &Call, (from, to): Pass, len: u64) {
    let link = format!("{} -> {}", name(from), name(to));
    call.world.log.add(Count::Bytes(link), len);
}

fn link_end(memory: Memory) -> machine::Memory {
    match memory {
        Memory::Pageable => machine::Memory::Pageable,
        Memory::Pinned | Memory::Managed => machine::Memory::Pinned,
        Memory::Device(ordinal) => machine::Memory::Device(ordinal),
    }
}

fn name(memory: machine::Memory) -> String {
    match memory {
        machine::Memory::Pageable => "pageable".into(),
        machine::Memory::Pinned => "pinned".into(),
        machine::Memory::Device(ordinal) => format!("device {ordinal}"),
    }
}

/// The time that bytes take over one link. Within the host no link is taken, and no time.
pub(crate) fn work(call: &Call, (from, to): Pass, len: u64) -> Work {
    let way = call.world.machine.way(from, to);
    Work {
        after: Vec::new(),
        channels: way.iter().map(|way| way.channel).collect(),
        duration_ns: way.map_or(0, |way| way.duration_ns(len)),
        action: Action::Nothing,
    }
}

fn copy(src: &Place, dst: &Place, shape: Shape) {
    for (from, to) in shape.rows() {
        // SAFETY: the rows lie within the places, which were found by the shape's extent. What else happens to
        // the bytes meanwhile is the client's to order.
        unsafe { bytes::copy(src, from, dst, to, shape.width) };
    }
}

/// Writes bytes whose rows lie one behind the other.
fn write(bytes: &[u8], dst: &Place, shape: Shape) {
    for ((_, to), row) in shape.rows().zip(bytes.chunks_exact(shape.width)) {
        // SAFETY: as in `copy`.
        unsafe { dst.write(to, row) };
    }
}

/// Changes a bit of every row, and of every page of it, as a bad link might.
fn spoil(dst: &Place, shape: Shape) {
    for (_, row) in shape.rows() {
        for at in (0..shape.width).step_by(4096) {
            let mut byte = [0];
            // SAFETY: as in `copy`.
            unsafe { dst.read(row + at, &mut byte) };
            byte[0] ^= 0x10;
            // SAFETY: as in `copy`.
            unsafe { dst.write(row + at, &byte) };
        }
    }
}
