"""Copies between devices. CUDA Driver API: Peer Context Memory Access, Memory Management."""

from client import Client, CUresult, counter, cuda, done, download, failure, pattern, upload


class Peers(Client):
    def pair(self):
        first = done(cuda.cuCtxGetCurrent())
        here = self.allocate(1 << 16)
        upload(here, pattern(1 << 16, 1))
        second = self.use(1)
        return first, here, second, self.allocate(1 << 16)

    def test_access_is_enabled_once_and_copies_go_straight(self):
        if not self.in_own_process():
            return
        first, here, second, there = self.pair()
        self.assertEqual(done(cuda.cuDeviceCanAccessPeer(1, 0)), 1)
        self.assertEqual(done(cuda.cuDeviceCanAccessPeer(1, 1)), 0)
        attribute = cuda.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
        self.assertEqual(done(cuda.cuDeviceGetP2PAttribute(attribute, 1, 0)), 1)
        self.assertEqual(failure(cuda.cuCtxEnablePeerAccess(first, 1)), CUresult.CUDA_ERROR_INVALID_VALUE)
        done(cuda.cuCtxEnablePeerAccess(first, 0))
        again = cuda.cuCtxEnablePeerAccess(first, 0)
        self.assertEqual(failure(again), CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        own = cuda.cuCtxEnablePeerAccess(second, 0)
        self.assertEqual(failure(own), CUresult.CUDA_ERROR_INVALID_CONTEXT)
        stream = self.stream()
        done(cuda.cuMemcpyPeerAsync(there, second, here, first, 1 << 16, stream))
        done(cuda.cuStreamSynchronize(stream))
        self.assertEqual(download(there, 1 << 16), pattern(1 << 16, 1))
        self.assertEqual((counter("peer-copies-direct"), counter("peer-copies-staged")), (1, 0))
        done(cuda.cuCtxDisablePeerAccess(first))
        again = cuda.cuCtxDisablePeerAccess(first)
        self.assertEqual(failure(again), CUresult.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)

    def test_without_access_the_copy_succeeds_through_the_host(self):
        if not self.in_own_process(machine="no-peer"):
            return
        first, here, second, there = self.pair()
        self.assertEqual(done(cuda.cuDeviceCanAccessPeer(1, 0)), 0)
        enabled = cuda.cuCtxEnablePeerAccess(first, 0)
        self.assertEqual(failure(enabled), CUresult.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
        stream = self.stream()
        done(cuda.cuMemcpyPeerAsync(there, second, here, first, 1 << 16, stream))
        done(cuda.cuStreamSynchronize(stream))
        self.assertEqual(download(there, 1 << 16), pattern(1 << 16, 1))
        self.assertEqual((counter("peer-copies-direct"), counter("peer-copies-staged")), (0, 1))

    def test_planes_of_rows_go_between_contexts(self):
        first, here, second, there = self.pair()
        copy = cuda.CUDA_MEMCPY3D_PEER()
        device = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcMemoryType, copy.srcDevice, copy.srcContext = device, here, first
        copy.dstMemoryType, copy.dstDevice, copy.dstContext = device, there, second
        copy.srcPitch = copy.dstPitch = copy.WidthInBytes = 256
        copy.srcHeight = copy.dstHeight = copy.Height = 16
        copy.Depth = 16
        stream = self.stream()
        done(cuda.cuMemcpy3DPeerAsync(copy, stream))
        done(cuda.cuStreamSynchronize(stream))
        self.assertEqual(download(there, 1 << 16), pattern(1 << 16, 1))
