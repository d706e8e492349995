//! One command queue of a device.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use transload_hal::{Fault, Fence, SubmitError, Waited};

use super::flight::{Resources, Shared};
use super::write::{Kit, Writer};
use super::{Move, Way, lane_number};
use crate::error::AbsentReason;
use crate::fault::nothing_of;
use crate::raw::{Commands, Device, EndBlock, Event, Queue, ReleaseBlock, pooled};
use crate::types::{BACKEND, Lost, Sink};

/// A command queue.
pub(crate) struct Lane {
    device: Device,
    queue: Queue,
    shared: Arc<Shared>,
    /// The blocks that Metal calls, for each place. The blocks keep the shared state alive; the shared state must
    /// not keep the blocks alive.
    blocks: Mutex<Vec<Arc<Blocks>>>,
    kit: Mutex<Kit>,
}

struct Blocks {
    end: EndBlock,
    gone: ReleaseBlock,
}

impl Lane {
    pub(crate) fn new(
        device: &Device,
        (gpu, way): (usize, Way),
        sink: &Sink,
        lost: &Lost,
    ) -> Result<Lane, AbsentReason> {
        // A device makes its lanes in the order of their ways.
        let (made, needed) = (way as usize, Way::ALL.len());
        let queue = device.queue();
        let queue = queue.ok_or(AbsentReason::NoQueue { made, needed })?;
        let event = device.event();
        let event = event.ok_or(AbsentReason::NoEvent { made, needed })?;
        let number = lane_number(gpu, way);
        Ok(Lane {
            device: device.clone(),
            queue,
            shared: Arc::new(Shared::new(number, event, sink, lost)),
            blocks: Mutex::default(),
            kit: Mutex::default(),
        })
    }

    /// Starts moves after the given submissions of lanes.
    ///
    /// # Safety
    /// As `Backend::submit`.
    pub(crate) unsafe fn submit<'a>(
        &self,
        moves: impl Iterator<Item = Move>,
        after: impl Iterator<Item = (&'a Lane, u64)>,
    ) -> Result<Fence, SubmitError> {
        let shared = &self.shared;
        if let Some(fault) = shared.lost.get() {
            return Err(SubmitError::Refused(fault.clone()));
        }
        let _gate = shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = shared.take_place(|| self.device.event());
        let none = || SubmitError::Refused(nothing_of("newSharedEvent"));
        let (place, event, mut resources) = taken.ok_or_else(none)?;
        let blocks = self.blocks_of(place);
        let sequence = shared.next();
        // Unused commands are dropped with the pool, so that memory that was wrapped for them is released here.
        let handed_over = pooled(|_| {
            // SAFETY: the caller's promise.
            let written = unsafe { self.write(moves, after, (place, &blocks), &mut resources) };
            let commands = written?;
            commands.signal(&event, sequence);
            commands.when_over(&blocks.end);
            shared.fly(place, sequence, std::mem::take(&mut resources));
            commands.commit();
            Ok(())
        });
        match handed_over {
            Ok(()) => Ok(Fence::in_lane(BACKEND, shared.number, sequence)),
            Err(refusal) => {
                shared.give_up(place, resources);
                Err(refusal)
            }
        }
    }

    /// Writes the commands of a submission.
    ///
    /// # Safety
    /// As `Backend::submit`.
    unsafe fn write<'a>(
        &self,
        moves: impl Iterator<Item = Move>,
        after: impl Iterator<Item = (&'a Lane, u64)>,
        (place, blocks): (usize, &Blocks),
        resources: &mut Resources,
    ) -> Result<Commands, SubmitError> {
        let none = |what| SubmitError::Refused(nothing_of(what));
        let commands = self.queue.commands().ok_or_else(|| none("commandBuffer"))?;
        for (other, sequence) in after {
            if let Some(event) = other.shared.event_of(sequence) {
                commands.wait_for(&event, sequence);
            }
        }
        let mut kit = self.kit.lock().unwrap_or_else(PoisonError::into_inner);
        let blit = commands.blit().ok_or_else(|| none("blitCommandEncoder"))?;
        let mut writer = Writer {
            device: &self.device,
            blit: &blit,
            kit: &mut kit,
            resources,
            shared: &self.shared,
            place,
            gone: &blocks.gone,
        };
        for one in moves {
            // SAFETY: the caller's promise.
            unsafe { writer.write(one) }.map_err(SubmitError::Refused)?;
        }
        // The encoder ends here.
        drop(blit);
        Ok(commands)
    }

    /// The blocks of a place.
    fn blocks_of(&self, place: usize) -> Arc<Blocks> {
        let mut all = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        while all.len() <= place {
            let at = all.len();
            let (of_end, of_gone) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
            all.push(Arc::new(Blocks {
                end: EndBlock::new(move |failure| of_end.end(at, failure)),
                gone: ReleaseBlock::new(move || of_gone.memory_released(at)),
            }));
        }
        Arc::clone(&all[place])
    }

    /// Whether a submission of this lane has not settled.
    pub(crate) fn is_pending(&self, sequence: u64) -> bool {
        self.shared.is_pending(sequence)
    }

    /// The last submission, if any is under way.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.shared.newest()
    }

    /// Blocks until a submission has settled or the limit has passed.
    pub(crate) fn wait(&self, sequence: u64, limit: Duration) -> Waited {
        self.shared.wait(sequence, limit)
    }

    /// The event that gets the number of a submission; `None` if it has settled.
    pub(super) fn event_of(&self, sequence: u64) -> Option<Event> {
        self.shared.event_of(sequence)
    }

    /// Sets an event of the user after submissions.
    pub(super) fn signal<'a>(
        &self,
        after: impl Iterator<Item = (&'a Lane, u64)>,
        event: &Event,
        value: u64,
    ) -> Result<(), Fault> {
        if let Some(fault) = self.shared.lost.get() {
            return Err(fault.clone());
        }
        pooled(|_| {
            let commands = self.queue.commands();
            let commands = commands.ok_or_else(|| nothing_of("commandBuffer"))?;
            for (other, sequence) in after {
                if let Some(of) = other.event_of(sequence) {
                    commands.wait_for(&of, sequence);
                }
            }
            commands.signal(event, value);
            // Metal does not document that failing commands set it, and they fail if the device is lost: the wait is
            // over then, too.
            let unset = event.clone();
            let set = move |failure: Option<_>| {
                if failure.is_some() && unset.value() < value {
                    unset.set(value);
                }
            };
            commands.when_over(&EndBlock::new(set));
            commands.commit();
            Ok(())
        })
    }
}

impl Drop for Lane {
    /// Work under way goes on: Metal keeps the queue, and the callbacks keep the shared state.
    fn drop(&mut self) {
        pooled(|_| {
            let all = self
                .blocks
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            all.clear();
        });
    }
}
