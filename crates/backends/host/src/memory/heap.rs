//! Ordinary memory of the process: pageable, aligned, on huge pages if it is large or they are asked for.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use transload_hal::{AllocError, AllocSpec, ErrorClass, Fault, HostSpan, MemoryId, Room, Taken};

use super::hint;
#[cfg(unix)]
use super::mapping::Mapping;
use super::storage::{check_alignment, check_len};
#[cfg(unix)]
use super::store::{self, Block};

/// The smallest alignment given: what DLPack promises of tensors (dlpack.h 1.3, `DLTensor::data`). It is whole cache lines, so
/// that no two allocations share one.
pub const ALIGNMENT: u64 = 256;

/// The largest alignment taken: 1 GiB, the largest page of current processors.
pub const MAX_ALIGNMENT: u64 = 1 << 30;

/// Allocations of at least this length get a mapping of their own, which goes to the store of freed blocks. For shorter ones the
/// process's allocator is as good.
#[cfg(unix)]
const MAP_FROM_BYTES: usize = 128 << 10;

/// Mappings of at least this length are on huge pages where the system grants them: the first touch of 128 MiB takes 22 ms,
/// and 55 ms in pages of 4 KiB (AMD EPYC). Shorter ones are often not filled to the end of a huge page.
#[cfg(unix)]
const HUGE_FROM_BYTES: usize = 4 << 20;

/// A freed block of at most this length is zeroed for an allocation that asks for zeroes. For longer ones new pages cost less
/// until they are touched.
#[cfg(unix)]
const ZERO_UP_TO_BYTES: usize = 4 << 20;

/// The owner of an allocation in `cpu:0/pageable`.
#[derive(Debug)]
pub struct HeapMemory {
    backing: Backing,
    huge_pages: HugePages,
}

/// The result of asking for huge pages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// The caller did not ask for huge pages.
    NotAsked,
    /// The system was advised and is set up to follow. It still decides page by page, when memory is
    /// first touched.
    Advised,
    /// Huge pages will not be used, for this reason.
    Refused(NoHugePages),
}

/// Why an allocation that asked for huge pages gets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoHugePages {
    /// The allocation is smaller than a huge page.
    #[error("the allocation of {len_bytes} bytes is smaller than a huge page of {page_bytes}")]
    TooSmall {
        /// The length of the allocation.
        len_bytes: usize,
        /// The length of a huge page.
        page_bytes: usize,
    },
    /// Transparent huge pages are switched off.
    #[error(
        "transparent huge pages are switched off (/sys/kernel/mm/transparent_hugepage/enabled)"
    )]
    SwitchedOff,
    /// The kernel takes no advice about huge pages.
    #[error("this kernel takes no advice about huge pages")]
    NoAdvice,
    /// The system chooses page sizes itself.
    #[error("this system chooses page sizes itself")]
    SystemChooses,
    /// The system gives huge pages to privileged processes only, or not at all.
    #[error("this system gives huge pages to privileged processes only, or not at all")]
    Privileged,
}

#[derive(Debug)]
enum Backing {
    Empty,
    Allocated {
        start: NonNull<u8>,
        layout: Layout,
        _taken: Taken,
    },
    #[cfg(unix)]
    Mapped(Block),
}

// SAFETY: the allocation is owned by this value alone, and a shared reference gives out only its
// address.
unsafe impl Send for HeapMemory {}
// SAFETY: as above.
unsafe impl Sync for HeapMemory {}

impl HeapMemory {
    /// Allocates as `spec` asks, in the memory `memory` (for errors). Staging is touched at once, all
    /// else when it is used.
    pub(super) fn allocate(memory: MemoryId, spec: &AllocSpec) -> Result<Self, AllocError> {
        let len = check_len(memory, spec.len_bytes)?;
        let align = check_alignment(memory, spec.alignment, ALIGNMENT, MAX_ALIGNMENT)?;
        if len == 0 {
            return Ok(Self {
                backing: Backing::Empty,
                huge_pages: HugePages::NotAsked,
            });
        }
        let heap = Self::back(memory, (len, align), spec)?;
        if spec.staging {
            hint::populate(heap.span(len), true);
        }
        Ok(heap)
    }

    /// Finds memory of at least one byte.
    fn back(
        memory: MemoryId,
        (len, align): (usize, usize),
        spec: &AllocSpec,
    ) -> Result<Self, AllocError> {
        #[cfg(unix)]
        if len >= MAP_FROM_BYTES || spec.huge_pages {
            return Self::map(memory, (len, align), spec);
        }
        let taken = Room::take(memory, spec.len_bytes)?;
        let backing = Self::back_by_allocator(len, align, taken);
        Ok(Self {
            backing: backing.map_err(|fault| AllocError::OutOfMemory {
                memory,
                len_bytes: spec.len_bytes,
                fault,
            })?,
            huge_pages: match spec.huge_pages {
                true => HugePages::Refused(NoHugePages::Privileged),
                false => HugePages::NotAsked,
            },
        })
    }

    /// The allocation's first `len` bytes.
    pub(super) fn span(&self, len: usize) -> HostSpan {
        let start = match &self.backing {
            Backing::Empty => NonNull::dangling(),
            Backing::Allocated { start, .. } => *start,
            #[cfg(unix)]
            Backing::Mapped(block) => block.mapping.start(),
        };
        HostSpan::new(start, len)
    }

    /// Whether huge pages were asked for, and the system's answer.
    pub fn huge_pages(&self) -> &HugePages {
        &self.huge_pages
    }

    /// Takes a freed block, or maps a new one.
    #[cfg(unix)]
    fn map(
        memory: MemoryId,
        (len, align): (usize, usize),
        spec: &AllocSpec,
    ) -> Result<Self, AllocError> {
        let is_huge = spec.huge_pages || len >= HUGE_FROM_BYTES;
        let align = if is_huge { align.max(HUGE_PAGE) } else { align };
        let may_be_used = match (spec.zeroed, spec.huge_pages) {
            (true, _) => len <= ZERO_UP_TO_BYTES,
            // Shorter ones may be on small pages.
            (false, true) => len >= HUGE_FROM_BYTES,
            (false, false) => true,
        };
        let huge_pages = match spec.huge_pages {
            true => likely_huge(len),
            false => HugePages::NotAsked,
        };
        if let Some(block) = may_be_used.then(|| store::take(len, align)).flatten() {
            if spec.zeroed {
                // SAFETY: the block is this allocation's alone, and has at least `len` bytes.
                unsafe { block.mapping.start().write_bytes(0, len) };
            }
            return Ok(Self {
                backing: Backing::Mapped(block),
                huge_pages,
            });
        }
        let taken = Room::take(memory, spec.len_bytes)?;
        let map = || Mapping::anonymous(len, align);
        // A limit of the address space is not told of before.
        let mapping = map().or_else(|error| if Room::give_back() { map() } else { Err(error) });
        let mapping = mapping.map_err(|error| AllocError::OutOfMemory {
            memory,
            len_bytes: spec.len_bytes,
            fault: Fault::of_io("mapping memory", &error),
        })?;
        let is_advised = is_huge && advise_huge(&mapping, len);
        Ok(Self {
            backing: Backing::Mapped(Block {
                mapping,
                _taken: taken,
            }),
            huge_pages: match huge_pages {
                HugePages::Advised if !is_advised => HugePages::Refused(NoHugePages::NoAdvice),
                note => note,
            },
        })
    }

    fn back_by_allocator(len: usize, align: usize, taken: Taken) -> Result<Backing, Fault> {
        let full = || {
            Fault::new(
                ErrorClass::Exhausted,
                "the process's allocator has no such block",
            )
        };
        let layout = Layout::from_size_align(len, align).map_err(|_| full())?;
        // SAFETY: the layout's size is not 0, which `allocate` saw to.
        let allocate = || NonNull::new(unsafe { alloc_zeroed(layout) });
        let again = || Room::give_back().then(allocate).flatten();
        let start = allocate().or_else(again).ok_or_else(full)?;
        Ok(Backing::Allocated {
            start,
            layout,
            _taken: taken,
        })
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.backing, Backing::Empty) {
            Backing::Empty => {}
            // SAFETY: `start` came from the allocator with this layout, and goes back once.
            Backing::Allocated { start, layout, .. } => unsafe { dealloc(start.as_ptr(), layout) },
            #[cfg(unix)]
            Backing::Mapped(block) => store::give(block),
        }
    }
}

/// A huge page on x86-64, and with 4 KiB base pages on AArch64.
#[cfg(unix)]
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Returns whether the system took the advice.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn advise_huge(mapping: &Mapping, len: usize) -> bool {
    use rustix::mm::{Advice, madvise};
    // SAFETY: advice about pages that this allocation owns; it changes no byte.
    unsafe { madvise(mapping.start().as_ptr().cast(), len, Advice::LinuxHugepage) }.is_ok()
}

#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
fn advise_huge(_: &Mapping, _: usize) -> bool {
    false
}

/// Whether an advised mapping of `len` bytes will see huge pages.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn likely_huge(len: usize) -> HugePages {
    static MODES: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let modes = MODES.get_or_init(|| std::fs::read_to_string(path).unwrap_or_default());
    huge_by(len, modes)
}

#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
fn likely_huge(_: usize) -> HugePages {
    HugePages::Refused(NoHugePages::SystemChooses)
}

/// The same by the kernel's setting (`always [madvise] never`, the brackets around what is chosen).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn huge_by(len: usize, modes: &str) -> HugePages {
    if modes.contains("[always]") || modes.contains("[madvise]") {
        if len < HUGE_PAGE {
            HugePages::Refused(NoHugePages::TooSmall {
                len_bytes: len,
                page_bytes: HUGE_PAGE,
            })
        } else {
            HugePages::Advised
        }
    } else {
        HugePages::Refused(NoHugePages::SwitchedOff)
    }
}

#[cfg(test)]
mod tests {
    use transload_hal::{DeviceId, MemoryKind};

    use super::*;

    const MEMORY: MemoryId = DeviceId::CPU0.memory(MemoryKind::Pageable);

    fn allocate(spec: AllocSpec) -> (HeapMemory, HostSpan) {
        let heap = HeapMemory::allocate(MEMORY, &spec).unwrap();
        let span = heap.span(spec.len_bytes as usize);
        (heap, span)
    }

    #[test]
    fn memory_is_zeroed_if_asked_and_aligned_to_a_line_at_least() {
        for len in [1, 63, 64, 4096, 131_071, 131_072, 4 << 20, 5 << 20] {
            for align in [1, 64, 128, 4096, 2 << 20] {
                // The second one may get the block of the first one.
                for _ in 0..2 {
                    let (_heap, span) = allocate(AllocSpec::bytes(len).aligned(align).zeroed());
                    assert_eq!(span.addr() % align.max(64), 0);
                    // SAFETY: just allocated, and this test alone touches it.
                    assert!(unsafe { span.as_slice() }.iter().all(|byte| *byte == 0));
                    // SAFETY: as above.
                    unsafe { span.fill(9) };
                }
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_freed_block_is_the_next_allocations_of_about_its_length() {
        // No other test of the process allocates this much.
        const LEN: u64 = (9 << 20) + 4096;
        let (heap, first) = allocate(AllocSpec::bytes(LEN));
        // SAFETY: just allocated, and this test alone touches it.
        unsafe { first.fill(9) };
        drop(heap);
        let (heap, zeroed) = allocate(AllocSpec::bytes(LEN).zeroed());
        assert_ne!(zeroed.addr(), first.addr());
        let (other, span) = allocate(AllocSpec::bytes(LEN - (1 << 20)));
        assert_eq!(span.addr(), first.addr());
        drop(other);
        let (_other, span) = allocate(AllocSpec::bytes(LEN / 2));
        assert_ne!(span.addr(), first.addr());
        assert!(store::trim() >= LEN);
        let (_other, span) = allocate(AllocSpec::bytes(LEN));
        // SAFETY: as above.
        assert!(unsafe { span.as_slice() }.iter().all(|byte| *byte == 0));
        drop(heap);
    }

    #[test]
    fn staging_is_writable_to_the_last_byte() {
        let (_heap, span) = allocate(AllocSpec::bytes(300_001).for_staging());
        // SAFETY: just allocated, and this test alone touches it.
        unsafe { span.fill(9) };
        // SAFETY: as above.
        assert!(unsafe { span.as_slice() }.iter().all(|byte| *byte == 9));
    }

    #[test]
    fn an_empty_allocation_has_no_bytes() {
        let (heap, span) = allocate(AllocSpec::bytes(0).with_huge_pages());
        assert_eq!((span.len(), heap.huge_pages()), (0, &HugePages::NotAsked));
    }

    #[test]
    fn impossible_requests_name_their_limit() {
        let allocate = |spec| HeapMemory::allocate(MEMORY, &spec).unwrap_err();
        let error = allocate(AllocSpec::bytes(u64::MAX));
        assert!(
            matches!(error, AllocError::TooLarge { limit_bytes, .. } if limit_bytes == isize::MAX as u64)
        );
        // Where the system tells how much memory it has, what is larger than all of it can never be had.
        let error = allocate(AllocSpec::bytes(isize::MAX as u64));
        let is_limit = |limit_bytes| limit_bytes == Room::now().limit_bytes;
        assert!(
            match &error {
                AllocError::TooLarge { limit_bytes, .. } => is_limit(Some(*limit_bytes)),
                AllocError::OutOfMemory { .. } => is_limit(None),
                _ => false,
            },
            "{error}"
        );
        for alignment in [0, 3, MAX_ALIGNMENT * 2] {
            let error = allocate(AllocSpec::bytes(8).aligned(alignment));
            assert!(
                matches!(
                    error,
                    AllocError::Alignment {
                        limit: MAX_ALIGNMENT,
                        ..
                    }
                ),
                "{error}"
            );
        }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn the_note_about_huge_pages_follows_the_kernels_setting() {
        assert_eq!(
            huge_by(4 << 20, "always [madvise] never\n"),
            HugePages::Advised
        );
        assert!(matches!(
            huge_by(4096, "[always] madvise never"),
            HugePages::Refused(NoHugePages::TooSmall { .. })
        ));
        assert_eq!(
            huge_by(4 << 20, "always madvise [never]"),
            HugePages::Refused(NoHugePages::SwitchedOff)
        );
        let (heap, span) = allocate(AllocSpec::bytes(4 << 20).with_huge_pages());
        assert_ne!(heap.huge_pages(), &HugePages::NotAsked);
        assert_eq!(span.addr() % HUGE_PAGE as u64, 0);
    }
}
