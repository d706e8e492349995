//! The suite that every backend passes. It tests an implementation of [`Backend`] where implementations tend to fail.
//!
//! Each destination lies between guard bands and first holds the complement of the expected bytes. The [`Harness`]
//! writes and reads bytes without the operations under test. Lengths lie on the edges of words, lines, pages and
//! chunks. Features that a backend lacks are skipped with the reason, never passed. Cases that a backend cannot pass
//! stand in [`Exceptions`]: "never" for those that the memory system rules out, "known bug" for bugs to be fixed. An
//! exception that no case needs any more fails the run.
//!
//! A harness needs little where the host can address the memory:
//!
//! ```
//! use transload_hal::Backend;
//! use transload_testkit::conformance::{self, Exceptions, Harness};
//!
//! struct Mine<B>(B);
//!
//! impl<B: Backend> Harness for Mine<B> {
//!     fn backend(&self) -> &dyn Backend {
//!         &self.0
//!     }
//! }
//!
//! fn check(backend: impl Backend) {
//!     let report = conformance::run(&Mine(backend), &Exceptions::none());
//!     println!("{report}");
//!     report.assert_passed();
//! }
//! ```

mod bench;
mod copies;
mod each;
mod exceptions;
mod exchange;
mod fences;
mod memories;
mod order;
mod report;
mod stops;
mod transforms;
mod visible;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use transload_hal::{
    AllocError, AllocSpec, Backend, BackendId, Buffer, DeviceKind, HostSpan, MemoryId, Name,
    StorageId, StorageInfo,
};

pub use exceptions::{Exception, Exceptions, List};
pub use report::{Entry, Report, Verdict};

use bench::{Bench, Stop};

/// Gives the suite a backend, access to its memory without the backend's operations, and a way to
/// let time pass.
pub trait Harness {
    /// The backend in its initial state: without submissions and without a sink.
    fn backend(&self) -> &dyn Backend;

    /// Makes a buffer in a memory of the backend, or in another backend's memory at which a link
    /// ends.
    ///
    /// By default this calls the backend's own `allocate`; for memories of processors that the
    /// backend does not have, it makes a heap block that poses as one.
    ///
    /// # Errors
    /// As [`AllocError`] lists; an unsupported allocation skips the cases that need the memory.
    fn make(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        let inventory = self.backend().inventory();
        let own = inventory.memories.iter().any(|info| info.id == memory);
        if !own && memory.device.kind == DeviceKind::CPU {
            return Ok(posing_as(memory, spec.len_bytes));
        }
        self.backend().allocate(memory, spec)
    }

    /// Writes bytes without the backend's operations. Returns false if it cannot. By default it
    /// uses [`Buffer::host`].
    fn fill(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> bool {
        let Some(span) = buffer.host(offset, bytes.len() as u64) else {
            return false;
        };
        // SAFETY: the suite fills buffers that no operation uses, and they stay alive meanwhile.
        unsafe { HostSpan::of(bytes).copy_to(span) };
        true
    }

    /// Reads bytes without the backend's operations. Returns false if it cannot. By default it uses
    /// [`Buffer::host`].
    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> bool {
        let Some(span) = buffer.host(offset, out.len() as u64) else {
            return false;
        };
        // SAFETY: the suite reads buffers that no operation writes, and they stay alive meanwhile.
        unsafe { span.copy_to(HostSpan::of_mut(out)) };
        true
    }

    /// Lets a little time pass, for backends whose clock the test holds. By default a pump.
    fn drive(&self) {
        self.backend().pump();
    }

    /// How long a fence may take before it counts as hung.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// The lengths of copies, in bytes. The suite leaves out lengths beyond a memory's largest allocation.
    fn sizes(&self) -> Vec<u64> {
        SIZES.to_vec()
    }
}

/// Zero, single bytes, lengths around a word, a cache line, a page and the smallest chunk, and one odd length.
pub const SIZES: [u64; 17] = [
    0,
    1,
    3,
    4,
    7,
    8,
    63,
    64,
    65,
    4095,
    4096,
    4097,
    transload_core::defaults::MIN_CHUNK_BYTES - 1,
    transload_core::defaults::MIN_CHUNK_BYTES,
    transload_core::defaults::MIN_CHUNK_BYTES + 1,
    (1 << 20) - 1,
    (1 << 20) + 13,
];

/// Runs every case on everything that the backend lists. A case that panics fails.
///
/// Attaches a sink, so each backend is run once.
pub fn run(harness: &dyn Harness, exceptions: &Exceptions) -> Report {
    let bench = Bench::new(harness);
    let mut report = Report::new(&bench.name());
    for suite in SUITES {
        for case in suite(&bench) {
            let result = catch_unwind(AssertUnwindSafe(|| (case.run)(&bench)));
            let verdict = match result {
                Ok(Ok(())) => Verdict::Passed,
                Ok(Err(Stop::Skip(reason))) => Verdict::Skipped(reason),
                Ok(Err(Stop::Fail(failure))) => Verdict::Failed(failure),
                Err(panic) => Verdict::Failed(format!("panicked: {}", text_of(&*panic))),
            };
            report.push(case.name, case.subject, verdict);
        }
    }
    report.except(exceptions);
    report
}

type Run<'a> = Box<dyn Fn(&Bench<'_>) -> Result<(), Stop> + 'a>;

/// One case on one subject.
struct Case {
    name: &'static str,
    subject: String,
    run: Run<'static>,
}

impl Case {
    fn new(
        name: &'static str,
        subject: impl ToString,
        run: impl Fn(&Bench<'_>) -> Result<(), Stop> + 'static,
    ) -> Case {
        Case {
            name,
            subject: subject.to_string(),
            run: Box::new(run),
        }
    }
}

/// The last suite checks all fences of the suites before it.
const SUITES: [fn(&Bench<'_>) -> Vec<Case>; 10] = [
    memories::cases,
    exchange::cases,
    copies::cases,
    order::cases,
    each::cases,
    transforms::cases,
    visible::cases,
    fences::cases,
    stops::cases,
    fences::closing_cases,
];

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "something that is no text".into())
}

/// A heap block that poses as another backend's memory.
fn posing_as(memory: MemoryId, len_bytes: u64) -> Buffer {
    let mut block = vec![0u8; usize::try_from(len_bytes).unwrap_or(0)];
    let host = HostSpan::of_mut(&mut block);
    let info = StorageInfo {
        id: StorageId::Host,
        base: host.addr(),
        len_bytes: block.len() as u64,
        memory,
        backend: BackendId(Name::constant("elsewhere")),
        writable: true,
        host: Some(host),
    };
    // SAFETY: the vector's block stays in place while the buffer owns the vector, and no other code touches it.
    unsafe { Buffer::new(info, Box::new(block)) }
}
