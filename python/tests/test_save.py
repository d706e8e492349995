"""Saves, read by the package safetensors."""

import os

import numpy as np
import pytest

import transload
from transload import errors

reference = pytest.importorskip("safetensors.numpy")


def test_saved_files_are_read_by_safetensors(tmp_path, gpu):
    path = tmp_path / "m.safetensors"
    model = np.arange(24, dtype="f4").reshape(4, 6)
    given = {
        "array": model,
        "columns": model.T,
        "tensor": transload.copy(model, "cpu:0"),
        "slice": transload.copy(model, "cpu:0")[::-1, ::2],
        "device": transload.copy(model, gpu),
        "slice of a device": transload.copy(model, gpu)[:, 1:3],
        "bytes": b"abc",
        "scalar": np.float64(2.5),
        "none": np.zeros((0, 2), "i2"),
        "ünï": np.arange(2),
    }
    assert transload.save(given, path, metadata={"key": "text"}) == [path]
    read = reference.load_file(path)
    expected = {
        **{name: model for name in ("array", "tensor", "device")},
        "columns": model.T,
        "slice": model[::-1, ::2],
        "slice of a device": model[:, 1:3],
        "bytes": np.frombuffer(b"abc", "u1"),
        "scalar": np.array(2.5),
        "none": np.zeros((0, 2), "i2"),
        "ünï": np.arange(2),
    }
    assert read.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(read[name], array, strict=True, err_msg=name)
    import safetensors

    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"key": "text"}


def test_no_tensors_are_saved_and_loaded_as_by_safetensors(tmp_path):
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    transload.save({}, ours, metadata={"step": "7"})
    reference.save_file({}, theirs, metadata={"step": "7"})
    for path in (ours, theirs):
        assert reference.load_file(path) == transload.load(path) == {}
        assert transload.load(path, device=["cpu:0", "cpu:0/shared"], broadcast=True, verify=True, progress=print) == {}
        assert list(transload.stream(path, dtype="float16")) == []
        assert transload.inspect(path) == {"tensors": {}, "metadata": {"step": "7"}, "files": [path]}
        with pytest.raises(errors.LoadError, match="fits"):
            transload.load(path, only="w")


def test_paths_are_those_of_python(tmp_path):
    class Like:
        def __init__(self, path):
            self.path = path

        def __fspath__(self):
            return self.path

    made = {"a": np.arange(3)}
    name = os.fsencode(tmp_path) + b"/\xff.safetensors" if os.name == "posix" else os.fsencode(tmp_path / "m.safetensors")
    for path in (name, Like(name), os.fsdecode(name), Like(os.fsdecode(name))):
        (written,) = transload.save(made, path)
        assert os.fsencode(written) == name
        assert transload.load(path)["a"].numpy().tolist() == [0, 1, 2]
        assert [name for name, _ in transload.stream([path])] == ["a"]
        assert transload.inspect(path)["files"] == [written]
    for path in (3, None, bytearray(name), [3], Like(3)):
        for call in (lambda: transload.save(made, path), lambda: transload.load(path), lambda: transload.inspect(path)):
            with pytest.raises(TypeError, match="path"):
                call()


def test_a_save_replaces_a_file_as_a_whole(tmp_path):
    path = tmp_path / "m.safetensors"
    transload.save({"a": np.zeros(3)}, path)
    loaded = transload.load(path)
    transload.save({"a": np.ones(3)}, str(path))
    assert loaded["a"].numpy().tolist() == [0, 0, 0]
    assert transload.load(path)["a"].numpy().tolist() == [1, 1, 1]


def test_a_refused_save_leaves_nothing(tmp_path):
    path = tmp_path / "m.safetensors"
    array = np.zeros(3)
    for given, kind in [
        ({"__metadata__": array}, errors.SaveError),
        ({"a": array, "b": object()}, TypeError),
        ({"a": np.zeros(3, ">f8")}, ValueError),
    ]:
        with pytest.raises(kind):
            transload.save(given, path)
    assert os.listdir(tmp_path) == []


def test_saved_memory_is_given_back(tmp_path):
    growing = bytearray(b"abc")
    transload.save({"a": growing}, tmp_path / "m.safetensors")
    growing.extend(b"d")
    with pytest.raises(errors.SaveError):
        transload.save({"a": growing}, tmp_path / "absent" / "m.safetensors")
    growing.extend(b"e")


@pytest.mark.parametrize(
    "arguments", [{"metadata": {"a": 1}}, {"metadata": {1: "a"}}, {"max_shard_bytes": -1}, {"max_shard_bytes": "a"}]
)
def test_arguments_of_other_types_are_refused(arguments, tmp_path):
    with pytest.raises((TypeError, OverflowError)):
        transload.save({"a": np.zeros(3)}, tmp_path / "m.safetensors", **arguments)


def test_a_load_is_saved_again_the_same(tmp_path):
    one, other = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    reference.save_file({str(number): np.arange(number * 100) for number in range(10)}, one)
    transload.save(transload.load(one), other)
    assert {name: array.tolist() for name, array in reference.load_file(other).items()} == {
        str(number): list(range(number * 100)) for number in range(10)
    }
