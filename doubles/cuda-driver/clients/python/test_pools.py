"""Memory in stream order. CUDA Driver API: Stream Ordered Memory Allocator."""

import os

from client import Client, CUresult, cuda, done, download, failure, from_opaque, opaque, pattern, upload

POOL = cuda.CUmemPool_attribute
DESCRIPTOR = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def wishes(device, handles=None):
    props = cuda.CUmemPoolProps()
    props.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    props.location.id = device
    if handles is not None:
        props.handleTypes = handles
    return props


def location(device):
    place = cuda.CUmemLocation()
    place.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.id = device
    return place


def access(device, flags):
    description = cuda.CUmemAccessDesc()
    description.location = location(device)
    description.flags = flags
    return description


class Pools(Client):
    def amount(self, pool, attribute):
        return int(done(cuda.cuMemPoolGetAttribute(pool, attribute)))

    def test_a_device_begins_with_a_pool_that_stays(self):
        pool = done(cuda.cuDeviceGetDefaultMemPool(0))
        self.assertEqual(int(done(cuda.cuDeviceGetMemPool(0))), int(pool))
        self.assertEqual(failure(cuda.cuMemPoolDestroy(pool)), CUresult.CUDA_ERROR_INVALID_VALUE)
        other = done(cuda.cuMemPoolCreate(wishes(0)))
        done(cuda.cuDeviceSetMemPool(0, other))
        self.assertEqual(int(done(cuda.cuDeviceGetMemPool(0))), int(other))
        # The default is back when the current one ends.
        done(cuda.cuMemPoolDestroy(other))
        self.assertEqual(int(done(cuda.cuDeviceGetMemPool(0))), int(pool))

    def test_memory_is_had_used_and_given_back(self):
        stream = self.stream()
        pool = done(cuda.cuDeviceGetMemPool(0))
        before = self.amount(pool, POOL.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        address = done(cuda.cuMemAllocAsync(1 << 16, stream))
        done(cuda.cuMemsetD8Async(address, 3, 1 << 16, stream))
        done(cuda.cuStreamSynchronize(stream))
        self.assertEqual(download(address, 1 << 16), b"\3" * (1 << 16))
        self.assertGreaterEqual(self.amount(pool, POOL.CU_MEMPOOL_ATTR_USED_MEM_CURRENT), before + (1 << 16))
        attribute = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        self.assertEqual(int(done(cuda.cuPointerGetAttribute(attribute, address))), int(pool))
        done(cuda.cuMemFreeAsync(address, stream))
        done(cuda.cuStreamSynchronize(stream))
        self.assertEqual(self.amount(pool, POOL.CU_MEMPOOL_ATTR_USED_MEM_CURRENT), before)
        self.assertEqual(failure(cuda.cuMemFreeAsync(address, stream)), CUresult.CUDA_ERROR_INVALID_VALUE)

    def test_a_pool_keeps_what_it_is_told_to_keep(self):
        stream = self.stream()
        pool = done(cuda.cuMemPoolCreate(wishes(0)))
        threshold = POOL.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        done(cuda.cuMemPoolSetAttribute(pool, threshold, cuda.cuuint64_t(1 << 24)))
        self.assertEqual(self.amount(pool, threshold), 1 << 24)
        address = done(cuda.cuMemAllocFromPoolAsync(1 << 20, pool, stream))
        done(cuda.cuMemFreeAsync(address, stream))
        done(cuda.cuStreamSynchronize(stream))
        reserved = POOL.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        self.assertGreaterEqual(self.amount(pool, reserved), 1 << 20)
        done(cuda.cuMemPoolTrimTo(pool, 0))
        self.assertEqual(self.amount(pool, reserved), 0)
        done(cuda.cuMemPoolDestroy(pool))

    def test_another_device_is_let_in(self):
        both = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        none = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
        pool = done(cuda.cuMemPoolCreate(wishes(0)))
        done(cuda.cuMemPoolSetAccess(pool, [access(1, both)], 1))
        # Its own device cannot be shut out.
        failure(cuda.cuMemPoolSetAccess(pool, [access(0, none)], 1))
        done(cuda.cuMemPoolDestroy(pool))

    def test_another_process_opens_a_pool_and_memory_of_it(self):
        data, descriptor = os.environ.get("CLIENT_POINTER"), os.environ.get("CLIENT_POOL")
        if data is not None:
            self.assertTrue(self.in_own_process())
            pool = done(cuda.cuMemPoolImportFromShareableHandle(int(descriptor), DESCRIPTOR, 0))
            exported = from_opaque(cuda.CUmemPoolPtrExportData(), data)
            address = done(cuda.cuMemPoolImportPointer(pool, exported))
            self.assertEqual(download(address, 4096), pattern(4096, 1))
            upload(address, pattern(4096, 2))
            done(cuda.cuMemFree(address))
            done(cuda.cuMemPoolDestroy(pool))
            return
        stream = self.stream()
        pool = done(cuda.cuMemPoolCreate(wishes(0, DESCRIPTOR)))
        address = done(cuda.cuMemAllocFromPoolAsync(4096, pool, stream))
        done(cuda.cuStreamSynchronize(stream))
        upload(address, pattern(4096, 1))
        descriptor = int(done(cuda.cuMemPoolExportToShareableHandle(pool, DESCRIPTOR, 0)))
        exported = done(cuda.cuMemPoolExportPointer(address))
        variables = {"CLIENT_POINTER": opaque(exported), "CLIENT_POOL": str(descriptor)}
        os.set_inheritable(descriptor, True)
        self.assertFalse(self.in_own_process(variables=variables, descriptors=(descriptor,)))
        self.assertEqual(download(address, 4096), pattern(4096, 2))
        os.close(descriptor)
        done(cuda.cuMemFreeAsync(address, stream))
        done(cuda.cuStreamSynchronize(stream))
        done(cuda.cuMemPoolDestroy(pool))

    def test_a_pool_that_is_not_to_be_given_out_is_not(self):
        pool = done(cuda.cuMemPoolCreate(wishes(0)))
        failure(cuda.cuMemPoolExportToShareableHandle(pool, DESCRIPTOR, 0))
        done(cuda.cuMemPoolDestroy(pool))
