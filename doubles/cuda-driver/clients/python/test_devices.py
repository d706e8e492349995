"""Starting, devices and contexts. CUDA Driver API: Initialization, Device Management, Context Management,
Primary Context Management, Driver Entry Point Access, Error Handling."""

import unittest

from client import Client, CUresult, control, cuda, done, failure


class Unstarted(unittest.TestCase):
    """Before cuInit, which is why it is another class."""

    in_own_process = Client.in_own_process

    def test_before_init_nothing_but_the_version_is_told(self):
        if not self.in_own_process():
            return
        self.assertGreaterEqual(done(cuda.cuDriverGetVersion()), 13000)
        self.assertEqual(failure(cuda.cuDeviceGetCount()), CUresult.CUDA_ERROR_NOT_INITIALIZED)
        self.assertEqual(failure(cuda.cuMemAlloc(16)), CUresult.CUDA_ERROR_NOT_INITIALIZED)
        self.assertEqual(failure(cuda.cuInit(1)), CUresult.CUDA_ERROR_INVALID_VALUE)
        done(cuda.cuInit(0))
        self.assertEqual(done(cuda.cuDeviceGetCount()), 2)
        self.assertEqual(failure(cuda.cuMemAlloc(16)), CUresult.CUDA_ERROR_INVALID_CONTEXT)


class Devices(Client):
    def test_devices_are_those_of_the_machine(self):
        self.assertEqual(done(cuda.cuDeviceGetCount()), 2)
        name = done(cuda.cuDeviceGetName(100, 1)).split(b"\0")[0]
        self.assertIn(b"RTX 4090", name)
        # Cut to the room that there is, with a zero at its end.
        self.assertEqual(done(cuda.cuDeviceGetName(5, 1)).split(b"\0")[0], name[:4])
        self.assertEqual(done(cuda.cuDeviceTotalMem(1)), 24_000_000_000)
        uuids = [bytes(done(cuda.cuDeviceGetUuid(device)).bytes) for device in (0, 1, 0)]
        self.assertEqual(uuids[0], uuids[2])
        self.assertNotEqual(uuids[0], uuids[1])

    def test_an_ordinal_without_a_device_is_refused(self):
        for ordinal in (2, -1):
            self.assertEqual(failure(cuda.cuDeviceGet(ordinal)), CUresult.CUDA_ERROR_INVALID_DEVICE)

    def test_a_device_is_found_by_its_place_on_the_bus(self):
        for device in (0, 1):
            place = done(cuda.cuDeviceGetPCIBusId(20, device)).split(b"\0")[0]
            self.assertRegex(place, rb"^0000:[0-9a-f]{2}:[0-9a-f]{2}\.0$")

    def test_attributes_say_what_the_double_can_do(self):
        attributes = cuda.CUdevice_attribute
        for attribute, value in [
            (attributes.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
            (attributes.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
            (attributes.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
            (attributes.CU_DEVICE_ATTRIBUTE_INTEGRATED, 0),
        ]:
            self.assertEqual(done(cuda.cuDeviceGetAttribute(attribute, 0)), value, attribute)
        # What is not modelled is never answered with success.
        failure(cuda.cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0))

    def test_contexts_are_pushed_and_popped(self):
        first = done(cuda.cuCtxGetCurrent())
        second = self.use(1)
        self.assertEqual(int(done(cuda.cuCtxGetDevice())), 1)
        done(cuda.cuCtxPushCurrent(first))
        self.assertEqual(int(done(cuda.cuCtxGetDevice())), 0)
        self.assertEqual(int(done(cuda.cuCtxPopCurrent())), int(first))
        self.assertEqual(int(done(cuda.cuCtxGetCurrent())), int(second))
        self.assertNotEqual(done(cuda.cuCtxGetId(first)), done(cuda.cuCtxGetId(second)))
        done(cuda.cuCtxSynchronize())

    def test_the_primary_context_has_flags_and_holders(self):
        self.assertEqual(done(cuda.cuDevicePrimaryCtxGetState(1)), (0, 0))
        self.use(1)
        self.assertEqual(done(cuda.cuDevicePrimaryCtxGetState(1)), (0, 1))

    def test_a_reset_ends_what_the_process_had_of_a_device(self):
        if not self.in_own_process():
            return
        self.use(1)
        done(cuda.cuMemAlloc(4096))
        done(cuda.cuDevicePrimaryCtxReset(1))
        self.assertEqual(done(cuda.cuDevicePrimaryCtxGetState(1))[1], 0)
        self.assertEqual(failure(cuda.cuMemAlloc(16)), CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED)
        self.assertEqual(control("leaks").count("Device memory"), 0)
        self.contexts.clear()

    def test_results_have_names_and_meanings(self):
        error = CUresult.CUDA_ERROR_ECC_UNCORRECTABLE
        self.assertEqual(done(cuda.cuGetErrorName(error)), b"CUDA_ERROR_ECC_UNCORRECTABLE")
        self.assertTrue(done(cuda.cuGetErrorString(error)))

    def test_a_function_that_is_not_modelled_is_not_found(self):
        find = lambda name, version: cuda.cuGetProcAddress(name, version, 0)
        status = cuda.CUdriverProcAddressQueryResult
        address, found = done(find(b"cuMemAlloc", 13000))
        self.assertTrue(address)
        self.assertEqual(found, status.CU_GET_PROC_ADDRESS_SUCCESS)
        for name, version, wanted in [
            (b"cuLaunchKernel", 13000, status.CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
            (b"cuMemcpyBatchAsync", 12000, status.CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
        ]:
            address, found = done(find(name, version))
            self.assertEqual((address, found), (0, wanted), name)

    def test_nothing_is_left_over(self):
        if not self.in_own_process():
            return
        address = done(cuda.cuMemAlloc(1000))
        self.assertIn("1000", control("leaks"))
        done(cuda.cuMemFree(address))
        self.tearDown()
        self.contexts.clear()
        self.assertEqual(control("leaks"), "")
