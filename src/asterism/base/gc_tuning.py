"""The garbage collector of a process that is a device or an orchestrator.

Most of what a busy one makes is gone a moment later, without any help. Python nevertheless looks for cycles whenever
700 more things were made than went, which costs it a tenth of its time. Here it looks less often, and never again
at what was there from the beginning. This is for whoever owns the process: a library has no business to do it.
"""

from __future__ import annotations

import gc

GC_THRESHOLD = 20_000
"""So many more things than before make it worth a look."""


def tune_gc() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
