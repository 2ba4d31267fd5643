"""Garbage collection of a process that is a device or an orchestrator."""

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


def test_the_collector_runs_less_often_and_skips_objects_of_the_start() -> None:
    """In a process of its own, since it changes the collector of the whole process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
