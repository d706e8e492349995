//! `MTLCommandQueue`.

pub(crate) mod methods;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use super::label::Label;
use crate::gpu::is_callback_thread;
use crate::ledger::{COUNTS, Misuse, report};
use crate::machine::DeviceState;
use crate::runtime::Ref;

/// Command buffers go in the order in which they were enqueued or committed.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    pub(crate) device: usize,
    /// No other queue has it.
    pub(crate) number: usize,
    /// How many more command buffers may be on their way; below zero where one was given all the same.
    free: Mutex<isize>,
    freed: Condvar,
    label: Label,
}

impl CommandQueue {
    pub(crate) fn new(device: &DeviceState, most: usize) -> Option<Ref<Self>> {
        if most == 0 {
            report(
                Misuse::BadArgument,
                "a queue has room for a command buffer".into(),
            );
        }
        if device.is_removed() || most == 0 {
            return None;
        }
        COUNTS.queues.one();
        Some(Ref::new(Self {
            device: device.index,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            free: Mutex::new(isize::try_from(most).unwrap_or(isize::MAX)),
            freed: Condvar::new(),
            label: Label::default(),
        }))
    }

    /// "Blocks the calling CPU thread if the queue doesn't have any free command buffers, and returns after the GPU
    /// finishes executing one" (`MTLCommandQueue`, commandBuffer).
    pub(super) fn take_slot(&self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if *free <= 0 {
            COUNTS.full_queues.one();
            if is_callback_thread() {
                let told = "a handler asked a full queue for a command buffer, which holds up all handlers";
                report(Misuse::WaitForever, told.into());
            } else {
                let waited = self.freed.wait_while(free, |free| *free <= 0);
                free = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
        *free -= 1;
    }

    pub(super) fn give_slot(&self) {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.freed.notify_one();
    }
}

static NUMBERS: AtomicUsize = AtomicUsize::new(0);
