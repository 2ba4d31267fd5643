"""The collector of a device's process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from asterism.base.gc_tuning import GC_THRESHOLD, tune_gc
before = gc.get_threshold()[0]
tune_gc()
print(before < GC_THRESHOLD == gc.get_threshold()[0], gc.get_freeze_count() > 1000)
"""


def test_it_looks_less_often_and_not_at_what_was_there() -> None:
    """In a process of its own: the collector of this one is its own affair."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
