//! Blocks of the process's own memory, to be locked in place; large blocks on huge pages.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use transload_hal::{AllocSpec, ErrorClass, Fault, HostSpan};

/// The size of a page. An allocation begins at a page and shares no page with other memory, because locking locks
/// whole pages. Some hosts with 64-bit Arm have pages of 64 KiB.
pub(crate) fn page_bytes() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        rustix::param::page_size() as u64
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    4096
}

/// Blocks of at least this size are mapped, aligned to it, and on huge pages if Linux has them: memory is locked page
/// by page, so fewer pages lock sooner, and the device's own tables are smaller. A huge page of x86-64, and of 64-bit
/// Arm with pages of 4 KiB.
#[cfg(any(target_os = "linux", target_os = "android"))]
const HUGE: usize = 2 << 20;

/// Zeroed memory of the process, given back when dropped.
pub(super) struct Block {
    start: NonNull<u8>,
    len: usize,
    source: Source,
    /// The driver refused to unregister the block, so it is never freed.
    pub(super) is_stuck: bool,
}

enum Source {
    Heap(Layout),
    /// A part of a mapping of `room` bytes, `before` bytes behind its start.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Mapped {
        before: usize,
        room: usize,
    },
}

// SAFETY: the block is owned, and nothing about it is tied to a thread.
unsafe impl Send for Block {}
// SAFETY: it gives out nothing but its address.
unsafe impl Sync for Block {}

impl Block {
    /// Makes a block of whole pages for the allocation.
    pub(super) fn new(spec: &AllocSpec) -> Result<Block, Fault> {
        let none = || Fault::new(ErrorClass::Exhausted, "the host has no room for it");
        let len = spec.len_bytes.max(1).next_multiple_of(page_bytes());
        let len = usize::try_from(len).map_err(|_| none())?;
        let align = spec.alignment.max(page_bytes()) as usize;
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if len >= HUGE {
            return Block::mapped(len, align.max(HUGE)).ok_or_else(none);
        }
        let layout = Layout::from_size_align(len, align).map_err(|_| none())?;
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        Ok(Block {
            start: NonNull::new(start).ok_or_else(none)?,
            len,
            source: Source::Heap(layout),
            is_stuck: false,
        })
    }

    /// A part of a larger mapping, of which the rest is never touched.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn mapped(len: usize, align: usize) -> Option<Block> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let room = len.checked_add(align)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without a wanted address a new mapping disturbs no existing one.
        let mapped =
            unsafe { mmap_anonymous(std::ptr::null_mut(), room, access, MapFlags::PRIVATE) };
        let base = mapped.ok()?.cast::<u8>();
        let before = base.align_offset(align);
        let start = base.wrapping_add(before);
        // Without huge pages, ordinary pages are used.
        // SAFETY: advice about pages that were just mapped; it changes no byte.
        let _ = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
        Some(Block {
            start: NonNull::new(start)?,
            len,
            source: Source::Mapped { before, room },
            is_stuck: false,
        })
    }

    /// The whole block.
    pub(super) fn span(&self) -> HostSpan {
        HostSpan::new(self.start, self.len)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.is_stuck {
            return;
        }
        match self.source {
            // SAFETY: it was allocated with this layout, and is freed once.
            Source::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Source::Mapped { before, room } => {
                let base = self.start.as_ptr().wrapping_sub(before);
                // SAFETY: the mapping is this block's, and nothing uses it any more.
                let _ = unsafe { rustix::mm::munmap(base.cast(), room) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_room_and_alignment_and_can_be_written_to_its_ends() {
        for len in [0, 1, 4096, 4097, (2 << 20) - 1, 2 << 20, (5 << 20) + 1] {
            for align in [1, 4096, 2 << 20] {
                let spec = AllocSpec::bytes(len).aligned(align);
                let block = Block::new(&spec).unwrap();
                let span = block.span();
                assert!(span.len() as u64 >= len.max(1), "{len}");
                assert_eq!(span.addr() % align.max(page_bytes()), 0, "{len} at {align}");
                for at in [0, span.len() as u64 - 1] {
                    let byte = span.slice(at, 1).unwrap();
                    let mut read = [7];
                    // SAFETY: the byte is the block's, and no other code knows the block.
                    unsafe { byte.copy_to(HostSpan::of_mut(&mut read)) };
                    assert_eq!(read, [0]);
                    // SAFETY: as above.
                    unsafe { HostSpan::of(&[1]).copy_to(byte) };
                }
            }
        }
    }

    #[test]
    fn what_no_machine_has_is_no_block() {
        let spec = AllocSpec::bytes(1 << 62);
        let Err(fault) = Block::new(&spec) else {
            panic!("there is no such memory")
        };
        assert_eq!(fault.class, ErrorClass::Exhausted);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn large_blocks_are_advised_to_be_on_huge_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            println!("skipped: this kernel has no transparent huge pages");
            return;
        }
        let block = Block::new(&AllocSpec::bytes(4 << 20)).unwrap();
        let (start, end) = (block.span().addr(), block.span().addr() + (4 << 20));
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let head = format!("{start:08x}-{end:08x} ");
        let range = maps.lines().skip_while(|line| !line.starts_with(&head));
        let flags = { range }.find(|line| line.starts_with("VmFlags:"));
        let flags = flags.expect("advice splits the mapping where it begins and ends");
        assert!(flags.split(' ').any(|flag| flag == "hg"), "{flags}");
    }
}
