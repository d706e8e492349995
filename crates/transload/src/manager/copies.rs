//! Moving bytes: copies, batches, borrowed slices, hints.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::mem::MaybeUninit;

use transload_core::{Conversion, DeviceId, Hazards, MemoryKind, Place, Shape};
use transload_hal::{Advice, AllocError, ErrorClass, Fault, HostSpan, StorageId, StorageInfo};

use crate::adopt::{Borrowed, NOWHERE};
use crate::engine::checked::{Checked, Only, Terms, footprint};
use crate::engine::event::EventState;
use crate::engine::hint::Wish;
use crate::engine::operand::{Operand, Scattered};
use crate::engine::shared::Shared;
use crate::engine::turn::Submitted;
use crate::engine::types::TransferId;
use crate::engine::unwind::guarded;
use crate::region::End;
use crate::{
    Batch, BatchError, Cancelled, Error, GuardError, HostEnd, OnFailure, Prepared, Region, Report,
    Request, Transfer, TransferError,
};

use super::TransferManager;

/// How many requests of a batch are planned, or accepted, in one go under the engine's lock: some 100 µs.
const AT_ONCE: usize = 256;

impl TransferManager {
    /// Copies all of `src` to all of `dst`. Copies between host memories of up to some 1 MiB are done when this
    /// returns. In any case the transfer tells the result.
    pub fn copy(&self, src: impl Into<Region>, dst: impl Into<Region>) -> Transfer {
        self.submit(&Request::new(src, dst))
    }

    /// Submits a request. The request is accepted whole, or refused without any effect.
    pub fn submit(&self, request: &Request) -> Transfer {
        let terms = &request.terms;
        let submitted = match self.check(request) {
            Ok(checked) => {
                let mut checked = Some(checked);
                self.shared.submit(&terms.then, |state, now| {
                    state.accept(&mut checked, terms, now)
                })
            }
            Err(error) => self.shared.refuse(error, &terms.then),
        };
        Transfer::new(submitted)
    }

    /// Submits several requests, all or none. `on_failure` says what happens to transfers that have not begun when one
    /// of them fails. Takes some 1 µs for each. The calling thread makes copies between host memories of up to 32 KiB,
    /// other threads make larger ones.
    ///
    /// # Errors
    /// The index of the first request that cannot be accepted, and what is wrong with it.
    pub fn copy_batch(
        &self,
        requests: &[Request],
        on_failure: OnFailure,
    ) -> Result<Batch, BatchError> {
        let at = |index| move |source| BatchError { index, source };
        self.shared
            .check_fork()
            .map_err(|forked| at(0)(forked.into()))?;
        let check = |(i, request)| self.check(request).map_err(at(i));
        let checked: Vec<Checked> = requests
            .iter()
            .enumerate()
            .map(check)
            .collect::<Result<_, _>>()?;
        let flag = Batch::flag(on_failure);
        let now = self.shared.clock.now();
        // Other threads wait for the engine's lock only as long as a few requests take.
        let mut chosen = Vec::with_capacity(checked.len());
        for (checked, requests) in checked.chunks(AT_ONCE).zip(requests.chunks(AT_ONCE)) {
            self.shared.change(|state| {
                for (checked, request) in checked.iter().zip(requests) {
                    let plan = state.planning.choose(checked, &request.terms, now);
                    chosen.push(plan.map_err(at(chosen.len()))?);
                }
                Ok(())
            })?;
            self.shared.state.give_way();
        }
        // All or none: each transfer waits until every request was accepted.
        let gate = Arc::new(EventState::new(self.shared.serial, self.shared.process));
        let mut ids = Vec::with_capacity(requests.len());
        let mut parts = checked.into_iter().zip(chosen).zip(requests);
        while ids.len() < requests.len() {
            let accepted = self.shared.change(|state| {
                for ((checked, chosen), request) in parts.by_ref().take(AT_ONCE) {
                    let mut terms = Terms {
                        batch: flag.clone(),
                        ..request.terms.clone()
                    };
                    terms.after.push(Arc::clone(&gate));
                    let parts = (checked.in_place, &checked.footprints[..]);
                    let ends = (checked.src, checked.dst);
                    let id = state.start(ends, parts, chosen, &terms, now);
                    ids.push(id.map_err(at(ids.len()))?);
                }
                Ok(())
            });
            if let Err(error) = accepted {
                // Nothing was submitted for the other requests: the gate is shut.
                for some in ids.chunks(AT_ONCE) {
                    self.shared
                        .change(|state| some.iter().for_each(|id| state.withdraw(*id)));
                    self.shared.turn_quickly();
                }
                return Err(error);
            }
            self.shared.state.give_way();
        }
        self.shared.gate_set(gate.set());
        self.shared.leave_to_hardware(&ids);
        let handle = |id| {
            let shared = Arc::clone(&self.shared);
            Transfer::new(Submitted::UnderWay { shared, id })
        };
        Ok(Batch::new(ids.into_iter().map(handle).collect()))
    }

    /// Copies one source to several destinations, all or none. A destination that has some of the bytes passes them on to
    /// another one where that is the fastest way for all, such as from one machine or device to the next: the source then
    /// sends its bytes once. Destinations that fail, stand still or are much slower than the others pass nothing on any
    /// more; the others get the rest from elsewhere. Each request's result tells how its own destination fared.
    ///
    /// All requests together have one place in the order of transfers, also at other machines. They have the same source.
    /// Others may read a destination until the batch is over, so until then no code writes it past the manager.
    ///
    /// # Errors
    /// The index of the first request that cannot be accepted, and what is wrong with it.
    pub fn broadcast(&self, requests: &[Request]) -> Result<Batch, BatchError> {
        let at = |index| move |source| BatchError { index, source };
        self.shared
            .check_fork()
            .map_err(|forked| at(0)(forked.into()))?;
        let mut parts = Vec::with_capacity(requests.len());
        let mut footprints = Vec::with_capacity(requests.len() + 1);
        let mut written = Hazards::new();
        for (i, request) in requests.iter().enumerate() {
            let checked = self.check(request).map_err(at(i))?;
            let memory = checked.dst.buffer.memory();
            let [from, to] = checked.footprints[..] else {
                unreachable!("both ends of a request have footprints")
            };
            match footprints.first() {
                None => footprints.push(from),
                Some(first) if *first == from => {}
                Some(_) => return Err(at(i)(TransferError::OtherSource { memory })),
            }
            if checked.in_place || written.enter(&[to]).waits {
                return Err(at(i)(TransferError::SharedDestination { memory }));
            }
            footprints.push(to);
            parts.push((checked, request.terms.clone()));
        }
        let turn = Arc::new(EventState::new(self.shared.serial, self.shared.process));
        let now = self.shared.clock.now();
        let started = self
            .shared
            .change(|state| state.start_group(parts, &footprints, &turn, now));
        self.shared.turn_quickly();
        let ids = started.map_err(|(index, source)| at(index)(source))?;
        let handle = |id| {
            let shared = Arc::clone(&self.shared);
            Transfer::new(Submitted::UnderWay { shared, id })
        };
        Ok(Batch::new(ids.into_iter().map(handle).collect()))
    }

    /// Copies borrowed bytes. Blocks until no operation of the copy is under way any more.
    ///
    /// # Errors
    /// As [`TransferError`] lists.
    pub fn copy_from_slice(
        &self,
        src: &[u8],
        dst: impl Into<Region>,
    ) -> Result<Report, TransferError> {
        let dst = dst.into();
        self.with_borrowed(HostSpan::of(src), false, |manager, src| {
            let checked = Checked::new(src, manager.operand(&dst)?)?;
            manager.submit_quietly(checked.with_borrowed_src(), true)
        })
    }

    /// Copies to borrowed bytes. Blocks until no operation of the copy is under way any more.
    ///
    /// # Errors
    /// As [`TransferError`] lists.
    pub fn copy_into_slice(
        &self,
        src: impl Into<Region>,
        dst: &mut [u8],
    ) -> Result<Report, TransferError> {
        self.copy_into(&src.into(), HostSpan::of_mut(dst))
    }

    /// Copies to borrowed memory that has no values yet, and returns the bytes that arrived. As
    /// [`TransferManager::copy_into_slice`], but the program need not fill the memory before.
    ///
    /// Memory for bytes of a file is filled with zeroes first, since files are read into initialised memory.
    ///
    /// ```
    /// # #[cfg(feature = "std")] {
    /// # use transload::TransferManager;
    /// # let manager = TransferManager::builder().host().build()?;
    /// # let buffer = manager.adopt(vec![7u8; 100])?;
    /// let mut memory = Vec::with_capacity(100);
    /// let (bytes, report) = manager.copy_into_uninit(&buffer, &mut memory.spare_capacity_mut()[..100])?;
    /// assert_eq!((&*bytes, report.bytes()), (&[7; 100][..], 100));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TransferError`] lists. The content of the memory is unspecified then, and may still have no values.
    pub fn copy_into_uninit<'a>(
        &self,
        src: impl Into<Region>,
        dst: &'a mut [MaybeUninit<u8>],
    ) -> Result<(&'a mut [u8], Report), TransferError> {
        let src = src.into();
        if src.buffer.memory().kind.is_file() {
            // Positioned reads of the standard library take `&mut [u8]`.
            dst.fill(MaybeUninit::zeroed());
        }
        let span = HostSpan::of_uninit(dst);
        let report = self.copy_into(&src, span)?;
        // SAFETY: the memory is borrowed for 'a, and nothing of the copy is under way any more. The copy is as long
        // as the span, and was done: by the promise of `Backend` all its bytes moved.
        Ok((unsafe { span.as_mut_slice() }, report))
    }

    /// Copies host memory that belongs to neither the manager nor Rust, such as another language's arrays: from, to or between such
    /// memory. Numbers become those of another type, where `conversion` names both. Blocks until the bytes are there. Between
    /// [spans](HostSpan) it allocates nothing once each thread that copies at the same time has done so before.
    ///
    /// It has a place in the order of transfers, as one between buffers of these bytes would, and does not wait for it: behind a
    /// transfer that has not ended it does nothing, and returns [`TransferError::WouldBlock`].
    ///
    /// # Errors
    /// As [`TransferError`] lists. The content of `dst` is unspecified then, unless that was it.
    ///
    /// # Safety
    /// Until the call returns, `src` is valid for reads and `dst` for writes, no code outside the manager writes the bytes of
    /// either, and none reads those of `dst`.
    pub unsafe fn copy_host(
        &self,
        src: impl Into<HostEnd>,
        dst: impl Into<HostEnd>,
        conversion: Option<Conversion>,
    ) -> Result<Report, TransferError> {
        self.with_end(&src.into(), false, |manager, src| {
            let src = match conversion {
                Some(conversion) => src.converted(conversion)?,
                None => src,
            };
            manager.with_end(&dst.into(), true, |manager, dst| {
                manager.submit_quietly(Checked::new(src, dst)?, false)
            })
        })
    }

    fn with_end(
        &self,
        end: &HostEnd,
        writable: bool,
        f: impl FnOnce(&TransferManager, Operand) -> Result<Report, TransferError>,
    ) -> Result<Report, TransferError> {
        let (span, array) = match &end.0 {
            End::Memory(span, array) => (*span, array),
            End::Region(region) => return f(self, self.operand(region)?),
        };
        let backend = self.backend_of(DeviceId::CPU0.memory(MemoryKind::Pageable));
        // Shared memory whose address was lent is the same memory here.
        let known = backend.and_then(|of| guarded(|| of.identity(span)).ok());
        let identity = known.unwrap_or((StorageId::Host, span.addr()));
        self.with_borrowed_as(identity, span, writable, |manager, mut operand| {
            if let Some(array) = array {
                operand.shape =
                    { array.shape() }.unwrap_or(Shape::contiguous(array.payload_bytes()));
                let is_plain = array.shape().is_some();
                operand.scattered = (!is_plain).then(|| Arc::new(Scattered::strided(*array)));
            }
            f(manager, operand)
        })
    }

    /// Copies a region's payload to a new vector. Blocks until the bytes are there.
    ///
    /// # Errors
    /// When there is no room for the vector, and as [`TransferError`] lists.
    pub fn read_to_vec(&self, src: impl Into<Region>) -> Result<Vec<u8>, Error> {
        let src = src.into();
        let memory = DeviceId::CPU0.memory(MemoryKind::Pageable);
        let len_bytes = src.shape.payload_bytes();
        let len = match isize::try_from(len_bytes) {
            Ok(_) => len_bytes as usize,
            Err(_) => {
                let limit_bytes = isize::MAX as u64;
                return Err(AllocError::TooLarge {
                    memory,
                    len_bytes,
                    limit_bytes,
                }
                .into());
            }
        };
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(len)
            .map_err(|_| AllocError::OutOfMemory {
                memory,
                len_bytes,
                fault: Fault::new(
                    ErrorClass::Exhausted,
                    "the process's allocator has no such block",
                ),
            })?;
        self.copy_into_uninit(src, &mut bytes.spare_capacity_mut()[..len])?;
        // SAFETY: so many bytes were reserved, and `copy_into_uninit` has initialised them.
        unsafe { bytes.set_len(len) };
        Ok(bytes)
    }

    /// Copies to borrowed memory, which need not be initialised: it is only written.
    fn copy_into(&self, src: &Region, dst: HostSpan) -> Result<Report, TransferError> {
        self.with_borrowed(dst, true, |manager, dst| {
            let checked = Checked::new(manager.operand(src)?, dst)?;
            manager.submit_quietly(checked.with_borrowed_dst(), true)
        })
    }

    /// Checks and plans a request once; the result can be posted any number of times.
    ///
    /// # Errors
    /// As [`TransferError`] lists.
    pub fn prepare(&self, request: &Request) -> Result<Prepared, TransferError> {
        self.check(request)?;
        Prepared::new(&self.shared, request)
    }

    /// Asks the memory's backend to bring a region's bytes near a device before they are needed: migrates managed
    /// memory, reads a file ahead, touches pages. Blocks until the backend has done it, behind transfers that write the
    /// bytes and were submitted before. Ignores requests that the memory does not support.
    ///
    /// # Errors
    /// When this machine has no such device, or the backend refuses or fails.
    pub fn prefetch(&self, region: impl Into<Region>, device: Place) -> Result<(), Error> {
        let to = self.resolve(device)?.device;
        self.hint(&region.into(), Wish::Prefetch(to))
    }

    /// Tells how a region's bytes will be used, or where they are best kept. Moves nothing and changes no byte. Waits
    /// and blocks as [`TransferManager::prefetch`] does. Ignores advice that means nothing to a memory.
    ///
    /// # Errors
    /// When this machine lacks a device that the advice names, or the backend fails.
    pub fn advise(&self, region: impl Into<Region>, advice: Advice) -> Result<(), Error> {
        if let Some(device) = advice.device() {
            self.resolve(device.into())?;
        }
        self.hint(&region.into(), Wish::Advise(advice))
    }

    fn hint(&self, region: &Region, wish: Wish) -> Result<(), Error> {
        self.shared.check_fork()?;
        let end = self.operand(region)?;
        let memory = end.buffer.memory();
        let backend = self.shared.backend_of(&end);
        let backend = backend.ok_or(AllocError::UnknownMemory { memory })?;
        let footprint = footprint(&end, false)?;
        let guard = self.shared.guard_in_turn(end.clone(), footprint);
        let guard = guard.map_err(GuardError::from)?;
        let done = self.shared.ask(&backend, &end, wish);
        self.shared.unguard(guard);
        match done {
            Err(fault) if fault.class != ErrorClass::Unsupported => {
                Err(Error::Hint { memory, fault })
            }
            // A request that the memory does not support is ignored.
            _ => Ok(()),
        }
    }

    pub(crate) fn check(&self, request: &Request) -> Result<Checked, TransferError> {
        let mut events = request.terms.after.iter().chain(&request.terms.then);
        if let Some(event) = events.find(|event| event.manager != self.shared.serial) {
            return Err(match event.is_forked() {
                true => TransferError::Forked,
                false => TransferError::ForeignEvent,
            });
        }
        if let Some(Only::Way(way)) = &request.terms.only
            && way.manager != self.shared.serial
        {
            return Err(TransferError::ForeignWay);
        }
        self.owns(&request.src)?;
        self.owns(&request.dst)?;
        request.check()
    }

    fn owns(&self, region: &Region) -> Result<(), TransferError> {
        if Arc::ptr_eq(&region.buffer.shared, &self.shared) {
            return Ok(());
        }
        region.buffer.shared.check_fork()?;
        Err(TransferError::ForeignBuffer {
            memory: region.buffer.memory(),
        })
    }

    pub(super) fn operand(&self, region: &Region) -> Result<Operand, TransferError> {
        self.owns(region)?;
        Ok(region.operand())
    }

    /// Wraps borrowed memory for the length of a call. The wrapper is reused, so nothing is allocated once each thread
    /// that copies at the same time has one.
    fn with_borrowed(
        &self,
        span: HostSpan,
        writable: bool,
        f: impl FnOnce(&TransferManager, Operand) -> Result<Report, TransferError>,
    ) -> Result<Report, TransferError> {
        self.with_borrowed_as((StorageId::Host, span.addr()), span, writable, f)
    }

    /// The same for memory of an identity, with the position of its first byte.
    fn with_borrowed_as(
        &self,
        (id, base): (StorageId, u64),
        span: HostSpan,
        writable: bool,
        f: impl FnOnce(&TransferManager, Operand) -> Result<Report, TransferError>,
    ) -> Result<Report, TransferError> {
        let memory = self.resolve(DeviceId::CPU0.memory(MemoryKind::Pageable).into())?;
        let (backend, known) = self
            .shared
            .state
            .with(|state| (state.planning.owner(memory), state.borrowed.pop()));
        let info = |(id, base), span: HostSpan| StorageInfo {
            id,
            base,
            len_bytes: span.len() as u64,
            memory,
            backend: backend.unwrap_or(memory.device.backend()),
            writable,
            host: Some(span),
        };
        let nowhere = (StorageId::Host, NOWHERE.addr());
        let mut wrapper = match known {
            Some(wrapper) => wrapper,
            // SAFETY: it shows no bytes.
            None => unsafe {
                transload_hal::Buffer::new(info(nowhere, NOWHERE), Box::new(Borrowed))
            },
        };
        // SAFETY: the bytes are borrowed for as long as this call lasts, mutably if they are to be
        // written, and `submit_quietly` returns only when nothing of the copy is under way.
        let bound = unsafe { wrapper.rebind(info((id, base), span)) };
        debug_assert!(bound, "wrappers in the list have no other views");
        let operand = Operand {
            shape: Shape::contiguous(wrapper.len()),
            buffer: wrapper.clone(),
            offset: 0,
            scattered: None,
        };
        let result = f(self, operand);
        // SAFETY: it shows no bytes from here on.
        if unsafe { wrapper.rebind(info(nowhere, NOWHERE)) } {
            self.shared.state.with(|state| state.borrowed.push(wrapper));
        }
        result
    }

    /// Submits a copy, and returns only when no operation of it is under way any more, even if this unwinds.
    /// Where it is not to wait for its turn in the order, it is refused behind another one.
    fn submit_quietly(
        &self,
        checked: Checked,
        waits_for_turn: bool,
    ) -> Result<Report, TransferError> {
        /// Waits for the transfer while a panic unwinds, as one out of another transfer's waker.
        struct Quiet<'a>(&'a Arc<Shared>, Cell<Option<TransferId>>);
        impl Drop for Quiet<'_> {
            fn drop(&mut self) {
                if let Some(id) = self.1.get() {
                    // The transfer may wait for a guard of this thread.
                    self.0.cancel(&[id]);
                    self.0.block_on(id, None);
                }
            }
        }
        if checked.leaves_the_host() && (cfg!(browser) || transload_hal::in_callback()) {
            // The bytes are borrowed until this returns. The browser goes on only after that, and a callback may run on
            // the very thread that ends the device's work.
            return Err(TransferError::WouldBlock);
        }
        let quiet = Quiet(&self.shared, Cell::new(None));
        let mut checked = Some(checked);
        let submitted = self.shared.submit(&[], |state, now| {
            let id = state.accept(&mut checked, &Terms::default(), now)?;
            quiet.1.set(Some(id));
            Ok(id)
        });
        let may_be_refused = !waits_for_turn && matches!(submitted, Submitted::UnderWay { .. });
        let submitted = Transfer::new(submitted);
        let may_wait = quiet.1.get().map(|id| {
            let must_wait = may_be_refused && self.shared.state.with(|state| state.table.waits(id));
            match must_wait {
                true => Err(TransferError::WouldBlock),
                false => self.shared.may_wait(id).map_err(TransferError::from),
            }
        });
        if let Some(Err(refused)) = may_wait {
            // The transfer waits for others. If it is cancelled before it has begun, it is over.
            return match submitted.cancel() {
                Cancelled::NotStarted => {
                    quiet.1.set(None);
                    Err(refused)
                }
                Cancelled::Stopped { leading_bytes } => {
                    quiet.1.set(None);
                    Err(TransferError::Cancelled { leading_bytes })
                }
                Cancelled::Finished(result) => result,
            };
        }
        let result = submitted.wait();
        quiet.1.set(None);
        result
    }
}
