//! The sorts of memory between which the cases copy.

use std::ffi::c_void;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::ptr;
use std::slice;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use transload::{Buffer, DeviceId, DeviceKind, MemoryId, MemoryKind};
use transload_cuda::raw::CUmemAttach_flags;

use super::gpu::Gpu;

/// The byte that fills destinations before a copy is verified.
pub(crate) const POISON: u8 = 0xA5;
/// The size of the buffer through which the host reads a device's destination.
const WINDOW: usize = 16 << 20;
/// A page, and a huge page, on every processor that these drivers support.
pub(crate) const PAGE: usize = 4 << 10;
const HUGE_PAGE: usize = 2 << 20;

/// The place of memory, and the way of its allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Process memory, in the system's default pages.
    Pageable,
    /// Process memory, never in huge pages.
    Small,
    /// Process memory, in huge pages if the kernel has some.
    Huge,
    /// Pinned host memory of the driver.
    Pinned,
    /// Device memory.
    Device,
    /// Managed memory, which the driver moves to its user.
    Managed,
}

/// Some bytes, all written before they are first read.
pub(crate) struct Memory {
    pub(crate) gpu: Arc<Gpu>,
    kind: Kind,
    address: u64,
    len: usize,
    /// The mapping of process memory.
    mapped: (usize, usize),
    /// The buffer of another owner that this memory belongs to; its drop frees the memory.
    buffer: Option<Buffer>,
}

impl Memory {
    /// Memory full of poison.
    pub(crate) fn new(gpu: &Arc<Gpu>, kind: Kind, len: usize) -> Result<Memory> {
        let mut memory = Memory {
            gpu: Arc::clone(gpu),
            kind,
            address: 0,
            len,
            mapped: (0, 0),
            buffer: None,
        };
        memory
            .allocate()
            .with_context(|| format!("{len} bytes of {kind:?}"))?;
        memory.poison()?;
        Ok(memory)
    }

    /// The same, filled with bytes of which no two pages are alike. Host memory only.
    pub(crate) fn filled(gpu: &Arc<Gpu>, kind: Kind, len: usize) -> Result<Memory> {
        let memory = Memory::new(gpu, kind, len)?;
        memory.fill(len as u64);
        Ok(memory)
    }

    /// The device memory of a buffer, by the driver's address.
    pub(crate) fn of_buffer(gpu: &Arc<Gpu>, buffer: &Buffer) -> Result<Memory> {
        let MemoryId { device, kind } = buffer.memory();
        let ordinal = gpu.device.0.unsigned_abs();
        let is_here =
            (device, kind) == (DeviceId::new(DeviceKind::CUDA, ordinal), MemoryKind::Device);
        ensure!(is_here, "{} is not memory of this device", buffer.memory());
        Ok(Memory {
            gpu: Arc::clone(gpu),
            kind: Kind::Device,
            // Positions in device memory are the driver's addresses.
            address: buffer.raw().position(),
            len: usize::try_from(buffer.len())?,
            mapped: (0, 0),
            buffer: Some(buffer.clone()),
        })
    }

    fn allocate(&mut self) -> Result<()> {
        let gpu = Arc::clone(&self.gpu);
        let driver = &gpu.driver;
        let _current = gpu.push()?;
        let place = &raw mut self.address;
        match self.kind {
            Kind::Pageable | Kind::Small | Kind::Huge => self.map()?,
            Kind::Pinned => {
                let mut start: *mut c_void = ptr::null_mut();
                // SAFETY: the out-pointer is a local variable.
                unsafe { driver.cuMemHostAlloc(&raw mut start, self.len, 0) }?;
                self.address = start.expose_provenance() as u64;
            }
            // SAFETY: the out-pointer is a local variable.
            Kind::Device => unsafe { driver.cuMemAlloc_v2(place, self.len) }?,
            Kind::Managed => {
                let flags = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
                // SAFETY: the out-pointer is a local variable.
                unsafe { driver.cuMemAllocManaged(place, self.len, flags) }?;
            }
        }
        Ok(())
    }

    /// Huge pages begin at multiples of their size, so this maps one more than it uses.
    fn map(&mut self) -> Result<()> {
        let len = self.len.next_multiple_of(HUGE_PAGE) + HUGE_PAGE;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new memory takes the place of none.
        let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), len, access, flags) }?;
        self.mapped = (start.expose_provenance(), len);
        let advice = match self.kind {
            Kind::Small => Some(Advice::LinuxNoHugepage),
            Kind::Huge => Some(Advice::LinuxHugepage),
            _ => None,
        };
        if let Some(advice) = advice {
            // A kernel without huge pages refuses both; `huge_bytes` reports the result.
            // SAFETY: the memory is this object's, and the advice changes no byte of it.
            let _ = unsafe { mm::madvise(start, len, advice) };
        }
        self.address = self.mapped.0.next_multiple_of(HUGE_PAGE) as u64;
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of `len` bytes from `offset` on.
    ///
    /// # Panics
    /// Panics where the memory is shorter.
    pub(crate) fn at(&self, offset: usize, len: usize) -> u64 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "beyond the memory");
        self.address + offset as u64
    }

    /// As [`at`](Memory::at), as a host pointer.
    ///
    /// # Panics
    /// As [`at`](Memory::at), and where the host does not reach the memory.
    pub(crate) fn host(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(self.kind != Kind::Device, "the host does not reach it");
        ptr::with_exposed_provenance_mut(self.at(offset, len) as usize)
    }

    /// Copies on the host, by this thread.
    pub(crate) fn copy_from(&self, at: usize, from: &Memory, from_at: usize, len: usize) {
        let (dst, src) = (self.host(at, len), from.host(from_at, len));
        assert!(!ptr::eq(self, from), "two memories");
        // SAFETY: both have that many bytes, and are different memories. No operation is in flight: each call that
        // starts one waits for its end (`work`).
        unsafe { ptr::copy_nonoverlapping(src, dst, len) };
    }

    /// Reads a byte of each page. Returns a sum of them, so that the compiler keeps all reads.
    pub(crate) fn touch(&self) -> u64 {
        let start = self.host(0, self.len);
        let pages = (0..self.len).step_by(PAGE);
        // SAFETY: the address lies within the memory, here and below.
        let byte = |at| unsafe { start.add(at) };
        // SAFETY: as above, and as in `copy_from`.
        pages
            .map(|at| u64::from(unsafe { byte(at).read_volatile() }))
            .sum()
    }

    fn fill(&self, seed: u64) {
        let start = self.host(0, self.len);
        // SAFETY: as in `copy_from`; no other code reads or writes the bytes while the slice lives.
        let bytes = unsafe { slice::from_raw_parts_mut(start, self.len) };
        let (head, _) = bytes.split_at_mut(bytes.len().min(1 << 20));
        let mut random = Random(seed | 1);
        for word in head.chunks_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
        }
        let mut done = head.len();
        while done < bytes.len() {
            let more = done.min(bytes.len() - done);
            bytes.copy_within(..more, done);
            done += more;
        }
        for (index, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
            page[..8].copy_from_slice(&(index as u64 ^ seed).to_le_bytes());
        }
    }

    /// Fills the memory with a byte that no source repeats.
    pub(crate) fn poison(&self) -> Result<()> {
        if self.kind == Kind::Device {
            let driver = &self.gpu.driver;
            let _current = self.gpu.push()?;
            // SAFETY: the memory is as long.
            unsafe { driver.cuMemsetD8_v2(self.address, POISON, self.len) }?;
            self.gpu.settle()?;
        } else {
            let start = self.host(0, self.len);
            // SAFETY: as in `copy_from`.
            unsafe { start.write_bytes(POISON, self.len) };
        }
        Ok(())
    }

    /// Whether bytes of the memory equal those of `other`, which the host reaches.
    pub(crate) fn holds(&self, at: usize, other: &Memory, from: usize, len: usize) -> Result<bool> {
        if self.kind == Kind::Device {
            return self.holds_on_device(at, other, from, len);
        }
        let theirs = other.host(from, len);
        // SAFETY: it is as long; as in `copy_from`, and no code writes while the slice lives.
        let theirs = unsafe { slice::from_raw_parts(theirs, len) };
        Ok(self.is(at, theirs))
    }

    /// Whether bytes of the memory, which the host reaches, are these.
    pub(crate) fn is(&self, at: usize, bytes: &[u8]) -> bool {
        let mine = self.host(at, bytes.len());
        // SAFETY: it is as long; as in `copy_from`, and no code writes while the slice lives.
        let mine = unsafe { slice::from_raw_parts(mine, bytes.len()) };
        mine == bytes
    }

    /// Passes all bytes, which the host reaches, to `read`.
    pub(crate) fn see<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        let start = self.host(0, self.len);
        // SAFETY: as above; `read` starts nothing that writes the bytes.
        read(unsafe { slice::from_raw_parts(start, self.len) })
    }

    /// A copy of all of it.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.see(<[u8]>::to_vec)
    }

    /// Writes bytes.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        let start = self.host(at, bytes.len());
        // SAFETY: it is as long; as in `copy_from`; `bytes` is borrowed, so it is other memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    }

    /// Reads bytes of a file to the front of the memory, which the host reaches.
    pub(crate) fn read_from(&self, file: &File, at: u64, len: usize) -> io::Result<()> {
        let start = self.host(0, len);
        // SAFETY: it is as long; as in `copy_from`, and no code reads or writes the bytes while the slice lives.
        file.read_exact_at(unsafe { slice::from_raw_parts_mut(start, len) }, at)
    }

    fn holds_on_device(&self, at: usize, other: &Memory, from: usize, len: usize) -> Result<bool> {
        let window = Memory::new(&self.gpu, Kind::Pageable, len.min(WINDOW))?;
        let _current = self.gpu.push()?;
        for done in (0..len).step_by(WINDOW) {
            let part = WINDOW.min(len - done);
            window.poison()?;
            self.gpu.down_blocking(&window, 0, self, at + done, part)?;
            if !window.holds(0, other, from + done, part)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The number of bytes in huge pages, from the kernel's list of the mappings.
    pub(crate) fn huge_bytes(&self) -> Result<u64> {
        let (start, len) = (self.mapped.0, self.mapped.1);
        ensure!(len > 0, "only of memory that was mapped here");
        let mappings = fs::read_to_string("/proc/self/smaps")?;
        Ok(huge_kib(&mappings, start..start + len) << 10)
    }
}

/// Sums `AnonHugePages` of the mappings within a range.
fn huge_kib(mappings: &str, range: std::ops::Range<usize>) -> u64 {
    let (mut within, mut sum) = (false, 0);
    for line in mappings.lines() {
        let (head, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let ends = head.split_once('-').map(|(from, to)| {
            let hex = |text| usize::from_str_radix(text, 16);
            (hex(from), hex(to))
        });
        if let Some((Ok(from), Ok(to))) = ends {
            within = from < range.end && range.start < to;
        } else if within && head == "AnonHugePages:" {
            let figure = rest.trim().trim_end_matches(" kB").parse::<u64>();
            sum += figure.unwrap_or(0);
        }
    }
    sum
}

impl Drop for Memory {
    fn drop(&mut self) {
        let driver = &self.gpu.driver;
        let _current = self.gpu.push();
        // If this fails, the context was lost before, and the call that lost it has reported that; see `Gpu`.
        let _ = match self.kind {
            _ if self.address == 0 || self.buffer.is_some() => Ok(()),
            // SAFETY: it was allocated so, and no operation is in flight; here and below.
            Kind::Pinned => unsafe { driver.cuMemFreeHost(self.host(0, 0).cast()) },
            // SAFETY: as above.
            Kind::Device | Kind::Managed => unsafe { driver.cuMemFree_v2(self.address) },
            Kind::Pageable | Kind::Small | Kind::Huge => Ok(()),
        };
        let (start, len) = self.mapped;
        if len > 0 {
            // SAFETY: it was mapped so, and no reference into it exists.
            let _ = unsafe { mm::munmap(ptr::with_exposed_provenance_mut(start), len) };
        }
    }
}

/// xorshift64*, as in `bench`: all runs get the same numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn shuffle(&mut self, order: &mut [usize]) {
        for last in (1..order.len()).rev() {
            let other = self.next() % (last as u64 + 1);
            order.swap(last, other as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use transload_cuda::raw::Driver;

    use super::*;

    /// In memory of each kind, and at any distance from the start: a window is 16 MiB.
    #[test]
    fn a_byte_that_differs_is_found() {
        // SAFETY: the functions are the double's, which stay loaded.
        let driver = unsafe { Driver::from_table(cuda::table(), "the double") };
        crate::raw::facts::initialise(&driver).unwrap();
        let gpu = Gpu::open(&driver, 0).unwrap();
        let len = WINDOW + PAGE + 1;
        let like = Memory::filled(&gpu, Kind::Pageable, len).unwrap();
        let other = Memory::filled(&gpu, Kind::Pinned, len).unwrap();
        let odd = Memory::new(&gpu, Kind::Pageable, 1).unwrap();
        for kind in [Kind::Pageable, Kind::Pinned, Kind::Managed, Kind::Device] {
            let memory = Memory::new(&gpu, kind, len).unwrap();
            assert!(!memory.holds(0, &like, 0, len).unwrap(), "{kind:?}: poison");
            for at in [0, WINDOW - 1, WINDOW, len - 1] {
                other.copy_from(at, &odd, 0, 1);
                if kind == Kind::Device {
                    gpu.up_blocking(&memory, &other, len).unwrap();
                } else {
                    memory.copy_from(0, &other, 0, len);
                }
                other.copy_from(at, &like, at, 1);
                assert!(!memory.holds(0, &like, 0, len).unwrap(), "{kind:?}: {at}");
                assert!(memory.holds(0, &like, 0, at).unwrap(), "{kind:?}: {at}");
            }
        }
    }

    #[test]
    fn huge_pages_are_counted_within_the_range_alone() {
        let mappings = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      2048 kB
7f0000400000-7f0000800000 rw-p 00000000 00:00 0 [heap]
AnonHugePages:      4096 kB
";
        let at = 0x7f00_0000_0000;
        assert_eq!(huge_kib(mappings, at..at + 4096), 2048);
        assert_eq!(huge_kib(mappings, at..at + (5 << 20)), 6144);
        assert_eq!(huge_kib(mappings, 0..at), 0);
    }

    #[test]
    fn a_shuffled_order_keeps_everybody() {
        let mut order: Vec<usize> = (0..9).collect();
        Random(1).shuffle(&mut order);
        order.sort_unstable();
        assert_eq!(order, (0..9).collect::<Vec<_>>());
    }
}
