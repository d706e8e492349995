//! `MTLBuffer`.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::descriptor::Descriptor;
use super::label::Label;
use super::texture::Texture;
use super::types::Range;
use crate::bytes::{Mode, Storage};
use crate::ledger::{COUNTS, Misuse, report};
use crate::machine::made;
use crate::runtime::{Id, Method, Receiver, Ref};

/// Bytes for the GPU.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) storage: Arc<Storage>,
    options: usize,
    label: Label,
}

class!(c"MTLBuffer" "_OBJC_CLASS_MTLBuffer", Buffer, methods);

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

fn methods() -> Vec<Method> {
    methods![Receiver<Buffer>;
        c"length" => fn(this) -> usize {
            this.storage.len
        }
        // NULL where the mode is private (`MTLBuffer`, contents).
        c"contents" => fn(this) -> *mut c_void {
            this.storage.contents().map_or(ptr::null_mut(), |contents| contents.as_ptr().cast())
        }
        c"didModifyRange:" => fn(this, range: Range) {
            this.modified(range);
        }
        c"gpuAddress" => fn(this) -> u64 {
            this.storage.gpu_address
        }
        c"device" => fn(this) -> Id {
            made().devices[this.storage.device].clone().autoreleased()
        }
        c"storageMode" => fn(this) -> usize {
            this.storage.mode as usize
        }
        c"cpuCacheMode" => fn(this) -> usize {
            this.options & 0xf
        }
        c"hazardTrackingMode" => fn(this) -> usize {
            hazard_tracking(this.options)
        }
        c"resourceOptions" => fn(this) -> usize {
            this.options
        }
        c"allocatedSize" => fn(this) -> usize {
            this.storage.len.next_multiple_of(made().machine.page_size)
        }
        c"label" => fn(this) -> Id {
            this.label.get()
        }
        c"setLabel:" => fn(this, label: Id) {
            this.label.set(label);
        }
        c"newTextureWithDescriptor:offset:bytesPerRow:" => fn(
            this, descriptor: Id, offset: usize, bytes_per_row: usize
        ) -> Id {
            let Some(descriptor) = descriptor.get::<Descriptor>() else {
                return Id::NIL;
            };
            let view = Texture::view(&this.retained(), &descriptor.get(), offset, bytes_per_row);
            view.map_or(Id::NIL, Ref::into_id)
        }
    ]
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
