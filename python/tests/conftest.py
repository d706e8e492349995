"""What all tests share: the devices of this machine, and the profiles of hypothesis."""

import gc
import os
import subprocess
import sys
import threading

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    pass
else:
    common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("ordinary", max_examples=25, stateful_step_count=20, **common)
    # Programs have up to 40 operations, about 36 of which are counted: more than 100,000.
    settings.register_profile("full", max_examples=3000, stateful_step_count=40, **common)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ordinary"))

# Planning with the default costs gives the same routes on every machine.
os.environ.setdefault("TRANSLOAD_PROFILE", "")

import transload  # noqa: E402


@pytest.fixture(scope="session")
def devices():
    return {str(device): device for device in transload.devices()}


@pytest.fixture(scope="session")
def gpu(devices):
    """The name of a device whose memory the host does not reach."""
    for name in devices:
        if name.startswith("wgpu:"):
            return name
    pytest.skip("no wgpu adapter on this machine")


@pytest.fixture
def settled():
    """Returns a function that waits until the library has given back what is not in use any more."""
    return _settle


def _settle():
    gc.collect()
    # Jobs of the library's thread run in order: when the callback has run, all jobs before it have.
    ran = threading.Event()
    # Large enough that the copy is under way when the callback is added, as a rule; if not, the callback runs here, and the
    # next round asks again.
    for _ in range(3):
        pending = transload.copy_async(bytes(1 << 20), "cpu:0")
        pending.add_done_callback(ran.set)
        ran.wait()
        pending.result()
        ran.clear()


@pytest.fixture
def python(tmp_path):
    """Returns a function that runs a program in a process of its own, and returns what it printed."""

    def run(program, *arguments, env=None, code=0):
        path = tmp_path / "program.py"
        path.write_text(program)
        ran = subprocess.run(
            [sys.executable, "-W", "error", str(path), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **(env or {})},
        )
        assert ran.returncode == code, f"exit code {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    return run
