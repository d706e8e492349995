//! The list of functions: one line each, with the version of CUDA whose driver first had this signature,
//! from NVIDIA's `cudaTypedefs.h` (`PFN_cuMemPrefetchAsync_v12020`).

/// Calls a macro with every function of the driver that is bound: `name(argument: type, ...) version;`, the
/// types under the names that [`raw`](crate::raw) gives them. A crate that implements the driver, as a double
/// does, uses this to make a complete [`Table`](crate::raw::Table).
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_cuda_function {
    ($callback:ident) => {
        $callback! {
        // Starting and finding
        /// Starts the driver. Before it every function but a few answers CUDA_ERROR_NOT_INITIALIZED.
        cuInit(flags: u32) 2000;
        /// The newest CUDA that the driver knows. Works before cuInit.
        cuDriverGetVersion(driver_version: *mut i32) 2020;
        /// The name of a result, for good.
        cuGetErrorName(error: CUresult, p_str: *mut *const c_char) 6000;
        /// The meaning of a result; the text stays valid for the life of the process.
        cuGetErrorString(error: CUresult, p_str: *mut *const c_char) 6000;
        /// Finds a function by its name without suffix and by the version of CUDA.
        cuGetProcAddress_v2(symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: i32, flags: u64, symbol_status: *mut CUdriverProcAddressQueryResult) 12000;
        // Devices
        /// The device of an ordinal.
        cuDeviceGet(device: *mut CUdevice, ordinal: i32) 2000;
        /// How many devices there are.
        cuDeviceGetCount(count: *mut i32) 2000;
        /// A device's name, cut to the length given.
        cuDeviceGetName(name: *mut c_char, len: i32, dev: CUdevice) 2000;
        /// A device's UUID; of a part of a divided GPU, the part's.
        cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice) 11040;
        /// How much memory a device has, in bytes.
        cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) 3020;
        /// One attribute of a device.
        cuDeviceGetAttribute(pi: *mut i32, attrib: CUdevice_attribute, dev: CUdevice) 2000;
        /// The PCI address of a device, as text.
        cuDeviceGetPCIBusId(pci_bus_id: *mut c_char, len: i32, dev: CUdevice) 4010;
        /// Whether a device reaches another one's memory.
        cuDeviceCanAccessPeer(can_access_peer: *mut i32, dev: CUdevice, peer_dev: CUdevice) 4000;
        /// One attribute of the way from a device to another.
        cuDeviceGetP2PAttribute(value: *mut i32, attrib: CUdevice_P2PAttribute, src_device: CUdevice, dst_device: CUdevice) 8000;
        /// The pool that a device begins with.
        cuDeviceGetDefaultMemPool(pool_out: *mut CUmemoryPool, dev: CUdevice) 11020;
        /// The pool that a device allocates from.
        cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice) 11020;
        /// Makes a device allocate from another pool.
        cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) 11020;
        // Contexts
        /// Takes hold of the device's shared context, which it makes if need be.
        cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) 7000;
        /// Lets it go again; the last one to do so ends it.
        cuDevicePrimaryCtxRelease_v2(dev: CUdevice) 11000;
        /// Its flags, and whether it is there.
        cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut u32, active: *mut i32) 7000;
        /// Destroys it, even while it is retained.
        cuDevicePrimaryCtxReset_v2(dev: CUdevice) 11000;
        /// Makes a context, and makes it the current one.
        cuCtxCreate_v2(pctx: *mut CUcontext, flags: u32, dev: CUdevice) 3020;
        /// Ends a context, also if it is current somewhere.
        cuCtxDestroy_v2(ctx: CUcontext) 4000;
        /// Makes a context the current one of this thread, over the one before.
        cuCtxPushCurrent_v2(ctx: CUcontext) 4000;
        /// Takes the current context away; the one before is current again.
        cuCtxPopCurrent_v2(pctx: *mut CUcontext) 4000;
        /// Replaces the current context of this thread.
        cuCtxSetCurrent(ctx: CUcontext) 4000;
        /// The current context of this thread, or null.
        cuCtxGetCurrent(pctx: *mut CUcontext) 4000;
        /// The device of the current context.
        cuCtxGetDevice(device: *mut CUdevice) 2000;
        /// A number that no other context of the process has had.
        cuCtxGetId(ctx: CUcontext, ctx_id: *mut u64) 12000;
        /// Waits for everything that the current context has under way.
        cuCtxSynchronize() 2000;
        /// The least and the greatest priority; the greatest is the smaller number.
        cuCtxGetStreamPriorityRange(least_priority: *mut i32, greatest_priority: *mut i32) 5050;
        /// Lets the current context reach memory of another device's context.
        cuCtxEnablePeerAccess(peer_context: CUcontext, flags: u32) 4000;
        /// Takes that back.
        cuCtxDisablePeerAccess(peer_context: CUcontext) 4000;
        // Memory
        /// How much memory of the current context's device is free, and how much there is, in bytes.
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize) 3020;
        /// Allocates memory of the device.
        cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) 3020;
        /// Frees memory of the device. Waits for the device in practice.
        cuMemFree_v2(dptr: CUdeviceptr) 3020;
        /// The allocation that an address lies in.
        cuMemGetAddressRange_v2(pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr) 3020;
        /// Allocates pinned memory of the host.
        cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: u32) 2020;
        /// Frees pinned memory of the host.
        cuMemFreeHost(p: *mut c_void) 2000;
        /// Pins memory of the caller's.
        cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: u32) 6050;
        /// Lets it go.
        cuMemHostUnregister(p: *mut c_void) 4000;
        /// The device's address of pinned memory.
        cuMemHostGetDevicePointer_v2(pdptr: *mut CUdeviceptr, p: *mut c_void, flags: u32) 3020;
        /// The flags that pinned memory was allocated with.
        cuMemHostGetFlags(p_flags: *mut u32, p: *mut c_void) 2030;
        /// Allocates memory that goes where it is used.
        cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: u32) 6000;
        /// One attribute of an address.
        cuPointerGetAttribute(data: *mut c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr) 4000;
        /// Several attributes of an address; what does not apply is zero, and no error.
        cuPointerGetAttributes(num_attributes: u32, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, ptr: CUdeviceptr) 7000;
        // Copies
        /// Copies between any two addresses.
        cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize) 4000;
        /// Copies from host to device.
        cuMemcpyHtoD_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize) 3020;
        /// Copies from device to host.
        cuMemcpyDtoH_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize) 3020;
        /// Copies from device to device. Does not wait for the end.
        cuMemcpyDtoD_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize) 3020;
        /// Copies from host to device in a stream; a pageable source is read before it returns.
        cuMemcpyHtoDAsync_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, h_stream: CUstream) 3020;
        /// Copies from device to host in a stream; to pageable memory it returns at the end.
        cuMemcpyDtoHAsync_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream) 3020;
        /// Copies from device to device in a stream.
        cuMemcpyDtoDAsync_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream) 3020;
        /// Copies between contexts in a stream.
        cuMemcpyPeerAsync(dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize, h_stream: CUstream) 4000;
        /// Copies rows in a stream.
        cuMemcpy2DAsync_v2(p_copy: *const CUDA_MEMCPY2D, h_stream: CUstream) 3020;
        /// Copies planes of rows between contexts in a stream.
        cuMemcpy3DPeerAsync(p_copy: *const CUDA_MEMCPY3D_PEER, h_stream: CUstream) 4000;
        /// Many copies at once, in any order among themselves; says which one is wrong.
        cuMemcpyBatchAsync(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, fail_idx: *mut usize, h_stream: CUstream) 12080;
        /// The same since CUDA 13, which does not say which one.
        cuMemcpyBatchAsync_v2(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, h_stream: CUstream) 13000;
        /// Sets bytes.
        cuMemsetD8_v2(dst_device: CUdeviceptr, uc: u8, n: usize) 3020;
        /// Sets bytes in a stream.
        cuMemsetD8Async(dst_device: CUdeviceptr, uc: u8, n: usize, h_stream: CUstream) 3020;
        // Streams and events
        /// Makes a stream.
        cuStreamCreate(ph_stream: *mut CUstream, flags: u32) 2000;
        /// Makes a stream of a priority, cut to the range.
        cuStreamCreateWithPriority(ph_stream: *mut CUstream, flags: u32, priority: i32) 5050;
        /// Ends a stream once its work is done; does not wait for that.
        cuStreamDestroy_v2(h_stream: CUstream) 4000;
        /// Whether a stream is done: CUDA_ERROR_NOT_READY if it is not.
        cuStreamQuery(h_stream: CUstream) 2000;
        /// Waits until a stream is done.
        cuStreamSynchronize(h_stream: CUstream) 2000;
        /// Makes a stream wait for the last record of an event.
        cuStreamWaitEvent(h_stream: CUstream, h_event: CUevent, flags: u32) 3020;
        /// Calls a function once earlier work is done, also if that failed; later work waits for it.
        cuStreamAddCallback(h_stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: u32) 5000;
        /// Calls a function once earlier work is done, unless that failed; later work waits for it.
        cuLaunchHostFunc(h_stream: CUstream, function: CUhostFn, user_data: *mut c_void) 10000;
        /// A stream's priority.
        cuStreamGetPriority(h_stream: CUstream, priority: *mut i32) 5050;
        /// A stream's flags.
        cuStreamGetFlags(h_stream: CUstream, flags: *mut u32) 5050;
        /// A stream's context.
        cuStreamGetCtx(h_stream: CUstream, pctx: *mut CUcontext) 9020;
        /// A number that no other stream of the process has had.
        cuStreamGetId(h_stream: CUstream, stream_id: *mut u64) 12000;
        /// Whether a stream is being recorded into a graph.
        cuStreamIsCapturing(h_stream: CUstream, capture_status: *mut CUstreamCaptureStatus) 10000;
        /// Records what a stream is given from now on into a graph, in place of doing it.
        cuStreamBeginCapture_v2(h_stream: CUstream, mode: CUstreamCaptureMode) 10010;
        /// Ends that; the graph is the caller's.
        cuStreamEndCapture(h_stream: CUstream, ph_graph: *mut CUgraph) 10000;
        /// Swaps which calls captures forbid this thread.
        cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) 10010;
        /// Keeps managed memory to one stream, or to the host.
        cuStreamAttachMemAsync(h_stream: CUstream, dptr: CUdeviceptr, length: usize, flags: u32) 6000;
        /// Makes an event.
        cuEventCreate(ph_event: *mut CUevent, flags: u32) 2000;
        /// Puts an event after all that a stream has so far.
        cuEventRecord(h_event: CUevent, h_stream: CUstream) 2000;
        /// Whether an event has come to pass: CUDA_ERROR_NOT_READY if it has not.
        cuEventQuery(h_event: CUevent) 2000;
        /// Waits until an event has come to pass.
        cuEventSynchronize(h_event: CUevent) 2000;
        /// Ends an event; does not wait for it.
        cuEventDestroy_v2(h_event: CUevent) 4000;
        /// Milliseconds between two events, to half a microsecond.
        cuEventElapsedTime(p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent) 2000;
        /// The same; since CUDA 12.8 of events still under way it says so.
        cuEventElapsedTime_v2(p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent) 12080;
        // Between processes
        /// Names an allocation for other processes.
        cuIpcGetMemHandle(p_handle: *mut CUipcMemHandle, dptr: CUdeviceptr) 4010;
        /// Opens another process's allocation.
        cuIpcOpenMemHandle_v2(pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32) 11000;
        /// Closes it.
        cuIpcCloseMemHandle(dptr: CUdeviceptr) 4010;
        /// Names an event for other processes.
        cuIpcGetEventHandle(p_handle: *mut CUipcEventHandle, event: CUevent) 4010;
        /// Opens another process's event.
        cuIpcOpenEventHandle(ph_event: *mut CUevent, handle: CUipcEventHandle) 4010;
        // Managed memory
        /// Moves managed memory to a device, or to the host with CU_DEVICE_CPU.
        cuMemPrefetchAsync(dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, h_stream: CUstream) 8000;
        /// The same to any place, since CUDA 12.2.
        cuMemPrefetchAsync_v2(dev_ptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32, h_stream: CUstream) 12020;
        /// Says how managed memory will be used.
        cuMemAdvise(dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice) 8000;
        /// The same of any place, since CUDA 12.2.
        cuMemAdvise_v2(dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation) 12020;
        /// The hints for a range of managed memory.
        cuMemRangeGetAttribute(data: *mut c_void, data_size: usize, attribute: CUmem_range_attribute, dev_ptr: CUdeviceptr, count: usize) 8000;
        // Memory in stream order
        /// Allocates from the device's pool in stream order.
        cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream) 11020;
        /// Frees in stream order.
        cuMemFreeAsync(dptr: CUdeviceptr, h_stream: CUstream) 11020;
        /// Allocates from a pool in stream order.
        cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream) 11020;
        /// Makes a pool.
        cuMemPoolCreate(pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps) 11020;
        /// Ends a pool; its allocations stay until they are freed.
        cuMemPoolDestroy(pool: CUmemoryPool) 11020;
        /// Gives memory back that a pool does not use.
        cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize) 11020;
        /// Sets an attribute of a pool.
        cuMemPoolSetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void) 11020;
        /// One attribute of a pool.
        cuMemPoolGetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void) 11020;
        /// Lets devices reach a pool's memory.
        cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) 11020;
        /// Gives a pool out to other processes.
        cuMemPoolExportToShareableHandle(handle_out: *mut c_void, pool: CUmemoryPool, handle_type: CUmemAllocationHandleType, flags: u64) 11020;
        /// Takes in a pool of another process.
        cuMemPoolImportFromShareableHandle(pool_out: *mut CUmemoryPool, handle: *mut c_void, handle_type: CUmemAllocationHandleType, flags: u64) 11020;
        /// Names an allocation of a pool that was given out.
        cuMemPoolExportPointer(share_data_out: *mut CUmemPoolPtrExportData, ptr: CUdeviceptr) 11020;
        /// The address here of an allocation of a pool that was taken in.
        cuMemPoolImportPointer(ptr_out: *mut CUdeviceptr, pool: CUmemoryPool, share_data: *mut CUmemPoolPtrExportData) 11020;
        // Addresses and memory apart
        /// Reserves addresses.
        cuMemAddressReserve(ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: u64) 10020;
        /// Gives addresses back.
        cuMemAddressFree(ptr: CUdeviceptr, size: usize) 10020;
        /// Allocates memory without addresses.
        cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: u64) 10020;
        /// Lets memory go once nothing maps it.
        cuMemRelease(handle: CUmemGenericAllocationHandle) 10020;
        /// Maps memory at reserved addresses; no device may use them yet.
        cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64) 10020;
        /// Takes it away again.
        cuMemUnmap(ptr: CUdeviceptr, size: usize) 10020;
        /// Says which devices may use mapped addresses.
        cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) 10020;
        /// A device's access to mapped addresses.
        cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr) 10020;
        /// Gives memory out to other processes.
        cuMemExportToShareableHandle(shareable_handle: *mut c_void, handle: CUmemGenericAllocationHandle, handle_type: CUmemAllocationHandleType, flags: u64) 10020;
        /// Takes memory of another process in. A file descriptor stays the caller's.
        cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, os_handle: *mut c_void, sh_handle_type: CUmemAllocationHandleType) 10020;
        /// The granularity of sizes and addresses, in bytes.
        cuMemGetAllocationGranularity(granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags) 10020;
        /// The properties with which a piece of memory was made.
        cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) 10020;
        /// The memory at an address, held once more.
        cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) 11000;
        /// Gives a range of addresses out as a dma-buf.
        cuMemGetHandleForAddressRange(handle: *mut c_void, dptr: CUdeviceptr, size: usize, handle_type: CUmemRangeHandleType, flags: u64) 11070;
        // Other interfaces
        /// Takes in memory of another interface.
        cuImportExternalMemory(ext_mem_out: *mut CUexternalMemory, mem_handle_desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC) 10000;
        /// Gives a range of it addresses, which are freed with cuMemFree_v2.
        cuExternalMemoryGetMappedBuffer(dev_ptr: *mut CUdeviceptr, ext_mem: CUexternalMemory, buffer_desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC) 10000;
        /// Lets it go.
        cuDestroyExternalMemory(ext_mem: CUexternalMemory) 10000;
        /// Takes in a semaphore of another interface.
        cuImportExternalSemaphore(ext_sem_out: *mut CUexternalSemaphore, sem_handle_desc: *const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC) 10000;
        /// Signals semaphores in a stream.
        cuSignalExternalSemaphoresAsync(ext_sem_array: *const CUexternalSemaphore, params_array: *const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, num_ext_sems: u32, stream: CUstream) 10000;
        /// Makes a stream wait for semaphores.
        cuWaitExternalSemaphoresAsync(ext_sem_array: *const CUexternalSemaphore, params_array: *const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, num_ext_sems: u32, stream: CUstream) 10000;
        /// Lets a semaphore go.
        cuDestroyExternalSemaphore(ext_sem: CUexternalSemaphore) 10000;
        }
    };
}
