"""Awaited copies, in asyncio and trio, and with callbacks."""

import asyncio
import gc
import threading

import numpy as np
import pytest

import transload

LARGE = 1 << 23


def test_asyncio_awaits_a_copy():
    async def main():
        tensor = await transload.copy_async(np.arange(5.0), "cpu:0")
        into = np.zeros(5)
        assert await transload.copy_async(tensor, into) is into
        return into.tolist()

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_asyncio_awaits_many_copies_at_once(gpu):
    async def main():
        arrays = [np.full(1000, number) for number in range(100)]
        places = ["cpu:0", gpu]
        copies = [transload.copy_async(array, places[at % 2]) for at, array in enumerate(arrays)]
        return await asyncio.gather(*map(awaited, copies))

    tensors = asyncio.run(main())
    assert [tensor.numpy()[0] for tensor in tensors] == list(range(100))


async def awaited(pending):
    return await pending


def test_the_loop_runs_while_a_copy_is_awaited():
    async def main():
        src, dst = np.ones(LARGE), np.zeros(LARGE)
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(count())
        await transload.copy_async(src, dst)
        other.cancel()
        assert dst[-1] == 1
        return turns

    assert asyncio.run(main()) >= 0


def test_errors_arrive_where_the_copy_is_awaited():
    async def main():
        dst = np.lib.stride_tricks.as_strided(np.zeros(3), (2, 3), (0, 8))
        with pytest.raises(transload.errors.TransferError) as refused:
            await transload.copy_async(np.ones((2, 3)), dst)
        return refused.value.kind

    assert asyncio.run(main()) == "Repeated"


def ended(pending):
    """Waits for the end, whichever it is."""
    try:
        pending.result()
    except transload.errors.TransferError as error:
        assert error.kind == "Cancelled"
        return False
    return True


def test_a_cancelled_task_stops_its_copy():
    async def main():
        src, dst = np.ones(LARGE), np.zeros(LARGE)
        pending = transload.copy_async(src, dst)
        task = asyncio.ensure_future(awaited(pending))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        assert ended(pending) in (True, False)
        assert pending.done()

    asyncio.run(main())


def test_wait_for_ends_a_wait_and_stops_the_copy():
    async def main():
        src, dst = np.ones(LARGE), np.zeros(LARGE)
        pending = transload.copy_async(src, dst)
        try:
            await asyncio.wait_for(awaited(pending), 0)
        except TimeoutError:
            ended(pending)
        assert pending.done()
        assert (await asyncio.wait_for(awaited(transload.copy_async(b"abc", "cpu:0")), 60)).size == 3

    asyncio.run(main())


def test_two_tasks_await_one_copy():
    async def main():
        pending = transload.copy_async(np.ones(LARGE), "cpu:0")
        one, other = await asyncio.gather(awaited(pending), awaited(pending))
        assert one.numpy().ctypes.data == other.numpy().ctypes.data
        return await pending

    assert asyncio.run(main()).size == LARGE


def test_a_loop_that_is_closed_midway_is_left_in_peace():
    dst = np.zeros(LARGE)
    loop = asyncio.new_event_loop()
    pending = transload.copy_async(np.ones(LARGE), dst)
    task = loop.create_task(awaited(pending))
    loop.run_until_complete(_turn())
    # As a program that gives up: no task is cancelled.
    loop.close()
    assert pending.result() is dst
    assert dst[-1] == 1
    task._log_destroy_pending = False
    del task, loop
    gc.collect()


async def _turn():
    await asyncio.sleep(0)


def test_a_copy_is_made_without_a_loop():
    pending = transload.copy_async(np.arange(3.0), "cpu:0")
    assert pending.result().numpy().tolist() == [0, 1, 2]
    assert pending.done()
    assert pending.progress() == (24, 24)
    assert "24 B" in pending.report


def test_awaiting_without_a_loop_is_an_error_and_no_hang():
    pending = transload.copy_async(np.ones(LARGE), np.zeros(LARGE))
    waiting = pending.__await__()
    try:
        next(waiting)
    except StopIteration:
        pass
    except RuntimeError as error:
        assert "asyncio or trio" in str(error)
    pending.result()


def test_the_result_is_asked_for_again():
    pending = transload.copy_async(b"abc", "cpu:0")
    assert pending.result().numpy().ctypes.data == pending.result(timeout=0).numpy().ctypes.data
    assert pending.result(float("inf")).size == 3


def test_a_limit_that_passes_leaves_the_copy_going():
    src, dst = np.ones(LARGE), np.zeros(LARGE)
    pending = transload.copy_async(src, dst)
    for limit in (0, -1, 1e-9):
        try:
            pending.result(timeout=limit)
        except TimeoutError as error:
            assert "timeout: " in str(error)
    assert pending.result() is dst
    assert dst[-1] == 1


def test_callbacks_run_once_each_and_at_once_when_all_is_over():
    ran, all_ran = [], threading.Event()
    pending = transload.copy_async(np.ones(LARGE), np.zeros(LARGE))
    for number in range(5):
        pending.add_done_callback(lambda number=number: ran.append(number))
    pending.add_done_callback(all_ran.set)
    all_ran.wait()
    pending.result()
    assert sorted(ran) == list(range(5))
    pending.add_done_callback(lambda: ran.append("late"))
    assert ran[-1] == "late"


def test_callbacks_that_raise_are_reported_and_stop_no_other():
    with pytest.MonkeyPatch.context() as patch:
        seen, ran = [], threading.Event()
        patch.setattr("sys.unraisablehook", lambda told: seen.append(told.exc_type))
        pending = transload.copy_async(np.ones(LARGE), np.zeros(LARGE))
        try:
            pending.add_done_callback(lambda: 1 / 0)
            raised = []
        except ZeroDivisionError:
            raised = [ZeroDivisionError]
        pending.add_done_callback(ran.set)
        ran.wait()
        pending.result()
        assert seen + raised == [ZeroDivisionError]


def test_callbacks_may_copy_and_wait():
    ran, seen = threading.Event(), []

    def again():
        seen.append(transload.copy_async(b"abc", "cpu:0").result().size)
        seen.append(transload.copy(b"abcd", "cpu:0").size)
        ran.set()

    pending = transload.copy_async(np.ones(LARGE), np.zeros(LARGE))
    pending.add_done_callback(again)
    ran.wait()
    pending.result()
    assert seen == [3, 4]


def test_a_cancelled_copy_ends_its_waits():
    pending = transload.copy_async(np.ones(LARGE), np.zeros(LARGE))
    pending.cancel()
    ended(pending)
    pending.cancel()
    assert pending.done()


def test_trio_awaits_a_copy():
    trio = pytest.importorskip("trio")

    async def main():
        tensors = []

        async def one(number):
            tensors.append((number, await transload.copy_async(np.full(10, number), "cpu:0")))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(one, number)
        return [tensor.numpy()[0] for _, tensor in sorted(tensors, key=lambda pair: pair[0])]

    assert trio.run(main) == list(range(20))


def test_trio_cancels_a_copy():
    trio = pytest.importorskip("trio")

    async def main():
        pending = transload.copy_async(np.ones(LARGE), np.zeros(LARGE))
        with trio.CancelScope() as scope:
            scope.cancel()
            await pending
        ended(pending)
        assert pending.done()
        return (await transload.copy_async(b"abc", "cpu:0")).size

    assert trio.run(main) == 3


def test_asyncio_within_a_thread_while_trio_is_there():
    pytest.importorskip("trio")
    results = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(awaited(transload.copy_async(b"ab", "cpu:0")))))
    thread.start()
    thread.join()
    assert results[0].size == 2
