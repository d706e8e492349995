//! The methods of buffers.

use std::ffi::c_void;
use std::ptr;

use super::super::descriptor::Descriptor;
use super::super::texture::Texture;
use super::super::types::Range;
use super::{Buffer, hazard_tracking};
use crate::machine::made;
use crate::runtime::{Id, Method, Receiver, Ref};

class!(c"MTLBuffer" "_OBJC_CLASS_MTLBuffer", Buffer, methods);

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
            made().devices[this.storage.device].autoreleased()
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
