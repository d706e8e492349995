//! Loading UCX and moving bytes with it changes no handler of signals, no function of memory and no stack for signals.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod two;

use std::mem::MaybeUninit;
use std::path::Path;

use transload_remote::ucx::{Options, Ucx, UcxError, Worker};
use two::{Other, Side, role, say, ucx};

/// Not in the crate libc for this target.
const SA_RESTORER: i32 = 0x0400_0000;

/// The signals that the process catches, from the kernel.
fn caught() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status
        .lines()
        .find(|line| line.starts_with("SigCgt"))
        .unwrap()
        .to_string()
}

/// The action of each signal.
fn actions() -> Vec<(usize, i32)> {
    (1..32)
        .map(|signal| {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: without a new action the call only reads the present one.
            unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
            // SAFETY: zero is a value, and so is what the call wrote.
            let action = unsafe { action.assume_init() };
            // The C library marks each action that it sets, also the default one, with its way back.
            (action.sa_sigaction, action.sa_flags & !SA_RESTORER)
        })
        .collect()
}

/// The first bytes of the functions that UCX patches.
fn code() -> Vec<(&'static str, [u8; 16])> {
    [
        ("mmap", libc::mmap as *const () as *const [u8; 16]),
        ("munmap", libc::munmap as *const () as *const [u8; 16]),
        ("mremap", libc::mremap as *const () as *const [u8; 16]),
        ("madvise", libc::madvise as *const () as *const [u8; 16]),
        ("shmat", libc::shmat as *const () as *const [u8; 16]),
        ("shmdt", libc::shmdt as *const () as *const [u8; 16]),
        ("brk", libc::brk as *const () as *const [u8; 16]),
        ("sbrk", libc::sbrk as *const () as *const [u8; 16]),
    ]
    .into_iter()
    // SAFETY: each function of libc is longer than that.
    .map(|(name, start)| (name, unsafe { start.read_volatile() }))
    .collect()
}

fn signal_stack() -> usize {
    let mut stack = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: without a new stack the call only reads the present one.
    unsafe { libc::sigaltstack(std::ptr::null(), stack.as_mut_ptr()) };
    // SAFETY: zero is a value, and so is what the call wrote.
    unsafe { stack.assume_init() }.ss_sp.addr()
}

#[test]
fn ucx_leaves_signals_and_memory_functions_alone() {
    const TEST: &str = "ucx_leaves_signals_and_memory_functions_alone";
    let before = (caught(), actions(), code(), signal_stack());
    if role().is_some() {
        // The control: opened as programs do, the same library changes both.
        let named = std::env::var_os("TRANSLOAD_UCX").unwrap_or("libucp.so.0".into());
        // SAFETY: the initialisers of UCX may run in any process.
        let library = unsafe { libloading::Library::new(named) };
        std::mem::forget(library.unwrap());
        say(if caught() == before.0 {
            "same signals"
        } else {
            "other signals"
        });
        say(if code() == before.2 {
            "same code"
        } else {
            "other code"
        });
        return;
    }
    let Some(ucx) = ucx(TEST) else {
        return;
    };
    assert!(!ucx.was_present());
    assert_eq!(
        before,
        (caught(), actions(), code(), signal_stack()),
        "after loading {ucx:?}"
    );
    let (one, mut other) = (Side::new(ucx), Side::new(ucx));
    let endpoint = one.connect(other.worker.address());
    let (source, mut target) = (vec![7; 4 << 20], vec![0; 4 << 20]);
    other.receive(0, 0, &mut target);
    one.send(0, endpoint, 0, &source);
    other.done(0);
    assert!(source == target);
    assert_eq!(
        before,
        (caught(), actions(), code(), signal_stack()),
        "while workers run"
    );
    one.end();
    other.end();
    assert_eq!(
        before,
        (caught(), actions(), code(), signal_stack()),
        "after the workers"
    );
    let mut control = Other::start(TEST, "control", &[]);
    assert_eq!(control.hear(), "other signals");
    assert_eq!(control.hear(), "other code");
    control.succeeds();
}

#[test]
fn loading_says_which_library_and_why_not() {
    const TEST: &str = "loading_says_which_library_and_why_not";
    if role().is_none() {
        // In a process of its own, which has no UCX before.
        return Other::start(TEST, "alone", &[]).succeeds();
    }
    let missing = Path::new("/nowhere/libucp.so.0");
    let error = Ucx::load(Some(missing)).unwrap_err();
    assert!(matches!(error, UcxError::NotFound { .. }), "{error:?}");
    assert!(
        error.to_string().starts_with("no UCX: /nowhere/lib"),
        "{error}"
    );
    let Some(ucx) = ucx(TEST) else {
        return;
    };
    let error = Ucx::load(Some(missing)).unwrap_err();
    assert!(matches!(error, UcxError::Second { .. }), "{error:?}");
    assert!(std::ptr::eq(Ucx::load(None).unwrap(), ucx));
    let mut options = Options::default();
    options
        .settings
        .push(("TLS".into(), "no such transport".into()));
    let error = Worker::start(ucx, options, Box::new(|_| {})).unwrap_err();
    assert!(
        matches!(
            error,
            UcxError::Failed {
                function: "ucp_init_version",
                ..
            }
        ),
        "{error}"
    );
}
