//! The program's needs of its machine: an entry point, memory, a critical section, and an exit.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicUsize, Ordering};

use critical_section::RawRestoreState;

use crate::copies;

// The starting program sets the stack pointer; calls need the stack aligned to 16 bytes.
core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {run}",
    "ud2",
    run = sym run,
);

extern "C" fn run() -> ! {
    exit(match copies::arrive() {
        Ok(true) => 0,
        _ => 1,
    })
}

/// Ends the program by Linux's system call `exit_group`.
fn exit(code: i32) -> ! {
    // SAFETY: the call takes no memory and does not return.
    unsafe {
        core::arch::asm!(
            "syscall",
            in("rax") 231,
            in("rdi") code,
            options(noreturn, nostack),
        )
    }
}

#[panic_handler]
fn panicked(_: &PanicInfo<'_>) -> ! {
    exit(1)
}

/// One core without interrupts: a critical section excludes no other code. On other machines it disables interrupts.
struct OneCore;

critical_section::set_impl!(OneCore);

// SAFETY: no other code runs besides the program.
unsafe impl critical_section::Impl for OneCore {
    unsafe fn acquire() -> RawRestoreState {}
    unsafe fn release(_: RawRestoreState) {}
}

const HEAP_BYTES: usize = 4 << 20;

/// Allocates memory from the front and frees none: enough for a program that ends.
struct Bump {
    heap: UnsafeCell<[u8; HEAP_BYTES]>,
    used: AtomicUsize,
}

// SAFETY: the heap is only reached through ranges that were each allocated once.
unsafe impl Sync for Bump {}

#[global_allocator]
static HEAP: Bump = Bump {
    heap: UnsafeCell::new([0; HEAP_BYTES]),
    used: AtomicUsize::new(0),
};

// SAFETY: ranges lie within the heap, are aligned as requested, and are each allocated once.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let base = self.heap.get().cast::<u8>();
        let start_of = |used: usize| {
            let at = base as usize + used;
            at.next_multiple_of(layout.align()) - base as usize
        };
        let end_of = |used| start_of(used).checked_add(layout.size());
        let fits = |used| end_of(used).filter(|end| *end <= HEAP_BYTES);
        match self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
        {
            Ok(used) => base.wrapping_add(start_of(used)),
            Err(_) => core::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
