"""Every public name is documented, and what the documentation shows is so."""

import doctest
import inspect

import numpy as np
import pytest

import transload


def documented():
    """Every docstring of the package, by name."""
    found = {"transload": transload.__doc__, "transload.errors": transload.errors.__doc__}
    holders = {"transload": transload, "transload.errors": transload.errors}
    for prefix, holder in holders.items():
        names = transload.__all__ if holder is transload else dir(holder)
        for name in names:
            thing = getattr(holder, name)
            if name.startswith("_") or inspect.ismodule(thing) or name == "Any":
                continue
            found[f"{prefix}.{name}"] = thing.__doc__
            if inspect.isclass(thing) and holder is transload and thing is not transload.Error:
                # In an order that other processes have, too: runners that share the tests out compare it.
                for part, value in sorted(vars(thing).items()):
                    if not part.startswith("_"):
                        found[f"{prefix}.{name}.{part}"] = value.__doc__
    return found


@pytest.mark.parametrize("name", documented())
def test_docstrings_are_there_and_their_examples_run(name, tmp_path, monkeypatch):
    text = documented()[name]
    assert text and text.strip()
    monkeypatch.chdir(tmp_path)
    globs = {"transload": transload, "np": np}
    test = doctest.DocTestParser().get_doctest(text, globs, name, None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    told = []
    runner.run(test, out=told.append)
    assert runner.failures == 0, "".join(told)


@pytest.mark.parametrize(
    "name", ["copy", "copy_async", "copy_blocks", "empty", "load", "stream", "save", "inspect", "explain", "probe", "devices", "trim"]
)
def test_functions_say_what_they_take_return_and_raise(name):
    function = getattr(transload, name)
    text = function.__doc__
    parameters = inspect.signature(function).parameters
    if parameters:
        section = text.split("Parameters\n", 1)[1]
        for parameter in parameters:
            assert f"\n{parameter} : " in section, parameter
    for section in ("Returns\n", "Raises\n"):
        assert section in text or name == "trim"
    # Whether it blocks, or for how long.
    assert "block" in text.lower() or "wait" in text.lower()
