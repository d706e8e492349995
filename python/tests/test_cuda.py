"""Runs `cuda_double.py` with the double of NVIDIA's driver in place of the driver, in a process of its own.

`cargo xtask doubles` builds the double. `TRANSLOAD_CUDA_DRIVER` may name another copy of it.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


def double():
    named = os.environ.get("TRANSLOAD_CUDA_DRIVER")
    if named:
        return pathlib.Path(named)
    root = HERE.parent.parent
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    built = sorted(target.glob("doubles/cuda-driver/lib/*/libcuda.so.1"))
    return built[0] if built else None


def environment():
    library = double()
    if library is None:
        pytest.skip("the double is not built: cargo xtask doubles")
    paths = [str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        "TRANSLOAD_CUDA_DRIVER": str(library),
        "LD_LIBRARY_PATH": os.pathsep.join(path for path in paths if path),
        "TRANSLOAD_DOUBLE_DEVICES": "2",
    }


@pytest.mark.skipif(sys.platform != "linux", reason="the double stands on Linux's memory files")
@pytest.mark.parametrize("file", ["cuda_double.py", "cuda_streams.py"])
def test_cuda_works_over_the_double_of_the_driver(file, tmp_path):
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)]
    ran = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment()},
        timeout=300,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"\d+ passed", ran.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the double stands on Linux's memory files")
@pytest.mark.parametrize(
    "wait",
    [
        "transload.copy(src, 'cuda:0')",
        "transload.copy(src, tensor)",
        "transload.copy_async(src, tensor).result()",
        "transload.load(path, device='cuda:0')",
        "list(transload.stream(path, device='cuda:0'))",
        "tensor.numpy()",
        "transload.save({'a': tensor}, path + '2')",
    ],
)
def test_signals_end_a_wait_for_a_device_that_hangs(wait, python, tmp_path):
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(HERE)!r})
import numpy as np, transload
import driver

class Rang(Exception):
    pass

def ring(*_):
    raise Rang

path = sys.argv[1]
src = np.ones(1 << 16)
transload.save({{'a': src}}, path)
tensor = transload.copy(src, 'cuda:0')
driver.control('fault stuck@1')
signal.signal(signal.SIGALRM, ring)
try:
    # The first one cancels the copy, the second one leaves it.
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.3)
    {wait}
except Rang:
    signal.setitimer(signal.ITIMER_REAL, 0)
    print('ended', flush=True)
# A real program would have to be ended, too: its driver waits for the device.
os._exit(0)
"""
    assert python(program, tmp_path / "m.safetensors", env=environment()) == "ended\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the double stands on Linux's memory files")
def test_a_stream_is_closed_while_another_thread_waits_for_its_next_tensor(python, tmp_path):
    program = f"""
import os, sys, threading
sys.path.insert(0, {str(HERE)!r})
import numpy as np, transload
import driver

path = sys.argv[1]
transload.save({{'a': np.ones(1 << 16)}}, path)
transload.copy(b'1', 'cuda:0')
driver.control('fault stuck@1')
stream = transload.stream(path, device='cuda:0')
waits = threading.Thread(target=lambda: print(next(stream, 'closed'), flush=True))
waits.start()
while stream.progress() is not None:
    pass
stream.close()
waits.join()
os._exit(0)
"""
    assert python(program, tmp_path / "m.safetensors", env=environment()) == "closed\n"
