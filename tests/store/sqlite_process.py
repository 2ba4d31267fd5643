"""A process with an open SQLite store: ``python sqlite_process.py JOB FILE [NAME]``.

It prints ``ready``, waits for a line, does its job, and prints what it did.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from asterism.core.run import transitions
from asterism.store.protocol import PutRun
from asterism.store.sqlite import SqliteStore
from asterism.store.store_errors import Conflict
from tests.store.sqlite_fixtures import ME, opened, run

RIVALS = 60
"""How many runs two processes compete for."""


async def open_it(file: Path, name: str) -> None:
    ready()
    async with opened(file) as store:
        print(await store.check(), flush=True)


async def claim_all(file: Path, name: str) -> None:
    """Try to claim each of the runs, and print those that were claimed."""
    async with opened(file) as store:
        ready()
        for number in range(RIVALS):
            try:
                await store.commit([PutRun(transitions.take(run(number), ME, 1.0).changed(device=name), 1)])
                print(number, flush=True)
            except Conflict:
                pass


async def write_for_ever(file: Path, name: str) -> None:
    """Commit hundreds of runs at once, and print each when it is acknowledged."""
    store = await SqliteStore.open(file, busy_timeout=120.0)
    ready()

    async def write(first: int) -> None:
        number = first
        while True:
            await store.commit([PutRun(run(number), None)])
            print(number, flush=True)
            number += 300

    await asyncio.gather(*(write(first) for first in range(300)))


async def commit_once(file: Path, name: str) -> None:
    async with opened(file) as store:
        ready()
        await store.commit([PutRun(run(1), None)])


def ready() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


JOBS = {job.__name__: job for job in (open_it, claim_all, write_for_ever, commit_once)}

if __name__ == "__main__":
    asyncio.run(JOBS[sys.argv[1]](Path(sys.argv[2]), "".join(sys.argv[3:])))
