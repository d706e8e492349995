"""torch as the other side, where it is installed: 4.5 GB with what its wheel depends on, so that no stage installs it."""

import gc
from pathlib import Path

import numpy as np
import pytest

import transload

torch = pytest.importorskip("torch")


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
