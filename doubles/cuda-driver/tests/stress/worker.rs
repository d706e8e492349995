//! The work of one thread: random operations, in an order that streams and events ensure.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use transload_cuda::raw::{
    CUDA_MEMCPY2D, CUcontext, CUevent, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUmemorytype,
    CUresult, CUstream, Driver,
};

use crate::common::bytes::{copy, pattern};
use crate::common::work::{
    event, event_synchronize, launch, query, record, result, stream, synchronize, wait_event,
};
use crate::slot::{KINDS, Kind, Slot};

const SLOTS: usize = 6;
const LONGEST: usize = 24 << 10;

/// A stream, with the context that it is of and an event to order others after it.
struct Lane {
    stream: CUstream,
    context: usize,
    event: CUevent,
}

pub(crate) struct Worker<'a> {
    driver: &'a Driver,
    contexts: [CUcontext; 2],
    lanes: Vec<Lane>,
    slots: Vec<Slot>,
    /// The number of errors that users' functions found.
    wrong: Arc<AtomicUsize>,
    random: u64,
}

/// A part of a slot: which, from where on.
#[derive(Clone, Copy)]
struct Part(usize, usize);

impl<'a> Worker<'a> {
    pub(crate) fn new(driver: &'a Driver, contexts: [CUcontext; 2], seed: u64) -> Worker<'a> {
        let mut worker = Worker {
            driver,
            contexts,
            lanes: Vec::new(),
            slots: Vec::new(),
            wrong: Arc::default(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        for context in [0, 1] {
            worker.enter(context);
            let own = [stream(driver, 0), stream(driver, 1)];
            for stream in [CUstream::NULL, CUstream::PER_THREAD]
                .into_iter()
                .chain(own)
            {
                let event = event(driver, 2);
                worker.lanes.push(Lane {
                    stream,
                    context,
                    event,
                });
            }
        }
        for _ in 0..SLOTS {
            let slot = worker.make();
            worker.slots.push(slot);
        }
        worker
    }

    /// One thing, chosen at random.
    pub(crate) fn step(&mut self) {
        match self.below(20) {
            0 => self.replace(),
            1 => self.write(),
            2 | 3 => self.check(),
            4 => self.check_within_the_stream(),
            5 => self.toggle_peers(),
            6 => self.ask(),
            7 | 8 => self.fill(),
            9..=11 => self.copy_rows(),
            12 => self.copy_batch(),
            13 | 14 => self.copy_and_wait(),
            _ => self.copy_later(),
        }
    }

    /// Checks everything, and gives everything back.
    pub(crate) fn finish(mut self) {
        for at in 0..SLOTS {
            self.check_slot(at);
        }
        for slot in std::mem::take(&mut self.slots) {
            self.enter(slot.device);
            slot.free(self.driver);
        }
        for lane in &self.lanes {
            self.enter(lane.context);
            // SAFETY: the event is the test's.
            unsafe { self.driver.cuEventDestroy_v2(lane.event) }.unwrap();
            if !matches!(lane.stream, CUstream::NULL | CUstream::PER_THREAD) {
                synchronize(self.driver, lane.stream).unwrap();
                // SAFETY: the stream is the test's.
                unsafe { self.driver.cuStreamDestroy_v2(lane.stream) }.unwrap();
            }
        }
        assert_eq!(self.wrong.load(Ordering::Acquire), 0);
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % limit as u64) as usize
    }

    fn enter(&self, context: usize) {
        // SAFETY: the context is there.
        unsafe { self.driver.cuCtxSetCurrent(self.contexts[context]) }.unwrap();
    }

    fn make(&mut self) -> Slot {
        let kind = KINDS[self.below(KINDS.len())];
        // Half of them on devices, and each on its own.
        let kind = if self.below(2) == 0 {
            Kind::Device
        } else {
            kind
        };
        let (device, len) = (self.below(2), 64 + self.below(LONGEST));
        self.enter(device);
        Slot::new(self.driver, kind, device, len)
    }

    /// Any lane, its context current.
    fn lane(&mut self) -> usize {
        let lane = self.below(self.lanes.len());
        self.enter(self.lanes[lane].context);
        lane
    }

    /// Makes a lane wait for whatever else uses a slot. It is the last that does from now on.
    fn order(&mut self, lane: usize, slot: usize) {
        let before = self.slots[slot].last.replace(lane);
        let Some(before) = before.filter(|before| *before != lane) else {
            return;
        };
        let before = &self.lanes[before];
        self.enter(before.context);
        record(self.driver, before.event, before.stream).unwrap();
        let lane = &self.lanes[lane];
        self.enter(lane.context);
        wait_event(self.driver, lane.stream, before.event).unwrap();
    }

    /// Waits until nothing uses a slot.
    fn settle(&mut self, slot: usize) {
        let Some(lane) = self.slots[slot].last.take() else {
            return;
        };
        let by_event = self.below(2) == 0;
        let lane = &self.lanes[lane];
        self.enter(lane.context);
        if by_event {
            record(self.driver, lane.event, lane.stream).unwrap();
            event_synchronize(self.driver, lane.event).unwrap();
        } else {
            synchronize(self.driver, lane.stream).unwrap();
        }
    }

    fn check_slot(&mut self, at: usize) {
        self.settle(at);
        let slot = &self.slots[at];
        self.enter(slot.device);
        assert!(slot.read(self.driver) == slot.model, "{:?}", slot.kind);
    }

    fn check(&mut self) {
        let at = self.below(SLOTS);
        self.check_slot(at);
    }

    fn write(&mut self) {
        let at = self.below(SLOTS);
        self.settle(at);
        let bytes = pattern(self.random, self.slots[at].len());
        self.enter(self.slots[at].device);
        self.slots[at].write(self.driver, &bytes);
    }

    fn replace(&mut self) {
        let at = self.below(SLOTS);
        self.check_slot(at);
        let new = self.make();
        let old = std::mem::replace(&mut self.slots[at], new);
        self.enter(old.device);
        old.free(self.driver);
    }

    /// A function of the user's compares memory of the host, in its turn.
    fn check_within_the_stream(&mut self) {
        let at = self.below(SLOTS);
        if !self.slots[at].is_host() {
            return;
        }
        let lane = self.lane();
        self.order(lane, at);
        let (address, expected) = (self.slots[at].address, self.slots[at].model.clone());
        let wrong = Arc::clone(&self.wrong);
        let compare = move || {
            let start = std::ptr::with_exposed_provenance::<u8>(address as usize);
            let mut bytes = vec![0; expected.len()];
            // SAFETY: nothing else uses the memory before the stream goes on.
            unsafe { std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), bytes.len()) };
            if bytes != expected {
                wrong.fetch_add(1, Ordering::AcqRel);
            }
        };
        launch(self.driver, self.lanes[lane].stream, compare).unwrap();
    }

    /// Other threads do the same, so any valid answer may come.
    fn toggle_peers(&mut self) {
        let own = self.below(2);
        self.enter(own);
        let peer = self.contexts[1 - own];
        if self.below(3) > 0 {
            // SAFETY: the context is there, here and below.
            let answer = result(unsafe { self.driver.cuCtxEnablePeerAccess(peer, 0) });
            let known = [
                Ok(()),
                Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
                Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED),
            ];
            assert!(known.contains(&answer), "{answer:?}");
        } else {
            // SAFETY: as above.
            let answer = result(unsafe { self.driver.cuCtxDisablePeerAccess(peer) });
            let none = Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
            assert!(answer == Ok(()) || answer == none, "{answer:?}");
        }
    }

    fn ask(&mut self) {
        let lane = self.lane();
        let answer = query(self.driver, self.lanes[lane].stream);
        let not_ready = Err(CUresult::CUDA_ERROR_NOT_READY);
        assert!(answer == Ok(()) || answer == not_ready, "{answer:?}");
    }

    fn fill(&mut self) {
        let at = self.below(SLOTS);
        if self.slots[at].kind == Kind::Pageable {
            return;
        }
        let lane = self.lane();
        self.order(lane, at);
        let from = self.below(self.slots[at].len());
        let len = self.below(self.slots[at].len() - from);
        let byte = self.random as u8;
        let slot = &mut self.slots[at];
        let (address, stream) = (slot.address + from as u64, self.lanes[lane].stream);
        // SAFETY: the range is the slot's, which stays until it is settled.
        unsafe { self.driver.cuMemsetD8Async(address, byte, len, stream) }.unwrap();
        slot.model[from..from + len].fill(byte);
    }

    /// Two different slots, ordered after whatever used them.
    fn pair(&mut self, lane: usize) -> (usize, usize) {
        let src = self.below(SLOTS);
        let dst = (src + 1 + self.below(SLOTS - 1)) % SLOTS;
        self.order(lane, src);
        self.order(lane, dst);
        (src, dst)
    }

    /// Parts of two slots, and their length.
    fn parts(&mut self, lane: usize) -> (Part, Part, usize) {
        let (src, dst) = self.pair(lane);
        let lens = [src, dst].map(|at| self.slots[at].len());
        let len = self.below(lens[0].min(lens[1]) + 1);
        let from = self.below(lens[0] - len + 1);
        let to = self.below(lens[1] - len + 1);
        (Part(src, from), Part(dst, to), len)
    }

    fn address(&self, Part(slot, from): Part) -> u64 {
        self.slots[slot].address + from as u64
    }

    fn copied(&mut self, Part(src, from): Part, Part(dst, to): Part, len: usize) {
        let bytes = self.slots[src].model[from..from + len].to_vec();
        self.slots[dst].model[to..to + len].copy_from_slice(&bytes);
    }

    fn copy_later(&mut self) {
        let lane = self.lane();
        let (src, dst, len) = self.parts(lane);
        let (from, to) = (self.address(src), self.address(dst));
        let stream = self.lanes[lane].stream;
        let [from_host, to_host] = [src, dst].map(|part| self.slots[part.0].is_host());
        let host = |address: u64| std::ptr::with_exposed_provenance_mut(address as usize);
        let typed = self.below(2) == 0;
        let driver = self.driver;
        // SAFETY: the ranges are the slots', which stay until they are settled, in each of them.
        let answer = match (typed, from_host, to_host) {
            (true, true, false) => {
                // SAFETY: as above.
                unsafe { driver.cuMemcpyHtoDAsync_v2(to, host(from), len, stream) }
            }
            (true, false, true) => {
                // SAFETY: as above.
                unsafe { driver.cuMemcpyDtoHAsync_v2(host(to), from, len, stream) }
            }
            (true, false, false) => {
                let [src, dst] = [src, dst].map(|part| self.contexts[self.slots[part.0].device]);
                // SAFETY: as above.
                unsafe { driver.cuMemcpyPeerAsync(to, dst, from, src, len, stream) }
            }
            _ => {
                copy(driver, to, from, len, stream).unwrap();
                Ok(())
            }
        };
        answer.unwrap();
        self.copied(src, dst, len);
    }

    /// In the legacy default stream of either context.
    fn copy_and_wait(&mut self) {
        let context = self.below(2);
        let mut lanes = self.lanes.iter();
        let lane = lanes.position(|of| of.stream.is_null() && of.context == context);
        let lane = lane.expect("every context has one");
        let (src, dst, len) = self.parts(lane);
        self.enter(context);
        let (from, to) = (self.address(src), self.address(dst));
        // SAFETY: the ranges are the slots', which stay until they are settled.
        unsafe { self.driver.cuMemcpy(to, from, len) }.unwrap();
        self.copied(src, dst, len);
    }

    fn copy_rows(&mut self) {
        let lane = self.lane();
        let (src, dst) = self.pair(lane);
        let (width, height) = (1 + self.below(24), 1 + self.below(4));
        let pitches = [0; 2].map(|_| width + self.below(16));
        let fits = |at: usize, pitch: usize| (height - 1) * pitch + width <= self.slots[at].len();
        if !fits(src, pitches[0]) || !fits(dst, pitches[1]) {
            return;
        }
        let rows = CUDA_MEMCPY2D {
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            srcDevice: self.slots[src].address,
            srcPitch: pitches[0],
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            dstDevice: self.slots[dst].address,
            dstPitch: pitches[1],
            WidthInBytes: width,
            Height: height,
            ..CUDA_MEMCPY2D::default()
        };
        let stream = self.lanes[lane].stream;
        // SAFETY: the description is one; the ranges are the slots', which stay until they are settled.
        let answer = result(unsafe { self.driver.cuMemcpy2DAsync_v2(&raw const rows, stream) });
        if answer == Err(CUresult::CUDA_ERROR_INVALID_VALUE) {
            // Within a device only the pitches that it gives are taken.
            let [from, to] = [src, dst].map(|at| &self.slots[at]);
            let within = from.kind == Kind::Device && to.kind == Kind::Device;
            assert!(within && from.device == to.device && height > 1);
            return;
        }
        answer.unwrap();
        for row in 0..height {
            let (from, to) = (row * pitches[0], row * pitches[1]);
            self.copied(Part(src, from), Part(dst, to), width);
        }
    }

    /// Two copies that have nothing to do with each other, one of them read during the call.
    fn copy_batch(&mut self) {
        let lane = self.lane();
        if self.lanes[lane].stream.is_null() {
            return;
        }
        let order = |order| CUmemcpyAttributes {
            srcAccessOrder: order,
            ..CUmemcpyAttributes::default()
        };
        let mut attributes = [
            order(CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
            order(CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
        ];
        let at = self.below(SLOTS);
        let [src, dst, other] = [at, at + 1, at + 2].map(|at| at % SLOTS);
        // The call reads its source at once, whatever work the stream still has.
        self.settle(src);
        self.order(lane, dst);
        self.order(lane, other);
        // The settled slot may belong to another context, and a default stream belongs to the current one.
        self.enter(self.lanes[lane].context);
        let len = [src, dst, other].map(|at| self.slots[at].len());
        let len = 1 + self.below(len.into_iter().min().unwrap_or(1));
        let [from, to, third] = [src, dst, other].map(|at| self.slots[at].address);
        let (mut dsts, mut srcs, mut sizes) = ([to, third], [from, from], [len, len]);
        let (mut firsts, stream) = ([0, 1], self.lanes[lane].stream);
        let (dsts, srcs, sizes) = (dsts.as_mut_ptr(), srcs.as_mut_ptr(), sizes.as_mut_ptr());
        let (attrs, firsts) = (attributes.as_mut_ptr(), firsts.as_mut_ptr());
        let driver = self.driver;
        // SAFETY: the arrays have the stated length; the ranges are the slots', which stay until they are settled.
        unsafe { driver.cuMemcpyBatchAsync_v2(dsts, srcs, sizes, 2, attrs, firsts, 2, stream) }
            .unwrap();
        self.slots[src].last = Some(lane);
        self.copied(Part(src, 0), Part(dst, 0), len);
        self.copied(Part(src, 0), Part(other, 0), len);
    }
}
