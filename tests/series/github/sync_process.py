"""A process that makes several syncs at once against the local GitHub, and prints how each of them ended.

It begins with a line on its standard input, so that all processes begin together.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from asterism.series.compare_and_swap import RetryOptions
from asterism.series.github.github_register import open_github
from asterism.series.github.series_sync import SyncSettings
from asterism.series.github.sync import SyncService
from asterism.series.register import SeriesError

PATIENCE = RetryOptions(tries=0, jitter=(0.05, 0.3), deadline=120.0)


async def sync_once() -> dict[str, object]:
    register = open_github("acme/rocket", environ=os.environ, max_wait=300.0)
    service = SyncService(register, SyncSettings("robot", retry=PATIENCE, lock_deadline=60.0))
    try:
        report = await service.sync()
        return {
            "statuses": [series.status for series in report.series],
            "problems": [series.problem for series in report.series if series.problem],
            "promoted": [series.promoted for series in report.series if series.promoted],
            "counts": service.metrics.counts,
        }
    except SeriesError as error:
        return {"statuses": [type(error).__name__], "problems": [str(error)], "promoted": [], "counts": {}}
    finally:
        await register.close()


async def sync_many(count: int) -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    ends = await asyncio.gather(*(sync_once() for _ in range(count)))
    print(json.dumps(ends), flush=True)


def main() -> None:
    asyncio.run(sync_many(int(sys.argv[1])))
