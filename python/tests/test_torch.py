"""torch as the other side, where it is installed: 4.5 GB with what its wheel depends on, so that no stage installs it."""

import gc
from pathlib import Path

import numpy as np
import pytest

import transload

torch = pytest.importorskip("torch")
reference = pytest.importorskip("safetensors.torch")


def test_both_directions_share_the_memory() -> None:
    tensor = transload.copy(np.arange(12, dtype=np.float32).reshape(3, 4), "cpu:0")
    array = torch.from_dlpack(tensor)
    assert array.data_ptr() == tensor.numpy().ctypes.data
    del tensor
    gc.collect()
    assert array[2, 3] == 11
    # A destination is written where it lies.
    assert transload.copy(np.full((3, 4), 7, np.float32), array) is array
    assert (array == 7).all()


@pytest.mark.parametrize(
    "name",
    ["bool", "uint8", "int64", "float16", "float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"],
)
def test_types_come_back(name: str) -> None:
    array = torch.arange(6).to(getattr(torch, name)).reshape(2, 3)
    device = transload.devices()[-1]
    back = torch.from_dlpack(transload.copy(transload.copy(array, device), "cpu:0"))
    assert back.dtype == array.dtype
    assert torch.equal(back.view(torch.uint8), array.view(torch.uint8))


def test_two_elements_of_4_bits_in_one_are_two_here_and_one_there(tmp_path: Path) -> None:
    memory = torch.arange(32, dtype=torch.uint8).reshape(4, 8)
    array = memory.view(torch.float4_e2m1fn_x2)
    tensor = transload.asarray(array)
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == ("float4_e2m1fn", (4, 16), 32)
    assert tensor.view("uint8").numpy().ctypes.data == memory.data_ptr()
    back = torch.from_dlpack(tensor)
    assert (back.dtype, back.shape, back.data_ptr()) == (array.dtype, array.shape, array.data_ptr())
    # Rows of a view, and a device.
    for place in ("cpu:0", transload.devices()[-1]):
        there = transload.copy(array[1::2], place)
        again = torch.from_dlpack(transload.copy(there, "cpu:0")[:1])
        assert torch.equal(again.view(torch.uint8), memory[1:2])
    assert torch.equal(torch.from_dlpack(tensor[::2, 4:8]).view(torch.uint8), memory[::2, 2:4])
    into = torch.zeros(4, 8, dtype=torch.uint8)
    transload.copy(tensor, into.view(torch.float4_e2m1fn_x2))
    assert torch.equal(into, memory)
    with pytest.raises(transload.Error, match="^src: elements of F4 lie in blocks of 2"):
        transload.copy(array.T, "cpu:0")

    path, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    transload.save({"w": array}, path)
    reference.save_file({"w": array}, theirs)
    assert path.read_bytes()[-32:] == theirs.read_bytes()[-32:]
    for file in (path, theirs):
        assert transload.inspect(file)["tensors"]["w"]["shape"] == (4, 16)
        for w in (reference.load_file(file)["w"], torch.from_dlpack(transload.load(file)["w"])):
            assert w.dtype == array.dtype and torch.equal(w.view(torch.uint8), memory)
    with torch.device("meta"):
        module = torch.nn.Module()
        module.w = torch.nn.Parameter(torch.empty(4, 8, dtype=torch.float4_e2m1fn_x2), requires_grad=False)
    transload.torch.load_into(module, path)
    assert torch.equal(module.w.view(torch.uint8), memory)


@pytest.mark.parametrize("name", ["int4", "uint2", "complex128", "bits8"])
def test_types_that_model_files_lack_are_refused(name: str, tmp_path: Path) -> None:
    array = torch.zeros(16, dtype=torch.uint8).view(getattr(torch, name))
    with pytest.raises(ValueError, match=f"^tensors.*its elements are torch.{name}, "):
        transload.save({"w": array}, tmp_path / "m.safetensors")


def test_tensors_without_memory_or_with_a_mask_are_refused() -> None:
    with pytest.raises(ValueError, match="^src: it gives no memory: .*meta"):
        transload.copy(torch.empty(3, device="meta"), "cpu:0")
    with pytest.warns(UserWarning):
        masked = torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True]))
        with pytest.raises(ValueError, match="^src: it is a masked tensor"):
            transload.copy(masked, "cpu:0")


def test_conjugated_and_negated_views_are_resolved() -> None:
    view = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj()
    for source in (view, view.imag):
        assert torch.equal(torch.from_dlpack(transload.copy(source, "cpu:0")), source.resolve_conj().resolve_neg())
        with pytest.raises(ValueError, match="^dst: .*conjugated or negated"):
            transload.copy(torch.zeros_like(source), source)


def test_a_tensor_with_a_gradient_is_read_and_not_written() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    assert transload.copy(weight, "cpu:0").numpy().tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="^dst: .*detach"):
        transload.copy(np.zeros(3, np.float32), weight)
    transload.copy(np.zeros(3, np.float32), weight.detach())
    assert weight.tolist() == [0, 0, 0]


class Net(torch.nn.Module):
    """Two names of one parameter, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.norm(self.embedding(ids)))


@pytest.fixture
def saved(tmp_path: Path):
    """A module and its file, which has one of the two names, as the files of hubs have."""
    net = Net().eval()
    tensors = {name: tensor for name, tensor in net.state_dict().items() if name != "head.weight"}
    transload.save(tensors, tmp_path / "model.safetensors")
    return net, tmp_path / "model.safetensors"


def test_load_into_copies_nothing(saved, monkeypatch: pytest.MonkeyPatch) -> None:
    net, path = saved
    addresses = {}

    def load(*arguments, **keywords):
        tensors = transload.load(*arguments, **keywords)
        addresses.update((name, tensor.numpy().ctypes.data) for name, tensor in tensors.items())
        return tensors

    monkeypatch.setattr(transload.torch, "load", load)
    with torch.device("meta"):
        other = Net().eval()
    transload.torch.load_into(other, path)
    state = other.state_dict()
    assert {name: state[name].data_ptr() for name in addresses} == addresses
    assert other.head.weight is other.embedding.weight and other.head.weight.requires_grad
    ids = torch.arange(10)
    assert torch.equal(other(ids), net(ids))


def test_load_into_converts_and_chooses(saved) -> None:
    _, path = saved
    other = Net()
    weight = other.norm.weight
    transload.torch.load_into(other, path, only="embedding.*", dtype="bfloat16")
    assert other.head.weight.dtype == torch.bfloat16
    assert other.norm.weight is weight


def test_load_into_leaves_a_module_alone_that_does_not_fit(saved) -> None:
    _, path = saved
    other = torch.nn.Linear(16, 50)
    weight = other.weight
    with pytest.raises(RuntimeError, match=r"lacks \['bias', 'weight'\].*strict=False"):
        transload.torch.load_into(other, path)
    with pytest.raises(transload.errors.ModelError):
        transload.torch.load_into(other, path.with_name("absent.safetensors"))
    assert other.weight is weight


def everything(module):
    """What a module has, by name, as the objects."""
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers(remove_duplicate=False))}


def is_unchanged(module, before) -> bool:
    after = everything(module)
    return after.keys() == before.keys() and all(after[name] is before[name] for name in after)


@pytest.mark.parametrize("change", ["a shape", "a type that is refused halfway"])
def test_a_load_that_fails_leaves_the_module_as_it_was(change: str, saved, monkeypatch: pytest.MonkeyPatch) -> None:
    net, path = saved
    tensors = {name: of.clone() for name, of in net.state_dict().items() if name != "head.weight"}
    if change == "a shape":
        tensors["norm.running_mean"] = torch.ones(5)
    transload.save(tensors, path)
    other = Net()
    if change != "a shape":
        # Ends the load when some tensors are in the module, and parameters no longer want a gradient.
        transload.save({**tensors, "embedding.weight": torch.ones(50, 16, dtype=torch.int8)}, path)
        monkeypatch.setattr(other, "get_submodule", lambda name: 1 / 0)
    before = everything(other)
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        transload.torch.load_into(other, path)
    assert is_unchanged(other, before)
    assert other.head.weight is other.embedding.weight and other.head.weight.requires_grad


def test_whole_numbers_become_parameters_without_a_gradient(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    transload.save({"weight": torch.ones(3, 3, dtype=torch.int8), "bias": torch.full((3,), 7.0)}, path)
    module = torch.nn.Linear(3, 3)
    former = module.weight
    transload.torch.load_into(module, path)
    assert (module.weight.dtype, module.weight.requires_grad) == (torch.int8, False)
    # Another module may hold it.
    assert former.requires_grad
    assert (module.bias[0].item(), module.bias.requires_grad) == (7, True)


class Rope(torch.nn.Module):
    """A buffer that is not saved, as rotary embeddings have."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Linear(4, 4, bias=False)
        self.register_buffer("inv_freq", 1.0 / torch.arange(1, 5), persistent=False)

    def forward(self, x):
        return self.w(x) * self.inv_freq


def test_buffers_that_no_model_has_are_not_left_without_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    module = Rope()
    transload.torch.save_from(module, path)
    with torch.device("meta"):
        other = Rope()
    before = everything(other)
    for only in (None, "*"):
        with pytest.raises(RuntimeError, match=r"\['inv_freq'\] are on the device meta.*not persistent; assign them"):
            transload.torch.load_into(other, path, only=only)
    assert is_unchanged(other, before)
    transload.torch.load_into(other, path, only="w.*")
    other.inv_freq = module.inv_freq
    transload.torch.load_into(other, path)
    assert torch.equal(other(torch.ones(4)), module(torch.ones(4)))
    with torch.device("meta"):
        other = Rope()
    transload.torch.load_into(other, path, strict=False)
    assert other.inv_freq.is_meta and not other.w.weight.is_meta
    transload.torch.load_into(Rope(), path)


class Shared(torch.nn.Module):
    """One module, one buffer, and one memory under two names each."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.BatchNorm1d(3)
        self.b = self.a
        self.register_buffer("m", torch.rand(3))
        self.register_buffer("n", self.m)
        self.register_buffer("unsaved", self.m, persistent=False)
        self.p = torch.nn.Parameter(torch.rand(3))
        self.q = torch.nn.Parameter(self.p.detach())


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("by", ["transload", "safetensors", "both names"])
def test_what_a_module_has_under_several_names_stays_one(by: str, device: str, tmp_path: Path) -> None:
    path, module = tmp_path / "m.safetensors", Shared()
    match by:
        case "transload":
            transload.torch.save_from(module, path)
        case "safetensors":
            reference.save_model(module, path)
        case _:
            transload.save(module.state_dict(), path)
    with torch.device(device):
        other = Shared()
    transload.torch.load_into(other, path)
    assert other.a is other.b and other.m is other.n and other.m is other.unsaved
    assert other.p is not other.q and other.p.data_ptr() == other.q.data_ptr()
    for name, of in module.state_dict().items():
        assert torch.equal(other.state_dict()[name], of), name


def test_views_of_another_shape_or_of_other_bytes_are_saved_each(tmp_path: Path) -> None:
    path, module = tmp_path / "m.safetensors", torch.nn.Module()
    module.p = torch.nn.Parameter(torch.rand(3))
    module.q = torch.nn.Parameter(module.p.detach().view(3, 1))
    module.r = torch.nn.Parameter(module.p.detach()[:2])
    transload.torch.save_from(module, path)
    assert transload.inspect(path)["tensors"].keys() == {"p", "q", "r"}
    transload.torch.load_into(module, path)
    assert torch.equal(module.q[:, 0], module.p) and torch.equal(module.r, module.p[:2])
    assert len({of.untyped_storage().data_ptr() for of in module.parameters()}) == 3


def test_a_module_is_saved_once_and_read_by_safetensors(tmp_path: Path) -> None:
    path, module = tmp_path / "m.safetensors", Net()
    assert transload.torch.save_from(module, path, metadata={"step": "7"}) == [path]
    told = transload.inspect(path)
    assert told["metadata"] == {"format": "pt", "step": "7", "head.weight": "embedding.weight"}
    reference.save_model(module, path.with_name("theirs"), metadata={"format": "pt", "step": "7"})
    theirs = transload.inspect(path.with_name("theirs"))
    assert (told["metadata"], told["tensors"].keys()) == (theirs["metadata"], theirs["tensors"].keys())
    other = Net()
    reference.load_model(other, path)
    assert torch.equal(other.embedding.weight, module.embedding.weight) and other.head.weight is other.embedding.weight
    parts = transload.torch.save_from(module, bytes(tmp_path / "parts.safetensors"), max_shard_bytes=3000)
    assert len(parts) > 2
    transload.torch.load_into(other, parts[-1])
    with pytest.raises(ValueError, match=r"^tensors\[.*meta"):
        transload.torch.save_from(module.to("meta"), path)


def test_different_values_for_one_tensor_are_refused(saved) -> None:
    net, path = saved
    tensors = {name: of.clone() for name, of in net.state_dict().items()}
    tensors["head.weight"][7, 7] += 1
    transload.save(tensors, path)
    other = Net()
    before = everything(other)
    with pytest.raises(RuntimeError, match=r"\['embedding.weight', 'head.weight'\] are one tensor.*different values.*strict=False"):
        transload.torch.load_into(other, path)
    assert is_unchanged(other, before)
    transload.torch.load_into(other, path, strict=False)
    assert torch.equal(other.head.weight, tensors["embedding.weight"]) and other.head.weight is other.embedding.weight
