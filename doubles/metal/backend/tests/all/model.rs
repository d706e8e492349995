//! Transfers between all sorts of memory, many in flight at once and some made to fail, compared with a model that
//! makes one after the other. The bytes are random, so that foreign and old bytes are noticed.

use crate::common;

use common::dice::Dice;
use common::engine::{allocate, manager, odd, paged, read};
use common::{FIRST, User, assert_clean};
use objc2::rc::autoreleasepool;
use objc2_metal::{MTLDevice as _, MTLPixelFormat, MTLStorageMode, MTLTextureDescriptor};
use transload::hal::External;
use transload::{Buffer, Region, Shape, Transfer, TransferManager};
use transload_metal::{Metal, MetalTexture};
use transload_metal_double::{Device, fault};

const LEN: u64 = 24_576;
const STEPS: u64 = 1500;

const PLACES: [&str; 6] = [
    "metal:0/device",
    "metal:0/managed",
    "metal:0/managed",
    "metal:0/mapped",
    "metal:1/device",
    "metal:1/mapped",
];

/// Where the managed ones are among all.
const MANAGED: [usize; 2] = [1, 2];

const FAULTS: [&str; 10] = [
    "blit=timeout",
    "blit=page-fault",
    "commit=internal",
    "commit=out-of-memory",
    "oom",
    "nil=commandBuffer",
    "nil=blitCommandEncoder",
    "nil=newBufferWithBytesNoCopy:length:options:deallocator:",
    "nil=newTextureWithDescriptor:",
    "nil=newSharedEvent",
];

/// A transfer, and its effect on the model: rows from, to, and length.
struct Under {
    transfer: Transfer,
    from: usize,
    to: usize,
    rows: Vec<(u64, u64, u64)>,
}

struct Bench {
    manager: TransferManager,
    buffers: Vec<Buffer>,
    /// The bytes of each buffer; the last two buffers are one. Bytes are unknown after a failed transfer.
    model: Vec<Vec<Option<u8>>>,
    waiting: Vec<Under>,
    /// How many were done, and failed.
    ends: [u32; 2],
}

impl Bench {
    fn new(dice: &mut Dice) -> Bench {
        let manager = manager(vec![Device::discrete(), Device::unified()]);
        let zeros = vec![0; LEN as usize];
        let mut buffers: Vec<Buffer> = PLACES
            .iter()
            .map(|place| allocate(&manager, place, LEN as usize))
            .collect();
        buffers.extend([odd(&manager, &zeros), texture(&manager)]);
        let pages = paged(&manager, &zeros);
        let shared = manager.share(&pages, "metal:0/mapped".parse().unwrap());
        buffers.extend([pages, shared.unwrap()]);
        let mut model: Vec<Vec<Option<u8>>> = Vec::new();
        for buffer in &buffers {
            let bytes: Vec<u8> = (0..LEN).map(|_| dice.below(256) as u8).collect();
            manager.copy_from_slice(&bytes, buffer).unwrap();
            model.push(bytes.into_iter().map(Some).collect());
        }
        model.swap_remove(buffers.len() - 2);
        Bench {
            manager,
            buffers,
            model,
            waiting: Vec::new(),
            ends: [0; 2],
        }
    }

    /// The bytes of a buffer in the model.
    fn storage(&self, buffer: usize) -> usize {
        buffer.min(self.model.len() - 1)
    }

    fn copy(&mut self, dice: &mut Dice) {
        let [from, to] = [(); 2].map(|()| dice.below(self.buffers.len() as u64) as usize);
        let longest = dice.of(&[LEN, 40, 40]);
        let len = 1 + dice.below(longest - 1);
        let [at, there] = [(); 2].map(|()| dice.below(LEN - len + 1));
        let is_within = self.storage(from) == self.storage(to);
        let is_plain = from == to && self.buffers[from].raw().native::<MetalTexture>().is_none();
        if is_within && !is_plain && at.abs_diff(there) < len {
            return;
        }
        self.start((from, at), (to, there), len);
    }

    fn start(&mut self, (from, at): (usize, u64), (to, there): (usize, u64), len: u64) {
        let part = |buffer: usize, at| self.buffers[buffer].slice(at..at + len).unwrap();
        let transfer = self.manager.copy(part(from, at), part(to, there));
        self.note(transfer, (from, to), vec![(at, there, len)]);
    }

    fn copy_rows(&mut self, dice: &mut Dice) {
        let [from, to] = [(); 2].map(|()| dice.below(self.buffers.len() as u64) as usize);
        if self.storage(from) == self.storage(to) {
            return;
        }
        let (width, rows) = (1 + dice.below(97), 1 + dice.below(60));
        let mut region = |buffer: &Buffer| {
            let pitch = width + dice.below(30);
            let first = dice.below(LEN - pitch * rows);
            let shape = Shape::pitched(width, rows, pitch).unwrap();
            let region = Region::new(buffer, first, shape).unwrap();
            (region, move |row| first + row * pitch)
        };
        let (src, source) = region(&self.buffers[from]);
        let (dst, destination) = region(&self.buffers[to]);
        let transfer = self.manager.copy(src, dst);
        let rows = (0..rows).map(|row| (source(row), destination(row), width));
        self.note(transfer, (from, to), rows.collect());
    }

    fn note(&mut self, transfer: Transfer, (from, to): (usize, usize), rows: Vec<(u64, u64, u64)>) {
        self.waiting.push(Under {
            transfer,
            from: self.storage(from),
            to: self.storage(to),
            rows,
        });
    }

    /// The host writes managed bytes, and meanwhile the device writes those before them, which are looked at.
    fn write(&mut self, dice: &mut Dice) {
        self.settle();
        let managed = dice.of(&MANAGED);
        let at = 64 + dice.below(LEN - 64);
        let len = 1 + dice.below((LEN - at).min(5000));
        let slice = self.buffers[managed].slice(at..at + len).unwrap();
        // A fault may keep the host from looking.
        let Ok(mut guard) = slice.write() else { return };
        for (offset, byte) in guard.iter_mut().enumerate() {
            let known = &mut self.model[managed][at as usize + offset];
            assert!(known.is_none_or(|known| known == *byte), "stale");
            *byte = byte.wrapping_add(17);
            *known = Some(*byte);
        }
        self.start((0, 0), (managed, 0), 64);
        self.start((managed, 0), (dice.of(&[3, 6]), 0), 64);
        self.settle();
        for (offset, byte) in guard.iter().enumerate() {
            let known = self.model[managed][at as usize + offset];
            assert_eq!(Some(*byte), known, "overwritten");
        }
    }

    /// Waits for all transfers in flight.
    fn settle(&mut self) {
        for under in self.waiting.drain(..) {
            let result = under.transfer.wait();
            self.ends[usize::from(result.is_err())] += 1;
            let source = self.model[under.from].clone();
            for (from, to, len) in under.rows {
                let [from, to] = [from, to].map(|at| at as usize..(at + len) as usize);
                match &result {
                    Ok(_) => self.model[under.to][to].copy_from_slice(&source[from]),
                    Err(_) => self.model[under.to][to].fill(None),
                }
            }
        }
    }

    /// Checks the bytes of a buffer when no transfer is in flight.
    fn check(&mut self, buffer: usize) {
        self.settle();
        self.manager.wait_idle();
        fault("none").unwrap();
        self.manager.clear_cache();
        let bytes = read(&self.manager, &self.buffers[buffer]);
        let storage = self.storage(buffer);
        for (at, (byte, known)) in bytes.iter().zip(&self.model[storage]).enumerate() {
            let place = self.buffers[buffer].memory();
            assert!(
                known.is_none_or(|known| known == *byte),
                "{place}, byte {at}"
            );
        }
        self.model[storage] = bytes.into_iter().map(Some).collect();
    }
}

/// A texture whose texels are bytes.
fn texture(manager: &TransferManager) -> Buffer {
    let metal = manager.backend::<Metal>().unwrap();
    let user = User::new(&metal, FIRST);
    autoreleasepool(|_| {
        // SAFETY: the format is one that every device has.
        let descriptor = unsafe {
            MTLTextureDescriptor::texture2DDescriptorWithPixelFormat_width_height_mipmapped(
                MTLPixelFormat::R8Uint,
                128,
                LEN as usize / 128,
                false,
            )
        };
        descriptor.setStorageMode(MTLStorageMode::Private);
        let texture = user.device.newTextureWithDescriptor(&descriptor).unwrap();
        let object = External::Object(Box::new(MetalTexture::new(texture)));
        // SAFETY: nothing else uses it.
        unsafe { manager.import("metal:0/device".parse().unwrap(), object) }.unwrap()
    })
}

fn run(seed: u64, has_faults: bool) {
    let mut dice = Dice(seed);
    let mut bench = Bench::new(&mut dice);
    for _ in 0..STEPS {
        if has_faults && dice.below(6) == 0 {
            let (what, turn) = (dice.of(&FAULTS), 1 + dice.below(12));
            let and_after = dice.of(&["", "", "", "", "", "", "", "+"]);
            fault(&format!("{what}@{turn}{and_after}")).unwrap();
        }
        match dice.below(16) {
            0 => bench.write(&mut dice),
            1 => bench.copy_rows(&mut dice),
            _ => bench.copy(&mut dice),
        }
        if dice.below(24) == 0 {
            let one = dice.below(bench.buffers.len() as u64) as usize;
            bench.check(one);
        }
    }
    for buffer in 0..bench.buffers.len() {
        bench.check(buffer);
    }
    let [done, failed] = bench.ends;
    assert!(
        done > 1000 && (failed > 20) == has_faults,
        "{:?}",
        bench.ends
    );
    drop(bench);
    assert_clean();
}

#[test]
fn many_transfers_at_once_do_what_one_after_the_other_does() {
    run(0x0123_4567, false);
}

#[test]
fn whatever_fails_the_others_do_what_one_after_the_other_does() {
    run(0x55AA_55AA, true);
}
