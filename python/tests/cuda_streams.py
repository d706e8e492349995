"""The order of streams, over the double of the driver, where a missing wait shows as wrong bytes. `test_cuda.py` runs this file."""

import numpy as np
import pytest

import capsules
import driver
import transload
from driver import Memory, Producer

driver.enter()

# Copies within the device take milliseconds: what does not wait for them reads or keeps the old bytes.
COUNT = 1 << 22


@pytest.fixture(scope="module", autouse=True)
def no_misuse():
    yield
    assert driver.control("notes") == ""


@pytest.fixture(scope="module")
def memories():
    return Memory(np.arange(COUNT, dtype="f4")), Memory(np.zeros(COUNT, "f4"))


@pytest.mark.parametrize("place", ["cpu:0", "cuda:0", "cuda:1"])
def test_a_copy_waits_for_the_producers_stream(memories, place):
    new, memory = memories
    memory.write(np.zeros(COUNT, "f4"))
    work = driver.stream()
    for _ in range(3):
        memory.copy_from(new, work)
    producer = Producer(memory, work=work)
    tensor = transload.copy(producer, place)
    assert producer.stream == driver.LEGACY
    assert tensor.numpy()[-1] == COUNT - 1


def test_a_copy_into_a_producer_waits_for_its_stream(memories):
    new, memory = memories
    work = driver.stream()
    for _ in range(3):
        memory.copy_from(new, work)
    transload.copy(np.full(COUNT, 7, "f4"), Producer(memory, work=work))
    # Written before the producer's own work had ended, they would be the other ones.
    driver.call("cuStreamSynchronize", work)
    assert (memory.read() == 7).all()


def test_an_asynchronous_copy_waits_for_the_producers_stream(memories):
    new, memory = memories
    memory.write(np.zeros(COUNT, "f4"))
    work = driver.stream()
    for _ in range(3):
        memory.copy_from(new, work)
    tensor = transload.copy_async(Producer(memory, work=work), "cpu:0").result()
    assert tensor.numpy()[-1] == COUNT - 1


@pytest.mark.parametrize("stream", [None, driver.LEGACY, driver.PER_THREAD, -1, "own"])
def test_an_export_is_ready_for_every_stream(memories, stream):
    _, memory = memories
    own = driver.stream()
    number = own.value if stream == "own" else stream
    dst = transload.empty(COUNT, "float32", "cuda:0")
    pending = transload.copy_async(np.full(COUNT, 9, "f4"), dst)
    managed = capsules.take(dst.__dlpack__(stream=number, max_version=(1, 0)))
    exported = Memory.__new__(Memory)
    exported.address = driver.c.c_uint64(managed.tensor.data)
    memory.copy_from(exported, own)
    driver.call("cuStreamSynchronize", own)
    assert (memory.read() == 9).all()
    pending.result()
    capsules.delete(managed)


@pytest.mark.parametrize("stream", [0, -2, -(2**62)])
def test_streams_that_the_standard_forbids_are_refused(stream):
    with pytest.raises(BufferError, match="^stream: "):
        transload.empty(3, device="cuda:0").__dlpack__(stream=stream)


def test_a_stream_of_another_type_is_a_type_error():
    with pytest.raises(TypeError, match="^stream: "):
        transload.empty(3, device="cuda:0").__dlpack__(stream="legacy")


def test_pinned_memory_is_exported_as_the_hosts_and_takes_no_stream():
    pinned = transload.copy(np.arange(4.0), "cpu:0/pinned")
    assert np.from_dlpack(pinned).tolist() == [0, 1, 2, 3]
    with pytest.raises(BufferError, match="^stream: "):
        pinned.__dlpack__(stream=1)
