//! Times are exact in virtual time; in real time the engine only promises orders and lower bounds.

mod actions;
mod exact;
mod lives;
mod model;
mod threads;

use super::{Action, ChannelId, Clock, Engine, Ticket, Work};
use std::sync::{Arc, Mutex};

/// The time of 16 MiB at 1 GB/s.
const SIXTEEN_MIB_NS: u64 = 16 << 20;

fn work(after: &[&Ticket], channels: &[ChannelId], duration_ns: u64) -> Work {
    Work {
        after: after.iter().map(|&ticket| ticket.clone()).collect(),
        channels: channels.to_vec(),
        duration_ns,
        action: Action::Nothing,
    }
}

/// A row of names in the order in which actions ran.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u64>>>);

impl Log {
    fn note(&self, name: u64) -> Box<dyn FnOnce() + Send> {
        let names = Arc::clone(&self.0);
        Box::new(move || names.lock().unwrap().push(name))
    }

    fn names(&self) -> Vec<u64> {
        self.0.lock().unwrap().clone()
    }
}
