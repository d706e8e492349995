"""Exceptions: their classes, kinds, categories and fields, and that each names its argument."""

import errno
from types import MappingProxyType

import numpy as np
import pytest

import transload
from transload import errors

ARRAY = np.zeros(3)


def failed(call):
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


CASES = {
    "a place that no text is": (lambda: transload.copy(ARRAY, "no place"), errors.ParseError, "Device", "caller", "dst: "),
    "an empty place": (lambda: transload.empty(3, device=""), errors.ParseError, "Device", "caller", "device: "),
    "a device that is not here": (lambda: transload.copy(ARRAY, "cuda:99"), errors.PlaceError, "UnknownDevice", "unsupported", "dst: "),
    "a memory that is not here": (lambda: transload.empty(3, device="cpu:0/device"), errors.PlaceError, None, "unsupported", "device: "),
    "a device to move to": (lambda: transload.empty(3).to("cuda:99"), errors.PlaceError, "UnknownDevice", "unsupported", "device: "),
    "a place to explain": (lambda: transload.explain("cpu:0", "cuda:99"), errors.PlaceError, "UnknownDevice", "unsupported", "dst: "),
    "a place to load to": (lambda: transload.load("/nowhere", device=""), errors.ParseError, "Device", "caller", "device: "),
    "one of several places": (lambda: transload.load("/nowhere", device=["cpu:0", "cuda:99"]), errors.PlaceError, "UnknownDevice", "unsupported", "device: "),
    "too much memory": (lambda: transload.empty(2**50), errors.AllocError, "TooLarge", "caller", "shape: "),
    "a copy that is too large": (lambda: transload.copy(np.broadcast_to(ARRAY[:1], (2**50,)), "cpu:0"), errors.AllocError, "TooLarge", "caller", "dst: "),
    "overlapping elements": (lambda: transload.copy(np.ones((2, 3)), np.lib.stride_tricks.as_strided(np.zeros(3), (2, 3), (0, 8))), errors.TransferError, "Repeated", "caller", ""),
    "a shape of other size": (lambda: transload.empty(4).reshape(5), errors.TensorError, "Length", "caller", "shape: "),
    "no model": (lambda: transload.load("/nowhere"), errors.ModelError, "System", "caller", "/nowhere"),
    "no model to stream": (lambda: transload.stream("/nowhere"), errors.ModelError, "System", "caller", "/nowhere"),
    "no model to inspect": (lambda: transload.inspect("/nowhere"), errors.ModelError, "System", "caller", "/nowhere"),
    "no folder to save to": (lambda: transload.save({"a": ARRAY}, "/nowhere/x.safetensors"), errors.SaveError, "File", None, "/nowhere"),
    "a reserved name": (lambda: transload.save({"__metadata__": ARRAY}, "/tmp/x.safetensors"), errors.SaveError, "Reserved", "caller", "__metadata__"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_errors_have_a_class_a_kind_a_category_and_the_argument(name):
    call, kind_of, kind, category, text = CASES[name]
    error = failed(call)
    assert (type(error).__name__, isinstance(error, kind_of)) == (kind_of.__name__, True)
    assert isinstance(error, transload.Error)
    assert kind is None or error.kind == kind
    assert category is None or error.category == category
    assert text in str(error)
    assert not str(error).endswith(".")


PLAIN = {
    "src without protocol": (lambda: transload.copy(object(), "cpu:0"), TypeError, "src: "),
    "dst without protocol": (lambda: transload.copy(ARRAY, object()), TypeError, "dst: "),
    "dst of a number": (lambda: transload.copy(ARRAY, 3), TypeError, "dst: "),
    "src of a number": (lambda: transload.copy_async(3, "cpu:0"), TypeError, "src: "),
    "other shape": (lambda: transload.copy(ARRAY, np.zeros(4)), ValueError, "dst: "),
    "other type": (lambda: transload.copy(ARRAY, np.zeros(3, "f4")), ValueError, "dst: "),
    "no conversion": (lambda: transload.copy(ARRAY, "cpu:0", dtype="int8"), ValueError, "dtype: "),
    "no dtype": (lambda: transload.empty(3, "nope"), ValueError, "dtype: "),
    "dtype of a load": (lambda: transload.load("/nowhere", dtype="nope"), ValueError, "dtype: "),
    "negative shape": (lambda: transload.empty(-1), TypeError, "shape: "),
    "shape of text": (lambda: transload.empty("ab"), TypeError, "shape: "),
    "overflowing shape": (lambda: transload.empty((2**40, 2**40)), ValueError, "shape: "),
    "path of a number": (lambda: transload.load(3), TypeError, "path: "),
    "broadcast of parts": (lambda: transload.load("/nowhere", split={"*": 0}, broadcast=True), ValueError, "broadcast: "),
    "name of a number": (lambda: transload.save({1: ARRAY}, "/tmp/x.safetensors"), TypeError, "tensors: "),
    "tensor of a number": (lambda: transload.save({"a": 1}, "/tmp/x.safetensors"), TypeError, "tensors\\['a'\\]: |tensors\\[\"a\"\\]: "),
    "seconds": (lambda: transload.probe(-1), ValueError, "seconds: "),
    "timeout": (lambda: transload.copy_async(ARRAY, "cpu:0").result(float("nan")), ValueError, "timeout: "),
    "an array to explain": (lambda: transload.explain(object(), "cpu:0"), TypeError, "src: "),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_errors_of_arguments_name_them(name):
    call, kind, text = PLAIN[name]
    with pytest.raises(kind, match=f"^({text})"):
        call()


def test_errors_carry_numbers():
    error = failed(lambda: transload.empty(2**50, "uint8"))
    assert (error.memory, error.nbytes) == ("cpu:0/pageable", 2**50)
    assert 0 < error.limit < 2**50
    assert isinstance(error, MemoryError)


def test_a_tensor_that_is_not_exported_names_its_memory(gpu):
    error = failed(lambda: transload.empty(3, device=gpu).__dlpack__())
    assert type(error) is errors.DLPackError
    assert (error.kind, error.category) == ("Memory", "unsupported")
    assert error.memory.startswith(gpu)


def test_a_cancelled_copy_says_so(gpu):
    src = np.zeros(64 << 20, "u1")
    pending = transload.copy_async(src, gpu)
    pending.cancel()
    try:
        pending.result()
    except errors.TransferError as error:
        assert error.kind == "Cancelled"
        assert pending.progress() is None
        assert pending.report is None
    else:
        assert pending.progress() == (src.nbytes, src.nbytes)
    assert pending.done()


def test_classes_are_those_of_python_too():
    pairs = [
        (errors.ParseError, ValueError), (errors.PlaceError, LookupError), (errors.AllocError, MemoryError),
        (errors.RegionError, ValueError), (errors.OpenError, OSError), (errors.TensorError, ValueError),
        (errors.DLPackError, BufferError),
    ]  # fmt: skip
    for kind, base in pairs:
        assert issubclass(kind, base) and issubclass(kind, transload.Error)
    own = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    assert all(issubclass(kind, transload.Error) for kind in own)


def test_the_cause_of_a_refusal_by_another_library_is_kept():
    error = failed(lambda: transload.copy(np.zeros(3, "M8[s]"), "cpu:0"))
    assert type(error) is ValueError
    assert isinstance(error.__cause__, ValueError)


def test_progress_that_raises_ends_the_copy():
    dst = np.zeros(3)
    with pytest.raises(ZeroDivisionError):
        transload.copy(np.ones(3), dst, progress=lambda done, of: 1 / 0)
    with pytest.raises(TypeError, match="^progress: 3 is neither callable nor a bool"):
        transload.copy(np.ones(3), dst, progress=3)


def test_a_type_that_is_not_converted_says_which_ones_are():
    for refused in (
        lambda: transload.copy(np.zeros(3, "f4"), np.zeros(3, "i4")),
        lambda: transload.copy(np.zeros(3, "f4"), "cpu:0", dtype="int32"),
    ):
        with pytest.raises(ValueError, match="float8_e5m2 are converted to the first four"):
            refused()
    with pytest.raises(ValueError, match='pass dtype="float16"'):
        transload.copy(np.zeros(3, "f4"), np.zeros(3, "f2"))


def test_an_address_is_no_path():
    with pytest.raises(ValueError, match="^path: models are read from files; fetch https://"):
        transload.load("https://example.org/model.safetensors")


def test_a_stream_is_looked_at_where_no_device_takes_part():
    with pytest.raises(ValueError, match="^stream: 0 is no CUDA stream"):
        transload.copy(np.zeros(3), np.zeros(3), stream=0)


def test_what_is_no_mapping_is_named(tmp_path):
    array, path = np.zeros(3), tmp_path / "m.safetensors"
    for name, refused in {
        "tensors": lambda: transload.save([array], path),
        "metadata": lambda: transload.save({"a": array}, path, metadata=[1]),
        "metadata: 'a': 1": lambda: transload.save({"a": array}, path, metadata={"a": 1}),
        "split": lambda: transload.load(path, split=0),
    }.items():
        with pytest.raises(TypeError, match=f"^{name}"):
            refused()
    transload.save(MappingProxyType({"a": array}), path, metadata=MappingProxyType({"k": "v"}))
    assert transload.inspect(path)["metadata"] == {"k": "v"}


def test_what_the_system_refused_is_pythons_own_exception_too(tmp_path):
    missing = tmp_path / "none.safetensors"
    for call, kind in [
        (lambda: transload.load(missing), transload.errors.ModelError),
        (lambda: transload.inspect(str(missing)), transload.errors.ModelError),
        (lambda: transload.save({"a": ARRAY}, tmp_path / "no" / "folder.safetensors"), transload.errors.SaveError),
    ]:
        with pytest.raises(FileNotFoundError) as raised:
            call()
        assert isinstance(raised.value, kind) and raised.value.errno == errno.ENOENT
        assert isinstance(raised.value.path, str) and str(raised.value).count(raised.value.path) == 1
    with pytest.raises(OSError) as raised:
        transload.inspect(tmp_path / ("x" * 300))
    assert raised.value.errno == errno.ENAMETOOLONG


@pytest.mark.parametrize("ending", ["npz", "pt", "PTH", "gguf", "npy"])
def test_endings_of_other_formats_are_refused(tmp_path, ending):
    with pytest.raises(errors.SaveError, match="another format") as raised:
        transload.save({"a": ARRAY}, tmp_path / f"x.{ending}")
    assert raised.value.kind == "Ending" and list(tmp_path.iterdir()) == []


def test_texts_do_not_repeat_what_was_passed():
    large = "x" * 10_000_000
    for call in [
        lambda: transload.empty((2,), large),
        lambda: transload.empty(large),
        lambda: transload.copy(ARRAY, "cpu:0", progress=large),
        lambda: transload.copy(ARRAY, "cpu:0", stream=large),
        lambda: transload.copy(ARRAY, "cpu:0")[large],
        lambda: transload.copy(ARRAY, "cpu:0").reshape(large),
        lambda: transload.copy(ARRAY, large),
        lambda: transload.copy(large, "cpu:0"),
        lambda: transload.save({3: large}, "x.npz"),
        lambda: transload.copy_blocks(ARRAY, ARRAY, large, [0]),
    ]:
        with pytest.raises((ValueError, TypeError)) as raised:
            call()
        assert len(str(raised.value)) < 1000
