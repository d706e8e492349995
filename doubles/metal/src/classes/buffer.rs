//! `MTLBuffer`.

pub(crate) mod methods;

use std::sync::Arc;

use super::label::Label;
use super::types::Range;
use crate::bytes::{Mode, Storage};
use crate::ledger::{COUNTS, Misuse, report};
use crate::runtime::Ref;

/// Bytes for the GPU.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) storage: Arc<Storage>,
    options: usize,
    label: Label,
}

impl Buffer {
    pub(crate) fn new(storage: Storage, options: usize) -> Ref<Self> {
        Ref::new(Self {
            storage: Arc::new(storage),
            options,
            label: Label::default(),
        })
    }

    /// `didModifyRange:`. The GPU's copy is brought up to date at once.
    fn modified(&self, range: Range) {
        if self.storage.mode != Mode::Managed {
            let told = "didModifyRange: is for managed buffers alone";
            report(Misuse::StorageMode, told.into());
            return;
        }
        match range.within(self.storage.len) {
            Some(bytes) => {
                self.storage.take_in(bytes.start, bytes.len());
                COUNTS.modifications.one();
            }
            None => {
                let told = format!(
                    "{range:?} was modified of a buffer of {} bytes",
                    self.storage.len
                );
                report(Misuse::OutOfBounds, told);
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.storage.end("MTLBuffer");
    }
}

/// `MTLHazardTrackingMode`: resources that no heap holds are tracked unless they say otherwise.
pub(crate) fn hazard_tracking(options: usize) -> usize {
    const UNTRACKED: usize = 1;
    const TRACKED: usize = 2;
    if (options >> 8) & 0x3 == UNTRACKED {
        UNTRACKED
    } else {
        TRACKED
    }
}
