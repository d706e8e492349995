//! Shared parts of the tests of the double: Metal as a client of `objc2-metal` uses it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::ffi::c_void;
use std::ptr::NonNull;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBlitCommandEncoder, MTLBuffer, MTLCommandBuffer, MTLCommandEncoder as _, MTLCommandQueue,
    MTLCreateSystemDefaultDevice, MTLDevice, MTLResourceOptions, MTLSharedEvent, MTLTexture,
};
use transload_metal_double::{Misuse, leaks, take_violations, violations};

pub(crate) type Device = Retained<ProtocolObject<dyn MTLDevice>>;
pub(crate) type Buffer = Retained<ProtocolObject<dyn MTLBuffer>>;
pub(crate) type Queue = Retained<ProtocolObject<dyn MTLCommandQueue>>;
pub(crate) type Commands = Retained<ProtocolObject<dyn MTLCommandBuffer>>;
pub(crate) type Encoder = Retained<ProtocolObject<dyn MTLBlitCommandEncoder>>;
pub(crate) type Texture = Retained<ProtocolObject<dyn MTLTexture>>;
pub(crate) type SharedEvent = Retained<ProtocolObject<dyn MTLSharedEvent>>;

pub(crate) const SHARED: MTLResourceOptions = MTLResourceOptions::StorageModeShared;
pub(crate) const MANAGED: MTLResourceOptions = MTLResourceOptions::StorageModeManaged;
pub(crate) const PRIVATE: MTLResourceOptions = MTLResourceOptions::StorageModePrivate;

/// Runs `test` in a pool; afterwards nothing is left, and nothing was done that may not be.
pub(crate) fn clean(test: impl FnOnce()) {
    autoreleasepool(|_| test());
    assert_eq!(leaks(), []);
    assert_eq!(violations(), []);
}

/// Runs `test`, which does `misuse` and nothing else of that kind. Nothing is left of it all the same.
pub(crate) fn misuses(misuse: Misuse, test: impl FnOnce()) {
    autoreleasepool(|_| test());
    assert_eq!(leaks(), []);
    let seen: Vec<Misuse> = take_violations()
        .iter()
        .map(|violation| violation.misuse)
        .collect();
    assert_eq!(seen, [misuse]);
}

pub(crate) fn device() -> Device {
    MTLCreateSystemDefaultDevice().expect("the machine has a device")
}

pub(crate) fn buffer(device: &Device, len: usize, options: MTLResourceOptions) -> Buffer {
    let buffer = device.newBufferWithLength_options(len, options);
    buffer.expect("there is memory")
}

/// The bytes of a buffer that the host can reach.
pub(crate) fn read(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.length()];
    let contents = buffer.contents().cast::<u8>();
    // SAFETY: the host's copy has as many bytes, and no command that writes them is under way.
    unsafe { contents.copy_to_nonoverlapping(NonNull::from(&mut bytes[..]).cast(), bytes.len()) };
    bytes
}

/// Writes `bytes` where the host can reach them.
pub(crate) fn write(buffer: &Buffer, bytes: &[u8]) {
    assert!(bytes.len() <= buffer.length());
    let contents = buffer.contents().cast::<u8>();
    // SAFETY: the host's copy has room, and no command that uses it is under way.
    unsafe { contents.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
}

/// Encodes one encoder's worth of commands into a new command buffer.
pub(crate) fn encode(queue: &Queue, work: impl FnOnce(&Encoder)) -> Commands {
    let commands = queue.commandBuffer().expect("queues give command buffers");
    encode_into(&commands, work);
    commands
}

pub(crate) fn encode_into(commands: &Commands, work: impl FnOnce(&Encoder)) {
    let encoder = commands.blitCommandEncoder().expect("none is open");
    work(&encoder);
    encoder.endEncoding();
}

/// The same, carried out.
pub(crate) fn run(queue: &Queue, work: impl FnOnce(&Encoder)) -> Commands {
    let commands = encode(queue, work);
    commands.commit();
    commands.waitUntilCompleted();
    commands
}

/// Copies the first `len` bytes.
pub(crate) fn copy(encoder: &Encoder, from: &Buffer, to: &Buffer, len: usize) {
    copy_at(encoder, (from, 0), (to, 0), len);
}

pub(crate) fn copy_at(encoder: &Encoder, from: (&Buffer, usize), to: (&Buffer, usize), len: usize) {
    // SAFETY: the double looks at ranges itself, and the tests keep the buffers or mean not to.
    unsafe {
        encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
            from.0, from.1, to.0, to.1, len,
        );
    }
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|index| (index * 31 + index / 251) as u8)
        .collect()
}

/// Pages of the test's own.
pub(crate) struct Pages {
    address: NonNull<u8>,
    layout: std::alloc::Layout,
}

impl Pages {
    pub(crate) fn new(count: usize) -> Self {
        let page = rustix::param::page_size();
        let layout = std::alloc::Layout::from_size_align(page * count, page).expect("a few pages");
        // SAFETY: the size is not zero.
        let address = unsafe { std::alloc::alloc_zeroed(layout) };
        let address = NonNull::new(address).expect("there is memory");
        Self { address, layout }
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn address(&self) -> NonNull<c_void> {
        self.address.cast()
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the pages are this value's, and were zeroed; no command is under way while a test looks.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: they were allocated with this layout.
        unsafe { std::alloc::dealloc(self.address.as_ptr(), self.layout) };
    }
}
