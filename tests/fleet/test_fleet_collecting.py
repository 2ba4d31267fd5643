"""The collector of a device's process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from asterism.base.gc_tuning import YOUNG, look_less_often
before = gc.get_threshold()[0]
look_less_often()
print(before < YOUNG == gc.get_threshold()[0], gc.get_freeze_count() > 1000)
"""


def test_it_looks_less_often_and_not_at_what_was_there() -> None:
    """In a process of its own: the collector of this one is its own affair."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
