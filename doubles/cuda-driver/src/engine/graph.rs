//! Works and their dependencies. A state machine without clock, lock or thread: the caller gives the time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use super::ticket::{Bar, Done, Ticket};

/// Hardware that does one operation at a time: a copy engine, or one direction of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelId(usize);

/// One operation.
pub struct Work {
    /// The works that it waits for. Tickets of the same engine.
    pub after: Vec<Ticket>,
    /// The channels that it occupies from its start to its end; may be empty.
    pub channels: Vec<ChannelId>,
    /// The time from its start to its end.
    pub duration_ns: u64,
    /// The action at its end.
    pub action: Action,
}

/// The action at the end of work, with no lock held. A panic in it ends the process: otherwise threads would wait for
/// the work in vain.
pub enum Action {
    /// Nothing more.
    Nothing,
    /// Bytes move. In real time all moves of an engine run on one thread.
    Move(Box<dyn FnOnce() + Send>),
    /// A user's function. In real time such functions run on a thread of their own, one after the other, and delay only
    /// later work. In virtual time they run on the thread that steps.
    Host(Box<dyn FnOnce() + Send>),
    /// The work is never done. Its channels are free after its duration.
    Never,
    /// The work is done when the gate of this bar is open, and not before its end. Its channels are free at its end.
    Until(Bar),
}

/// All work that is not done, by its number, which is its place in the order of submission. Work stores its successors
/// by number and does not store its predecessors, so that a chain of any length is flat in memory.
#[derive(Default)]
pub(super) struct Graph {
    works: HashMap<u64, Entry>,
    channels: Vec<Channel>,
    /// Started and not ended, by end and number.
    running: BinaryHeap<Reverse<(u64, u64)>>,
    next_number: u64,
}

struct Entry {
    done: Arc<Done>,
    /// The number of works that it still waits for.
    waits_for: usize,
    successors: Vec<u64>,
    /// Each at most once.
    channels: Vec<ChannelId>,
    duration_ns: u64,
    ready_at_ns: u64,
    started: bool,
    /// Taken at the end.
    action: Action,
}

struct Channel {
    name: String,
    /// Ready works. The head may be running.
    queue: VecDeque<u64>,
    /// The time at which the last one ended.
    free_at_ns: u64,
}

/// Work that has ended, to be finished after its function has run.
pub(super) struct Ended {
    pub(super) number: u64,
    pub(super) end_ns: u64,
    pub(super) function: Function,
}

/// The part of an action that is left to run.
pub(super) enum Function {
    None,
    Move(Box<dyn FnOnce() + Send>),
    Host(Box<dyn FnOnce() + Send>),
}

impl Graph {
    pub(super) fn channel(&mut self, name: String) -> ChannelId {
        self.channels.push(Channel {
            name,
            queue: VecDeque::new(),
            free_at_ns: 0,
        });
        ChannelId(self.channels.len() - 1)
    }

    pub(super) fn add(&mut self, now_ns: u64, work: Work) -> Ticket {
        let Work {
            after,
            mut channels,
            duration_ns,
            action,
        } = work;
        channels.sort_unstable();
        channels.dedup();
        let number = self.next_number;
        for ticket in after.iter().filter(|ticket| !ticket.is_done()) {
            let known = self.works.get(&ticket.done.number);
            let own = known.is_some_and(|entry| Arc::ptr_eq(&entry.done, &ticket.done));
            assert!(own, "work comes after a ticket of another engine");
        }
        let mut waits_for = 0;
        for ticket in after.iter().filter(|ticket| !ticket.is_done()) {
            if let Some(before) = self.works.get_mut(&ticket.done.number) {
                before.successors.push(number);
                waits_for += 1;
            }
        }
        let done = Done::new(number);
        let entry = Entry {
            done: Arc::clone(&done),
            waits_for,
            successors: Vec::new(),
            channels,
            duration_ns,
            ready_at_ns: now_ns,
            started: false,
            action,
        };
        self.next_number += 1;
        self.works.insert(number, entry);
        if waits_for == 0 {
            self.queue(number);
        }
        Ticket { done }
    }

    pub(super) fn len(&self) -> usize {
        self.works.len()
    }

    /// The earliest end of the running works.
    pub(super) fn next_end(&self) -> Option<u64> {
        self.running.peek().map(|Reverse((end_ns, _))| *end_ns)
    }

    /// Takes at most `most` works that have ended by now, the earliest first. Frees their channels and lets the next
    /// works start there. Leaves out work that is never done, or that waits at a closed gate.
    pub(super) fn end_due(&mut self, now_ns: u64, most: usize) -> Vec<Ended> {
        let mut due = Vec::new();
        while due.len() < most && self.next_end().is_some_and(|end_ns| end_ns <= now_ns) {
            due.extend(self.running.pop());
        }
        let due = due.into_iter();
        due.filter_map(|Reverse((end_ns, number))| self.end(now_ns, end_ns, number))
            .collect()
    }

    fn end(&mut self, now_ns: u64, end_ns: u64, number: u64) -> Option<Ended> {
        let entry = self.works.get_mut(&number)?;
        let action = std::mem::replace(&mut entry.action, Action::Never);
        let freed = std::mem::take(&mut entry.channels);
        for &channel in &freed {
            let channel = &mut self.channels[channel.0];
            channel.queue.pop_front();
            channel.free_at_ns = end_ns;
        }
        for channel in freed {
            if let Some(&next) = self.channels[channel.0].queue.front() {
                self.start(next);
            }
        }
        let (end_ns, function) = match action {
            Action::Nothing => (end_ns, Function::None),
            Action::Move(function) => (end_ns, Function::Move(function)),
            Action::Host(function) => (end_ns, Function::Host(function)),
            // Whenever it was opened, it is known to be open now.
            Action::Until(bar) if bar.admits(number) => (now_ns, Function::None),
            Action::Until(_) | Action::Never => return None,
        };
        Some(Ended {
            number,
            end_ns,
            function,
        })
    }

    /// Marks works as done at a time, and queues what this makes ready, in the order of submission.
    pub(super) fn finish(&mut self, at_ns: u64, numbers: impl IntoIterator<Item = u64>) {
        let mut ready = Vec::new();
        for number in numbers {
            let Some(entry) = self.works.remove(&number) else {
                continue;
            };
            entry.done.set(at_ns);
            for successor in entry.successors {
                if let Some(next) = self.works.get_mut(&successor) {
                    next.waits_for -= 1;
                    next.ready_at_ns = next.ready_at_ns.max(at_ns);
                    if next.waits_for == 0 {
                        ready.push(successor);
                    }
                }
            }
        }
        ready.sort_unstable();
        for number in ready {
            self.queue(number);
        }
    }

    /// The names of the channels in use and how many works are at each.
    pub(super) fn queues(&self) -> Vec<(&str, usize)> {
        let used = self.channels.iter().filter(|c| !c.queue.is_empty());
        used.map(|c| (c.name.as_str(), c.queue.len())).collect()
    }

    fn queue(&mut self, number: u64) {
        if let Some(entry) = self.works.get(&number) {
            for &channel in &entry.channels {
                self.channels[channel.0].queue.push_back(number);
            }
            self.start(number);
        }
    }

    /// Starts ready work that is at the head of all its queues, once. In real time this may run late, so the work
    /// starts at the time of the last event that it waited for, and the rate of a busy channel stays true.
    fn start(&mut self, number: u64) {
        let Some(entry) = self.works.get_mut(&number) else {
            return;
        };
        let mut start_ns = entry.ready_at_ns;
        for &channel in &entry.channels {
            let channel = &self.channels[channel.0];
            if channel.queue.front() != Some(&number) {
                return;
            }
            start_ns = start_ns.max(channel.free_at_ns);
        }
        if !std::mem::replace(&mut entry.started, true) {
            let end_ns = start_ns.saturating_add(entry.duration_ns);
            self.running.push(Reverse((end_ns, number)));
        }
    }
}
