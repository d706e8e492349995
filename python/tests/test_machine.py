"""Devices, explanations and probes."""

import numpy as np
import pytest

import transload


def test_the_host_comes_first():
    first, *others = transload.devices()
    assert (str(first), first.id) == ("cpu:0", "cpu:0")
    assert first.memories[0] == "cpu:0/pageable"
    assert repr(first) == f'Device("cpu:0", "{first.name}")'
    assert all(not str(other).startswith("cpu:") for other in others)


def test_devices_are_places(gpu):
    for device in transload.devices():
        tensor = transload.copy(np.arange(3.0), device)
        assert tensor.device == str(device)
        assert tensor.to(device) is tensor
        assert transload.empty(2, device=device).memory in device.memories


@pytest.mark.parametrize("src", ["cpu:0", b"1234", np.zeros(3)], ids=["place", "bytes", "array"])
def test_an_explanation_tells_the_way(src, gpu):
    told = transload.explain(src, gpu)
    assert told.nbytes == {str: 64 << 20, bytes: 4, np.ndarray: 24}[type(src)]
    assert told.route[0] == "cpu:0/pageable" and told.route[-1].startswith(gpu)
    assert told.method in ("DirectCopy", "ZeroCopy", "HostStaged", "PeerToPeer", "UnifiedMemory")
    assert told.predicted_s > 0 and told.measured in (True, False)
    assert str(told) == repr(told) == told.text
    assert told._repr_html_().startswith("<pre>") and "→" in told._repr_html_()


def test_explanations_take_tensors_and_devices(gpu):
    tensor = transload.empty(10, device=gpu)
    told = transload.explain(tensor, transload.devices()[0])
    assert (told.nbytes, told.route[-1]) == (40, "cpu:0/pageable")
    assert transload.explain(tensor, tensor, 7).nbytes == 7


def test_explaining_an_array_leaves_it_alone():
    array = bytearray(8)
    transload.explain(array, array)
    array.extend(b"x")


def test_a_probe_measures_pairs():
    found = transload.probe(0.2)
    pairs = {(src, dst): rate for src, dst, rate in found.pairs}
    assert ("cpu:0/pageable", "cpu:0/pageable") in pairs
    assert all(rate is None or rate > 0 for rate in pairs.values())
    assert found.simulated is False
    assert "cpu:0/pageable" in str(found)
    assert found._repr_html_().startswith("<table>")


def test_a_probe_is_not_saved_where_there_is_no_profile(monkeypatch, python):
    out = python(
        "import transload\ntry:\n    transload.probe(0.1).save()\nexcept OSError as error:\n    print(error)",
        env={"TRANSLOAD_PROFILE": ""},
    )
    assert "TRANSLOAD_PROFILE" in out


def test_a_probe_is_saved_as_the_profile(tmp_path, python):
    path = tmp_path / "profile.json"
    out = python("import transload\nprint(transload.probe(0.1).save())", env={"TRANSLOAD_PROFILE": str(path)})
    assert out.strip() == str(path)
    assert path.stat().st_size > 0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_seconds_that_are_none_are_refused(seconds):
    with pytest.raises(ValueError, match="^seconds: "):
        transload.probe(seconds)


def test_devices_are_equal_where_they_are_the_same():
    first, again = transload.devices(), transload.devices()
    assert first == again and len({*first, *again}) == len(first)
    assert first[0] != "cpu:0" and all(one != first[0] for one in first[1:])
