"""The stubs say what the module has, and the package is typed."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("mypy")
ROOT = pathlib.Path(__file__).parent.parent


def run(*arguments, cwd=ROOT):
    ran = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, cwd=cwd, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_package_is_typed_strictly(tmp_path):
    run("mypy", "--strict", "--cache-dir", str(tmp_path), "transload")


def test_the_stubs_are_those_of_the_module(tmp_path):
    allowed = tmp_path / "allowed.txt"
    # Before Python 3.12 the protocol of buffers has no methods, and type checkers want them.
    allowed.write_text("transload._transload.Tensor.__(release_)?buffer__\n")
    options = ["--allowlist", str(allowed), "--ignore-unused-allowlist"]
    run("mypy.stubtest", "transload", *options, cwd=tmp_path)


def test_programs_are_checked(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import numpy as np
import transload
from typing import assert_type

array = np.zeros(3)
tensor = transload.copy(array, "cpu:0")
assert_type(tensor, transload.Tensor)
assert_type(transload.copy(tensor, bytearray(24)), bytearray)
assert_type(transload.copy(b"abc", transload.devices()[0]), transload.Tensor)
assert_type(tensor[1:, ..., 2].shape, tuple[int, ...])
rows = [row.nbytes for row in tensor.reshape(1, 3)]
np.from_dlpack(tensor)
memoryview(tensor)
np.asarray(tensor)
tensor.to("cpu:0", dtype=np.float32)


async def main() -> None:
    await transload.copy_async(array, "cpu:0", dtype="float32")


with transload.stream("x") as running:
    assert_type(running, transload.Stream)
transload.copy_blocks(array, tensor, [0, 1], np.array([1, 2])).item()
assert_type(transload.devices()[0] == transload.devices()[0], bool)
transload.copy(3, "cpu:0")  # type: ignore[call-overload]
transload.empty("ab")  # type: ignore[arg-type]
"""
    )
    run("mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program), cwd=tmp_path)
