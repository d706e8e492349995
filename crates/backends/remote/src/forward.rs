//! Copies from one machine to another without this one: the machine with the destination grants its bytes, and the machine
//! with the source writes them.

use std::sync::{Arc, Mutex, PoisonError};

use transload_hal::{
    BackendId, Buffer, ErrorClass, Fault, MemoryId, Outcome, StorageId, StorageInfo,
};

use crate::memory::Lease;
use crate::queue::{End, Job, Line, Operation};
use crate::wire::{Destination, Message, Place};

/// A copy between two machines. It is two operations of its submission: the grant, on the line of the machine that has the
/// destination, and the copy, on the other line. The submission is over when both are, since either machine may still touch
/// the bytes until it has said that it does not. The end of one stops the other.
pub(crate) struct Forward {
    job: Job,
    grant: (Arc<Line>, u64),
    copy: (Arc<Line>, u64),
    /// What the copy is of, until it is asked for.
    asked: Mutex<Option<Ask>>,
}

struct Ask {
    reservation: u64,
    src: Place,
    len_bytes: u64,
}

impl Forward {
    /// Makes the first operation, which goes to the line of the destination.
    pub(crate) fn operation(
        job: Job,
        (from, src_offset): (&Lease, u64),
        (to, dst_offset): (&Lease, u64),
        len_bytes: u64,
    ) -> Operation {
        let [grant, copy] = [to, from].map(|lease| {
            let line = Arc::clone(lease.line());
            let id = line.number();
            (line, id)
        });
        let id = grant.1;
        let src = Place {
            lease: from.id(),
            offset: src_offset,
        };
        let forward = Forward {
            job: job.clone(),
            grant,
            copy,
            asked: Mutex::new(Some(Ask {
                reservation: from.reservation(),
                src,
                len_bytes,
            })),
        };
        Operation {
            id,
            job,
            message: Message::Grant {
                id,
                reservation: to.reservation(),
                lease: to.id(),
                offset: dst_offset,
                len: len_bytes,
            },
            end: End::Grant(Arc::new(forward)),
            len_bytes,
        }
    }

    fn take(&self) -> Option<Ask> {
        // The change is whole when it may panic.
        let asked = self.asked.lock();
        asked.unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Asks for the copy, unless the grant has ended already.
    pub(crate) fn handle_granted(self: &Arc<Forward>, token: [u8; 16]) {
        let Some(ask) = self.take() else { return };
        let ((grant, _), (copy, id)) = (&self.grant, &self.copy);
        let operation = Operation {
            id: *id,
            job: self.job.clone(),
            message: Message::Copy {
                id: *id,
                reservation: ask.reservation,
                src: ask.src,
                dst: Destination::Node {
                    address: grant.address.clone(),
                    key: grant.peer.0,
                    token,
                },
                len: ask.len_bytes,
            },
            end: End::Granted(Arc::clone(self)),
            len_bytes: ask.len_bytes,
        };
        if let Err(fault) = copy.start(vec![operation]) {
            self.job.end(Outcome::Failed(fault));
            self.handle_copy_ended();
        }
    }

    /// Returns whether the grant is to be stopped. Once the copy has been asked for, it is stopped first: the machine that
    /// makes it would take the end of the grant for a failure of the other machine.
    pub(crate) fn handle_stop(&self) -> bool {
        let is_early = self.take().is_some();
        match is_early {
            true => self.job.end(Outcome::Stopped { leading_bytes: 0 }),
            // Its line may have taken in the stop before it took in the copy.
            false => self.copy.0.halt(self.copy.1),
        }
        is_early
    }

    /// Ends the copy, too, unless all went well: then the machine that copies learns it at the same time.
    pub(crate) fn handle_grant_ended(&self, is_done: bool) {
        match self.take() {
            Some(_) => {
                let message = "the copy ended before it could begin";
                let fault = Fault::new(ErrorClass::Failed, message);
                self.job.end(Outcome::Failed(fault));
            }
            None if is_done => {}
            None => self.copy.0.halt(self.copy.1),
        }
    }

    /// Ends the grant, too, which has ended already if all went well.
    pub(crate) fn handle_copy_ended(&self) {
        self.grant.0.halt(self.grant.1);
    }
}

/// Bytes at another machine that a client of both has granted to this one. Adopt it in any memory of that machine. It has no
/// place in that machine's order, since the client's transfer has one.
#[derive(Clone, Copy, Debug)]
pub struct GrantedBytes {
    /// The grant.
    pub token: [u8; 16],
    /// How many bytes.
    pub len_bytes: u64,
}

/// The same, over a session.
pub(crate) struct Granted {
    pub(crate) line: Arc<Line>,
    pub(crate) token: [u8; 16],
}

impl Granted {
    /// Makes the buffer of granted bytes.
    pub(crate) fn buffer(line: Arc<Line>, memory: MemoryId, bytes: &GrantedBytes) -> Buffer {
        let backend = BackendId(line.node);
        let granted = Box::new(Granted {
            line,
            token: bytes.token,
        });
        let info = StorageInfo {
            id: StorageId::Native {
                backend: backend.0,
                handle: (&raw const *granted).addr() as u64,
            },
            base: 0,
            len_bytes: bytes.len_bytes,
            memory,
            backend,
            writable: true,
            host: None,
        };
        // SAFETY: the address of the grant is its own while the buffer holds it; the host has no address of its bytes, and
        // the machine that has them orders their use.
        unsafe { Buffer::new(info, granted) }
    }
}
