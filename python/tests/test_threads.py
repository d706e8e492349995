"""Many threads at once."""

import threading

import numpy as np
import pytest

import transload

THREADS = 8


def together(work):
    """Runs a function in 8 threads that start together, and raises what they raise."""
    start, raised = threading.Barrier(THREADS), []

    def run(number):
        try:
            start.wait()
            work(number)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def test_eight_threads_copy_each_their_own():
    def work(number):
        array = np.full(10_000, number, "i4")
        for _ in range(50):
            tensor = transload.copy(array, "cpu:0")
            into = np.zeros_like(array)
            transload.copy(tensor, into)
            assert (into == number).all()

    together(work)


def test_eight_threads_copy_over_a_device(gpu):
    def work(number):
        array = np.full(10_000, number, "i4")
        for _ in range(5):
            assert (transload.copy(array, gpu).numpy() == number).all()

    together(work)


def test_eight_threads_read_one_tensor():
    tensor = transload.copy(np.arange(10_000), "cpu:0")

    def work(number):
        for _ in range(50):
            part = tensor[number::THREADS]
            assert transload.copy(part, "cpu:0").numpy()[1] == number + THREADS
            assert np.from_dlpack(part)[0] == number
            memoryview(part)

    together(work)


def test_eight_threads_wait_for_one_copy():
    src, dst = np.ones(1 << 22), np.zeros(1 << 22)
    for _ in range(5):
        dst[:] = 0
        pending, told = transload.copy_async(src, dst), []

        def work(number, pending=pending, told=told):
            pending.add_done_callback(lambda: told.append(number))
            assert pending.progress() is not None
            assert pending.result() is dst
            assert pending.done()

        together(work)
        assert dst[-1] == 1
        assert sorted(told) == list(range(THREADS))


def test_a_limit_holds_while_another_thread_waits():
    src, dst = np.ones(1 << 24), np.zeros(1 << 24)
    pending = transload.copy_async(src, dst)
    other = threading.Thread(target=pending.result)
    other.start()
    try:
        pending.result(timeout=0)
    except TimeoutError as error:
        assert str(error).startswith("timeout: ")
    assert pending.result() is dst
    other.join()


def test_a_stream_is_read_by_one_thread_and_closed_by_any(tmp_path):
    path = tmp_path / "m.safetensors"
    transload.save({str(number): np.zeros(1 << 14) for number in range(64)}, path)
    for _ in range(10):
        stream, busy = transload.stream(path), []

        def work(number, stream=stream, busy=busy):
            try:
                if number == 0:
                    next(stream, None)
                for _ in stream:
                    if number == 1:
                        stream.close()
            except ValueError as error:
                assert "another thread" in str(error)
                busy.append(number)

        together(work)
        stream.close()
        assert list(stream) == []


def test_errors_are_raised_in_eight_threads():
    def work(_):
        for _ in range(100):
            with pytest.raises(transload.errors.PlaceError):
                transload.copy(b"1", "cuda:99")
            with pytest.raises(ValueError):
                transload.copy_async(b"1", bytearray(2))

    together(work)


def test_the_lock_is_free_while_bytes_move():
    src, dst = np.ones(1 << 24), np.zeros(1 << 24)
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1

    other = threading.Thread(target=count)
    other.start()
    try:
        before = counted[0]
        for _ in range(5):
            transload.copy(src, dst)
        assert counted[0] > before
    finally:
        stop.set()
        other.join()
