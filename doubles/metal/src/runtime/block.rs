//! Blocks: closures with a count (Clang, Block Implementation Specification).

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_int, c_ulong, c_void};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use super::method::Coded;
use super::object::Id;

/// The header of every block.
#[repr(C)]
#[derive(Debug)]
struct Literal {
    isa: *const c_void,
    flags: c_int,
    /// "Reserved" in the specification; the count of those on the heap in the runtimes that are not Apple's.
    count: AtomicI32,
    invoke: unsafe extern "C-unwind" fn(),
    descriptor: *const Descriptor,
}

/// The two functions exist if the flag [`HAS_COPY_DISPOSE`] is set.
#[repr(C)]
#[derive(Debug)]
struct Descriptor {
    reserved: c_ulong,
    size: c_ulong,
}

#[repr(C)]
struct Helpers {
    descriptor: Descriptor,
    copy: Option<unsafe extern "C-unwind" fn(*mut c_void, *const c_void)>,
    dispose: Option<unsafe extern "C-unwind" fn(*mut c_void)>,
}

/// A block in a message: null, or one that is there while the message lasts.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct BlockArgument(Option<NonNull<Literal>>);

/// A block of our own, by count.
#[derive(Debug)]
pub(crate) struct Block(NonNull<Literal>);

// SAFETY: Metal calls blocks on threads of its own (MTLCommandBufferHandler is `Sendable`), so the code that passes a
// block has promised that it may be sent; the count is atomic.
unsafe impl Send for Block {}
// SAFETY: only the thread that takes it out of its list calls it.
unsafe impl Sync for Block {}

coded! {
    BlockArgument => "@?",
}

impl BlockArgument {
    /// A copy that outlives the message.
    pub(crate) fn copy(self) -> Option<Block> {
        let literal = self.0?;
        // SAFETY: the block is there while the message lasts.
        let copy = unsafe { _Block_copy(literal.as_ptr().cast()) };
        NonNull::new(copy.cast()).map(Block)
    }
}

macro_rules! call {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        /// # Safety
        /// It is a block that takes just this and answers nothing.
        pub(crate) unsafe fn $name(&self $(, $argument: $kind)*) {
            type Invoke = unsafe extern "C-unwind" fn(*const Literal $(, $kind)*);
            // SAFETY: our count keeps the block.
            let invoke = unsafe { self.0.as_ref() }.invoke;
            // SAFETY: the caller says what it takes; the first argument of all is the block.
            let invoke = unsafe { mem::transmute::<unsafe extern "C-unwind" fn(), Invoke>(invoke) };
            // SAFETY: our count keeps the block while it runs.
            unsafe { invoke(self.0.as_ptr() $(, $argument)*) }
        }
    )*};
}

impl Block {
    call! {
        call_object(object: Id);
        call_object_value(object: Id, value: u64);
        call_pointer_length(pointer: *mut c_void, length: usize);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: gives back the count that `_Block_copy` took.
        unsafe { _Block_release(self.0.as_ptr().cast()) };
    }
}

/// How many blocks are on the heap.
pub(crate) fn alive() -> usize {
    ALIVE.load(Ordering::Relaxed)
}

/// # Safety
/// `block` is null or a block.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Block_copy(block: *const c_void) -> *mut c_void {
    let Some(literal) = NonNull::new(block.cast_mut().cast::<Literal>()) else {
        return ptr::null_mut();
    };
    // SAFETY: the caller says that it is one.
    let block = unsafe { literal.as_ref() };
    if block.flags & IS_GLOBAL != 0 {
        return literal.as_ptr().cast();
    }
    if block.flags & NEEDS_FREE != 0 {
        block.count.fetch_add(1, Ordering::Relaxed);
        return literal.as_ptr().cast();
    }
    let layout = layout(block);
    // SAFETY: a block has a size that is not zero: it has at least its header.
    let Some(copy) = NonNull::new(unsafe { alloc(layout) }) else {
        return ptr::null_mut();
    };
    // SAFETY: both have `size` bytes, and one is new.
    unsafe {
        ptr::copy_nonoverlapping(literal.as_ptr().cast::<u8>(), copy.as_ptr(), layout.size())
    };
    let mut copy = copy.cast::<Literal>();
    ALIVE.fetch_add(1, Ordering::Relaxed);
    // SAFETY: it is ours alone until this function answers.
    let fresh = unsafe { copy.as_mut() };
    fresh.isa = ptr::addr_of!(_NSConcreteMallocBlock).cast();
    fresh.flags |= NEEDS_FREE;
    *fresh.count.get_mut() = 1;
    if let Some(helpers) = helpers(block)
        && let Some(helper) = helpers.copy
    {
        // SAFETY: the block's own function, which the specification asks to be called with both.
        unsafe { helper(copy.as_ptr().cast(), literal.as_ptr().cast()) };
    }
    copy.as_ptr().cast()
}

/// # Safety
/// `block` is null or a block, and a count of the caller's that is not used again.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Block_release(block: *const c_void) {
    let Some(literal) = NonNull::new(block.cast_mut().cast::<Literal>()) else {
        return;
    };
    // SAFETY: the caller has a count of it.
    let block = unsafe { literal.as_ref() };
    if block.flags & NEEDS_FREE == 0 || block.count.fetch_sub(1, Ordering::AcqRel) != 1 {
        return;
    }
    let layout = layout(block);
    if let Some(helpers) = helpers(block)
        && let Some(helper) = helpers.dispose
    {
        // SAFETY: the block's own function, called once, at its end.
        unsafe { helper(literal.as_ptr().cast()) };
    }
    ALIVE.fetch_sub(1, Ordering::Relaxed);
    // SAFETY: `_Block_copy` allocated it with this layout, and no count of it is left.
    unsafe { dealloc(literal.as_ptr().cast(), layout) };
}

fn layout(block: &Literal) -> Layout {
    // SAFETY: every block has a descriptor that lives as long as the block.
    let size = unsafe { (*block.descriptor).size };
    let size = usize::try_from(size).expect("blocks are small");
    Layout::from_size_align(size, ALIGN).expect("blocks are small")
}

fn helpers(block: &Literal) -> Option<&Helpers> {
    if block.flags & HAS_COPY_DISPOSE == 0 {
        return None;
    }
    // SAFETY: the flag says that the descriptor is of the longer kind.
    Some(unsafe { &*block.descriptor.cast::<Helpers>() })
}

/// Where the classes of blocks lie. Clients here send no messages to blocks, so the classes are empty.
#[repr(transparent)]
struct BlockClass([usize; 32]);

#[unsafe(no_mangle)]
static _NSConcreteGlobalBlock: BlockClass = BlockClass([0; 32]);
#[unsafe(no_mangle)]
static _NSConcreteStackBlock: BlockClass = BlockClass([0; 32]);
#[expect(
    non_upper_case_globals,
    reason = "the name is that of the specification"
)]
static _NSConcreteMallocBlock: BlockClass = BlockClass([0; 32]);

static ALIVE: AtomicUsize = AtomicUsize::new(0);

const NEEDS_FREE: c_int = 1 << 24;
const HAS_COPY_DISPOSE: c_int = 1 << 25;
const IS_GLOBAL: c_int = 1 << 28;

/// The alignment that `malloc` of the other runtimes returns.
const ALIGN: usize = 16;
