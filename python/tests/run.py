"""Runs every test of this folder, and ends with a line that cargo's test runners end with."""

import sys
from pathlib import Path

import pytest


class Tally:
    """Prints the numbers of tests as libtest does, and the reason of each skip."""

    def pytest_terminal_summary(self, terminalreporter):
        of = terminalreporter.stats.get
        skipped = of("skipped", [])
        for reason in sorted({report.longrepr[2] for report in skipped}):
            print(f"skipped: {reason.removeprefix('Skipped: ')}")
        passed = len(of("passed", [])) + len(of("xfailed", []))
        failed = len(of("failed", [])) + len(of("error", [])) + len(of("xpassed", []))
        word = "FAILED" if failed else "ok"
        print(f"test result: {word}. {passed} passed; {failed} failed; {len(skipped)} ignored")


# Processes that a test spawns take this file in, too.
if __name__ == "__main__":
    sys.dont_write_bytecode = True
    folder = str(Path(__file__).resolve().parent)
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:], folder], plugins=[Tally()]))
