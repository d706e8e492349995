//! Buffers at another machine: leases of its memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use transload_hal::{
    AllocError, AllocSpec, BackendId, Buffer, Entered, ErrorClass, External, ExternalKind, Fault,
    ImportError, IpcHandle, MemoryId, Node, Span, StorageId, StorageInfo, Use, Uuid,
};

use crate::descriptors::{Mapping, Token};
use crate::forward::Granted;
use crate::inventory::MAPPABLE;
use crate::queue::{End, Job, Line, Operation};
use crate::wire::{self, Message};

/// A view of memory at another machine.
pub(crate) struct Lease {
    held: Arc<Held>,
    /// The place of a transfer in the other machine's order.
    turn: Option<Arc<Turn>>,
}

/// Memory at another machine, which frees it when this is dropped or the session ends.
struct Held {
    line: Arc<Line>,
    id: u64,
    /// Others may use it, too.
    is_shared: AtomicBool,
    /// Where this process has the same bytes, if the other machine is this one. The length is sealed, so the bytes stay
    /// when the session ends.
    mapping: Option<Mapping>,
}

/// A place in the other machine's order, given up when this is dropped.
struct Turn {
    line: Arc<Line>,
    id: u64,
}

impl Held {
    fn new(line: &Arc<Line>, id: u64, is_shared: bool) -> Held {
        Held {
            line: Arc::clone(line),
            id,
            is_shared: AtomicBool::new(is_shared),
            mapping: None,
        }
    }

    /// Maps the bytes, if the other machine has a descriptor of them and is this one.
    fn map(
        &mut self,
        memory: MemoryId,
        token: Option<Token>,
        (len, align): (u64, u64),
    ) -> Result<(), Fault> {
        let token = token.filter(|_| local(memory) == MAPPABLE);
        if let Some((name, token)) = self.line.descriptors.get().zip(token) {
            let mapping = Mapping::of(name, &token, len, align);
            let mapping = mapping.map_err(|reason| {
                let message = format!("{}: cannot map its memory: {reason}", self.line.node);
                Fault::new(ErrorClass::Failed, message)
            })?;
            self.mapping = Some(mapping);
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.line.tell(Message::Free { lease: self.id });
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.line.leave(self.id);
    }
}

impl Lease {
    /// Returns the number of the lease in its session.
    pub(crate) fn id(&self) -> u64 {
        self.held.id
    }

    /// Returns the session that has the lease.
    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.held.line
    }

    /// Returns whether other programs may use it, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.held.is_shared.load(Ordering::Acquire)
    }

    /// Returns the number of the transfer's place in the order; 0 where it needs none.
    pub(crate) fn reservation(&self) -> u64 {
        self.turn.as_ref().map_or(0, |turn| turn.id)
    }
}

/// Allocates at the other machine. Blocks until it has answered.
pub(crate) fn allocate(
    line: &Arc<Line>,
    memory: MemoryId,
    spec: &AllocSpec,
) -> Result<Buffer, AllocError> {
    let answer = line.ask(|id| Message::Allocate {
        id,
        memory: local(memory).to_string(),
        len: spec.len_bytes,
        align: spec.alignment,
        mapped: line.descriptors.get().is_some() && local(memory) == MAPPABLE,
    });
    let (id, answer) = answer.map_err(|fault| match fault.class {
        ErrorClass::Exhausted => AllocError::OutOfMemory {
            memory,
            len_bytes: spec.len_bytes,
            fault,
        },
        _ => AllocError::Failed { memory, fault },
    })?;
    let Message::Allocated {
        number, descriptor, ..
    } = answer
    else {
        let fault = unfit(line, &answer);
        return Err(AllocError::Failed { memory, fault });
    };
    let mut held = Held::new(line, id, false);
    held.map(memory, descriptor, (spec.len_bytes, spec.alignment))
        .map_err(|fault| AllocError::Failed { memory, fault })?;
    Ok(buffer(held, memory, number, spec.len_bytes))
}

/// Makes the buffer of a lease that the other machine has granted.
fn buffer(held: Held, memory: MemoryId, number: u64, len_bytes: u64) -> Buffer {
    let (owner, backend) = (held.line.owner(), BackendId(held.line.node));
    let host = held.mapping.as_ref().map(Mapping::span);
    let lease = Lease {
        held: Arc::new(held),
        turn: None,
    };
    let info = StorageInfo {
        id: StorageId::Remote { owner, number },
        base: 0,
        len_bytes,
        memory,
        backend,
        writable: true,
        host,
    };
    // SAFETY: the lease keeps the mapping, if there is one, which has so many bytes and keeps them. The machine that has
    // the bytes orders their use.
    unsafe { Buffer::new(info, Box::new(lease)) }
}

/// Gives a transfer its place in the other machine's order, if others use one of its ends, too. Fails if the session of an end has
/// ended: its bytes are lost, even those that this process has mapped.
pub(crate) fn enter(line: &Arc<Line>, uses: &[Use<'_>]) -> Result<Option<Entered>, Fault> {
    let is_granted = |part: &Use<'_>| part.part.buffer.native::<Granted>().is_some();
    if uses.iter().any(is_granted) {
        return Ok(None);
    }
    let lease = |part: &Use<'_>| {
        let lease = part.part.buffer.native::<Lease>();
        lease.map(|lease| Arc::clone(&lease.held))
    };
    let leases: Option<Vec<_>> = uses.iter().map(lease).collect();
    let leases = leases.ok_or_else(|| {
        let message = format!("a buffer is none of {}", line.node);
        Fault::new(ErrorClass::Caller, message)
    })?;
    if let Some(fault) = leases
        .iter()
        .find_map(|of| of.line.commands().closed.clone())
    {
        return Err(fault);
    }
    if !leases.iter().any(|of| of.is_shared.load(Ordering::Acquire)) {
        return Ok(None);
    }
    // The session of the leases, which may not be the one of now.
    let line = leases.first().map_or(line, |lease| &lease.line);
    if let Some(other) = leases.iter().find(|of| !Arc::ptr_eq(&of.line, line)) {
        let message = format!(
            "the sessions of leases {} and {} differ",
            leases[0].id, other.id
        );
        return Err(Fault::new(ErrorClass::Caller, message));
    }
    let line = &Arc::clone(line);
    let id = line.number();
    let told = { uses.iter().zip(&leases) }.map(|(part, held)| wire::Use {
        lease: held.id,
        offset: part.part.buffer.span().offset + part.part.offset,
        len: part.part.len_bytes,
        writes: part.writes,
    });
    let message = Message::Enter {
        id,
        uses: told.collect(),
    };
    let fence = line
        .board
        .begin(1, 0)
        .map_err(transload_hal::SubmitError::into_fault)?;
    let operation = Operation {
        id,
        job: Job {
            board: Arc::clone(&line.board),
            number: fence.number(),
        },
        message,
        end: End::Turn,
        len_bytes: 0,
    };
    if let Err(fault) = line.start(vec![operation]) {
        line.board.forget(fence);
        return Err(fault);
    }
    let turn = Arc::new(Turn {
        line: Arc::clone(line),
        id,
    });
    let view = |(part, held): (&Use<'_>, Arc<Held>)| {
        let before = part.part.buffer;
        let lease = Lease {
            held,
            turn: Some(Arc::clone(&turn)),
        };
        // SAFETY: it shows the bytes of the buffer before it, whose lease it holds.
        let whole = unsafe { Buffer::new(*before.info(), Box::new(lease)) };
        let Span { offset, len } = before.span();
        whole.slice(offset, len)
    };
    let views: Option<Vec<Buffer>> = uses.iter().zip(leases).map(view).collect();
    Ok(views.map(|buffers| Entered { buffers, fence }))
}

/// Lets others use a buffer, too. Blocks until the other machine has answered.
pub(crate) fn share(buffer: &Buffer) -> Result<External, ImportError> {
    let (memory, kind) = (buffer.memory(), ExternalKind::Remote);
    let failed = |fault| ImportError::Failed {
        memory,
        kind,
        fault,
    };
    let Some(lease) = buffer.native::<Lease>() else {
        return Err(ImportError::UnknownMemory { memory });
    };
    let line = lease.line();
    let lease_id = lease.id();
    let (_, answer) = line
        .ask(|id| Message::Share {
            id,
            lease: lease_id,
        })
        .map_err(failed)?;
    let Message::Shared { token, .. } = answer else {
        return Err(failed(unfit(line, &answer)));
    };
    lease.held.is_shared.store(true, Ordering::Release);
    let mut bytes = [0; IpcHandle::TOKEN_BYTES];
    bytes[..16].copy_from_slice(&token);
    let (info, span) = (buffer.info(), buffer.span());
    let owner = Uuid(line.owner());
    let handle = IpcHandle::new(kind, bytes, owner, info.len_bytes, span, info.writable);
    let handle =
        handle.map_err(|error| failed(Fault::new(ErrorClass::Failed, error.to_string())))?;
    Ok(External::Ipc(handle))
}

/// Opens a buffer that another program shares. Blocks until the other machine has answered.
pub(crate) fn open(
    line: &Arc<Line>,
    memory: MemoryId,
    handle: &IpcHandle,
) -> Result<Buffer, ImportError> {
    let kind = handle.kind();
    let invalid = |reason: String| ImportError::Invalid {
        memory,
        kind,
        reason: reason.into(),
    };
    if handle.device() != Uuid(line.owner()) {
        return Err(invalid(format!(
            "it names memory of another machine than {}",
            line.node
        )));
    }
    let mut token = [0; 16];
    token.copy_from_slice(&handle.token()[..16]);
    let answer = line.ask(|id| Message::Open { id, token });
    let (id, answer) = answer.map_err(|fault| ImportError::Failed {
        memory,
        kind,
        fault,
    })?;
    let Message::Opened {
        number,
        memory: name,
        len,
        descriptor,
        ..
    } = answer
    else {
        return Err(invalid(unfit(line, &answer).message.into_owned()));
    };
    let mut held = Held::new(line, id, true);
    let there: MemoryId = name.parse().map_err(|error| invalid(format!("{error}")))?;
    let there = there.device.at(Node::named(line.node)).memory(there.kind);
    held.map(there, descriptor, (len, 1))
        .map_err(|fault| ImportError::Failed {
            memory,
            kind,
            fault,
        })?;
    let whole = buffer(held, there, number, len);
    let Span { offset, len } = handle.span();
    whole
        .slice(offset, len)
        .ok_or_else(|| invalid(format!("it names {} of {}", handle.span(), whole.len())))
}

fn unfit(line: &Line, answer: &Message) -> Fault {
    let message = format!("{}: it answers with {}", line.node, answer.name());
    Fault::new(ErrorClass::Failed, message)
}

/// Returns the memory as its own machine names it.
pub(crate) fn local(memory: MemoryId) -> MemoryId {
    memory.device.at(Node::HERE).memory(memory.kind)
}
