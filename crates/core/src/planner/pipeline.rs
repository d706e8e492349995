//! The pipeline rule: what a way costs as a function of size, for one size of chunk.

use alloc::vec::Vec;

use super::survey::Survey;
use super::way::Way;
use crate::defaults::RING_SLOTS;
use crate::estimate::Line;

/// A way beyond its first chunk: `fixed_ns + period_ns` for each chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tail {
    pub(super) fixed_ns: u64,
    pub(super) period_ns: u64,
}

impl Tail {
    /// Returns the time of payloads of at least one chunk of 2^`log2` bytes.
    pub(super) fn line(self, log2: u32) -> Line {
        Line::per_chunk(self.fixed_ns, self.period_ns, log2)
    }
}

/// Returns how long a step of `ns` nanoseconds keeps the host busy, of which it takes `load` parts of 1024.
pub(crate) fn loaded_ns(ns: u64, load: u16) -> u64 {
    match load {
        1024.. => ns,
        _ => ns / 1024 * u64::from(load) + ns % 1024 * u64::from(load) / 1024,
    }
}

impl Survey {
    /// Returns how many slots each ring of the way has when all of them together take at most `budget` bytes, 0 when
    /// one each is too much already. More than one each are at most half of the slots that fit, rounded up: the engine
    /// leaves the others to other devices.
    pub(super) fn slots(&self, way: &Way, log2: u32, budget: u64) -> u16 {
        match u64::from(way.rings()) {
            0 => RING_SLOTS,
            rings => {
                let room = budget >> log2;
                let first = (room / rings).min(1);
                let share = room.div_ceil(2) / rings;
                share.clamp(first, u64::from(RING_SLOTS)) as u16
            }
        }
    }

    /// Payloads of at least one chunk.
    ///
    /// Let `tᵢ` be the time of step `i` for one chunk. A chunk takes all steps in turn, so the first
    /// one is through after `Σ tᵢ`. From then on a chunk arrives each `p` nanoseconds, `p` being the
    /// longest of what repeats with every chunk:
    /// - an engine is busy for the sum of its steps, which cannot overlap each other;
    /// - the host's processors and memory bus are busy for a part of each step, by the engine of the step;
    /// - a ring of `k` slots takes in `k` chunks for each time that a slot is held, which is from the
    ///   start of the copy into it to the end of the last step that needs it.
    ///
    /// So `n` chunks take `Σ tᵢ + (n - 1) p = (Σ tᵢ - p) + n p`: all but the longest factor count
    /// once, and the longest one keeps its slope and its fixed cost, spread over the chunk's bytes.
    /// Each `tᵢ` is whole nanoseconds, as engines take them, so for whole chunks this is the very time
    /// of the pipeline where each step has an engine to itself, or all share one, and rings have slots
    /// to spare. Where only some share an engine, or slots are short, it is the steady state: how the
    /// engine's queue interleaves the steps can cost up to a chunk's time more. A partial last chunk
    /// is taken to cost its part of a whole one. With one step the rule says that copies queue back to
    /// back.
    ///
    /// The times of the steps are those of a payload of `whole` bytes.
    pub(super) fn tail(&self, way: &Way, log2: u32, slots: u16, whole: u64) -> Tail {
        let mut times = [0u64; Way::MAX_ACTS];
        let mut busy = [0u64; Way::MAX_ACTS];
        let (mut total, mut host) = (0u64, 0u64);
        for (i, act) in way.acts().iter().enumerate() {
            times[i] = self.part_ns(*act, log2, whole);
            total = total.saturating_add(times[i]);
            host = host.saturating_add(loaded_ns(times[i], self.host_load(*act)));
            let engine = &mut busy[usize::from(way.engines()[i])];
            *engine = engine.saturating_add(times[i]);
        }
        let mut period_ns = busy.into_iter().fold(host, u64::max);
        if slots < RING_SLOTS {
            for ring in 0..way.rings() {
                let (first, last) = way.held(ring);
                let held = times[first..=last]
                    .iter()
                    .fold(0u64, |sum, t| sum.saturating_add(*t));
                period_ns = period_ns.max(held.div_ceil(u64::from(slots.max(1))));
            }
        }
        Tail {
            fixed_ns: total - period_ns,
            period_ns,
        }
    }

    /// Pushes the lines of payloads of at least one chunk, by first size.
    pub(super) fn tails(&self, way: &Way, log2: u32, slots: u16, lines: &mut Vec<(u64, Line)>) {
        let mut from = 1 << log2;
        loop {
            lines.push((from, self.tail(way, log2, slots, from).line(log2)));
            match self.next_change(way, from) {
                Some(next) => from = next,
                None => return,
            }
        }
    }

    /// Payloads of less than one chunk: one step after the other on all of it. Pushes the lines of the
    /// sizes below `until`, by first size.
    pub(super) fn head(&self, way: &Way, until: u64, lines: &mut Vec<(u64, Line)>) {
        let mut from = 0;
        loop {
            let mut line = Line::default();
            let mut next = until;
            for act in way.acts() {
                let (cost, end) = self.curve(*act).piece_at(from);
                line = line.then(cost.into());
                next = next.min(end.unwrap_or(until));
            }
            lines.push((from, line));
            if next >= until {
                return;
            }
            from = next;
        }
    }
}
