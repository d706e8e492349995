"""Memory, copies in one and two dimensions, and what addresses are. CUDA Driver API: Memory Management,
Unified Addressing."""

from client import Client, CUresult, Host, at, cuda, done, download, failure, pattern, put, upload

HOST = cuda.CUmemorytype.CU_MEMORYTYPE_HOST
DEVICE = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
ATTRIBUTE = cuda.CUpointer_attribute
INVALID = CUresult.CUDA_ERROR_INVALID_VALUE


class Memory(Client):
    def test_bytes_go_to_a_device_within_it_and_back(self):
        for length in (1, 255, 4096, (1 << 20) + 3):
            first, second = self.allocate(length), self.allocate(length)
            upload(first, pattern(length, 1))
            done(cuda.cuMemcpyDtoD(second, first, length))
            self.assertEqual(download(second, length), pattern(length, 1))

    def test_any_two_addresses_are_copied(self):
        address = self.allocate(4096)
        source, destination = Host(pattern(4096, 2)), Host(bytes(4096))
        done(cuda.cuMemcpy(address, source.address, 4096))
        done(cuda.cuMemcpy(destination.address, int(address) + 96, 4000))
        self.assertEqual(bytes(destination), pattern(4096, 2)[96:] + bytes(96))

    def test_memory_is_set_in_bytes(self):
        address, stream = self.allocate(4096), self.stream()
        done(cuda.cuMemsetD8(address, 7, 4096))
        done(cuda.cuMemsetD8Async(int(address) + 64, 9, 3, stream))
        done(cuda.cuStreamSynchronize(stream))
        expected = bytearray(b"\7" * 4096)
        expected[64:67] = b"\x09" * 3
        self.assertEqual(download(address, 4096), bytes(expected))

    def test_what_cannot_be_is_refused(self):
        self.assertEqual(failure(cuda.cuMemAlloc(0)), INVALID)
        self.assertEqual(failure(cuda.cuMemAlloc(1 << 40)), CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        address, host = done(cuda.cuMemAlloc(1000)), Host(bytes(2000))
        self.assertEqual(failure(cuda.cuMemFree(int(address) + 1)), INVALID)
        self.assertEqual(failure(cuda.cuMemcpyDtoH(host.address, address, 2000)), INVALID)
        done(cuda.cuMemFree(address))
        self.assertEqual(failure(cuda.cuMemFree(address)), INVALID)
        self.assertEqual(failure(cuda.cuMemcpyDtoH(host.address, address, 8)), INVALID)

    def test_free_memory_is_told(self):
        before, total = done(cuda.cuMemGetInfo())
        self.assertLessEqual(before, total)
        address = done(cuda.cuMemAlloc(32 << 20))
        self.assertGreaterEqual(before - done(cuda.cuMemGetInfo())[0], 32 << 20)
        base, size = done(cuda.cuMemGetAddressRange(int(address) + 77))
        self.assertEqual((int(base), size), (int(address), 32 << 20))
        done(cuda.cuMemFree(address))
        self.assertEqual(done(cuda.cuMemGetInfo())[0], before)

    def test_pinned_memory_is_allocated_and_freed_once(self):
        place = done(cuda.cuMemHostAlloc(8192, cuda.CU_MEMHOSTALLOC_PORTABLE))
        put(place, pattern(8192, 3))
        address, stream = self.allocate(8192), self.stream()
        done(cuda.cuMemcpyHtoDAsync(address, place, 8192, stream))
        done(cuda.cuStreamSynchronize(stream))
        put(place, bytes(8192))
        done(cuda.cuMemcpyDtoHAsync(place, address, 8192, stream))
        done(cuda.cuStreamSynchronize(stream))
        self.assertEqual(at(place, 8192), pattern(8192, 3))
        self.assertTrue(done(cuda.cuMemHostGetFlags(place)) & cuda.CU_MEMHOSTALLOC_PORTABLE)
        self.assertEqual(done(cuda.cuPointerGetAttribute(ATTRIBUTE.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, int(place))), HOST)
        done(cuda.cuMemFreeHost(place))
        self.assertEqual(failure(cuda.cuMemFreeHost(place)), INVALID)

    def test_memory_of_the_caller_is_registered_once(self):
        host = Host(pattern(5 * 4096, 4))
        # Whole pages within it.
        start = (host.address + 4095) // 4096 * 4096
        flags = cuda.CU_MEMHOSTREGISTER_DEVICEMAP
        done(cuda.cuMemHostRegister(start, 4 * 4096, flags))
        again = cuda.cuMemHostRegister(start, 4 * 4096, flags)
        self.assertEqual(failure(again), CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        device = done(cuda.cuMemHostGetDevicePointer(start, 0))
        host_of = done(cuda.cuPointerGetAttribute(ATTRIBUTE.CU_POINTER_ATTRIBUTE_HOST_POINTER, int(device)))
        self.assertEqual(int(host_of), start)
        done(cuda.cuMemHostUnregister(start))
        gone = CUresult.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
        self.assertEqual(failure(cuda.cuMemHostUnregister(start)), gone)


class Addresses(Client):
    def test_several_attributes_at_once_tell_device_memory(self):
        self.use(1)
        address = self.allocate(4096)
        asked = [
            ATTRIBUTE.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            ATTRIBUTE.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            ATTRIBUTE.CU_POINTER_ATTRIBUTE_IS_MANAGED,
            ATTRIBUTE.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            ATTRIBUTE.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        ]
        told = done(cuda.cuPointerGetAttributes(len(asked), asked, int(address) + 9))
        self.assertEqual([int(value) for value in told], [int(DEVICE), 1, 0, 4096, int(address)])

    def test_pageable_memory_is_nothing_and_no_error(self):
        host = Host(bytes(16))
        asked = [ATTRIBUTE.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ATTRIBUTE.CU_POINTER_ATTRIBUTE_IS_MANAGED]
        told = done(cuda.cuPointerGetAttributes(len(asked), asked, host.address))
        self.assertEqual([int(value) for value in told], [0, 0])
        one = cuda.cuPointerGetAttribute(ATTRIBUTE.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host.address)
        self.assertEqual(failure(one), INVALID)

    def test_an_allocation_has_a_number_of_its_own(self):
        ask = lambda address: done(cuda.cuPointerGetAttribute(ATTRIBUTE.CU_POINTER_ATTRIBUTE_BUFFER_ID, address))
        first, second = self.allocate(512), self.allocate(512)
        self.assertEqual(ask(first), ask(int(first) + 100))
        self.assertNotEqual(ask(first), ask(second))


class Shapes(Client):
    def test_rows_of_a_pitch_are_copied_both_ways(self):
        width, height, pitch = 100, 20, 512
        address, stream = self.allocate(pitch * height), self.stream()
        source = Host(pattern(width * height, 5))
        copy = cuda.CUDA_MEMCPY2D()
        copy.srcMemoryType, copy.srcHost, copy.srcPitch = HOST, source.address, width
        copy.dstMemoryType, copy.dstDevice, copy.dstPitch = DEVICE, address, pitch
        copy.WidthInBytes, copy.Height = width, height
        done(cuda.cuMemcpy2DAsync(copy, stream))
        done(cuda.cuStreamSynchronize(stream))
        whole = download(address, pitch * height)
        for row in range(height):
            sent = pattern(width * height, 5)[row * width : (row + 1) * width]
            self.assertEqual(whole[row * pitch : row * pitch + width], sent)
        # A window of it.
        destination = Host(bytes(30 * 5))
        window = cuda.CUDA_MEMCPY2D()
        window.srcMemoryType, window.srcDevice, window.srcPitch = DEVICE, address, pitch
        window.srcXInBytes, window.srcY = 10, 3
        window.dstMemoryType, window.dstHost, window.dstPitch = HOST, destination.address, 30
        window.WidthInBytes, window.Height = 30, 5
        done(cuda.cuMemcpy2DAsync(window, stream))
        done(cuda.cuStreamSynchronize(stream))
        sent = pattern(width * height, 5)
        rows = (sent[row * width + 10 : row * width + 40] for row in range(3, 8))
        self.assertEqual(bytes(destination), b"".join(rows))
        window.dstPitch = 29
        self.assertEqual(failure(cuda.cuMemcpy2DAsync(window, stream)), INVALID)

    def test_copies_of_a_batch_are_all_made(self):
        sources = [Host(pattern(1000 + index, index)) for index in range(8)]
        addresses = [self.allocate(1000 + index) for index in range(8)]
        stream = self.stream()
        attributes = cuda.CUmemcpyAttributes()
        attributes.srcAccessOrder = cuda.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        done(
            cuda.cuMemcpyBatchAsync(
                addresses,
                [cuda.CUdeviceptr(source.address) for source in sources],
                [1000 + index for index in range(8)],
                8,
                [attributes],
                [0],
                1,
                stream,
            )
        )
        done(cuda.cuStreamSynchronize(stream))
        for index, address in enumerate(addresses):
            self.assertEqual(download(address, 1000 + index), pattern(1000 + index, index))
