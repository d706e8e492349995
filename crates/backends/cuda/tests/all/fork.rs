//! A forked child has no CUDA: its calls return an error, none hangs, and its parent goes on.

use crate::common;

use std::time::Duration;

use common::{assert_clean, backend};
use transload_cuda::Cuda;
use transload_hal::{
    AllocSpec, Backend, Buffer, DeviceId, DeviceKind, ErrorClass, MemoryKind, Op, Part, Waited,
};

/// Seconds after which a child that hangs is killed.
const TOO_LONG_S: u32 = 300;

fn in_child(what: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs the tested calls and exits; the parent holds no lock that the child takes.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: no handler is installed, so the signal kills the child.
        unsafe { libc::alarm(TOO_LONG_S) };
        let told = i32::from(!what());
        // SAFETY: the child has no other cleanup to do.
        unsafe { libc::_exit(told) };
    }
    let mut status = 0;
    // SAFETY: the out-pointer is a local variable.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    assert!(libc::WIFEXITED(status), "the child was ended: {status:#x}");
    libc::WEXITSTATUS(status) == 0
}

/// Copies, and returns the result.
fn copy(cuda: &Cuda, src: &Buffer, dst: &Buffer) -> Result<(), ErrorClass> {
    let part = |buffer| Part {
        buffer,
        offset: 0,
        len_bytes: 4096,
    };
    let (from, to) = (part(src), part(dst));
    let op = Op::Copy { src: from, dst: to };
    // SAFETY: the buffers live until the fence has settled, and no other code uses them.
    let fence = unsafe { cuda.submit(None, &[op], &[]) };
    let fence = fence.map_err(|error| error.into_fault().class)?;
    assert_eq!(cuda.wait(fence, Duration::from_secs(600)), Waited::Settled);
    Ok(())
}

#[test]
fn a_child_is_told_that_it_has_no_cuda_and_the_parent_goes_on() {
    let cuda = backend(&[("DEVICES", "1")]);
    let spec = AllocSpec::bytes(4096);
    let device = DeviceId::new(DeviceKind::CUDA, 0).memory(MemoryKind::Device);
    let managed = device.device.memory(MemoryKind::Managed);
    let pinned = DeviceId::CPU0.memory(MemoryKind::Pinned);
    let make = |memory| cuda.allocate(memory, &spec).unwrap();
    let [src, dst, moving] = [pinned, device, managed].map(make);
    copy(&cuda, &src, &dst).unwrap();
    let told = in_child(|| {
        let refused = [device, managed, pinned].map(|memory| cuda.allocate(memory, &spec));
        let is_refused = refused.iter().all(Result::is_err);
        let is_lost = copy(&cuda, &src, &dst) == Err(ErrorClass::Lost);
        // The child drops the parent's buffers too; they stay valid in the parent.
        drop((src.clone(), dst.clone(), moving.clone()));
        is_refused && is_lost
    });
    assert!(told, "the child was not told");
    let told = in_child({
        let (cuda, buffers) = (&cuda, [&src, &dst, &moving]);
        move || {
            // SAFETY: these are the child's own copies, which it never touches again.
            let cuda = unsafe { std::ptr::read(cuda) };
            // SAFETY: as above.
            let buffers = buffers.map(|buffer| unsafe { std::ptr::read(buffer) });
            drop(buffers);
            drop(cuda);
            true
        }
    });
    assert!(told, "the child could not let go");
    copy(&cuda, &src, &dst).unwrap();
    drop((src, dst, moving, cuda));
    assert_clean();
}
