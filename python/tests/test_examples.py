"""Runs the examples and the programs of the documentation, and compares the package with the library."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import transload

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "python" / "examples").glob("*.py"))
PAGES = [ROOT / "docs" / "guide" / "python.md", ROOT / "python" / "README.md"]


def run(program: str, folder: Path) -> str:
    """Runs a program as a user does, with warnings as errors, and returns its output."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "JAX_PLATFORMS": "cpu"}
    path = folder / "program.py"
    path.write_text(program)
    ran = subprocess.run(
        [sys.executable, "-W", "error", path],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_holds_what_it_asserts(path: Path, tmp_path: Path) -> None:
    program = path.read_text()
    for package in ("jax", "ml_dtypes"):
        if f"import {package}\n" in program and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    assert "\n# %% " in program, "a script in notebooks' style has cells"
    assert run(program, tmp_path), "an example shows something"


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_programs_of_a_page_run(page: Path, tmp_path: Path) -> None:
    programs = blocks(page, "python")
    assert programs
    for program in programs:
        run(program, tmp_path)


def test_guide_shows_what_its_program_prints(tmp_path: Path) -> None:
    (program,) = blocks(PAGES[0], "python")
    (shown,) = blocks(PAGES[0], "text")
    # The page ran with one adapter; here it may be the second, or absent.
    adapters = re.compile(r"wgpu:\d+/\w+|cuda:\d+|cpu:0/pageable")
    printed = run(program, tmp_path)
    assert adapters.sub("MEMORY", printed) == adapters.sub("MEMORY", shown)


def test_package_has_the_version_of_the_library() -> None:
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    assert transload.__version__ == manifest["workspace"]["package"]["version"]
