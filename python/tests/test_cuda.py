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


@pytest.mark.skipif(sys.platform != "linux", reason="the double stands on Linux's memory files")
@pytest.mark.parametrize("file", ["cuda_double.py", "cuda_streams.py"])
def test_cuda_works_over_the_double_of_the_driver(file):
    library = double()
    if library is None:
        pytest.skip("the double is not built: cargo xtask doubles")
    paths = [str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {
        **os.environ,
        "TRANSLOAD_CUDA_DRIVER": str(library),
        "LD_LIBRARY_PATH": os.pathsep.join(path for path in paths if path),
        "TRANSLOAD_DOUBLE_DEVICES": "2",
    }
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)]
    ran = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=300, cwd=HERE.parent
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"\d+ passed", ran.stdout)
