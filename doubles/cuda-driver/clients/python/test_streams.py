"""Streams, events and host functions. CUDA Driver API: Stream Management, Event Management, Execution
Control."""

import ctypes

from client import Client, CUresult, cuda, done, download, failure, pattern, put

DEFAULT = cuda.CUevent_flags.CU_EVENT_DEFAULT
UNTIMED = cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING


class Streams(Client):
    def event(self, flags):
        event = done(cuda.cuEventCreate(flags))
        self.addCleanup(cuda.cuEventDestroy, event)
        return event

    def test_a_stream_waits_for_an_event_of_another(self):
        length = 1 << 20
        place = done(cuda.cuMemHostAlloc(length, 0))
        self.addCleanup(cuda.cuMemFreeHost, place)
        put(place, pattern(length, 1))
        first, second = self.stream(), self.stream()
        address, copy = self.allocate(length), self.allocate(length)
        event = self.event(UNTIMED)
        done(cuda.cuMemcpyHtoDAsync(address, place, length, first))
        done(cuda.cuEventRecord(event, first))
        done(cuda.cuStreamWaitEvent(second, event, 0))
        done(cuda.cuMemcpyDtoDAsync(copy, address, length, second))
        done(cuda.cuStreamSynchronize(second))
        done(cuda.cuEventQuery(event))
        self.assertEqual(download(copy, length), pattern(length, 1))

    def test_time_between_events(self):
        length = 25_000_000
        place = done(cuda.cuMemHostAlloc(length, 0))
        self.addCleanup(cuda.cuMemFreeHost, place)
        address, stream = self.allocate(length), self.stream()
        start, end = self.event(DEFAULT), self.event(DEFAULT)
        done(cuda.cuEventRecord(start, stream))
        done(cuda.cuMemcpyHtoDAsync(address, place, length, stream))
        done(cuda.cuEventRecord(end, stream))
        done(cuda.cuEventSynchronize(end))
        # 25 MB at the 25 GB/s of the modelled link.
        self.assertGreaterEqual(done(cuda.cuEventElapsedTime(start, end)), 1.0)
        untimed = self.event(UNTIMED)
        done(cuda.cuEventRecord(untimed, stream))
        done(cuda.cuEventSynchronize(untimed))
        for other in (untimed, self.event(DEFAULT)):
            answer = failure(cuda.cuEventElapsedTime(start, other))
            self.assertEqual(answer, CUresult.CUDA_ERROR_INVALID_HANDLE)

    def test_priorities_are_cut_to_their_range(self):
        least, greatest = done(cuda.cuCtxGetStreamPriorityRange())
        self.assertLess(greatest, least)
        for asked, given in [(least, least), (greatest - 3, greatest), (least + 3, least)]:
            stream = done(cuda.cuStreamCreateWithPriority(0, asked))
            self.assertEqual(done(cuda.cuStreamGetPriority(stream)), given)
            done(cuda.cuStreamDestroy(stream))

    def test_a_stream_knows_what_it_is(self):
        stream = self.stream()
        flags = int(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.assertEqual(done(cuda.cuStreamGetFlags(stream)), flags)
        self.assertEqual(int(done(cuda.cuStreamGetCtx(stream))), int(done(cuda.cuCtxGetCurrent())))
        self.assertNotEqual(done(cuda.cuStreamGetId(stream)), done(cuda.cuStreamGetId(self.stream())))
        capturing = done(cuda.cuStreamIsCapturing(stream))
        self.assertEqual(capturing, cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def test_what_was_destroyed_is_no_handle(self):
        invalid = CUresult.CUDA_ERROR_INVALID_HANDLE
        stream = done(cuda.cuStreamCreate(0))
        done(cuda.cuStreamQuery(stream))
        done(cuda.cuStreamDestroy(stream))
        self.assertEqual(failure(cuda.cuStreamDestroy(stream)), invalid)
        self.assertEqual(failure(cuda.cuStreamQuery(stream)), invalid)
        event = done(cuda.cuEventCreate(DEFAULT))
        done(cuda.cuEventDestroy(event))
        self.assertEqual(failure(cuda.cuEventRecord(event, 0)), invalid)

    def test_a_host_function_runs_in_order_and_may_not_call_the_driver(self):
        seen = []

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def function(data):
            seen.append((data, cuda.cuMemGetInfo()[0]))

        address = ctypes.cast(function, ctypes.c_void_p).value
        stream = self.stream()
        done(cuda.cuLaunchHostFunc(stream, address, 42))
        done(cuda.cuStreamSynchronize(stream))
        self.assertEqual(seen, [(42, CUresult.CUDA_ERROR_NOT_PERMITTED)])

    def test_a_callback_is_told_how_the_stream_fares(self):
        seen = []

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p)
        def function(stream, status, data):
            seen.append((stream, status, data))

        address = ctypes.cast(function, ctypes.c_void_p).value
        stream = self.stream()
        done(cuda.cuStreamAddCallback(stream, address, 43, 0))
        done(cuda.cuStreamSynchronize(stream))
        self.assertEqual(seen, [(int(stream), 0, 43)])
