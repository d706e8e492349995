"""Addresses and memory apart, and memory of other processes and interfaces. CUDA Driver API: Virtual Memory
Management; Memory Management, cuIpcGetMemHandle; External Resource Interoperability."""

import os

from client import Client, CUresult, cuda, done, download, failure, from_opaque, opaque, pattern, upload

DESCRIPTOR = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
MINIMUM = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
BOTH = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
INVALID = CUresult.CUDA_ERROR_INVALID_VALUE


def wishes():
    prop = cuda.CUmemAllocationProp()
    prop.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = 0
    prop.requestedHandleTypes = DESCRIPTOR
    return prop


def access():
    description = cuda.CUmemAccessDesc()
    description.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    description.location.id = 0
    description.flags = BOTH
    return description


class Apart(Client):
    def setUp(self):
        super().setUp()
        self.grain = done(cuda.cuMemGetAllocationGranularity(wishes(), MINIMUM))

    def map(self, handle):
        """Memory at addresses of its own, which device 0 may use."""
        address = done(cuda.cuMemAddressReserve(self.grain, 0, 0, 0))
        done(cuda.cuMemMap(address, self.grain, 0, handle, 0))
        done(cuda.cuMemSetAccess(address, self.grain, [access()], 1))
        return address

    def unmap(self, address):
        done(cuda.cuMemUnmap(address, self.grain))
        done(cuda.cuMemAddressFree(address, self.grain))

    def test_one_memory_is_seen_at_two_addresses(self):
        handle = done(cuda.cuMemCreate(self.grain, wishes(), 0))
        first, second = self.map(handle), self.map(handle)
        upload(first, pattern(5000, 1))
        self.assertEqual(download(second, 5000), pattern(5000, 1))
        self.assertEqual(done(cuda.cuMemGetAccess(access().location, first)), int(BOTH))
        told = done(cuda.cuMemGetAllocationPropertiesFromHandle(handle))
        self.assertEqual(told.location.id, 0)
        self.assertEqual(told.requestedHandleTypes, DESCRIPTOR)
        held = done(cuda.cuMemRetainAllocationHandle(int(first)))
        self.assertEqual(int(held), int(handle))
        # Held twice, and mapped twice: it stays until the last of these is gone.
        done(cuda.cuMemRelease(held))
        done(cuda.cuMemRelease(handle))
        self.unmap(first)
        self.assertEqual(download(second, 5000), pattern(5000, 1))
        self.unmap(second)

    def test_mapped_memory_is_no_ones_until_access_is_given(self):
        handle = done(cuda.cuMemCreate(self.grain, wishes(), 0))
        address = done(cuda.cuMemAddressReserve(self.grain, 0, 0, 0))
        failure(cuda.cuMemsetD8(address, 0, 16))
        done(cuda.cuMemMap(address, self.grain, 0, handle, 0))
        failure(cuda.cuMemsetD8(address, 0, 16))
        done(cuda.cuMemSetAccess(address, self.grain, [access()], 1))
        done(cuda.cuMemsetD8(address, 0, 16))
        self.assertEqual(failure(cuda.cuMemMap(address, self.grain, 0, handle, 0)), INVALID)
        self.unmap(address)
        done(cuda.cuMemRelease(handle))

    def test_sizes_are_of_the_grain(self):
        self.assertEqual(failure(cuda.cuMemCreate(self.grain + 1, wishes(), 0)), INVALID)
        self.assertEqual(failure(cuda.cuMemAddressReserve(self.grain + 1, 0, 0, 0)), INVALID)
        self.assertEqual(failure(cuda.cuMemRelease(4711)), INVALID)

    def test_another_process_opens_memory_by_descriptor(self):
        descriptor = os.environ.get("CLIENT_DESCRIPTOR")
        if descriptor is not None:
            self.assertTrue(self.in_own_process())
            handle = done(cuda.cuMemImportFromShareableHandle(int(descriptor), DESCRIPTOR))
            address = self.map(handle)
            self.assertEqual(download(address, 4096), pattern(4096, 3))
            upload(address, pattern(4096, 4))
            self.unmap(address)
            done(cuda.cuMemRelease(handle))
            return
        handle = done(cuda.cuMemCreate(self.grain, wishes(), 0))
        address = self.map(handle)
        upload(address, pattern(4096, 3))
        descriptor = int(done(cuda.cuMemExportToShareableHandle(handle, DESCRIPTOR, 0)))
        os.set_inheritable(descriptor, True)
        variables = {"CLIENT_DESCRIPTOR": str(descriptor)}
        self.assertFalse(self.in_own_process(variables=variables, descriptors=(descriptor,)))
        self.assertEqual(download(address, 4096), pattern(4096, 4))
        os.close(descriptor)
        self.unmap(address)
        done(cuda.cuMemRelease(handle))


class BetweenProcesses(Client):
    def test_another_process_opens_memory_and_an_event(self):
        lazy = int(cuda.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        memory, event = os.environ.get("CLIENT_MEMORY"), os.environ.get("CLIENT_EVENT")
        if memory is not None:
            self.assertTrue(self.in_own_process())
            handle = from_opaque(cuda.CUipcMemHandle(), memory)
            opened = done(cuda.cuIpcOpenEventHandle(from_opaque(cuda.CUipcEventHandle(), event)))
            done(cuda.cuEventSynchronize(opened))
            address = done(cuda.cuIpcOpenMemHandle(handle, lazy))
            self.assertEqual(download(address, 4096), pattern(4096, 5))
            upload(address, pattern(4096, 6))
            done(cuda.cuIpcCloseMemHandle(address))
            self.assertEqual(failure(cuda.cuIpcCloseMemHandle(address)), INVALID)
            done(cuda.cuEventDestroy(opened))
            return
        address = self.allocate(4096)
        upload(address, pattern(4096, 5))
        flags = cuda.CUevent_flags
        event = done(cuda.cuEventCreate(flags.CU_EVENT_DISABLE_TIMING | flags.CU_EVENT_INTERPROCESS))
        done(cuda.cuEventRecord(event, 0))
        variables = {
            "CLIENT_MEMORY": opaque(done(cuda.cuIpcGetMemHandle(address))),
            "CLIENT_EVENT": opaque(done(cuda.cuIpcGetEventHandle(event))),
        }
        self.assertFalse(self.in_own_process(variables=variables))
        self.assertEqual(download(address, 4096), pattern(4096, 6))
        done(cuda.cuEventDestroy(event))

    def test_an_event_with_times_is_not_shared(self):
        flags = cuda.CUevent_flags
        event = done(cuda.cuEventCreate(flags.CU_EVENT_DEFAULT))
        failure(cuda.cuIpcGetEventHandle(event))
        done(cuda.cuEventDestroy(event))
        # Both flags go together.
        self.assertEqual(failure(cuda.cuEventCreate(flags.CU_EVENT_INTERPROCESS)), INVALID)


class External(Client):
    def test_memory_by_descriptor_is_the_same_on_both_sides(self):
        length = 64 << 10
        descriptor = os.memfd_create("external")
        os.pwrite(descriptor, pattern(length, 7), 0)
        wanted = cuda.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
        wanted.type = cuda.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
        # It is the driver's from here on.
        wanted.handle.fd = os.dup(descriptor)
        wanted.size = length
        memory = done(cuda.cuImportExternalMemory(wanted))
        part = cuda.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
        part.offset, part.size = 4096, 8192
        address = done(cuda.cuExternalMemoryGetMappedBuffer(memory, part))
        self.assertEqual(download(address, 8192), pattern(length, 7)[4096:12288])
        upload(address, pattern(100, 8))
        self.assertEqual(os.pread(descriptor, 100, 4096), pattern(100, 8))
        part.offset = length - 4096
        self.assertEqual(failure(cuda.cuExternalMemoryGetMappedBuffer(memory, part)), INVALID)
        done(cuda.cuMemFree(address))
        done(cuda.cuDestroyExternalMemory(memory))
        os.close(descriptor)

    def test_what_is_no_memory_is_not_taken(self):
        wanted = cuda.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
        wanted.type = cuda.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
        wanted.handle.fd = -1
        wanted.size = 4096
        failure(cuda.cuImportExternalMemory(wanted))
