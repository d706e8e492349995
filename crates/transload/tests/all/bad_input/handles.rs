//! Memory that other processes and libraries export and import.

use transload::hal::{ErrorClass, External, ExternalKind, ImportError, IpcHandle};
use transload::{AllocSpec, Error, PlaceError, Span, Uuid};

use super::{bench, host};
use crate::common::place;

fn handle(device: Uuid) -> IpcHandle {
    let (kind, span) = (ExternalKind::CudaIpc, Span::new(0, 100));
    IpcHandle::new(kind, [1; 64], device, 4096, span, true).unwrap()
}

#[test]
fn a_handle_of_a_device_that_is_not_here_says_which() {
    let bench = bench();
    let device = Uuid([0x8c; 16]);
    // SAFETY: this machine has no device of that name, so the handle is not opened.
    let error = unsafe { bench.manager.import_ipc(&handle(device)) }.unwrap_err();
    let Error::Place(PlaceError::UnknownDevice { device: named, .. }) = &error else {
        panic!("{error}");
    };
    assert_eq!(named.to_string(), device.to_string());
    assert_eq!(error.class(), ErrorClass::Unsupported);
    assert_eq!(bench.sim.memory_use()[0].allocations, 0);
}

#[test]
fn a_memory_that_opens_no_handles_says_so() {
    let bench = bench();
    for at in ["sim:0", "cpu:0"] {
        let external = External::Ipc(handle(Uuid([0; 16])));
        // SAFETY: neither backend opens an external of this kind.
        let error = unsafe { bench.manager.import(place(at), external) }.unwrap_err();
        let Error::Import(ImportError::Unsupported { kind, .. }) = &error else {
            panic!("{at}: {error}");
        };
        assert_eq!(*kind, ExternalKind::CudaIpc, "{at}");
    }
}

#[test]
fn what_a_memory_does_not_give_out_is_refused_by_its_name() {
    let manager = host();
    let heap = manager.adopt(vec![0u8; 100]).unwrap();
    for kind in [ExternalKind::CudaIpc, ExternalKind::DevicePointer] {
        let error = manager.export(&heap, kind).unwrap_err();
        let Error::Import(ImportError::Unsupported { memory, .. }) = &error else {
            panic!("{kind}: {error}");
        };
        assert_eq!(memory.to_string(), "cpu:0/pageable");
    }
    assert!(manager.export(&heap, ExternalKind::Host).is_ok());
    let bench = bench();
    let device = bench.manager.allocate(place("sim:0"), AllocSpec::bytes(1));
    let error = manager.export(&device.unwrap(), ExternalKind::Object);
    let unknown = matches!(error, Err(Error::Import(ImportError::UnknownMemory { .. })));
    assert!(unknown, "another manager's buffer");
}
