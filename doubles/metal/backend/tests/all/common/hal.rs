//! The backend without an engine.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use transload_hal::{
    AllocSpec, Backend, Buffer, CompletionSink, Fence, HostSpan, Op, Outcome, Part, SubmitError,
    Waited,
};
use transload_metal::Metal;

/// The outcomes that the sink was told.
#[derive(Default)]
pub(crate) struct Heard(Mutex<Vec<(Fence, Outcome)>>);

impl CompletionSink for Heard {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        self.0.lock().unwrap().push((fence, outcome));
    }
}

/// A backend and its sink.
pub(crate) struct Bench {
    pub(crate) metal: Metal,
    heard: Arc<Heard>,
}

impl Bench {
    pub(crate) fn new(metal: Metal) -> Bench {
        let heard = Arc::new(Heard::default());
        assert!(metal.attach(heard.clone()));
        Bench { metal, heard }
    }

    pub(crate) fn buffer(&self, place: &str, len: usize) -> Buffer {
        let place: transload_hal::Place = place.parse().unwrap();
        let inventory = self.metal.inventory();
        let memories = inventory.memories.iter();
        let memory = memories
            .map(|memory| memory.id)
            .find(|memory| memory.to_string() == place.to_string())
            .unwrap();
        self.metal
            .allocate(memory, &AllocSpec::bytes(len as u64))
            .unwrap()
    }

    /// Starts a copy of all bytes.
    pub(crate) fn copy(
        &self,
        src: &Buffer,
        dst: &Buffer,
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        let op = Op::Copy {
            src: whole(src),
            dst: whole(dst),
        };
        // SAFETY: tests keep their buffers until the fence has settled, and order what conflicts.
        unsafe { self.metal.submit(None, &[op], after) }
    }

    /// Waits until a fence has settled.
    pub(crate) fn outcome(&self, fence: Fence) -> Outcome {
        if fence.is_immediate() {
            return Outcome::Done;
        }
        let waited = self.metal.wait(fence, Duration::from_secs(300));
        assert_eq!(waited, Waited::Settled);
        let heard = self.heard.0.lock().unwrap();
        let of = heard.iter().find(|(told, _)| *told == fence);
        of.unwrap().1.clone()
    }

    pub(crate) fn has_settled(&self, fence: Fence) -> bool {
        self.metal.wait(fence, Duration::ZERO) == Waited::Settled
    }
}

fn whole(buffer: &Buffer) -> Part<'_> {
    Part {
        buffer,
        offset: 0,
        len_bytes: buffer.len(),
    }
}

/// Writes a buffer that the host reaches.
pub(crate) fn fill(buffer: &Buffer, bytes: &[u8]) {
    let span = buffer.host(0, bytes.len() as u64).unwrap();
    // SAFETY: no operation uses the buffer meanwhile.
    unsafe { HostSpan::of(bytes).copy_to(span) };
}
