"""What the runs of the benchmarks execute: nothing, in the way that is told."""

import time

NOTHING = "bench.runs.work:nothing"
MOMENT = "bench.runs.work:moment"


async def nothing() -> None:
    """Jobs that do nothing show what everything else costs."""


async def moment() -> float:
    """When it began. On Linux this clock is the same for all processes."""
    return time.monotonic()
