//! Turns operations into slots: the sim checks all operations before it accepts any.

use transload_core::defaults::visible_cost;
use transload_hal::{
    Buffer, DeviceId, DeviceInfo, ErrorClass, Fault, Layout, LinkId, MemoryId, MemoryKind, Op,
    Part, Span, Strided, SubmitError, Transform, View,
};

use super::memory::Hold;
use super::script::{CallFault, Strike, scripted};
use super::shared::{Shared, own};
use super::state::{Needs, OpSlot, Phase, State};
use super::work::{Operand, Refusal, TransformRef, Work};

impl Shared {
    /// Runs the clock to the end of a fence. Returns true if the fence is done and the sink need not be told.
    pub(super) fn settle_at_once(&self, number: u64) -> bool {
        loop {
            let mut state = self.lock();
            let Some(fence) = state.fence(number) else {
                // The fence failed, and another thread told the sink.
                return false;
            };
            match fence.phase {
                Phase::Silent => {
                    if let Some(slot) = state.by_number.remove(&number) {
                        state.fences.remove(slot);
                    }
                    return true;
                }
                Phase::Pending if fence.end_ns.is_some() => {
                    state.step(u64::MAX);
                    self.clock.set(state.now);
                }
                // The fence never answers, unless its device is lost; then the sink must be told.
                Phase::Pending => {
                    state.speak_up(number);
                    return false;
                }
                Phase::Due | Phase::Delivering => {
                    drop(state);
                    self.deliver();
                    return false;
                }
            }
        }
    }
}

/// The reason why a submission was refused.
pub(super) enum StageError {
    Error(SubmitError),
    Panic,
}

/// Checks every operation before any is accepted.
pub(super) fn stage(
    sim: &Shared,
    state: &mut State,
    via: Option<LinkId>,
    ops: &[Op<'_>],
) -> Result<(), StageError> {
    state.staged.clear();
    for (index, op) in ops.iter().enumerate() {
        let slot = slot_of(sim, via, op).map_err(|refusal| {
            StageError::Error(match refusal.class {
                ErrorClass::Unsupported => SubmitError::Unsupported {
                    index,
                    reason: refusal.reason,
                },
                class => SubmitError::Refused(Fault::new(class, refusal.reason)),
            })
        })?;
        state.staged.push(slot);
    }
    let is_needed = |at| state.staged.iter().any(|op| op.devices.has(at));
    let gone =
        |(at, fault): (usize, &Option<Fault>)| fault.as_ref().filter(|_| is_needed(at)).cloned();
    if let Some(fault) = state.lost.iter().enumerate().find_map(gone) {
        return Err(StageError::Error(SubmitError::Refused(fault)));
    }
    for (i, op) in ops.iter().enumerate() {
        let kind = state.staged[i].work.kind();
        match state.script.at_op(kind, op.ends()) {
            None => {}
            Some(Strike::Op(fault)) => state.staged[i].fault = Some(fault),
            Some(Strike::Call(CallFault::Panic)) => return Err(StageError::Panic),
            Some(Strike::Call(CallFault::Refuse(class))) => {
                return Err(StageError::Error(SubmitError::Refused(scripted(class))));
            }
            Some(Strike::Call(CallFault::OutOfMemory)) => {}
        }
    }
    Ok(())
}

fn slot_of(sim: &Shared, via: Option<LinkId>, op: &Op<'_>) -> Result<OpSlot, Refusal> {
    let work = Work::of(sim, op)?;
    let bytes = work.bytes();
    let slot = |memory, engine, cost_ns, (devices, victim), work| OpSlot {
        fence: 0,
        seq: 0,
        work,
        engine,
        cost_ns,
        devices,
        victim,
        memory,
        next: None,
        fault: None,
        start_ns: 0,
        end_ns: 0,
    };
    match op.ends() {
        Some((src, dst)) => {
            let pitched = matches!(op, Op::Pitched { .. } | Op::Strided { .. });
            let first = sim
                .rows
                .partition_point(|row| (row.src, row.dst) < (src, dst));
            // If the submission names no link and several lead from one memory to the other, this takes the cheapest at
            // this size, and the first in the description among equals.
            let row = sim.rows[first..]
                .iter()
                .take_while(|row| (row.src, row.dst) == (src, dst))
                .filter(|row| via.is_none_or(|via| row.id == via))
                .filter(|row| row.pitched || !pitched)
                .min_by_key(|row| row.cost.at(bytes));
            let row = row.ok_or_else(|| no_link(src, dst, pitched))?;
            let cost = row.cost.at(bytes);
            Ok(slot(
                dst,
                Some(row.engine),
                cost,
                (row.devices.clone(), row.victim),
                work,
            ))
        }
        None => {
            let memory = memory_of(op);
            let device = |info: &DeviceInfo| info.id == memory.device;
            let at = sim.inventory.devices.iter().position(device);
            let devices = (Needs::of([at]), at);
            match (&work, &sim.inventory.transform, sim.transform) {
                (Work::Transform { .. }, Some((_, cost)), Some(engine)) => {
                    let cost = cost.at(bytes);
                    Ok(slot(memory, Some(engine), cost, devices, work))
                }
                (Work::Transform { .. }, ..) => Err(Refusal::unsupported(
                    "this simulated machine has no engine that transforms",
                )),
                (Work::Visible, ..) => {
                    let cost = visible_cost(memory.kind).at(bytes);
                    Ok(slot(memory, None, cost, devices, work))
                }
                _ => Ok(slot(memory, None, 0, devices, work)),
            }
        }
    }
}

fn memory_of(op: &Op<'_>) -> MemoryId {
    match op {
        Op::Copy { dst, .. } => dst.buffer.memory(),
        Op::Pitched { dst, .. } => dst.buffer.memory(),
        Op::Strided { dst, .. } => dst.buffer.memory(),
        Op::AcquireHost { buffer } | Op::ReleaseHost { buffer } => buffer.memory(),
        Op::Prefetch { part, .. } | Op::Advise { part, .. } | Op::MakeVisible { part } => {
            part.buffer.memory()
        }
        Op::Transform { at, .. } => at.buffer.memory(),
        // `Op` is non-exhaustive; `Work::of` has refused all unknown operations.
        _ => DeviceId::CPU0.memory(MemoryKind::Pageable),
    }
}

fn no_link(src: MemoryId, dst: MemoryId, pitched: bool) -> Refusal {
    let what = if pitched { "pitched link" } else { "link" };
    Refusal::unsupported(format!(
        "the simulated machine has no {what} from {src} to {dst}"
    ))
}

impl Work {
    /// Returns the bytes that the operation touches, or the reason why it cannot be executed.
    fn of(sim: &Shared, op: &Op<'_>) -> Result<Work, Refusal> {
        match op {
            Op::Copy { src, dst } => {
                if src.len_bytes != dst.len_bytes {
                    return Err(Refusal::caller("a copy's two operands differ in length"));
                }
                writable(dst.buffer)?;
                Ok(Work::Copy {
                    src: of_part(sim, src)?,
                    dst: of_part(sim, dst)?,
                })
            }
            Op::Pitched { src, dst, span } => {
                writable(dst.buffer)?;
                let payload = src.shape.payload_bytes().min(dst.shape.payload_bytes());
                if !span.fits(payload) {
                    return Err(Refusal::caller("a pitched copy's span ends past a payload"));
                }
                Ok(Work::Pitched {
                    src: of_layout(sim, src)?,
                    src_shape: src.shape,
                    dst: of_layout(sim, dst)?,
                    dst_shape: dst.shape,
                    span: *span,
                })
            }
            Op::Strided {
                src,
                dst,
                span,
                conversion: None,
            } => {
                writable(dst.buffer)?;
                Ok(Work::Strided {
                    src: of_view(sim, src, *span)?,
                    src_array: src.array.copied().map(Box::new),
                    dst: of_view(sim, dst, *span)?,
                    dst_array: dst.array.copied().map(Box::new),
                    span: *span,
                })
            }
            Op::Transform {
                at,
                span,
                transform,
                position,
            } => {
                if !span.fits(at.shape.payload_bytes()) {
                    return Err(Refusal::caller("a transform's span ends past the payload"));
                }
                let extent = at.shape.extent_bytes();
                if at.buffer.host(at.offset, extent).is_none() {
                    return Err(Refusal::unsupported(
                        "simulated transforms look at host-addressable memory alone",
                    ));
                }
                let transform: *const (dyn Transform + '_) = *transform;
                // SAFETY: only the lifetime changes; `submit`'s contract keeps the transform alive
                // until the fence settles, and the work is dropped by then.
                let transform: *const (dyn Transform + 'static) =
                    unsafe { std::mem::transmute(transform) };
                Ok(Work::Transform {
                    at: of_layout(sim, at)?,
                    shape: at.shape,
                    span: *span,
                    transform: TransformRef(transform),
                    position: *position,
                })
            }
            Op::Prefetch { part, .. } | Op::Advise { part, .. } => {
                of_part(sim, part)?;
                Ok(Work::Hint)
            }
            Op::MakeVisible { part } => {
                of_part(sim, part)?;
                Ok(Work::Visible)
            }
            _ => Err(Refusal::unsupported(
                "simulated memory needs no mapping: it is host-addressable or it is not",
            )),
        }
    }
}

fn of_part(sim: &Shared, part: &Part<'_>) -> Result<Operand, Refusal> {
    operand(sim, part.buffer, part.offset, part.len_bytes)
}

fn of_view(sim: &Shared, view: &View<'_>, span: Span) -> Result<Operand, Refusal> {
    if view
        .array
        .is_some_and(|array| !span.fits(array.payload_bytes()))
    {
        return Err(Refusal::caller("a strided copy's span ends past a payload"));
    }
    let extent = view.array.map_or(span.len, Strided::extent_bytes);
    operand(sim, view.buffer, view.offset, extent)
}

fn of_layout(sim: &Shared, layout: &Layout<'_>) -> Result<Operand, Refusal> {
    let extent = layout.shape.extent_bytes();
    operand(sim, layout.buffer, layout.offset, extent)
}

fn operand(sim: &Shared, buffer: &Buffer, offset: u64, len: u64) -> Result<Operand, Refusal> {
    if !Span::new(offset, len).fits(buffer.len()) {
        return Err(Refusal::caller("an operand ends past its buffer"));
    }
    if let Some(allocation) = own(sim, buffer) {
        let at = buffer.span().offset + offset;
        let span = allocation.block.span().slice(at, len);
        return Ok(Operand {
            // A view lies within its storage, and the operand within the view.
            span: span.ok_or_else(|| Refusal::caller("an operand ends past its storage"))?,
            _hold: Some(Hold::new(&allocation.block)),
        });
    }
    match buffer.host(offset, len) {
        Some(span) => Ok(Operand { span, _hold: None }),
        None => Err(Refusal::unsupported(
            "an operand is neither simulated memory of this machine nor host-addressable",
        )),
    }
}

fn writable(buffer: &Buffer) -> Result<(), Refusal> {
    if buffer.is_writable() {
        Ok(())
    } else {
        Err(Refusal::caller("a destination is read-only"))
    }
}
