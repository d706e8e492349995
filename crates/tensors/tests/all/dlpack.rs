//! Tensors to and from other libraries: the crate `dlpark` as the other side, lifetimes, and structures that lie.

#[cfg(all(feature = "cuda", target_os = "linux"))]
mod cuda;
mod hostile;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use dlpark::ManagedTensorBase;
use dlpark::allocation::dynamic;
use dlpark::ffi::{self, DLDataType, DLDevice};
use dlpark::{DlpackFlags, Managed, OpaqueContext};
use transload_tensors::dlpack::{
    DLManagedTensor, DLManagedTensorVersioned, DLPackError, DLPackVersion, IS_SUBBYTE_TYPE_PADDED,
    READ_ONLY,
};
use transload_tensors::transload::{
    AllocSpec, Buffer, DeviceId, ErrorClass, MemoryKind, Request, TransferManager,
};
use transload_tensors::{DType, Loader, Model, Tensor};

use crate::files::Folder;

fn manager() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

fn allocate(manager: &TransferManager, bytes: &[u8]) -> Buffer {
    let spec = AllocSpec::bytes(bytes.len() as u64);
    let buffer = manager.allocate(DeviceId::CPU0.into(), spec).unwrap();
    manager.copy_from_slice(bytes, &buffer).unwrap();
    buffer
}

fn counting(len: u8) -> Vec<u8> {
    (0..len).collect()
}

/// Takes an export over, as a consumer that is not of this project.
fn theirs(managed: NonNull<DLManagedTensorVersioned>) -> Managed<ffi::DLManagedTensorVersioned> {
    // SAFETY: the structure was exported, and no other code has it.
    unsafe { Managed::from_raw(managed.as_ptr().cast()) }.unwrap()
}

fn theirs_legacy(managed: NonNull<DLManagedTensor>) -> Managed<ffi::DLManagedTensor> {
    // SAFETY: as above.
    unsafe { Managed::from_raw(managed.as_ptr().cast()) }.unwrap()
}

/// Returns what a consumer reads. Nothing writes the bytes meanwhile.
fn bytes_of<M: ManagedTensorBase>(seen: &Managed<M>) -> Vec<u8> {
    let seen = seen.validate_export().unwrap();
    // SAFETY: an export keeps its bytes, and nothing writes them.
    unsafe { seen.cpu_bytes() }.unwrap().to_vec()
}

/// Waits until it holds: another thread that turned the engine may drop its view a moment after a copy is over.
fn until(holds: impl Fn() -> bool) {
    while !holds() {
        thread::yield_now();
    }
}

/// Counts its end.
struct Producer {
    bytes: Vec<u8>,
    ends: Arc<AtomicUsize>,
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.ends.fetch_add(1, Ordering::SeqCst);
    }
}

/// Has a producer that is not of this project make a tensor. Its first element begins at byte `at`.
fn produced<M: ManagedTensorBase>(
    (bytes, ends): (&[u8], &Arc<AtomicUsize>),
    at: u64,
    dtype: DLDataType,
    (shape, strides): (&[i64], &[i64]),
    read_only: bool,
) -> *mut M
where
    Box<Producer>: OpaqueContext,
{
    let mut producer = Box::new(Producer {
        bytes: bytes.to_vec(),
        ends: Arc::clone(ends),
    });
    let data = producer.bytes.as_mut_ptr();
    let allocation = dynamic::Allocation::<M>::allocate(2 * shape.len()).unwrap();
    let mut made = allocation.initialize(producer, shape.len()).unwrap();
    made.extra_mut()[..shape.len()].copy_from_slice(shape);
    made.extra_mut()[shape.len()..].copy_from_slice(strides);
    let sizes = made.extra_mut().as_mut_ptr();
    made.tensor_mut().shape = sizes;
    made.tensor_mut().strides = sizes.wrapping_add(shape.len());
    made.set_data(data.cast())
        .set_device(DLDevice::CPU)
        .set_dtype(dtype)
        .set_byte_offset(at);
    if read_only {
        made.set_flags(DlpackFlags::READ_ONLY).unwrap();
    }
    // SAFETY: the producer owns the bytes that the elements lie in.
    unsafe { made.finish() }.into_raw()
}

fn ours<M>(managed: *mut M) -> NonNull<M> {
    NonNull::new(managed).unwrap()
}

#[test]
fn a_consumer_sees_type_shape_strides_and_bytes() {
    let manager = manager();
    let buffer = allocate(&manager, &counting(24));
    let tensor = Tensor::new(&buffer, DType::F32, &[2, 3]).unwrap();
    for _ in 0..2 {
        let versioned = theirs(tensor.to_dlpack().unwrap());
        let legacy = theirs_legacy(tensor.to_dlpack_legacy().unwrap());
        assert_eq!(
            (versioned.version().major, versioned.flags()),
            (1, DlpackFlags::empty())
        );
        for seen in [
            versioned.validate_export().unwrap(),
            legacy.validate_export().unwrap(),
        ] {
            let told = (seen.device(), seen.dtype(), seen.shape(), seen.strides());
            let shape = (&[2, 3][..], Some(&[3, 1][..]));
            assert_eq!(told, (DLDevice::CPU, DLDataType::F32, shape.0, shape.1));
        }
        assert_eq!(bytes_of(&versioned), counting(24));
        assert_eq!(bytes_of(&legacy), counting(24));
        assert!(!buffer.is_unique());
    }
    drop(tensor);
    until(|| buffer.is_unique());
    // What is written later is seen, too.
    let one = theirs(
        Tensor::new(&buffer, DType::U8, &[24])
            .unwrap()
            .to_dlpack()
            .unwrap(),
    );
    manager.copy_from_slice(&[7; 24], &buffer).unwrap();
    assert_eq!(bytes_of(&one), [7; 24]);
}

#[test]
fn strides_and_sizes_of_nothing_are_exported_as_they_are() {
    let manager = manager();
    let buffer = allocate(&manager, &counting(24));
    let backwards = Tensor::strided(&buffer, 20, DType::U16, &[3, 2], &[-4, 1]);
    let seen = theirs(backwards.unwrap().to_dlpack().unwrap());
    let seen = seen.validate_export().unwrap();
    assert_eq!(seen.strides(), Some(&[-4, 1][..]));
    let start = buffer.read().unwrap().as_ptr();
    assert_eq!(seen.data_ptr().addr() - start.addr(), 20);
    let none = Tensor::new(
        &buffer.slice(..0).unwrap(),
        DType::F64,
        &[0, 1 << 40, 1 << 40],
    );
    let none = theirs(none.unwrap().to_dlpack().unwrap());
    assert!(none.validate().unwrap().data_ptr().is_null());
    let one = Tensor::new(&buffer.slice(..8).unwrap(), DType::C64, &[]);
    let one = theirs(one.unwrap().to_dlpack().unwrap());
    assert_eq!(one.validate().unwrap().shape(), [0i64; 0]);
}

#[test]
fn types_go_out_and_come_back() {
    let manager = manager();
    let bytes = allocate(&manager, &counting(192));
    for dtype in DType::ALL {
        let len = dtype.len_bytes(&[4, 64]).filter(|len| *len <= 192);
        let shape = if len.is_some() { [4, 64] } else { [4, 4] };
        let Some(len) = dtype.len_bytes(&shape) else {
            continue;
        };
        let part = bytes.slice(..len.min(192)).unwrap();
        let Ok(tensor) = Tensor::new(&part, *dtype, &shape) else {
            continue;
        };
        match tensor.to_dlpack() {
            Ok(managed) => {
                assert!(*dtype <= DType::U64, "{dtype}");
                // SAFETY: the structure was exported, and no other code has it.
                let again = unsafe { Tensor::from_dlpack(&manager, managed) }.unwrap();
                assert_eq!((again.dtype(), again.shape()), (*dtype, &shape[..]));
                assert!(*again.buffer().read().unwrap() == counting(192)[..len as usize]);
            }
            Err(error) => assert!(*dtype > DType::U64, "{error}"),
        }
    }
    let block = Tensor::new(&bytes.slice(..18).unwrap(), DType::Q4_0, &[32]).unwrap();
    let error = block.to_dlpack().unwrap_err();
    assert_eq!(
        error.to_string(),
        "DLPack has no type for elements of Q4_0; export their bytes as U8"
    );
    assert!(bytes.slice(..).unwrap().read().is_ok());
}

/// PyTorch has two elements of `F4` in one of its own, and others each by itself.
#[test]
fn elements_that_share_bytes_go_as_lanes_and_packed_and_come_as_both() {
    let manager = manager();
    let buffer = allocate(&manager, &counting(24));
    let ends = Arc::new(AtomicUsize::new(0));
    let code = |dtype: DLDataType| (dtype.code.0, dtype.bits, dtype.lanes);
    for (dtype, lanes, bytes) in [(DType::F4, 2, 1), (DType::F6_E3M2, 4, 3)] {
        let bits = (bytes * 8 / lanes) as u8;
        let rows = Tensor::strided(&buffer, 12, dtype, &[2, 2 * lanes], &[-4 * lanes as i64, 1]);
        let rows = rows.unwrap();
        let [one, packed] = [rows.to_dlpack_lanes(), rows.to_dlpack()].map(|it| it.unwrap());
        let (one, packed) = (theirs(one), theirs(packed));
        let (one, packed) = (
            one.validate_export().unwrap(),
            packed.validate_export().unwrap(),
        );
        assert_eq!(
            (one.shape(), one.strides()),
            (&[2, 2][..], Some(&[-4, 1][..]))
        );
        assert_eq!(packed.shape(), [2, 2 * lanes as i64]);
        assert_eq!(packed.strides(), Some(&[-4 * lanes as i64, 1][..]));
        let number = code(one.dtype()).0;
        assert_eq!(code(one.dtype()), (number, bits, lanes as u16));
        assert_eq!(code(packed.dtype()), (number, bits, 1));
        assert_eq!(one.data_ptr(), packed.data_ptr());

        let import = |lanes: u16, shape: &[i64], strides: &[i64], flags: u64| {
            let of = DLDataType {
                code: one.dtype().code,
                bits,
                lanes,
            };
            let made = produced::<ffi::DLManagedTensorVersioned>(
                (&counting(24), &ends),
                0,
                of,
                (shape, strides),
                false,
            );
            let mut managed = ours(made).cast::<DLManagedTensorVersioned>();
            // SAFETY: the structure is this test's alone.
            unsafe { managed.as_mut() }.flags |= flags;
            // SAFETY: as above.
            let imported = unsafe { Tensor::from_dlpack(&manager, managed) };
            if imported.is_err() {
                drop(theirs(managed));
            }
            imported
        };
        let of = lanes as u16;
        let tensor = import(of, &[2, 2], &[4, 1], 0).unwrap();
        assert_eq!(
            (tensor.dtype(), tensor.shape()),
            (dtype, &[2, 2 * lanes][..])
        );
        let wanted = [0, 4 * bytes].map(|at| (at..at + 2 * bytes).map(|at| at as u8));
        let wanted: Vec<u8> = wanted.into_iter().flatten().collect();
        assert_eq!(
            manager.read_to_vec(tensor.region().unwrap()).unwrap(),
            wanted
        );
        let same = import(1, &[2, 2 * lanes as i64], &[4 * lanes as i64, 1], 0).unwrap();
        assert_eq!(manager.read_to_vec(same.region().unwrap()).unwrap(), wanted);
        assert_eq!(import(of, &[], &[], 0).unwrap().shape(), [lanes]);
        assert_eq!(
            import(of, &[3, 1], &[1, 77], 0).unwrap().shape(),
            [3, lanes]
        );
        assert_eq!(
            import(of, &[0, 3], &[3, 1], 0).unwrap().shape(),
            [0, 3 * lanes]
        );

        let transposed = import(of, &[2, 2], &[1, 2], 0).unwrap_err();
        assert!(matches!(transposed, DLPackError::Tensor(_)), "{transposed}");
        let other = import(of + 1, &[2], &[1], 0).unwrap_err();
        assert!(matches!(other, DLPackError::DataType(_)), "{other}");
        let padded = import(1, &[lanes as i64], &[1], IS_SUBBYTE_TYPE_PADDED).unwrap_err();
        let told = format!(
            "cannot import elements of {dtype} that have a byte each: have their producer pack them, {lanes} in {bytes} bytes"
        );
        assert_eq!(padded.to_string(), told);
    }
    // Six elements in three bytes, of which a row ends within the second.
    let odd = Tensor::new(&buffer.slice(..3).unwrap(), DType::F4, &[2, 3]).unwrap();
    assert!(matches!(odd.to_dlpack_lanes(), Err(DLPackError::Tensor(_))));
    drop(theirs(odd.to_dlpack().unwrap()));
    assert_eq!(ends.load(Ordering::SeqCst), 2 * 8);
}

#[test]
fn an_import_shows_the_producers_bytes_and_gives_them_back_once() {
    let manager = manager();
    let ends = Arc::new(AtomicUsize::new(0));
    // At each address there is, odd ones too.
    for at in 0..9 {
        let managed = produced::<ffi::DLManagedTensorVersioned>(
            (&counting(32), &ends),
            at,
            DLDataType::U16,
            (&[2, 3], &[4, 1]),
            at == 8,
        );
        // SAFETY: the producer made it for this call.
        let tensor = unsafe { Tensor::from_dlpack(&manager, ours(managed).cast()) }.unwrap();
        let elements: Vec<u8> = [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]
            .map(|of| of + at as u8)
            .into();
        assert_eq!(
            manager.read_to_vec(tensor.region().unwrap()).unwrap(),
            elements
        );
        assert_eq!(tensor.buffer().is_writable(), at != 8);
        let view = tensor.buffer().slice(..1).unwrap();
        drop(tensor);
        assert_eq!(ends.load(Ordering::SeqCst), at as usize, "a view is left");
        thread::spawn(move || drop(view)).join().unwrap();
        until(|| ends.load(Ordering::SeqCst) == at as usize + 1);
    }
    let managed = produced::<ffi::DLManagedTensor>(
        (&counting(8), &ends),
        0,
        DLDataType::U8,
        (&[8], &[1]),
        false,
    );
    // SAFETY: as above.
    let tensor = unsafe { Tensor::from_dlpack_legacy(&manager, ours(managed).cast()) }.unwrap();
    assert!(!tensor.buffer().is_writable());
    // The last view may outlive the manager.
    drop(manager);
    drop(tensor);
    assert_eq!(ends.load(Ordering::SeqCst), 10);
}

#[test]
fn a_refused_import_leaves_the_structure_to_the_caller() {
    let manager = manager();
    let ends = Arc::new(AtomicUsize::new(0));
    let managed = produced::<ffi::DLManagedTensorVersioned>(
        (&counting(8), &ends),
        0,
        DLDataType::U8,
        (&[8], &[1]),
        false,
    );
    let mut managed = ours(managed).cast::<DLManagedTensorVersioned>();
    // SAFETY: the structure is this test's alone, here and below.
    let fields = unsafe { managed.as_mut() };
    fields.version = DLPackVersion { major: 2, minor: 0 };
    fields.dl_tensor.device.device_type = 7;
    // SAFETY: as above.
    let import = || unsafe { Tensor::from_dlpack(&manager, managed) }.unwrap_err();
    assert!(matches!(import(), DLPackError::Version(version) if version.major == 2));
    fields.version.major = 1;
    let error = import();
    assert_eq!(
        error.to_string(),
        "cannot import a tensor of DLPack device type 7 number 0; have its producer copy it to the CPU"
    );
    assert_eq!(error.class(), ErrorClass::Unsupported);
    // A device that is not here is found out when everything else was right.
    fields.dl_tensor.device.device_type = 2;
    assert!(matches!(import(), DLPackError::Library(_)));
    assert_eq!(ends.load(Ordering::SeqCst), 0);
    fields.dl_tensor.device.device_type = 1;
    // Bytes that another manager has are not taken in.
    // SAFETY: as above.
    let tensor = unsafe { Tensor::from_dlpack(&manager, managed) }.unwrap();
    let lent = tensor.to_dlpack().unwrap();
    // SAFETY: the structure was exported, and no other code has it.
    let error = unsafe { Tensor::from_dlpack(&self::manager(), lent) }.unwrap_err();
    assert!(matches!(error, DLPackError::Library(_)), "{error}");
    drop(tensor);
    assert_eq!(
        ends.load(Ordering::SeqCst),
        0,
        "an export keeps what was imported"
    );
    drop(theirs(lent));
    assert_eq!(ends.load(Ordering::SeqCst), 1);
}

#[test]
fn read_only_tensors_are_marked_and_have_no_legacy_export() {
    let manager = manager();
    let bytes: Arc<[u8]> = counting(4).into();
    let tensor = Tensor::new(&manager.adopt(bytes).unwrap(), DType::U8, &[4]).unwrap();
    assert!(matches!(
        tensor.to_dlpack_legacy(),
        Err(DLPackError::ReadOnly)
    ));
    let managed = tensor.to_dlpack().unwrap();
    // SAFETY: the structure was exported, and no other code has it.
    assert_eq!(unsafe { managed.as_ref() }.flags, READ_ONLY);
    // SAFETY: as above.
    let again = unsafe { Tensor::from_dlpack(&manager, managed) }.unwrap();
    assert!(!again.buffer().is_writable());
}

#[test]
fn an_export_outlives_the_manager_and_ends_on_any_thread() {
    let manager = manager();
    let bytes: Vec<u8> = counting(64);
    let tensor = Tensor::new(&manager.adopt(bytes).unwrap(), DType::U8, &[64]).unwrap();
    let exports: Vec<_> = (0..8)
        .map(|_| theirs(tensor.to_dlpack().unwrap()))
        .collect();
    drop(tensor);
    drop(manager);
    let ended = exports.into_iter().map(|export| {
        thread::spawn(move || {
            assert_eq!(bytes_of(&export), counting(64));
        })
    });
    ended
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|one| one.join().unwrap());
}

#[test]
fn an_export_waits_for_what_was_submitted_before_and_not_for_its_own_thread() {
    let manager = manager();
    let (source, target) = (
        allocate(&manager, &[7; 1 << 16]),
        allocate(&manager, &[0; 1 << 16]),
    );
    let tensor = Tensor::new(&target, DType::U8, &[1 << 16]).unwrap();
    let go = manager.event();
    let copy = manager.submit(&Request::new(&source, &target).after(&go));
    let (started, waits) = std::sync::mpsc::channel();
    let consumer = thread::spawn(move || {
        started.send(()).unwrap();
        let seen = theirs(tensor.to_dlpack().unwrap());
        let bytes = bytes_of(&seen);
        (seen, bytes)
    });
    waits.recv().unwrap();
    assert!(!consumer.is_finished());
    go.set();
    copy.wait().unwrap();
    let (seen, bytes) = consumer.join().unwrap();
    assert!(bytes == [7; 1 << 16]);
    // What comes later does not wait for the consumer.
    manager.copy_from_slice(&[8; 1 << 16], &target).unwrap();
    drop(seen);
    let tensor = Tensor::new(&target, DType::U8, &[1 << 16]).unwrap();
    let guard = target.write().unwrap();
    let error = tensor.to_dlpack().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller, "{error}");
    drop(guard);
    drop(theirs(tensor.to_dlpack().unwrap()));
}

#[test]
fn a_loader_leaves_exported_memory_alone() {
    let manager = manager();
    let header = br#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let file = [
        &(header.len() as u64).to_le_bytes()[..],
        header,
        &[1, 2, 3, 4],
    ]
    .concat();
    let folder = Folder::of(&[("model.safetensors", &file)]);
    let model = Model::open(folder.path("model.safetensors")).unwrap();
    let loader = Loader::new(&manager);
    let load = || {
        let mut loading = loader.load(&model).start().unwrap();
        theirs(loading.next().unwrap().unwrap().to_dlpack().unwrap())
    };
    let address = |of: &Managed<_>| of.validate().unwrap().data_ptr().addr();
    let (first, second) = (load(), load());
    assert_ne!(address(&first), address(&second));
    loader.trim();
    assert!(address(&first).is_multiple_of(64));
    assert_eq!(bytes_of(&first), [1, 2, 3, 4]);
    let again = address(&first);
    drop(first);
    until(|| address(&load()) == again);
}

#[test]
fn fresh_allocations_are_exported_at_multiples_of_256() {
    let manager = manager();
    for len in [1, 100, 4096, 100_000, 1 << 20] {
        let tensor = Tensor::new(&allocate(&manager, &vec![1; len]), DType::U8, &[len as u64]);
        let seen = theirs(tensor.unwrap().to_dlpack().unwrap());
        assert!(
            seen.validate()
                .unwrap()
                .data_ptr()
                .addr()
                .is_multiple_of(256),
            "{len}"
        );
    }
}

#[test]
fn shared_memory_is_host_memory_and_memory_without_an_address_is_refused() {
    let manager = manager();
    let shared = DeviceId::CPU0.memory(MemoryKind::Shared).into();
    if let Ok(buffer) = manager.allocate(shared, AllocSpec::bytes(100)) {
        let seen = theirs(
            Tensor::new(&buffer, DType::U8, &[100])
                .unwrap()
                .to_dlpack()
                .unwrap(),
        );
        assert_eq!(seen.validate().unwrap().device(), DLDevice::CPU);
    }
    let beside = crate::devices::manager(1 << 20, 1 << 20);
    let sim = beside.allocate("sim:0".parse().unwrap(), AllocSpec::bytes(4));
    let folder = Folder::of(&[("bytes", &[0; 4])]);
    let file = manager.open_file(folder.path("bytes"));
    for buffer in [file.unwrap(), sim.unwrap()] {
        let tensor = Tensor::new(&buffer, DType::U8, &[4]).unwrap();
        let error = tensor.to_dlpack().unwrap_err();
        let memory = buffer.memory();
        assert_eq!(
            error.to_string(),
            format!("cannot export a tensor in {memory} by DLPack; copy it to cpu:0")
        );
        assert_eq!(error.class(), ErrorClass::Unsupported);
    }
}
