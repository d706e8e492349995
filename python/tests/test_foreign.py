"""Objects that look like other libraries' where these are not installed: torch's tensors, and exporters of odd buffers."""

import struct

import numpy as np
import pytest

import capsules
import transload


class Torch(capsules.Producer):
    """What the library asks a tensor of torch, and what it answers."""

    requires_grad = False
    conjugated = negated = False

    def is_conj(self):
        return self.conjugated

    def is_neg(self):
        return self.negated

    def detach(self):
        return self.changed(requires_grad=False)

    def resolve_conj(self):
        return self.changed(self.array.conj() if self.conjugated else self.array, conjugated=False)

    def resolve_neg(self):
        return self.changed(-self.array if self.negated else self.array, negated=False)

    def changed(self, array=None, **fields):
        other = Torch(self.array if array is None else array)
        for name in ("requires_grad", "conjugated", "negated"):
            setattr(other, name, fields.get(name, getattr(self, name)))
        return other

    def __dlpack__(self, **keywords):
        if self.requires_grad or self.conjugated:
            raise BufferError("cannot export")
        return super().__dlpack__(**keywords)


Torch.__module__ = "torch"


def tensor(array, **fields):
    made = Torch(array)
    vars(made).update(fields)
    return made


@pytest.mark.parametrize("fields", [{}, {"requires_grad": True}, {"conjugated": True}, {"negated": True}], ids=str)
def test_tensors_of_torch_are_read_as_they_mean(fields):
    array = np.array([1 + 2j, 3 - 4j], "c8")
    expected = array
    if "conjugated" in fields:
        expected = array.conj()
    if "negated" in fields:
        expected = -array
    np.testing.assert_array_equal(transload.copy(tensor(array, **fields), "cpu:0").numpy(), expected)


@pytest.mark.parametrize(
    "fields, text",
    [({"requires_grad": True}, "detach"), ({"conjugated": True}, "conjugated"), ({"negated": True}, "negated")],
)
def test_tensors_of_torch_that_mean_something_else_are_not_written(fields, text):
    array = np.zeros(2, "c8")
    for call in (transload.copy, transload.copy_async):
        with pytest.raises(ValueError, match=f"^dst: .*{text}"):
            call(np.ones(2, "c8"), tensor(array, **fields))
    assert not array.any()


@pytest.mark.parametrize("name", ["int4", "uint1", "int7"])
def test_types_that_torch_exports_as_others_are_refused(name):
    array = np.ones(2, "i1")
    for call in (lambda: transload.copy(tensor(array, dtype=f"torch.{name}"), "cpu:0"),
                 lambda: transload.copy(array, tensor(array, dtype=f"torch.{name}"))):  # fmt: skip
        with pytest.raises(ValueError, match=f"^(src|dst): its elements are torch.{name}, .*convert them"):
            call()
    assert array.tolist() == [1, 1]


def test_masked_tensors_of_torch_are_refused():
    class MaskedTensor(Torch):
        pass

    MaskedTensor.__module__ = "torch.masked"
    with pytest.raises(ValueError, match=r"^src: it is a masked tensor.*to_tensor\(0\)"):
        transload.copy(MaskedTensor(np.ones(2)), "cpu:0")


@pytest.mark.parametrize("error", [BufferError, ValueError, RuntimeError, TypeError])
def test_what_an_exporter_says_is_told_with_the_name_of_the_argument(error):
    class Unable(capsules.Producer):
        def __dlpack__(self, **keywords):
            raise error("layout of another kind")

    with pytest.raises(TypeError if error is TypeError else ValueError, match="^dst: .*layout of another kind") as refused:
        transload.copy(np.ones(2), Unable(np.zeros(2)))
    assert isinstance(refused.value.__cause__, error)


def test_plain_tensors_of_torch_are_written_in_place():
    array = np.zeros(2, "c8")
    transload.copy(np.ones(2, "c8"), tensor(array))
    assert array.tolist() == [1, 1]


def test_names_of_torch_are_places_and_types():
    class device:  # noqa: N801 - as torch spells it
        def __str__(self):
            return "cpu:0"

    class dtype:  # noqa: N801
        def __str__(self):
            return "torch.bfloat16"

    made = transload.empty(3, dtype(), device())
    assert (made.dtype, made.device) == ("bfloat16", "cpu:0")
    assert transload.copy(b"abc", device()).device == "cpu:0"


def test_memory_that_is_reached_by_pointers_is_refused():
    buffers = pytest.importorskip("_testbuffer", reason="this Python comes without its own tests")
    src = buffers.ndarray(list(range(6)), shape=[2, 3], format="B", flags=buffers.ND_PIL)
    with pytest.raises((BufferError, ValueError), match="^src: .*suboffsets"):
        transload.copy(src, "cpu:0")


def test_odd_buffers_are_read_or_refused():
    buffers = pytest.importorskip("_testbuffer", reason="this Python comes without its own tests")
    for shape, strides, offset in [([4], [2], 0), ([4], [-2], 6), ([2, 2], [4, 2], 0), ([1], [77], 0), ([0], [1], 0)]:
        src = buffers.ndarray(list(range(8)), shape=shape, strides=strides, offset=offset, format="B")
        assert transload.copy(src, "cpu:0").numpy().tolist() == src.tolist()
    for code in ("P", "s", "p", "x", ">H", "2B", "BB", "T{B:a:}"):
        try:
            src = buffers.ndarray([0], shape=[1], format=code)
        except (ValueError, TypeError, NotImplementedError, struct.error):
            continue
        with pytest.raises(ValueError, match="^src: "):
            transload.copy(src, "cpu:0")


def test_an_exporter_that_raises_is_not_swallowed():
    class Odd:
        @property
        def __dlpack__(self):
            raise RuntimeError("own")

    with pytest.raises((RuntimeError, TypeError)):
        transload.copy(Odd(), "cpu:0")


def test_a_released_view_is_refused():
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(ValueError, match="released"):
        transload.copy(view, "cpu:0")
