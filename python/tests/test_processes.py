"""Signals, forks, other interpreters and the end of the process, each in a process of its own."""

import os
import signal
import subprocess
import sys

import pytest

unix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
signals = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")

# A copy that takes long enough for a timer to end it; if it is over before, it is started again.
BUSY = """
import signal, sys
import numpy as np, transload

class Rang(Exception):
    pass

rang = False

def ring(*_):
    global rang
    if not rang:
        rang = True
        raise Rang

signal.signal(signal.SIGALRM, ring)
src, dst = np.ones(1 << 24), np.zeros(1 << 24)
transload.copy(src, dst)
"""


@signals
@pytest.mark.parametrize(
    "wait",
    [
        "transload.copy(src, dst)",
        "transload.copy_async(src, dst).result()",
        "transload.copy(src, dst, progress=lambda *_: None)",
        "transload.save({'a': src}, path)",
        "transload.load(path)",
        "list(transload.stream(path))",
        "transload.copy(transload.copy(src, there), dst)",
        "transload.probe(60); sys.exit('the probe went on')",
    ],
)
def test_signals_end_a_wait(python, wait, tmp_path):
    out = python(
        BUSY
        + f"""
path = sys.argv[1]
there = str(transload.devices()[-1])
transload.save({{'a': src}}, path)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.05)
    while True:
        {wait}
except Rang:
    pass
signal.setitimer(signal.ITIMER_REAL, 0)
# All still works.
assert transload.copy(src, dst) is dst and dst[-1] == 1
print('ended')
""",
        tmp_path / "m.safetensors",
    )
    assert out == "ended\n"
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors", "program.py"]


@signals
def test_ctrl_c_ends_a_wait(python):
    out = python(
        """
import signal, threading
import numpy as np, transload

# A run of tests in the background of a shell has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
src, dst = np.ones(1 << 22), np.zeros(1 << 22)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    while True:
        transload.copy(src, dst)
except KeyboardInterrupt:
    print('interrupted')
"""
    )
    assert out == "interrupted\n"


@unix
def test_a_forked_child_gets_a_clear_error_for_tensors_of_its_parent(python):
    out = python(
        """
import os
import numpy as np, transload

tensor = transload.copy(np.arange(4.0), 'cpu:0')
pending = transload.copy_async(np.arange(4.0), 'cpu:0')
pending.result()
import warnings
warnings.simplefilter('ignore')
child = os.fork()
if child == 0:
    code = 1
    try:
        transload.copy(tensor, 'cpu:0')
    except transload.Error as error:
        print(error, flush=True)
        code = 7
    os._exit(code)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert tensor.numpy().tolist() == [0, 1, 2, 3]
"""
    )
    assert "fork" in out
    assert "spawn" in out


HOST_ALONE = """
import os, sys
import numpy as np, transload

def drivers():
    maps = open('/proc/self/maps').read()
    return [name for name in ('libvulkan', 'libEGL', 'libGL', 'libcuda.so', 'libnvidia') if name in maps]

path = sys.argv[1]
array = np.arange(1 << 18, dtype='f4')
transload.copy(array, np.zeros_like(array))
tensor = transload.copy(array, 'cpu:0/shared', verify=True)
assert (tensor.numpy() == array).all() and tensor.to('cpu:0').memory == 'cpu:0/pageable'
transload.copy_async(array, 'cpu:0').result()
transload.save({'a': tensor}, path)
assert list(transload.inspect(path)) and (transload.load(path)['a'].numpy() == array).all()
transload.explain(array, 'cpu:0')
np.from_dlpack(tensor)
try:
    transload.copy(array, 'cpu:7')
except transload.errors.PlaceError as error:
    print(error)
assert drivers() == [], drivers()
devices = [str(device) for device in transload.devices()]
assert drivers() or devices == ['cpu:0']
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_names_no_device_opens_no_driver_and_no_driver_writes_to_the_terminal(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(HOST_ALONE)
    names = ("XDG_RUNTIME_DIR", "WAYLAND_DISPLAY", "DISPLAY", "NODEVICE_SELECT")
    env = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, str(program), str(tmp_path / "m.safetensors")]
    ran = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "not open yet" in ran.stdout


@unix
def test_every_call_in_a_forked_child_says_that_a_tensor_is_its_parents(python, tmp_path):
    out = python(
        """
import os, pickle, sys, warnings
import numpy as np, transload

warnings.simplefilter('ignore')
ones = np.ones(4, 'f4')
for where in sys.argv[2:]:
    tensor = transload.copy(ones, where)
    calls = {
        'numpy': lambda: tensor.to('cpu:0/shared').numpy(),
        'copy': lambda: transload.copy(tensor, 'cpu:0'),
        'copy into': lambda: transload.copy(tensor, np.zeros(4, 'f4')),
        'copy to it': lambda: transload.copy(ones, tensor),
        'save': lambda: transload.save({'t': tensor}, sys.argv[1]),
        'pickle': lambda: pickle.dumps(tensor),
        'copy_async': lambda: transload.copy_async(tensor, 'cpu:0').result(),
    }
    for name, call in calls.items():
        child = os.fork()
        if child == 0:
            try:
                call()
            except transload.Error as error:
                print(where, name, error.kind, error.category, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
""",
        tmp_path / "m.safetensors",
        "cpu:0",
        "cpu:0/shared",
    )
    lines = out.splitlines()
    assert len(lines) == 14 and all(line.endswith(" Forked caller") for line in lines), out


@unix
@pytest.mark.parametrize("places", [("cpu:0",), ("cpu:0", "wgpu:0")], ids=["host", "devices"])
def test_a_forked_child_ends_although_its_parent_has_opened_devices(python, gpu, places):
    # Threads that the child starts get the stacks of the parent's, which handlers of drivers would join.
    out = python(
        """
import os, sys, warnings
import numpy as np, transload

warnings.simplefilter('ignore')
array = np.ones(8 << 20, 'u1')
for device in transload.devices():
    transload.copy(array, device)
child = os.fork()
if child == 0:
    for place in sys.argv[1:]:
        pending = [transload.copy_async(array, place) for _ in range(4)]
        assert all(copy.result().to('cpu:0').numpy()[1] == 1 for copy in pending)
    print('child')
    sys.exit(7)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
""",
        *places,
    )
    assert out == "child\n7\n"


@unix
def test_a_forked_child_copies_loads_and_awaits_on_its_own(python, tmp_path):
    out = python(
        """
import asyncio, os, sys, warnings
import numpy as np, transload

async def wait(array):
    return await transload.copy_async(array, 'cpu:0')

path = sys.argv[1]
array = np.arange(1 << 18, dtype='f4')
transload.save({'a': array}, path)
transload.load(path)
asyncio.run(wait(array))
warnings.simplefilter('ignore')
child = os.fork()
if child == 0:
    code = 1
    try:
        assert (transload.copy(array, 'cpu:0').numpy() == array).all()
        assert (transload.load(path)['a'].numpy() == array).all()
        assert (asyncio.run(wait(array)).numpy() == array).all()
        transload.trim()
        print('child', flush=True)
        code = 0
    finally:
        os._exit(code)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
print('parent')
""",
        tmp_path / "m.safetensors",
    )
    assert out == "child\nparent\n"


ENDS = {
    "nothing": "",
    "a copy under way": "pending = transload.copy_async(src, dst)",
    "a forgotten copy": "transload.copy_async(src, dst)",
    "a copy to a device under way": "pending = transload.copy_async(src, there)",
    "a callback to come": "transload.copy_async(src, dst).add_done_callback(lambda: None)",
    "a stream half read": "stream = transload.stream(path); next(stream)",
    "tensors in globals": "tensors = transload.load(path); here = transload.copy(src, there)",
    "views of tensors": "view = memoryview(transload.copy(src, 'cpu:0')); capsule = transload.copy(src, 'cpu:0').__dlpack__()",
    "a capsule of NumPy": "array = np.from_dlpack(transload.copy(src, 'cpu:0'))",
    "a daemon that copies": "threading.Thread(target=lambda: [transload.copy(src, dst) for _ in iter(int, 1)], daemon=True).start()",
    "a daemon that waits": "threading.Thread(target=transload.copy_async(src, dst).result, daemon=True).start()",
    "a thread that copies": "threading.Thread(target=lambda: [transload.copy(src, dst) for _ in range(5)]).start()",
    "a cycle": "holder = []; holder.append((holder, transload.copy_async(src, dst)))",
    "an error": "pending = transload.copy_async(src, dst); sys.exit(0)",
    "copies at exit": "import atexit; atexit.register(lambda: transload.copy(src, dst))",
    "awaiting at exit": "import atexit; atexit.register(lambda: transload.copy_async(src, dst).result())",
}  # fmt: skip


@pytest.mark.parametrize("left", ENDS)
def test_the_interpreter_ends_cleanly_with(left, python, tmp_path):
    out = python(
        f"""
import sys, threading
import numpy as np, transload

src, dst = np.ones(1 << 21), np.zeros(1 << 21)
path = sys.argv[1]
there = str(transload.devices()[-1])
transload.save({{str(i): src[: 1 << 16] for i in range(8)}}, path)
print('ready', flush=True)
{ENDS[left]}
""",
        tmp_path / "m.safetensors",
    )
    assert out == "ready\n"


def test_other_interpreters_refuse_the_module_clearly(python):
    if sys.version_info >= (3, 14):
        run = "import concurrent.interpreters as i\ntry:\n    i.create().exec('import transload')\nexcept i.ExecutionFailed as e:\n    print(e)"
    elif sys.version_info >= (3, 13):
        run = "import _interpreters as i\nprint(i.exec(i.create(), 'import transload').formatted)"
    else:
        run = "import _xxsubinterpreters as i\ntry:\n    i.run_string(i.create(), 'import transload')\nexcept i.RunFailedError as e:\n    print(e)"
    out = python("import transload\n" + run)
    assert "ImportError" in out
    assert "subinterpreters" in out


def test_an_import_alone_opens_no_device(python):
    out = python("import transload, threading\nprint(threading.active_count(), transload.__version__)")
    assert out.startswith("1 0.")
