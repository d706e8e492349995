//! Host memory that takes part in one submission.
//!
//! Only whole pages that lie inside the range are imported. The bytes before the first and after the last of
//! them, at most a page each, go through a small buffer. So do all bytes of a range that is too short for an
//! import to pay.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use transload_hal::{Fault, HostSpan};

use crate::gpu::Gpu;
use crate::raw::{End, Importer, Program};
use crate::storage::{WORD, failed};

/// A range of host memory while a submission reads or writes it.
pub(crate) struct HostImport {
    span: HostSpan,
    cut: Cut,
    direction: Direction,
    pages: Option<wgpu::Buffer>,
    edges: Option<wgpu::Buffer>,
    gone: Arc<Gone>,
}

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// The device reads them.
    In,
    /// The device writes them.
    Out,
}

/// Where a range is cut, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cut {
    /// Before the first whole page.
    head: u64,
    /// Whole pages.
    body: u64,
    /// After the last one.
    tail: u64,
    /// Where head and tail lie in the buffer of edges: within their words as at the other end.
    places: [u64; 2],
}

/// Whether the driver has released the pages.
#[derive(Default)]
struct Gone {
    is_gone: Mutex<bool>,
    told: Condvar,
}

impl Cut {
    /// Cuts `len` bytes at `addr`, which go to or come from byte `other` of a device's buffer. The body has
    /// at least `least` bytes of whole pages, or none.
    fn new(addr: u64, len: u64, (page, least): (u64, u64), other: u64) -> Cut {
        let first = addr.next_multiple_of(page);
        let last = (addr + len) / page * page;
        let (head, body) = match last > first && last - first >= least {
            true => (first - addr, last - first),
            false => (len, 0),
        };
        let tail = len - head - body;
        let head_at = other % WORD;
        let tail_at = (head_at + head).next_multiple_of(WORD) + (other + head + body) % WORD;
        Cut {
            head,
            body,
            tail,
            places: [head_at, tail_at],
        }
    }

    /// The length of the buffer of edges in bytes; 0 if there are none.
    fn edges(&self) -> u64 {
        match self.head + self.tail {
            0 => 0,
            _ => (self.places[1] + self.tail).next_multiple_of(WORD),
        }
    }

    /// Head and tail, each as its offset in the range, its length, and its offset in the buffer of edges.
    fn ends(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let ends = [
            (0, self.head, self.places[0]),
            (self.head + self.body, self.tail, self.places[1]),
        ];
        ends.into_iter().filter(|(_, len, _)| *len > 0)
    }
}

impl HostImport {
    /// Makes the device see the range, whose bytes go to or come from byte `other` of a buffer of its
    /// own.
    ///
    /// # Errors
    /// The driver's errors, for example that it does not import this memory.
    ///
    /// # Safety
    /// The span stays valid, for writes too if they go [`Direction::Out`], until the import is dropped unused
    /// or is [finished](HostImport::finish), and nothing else touches it meanwhile.
    pub(crate) unsafe fn new(
        gpu: &Gpu,
        importer: &Importer,
        span: HostSpan,
        direction: Direction,
        other: u64,
    ) -> Result<HostImport, Fault> {
        let pages = (importer.page(), LEAST);
        let cut = Cut::new(span.addr(), span.len() as u64, pages, other);
        let edges = match cut.edges() {
            0 => None,
            size => Some(gpu.catching(|| edges_buffer(&gpu.device, size, direction))?),
        };
        let mut made = HostImport {
            span,
            cut,
            direction,
            pages: None,
            edges,
            gone: Arc::default(),
        };
        if direction == Direction::In {
            made.fill_edges()?;
        }
        if let Some(pages) = span.slice(cut.head, cut.body).filter(|_| cut.body > 0) {
            let gone = Arc::clone(&made.gone);
            // SAFETY: whole pages, cut above; the rest is the caller's promise.
            let import = || unsafe { importer.import(&gpu.device, pages, move || gone.tell()) };
            made.pages = Some(gpu.catching(import)??);
        }
        Ok(made)
    }

    /// Adds the commands that move the bytes to or from `other`.
    pub(crate) fn write(&self, program: &mut Program, other: End<'_>) {
        let at = |offset: u64| other.after(offset);
        if let Some(edges) = &self.edges {
            for (from, len, place) in self.cut.ends() {
                match self.direction {
                    Direction::In => program.copy(End::bytes(edges, place), at(from), len),
                    // Copies the whole words around the bytes; the host takes only its own bytes.
                    Direction::Out => program.copy_around(at(from), (edges, place), len),
                }
            }
        }
        if let Some(pages) = &self.pages {
            let body = End::bytes(pages, 0);
            match self.direction {
                Direction::In => program.copy(body, at(self.cut.head), self.cut.body),
                Direction::Out => {
                    program.copy(at(self.cut.head), body, self.cut.body);
                    program.show(pages);
                }
            }
        }
    }

    /// The driver has the commands: the import no longer holds the pages.
    pub(crate) fn release_pages(&mut self) {
        self.pages = None;
    }

    /// Waits until the driver has released the pages after the device's commands ended, then copies the
    /// edges back. A lost device never releases them, so this does not wait for one.
    pub(crate) fn finish(mut self, gpu: &Gpu) -> Result<(), Fault> {
        self.pages = None;
        if self.cut.body > 0 {
            self.gone.wait(gpu);
        }
        match (&self.edges, self.direction) {
            (Some(edges), Direction::Out) => self.store_edges(gpu, edges),
            _ => Ok(()),
        }
    }

    fn fill_edges(&self) -> Result<(), Fault> {
        let Some(edges) = &self.edges else {
            return Ok(());
        };
        let mut view = edges
            .get_mapped_range_mut(..)
            .map_err(|error| failed(&error))?;
        for (from, len, place) in self.cut.ends() {
            let Some(span) = self.span.slice(from, len) else {
                continue;
            };
            // SAFETY: the span is valid, and nothing writes it, by the contract of `new`.
            let bytes = unsafe { span.as_slice() };
            let place = place as usize;
            view.slice(place..place + bytes.len())
                .copy_from_slice(bytes);
        }
        drop(view);
        edges.unmap();
        Ok(())
    }

    fn store_edges(&self, gpu: &Gpu, edges: &wgpu::Buffer) -> Result<(), Fault> {
        gpu.map_idle(edges, wgpu::MapMode::Read)?;
        let view = edges.get_mapped_range(..).map_err(|error| failed(&error))?;
        for (to, len, place) in self.cut.ends() {
            let place = place as usize;
            let Some(span) = self.span.slice(to, len) else {
                continue;
            };
            let bytes = HostSpan::of(&view[place..place + len as usize]);
            // SAFETY: the span is valid for writes, and nothing else touches it, by the contract of `new`;
            // both are `len` bytes.
            unsafe { bytes.copy_to(span) };
        }
        Ok(())
    }
}

fn edges_buffer(device: &wgpu::Device, size: u64, direction: Direction) -> wgpu::Buffer {
    let (usage, mapped_at_creation) = match direction {
        Direction::In => (wgpu::BufferUsages::COPY_SRC, true),
        Direction::Out => (
            wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
            false,
        ),
    };
    device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("transload edges"),
        size,
        usage,
        mapped_at_creation,
    })
}

impl Gone {
    /// Records the release and notifies. The driver's side calls this on any thread.
    fn tell(&self) {
        *self.is_gone.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_all();
    }

    /// Blocks until the pages are released, or until the device is lost and touches nothing any more.
    fn wait(&self, gpu: &Gpu) {
        let mut is_gone = self.is_gone.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_gone && gpu.lost.get().is_none() {
            // A thread that polled the device while the commands ended may hold the pages a moment longer;
            // the user's own threads poll, too.
            let waited = self.told.wait_timeout(is_gone, A_MOMENT);
            is_gone = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The shortest range to import, in bytes. An import costs some 20 µs on lavapipe, in which a processor
/// copies more than that. It is less than the 64 KiB that prove a link, because the proof must take this
/// way.
const LEAST: u64 = 48 << 10;

/// The interval at which a waiting thread checks whether the device was lost meanwhile.
const A_MOMENT: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_are_cut_out_and_the_edges_keep_their_place_in_their_words() {
        for (addr, len, other) in [
            (4096u64, 4096u64, 0u64),
            (4096, 8191, 2),
            (4097, 4096, 1),
            (4095, 4097, 3),
            (16, 100, 5),
            (16, 12_000, 7),
            (8190, 4, 0),
            (0, 1, 3),
            (8191, 8194, 3),
        ] {
            let cut = Cut::new(addr, len, (4096, 4096), other);
            assert_eq!(cut.head + cut.body + cut.tail, len, "{cut:?}");
            assert!(cut.body.is_multiple_of(4096));
            if cut.body > 0 {
                assert!((addr + cut.head).is_multiple_of(4096), "{cut:?}");
            }
            assert!(cut.head < 4096 || cut.body == 0);
            assert!(cut.tail < 4096);
            for (at, edge, place) in cut.ends() {
                assert_eq!(place % WORD, (other + at) % WORD, "{cut:?}");
                assert!((place + edge).next_multiple_of(WORD) <= cut.edges());
            }
            assert_eq!(Cut::new(addr, len, (4096, 1 << 20), other).body, 0);
            // The tail's words hold nothing of the head's.
            if cut.head > 0 && cut.tail > 0 {
                let head_ends = (cut.places[0] + cut.head).next_multiple_of(WORD);
                assert!(cut.places[1] / WORD * WORD >= head_ends, "{cut:?}");
            }
        }
    }
}
