"""Random programs against a model in NumPy.

The ordinary run has a few; `HYPOTHESIS_PROFILE=full`, with `-o faulthandler_timeout=0`, runs more than 100,000 operations and
prints the figures.
"""

import gc
import pickle

import numpy as np
import pytest

import transload

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule  # noqa: E402

DTYPES = ["u1", "i2", "f4", "f8", "c8", "?", "f2"]
PLACES = [str(device) for device in transload.devices()] + ["cpu:0/shared"]
operations = {}

sizes = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 17]), max_size=3)
steps = st.sampled_from([None, None, 1, 2, 3, -1, -2, 7])
ends = st.one_of(st.none(), st.integers(-9, 9))
keys = st.lists(st.one_of(st.builds(slice, ends, ends, steps), st.integers(-9, 9), st.just(...)), max_size=3)


class Pair:
    """A tensor, and the model: an array that shares memory with other models as their tensors do."""

    def __init__(self, tensor, model):
        self.tensor, self.model = tensor, model


class Programs(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.pairs = []
        self.pending = []

    def count(self, name):
        operations[name] = operations.get(name, 0) + 1

    def draw(self, data):
        return data.draw(st.sampled_from(self.pairs))

    def fresh(self, data, shape=None, dtype=None):
        shape = data.draw(sizes) if shape is None else shape
        dtype = data.draw(st.sampled_from(DTYPES)) if dtype is None else dtype
        count = int(np.prod(shape, dtype=int))
        first = data.draw(st.integers(0, 200))
        array = (np.arange(first, first + count) % 251).astype(dtype).reshape(shape)
        if array.ndim > 1 and data.draw(st.booleans()):
            array = np.asfortranarray(array)
        return array

    @initialize(data=st.data())
    def begin(self, data):
        self.copy_in(data)

    @rule(data=st.data())
    def copy_in(self, data):
        self.count("copy in")
        array = self.fresh(data)
        tensor = transload.copy(array, data.draw(st.sampled_from(PLACES)))
        self.pairs.append(Pair(tensor, array.copy()))

    @rule(data=st.data())
    def allocate(self, data):
        self.count("empty")
        array = self.fresh(data)
        tensor = transload.empty(array.shape, array.dtype, data.draw(st.sampled_from(PLACES)))
        transload.copy(array, tensor)
        self.pairs.append(Pair(tensor, array.copy()))

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), key=keys)
    def slice(self, data, key):
        self.count("slice")
        pair, key = self.draw(data), tuple(key)
        try:
            model = pair.model[key if any(part is ... for part in key) else (*key, ...)]
        except IndexError:
            with pytest.raises(IndexError):
                pair.tensor[key]
            return
        tensor = pair.tensor[key]
        assert tensor.shape == model.shape
        self.pairs.append(Pair(tensor, model))

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def reshape(self, data):
        self.count("reshape")
        pair = self.draw(data)
        if not pair.tensor.contiguous:
            with pytest.raises(ValueError):
                pair.tensor.reshape(-1)
            return
        if pair.model.flags.c_contiguous:
            self.pairs.append(Pair(pair.tensor.reshape(pair.model.size), pair.model.reshape(pair.model.size)))

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def write(self, data):
        self.count("write an array")
        pair = self.draw(data)
        array = self.fresh(data, pair.model.shape, pair.model.dtype)
        assert transload.copy(array, pair.tensor) is pair.tensor
        pair.model[...] = array

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def write_asynchronously(self, data):
        self.count("write an array asynchronously")
        pair = self.draw(data)
        array = self.fresh(data, pair.model.shape, pair.model.dtype)
        pending = transload.copy_async(array, pair.tensor)
        pair.model[...] = array
        if data.draw(st.booleans()):
            assert pending.result() is pair.tensor
        else:
            self.pending.append(pending)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def copy_between(self, data):
        self.count("copy between tensors")
        pair, other = self.draw(data), self.draw(data)
        if pair.model.shape != other.model.shape or pair.model.dtype != other.model.dtype:
            with pytest.raises(ValueError):
                transload.copy(pair.tensor, other.tensor)
            return
        try:
            transload.copy(pair.tensor, other.tensor)
        except transload.errors.TransferError as error:
            assert error.kind == "Overlap"
            assert np.shares_memory(pair.model, other.model)
            assert not (pair.tensor.contiguous and other.tensor.contiguous)
            return
        other.model[...] = pair.model.copy()

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), place=st.sampled_from(PLACES))
    def move(self, data, place):
        self.count("move")
        pair = self.draw(data)
        tensor = pair.tensor.to(place)
        self.pairs.append(Pair(tensor, pair.model if tensor is pair.tensor else pair.model.copy()))

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), place=st.sampled_from(PLACES), dtype=st.sampled_from(["float16", "float32", "float64"]))
    def convert(self, data, place, dtype):
        self.count("convert")
        pair = self.draw(data)
        if pair.model.dtype.kind != "f" and pair.model.dtype != dtype:
            with pytest.raises(ValueError, match="^dtype: "):
                transload.copy(pair.tensor, place, dtype=dtype)
            return
        self.pairs.append(Pair(transload.copy(pair.tensor, place, dtype=dtype), pair.model.astype(dtype)))

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def read_into(self, data):
        self.count("read into an array")
        pair = self.draw(data)
        around = np.zeros([2 * size + 1 for size in pair.model.shape], pair.model.dtype)
        into = around[tuple(slice(1, None, 2) for _ in pair.model.shape)]
        if pair.model.ndim == 0:
            into = around
        expected = around.copy()
        transload.copy(pair.tensor, into)
        expected[tuple(slice(1, None, 2) for _ in pair.model.shape)] = pair.model
        np.testing.assert_array_equal(around, expected)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def pickle(self, data):
        self.count("pickle")
        pair = self.draw(data)
        tensor = pickle.loads(pickle.dumps(pair.tensor))
        assert tensor.memory == pair.tensor.memory
        self.pairs.append(Pair(tensor, pair.model.copy()))

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def exchange(self, data):
        self.count("exchange by DLPack")
        pair = self.draw(data)
        if pair.tensor.device != "cpu:0":
            with pytest.raises(BufferError):
                np.from_dlpack(pair.tensor)
            return
        array = np.from_dlpack(pair.tensor)
        assert array.strides == pair.tensor.strides or not array.size or 1 in array.shape
        np.testing.assert_array_equal(array, pair.model, strict=True)
        if array.size:
            array[...] = array.copy()

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def write_a_view(self, data):
        self.count("write a view")
        pair = self.draw(data)
        if pair.tensor.device == "cpu:0":
            for pending in self.pending:
                pending.result()
            pair.tensor.numpy()[...] = 3
            pair.model[...] = 3

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def drop(self, data):
        self.count("del")
        self.pairs.remove(self.draw(data))

    @precondition(lambda self: len(self.pairs) > 6)
    @rule()
    def forget_the_oldest(self):
        self.count("del")
        del self.pairs[:3]

    @invariant()
    def one_is_the_same(self):
        if self.pairs:
            pair = self.pairs[len(self.pairs) // 2]
            for pending in self.pending:
                if pair.tensor.device == "cpu:0":
                    pending.result()
            np.testing.assert_array_equal(pair.tensor.numpy(), pair.model, strict=True)

    def teardown(self):
        for pending in self.pending:
            pending.result()
        for pair in self.pairs:
            np.testing.assert_array_equal(pair.tensor.numpy(), pair.model, strict=True)
        self.pairs.clear()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_random_programs_do_what_numpy_does(settled, capsys):
    operations.clear()
    # Hypothesis remembers what it has tried, a few MiB in a thousand operations, and forgets it between the parts.
    left, part, sizes_mib = settings.default.max_examples, 250, []
    while left > 0:
        examples = min(left, part)
        left -= examples
        hypothesis.stateful.run_state_machine_as_test(Programs, settings=settings(max_examples=examples))
        gc.collect()
        settled()
        sizes_mib.append(resident() >> 20)
    if len(sizes_mib) > 4:
        with capsys.disabled():
            print(f"\n{sum(operations.values())} operations, memory {sizes_mib} MiB: {operations}")
        # The allocator and the caches of Python settle in the first parts. A leak of 1 KiB an operation would be 100 MiB.
        assert sizes_mib[-1] - sizes_mib[2] < 32
