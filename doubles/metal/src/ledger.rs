//! The acts of clients: counters and misuse.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A forbidden act of a client. Metal's validation stops the program for it; without validation its effect is
/// undefined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which rule was broken.
    pub misuse: Misuse,
    /// The act, as a text.
    pub told: String,
}

/// The rules that this double looks after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// An object was released, retained or sent a message after its end.
    OverReleased,
    /// An object was autoreleased on a thread that has no pool.
    NoPool,
    /// A command buffer was committed, encoded into again, or released, and an encoder of it had not ended.
    EncoderOpen,
    /// An encoder was used after its end.
    EncoderEnded,
    /// A command buffer was committed twice, or changed after it was.
    Committed,
    /// A wait for a command buffer that was not committed, or a wait by a handler, which blocks all handlers.
    WaitForever,
    /// A buffer or texture ended while a command buffer that does not retain it was to use it.
    FreedInUse,
    /// A range lies outside its buffer or texture.
    OutOfBounds,
    /// Offsets or sizes that are not multiples of the required alignment.
    Misaligned,
    /// A copy within one buffer whose ranges overlap: "the results are undefined".
    Overlap,
    /// A buffer, texture or queue of one device was given to another.
    OtherDevice,
    /// A method that the storage mode does not have.
    StorageMode,
    /// An event was given a value below the one that it has.
    EventBackwards,
    /// An argument is none that the method takes.
    BadArgument,
    /// It may be right, and this double does not model it.
    NotModelled,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of acts since the process began.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        pub(crate) struct Counts {
            $(pub(crate) $name: Count,)*
        }

        pub(crate) static COUNTS: Counts = Counts {
            $($name: Count(AtomicU64::new(0)),)*
        };

        /// The counters as they are now. Work counts when the GPU has done it: [`settle`](crate::settle) waits for that.
        #[must_use]
        pub fn counters() -> Counters {
            Counters {
                $($name: COUNTS.$name.0.load(Ordering::Relaxed),)*
            }
        }

        impl Counters {
            /// Nothing was done.
            pub const NOTHING: Self = Self {
                $($name: 0,)*
            };

            /// The acts since `before`.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                Self {
                    $($name: self.$name - before.$name,)*
                }
            }
        }
    };
}

counters! {
    /// Buffers made with `MTLStorageModeShared`, no-copy buffers excepted
    shared_buffers,
    /// Buffers made with `MTLStorageModeManaged`, no-copy buffers excepted
    managed_buffers,
    /// Buffers made with `MTLStorageModePrivate`
    private_buffers,
    /// Buffers made over memory of the client's
    no_copy_buffers,
    /// Textures made, views of buffers included
    textures,
    /// Command queues made
    queues,
    /// Events made, shared or not
    events,
    /// Command buffers made
    command_buffers,
    /// Times that `commandBuffer` waited, because as many as the queue may have were on their way
    full_queues,
    /// Command buffers committed
    commits,
    /// Copies from buffer to buffer
    copies,
    /// Bytes of those
    copied_bytes,
    /// Copies from buffer to texture
    copies_to_texture,
    /// Copies from texture to buffer
    copies_from_texture,
    /// Copies from texture to texture
    copies_of_textures,
    /// Fills of buffers
    fills,
    /// `synchronizeResource:`
    synchronizes,
    /// `didModifyRange:`
    modifications,
    /// Signals of events by the GPU
    signals,
    /// Waits for events by the GPU
    waits,
    /// Threads that waited in `waitUntilCompleted`
    host_waits,
    /// Completed handlers called
    handlers,
}

pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }
}

static VIOLATIONS: Mutex<Vec<Violation>> = Mutex::new(Vec::new());

/// Records it, and prints it on standard error.
pub(crate) fn report(misuse: Misuse, told: String) {
    eprintln!("transload-metal-double: {misuse:?}: {told}");
    let mut violations = VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    violations.push(Violation { misuse, told });
}

/// Forbidden acts of clients, the oldest first.
#[must_use]
pub fn violations() -> Vec<Violation> {
    VIOLATIONS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// The same, and forgets it.
#[must_use]
pub fn take_violations() -> Vec<Violation> {
    std::mem::take(&mut VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner))
}
