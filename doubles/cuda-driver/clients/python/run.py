"""Runs every test of this folder, and ends with a line that cargo's test runners end with."""

import sys
import unittest
from pathlib import Path

suite = unittest.defaultTestLoader.discover(str(Path(__file__).resolve().parent))
result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
failed = len(result.failures) + len(result.errors)
passed = result.testsRun - failed - len(result.skipped)
word = "ok" if result.wasSuccessful() else "FAILED"
print(f"test result: {word}. {passed} passed; {failed} failed; {len(result.skipped)} ignored")
sys.exit(not result.wasSuccessful())
