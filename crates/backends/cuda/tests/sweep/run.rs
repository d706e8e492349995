//! A scenario while it runs: the submitted operations, and their results.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use transload_cuda::Cuda;
use transload_hal::{
    AllocSpec, Backend, Buffer, CompletionSink, DeviceId, ErrorClass, External, ExternalKind,
    Fence, HostSpan, Inventory, Layout, LinkId, MemoryId, Op, Outcome, Part, SubmitError, Waited,
};
use transload_hal::{Shape, Span};

use crate::memory::Memory;

/// Stores outcomes.
#[derive(Default)]
pub(crate) struct Sink(Mutex<BTreeMap<Fence, Vec<Outcome>>>);

impl CompletionSink for Sink {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        self.0
            .lock()
            .unwrap()
            .entry(fence)
            .or_default()
            .push(outcome);
    }
}

/// A buffer of the run, or `None` if its allocation failed.
pub(crate) type Slot = Option<usize>;

/// The fences that must be over before a step begins; a failed step passes on the fences that it waited for.
#[derive(Clone, Default)]
pub(crate) struct Behind(Vec<Fence>);

impl Behind {
    pub(crate) fn all(steps: &[&Behind]) -> Behind {
        let mut fences: Vec<Fence> = steps.iter().flat_map(|step| step.0.clone()).collect();
        fences.sort_unstable();
        fences.dedup();
        Behind(fences)
    }
}

/// A step that failed.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) step: String,
    pub(crate) class: ErrorClass,
    pub(crate) text: String,
}

/// An operation that was accepted.
struct Pending {
    step: String,
    fence: Fence,
    /// The copies that it makes: pairs of bytes, from and to.
    moves: Option<Moves>,
}

#[derive(Clone)]
struct Moves {
    from: usize,
    to: usize,
    /// Positions of the first byte of each piece, and its length.
    pieces: Vec<(u64, u64, u64)>,
}

pub(crate) struct Run<'a> {
    pub(crate) cuda: &'a Cuda,
    sink: &'a Sink,
    inventory: Inventory,
    pub(crate) memories: Vec<Memory>,
    pending: Vec<Pending>,
    pub(crate) troubles: Vec<Trouble>,
    /// Broken promises of the backend.
    pub(crate) crimes: Vec<String>,
    patience: Duration,
    /// The number of fences that had not settled within the patience.
    pub(crate) unsettled: usize,
}

impl<'a> Run<'a> {
    pub(crate) fn new(cuda: &'a Cuda, sink: &'a Sink, patience: Duration) -> Run<'a> {
        Run {
            cuda,
            sink,
            inventory: cuda.inventory(),
            memories: Vec::new(),
            pending: Vec::new(),
            troubles: Vec::new(),
            crimes: Vec::new(),
            patience,
            unsettled: 0,
        }
    }

    pub(crate) fn allocate(&mut self, memory: MemoryId, len: u64) -> Slot {
        self.allocate_as(memory, AllocSpec::bytes(len))
    }

    pub(crate) fn allocate_as(&mut self, memory: MemoryId, spec: AllocSpec) -> Slot {
        match self.cuda.allocate(memory, &spec) {
            Ok(buffer) => self.keep(buffer),
            Err(error) => {
                self.trouble(
                    format!("allocate in {memory}"),
                    error.class(),
                    error.to_string(),
                );
                None
            }
        }
    }

    /// Registers host memory in place.
    pub(crate) fn register(&mut self, memory: MemoryId, len: usize) -> Slot {
        // The bytes are never freed: a lost device keeps its registrations until its context ends. A later allocation
        // at the same addresses would be refused as already registered.
        let bytes = vec![0u8; len].leak();
        let external = External::Host {
            span: HostSpan::of_mut(bytes),
            writable: true,
            owner: Box::new(()),
        };
        // SAFETY: the bytes stay where they are, and no other code has them.
        match unsafe { self.cuda.import(memory, external) } {
            Ok(buffer) => self.keep(buffer),
            Err(error) => {
                self.trouble(
                    format!("register in {memory}"),
                    error.class(),
                    error.to_string(),
                );
                None
            }
        }
    }

    /// Exports a buffer and imports it again, and goes on with the imported one.
    pub(crate) fn pass(&mut self, slot: Slot, kind: ExternalKind) {
        let Some(index) = slot else { return };
        let memory = self.memories[index].buffer.memory();
        let mut devices = self.inventory.devices.iter();
        let of = devices.find(|of| of.id == memory.device);
        // Other processes find a device by its UUID, which the oldest drivers do not report.
        if kind == ExternalKind::CudaIpc && of.is_none_or(|of| of.uuid.is_none()) {
            return;
        }
        // SAFETY: CUDA memory stays in place.
        let given = unsafe { self.cuda.export(&self.memories[index].buffer, kind) };
        // SAFETY: it is what the backend gave out, and no other code has it.
        let taken = given.and_then(|external| unsafe { self.cuda.import(memory, external) });
        match taken {
            Ok(view) => self.memories[index].buffer = view,
            Err(error) => {
                let step = format!("pass on {kind} in {memory}");
                self.trouble(step, error.class(), error.to_string());
            }
        }
    }

    /// Writes from the host to the buffers in that device's memory, all of which must fail. Returns their number.
    pub(crate) fn prod(&mut self, device: &str) -> usize {
        let of = |device: &str| {
            let places = self.memories.iter().enumerate();
            let found = places.filter(|(_, of)| of.buffer.memory().device.to_string() == device);
            found.map(|(index, _)| index).collect::<Vec<_>>()
        };
        let pairs: Vec<_> = of("cpu:0").into_iter().zip(of(device)).collect();
        for (host, own) in &pairs {
            self.copy((Some(*host), 0), (Some(*own), 0), 64, &[]);
        }
        self.wait();
        pairs.len()
    }

    fn keep(&mut self, buffer: Buffer) -> Slot {
        self.memories.push(Memory::new(buffer));
        Some(self.memories.len() - 1)
    }

    pub(crate) fn fill(&mut self, slot: Slot, seed: u8) {
        if let Some(index) = slot {
            self.memories[index].fill(seed);
        }
    }

    pub(crate) fn connect(&mut self, src: MemoryId, dst: MemoryId) {
        if let Err(error) = self.cuda.connect(src, dst) {
            self.trouble(
                format!("connect {src} to {dst}"),
                error.class(),
                error.to_string(),
            );
        }
    }

    /// Copies `len` bytes.
    pub(crate) fn copy(
        &mut self,
        (from, at): (Slot, u64),
        (to, to_at): (Slot, u64),
        len: u64,
        after: &[&Behind],
    ) -> Behind {
        let (Some(from), Some(to)) = (from, to) else {
            return Behind::all(after);
        };
        let moves = Moves {
            from,
            to,
            pieces: vec![(at, to_at, len)],
        };
        let [src, dst] = [(from, at), (to, to_at)].map(|(index, offset)| Handle {
            buffer: self.memories[index].buffer.clone(),
            offset,
        });
        let op = Op::Copy {
            src: src.part(len),
            dst: dst.part(len),
        };
        self.submit("copy", &[op], Some(moves), after)
    }

    /// Copies rows of `width` bytes at different pitches.
    pub(crate) fn rows(
        &mut self,
        (from, pitch): (Slot, u64),
        (to, to_pitch): (Slot, u64),
        (width, rows): (u64, u64),
        after: &[&Behind],
    ) -> Behind {
        let (Some(from), Some(to)) = (from, to) else {
            return Behind::all(after);
        };
        let piece = |row| (row * pitch, row * to_pitch, width);
        let moves = Moves {
            from,
            to,
            pieces: (0..rows).map(piece).collect(),
        };
        let [src, dst] = [from, to].map(|index| self.memories[index].buffer.clone());
        let layout = |buffer, pitch| Layout {
            buffer,
            offset: 0,
            shape: Shape::pitched(width, rows, pitch).unwrap(),
        };
        let op = Op::Pitched {
            src: layout(&src, pitch),
            dst: layout(&dst, to_pitch),
            span: Span::new(0, width * rows),
        };
        self.submit("rows", &[op], Some(moves), after)
    }

    /// Copies every second piece of a buffer to consecutive places, in one submission.
    pub(crate) fn pieces(
        &mut self,
        from: Slot,
        to: Slot,
        (len, count): (u64, u64),
        after: &[&Behind],
    ) -> Behind {
        let (Some(from), Some(to)) = (from, to) else {
            return Behind::all(after);
        };
        let pieces = (0..count).map(|index| (2 * index * len, index * len, len));
        let moves = Moves {
            from,
            to,
            pieces: pieces.collect(),
        };
        let [src, dst] = [from, to].map(|index| self.memories[index].buffer.clone());
        let copy = |&(at, to_at, len_bytes): &(u64, u64, u64)| {
            let part = |buffer, offset| Part {
                buffer,
                offset,
                len_bytes,
            };
            Op::Copy {
                src: part(&src, at),
                dst: part(&dst, to_at),
            }
        };
        let ops: Vec<Op<'_>> = moves.pieces.iter().map(copy).collect();
        self.submit("pieces", &ops, Some(moves.clone()), after)
    }

    pub(crate) fn prefetch(&mut self, slot: Slot, to: DeviceId, after: &[&Behind]) -> Behind {
        let Some(index) = slot else {
            return Behind::all(after);
        };
        let buffer = self.memories[index].buffer.clone();
        let part = whole(&buffer);
        self.submit("prefetch", &[Op::Prefetch { part, to }], None, after)
    }

    pub(crate) fn make_visible(&mut self, slot: Slot, after: &[&Behind]) -> Behind {
        let Some(index) = slot else {
            return Behind::all(after);
        };
        let buffer = self.memories[index].buffer.clone();
        let part = whole(&buffer);
        self.submit("make visible", &[Op::MakeVisible { part }], None, after)
    }

    fn submit(
        &mut self,
        what: &str,
        ops: &[Op<'_>],
        moves: Option<Moves>,
        after: &[&Behind],
    ) -> Behind {
        let ends = moves
            .as_ref()
            .map(|moves| [moves.from, moves.to].map(|index| self.memories[index].buffer.memory()));
        let step = match ends {
            Some([src, dst]) => format!("{what} from {src} to {dst}"),
            None => what.into(),
        };
        let behind = Behind::all(after);
        let via = match ends.map(|[src, dst]| self.link(src, dst)) {
            Some(None) => {
                self.trouble(step, ErrorClass::Unsupported, "there is no link".into());
                return behind;
            }
            link => link.flatten(),
        };
        // SAFETY: the run keeps its buffers, orders what touches the same bytes, and touches none meanwhile.
        let mut submitted = unsafe { self.cuda.submit(via, ops, &behind.0) };
        if is_unawaited(&submitted) && !behind.0.is_empty() {
            // The backend may only be unable to order it after those fences: then this thread waits for them.
            self.wait();
            // SAFETY: as above.
            submitted = unsafe { self.cuda.submit(via, ops, &[]) };
        }
        match submitted {
            Ok(fence) => {
                self.pending.push(Pending { step, fence, moves });
                Behind(vec![fence])
            }
            // A refused operation has not begun: the bytes stay as they are.
            Err(error) => {
                let class = match &error {
                    SubmitError::Refused(fault) => fault.class,
                    _ => ErrorClass::Unsupported,
                };
                self.trouble(step, class, error.to_string());
                behind
            }
        }
    }

    fn link(&self, src: MemoryId, dst: MemoryId) -> Option<LinkId> {
        let mut links = self.inventory.links.iter();
        let own = links.find(|link| {
            (link.id.src, link.id.dst, link.backend) == (src, dst, self.inventory.backend)
        });
        own.map(|link| link.id)
    }

    /// Waits for all accepted operations in order, and for each fence no longer than the run's patience.
    pub(crate) fn wait(&mut self) {
        for Pending { step, fence, moves } in std::mem::take(&mut self.pending) {
            if !fence.is_immediate() && self.cuda.wait(fence, self.patience) == Waited::TimedOut {
                self.unsettled += 1;
                if let Some(moves) = &moves {
                    self.forget(moves);
                }
                continue;
            }
            let outcome = match self.outcome(fence) {
                Ok(outcome) => outcome,
                Err(crime) => {
                    self.crimes.push(format!("{step}: {crime}"));
                    continue;
                }
            };
            if let Some(moves) = &moves {
                match outcome {
                    Outcome::Done => self.done(moves),
                    _ => self.forget(moves),
                }
            }
            let (lost, fault) = match outcome {
                Outcome::Done => continue,
                Outcome::Stopped { .. } => {
                    self.crimes.push(format!("{step}: stopped unasked"));
                    continue;
                }
                Outcome::Failed(fault) => (false, fault),
                Outcome::Lost(fault) => (true, fault),
            };
            if lost != (fault.class == ErrorClass::Lost) {
                self.crimes
                    .push(format!("{step}: lost {lost} with {fault:?}"));
            }
            self.troubles.push(Trouble {
                step,
                class: fault.class,
                text: fault.to_string(),
            });
        }
    }

    /// The one outcome of a fence that has settled.
    fn outcome(&self, fence: Fence) -> Result<Outcome, String> {
        if fence.is_immediate() {
            return Ok(Outcome::Done);
        }
        let told = self.sink.0.lock().unwrap();
        match told.get(&fence).map(Vec::as_slice) {
            Some([outcome]) => Ok(outcome.clone()),
            Some(several) => Err(format!("{fence:?} settled {} times", several.len())),
            None => Err(format!("{fence:?} settled without a report")),
        }
    }

    fn trouble(&mut self, step: String, class: ErrorClass, text: String) {
        self.troubles.push(Trouble { step, class, text });
    }

    fn done(&mut self, moves: &Moves) {
        for &(at, to_at, len) in &moves.pieces {
            let from = at as usize..(at + len) as usize;
            let bytes = self.memories[moves.from].expected[from].to_vec();
            let to = to_at as usize..(to_at + len) as usize;
            self.memories[moves.to].expected[to].copy_from_slice(&bytes);
        }
    }

    /// Marks the bytes that the operation may have written as unknown, and no others.
    fn forget(&mut self, moves: &Moves) {
        for &(_, to_at, len) in &moves.pieces {
            let to = to_at as usize..(to_at + len) as usize;
            self.memories[moves.to].expected[to].fill(None);
        }
    }
}

fn is_unawaited(submitted: &Result<Fence, SubmitError>) -> bool {
    matches!(submitted, Err(SubmitError::Refused(fault)) if fault.class == ErrorClass::Unsupported)
}

/// A buffer of an operation, kept alive while the operation lasts.
struct Handle {
    buffer: Buffer,
    offset: u64,
}

impl Handle {
    fn part(&self, len_bytes: u64) -> Part<'_> {
        Part {
            buffer: &self.buffer,
            offset: self.offset,
            len_bytes,
        }
    }
}

fn whole(buffer: &Buffer) -> Part<'_> {
    Part {
        buffer,
        offset: 0,
        len_bytes: buffer.len(),
    }
}

/// Attaches a sink to a backend.
pub(crate) fn attach(cuda: &Cuda) -> Arc<Sink> {
    let sink = Arc::new(Sink::default());
    assert!(cuda.attach(Arc::clone(&sink) as Arc<dyn CompletionSink>));
    sink
}
