//! One device, and calls of wgpu that neither panic nor lose an error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use transload_hal::{
    Buffer, DeviceId, ErrorClass, ExternalKind, Fault, ImportError, MemoryId, Owner, StorageInfo,
    Taken, run_callback,
};

use crate::exit::{self, DriverObject, Inside, Lease};
use crate::fault::fault_of;
use crate::identity;
use crate::raw::{Importer, Mapper, Shifter, Shifts};
use crate::storage::{WORD, failed, handle_of, info};

/// One device and the state that all its users share.
pub(crate) struct Gpu {
    pub(crate) id: DeviceId,
    /// The device's identity within the process ([`identity::of`]).
    pub(crate) identity: usize,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    /// Imports host memory, or the reason why the device cannot.
    pub(crate) importer: Result<Importer, &'static str>,
    /// Allocates memory that host and device both reach, if they share one.
    pub(crate) mapper: Option<Mapper>,
    /// The driver runs on the host's processors, and allocates in the host's memory.
    pub(crate) is_software: bool,
    /// This backend opened the device and has not given out its handles.
    is_private: AtomicBool,
    pub(crate) shifts: Shifts,
    /// Why the device is lost.
    pub(crate) lost: Arc<OnceLock<Fault>>,
    /// Made for the first copy that wgpu's own commands cannot do.
    pub(crate) shifter: Mutex<Option<Arc<DriverObject<Shifter>>>>,
    _lease: Lease,
}

/// Why a poll did not find a submission over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PollFailure {
    /// It is not over yet.
    Pending,
    /// The device was never given such a submission, or was lost before.
    NoSuch {
        /// The number that was asked for.
        number: u64,
        /// The last one that there is.
        last: u64,
    },
    /// The device is gone.
    Lost(Fault),
}

impl Gpu {
    pub(crate) fn new(id: DeviceId, device: wgpu::Device, queue: wgpu::Queue) -> Gpu {
        let is_software = is_software(&device.adapter_info());
        Gpu {
            _lease: Lease::of(&device, &queue),
            id,
            identity: identity::of(&device),
            importer: Importer::of(&device),
            mapper: Mapper::of(&device),
            shifts: match is_software || !computes(&device) {
                true => Shifts::Texels,
                false => Shifts::Shader,
            },
            is_software,
            device,
            queue,
            is_private: AtomicBool::new(false),
            lost: Arc::default(),
            shifter: Mutex::new(None),
        }
    }

    /// Whether shaders run. They do not on WebGL 2. wgpu's no-op adapter copies, but reports a dispatch as done without
    /// running it.
    pub(crate) fn computes(&self) -> bool {
        computes(&self.device)
    }

    /// Marks a device that was opened here and has no other owner.
    pub(crate) fn own(&self) {
        self.is_private.store(true, Ordering::Relaxed);
        // By default an uncaptured error panics. The backend captures relevant errors where they happen.
        self.device.on_uncaptured_error(Arc::new(|_| {}));
        let (id, lost) = (self.id, Arc::clone(&self.lost));
        self.device
            .set_device_lost_callback(move |reason, message| {
                let message = format!("the driver gave {id} up ({reason:?}): {message}");
                let _ = lost.set(Fault::new(ErrorClass::Lost, message));
            });
    }

    /// Marks a device whose handles the user has.
    pub(crate) fn give_out(&self) {
        self.is_private.store(false, Ordering::Relaxed);
    }

    /// Whether the device is private, so that no user's buffer can belong to it.
    pub(crate) fn is_private(&self) -> bool {
        self.is_private.load(Ordering::Relaxed)
    }

    /// Makes a storage of this device.
    ///
    /// # Safety
    /// As [`Buffer::new`].
    pub(crate) unsafe fn storage(&self, info: StorageInfo, owner: impl Owner) -> Buffer {
        // SAFETY: the caller's promise.
        unsafe { self.storage_in(Taken::default(), info, owner) }
    }

    /// The same, of memory that takes room of the host's.
    ///
    /// # Safety
    /// As [`Buffer::new`].
    pub(crate) unsafe fn storage_in(
        &self,
        room: Taken,
        info: StorageInfo,
        owner: impl Owner,
    ) -> Buffer {
        let lease = DriverObject::new((Lease::of(&self.device, &self.queue), room));
        // SAFETY: the caller's promise.
        unsafe { Buffer::guarded(info, Box::new(owner), Box::new(lease)) }
    }

    /// Makes a storage of a buffer of wgpu that no address shows.
    pub(crate) fn wrap(&self, memory: MemoryId, buffer: wgpu::Buffer, len: u64) -> Buffer {
        let handle = handle_of(self.identity, &buffer);
        // SAFETY: the host cannot reach it; the handle names the buffer.
        unsafe { self.storage(info(memory, handle, len), buffer) }
    }

    /// Begins work in the driver.
    ///
    /// # Errors
    /// When the device is lost, or the process or this thread ends.
    pub(crate) fn enter(&self) -> Result<Inside, Fault> {
        if let Some(fault) = self.lost.get() {
            return Err(fault.clone());
        }
        Inside::enter()
            .ok_or_else(|| Fault::new(ErrorClass::Lost, "the process or this thread is ending"))
    }

    /// Runs `f`, which is part of work that has begun ([`Gpu::enter`]), and returns errors that the device reported
    /// meanwhile on this thread as a fault.
    pub(crate) fn catching<T>(&self, f: impl FnOnce() -> T) -> Result<T, Fault> {
        if let Some(fault) = self.lost.get() {
            return Err(fault.clone());
        }
        match self.scoped(f) {
            (made, None) => Ok(made),
            (_, Some(error)) => Err(self.blame(fault_of(&error))),
        }
    }

    /// Runs `f`, and returns its result and the first error that the device reports of it.
    pub(crate) fn scoped<T>(&self, f: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
        let scopes = [
            wgpu::ErrorFilter::Internal,
            wgpu::ErrorFilter::OutOfMemory,
            wgpu::ErrorFilter::Validation,
        ]
        .map(|filter| self.device.push_error_scope(filter));
        let made = f();
        let mut first = None;
        // The innermost goes first.
        for scope in scopes.into_iter().rev() {
            first = first.or(at_once(scope.pop()).flatten());
        }
        (made, first)
    }

    /// Records commands that are never submitted, to find out whether a user's object can be used on this device.
    pub(crate) fn try_out(
        &self,
        memory: MemoryId,
        write: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<(), ImportError> {
        let tried = self.catching(|| {
            let descriptor = wgpu::CommandEncoderDescriptor::default();
            let mut encoder = self.device.create_command_encoder(&descriptor);
            write(&mut encoder);
            drop(encoder.finish());
        });
        let kind = ExternalKind::Object;
        match tried {
            Ok(()) => Ok(()),
            Err(fault) if fault.class == ErrorClass::Caller => Err(ImportError::Invalid {
                memory,
                kind,
                reason: fault.message,
            }),
            Err(fault) => Err(ImportError::Failed {
                memory,
                kind,
                fault,
            }),
        }
    }

    pub(crate) fn shifter(&self) -> Result<Arc<DriverObject<Shifter>>, Fault> {
        let mut kept = self.shifter.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shifter) = &*kept {
            return Ok(Arc::clone(shifter));
        }
        let shifter = self.catching(|| DriverObject::new(Shifter::new(&self.device)))?;
        let shifter = Arc::new(shifter);
        // A driver may load its compiler for the first shader.
        exit::watch(true);
        *kept = Some(Arc::clone(&shifter));
        Ok(shifter)
    }

    /// Polls as `wgpu::Device::poll` does, but never panics. wgpu panics if the driver gives up a device during a wait. wgpu
    /// also runs the user's callbacks on the polling thread.
    ///
    /// A poll never has a time limit: in wgpu-core 30 a wait that times out panics, and drops callbacks uncalled, if another
    /// thread polls or submits at that moment and finds the queue empty.
    pub(crate) fn poll(&self, how: wgpu::PollType) -> Result<(), PollFailure> {
        // Callbacks of the user run in here. Unwinding is safe: wgpu holds none of its locks when it calls back, nor when it
        // gives up.
        let poll = || {
            catch_unwind(AssertUnwindSafe(|| {
                run_callback(|| self.device.poll(how.clone()))
            }))
        };
        // A driver that has given up fails again. A user's callback that panicked does not panic again: then the submission
        // may still be under way, even if the device is lost to its user.
        match poll().or_else(|_| poll()) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(wgpu::PollError::Timeout)) => Err(PollFailure::Pending),
            Ok(Err(wgpu::PollError::WrongSubmissionIndex(number, last))) => {
                Err(PollFailure::NoSuch { number, last })
            }
            Err(_) => match self.probe() {
                Err(fault) => Err(PollFailure::Lost(fault)),
                // A callback of another user.
                Ok(()) => Err(PollFailure::Pending),
            },
        }
    }

    /// Checks whether the device still takes work. wgpu has one callback for a loss, and that belongs to the user. Does not
    /// poll, and does not wait.
    ///
    /// A lost device returns invalid buffers without an error. Creating a buffer mapped shows that it is invalid.
    pub(crate) fn probe(&self) -> Result<(), Fault> {
        if let Some(fault) = self.lost.get() {
            return Err(fault.clone());
        }
        let descriptor = wgpu::BufferDescriptor {
            label: Some("transload probe"),
            size: WORD,
            usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: true,
        };
        let (made, errors) = self.scoped(|| {
            let buffer = self.device.create_buffer(&descriptor);
            buffer.get_mapped_range_mut(..).is_ok()
        });
        match made || errors.is_some() {
            true => Ok(()),
            false => Err(self.note_loss()),
        }
    }

    /// Returns the loss of the device if the device is lost, else `fault`. The fault may be the first sign of a loss: wgpu
    /// then reports a different error.
    pub(crate) fn blame(&self, fault: Fault) -> Fault {
        self.probe().err().unwrap_or(fault)
    }

    /// Maps the whole of a buffer that no command uses. Blocks until the buffer is mapped, which no work delays.
    pub(crate) fn map_idle(&self, buffer: &wgpu::Buffer, mode: wgpu::MapMode) -> Result<(), Fault> {
        let (tell, told) = mpsc::sync_channel(1);
        buffer.map_async(mode, .., move |result| {
            let _ = tell.try_send(result);
        });
        for polls in 0..MAX_POLLS {
            let patience = match polls {
                ..EAGER_POLLS => Duration::ZERO,
                _ => A_MOMENT,
            };
            match self.poll(wgpu::PollType::Poll) {
                Err(PollFailure::Lost(fault)) => return Err(fault),
                // The callback has run, or is about to run on another polling thread, or the mapping is not done yet.
                _ => match told.recv_timeout(patience) {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(error)) => return Err(self.blame(failed(&error))),
                    // Another user's callback panicked before ours was called, but the buffer is mapped: the caller checks
                    // that.
                    Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                },
            }
        }
        self.probe()?;
        Err(failed(
            &"the driver does not map a buffer that no operation uses",
        ))
    }

    /// The device took no work.
    pub(crate) fn note_loss(&self) -> Fault {
        let message = format!("{} takes no more work", self.id);
        let fault = || Fault::new(ErrorClass::Lost, message);
        self.lost.get_or_init(fault).clone()
    }
}

/// The output of a future of wgpu that never waits, without an executor.
fn at_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn computes(device: &wgpu::Device) -> bool {
    let is_stand_in = device.adapter_info().backend == wgpu::Backend::Noop;
    !is_stand_in && device.limits().max_compute_workgroups_per_dimension > 0
}

pub(crate) fn is_software(info: &wgpu::AdapterInfo) -> bool {
    info.device_type == wgpu::DeviceType::Cpu
}

/// How long to wait for a mapping's callback before polling again: another polling thread, such as the user's, may have
/// collected the callback and not called it yet.
const A_MOMENT: Duration = Duration::from_millis(10);

/// The number of polls without a pause; after these the thread waits between polls. The first poll usually succeeds.
const EAGER_POLLS: u32 = 16;

/// The number of polls, ten seconds in all, after which an idle buffer must have been mapped.
const MAX_POLLS: u32 = 1000;
