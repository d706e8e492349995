//! Memory of CUDA devices, over the double of the driver. A process has one machine, so this is one test.

use std::sync::Arc;

use dlpark::ffi::{DLDevice as TheirDevice, DLDeviceType};
use transload_tensors::dlpack::{DLDevice, DLPackError};
use transload_tensors::transload::cuda_backend::{Cuda, raw::Driver};
use transload_tensors::transload::{
    AllocSpec, DeviceId, DeviceKind, MemoryKind, Place, TransferManager,
};
use transload_tensors::{DType, Tensor};

use super::{counting, theirs, until};

#[test]
fn device_memory_goes_out_and_comes_back() {
    let root = env!("CARGO_MANIFEST_DIR");
    let machine = format!("{root}/../../doubles/cuda-driver/topologies/pcie-peer.toml");
    cuda::control(&format!("set TRANSLOAD_DOUBLE_TOPOLOGY={machine}")).unwrap();
    // SAFETY: the functions are the double's, which stay loaded.
    let driver = unsafe { Driver::from_table(cuda::table(), "the double") };
    let devices = Arc::new(Cuda::with_driver(driver).unwrap());
    let manager = TransferManager::builder()
        .host()
        .backend(devices)
        .build()
        .unwrap();
    let gpu = DeviceId::new(DeviceKind::CUDA, 1);
    let places: [(Place, u32, i32); 3] = [
        (gpu.memory(MemoryKind::Device).into(), DLDevice::CUDA, 1),
        (
            gpu.memory(MemoryKind::Managed).into(),
            DLDevice::CUDA_MANAGED,
            1,
        ),
        (
            DeviceId::CPU0.memory(MemoryKind::Pinned).into(),
            DLDevice::CPU,
            0,
        ),
    ];
    for (place, device_type, device_id) in places {
        let buffer = manager.allocate(place, AllocSpec::bytes(4096)).unwrap();
        let part = buffer.slice(256..256 + 48).unwrap();
        let copy = manager.copy(manager.adopt(counting(48)).unwrap(), &part);
        let tensor = Tensor::new(&part, DType::I32, &[3, 4]).unwrap();
        let mut managed = tensor.to_dlpack().unwrap();
        assert!(copy.is_over(), "the export waits for the copy");
        copy.wait().unwrap();
        // SAFETY: the structure is this test's alone.
        let fields = &mut unsafe { managed.as_mut() }.dl_tensor;
        let told = DLDevice {
            device_type,
            device_id,
        };
        assert_eq!(fields.device, told);
        if device_type != DLDevice::CPU {
            // A device that is not here, and one that does not have the address.
            for wrong in [0, 99, -1] {
                fields.device.device_id = wrong;
                // SAFETY: as above.
                let error = unsafe { Tensor::from_dlpack(&manager, managed) }.unwrap_err();
                assert!(matches!(
                    error,
                    DLPackError::Library(_) | DLPackError::Device(_)
                ));
            }
            fields.device = told;
        }
        drop((tensor, part));
        // SAFETY: as above.
        let again = unsafe { Tensor::from_dlpack(&manager, managed) }.unwrap();
        assert_eq!(manager.read_to_vec(again.buffer()).unwrap(), counting(48));
        manager.copy_from_slice(&[9; 48], again.buffer()).unwrap();
        assert_eq!(
            manager
                .read_to_vec(buffer.slice(256..304).unwrap())
                .unwrap(),
            [9; 48]
        );
        assert!(!buffer.is_unique());
        drop(again);
        until(|| buffer.is_unique());
    }
    let buffer = manager
        .allocate(gpu.memory(MemoryKind::Device).into(), AllocSpec::bytes(64))
        .unwrap();
    let seen = theirs(
        Tensor::new(&buffer, DType::U8, &[64])
            .unwrap()
            .to_dlpack()
            .unwrap(),
    );
    drop((buffer, manager));
    let device = seen.validate().unwrap().device();
    let on_second = TheirDevice {
        device_type: DLDeviceType::CUDA,
        device_id: 1,
    };
    assert_eq!(device, on_second);
    drop(seen);
    // The manager's own threads may be the last to let go.
    until(|| cuda::control("leaks").unwrap().is_empty());
}
