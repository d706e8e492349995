"""Managed memory. CUDA Driver API: Memory Management, cuMemAllocManaged; Unified Addressing."""

import ctypes

from client import Client, CUresult, at, cuda, done, download, failure, pattern, put

GLOBAL = cuda.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
RANGE = cuda.CUmem_range_attribute
ADVICE = cuda.CUmem_advise
LENGTH = 1 << 20


def place(kind, number=0):
    location = cuda.CUmemLocation()
    location.type = kind
    location.id = number
    return location


DEVICE = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
HOST = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST


class Managed(Client):
    def setUp(self):
        super().setUp()
        self.address = done(cuda.cuMemAllocManaged(LENGTH, GLOBAL))

    def tearDown(self):
        done(cuda.cuMemFree(self.address))
        super().tearDown()

    def told(self, attribute):
        return ctypes.c_int(int(done(cuda.cuMemRangeGetAttribute(4, attribute, self.address, LENGTH)))).value

    def test_host_and_device_write_the_same_bytes(self):
        put(self.address, pattern(LENGTH, 1))
        self.assertEqual(download(self.address, LENGTH), pattern(LENGTH, 1))
        done(cuda.cuMemsetD8(self.address, 5, 100))
        done(cuda.cuCtxSynchronize())
        self.assertEqual(at(self.address, LENGTH), b"\5" * 100 + pattern(LENGTH, 1)[100:])
        attribute = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
        self.assertTrue(done(cuda.cuPointerGetAttribute(attribute, self.address)))

    def test_it_is_moved_in_advance(self):
        stream = self.stream()
        put(self.address, pattern(LENGTH, 2))
        last = RANGE.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION
        for location, told in [(place(DEVICE, 1), 1), (place(HOST), -1)]:
            done(cuda.cuMemPrefetchAsync(self.address, LENGTH, location, 0, stream))
            done(cuda.cuStreamSynchronize(stream))
            self.assertEqual(self.told(last), told)
            self.assertEqual(at(self.address, LENGTH), pattern(LENGTH, 2))
        nowhere = cuda.cuMemPrefetchAsync(self.address, LENGTH, place(DEVICE, 7), 0, stream)
        self.assertEqual(failure(nowhere), CUresult.CUDA_ERROR_INVALID_DEVICE)

    def test_advice_is_remembered_and_taken_back(self):
        mostly = RANGE.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY
        preferred = RANGE.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION
        done(cuda.cuMemAdvise(self.address, LENGTH, ADVICE.CU_MEM_ADVISE_SET_READ_MOSTLY, place(DEVICE)))
        self.assertEqual(self.told(mostly), 1)
        done(cuda.cuMemAdvise(self.address, LENGTH, ADVICE.CU_MEM_ADVISE_UNSET_READ_MOSTLY, place(DEVICE)))
        self.assertEqual(self.told(mostly), 0)
        advice = ADVICE.CU_MEM_ADVISE_SET_PREFERRED_LOCATION
        done(cuda.cuMemAdvise(self.address, LENGTH, advice, place(DEVICE, 1)))
        self.assertEqual(self.told(preferred), 1)
        # CU_DEVICE_INVALID where nothing is preferred.
        done(cuda.cuMemAdvise(self.address, LENGTH, ADVICE.CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, place(DEVICE, 1)))
        self.assertEqual(self.told(preferred), -2)

    def test_what_is_not_managed_is_not_advised(self):
        address = self.allocate(4096)
        advised = cuda.cuMemAdvise(address, 4096, ADVICE.CU_MEM_ADVISE_SET_READ_MOSTLY, place(DEVICE))
        self.assertEqual(failure(advised), CUresult.CUDA_ERROR_INVALID_VALUE)

    def test_it_is_attached_to_a_stream(self):
        stream = self.stream()
        single = int(cuda.CUmemAttach_flags.CU_MEM_ATTACH_SINGLE)
        done(cuda.cuStreamAttachMemAsync(stream, self.address, LENGTH, single))
        done(cuda.cuStreamSynchronize(stream))
        nobody = cuda.cuMemAllocManaged(LENGTH, single)
        self.assertEqual(failure(nobody), CUresult.CUDA_ERROR_INVALID_VALUE)
