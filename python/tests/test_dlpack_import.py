"""DLPack capsules that are made by hand, well and ill."""

import math
import random

import numpy as np
import pytest

import capsules
import transload
from capsules import Producer

BOTH = pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "legacy"])


@BOTH
def test_a_producer_is_read_and_its_deleter_runs_once(versioned, settled):
    array = np.arange(24, dtype="i4").reshape(4, 6)
    for view in (array, array.T, array[::-1, ::2], array[1:1], array[2, 3, ...]):
        producer = Producer(np.asarray(view), versioned=versioned)
        np.testing.assert_array_equal(transload.copy(producer, "cpu:0").numpy(), view)
        settled()
        assert producer.consumed
        assert producer.deleted == 1
        assert len(producer.capsules) == 1


def test_the_library_asks_for_the_newest_version_and_takes_none():
    producer = Producer(np.arange(3.0))
    transload.copy(producer, "cpu:0")
    assert producer.calls == [{"max_version": (1, 3)}]
    old = Producer(np.arange(3.0), versioned=False)
    transload.copy(old, "cpu:0")
    assert old.calls == [{"max_version": (1, 3)}, {}]


def test_a_producer_without_keywords_is_read():
    class Bare:
        def __init__(self):
            self.inner = Producer(np.arange(3.0), versioned=False)

        def __dlpack__(self):
            return self.inner.capsule()

        def __dlpack_device__(self):
            return (1, 0)

    assert transload.copy(Bare(), "cpu:0").numpy().tolist() == [0, 1, 2]


def test_a_versioned_producer_is_written_in_place(settled):
    array = np.zeros((3, 4), "i4")
    producer = Producer(array[:, ::2])
    assert transload.copy(np.ones((3, 2), "i4"), producer) is producer
    assert array.tolist() == [[1, 0, 1, 0]] * 3
    settled()
    assert producer.deleted == 1


@pytest.mark.parametrize("fields", [{"flags": capsules.READ_ONLY}, {"versioned": False}], ids=["flag", "legacy"])
def test_what_may_be_immutable_is_never_written(fields, settled):
    array = np.zeros(4)
    producer = Producer(array, **fields)
    with pytest.raises(ValueError, match="dst: its memory is read-only"):
        transload.copy(np.ones(4), producer)
    assert not array.any()
    settled()
    assert producer.deleted == 1


def test_the_offset_counts():
    array = np.arange(10.0)
    producer = Producer(array[:4], byte_offset=16)
    assert transload.copy(producer, "cpu:0").numpy().tolist() == [2, 3, 4, 5]


def test_null_strides_stand_for_rows():
    array = np.arange(6.0).reshape(2, 3)
    assert transload.copy(Producer(array, strides=None), "cpu:0").numpy().tolist() == array.tolist()


@pytest.mark.parametrize("shape, strides", [((0,), (1,)), ((3, 0), (2**62, -1)), ((2**62, 0, 2**62), None)])
def test_without_elements_neither_data_nor_strides_matter(shape, strides, settled):
    producer = Producer(np.zeros(1), shape=shape, strides=strides, data=None)
    assert transload.copy(producer, "cpu:0").shape == shape
    settled()
    assert producer.deleted == 1


def test_a_producer_without_a_deleter_is_read():
    assert transload.copy(Producer(np.arange(3.0), no_deleter=True), "cpu:0").numpy().tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [(4, 16, 1), (10, 8, 1), (12, 8, 1), (14, 8, 1)], ids=str)
def test_types_that_numpy_lacks_are_read(dtype):
    array = np.arange(4, dtype="u2" if dtype[1] == 16 else "u1")
    tensor = transload.copy(Producer(array, dtype=dtype), "cpu:0")
    assert bytes(capsules.c.string_at(capsules.read(tensor.__dlpack__()).tensor.data, array.nbytes)) == array.tobytes()


def test_pinned_memory_of_cuda_is_the_hosts():
    assert transload.copy(Producer(np.arange(3.0), device=(capsules.CUDA_HOST, 0)), "cpu:0").numpy().tolist() == [0, 1, 2]


HOSTILE = {
    "negative size": dict(shape=(-1, 3)),
    "negative dimensions": dict(ndim=-1),
    "too many dimensions": dict(ndim=65),
    "huge dimensions": dict(ndim=2**31 - 1),
    "null shape": dict(shape=None, ndim=2),
    "null data": dict(data=None),
    "overflowing shape": dict(shape=(2**62, 2**62)),
    "overflowing strides": dict(shape=(3, 4), strides=(2**62, 1)),
    "negative overflowing strides": dict(shape=(3, 4), strides=(-(2**63), 1)),
    "strides below address 0": dict(shape=(3, 4), strides=(-(2**59), 1)),
    "strides past the end": dict(shape=(3, 4), strides=(2**60, 1)),
    "overflowing offset": dict(byte_offset=2**64 - 1),
    "unknown type": dict(dtype=(99, 32, 1)),
    "handle": dict(dtype=(3, 64, 1)),
    "no bits": dict(dtype=(2, 0, 1)),
    "odd bits": dict(dtype=(0, 7, 1)),
    "no lanes": dict(dtype=(2, 32, 0)),
    "lanes": dict(dtype=(2, 32, 4)),
    "complex128": dict(dtype=(5, 128, 1)),
    "Vulkan": dict(device=(capsules.VULKAN, 0)),
    "Metal": dict(device=(capsules.METAL, 0)),
    "WebGPU": dict(device=(capsules.WEB_GPU, 0)),
    "no device": dict(device=(0, 0)),
    "negative device": dict(device=(-1, 0)),
    "another GPU": dict(device=(capsules.CUDA, 77), told_device=(1, 0)),
    "GPU of negative number": dict(device=(capsules.CUDA, -1), told_device=(1, 0)),
}


@BOTH
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_structures_are_refused_and_stay_the_producers(name, versioned, settled):
    for use in ("src", "dst"):
        array = np.zeros((3, 4), "f4")
        producer = Producer(array, versioned=versioned, **HOSTILE[name])
        with pytest.raises(transload.Error, match=f"^{use}: ") as refused:
            if use == "src":
                transload.copy(producer, "cpu:0")
            else:
                transload.copy(array, producer)
        assert refused.value.category in ("caller", "unsupported")
        assert not producer.consumed
        settled()
        assert producer.deleted == 0


@pytest.mark.parametrize("version", [(2, 0), (0, 9), (2**32 - 1, 0)])
def test_another_major_version_is_refused_and_not_consumed(version, settled):
    producer = Producer(np.zeros(3), version=version, data=0x10, ndim=-5)
    with pytest.raises(transload.errors.DLPackError, match=f"^src: .*DLPack {version[0]}.{version[1]}") as refused:
        transload.copy(producer, "cpu:0")
    assert refused.value.kind == "Version"
    assert not producer.consumed
    settled()
    assert producer.deleted == 0


def test_a_newer_minor_version_is_taken():
    assert transload.copy(Producer(np.arange(3.0), version=(1, 99)), "cpu:0").numpy().tolist() == [0, 1, 2]


@BOTH
def test_a_capsule_is_used_once(versioned):
    class Twice(Producer):
        def __dlpack__(self, **keywords):
            return self.capsules[0] if self.capsules else super().__dlpack__(**keywords)

    producer = Twice(np.arange(3.0), versioned=versioned)
    transload.copy(producer, "cpu:0")
    with pytest.raises(ValueError, match="src: .*used before"):
        transload.copy(producer, "cpu:0")


def test_what_is_no_capsule_is_refused():
    class Odd:
        def __init__(self, given, device=(1, 0)):
            self.given, self.device = given, device

        def __dlpack__(self, **keywords):
            if isinstance(self.given, Exception):
                raise self.given
            return self.given

        def __dlpack_device__(self):
            return self.device

    with pytest.raises(TypeError, match="src: .*no capsule"):
        transload.copy(Odd(3), "cpu:0")
    other = capsules._new(1, b"something else", None)
    with pytest.raises(ValueError, match="src: .*capsule"):
        transload.copy(Odd(other), "cpu:0")
    with pytest.raises(ZeroDivisionError):
        transload.copy(Odd(ZeroDivisionError()), "cpu:0")
    with pytest.raises(TypeError, match="^src: "):
        transload.copy(Odd(None, device="cpu"), "cpu:0")


def test_memory_that_another_tensor_uses_is_taken_in_again():
    array = np.arange(8.0)
    tensor = transload.copy(Producer(array), "cpu:0")
    again = transload.copy(Producer(tensor.numpy()), "cpu:0")
    assert again.numpy().tolist() == array.tolist()


def test_random_structures_end_well_or_with_an_error(settled):
    """A fuzzer without a corpus: fields are drawn from values at the edges. What is accepted must be the array's memory."""
    rounds, chance = 5000, random.Random(7)
    array = np.arange(64, dtype="u1")
    edges = [-(2**63), -(2**31), -9, -1, 0, 1, 2, 3, 7, 8, 2**31, 2**32, 2**62, 2**63 - 1]
    producers, taken = [], 0
    for _ in range(rounds):
        ndim = chance.choice([0, 1, 1, 2, 3])
        fields = dict(
            shape=[chance.choice(edges) for _ in range(ndim)],
            strides=None if chance.random() < 0.3 else [chance.choice(edges) for _ in range(ndim)],
            dtype=(
                chance.choice([0, 1, 2, 4, 5, 6, 10, 99]),
                chance.choice([0, 1, 4, 8, 16, 32, 64, 255]),
                chance.choice([0, 1, 1, 1, 2]),
            ),
            byte_offset=chance.choice([0, 0, 0, 1, 8, 2**63, 2**64 - 1]),
            flags=chance.choice([0, 1, 2, 4, 2**63]),
            version=(chance.choice([0, 1, 1, 1, 2]), chance.choice([0, 3, 99])),
        )
        if chance.random() < 0.1:
            fields["data"] = None
        if chance.random() < 0.1:
            fields["ndim"] = chance.choice([-1, 65, 2**31 - 1, -(2**31)])
        if not all_inside(fields):
            # Only the structure can say where its memory ends: one that points elsewhere is refused by arithmetic, or not made.
            if not overflows(fields):
                continue
        payload = math.prod(fields["shape"]) * max(fields["dtype"][1], 8) // 8
        if 2**20 < payload < 2**50:
            # Repeated elements that the machine would copy for long.
            continue
        versioned = chance.random() < 0.7
        if not versioned:
            fields.pop("flags"), fields.pop("version")
        producer = Producer(array, versioned=versioned, **fields)
        producers.append(producer)
        try:
            tensor = transload.copy(producer, "cpu:0")
        except transload.errors.AllocError:
            # All is well with the structure, and no memory can take a copy of it.
            assert producer.consumed
            continue
        except transload.Error:
            assert not producer.consumed
            continue
        taken += 1
        assert producer.consumed
        assert tensor.shape == tuple(fields["shape"])
    settled()
    for producer in producers:
        assert producer.deleted == int(producer.consumed)
    assert taken > rounds // 50


def all_inside(fields):
    """Whether every element lies within the 64 bytes."""
    shape, bits = fields["shape"], fields["dtype"][1]
    if "ndim" in fields or "data" in fields or any(size < 0 for size in shape):
        return True
    if 0 in shape:
        return True
    width, low, high = bits // 8, fields["byte_offset"], fields["byte_offset"] + bits // 8
    strides = fields["strides"]
    if strides is None:
        strides, step = [], 1
        for size in reversed(shape):
            strides.insert(0, step)
            step *= size
    for size, stride in zip(shape, strides, strict=True):
        reach = (size - 1) * stride * width
        low, high = low + min(reach, 0), high + max(reach, 0)
    return 0 <= low and high <= 64


def overflows(fields):
    """Whether the elements cannot lie in any memory."""
    return not all_inside({**fields, "byte_offset": 0}) and any(abs(n) >= 2**60 for n in fields["shape"])
