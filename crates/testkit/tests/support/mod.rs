//! Shared parts of the testkit's tests.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::sync::Mutex;

use transload_core::schema::Machine;
use transload_hal::{
    Backend, Buffer, CompletionSink, DeviceId, Fence, HostSpan, MemoryId, MemoryKind, Op, Outcome,
    Part, StorageId, StorageInfo, SubmitError,
};
use transload_testkit::sim::{BACKEND, Sim};
use transload_testkit::topology;

/// Two GPUs of a megabyte, the first with managed memory, every link 1000 ns and 1 ns a byte.
pub(crate) fn machine() -> Machine {
    let mut text = String::from(
        r#"
        schema = 1
        name = "test bench"
        [[device]]
        id = "cpu:0"
        name = "host"
        memory = [
            { kind = "pageable", memory_bytes = 10_000_000 },
            { kind = "pinned", memory_bytes = 10_000_000 },
            { kind = "file", memory_bytes = 10_000_000 },
        ]
        [[device]]
        id = "sim:0"
        name = "GPU"
        memory = [
            { kind = "device", memory_bytes = 1_000_000, alignment = 256 },
            { kind = "managed", memory_bytes = 1_000_000, alignment = 256 },
        ]
        [[device]]
        id = "sim:1"
        name = "GPU"
        memory = [{ kind = "device", memory_bytes = 1_000_000, alignment = 256 }]
        [transform]
        engine = "cpu:0#3"
        latency_ns = 1000
        bytes_per_second = 1_000_000_000
        "#,
    );
    let mut link = |src: &str, dst: &str, engine: &str| {
        text.push_str(&format!(
            "[[link]]\nsrc = \"{src}\"\ndst = \"{dst}\"\nengine = \"{engine}\"\nclass = \"pcie\"\n\
             pitched = true\nlatency_ns = 1000\nbytes_per_second = 1_000_000_000\n"
        ));
    };
    for (a, b) in [("pageable", "pinned"), ("pinned", "pageable")] {
        link(&format!("cpu:0/{a}"), &format!("cpu:0/{b}"), "cpu:0#0");
        link(&format!("cpu:0/{a}"), &format!("cpu:0/{a}"), "cpu:0#0");
        link(&format!("cpu:0/{a}"), "cpu:0/file", "cpu:0#1");
        link("cpu:0/file", &format!("cpu:0/{a}"), "cpu:0#1");
        for gpu in 0..2 {
            let (host, device) = (format!("cpu:0/{a}"), format!("sim:{gpu}/device"));
            link(&host, &device, &format!("sim:{gpu}#0"));
            link(&device, &host, &format!("sim:{gpu}#1"));
        }
    }
    link("cpu:0/pinned", "sim:0/managed", "sim:0#0");
    link("cpu:0/pageable", "sim:0/managed", "cpu:0#0");
    for gpu in 0..2 {
        let device = format!("sim:{gpu}/device");
        link(&device, &device, &format!("sim:{gpu}#2"));
    }
    topology::from_str(&text).unwrap()
}

pub(crate) fn mem(text: &str) -> MemoryId {
    text.parse().unwrap()
}

pub(crate) fn part(buffer: &Buffer) -> Part<'_> {
    Part {
        buffer,
        offset: 0,
        len_bytes: buffer.len(),
    }
}

pub(crate) fn copy(
    sim: &Sim,
    src: &Buffer,
    dst: &Buffer,
    after: &[Fence],
) -> Result<Fence, SubmitError> {
    let op = Op::Copy {
        src: part(src),
        dst: part(dst),
    };
    // SAFETY: operands are whole buffers; a sim keeps its own memory while an operation uses it; tests that race or
    // free on purpose use simulated memory alone.
    unsafe { sim.submit(None, &[op], after) }
}

/// A buffer of a backend that is not the sim.
pub(crate) fn host_buffer(mut bytes: Vec<u8>) -> Buffer {
    let host = HostSpan::of_mut(&mut bytes);
    let info = StorageInfo {
        id: StorageId::Host,
        base: host.addr(),
        len_bytes: bytes.len() as u64,
        memory: DeviceId::CPU0.memory(MemoryKind::Pageable),
        backend: transload_hal::BackendId(transload_hal::Name::constant("host")),
        writable: true,
        host: Some(host),
    };
    // SAFETY: the vector's block stays in place, and no other code touches it.
    unsafe { Buffer::new(info, Box::new(bytes)) }
}

/// Records the outcomes that the sink was told.
#[derive(Default)]
pub(crate) struct Log(Mutex<Vec<(Fence, Outcome)>>);

impl CompletionSink for Log {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        assert_eq!(fence.backend(), BACKEND);
        assert!(!fence.is_immediate());
        self.0.lock().unwrap().push((fence, outcome));
    }
}

impl Log {
    pub(crate) fn outcomes(&self) -> Vec<(Fence, Outcome)> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn fences(&self) -> Vec<Fence> {
        self.outcomes()
            .into_iter()
            .map(|(fence, _)| fence)
            .collect()
    }

    /// The one reported outcome.
    pub(crate) fn only(&self) -> (Fence, Outcome) {
        let mut all = self.outcomes();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }
}
