//! A page with a device, and access to the device's bytes without Transload.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use transload::hal::Owner;
use transload::{AllocSpec, Buffer, Error, TransferManager};
use transload_wgpu::Wgpu;

/// A manager with a device that the page has opened itself as `wgpu:0`.
pub(crate) struct Page {
    pub(crate) manager: TransferManager,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
}

impl Page {
    /// A page with the device that the backend opens.
    pub(crate) async fn open() -> Page {
        let opened = Wgpu::request().await.unwrap();
        let handles = opened.handles("wgpu:0".parse().unwrap()).unwrap();
        Page::of(opened, handles)
    }

    /// A page with two devices of its own; all fields but the manager belong to the first.
    pub(crate) async fn with_two() -> Page {
        let (first, second) = (device().await, device().await);
        let opened = Wgpu::with_devices([first.clone(), second]);
        Page::of(opened, first)
    }

    /// A page with one device of its own.
    pub(crate) fn with(handles: (wgpu::Device, wgpu::Queue)) -> Page {
        Page::of(Wgpu::with_devices([handles.clone()]), handles)
    }

    fn of(opened: Wgpu, (device, queue): (wgpu::Device, wgpu::Queue)) -> Page {
        let manager = TransferManager::builder().host().build().unwrap();
        manager.register_backend(opened).unwrap();
        Page {
            manager,
            device,
            queue,
        }
    }

    pub(crate) fn on_device(&self, len: u64) -> Buffer {
        let place = "wgpu:0".parse().unwrap();
        self.manager.allocate(place, AllocSpec::bytes(len)).unwrap()
    }

    pub(crate) fn adopt_native(&self, object: impl Owner) -> Buffer {
        self.try_adopt_native(object).unwrap()
    }

    pub(crate) fn try_adopt_native(&self, object: impl Owner) -> Result<Buffer, Error> {
        let place = "wgpu:0".parse().unwrap();
        // SAFETY: the browser asks for no promise.
        unsafe { self.manager.adopt_native(place, object) }
    }

    pub(crate) fn adopt(&self, bytes: &[u8]) -> Buffer {
        self.manager.adopt(bytes.to_vec()).unwrap()
    }

    /// A buffer on the device with these bytes, written by wgpu.
    pub(crate) fn holding(&self, bytes: &[u8]) -> Buffer {
        let buffer = self.on_device(bytes.len() as u64);
        let mut words = bytes.to_vec();
        words.resize(bytes.len().next_multiple_of(4), 0);
        self.queue
            .write_buffer(buffer.native::<wgpu::Buffer>().unwrap(), 0, &words);
        buffer
    }

    /// The bytes of any buffer, without a transfer.
    pub(crate) async fn bytes(&self, buffer: &Buffer) -> Vec<u8> {
        match buffer.read() {
            Ok(bytes) => bytes.to_vec(),
            Err(_) => self.look(buffer).await,
        }
    }

    /// All bytes of a device's buffer, as wgpu reads them back.
    pub(crate) async fn look(&self, buffer: &Buffer) -> Vec<u8> {
        let raw = buffer.native::<wgpu::Buffer>().unwrap();
        let home = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: raw.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(raw, 0, &home, 0, raw.size());
        self.queue.submit([encoder.finish()]);
        map(&home).await;
        let mut bytes = home.get_mapped_range(..).unwrap().to_vec();
        bytes.truncate(buffer.len() as usize);
        bytes
    }
}

/// Opens a device for the page.
pub(crate) async fn device() -> (wgpu::Device, wgpu::Queue) {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::BROWSER_WEBGPU;
    let instance = wgpu::Instance::new(descriptor);
    let adapter = instance.request_adapter(&Default::default()).await.unwrap();
    adapter.request_device(&Default::default()).await.unwrap()
}

pub(crate) fn part(buffer: &Buffer, at: u64, len: u64) -> Buffer {
    buffer.slice(at..at + len).unwrap()
}

/// The value that a callback receives.
async fn told<T: Send + 'static>(ask: impl FnOnce(Box<dyn FnOnce(T) + Send>)) -> T {
    let answer = Arc::new(Mutex::new((None, None::<Waker>)));
    let told = Arc::clone(&answer);
    ask(Box::new(move |result| {
        let mut told = told.lock().unwrap();
        told.0 = Some(result);
        told.1.take().into_iter().for_each(Waker::wake);
    }));
    let answered = poll_fn(|context| {
        let mut answer = answer.lock().unwrap();
        answer.1 = Some(context.waker().clone());
        answer.0.take().map_or(Poll::Pending, Poll::Ready)
    });
    answered.await
}

/// Maps a buffer for reading.
async fn map(buffer: &wgpu::Buffer) {
    told(|tell| buffer.map_async(wgpu::MapMode::Read, .., tell))
        .await
        .unwrap();
}

/// Waits for all submitted work.
pub(crate) async fn done(queue: &wgpu::Queue) {
    told(|tell| queue.on_submitted_work_done(|| tell(()))).await;
}

/// Bytes without a short period.
pub(crate) fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}
