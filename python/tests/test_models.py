"""Model files: loaded, streamed and inspected, against the package safetensors."""

import json
import os
import struct

import numpy as np
import pytest

import transload
from transload import errors

safetensors = pytest.importorskip("safetensors")
reference = pytest.importorskip("safetensors.numpy")


def tensors():
    chance = np.random.default_rng(7)
    made = {
        "embed.weight": chance.standard_normal((64, 32)).astype("f4"),
        "layers.0.attn.q": chance.standard_normal((32, 32)).astype("f2"),
        "layers.0.mlp.up": chance.standard_normal((48, 32)),
        "layers.1.attn.q": chance.integers(0, 255, (32, 32), "u1"),
        "flags": np.array([True, False, True]),
        "count": np.array(7, "i8"),
        "none": np.zeros((0, 4), "i2"),
    }
    return made


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    reference.save_file(tensors(), path, metadata={"format": "np", "who": "test"})
    return path


def same(loaded, expected):
    assert loaded.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(loaded[name].numpy(), array, strict=True, err_msg=name)


def test_a_model_is_loaded_as_by_safetensors(model):
    same(transload.load(model), reference.load_file(model))
    same(transload.load(str(model), device="cpu:0/shared", verify=True), reference.load_file(model))


def test_a_model_is_loaded_to_a_device(model, gpu):
    loaded = transload.load(model, device=gpu)
    assert {tensor.device for tensor in loaded.values()} == {gpu}
    same(loaded, reference.load_file(model))


def test_a_model_is_spread_over_devices(model, gpu):
    loaded = transload.load(model, device=["cpu:0", gpu])
    assert {tensor.device for tensor in loaded.values()} <= {"cpu:0", gpu}
    same(loaded, reference.load_file(model))


def test_bfloat16_comes_as_ml_dtypes(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path = tmp_path / "m.safetensors"
    made = {
        name: np.arange(16, dtype="f4").astype(getattr(ml_dtypes, name))
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    }
    transload.save(made, path)
    loaded = transload.load(path)
    assert {name: tensor.dtype for name, tensor in loaded.items()} == {name: name for name in made}
    same(loaded, made)
    assert json.loads(path.read_bytes()[8 : 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]])["bfloat16"]["dtype"] == "BF16"


def test_only_some_are_loaded(model):
    assert set(transload.load(model, only="layers.*")) == {name for name in tensors() if name.startswith("layers.")}
    assert set(transload.load(model, only=["flags", "c????"])) == {"flags", "count"}
    with pytest.raises(errors.LoadError) as refused:
        transload.load(model, only="absent*")
    assert (refused.value.kind, refused.value.category) == ("Pattern", "caller")


def test_floats_are_converted(model):
    loaded = transload.load(model, dtype="float32", only=["layers.0.*", "flags", "layers.1.*"])
    assert {name: tensor.dtype for name, tensor in loaded.items()} == {
        "layers.0.attn.q": "float32", "layers.0.mlp.up": "float32", "flags": "bool", "layers.1.attn.q": "uint8",
    }  # fmt: skip
    np.testing.assert_array_equal(loaded["layers.0.mlp.up"].numpy(), tensors()["layers.0.mlp.up"].astype("f4"))
    with pytest.raises(errors.LoadError) as refused:
        transload.load(model, dtype="int8", only="embed.*")
    assert (refused.value.kind, refused.value.from_dtype, refused.value.to_dtype) == ("Convert", "float32", "int8")
    assert refused.value.tensor in tensors()


def test_tensors_are_split_between_devices(model, gpu):
    places = ["cpu:0", gpu]
    loaded = transload.load(model, device=places, split={"layers.*.q": 1, "layers.*.up": 0})
    for name, array in tensors().items():
        parts = loaded[name]
        assert [part.device for part in parts] == places
        axis = {"layers.0.attn.q": 1, "layers.1.attn.q": 1, "layers.0.mlp.up": 0}.get(name)
        expected = [array, array] if axis is None else np.split(array, 2, axis)
        for part, half in zip(parts, expected, strict=True):
            np.testing.assert_array_equal(part.numpy(), half)


@pytest.mark.parametrize("split", [{"count": 0}, {"embed.weight": 2}, {"absent": 0}, {"flags": 0, "none": 5}], ids=str)
def test_tensors_that_cannot_be_split_are_refused(model, split, gpu):
    with pytest.raises(errors.LoadError) as refused:
        transload.load(model, device=["cpu:0", gpu], split=split)
    assert refused.value.category == "caller"


@pytest.mark.parametrize("split", [{"count": -1}, {"count": "a"}, {3: 0}], ids=str)
def test_rules_that_are_none_are_refused(model, split):
    with pytest.raises(TypeError, match="^split: "):
        transload.load(model, split=split)


def test_tensors_are_broadcast_to_devices(model, gpu):
    places = [gpu, "cpu:0"]
    loaded = transload.load(model, device=places, broadcast=True)
    for name, array in tensors().items():
        assert [part.device for part in loaded[name]] == places
        for part in loaded[name]:
            np.testing.assert_array_equal(part.numpy(), array)


@pytest.mark.parametrize("second", ["cpu:0", "cpu:0/pageable"])
def test_parts_and_copies_need_places_of_their_own(model, second):
    for keywords in ({"split": {"embed.*": 0}}, {"broadcast": True}):
        with pytest.raises(ValueError, match="^device: .* is named twice"):
            transload.load(model, device=["cpu:0", second], **keywords)
    same(transload.load(model, device=["cpu:0", second]), reference.load_file(model))


@pytest.mark.parametrize("only", [3, [3]], ids=str)
def test_patterns_that_are_none_are_refused(model, only):
    with pytest.raises(TypeError, match="^only: "):
        transload.load(model, only=only)


def test_no_device_is_refused(model):
    with pytest.raises((errors.LoadError, ValueError)):
        transload.load(model, device=[])


def test_progress_tells_of_all_bytes(model):
    told = []
    loaded = transload.load(model, progress=lambda done, of: told.append((done, of)))
    total = sum(tensor.nbytes for tensor in loaded.values())
    assert told[-1] == (total, total)
    assert all(done <= of for done, of in told)


def test_progress_that_raises_ends_the_load(model):
    with pytest.raises(ZeroDivisionError):
        transload.load(model, progress=lambda done, of: 1 / 0)


def test_a_stream_gives_each_tensor_once(model):
    stream = transload.stream(model)
    assert iter(stream) is stream
    done, of = stream.progress()
    assert 0 <= done <= of == sum(array.nbytes for array in tensors().values())
    pairs = list(stream)
    assert len(pairs) == len(tensors())
    same(dict(pairs), reference.load_file(model))
    assert list(stream) == []
    assert stream.progress() is None


def test_a_stream_is_closed_midway(model):
    stream = transload.stream(model)
    name, tensor = next(stream)
    stream.close()
    stream.close()
    assert list(stream) == []
    np.testing.assert_array_equal(tensor.numpy(), tensors()[name])
    with pytest.raises(StopIteration):
        next(stream)


def test_several_files_are_loaded_one_after_the_other(tmp_path):
    one, other = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    reference.save_file({"a": np.arange(3)}, one)
    reference.save_file({"b": np.arange(4)}, other)
    same(transload.load([one, str(other)]), {"a": np.arange(3), "b": np.arange(4)})
    assert [name for name, _ in transload.stream([one, other])] == ["a", "b"]
    assert sorted(transload.load(tmp_path.glob("*.safetensors"))) == ["a", "b"]
    assert transload.load([]) == {} and list(transload.stream([])) == []
    with pytest.raises(ValueError, match='path: .*"a"'):
        transload.load([one, one])
    with pytest.raises(errors.ModelError):
        list(transload.stream([one, tmp_path / "absent.safetensors"]))


def test_inspect_reads_headers_alone(model):
    found = transload.inspect(model)
    assert found["metadata"] == {"format": "np", "who": "test"}
    assert found["files"] == [model]
    for name, array in tensors().items():
        assert found["tensors"][name] == {
            "dtype": str(array.dtype),
            "shape": array.shape,
            "nbytes": array.nbytes,
            "file": model,
        }


def test_shards_are_loaded_by_their_index(tmp_path):
    made = {name: array for name, array in tensors().items() if array.size}
    paths = transload.save(made, tmp_path / "model.safetensors", max_shard_bytes=8000)
    assert len(paths) > 2
    index = tmp_path / "model.safetensors.index.json"
    names = set(json.loads(index.read_text())["weight_map"])
    assert names == set(made)
    by_reference = {}
    for path in paths:
        if path.suffix == ".safetensors":
            by_reference.update(reference.load_file(path))
    assert by_reference.keys() == made.keys()
    for source in (index, tmp_path):
        same(transload.load(source), made)
        assert len(transload.inspect(source)["files"]) == len([path for path in paths if path.suffix == ".safetensors"])


def test_numbered_shards_are_one_model_however_they_are_named(tmp_path, monkeypatch):
    paths = [tmp_path / f"m-{number:05}-of-00002.safetensors" for number in (1, 2)]
    made = {"a": np.arange(3), "b": np.arange(4)}
    for path, name in zip(paths, made):
        reference.save_file({name: made[name]}, path)
    for source in (tmp_path, paths[1], paths, reversed(paths), tmp_path.glob("*.safetensors")):
        same(transload.load(source), made)
    # In the order of their arrival.
    assert sorted(name for name, _ in transload.stream(paths)) == ["a", "b"]
    assert transload.inspect(paths[1])["files"] == paths
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("link").symlink_to(tmp_path)
    for one, other in [("./", ""), ("", tmp_path), ("link", "")]:
        mixed = [os.path.join(one, paths[0].name), os.path.join(other, paths[1].name)]
        same(transload.load(mixed), made)
        assert sorted(name for name, _ in transload.stream(mixed)) == ["a", "b"]
        # Both are in both models; the one that arrives first is named.
        with pytest.raises(ValueError, match='path: .*"[ab]"'):
            transload.load([mixed[0], os.path.join(other, paths[0].name)])
    paths[0].unlink()
    with pytest.raises(errors.ModelError, match="lacks 1 of its 2 files") as raised:
        transload.load(paths[1])
    assert raised.value.path == str(paths[1])


def test_a_tensor_of_an_unknown_type_is_listed_and_left_out(tmp_path):
    path = tmp_path / "m.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0)
    for name, kind, size, offset in [(b"a", 142, 256, 0), (b"t\xe4", 24, 4, 160)]:
        head += struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, size, kind, offset)
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(160) + b"\1\2\3\4")
    found = transload.inspect(path)["tensors"]
    assert {name: (of["dtype"], of["nbytes"]) for name, of in found.items()} == {
        "a": ("GGML_142", 160),
        r"t\xE4": ("int8", 4),
    }
    with pytest.raises(errors.LoadError, match="GGML_142") as raised:
        transload.load(path)
    assert raised.value.tensor == "a"
    same(transload.load(path, only=r"t\xE4"), {r"t\xE4": np.array([1, 2, 3, 4], "i1")})


def gguf(path):
    """Writes a model with one tensor of F32 and one of Q8_0 (34 bytes for 32 elements)."""

    def text(of):
        return struct.pack("<Q", len(of)) + of.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 2)
    head += text("general.architecture") + struct.pack("<I", 8) + text("test")
    head += text("numbers") + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3)
    head += text("plain") + struct.pack("<IQQIQ", 2, 4, 3, 0, 0)
    head += text("blocks") + struct.pack("<IQIQ", 1, 64, 8, 64)
    head += bytes(-len(head) % 32)
    plain = np.arange(12, dtype="f4").reshape(3, 4)
    blocks = bytes(range(68))
    path.write_bytes(head + plain.tobytes() + bytes(16) + blocks + bytes(-68 % 32))
    return plain, blocks


def test_gguf_is_loaded_and_inspected(tmp_path):
    path = tmp_path / "m.gguf"
    plain, blocks = gguf(path)
    found = transload.inspect(path)
    assert found["metadata"]["general.architecture"] == "test"
    assert found["metadata"]["numbers"] == [1, -2, 3]
    assert found["tensors"]["plain"]["shape"] == (3, 4)
    loaded = transload.load(path)
    np.testing.assert_array_equal(loaded["plain"].numpy(), plain)
    packed = loaded["blocks"]
    assert (packed.dtype.upper(), packed.shape, packed.nbytes) == ("Q8_0", (64,), 68)
    with pytest.raises(TypeError, match="NumPy has no elements"):
        packed.numpy()
    with pytest.raises(BufferError):
        packed.__dlpack__()
    import pickle

    assert pickle.loads(pickle.dumps(packed)).__reduce_ex__(2)[1][0] == blocks


def test_trim_gives_memory_back(model):
    transload.load(model)
    assert transload.trim() is None
    same(transload.load(model), reference.load_file(model))


DAMAGE = {
    "empty": lambda content: b"",
    "short": lambda content: content[:5],
    "cut header": lambda content: content[:50],
    "cut tensors": lambda content: content[:-5],
    "huge header": lambda content: struct.pack("<Q", 2**63) + content[8:],
    "no JSON": lambda content: content[:8] + b"x" * (len(content) - 8),
    "more bytes": lambda content: content + b"12345",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_refused(name, model):
    model.write_bytes(DAMAGE[name](model.read_bytes()))
    for call in (transload.load, transload.stream, transload.inspect):
        with pytest.raises(errors.ModelError) as refused:
            call(model)
        assert str(model) in str(refused.value)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(errors.ModelError):
        transload.load(tmp_path)
