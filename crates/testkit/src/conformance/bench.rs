//! Tools of the cases: buffers between guard bands, patterns, fences, and the outcomes that the sink
//! received.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use transload_hal::{
    AllocSpec, Backend, Buffer, CompletionSink, DeviceId, DeviceKind, ErrorClass, Fence, Inventory,
    Layout, Link, MemoryId, MemoryInfo, MemoryKind, Name, Op, Outcome, Part, SubmitError, Waited,
};

use super::harness::Harness;

/// Bytes before and after a destination that must stay as they are: two cache lines.
pub(super) const GUARD: u64 = 128;

/// Why a case did not pass.
pub(super) enum CaseError {
    Skip(String),
    Fail(String),
}

pub(super) type CaseResult = Result<(), CaseError>;

pub(super) fn skip<T>(reason: impl ToString) -> Result<T, CaseError> {
    Err(CaseError::Skip(reason.to_string()))
}

pub(super) fn fail<T>(failure: impl ToString) -> Result<T, CaseError> {
    Err(CaseError::Fail(failure.to_string()))
}

/// Fails unless `holds`.
pub(super) fn ensure(holds: bool, failure: impl FnOnce() -> String) -> CaseResult {
    if holds { Ok(()) } else { fail(failure()) }
}

type Run<'a> = Box<dyn Fn(&Bench<'_>) -> CaseResult + 'a>;

/// One case on one subject.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) subject: String,
    pub(super) run: Run<'static>,
}

impl Case {
    pub(super) fn new(
        name: &'static str,
        subject: impl ToString,
        run: impl Fn(&Bench<'_>) -> CaseResult + 'static,
    ) -> Case {
        Case {
            name,
            subject: subject.to_string(),
            run: Box::new(run),
        }
    }
}

pub(super) struct Bench<'a> {
    pub(super) harness: &'a dyn Harness,
    pub(super) heard: Arc<Heard>,
    pub(super) inventory: Inventory,
    /// Numbers of the fences that `submit` gave out and that were not settled at once.
    given_out: RefCell<Vec<Fence>>,
    seed: Cell<u64>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(harness: &'a dyn Harness) -> Bench<'a> {
        let heard = Arc::new(Heard::default());
        harness.backend().attach(heard.clone());
        let mut inventory = harness.backend().inventory();
        // A link that another backend serves is tested with that backend.
        let own = inventory.backend;
        inventory.links.retain(|link| link.backend == own);
        Bench {
            harness,
            heard,
            inventory,
            given_out: RefCell::default(),
            seed: Cell::new(0),
        }
    }

    pub(super) fn name(&self) -> String {
        self.inventory.backend.to_string()
    }

    pub(super) fn backend(&self) -> &'a dyn Backend {
        self.harness.backend()
    }

    pub(super) fn memories(&self) -> &[MemoryInfo] {
        &self.inventory.memories
    }

    pub(super) fn links(&self) -> &[Link] {
        &self.inventory.links
    }

    /// The largest allocation in a memory; foreign memories count as unlimited.
    pub(super) fn max_alloc(&self, memory: MemoryId) -> u64 {
        let info = self.memories().iter().find(|info| info.id == memory);
        info.map_or(u64::MAX, |info| {
            info.max_alloc_bytes
                .min(info.total_bytes.unwrap_or(u64::MAX))
        })
    }

    /// The harness's sizes that fit twice, with room to shift, between guard bands.
    pub(super) fn sizes(&self, src: MemoryId, dst: MemoryId) -> Vec<u64> {
        let room = self.max_alloc(src).min(self.max_alloc(dst)) / 2;
        let mut sizes = self.harness.sizes();
        sizes.retain(|size| size.saturating_add(4 * GUARD) <= room);
        sizes
    }

    /// Makes a buffer. Skips the case if the backend has a valid reason to refuse the allocation.
    pub(super) fn make(&self, memory: MemoryId, len_bytes: u64) -> Result<Buffer, CaseError> {
        self.make_of(memory, &AllocSpec::bytes(len_bytes))
    }

    pub(super) fn make_of(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, CaseError> {
        self.harness
            .make(memory, spec)
            .map_err(|error| match error.class() {
                ErrorClass::Unsupported | ErrorClass::Exhausted => {
                    CaseError::Skip(error.to_string())
                }
                _ => CaseError::Fail(error.to_string()),
            })
    }

    pub(super) fn fill(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> CaseResult {
        if self.harness.fill(buffer, offset, bytes) {
            return Ok(());
        }
        let memory = buffer.memory();
        skip(format!("the harness cannot write {memory} by another way"))
    }

    pub(super) fn read(
        &self,
        buffer: &Buffer,
        offset: u64,
        len: u64,
    ) -> Result<Vec<u8>, CaseError> {
        let mut out = vec![0; len as usize];
        if self.harness.read(buffer, offset, &mut out) {
            return Ok(out);
        }
        let memory = buffer.memory();
        skip(format!("the harness cannot read {memory} by another way"))
    }

    /// Bytes without a short period, which differ from call to call.
    pub(super) fn pattern(&self, len: u64) -> Vec<u8> {
        let mut state = self.seed.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.seed.set(state);
        let mut bytes = Vec::with_capacity(len as usize + 8);
        while bytes.len() < len as usize {
            // xorshift64* (Vigna, 2016): any generator without a short period is good enough.
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            bytes.extend_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
        }
        bytes.truncate(len as usize);
        bytes
    }

    pub(super) fn submit(&self, ops: &[Op<'_>], after: &[Fence]) -> Result<Fence, SubmitError> {
        // SAFETY: cases keep operands within their buffers and order conflicting operations. They keep buffers until
        // the fence settles; where it does not, `keep` leaks them.
        let fence = unsafe { self.backend().submit(None, ops, after) }?;
        self.note(fence);
        Ok(fence)
    }

    /// Records a fence that `submit` returned.
    pub(super) fn note(&self, fence: Fence) {
        if !fence.is_immediate() {
            self.given_out.borrow_mut().push(fence);
        }
    }

    /// Submits operations; skips the case if the backend cannot execute them. If the backend does not wait for `after`
    /// itself, this waits for them first, as a caller has to.
    pub(super) fn start(&self, ops: &[Op<'_>], after: &[Fence]) -> Result<Fence, CaseError> {
        let mut submitted = self.submit(ops, after);
        if let Err(SubmitError::Refused(fault)) = &submitted
            && fault.class == ErrorClass::Unsupported
        {
            for fence in after {
                self.outcome(*fence, &[])?;
            }
            submitted = self.submit(ops, after);
        }
        submitted.map_err(|error| match error {
            SubmitError::Unsupported { .. } => CaseError::Skip(error.to_string()),
            _ => CaseError::Fail(error.to_string()),
        })
    }

    /// Waits until the fence has settled. `buffers` are the operands of its operations.
    pub(super) fn outcome(&self, fence: Fence, buffers: &[&Buffer]) -> Result<Outcome, CaseError> {
        if fence.is_immediate() {
            return Ok(Outcome::Done);
        }
        // The sink may have the outcome already: then no call reads the clock before the bytes are checked.
        if let Some(outcome) = self.heard.of(fence) {
            return Ok(outcome);
        }
        let patience = self.harness.patience();
        match self.backend().wait(fence, patience) {
            Waited::Settled => self.heard.of(fence).map_or_else(
                || {
                    fail(format!(
                        "wait says that {fence:?} settled, and the sink heard nothing"
                    ))
                },
                Ok,
            ),
            Waited::TimedOut => {
                self.keep(buffers);
                fail(format!("{fence:?} did not settle within {patience:?}"))
            }
        }
    }

    /// Waits until the fence is done.
    pub(super) fn done(&self, fence: Fence, buffers: &[&Buffer]) -> CaseResult {
        match self.outcome(fence, buffers)? {
            Outcome::Done => Ok(()),
            other => fail(format!("{fence:?} settled as {other:?}")),
        }
    }

    /// Leaks buffers that a device may still touch.
    pub(super) fn keep(&self, buffers: &[&Buffer]) {
        for &buffer in buffers {
            std::mem::forget(buffer.clone());
        }
    }

    pub(super) fn given_out(&self) -> Vec<Fence> {
        self.given_out.borrow().clone()
    }

    /// Compares, and names the first byte that differs.
    pub(super) fn compare(&self, what: &str, seen: &[u8], wanted: &[u8]) -> CaseResult {
        if seen == wanted {
            return Ok(());
        }
        let first = seen.iter().zip(wanted).position(|(a, b)| a != b);
        match first {
            None => ensure(seen.len() == wanted.len(), || {
                format!("{what}: lengths differ")
            }),
            Some(at) => {
                let wrong = seen.iter().zip(wanted).filter(|(a, b)| a != b).count();
                let (got, want) = (seen[at], wanted[at]);
                fail(format!(
                    "{what}: byte {at} of {} is {got:#04x}, not {want:#04x}; {wrong} differ",
                    seen.len()
                ))
            }
        }
    }
}

/// Inverts every bit: a destination holds these bytes before `bytes` arrive, so that no byte is right by chance. Works
/// in words, since the suite runs in debug builds too.
pub(super) fn inverse(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        out.extend_from_slice(&(!u64::from_ne_bytes(*word)).to_ne_bytes());
    }
    out.extend(rest.iter().map(|byte| !byte));
    out
}

/// The outcomes that the sink received.
#[derive(Default)]
pub(super) struct Heard(Mutex<Vec<(Fence, Outcome)>>);

impl CompletionSink for Heard {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        self.lock().push((fence, outcome));
    }
}

impl Heard {
    pub(super) fn of(&self, fence: Fence) -> Option<Outcome> {
        let all = self.lock();
        let found = all.iter().find(|(told, _)| *told == fence);
        found.map(|(_, outcome)| outcome.clone())
    }

    pub(super) fn all(&self) -> Vec<(Fence, Outcome)> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Fence, Outcome)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn part(buffer: &Buffer, offset: u64, len_bytes: u64) -> Part<'_> {
    Part {
        buffer,
        offset,
        len_bytes,
    }
}

pub(super) fn copy<'a>(src: (&'a Buffer, u64), dst: (&'a Buffer, u64), len_bytes: u64) -> Op<'a> {
    Op::Copy {
        src: part(src.0, src.1, len_bytes),
        dst: part(dst.0, dst.1, len_bytes),
    }
}

pub(super) fn layout(buffer: &Buffer, offset: u64, shape: transload_hal::Shape) -> Layout<'_> {
    Layout {
        buffer,
        offset,
        shape,
    }
}

/// A memory that no backend has.
pub(super) fn nowhere() -> MemoryId {
    DeviceId::new(DeviceKind(Name::constant("nowhere")), 7).memory(MemoryKind::Device)
}

pub(super) fn arrow(link: &Link) -> String {
    format!("{} → {} over {}", link.id.src, link.id.dst, link.id.engine)
}

/// A zero duration.
pub(super) const NOW: Duration = Duration::ZERO;
