//! The door through which work comes into a stream.

use std::thread;

use transload_cuda::raw::{CUcontext, CUresult, CUstream};

use super::{Leg, Role, Stream, nothing_after};
use crate::context::{self, Ruin};
use crate::engine::{Action, Ticket, Work};
use crate::faults::Fate;
use crate::state::{State, World};

impl State {
    /// The number of a stream, which is its handle unless it is a default stream. Those are the current context's.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` without a current context, `CONTEXT_IS_DESTROYED` if it is gone, and `INVALID_HANDLE` for
    /// a stream that was destroyed or never was.
    pub(crate) fn stream_number(&mut self, handle: CUstream) -> Result<u64, CUresult> {
        let (current, _) = context::present(self)?;
        let role = match handle {
            CUstream::NULL | CUstream::LEGACY => Role::Legacy,
            CUstream::PER_THREAD => Role::OfThread(thread::current().id()),
            made => {
                let number = made.0.addr() as u64;
                self.stream(number)?;
                return Ok(number);
            }
        };
        Ok(self.streams.default_stream(current, role))
    }

    /// The stream of a number.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when there is none.
    pub(crate) fn stream(&self, number: u64) -> Result<&Stream, CUresult> {
        let stream = self.streams.open.get(number);
        stream.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// As [`State::stream`], to change it.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn stream_mut(&mut self, number: u64) -> Result<&mut Stream, CUresult> {
        let stream = self.streams.open.get_mut(number);
        stream.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Puts operations of a device into a stream: legs that start together, after all earlier work. The stream's next
    /// work waits until all of them are done. Each leg may get a fault. In a ruined context no bytes move any more.
    /// Work for a captured stream is dropped.
    ///
    /// # Errors
    /// As [`State::stream_number`] and [`State::is_captured`], and what has ruined the stream's context.
    pub(crate) fn enqueue(
        &mut self,
        world: &World,
        stream: CUstream,
        mut legs: Vec<Leg>,
    ) -> Result<Ticket, CUresult> {
        let number = self.stream_number(stream)?;
        let ruin = self.context(self.stream(number)?.context)?.ruin.clone();
        ruin.check()?;
        if self.is_captured(number)? {
            world
                .log
                .note("work of a stream that is captured is dropped: there are no graphs");
            return Ok(world.engine.submit(nothing_after(Vec::new())));
        }
        for leg in &mut legs {
            if let Some(last) = leg.last_mut() {
                befall(world.faults.on_operation(), last, &ruin);
            }
            for work in leg {
                let action = std::mem::replace(&mut work.action, Action::Nothing);
                work.action = guarded(action, &ruin);
            }
        }
        self.append(world, number, legs)
    }

    /// As [`State::enqueue`], for work of no device: events, and users' functions. No fault applies to it, and it runs
    /// in a ruined context too; functions must check the context's state themselves.
    ///
    /// # Errors
    /// As [`State::enqueue`], the stream being given by number; `NOT_SUPPORTED` where it is captured.
    pub(crate) fn append(
        &mut self,
        world: &World,
        number: u64,
        legs: Vec<Leg>,
    ) -> Result<Ticket, CUresult> {
        let stream = self.stream(number)?;
        let ruin = self.context(stream.context)?.ruin.clone();
        ruin.check()?;
        if self.is_captured(number)? {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let before = self.streams.before(stream);
        let mut ends = Vec::with_capacity(legs.len());
        for leg in legs {
            let mut end = before.clone();
            for mut work in leg {
                work.after.append(&mut end);
                end.push(world.engine.submit(work));
            }
            ends.append(&mut end);
        }
        let ticket = match <[Ticket; 1]>::try_from(ends) {
            Ok([one]) => one,
            // Without legs only the earlier work counts.
            Err(ends) if ends.is_empty() => world.engine.submit(nothing_after(before)),
            Err(ends) => world.engine.submit(nothing_after(ends)),
        };
        if let Some(stream) = self.streams.open.get_mut(number) {
            stream.last = Some(ticket.clone());
        }
        Ok(ticket)
    }

    /// The work for which a wait for a stream waits, and the context to check afterwards.
    ///
    /// # Errors
    /// As [`State::enqueue`], the stream being given by number.
    pub(crate) fn unfinished(&self, number: u64) -> Result<(Vec<Ticket>, Ruin), CUresult> {
        let stream = self.stream(number)?;
        let before = self.streams.before(stream);
        let ruin = self.context(stream.context)?.ruin.clone();
        // Asked after: work that ruins its context in between is done too.
        ruin.check()?;
        Ok((before, ruin))
    }

    /// All work in flight in a context, in destroyed streams too.
    pub(crate) fn unfinished_of(&self, context: CUcontext) -> Vec<Ticket> {
        let streams = self.streams.of_context(context);
        streams.filter_map(Stream::unfinished).collect()
    }
}

impl World {
    /// In virtual time, does the work that is due at this instant, so that work without a duration does not count as in
    /// flight; if another thread lets time pass, does not wait for it. Not to be called under a lock, nor within a
    /// user's function.
    pub(crate) fn settle(&self) {
        self.engine.settle();
    }
}

fn befall(fate: Fate, work: &mut Work, ruin: &Ruin) {
    match fate {
        Fate::Done => {}
        Fate::Stuck => work.action = Action::Never,
        Fate::Ruins(result) => {
            let ruin = ruin.clone();
            work.action = Action::Move(Box::new(move || ruin.with(result)));
        }
    }
}

/// After a sticky error, and after the context's end, work of a device has no effect.
fn guarded(action: Action, ruin: &Ruin) -> Action {
    match action {
        Action::Move(function) => {
            let ruin = ruin.clone();
            Action::Move(Box::new(move || ruin.unless(function)))
        }
        other => other,
    }
}
