//! Carries commands out: the only place where memory is passed to a backend.

use alloc::boxed::Box;

use arrayvec::ArrayVec;
use transload_core::flight::Task;
use transload_core::{Instant, LinkId};
use transload_hal::{AllocSpec, Buffer, ErrorClass, Fault, Fence, Op, SubmitError};

use super::command::{
    Answer, AnswerKind, Answers, Bound, Command, CommandKind, MAX_COMMANDS, copy_of,
};
use super::trace::{Recorder, Via, What};
use super::unwind::{guarded, own_fault};

/// Carries commands out. Their sequence does not matter: an operation that must wait for another one is not ordered yet.
/// Commands that delay this thread no further come first.
pub(crate) fn execute(commands: &[Command], answers: &mut Answers, recorder: Option<&Recorder>) {
    if let [command] = commands {
        return answers.push(command.carry_out(recorder));
    }
    let apart = commands.iter().filter(|command| command.is_apart);
    answers.extend(apart.map(|command| command.carry_out(recorder)));
    execute_here(commands, answers, recorder);
}

/// Carries out the other commands. Copies over one link are submitted together, when the first of them comes up.
fn execute_here(commands: &[Command], answers: &mut Answers, recorder: Option<&Recorder>) {
    // For each command, the first command that it is submitted with: itself, for most.
    let mut firsts = ArrayVec::<usize, MAX_COMMANDS>::new();
    for (at, command) in commands.iter().enumerate() {
        let mut leading = (0..at).filter(|other| firsts[*other] == *other);
        let first = leading.find(|first| command.goes_with(&commands[*first]));
        firsts.push(first.unwrap_or(at));
    }
    for (at, command) in commands.iter().enumerate() {
        if command.is_apart {
            continue;
        }
        let of_it = commands.iter().zip(&firsts);
        let of_it = of_it.filter(|(_, first)| **first == at);
        match of_it.clone().count() {
            // It was submitted with an earlier one.
            0 => {}
            1 => answers.push(command.carry_out(recorder)),
            _ => execute_together(of_it.map(|(command, _)| command), answers, recorder),
        }
    }
}

/// Submits copies over one link together.
fn execute_together<'a>(
    commands: impl Iterator<Item = &'a Command>,
    answers: &mut Answers,
    recorder: Option<&Recorder>,
) {
    let mut ops = ArrayVec::<Op<'_>, MAX_COMMANDS>::new();
    let mut tasks = ArrayVec::<(&Command, Task, u64), MAX_COMMANDS>::new();
    let mut link = None;
    for command in commands {
        if let Some(copy) = command.copy() {
            ops.push(copy.op);
            tasks.push((command, copy.task, copy.since));
            link = Some((copy.via, &command.backend));
        }
    }
    let Some((via, backend)) = link else { return };
    let (begin, told) = (recorder.map(Recorder::now), answers.len());
    let mut left = tasks.iter();
    let mut tell = |fence: Result<Fence, SubmitError>| {
        if let Some((command, task, since)) = left.next() {
            answers.push(command.answer(AnswerKind::of(task, *since, fence)));
        }
    };
    // SAFETY: as in `Command::execute`, for each of them.
    let ended = guarded(|| unsafe { backend.submit_each(via, &ops, &mut tell) });
    // The backend did not do the copies for which it did not call `told`.
    let silent = || Fault::new(ErrorClass::Failed, "the backend said nothing of the copy");
    let fault = ended.err().unwrap_or_else(silent);
    answers.extend(left.map(|(command, task, since)| {
        let fence = Err(SubmitError::Refused(fault.clone()));
        command.answer(AnswerKind::of(task, *since, fence))
    }));
    if let (Some(recorder), Some(begin)) = (recorder, begin) {
        let tasks = tasks.iter().map(|(command, ..)| *command);
        note(recorder, begin, tasks.zip(&answers[told..]));
    }
}

/// A copy of one range to another over a link.
struct Copy<'a> {
    task: Task,
    since: u64,
    via: LinkId,
    op: Op<'a>,
}

impl Command {
    /// Returns the copy, if the command is a single one.
    fn copy(&self) -> Option<Copy<'_>> {
        match &self.kind {
            CommandKind::Submit {
                task,
                via: Some(via),
                bound: Bound::Copy { src, dst, len },
                since,
            } => Some(Copy {
                task: *task,
                since: *since,
                via: *via,
                op: copy_of(src, dst, *len),
            }),
            _ => None,
        }
    }

    /// Returns whether both are copies over one link.
    fn goes_with(&self, other: &Command) -> bool {
        let link = |command: &Command| command.copy().map(|copy| (copy.via, command.backend_id));
        let is_either_apart = self.is_apart || other.is_apart;
        !is_either_apart && link(self).is_some_and(|of| link(other) == Some(of))
    }

    /// Makes the record of the command's result.
    fn answer(&self, kind: AnswerKind) -> Answer {
        Answer {
            id: self.id,
            backend: self.backend_id,
            kind,
        }
    }

    /// Carries the command out by itself, and records that.
    fn carry_out(&self, recorder: Option<&Recorder>) -> Answer {
        let begin = recorder.map(Recorder::now);
        let answer = self.answer(self.execute());
        if let (Some(recorder), Some(begin)) = (recorder, begin) {
            note(recorder, begin, core::iter::once((self, &answer)));
        }
        answer
    }

    /// Only this function and `execute_together` pass memory to a backend.
    fn execute(&self) -> AnswerKind {
        match &self.kind {
            CommandKind::Submit {
                task,
                via,
                bound,
                since,
            } => {
                // SAFETY of both calls: bounds were checked when the transfer was accepted, and a task's span lies
                // within the payload. The transfer's record holds its buffers, its leases and its digests until every
                // fence of it has settled. Hazards keep conflicting transfers apart, guards and blocking calls keep all
                // other code out, and a slot, or a part of one, belongs to one chunk at a time.
                let submit = |ops: &[Op<'_>]| match self.is_apart {
                    // SAFETY: as above.
                    true => unsafe { self.backend.submit_apart(*via, ops, &[]) },
                    // SAFETY: as above.
                    false => unsafe { self.backend.submit(*via, ops, &[]) },
                };
                let fence = guarded(|| bound.with_ops(submit));
                AnswerKind::of(
                    task,
                    *since,
                    fence.unwrap_or_else(|fault| Err(SubmitError::Refused(fault))),
                )
            }
            CommandKind::Allocate { wanted } => {
                let spec = AllocSpec::bytes(wanted.bytes).for_staging();
                let slot = guarded(|| self.backend.allocate(wanted.memory, &spec))
                    .and_then(|slot| slot.map_err(|error| own_fault(error.class(), &error)))
                    .and_then(|slot| right_size(slot, wanted.bytes));
                AnswerKind::Allocated(Box::new((*wanted, slot)))
            }
            CommandKind::Stop { fence, task } => AnswerKind::Stopped {
                task: *task,
                moved_bytes: guarded(|| self.backend.stop(*fence)).unwrap_or(0),
            },
            CommandKind::Enter { entry } => {
                let entered = guarded(|| entry.run(&*self.backend));
                AnswerKind::Entered(Box::new(entered.and_then(|entered| entered)))
            }
            CommandKind::Prove { job, errand } => {
                AnswerKind::Proved(Box::new((*job, errand.run(&*self.backend))))
            }
        }
    }
}

/// Records a call of a backend, and the operations that it took.
#[cold]
fn note<'a>(
    recorder: &Recorder,
    begin: Instant,
    called: impl Iterator<Item = (&'a Command, &'a Answer)>,
) {
    let mut call = None;
    for (command, answer) in called {
        let (name, op) = match &command.kind {
            CommandKind::Submit {
                task, via, bound, ..
            } => ("submit", Some((task, via, bound))),
            CommandKind::Allocate { .. } => ("allocate", None),
            CommandKind::Prove { .. } => ("prove", None),
            CommandKind::Enter { .. } => ("enter", None),
            CommandKind::Stop { .. } => ("stop", None),
        };
        let (_, _, ops) = call.get_or_insert((name, command.backend_id, 0));
        *ops += 1;
        let AnswerKind::Submitted {
            fence: Ok(fence), ..
        } = &answer.kind
        else {
            continue;
        };
        if let Some((task, via, bound)) = op {
            let device = || Via::Device(bound.device());
            let what = What::Op {
                id: command.id,
                task: *task,
                via: via.map_or_else(device, Via::Link),
                fence: *fence,
            };
            recorder.add(begin, what);
        }
    }
    if let Some((name, backend, ops)) = call {
        recorder.add(begin, What::Call { name, backend, ops });
    }
}

fn right_size(slot: Buffer, bytes: u64) -> Result<Buffer, Fault> {
    if slot.len() == bytes && slot.is_writable() {
        return Ok(slot);
    }
    let message = alloc::format!(
        "a staging slot of {bytes} bytes was asked for, and one of {} came",
        slot.len()
    );
    Err(Fault::new(ErrorClass::Failed, message))
}
