//! Unwind safety: a program may go on using a manager after it caught a panic.
//!
//! The compiler cannot prove this: the engine holds trait objects (backends, a clock, wakers), which say nothing about
//! unwinding. It holds because no panic leaves the engine half-way through a change:
//! - The state machine moves under one lock, and only code of the engine runs under that lock: backends, wakers, traces
//!   and drops of buffers are called outside it. So their panics do not poison the lock, and a poisoned lock is entered
//!   all the same (`engine::sync`).
//! - A panic of a backend is caught at the call. It becomes a refusal or the loss of the backend, and neither leaves a
//!   transfer without an outcome.
//! - A call that unwinds while it holds borrowed memory first waits until its transfer is quiet.
//!
//! The handles themselves are counted references and plain data.

use core::panic::{RefUnwindSafe, UnwindSafe};

use crate::{Batch, Buffer, Event, Prepared, Region, Request, Transfer, TransferManager};

impl UnwindSafe for TransferManager {}
impl RefUnwindSafe for TransferManager {}
impl UnwindSafe for Buffer {}
impl RefUnwindSafe for Buffer {}
impl UnwindSafe for Event {}
impl RefUnwindSafe for Event {}
impl UnwindSafe for Region {}
impl RefUnwindSafe for Region {}
impl UnwindSafe for Request {}
impl RefUnwindSafe for Request {}
impl UnwindSafe for Prepared {}
impl RefUnwindSafe for Prepared {}
impl UnwindSafe for Transfer {}
impl RefUnwindSafe for Transfer {}
impl UnwindSafe for Batch {}
impl RefUnwindSafe for Batch {}
