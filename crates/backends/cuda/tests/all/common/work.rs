//! Writes and reads buffers through the backend, and directly through the driver.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::backend;
use transload_cuda::Cuda;
use transload_cuda::raw::{CUcontext, CUdevice, CUpointer_attribute, CUresult};
use transload_hal::{
    AllocSpec, Backend, Buffer, CompletionSink, DeviceId, Fence, HostSpan, MemoryId, MemoryKind,
    Op, Outcome, Part, SubmitError, Waited,
};

/// The outcomes of a backend's submissions.
#[derive(Default)]
pub(crate) struct Outcomes(Mutex<Vec<(Fence, Outcome)>>);

impl Outcomes {
    /// All outcomes that were reported so far.
    pub(crate) fn all(&self) -> Vec<Outcome> {
        let told = self.0.lock().unwrap();
        told.iter().map(|(_, outcome)| outcome.clone()).collect()
    }
}

impl CompletionSink for Outcomes {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        self.0.lock().unwrap().push((fence, outcome));
    }
}

/// A backend, and the outcomes that it reports.
pub(crate) struct Works {
    pub(crate) cuda: Cuda,
    outcomes: Arc<Outcomes>,
}

pub(crate) fn pinned() -> MemoryId {
    DeviceId::CPU0.memory(MemoryKind::Pinned)
}

pub(crate) fn device(number: u32) -> MemoryId {
    DeviceId::new(transload_hal::DeviceKind::CUDA, number).memory(MemoryKind::Device)
}

pub(crate) fn managed(number: u32) -> MemoryId {
    device(number).device.memory(MemoryKind::Managed)
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at % 251) as u8 ^ (at / 251) as u8 ^ seed;
    (0..len).map(byte).collect()
}

pub(crate) fn whole(buffer: &Buffer) -> Part<'_> {
    part(buffer, 0, buffer.len())
}

pub(crate) fn part(buffer: &Buffer, offset: u64, len_bytes: u64) -> Part<'_> {
    Part {
        buffer,
        offset,
        len_bytes,
    }
}

pub(crate) fn copy<'a>(src: &'a Buffer, dst: &'a Buffer) -> Op<'a> {
    Op::Copy {
        src: whole(src),
        dst: whole(dst),
    }
}

impl Works {
    pub(crate) fn new(cuda: Cuda) -> Works {
        let outcomes = Arc::new(Outcomes::default());
        assert!(cuda.attach(outcomes.clone()));
        Works { cuda, outcomes }
    }

    /// The same over a machine whose devices are in use: a primary context that no user retains ends with all of the
    /// user's memory.
    pub(crate) fn in_use(settings: &[(&str, &str)]) -> Works {
        let works = Works::new(backend(settings));
        for info in works.cuda.inventory().devices {
            drop(works.allocate(info.id.memory(MemoryKind::Device), 1));
        }
        works
    }

    pub(crate) fn allocate(&self, memory: MemoryId, len: usize) -> Buffer {
        let spec = AllocSpec::bytes(len as u64);
        self.cuda.allocate(memory, &spec).unwrap()
    }

    /// Pinned memory that holds `bytes`.
    pub(crate) fn pinned(&self, bytes: &[u8]) -> Buffer {
        let buffer = self.allocate(pinned(), bytes.len());
        write(&buffer, bytes);
        buffer
    }

    pub(crate) fn submit(&self, ops: &[Op<'_>]) -> Result<Fence, SubmitError> {
        self.submit_after(ops, &[])
    }

    pub(crate) fn submit_after(
        &self,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        // SAFETY: tests keep their buffers until their submissions are over, or leak the buffers.
        unsafe { self.cuda.submit(None, ops, after) }
    }

    pub(crate) fn outcome(&self, fence: Fence) -> Outcome {
        if fence.is_immediate() {
            return Outcome::Done;
        }
        while self.cuda.wait(fence, Duration::MAX) != Waited::Settled {}
        let outcomes = self.outcomes.0.lock().unwrap();
        let told = outcomes.iter().find(|(told, _)| *told == fence);
        told.expect("a fence that settled was told").1.clone()
    }

    /// Executes operations, all of which must succeed.
    pub(crate) fn run(&self, ops: &[Op<'_>]) {
        let fence = self.submit(ops).unwrap();
        assert_eq!(self.outcome(fence), Outcome::Done);
    }

    /// Writes bytes to a device's memory.
    pub(crate) fn upload(&self, buffer: &Buffer, bytes: &[u8]) {
        self.run(&[copy(&self.pinned(bytes), buffer)]);
    }

    /// The bytes of a device's memory.
    pub(crate) fn download(&self, buffer: &Buffer) -> Vec<u8> {
        let landing = self.allocate(pinned(), buffer.len() as usize);
        self.run(&[copy(buffer, &landing)]);
        read(&landing)
    }

    /// Runs `act` in the primary context of a device, as users of the CUDA runtime do.
    pub(crate) fn beside<T>(&self, number: i32, act: impl FnOnce() -> T) -> T {
        let driver = self.cuda.driver();
        let mut context = CUcontext::NULL;
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, CUdevice(number)) }.unwrap();
        // SAFETY: the context was retained.
        unsafe { driver.cuCtxPushCurrent_v2(context) }.unwrap();
        let answer = act();
        let mut popped = CUcontext::NULL;
        // SAFETY: it was pushed above.
        unsafe { driver.cuCtxPopCurrent_v2(&raw mut popped) }.unwrap();
        // SAFETY: it was retained above.
        unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(number)) }.unwrap();
        answer
    }

    /// The number of free bytes in the first device's memory.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.beside(0, || {
            let (mut free, mut total) = (0, 0);
            let driver = self.cuda.driver();
            // SAFETY: the out-pointers are local variables.
            unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) }.unwrap();
            free as u64
        })
    }

    /// An attribute, of 64 bits or fewer, of the memory that a buffer lies in.
    pub(crate) fn attribute(
        &self,
        buffer: &Buffer,
        attribute: CUpointer_attribute,
    ) -> Result<u64, CUresult> {
        let mut value = 0u64;
        let driver = self.cuda.driver();
        let asked = self.beside(0, || {
            let place = (&raw mut value).cast();
            // SAFETY: the local variable is as large as the largest attribute.
            unsafe { driver.cuPointerGetAttribute(place, attribute, buffer.position()) }
        });
        asked.map_err(|error| error.result().unwrap())?;
        Ok(value)
    }
}

/// Writes a buffer that the host reaches.
pub(crate) fn write(buffer: &Buffer, bytes: &[u8]) {
    let span = buffer
        .host(0, bytes.len() as u64)
        .expect("the host reaches it");
    // SAFETY: no operation uses the buffer while a test writes it.
    unsafe { HostSpan::of(bytes).copy_to(span) };
}

/// Reads a buffer that the host reaches.
pub(crate) fn read(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len() as usize];
    let span = buffer.host(0, buffer.len()).expect("the host reaches it");
    // SAFETY: no operation writes the buffer while a test reads it.
    unsafe { span.copy_to(HostSpan::of_mut(&mut bytes)) };
    bytes
}
