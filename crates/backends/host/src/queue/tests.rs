//! A queue under test, and independent access to its bytes.

mod copies;
mod outcomes;
mod stopped;

use std::collections::HashMap;
use std::sync::Mutex;

use transload_hal::{AllocSpec, Buffer, HostSpan, MemoryId, Part};

use super::*;
use crate::memory::file::HostFile;
use crate::memory::{self, FILE, PAGEABLE, SHARED};

/// Stores outcomes, and fails when a fence is reported twice.
#[derive(Default)]
struct Told(Mutex<HashMap<u64, Outcome>>);

impl CompletionSink for Told {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        let before = self.0.lock().unwrap().insert(fence.number(), outcome);
        assert_eq!(before, None, "{fence:?} was told twice");
    }
}

impl Told {
    fn outcome(&self, fence: Fence) -> Option<Outcome> {
        if fence.is_immediate() {
            Some(Outcome::Done)
        } else {
            self.0.lock().unwrap().get(&fence.number()).cloned()
        }
    }
}

struct Bench {
    queue: Queue,
    told: Arc<Told>,
}

impl Bench {
    /// A queue with that many threads, which runs copies below 64 KiB inline.
    fn new(threads: u32) -> Self {
        let band = |from_bytes, store| crate::tuning::Band {
            from_bytes,
            threads: 3,
            store,
        };
        let tuning = Tuning {
            inline_below_bytes: 64 << 10,
            bands: vec![
                band(1 << 10, crate::raw::Store::Plain),
                band(1 << 20, crate::raw::Store::Streaming),
            ],
        };
        let queue = Queue::new(
            tuning,
            Limits {
                threads,
                ..Limits::default()
            },
        );
        let told = Arc::new(Told::default());
        queue.attach(Arc::clone(&told) as Arc<dyn CompletionSink>);
        Self { queue, told }
    }

    fn submit(&self, ops: &[Op<'_>], after: &[Fence]) -> Result<Fence, SubmitError> {
        // SAFETY: every test waits for its fences, or drops the bench, before its buffers go.
        unsafe { self.queue.submit(ops, after, true) }
    }

    fn run(&self, op: Op<'_>) -> Outcome {
        let fence = self.submit(&[op], &[]).unwrap();
        self.wait(fence)
    }

    fn wait(&self, fence: Fence) -> Outcome {
        assert_eq!(self.queue.wait(fence, Duration::MAX), Waited::Settled);
        self.told.outcome(fence).expect("a settled fence was told")
    }
}

fn allocate(memory: MemoryId, len_bytes: u64) -> Buffer {
    memory::allocate(memory, &AllocSpec::bytes(len_bytes)).unwrap()
}

/// Bytes of a linear congruential sequence (Knuth's multiplier), eight a step, because debug builds are slow.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut word = u64::from(seed) + 1;
    for chunk in bytes.chunks_mut(8) {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        chunk.copy_from_slice(&word.to_be_bytes()[..chunk.len()]);
    }
    bytes
}

/// Sets a buffer's bytes without the queue.
fn fill(buffer: &Buffer, bytes: &[u8]) {
    match buffer.host(0, bytes.len() as u64) {
        // SAFETY: the test has the buffer to itself.
        Some(span) => unsafe { HostSpan::of(bytes).copy_to(span) },
        None => {
            use std::io::{Seek, SeekFrom, Write};
            let mut file = buffer.native::<HostFile>().unwrap().raw();
            file.seek(SeekFrom::Start(buffer.position())).unwrap();
            file.write_all(bytes).unwrap();
        }
    }
}

fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    match buffer.host(0, buffer.len()) {
        // SAFETY: the test has the buffer to itself.
        Some(span) => unsafe { span.as_slice() }.to_vec(),
        None => {
            use std::io::{Read, Seek, SeekFrom};
            let mut file = buffer.native::<HostFile>().unwrap().raw();
            file.seek(SeekFrom::Start(buffer.position())).unwrap();
            let mut bytes = vec![0; buffer.len() as usize];
            file.read_exact(&mut bytes).unwrap();
            bytes
        }
    }
}

fn part(buffer: &Buffer, offset: u64, len_bytes: u64) -> Part<'_> {
    Part {
        buffer,
        offset,
        len_bytes,
    }
}

fn memories() -> Vec<MemoryId> {
    let all = [
        (PAGEABLE, true),
        (SHARED, memory::HAS_SHARED),
        (FILE, memory::HAS_FILES),
    ];
    all.into_iter()
        .filter(|(_, here)| *here)
        .map(|(memory, _)| memory)
        .collect()
}
