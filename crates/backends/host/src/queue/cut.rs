//! How many threads share a copy, the size of its pieces, and the threads that run it.

use transload_hal::MemoryKind;

use super::place::Place;
use crate::pool::DIRECT_READERS;
use crate::raw::Store;
use crate::tuning::{Tuning, piece_bytes};

/// How a copy is cut and by how many threads it is done.
pub(super) struct Cut {
    pub(super) step: u64,
    pub(super) threads: u32,
    pub(super) store: Store,
    pub(super) inline: bool,
}

impl Cut {
    /// Has a copy that threads share go past the caches if its destination is memory for a device to read: the device
    /// reads it from there, and no line of it is fetched only to be overwritten. Into pinned memory beside an H100, on a
    /// Xeon with 16 processors, chunks of 4 MiB made staged copies of 16 to 256 MiB 1.4 to 1.8 times as fast.
    pub(super) fn for_reader(mut self, dst: MemoryKind, tuning: &Tuning) -> Self {
        if dst == MemoryKind::Pinned
            && !self.inline
            && let Some(last) = tuning.bands.last()
        {
            self.store = last.store;
        }
        self
    }

    pub(super) fn new(
        src: Place,
        dst: Place,
        len_bytes: u64,
        tuning: &Tuning,
        in_flight: usize,
    ) -> Self {
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let choice = tuning.choose(len, in_flight);
        if dst.is_file() {
            // File systems let one writer at a time into a file.
            return Self {
                step: file_step(len_bytes, 1),
                threads: 1,
                store: Store::Plain,
                inline: false,
            };
        }
        if src.is_file() {
            let (threads, step) = match src.is_direct(len_bytes) {
                true => (
                    DIRECT_READERS,
                    DIRECT_PIECE_BYTES.max(len_bytes.div_ceil(u64::from(u32::MAX))),
                ),
                false => {
                    let threads = tuning.threads().min(FILE_READERS);
                    (threads, file_step(len_bytes, threads))
                }
            };
            return Self {
                step,
                threads,
                store: choice.store,
                inline: false,
            };
        }
        let inline = len < tuning.inline_below_bytes;
        let step = if inline {
            len_bytes
        } else {
            piece_bytes(len, choice.threads) as u64
        };
        Self {
            step: step.max(len_bytes.div_ceil(u64::from(u32::MAX))),
            threads: choice.threads,
            store: choice.store,
            inline,
        }
    }
}

fn file_step(len_bytes: u64, threads: u32) -> u64 {
    let len = usize::try_from(len_bytes).unwrap_or(usize::MAX / 2);
    let step = piece_bytes(len, threads).max(FILE_PIECE_BYTES) as u64;
    step.max(len_bytes.div_ceil(u64::from(u32::MAX)))
}

/// The most threads that read one file: each copies out of the page cache at some 6 to 10 GB/s, and
/// this many requests keep a drive busy. On a Xeon with 16 processors 4 fed a device with 42 GB/s, 8 with 45, 16 with 47.
const FILE_READERS: u32 = 8;

/// A piece that is read past the cache: several reads of it are in flight, and none at its end.
const DIRECT_PIECE_BYTES: u64 = 16 << 20;

/// Smallest piece of a file: each is a call to the system, of a microsecond.
const FILE_PIECE_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_never_too_many_to_count_nor_empty() {
        let tuning = Tuning::default();
        let memory = Place::Memory(std::ptr::null_mut());
        for len_bytes in [1, 4096, 1 << 20, 1 << 40, u64::MAX] {
            let cut = Cut::new(memory, memory, len_bytes, &tuning, 0);
            assert!(cut.step > 0 && len_bytes.div_ceil(cut.step) <= u64::from(u32::MAX));
            let step = file_step(len_bytes, 4);
            assert!(step > 0 && len_bytes.div_ceil(step) <= u64::from(u32::MAX));
        }
    }

    #[test]
    fn what_a_device_reads_goes_past_the_caches_where_threads_share_the_copy() {
        let stores = [Store::Plain, Store::Streaming];
        let tuning = Tuning::for_machine(crate::caches::Caches::ASSUMED, 4, &stores);
        let memory = Place::Memory(std::ptr::null_mut());
        let store = |len_bytes, dst| {
            let cut = Cut::new(memory, memory, len_bytes, &tuning, 0);
            cut.for_reader(dst, &tuning).store
        };
        let shared = tuning.inline_below_bytes as u64;
        assert_eq!(store(shared, MemoryKind::Pinned), Store::Streaming);
        assert_eq!(store(shared, MemoryKind::Pageable), Store::Plain);
        assert_eq!(store(shared - 1, MemoryKind::Pinned), Store::Plain);
    }

    #[test]
    fn only_small_copies_between_memory_run_on_their_submitter() {
        let tuning = Tuning::default();
        let memory = Place::Memory(std::ptr::null_mut());
        let below = tuning.inline_below_bytes as u64 - 1;
        assert!(Cut::new(memory, memory, below, &tuning, 0).inline);
        assert!(!Cut::new(memory, memory, below + 1, &tuning, 0).inline);
        let own = crate::memory::file::HostFile::temporary(1).unwrap();
        let file = Place::File(std::ptr::NonNull::from(&own), 0);
        assert!(!Cut::new(file, memory, 1, &tuning, 0).inline);
        assert!(!Cut::new(memory, file, 1, &tuning, 0).inline);
    }
}
