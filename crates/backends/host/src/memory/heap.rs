//! Ordinary memory of the process: pageable, zeroed, aligned, on huge pages if asked for.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use transload_hal::{AllocError, AllocSpec, ErrorClass, Fault, HostSpan, MemoryId, Room, Taken};

use super::hint;
#[cfg(unix)]
use super::mapping::Mapping;
use super::storage::{check_alignment, check_len};

/// The smallest alignment given: what DLPack promises of tensors (dlpack.h 1.3, `DLTensor::data`). It is whole cache lines, so
/// that no two allocations share one.
pub const ALIGNMENT: u64 = 256;

/// The largest alignment taken: 1 GiB, the largest page of current processors.
pub const MAX_ALIGNMENT: u64 = 1 << 30;

/// Allocations of at least this length get a mapping of their own: the mapping is zeroed without being
/// touched, and returns to the system when freed. For shorter ones the process's allocator is cheaper
/// than two system calls.
#[cfg(unix)]
const MAP_FROM_BYTES: usize = 128 << 10;

/// The owner of an allocation in `cpu:0/pageable`.
#[derive(Debug)]
pub struct HeapMemory {
    backing: Backing,
    huge_pages: HugePages,
    taken: Taken,
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
    },
    #[cfg(unix)]
    Mapped(Mapping),
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
                taken: Taken::default(),
            });
        }
        let taken = Room::take(memory, spec.len_bytes)?;
        let mut heap =
            Self::back(len, align, spec.huge_pages).map_err(|fault| AllocError::OutOfMemory {
                memory,
                len_bytes: spec.len_bytes,
                fault,
            })?;
        heap.taken = taken;
        if spec.staging {
            hint::populate(heap.span(len), true);
        }
        Ok(heap)
    }

    /// The allocation's first `len` bytes.
    pub(super) fn span(&self, len: usize) -> HostSpan {
        let start = match &self.backing {
            Backing::Empty => NonNull::dangling(),
            Backing::Allocated { start, .. } => *start,
            #[cfg(unix)]
            Backing::Mapped(mapping) => mapping.start(),
        };
        HostSpan::new(start, len)
    }

    /// Whether huge pages were asked for, and the system's answer.
    pub fn huge_pages(&self) -> &HugePages {
        &self.huge_pages
    }

    #[cfg(unix)]
    fn back(len: usize, align: usize, huge: bool) -> Result<Self, Fault> {
        let align = if huge { align.max(HUGE_PAGE) } else { align };
        if len < MAP_FROM_BYTES && !huge {
            return Self::back_by_allocator(len, align, HugePages::NotAsked);
        }
        let mapping = Mapping::anonymous(len, align)
            .map_err(|error| Fault::of_io("mapping memory", &error))?;
        let huge_pages = if huge {
            advise_huge(&mapping, len)
        } else {
            HugePages::NotAsked
        };
        Ok(Self {
            backing: Backing::Mapped(mapping),
            huge_pages,
            taken: Taken::default(),
        })
    }

    #[cfg(not(unix))]
    fn back(len: usize, align: usize, huge: bool) -> Result<Self, Fault> {
        let note = if huge {
            HugePages::Refused(NoHugePages::Privileged)
        } else {
            HugePages::NotAsked
        };
        Self::back_by_allocator(len, align, note)
    }

    fn back_by_allocator(len: usize, align: usize, huge_pages: HugePages) -> Result<Self, Fault> {
        let full = || {
            Fault::new(
                ErrorClass::Exhausted,
                "the process's allocator has no such block",
            )
        };
        let layout = Layout::from_size_align(len, align).map_err(|_| full())?;
        // SAFETY: the layout's size is not 0, which `allocate` saw to.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or_else(full)?;
        Ok(Self {
            backing: Backing::Allocated { start, layout },
            huge_pages,
            taken: Taken::default(),
        })
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        if let Backing::Allocated { start, layout } = &self.backing {
            // SAFETY: `start` came from the allocator with this layout, and goes back once.
            unsafe { dealloc(start.as_ptr(), *layout) }
        }
    }
}

/// A huge page on x86-64, and with 4 KiB base pages on AArch64.
#[cfg(unix)]
pub(crate) const HUGE_PAGE: usize = 2 << 20;

#[cfg(any(target_os = "linux", target_os = "android"))]
fn advise_huge(mapping: &Mapping, len: usize) -> HugePages {
    use rustix::mm::{Advice, madvise};
    let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let note = likely_huge(len, modes.as_deref().unwrap_or("never"));
    // SAFETY: advice about pages that this allocation owns; it changes no byte.
    match unsafe { madvise(mapping.start().as_ptr().cast(), len, Advice::LinuxHugepage) } {
        Ok(()) => note,
        Err(_) => HugePages::Refused(NoHugePages::NoAdvice),
    }
}

#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
fn advise_huge(_: &Mapping, _: usize) -> HugePages {
    HugePages::Refused(NoHugePages::SystemChooses)
}

/// Whether an advised mapping of `len` bytes will see huge pages, by the kernel's setting
/// (`always [madvise] never`, the brackets around what is chosen).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn likely_huge(len: usize, modes: &str) -> HugePages {
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
    fn memory_is_zeroed_and_aligned_to_a_line_at_least() {
        for len in [1, 63, 64, 4096, 131_071, 131_072, 5 << 20] {
            for align in [1, 64, 128, 4096, 2 << 20] {
                let (_heap, span) = allocate(AllocSpec::bytes(len).aligned(align));
                assert_eq!(span.addr() % align.max(64), 0);
                // SAFETY: just allocated, and this test alone touches it.
                assert!(unsafe { span.as_slice() }.iter().all(|byte| *byte == 0));
            }
        }
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
            likely_huge(4 << 20, "always [madvise] never\n"),
            HugePages::Advised
        );
        assert!(matches!(
            likely_huge(4096, "[always] madvise never"),
            HugePages::Refused(NoHugePages::TooSmall { .. })
        ));
        assert_eq!(
            likely_huge(4 << 20, "always madvise [never]"),
            HugePages::Refused(NoHugePages::SwitchedOff)
        );
        let (heap, span) = allocate(AllocSpec::bytes(4 << 20).with_huge_pages());
        assert_ne!(heap.huge_pages(), &HugePages::NotAsked);
        assert_eq!(span.addr() % HUGE_PAGE as u64, 0);
    }
}
