"""The work of the runs of the benchmarks: nothing, or only a look at the clock."""

import time

NOTHING = "bench.runs.work:nothing"
MOMENT = "bench.runs.work:moment"


executed = 0
"""How often this process has done nothing."""


async def nothing() -> None:
    """Jobs that do nothing show what everything else costs."""
    global executed
    executed += 1


async def moment() -> float:
    """When it began. On Linux this clock is the same for all processes."""
    return time.monotonic()
