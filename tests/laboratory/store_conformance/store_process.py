"""A process with an open store: the program that tests start and kill.

    python -P store_process.py MODULE:FUNCTION ADDRESS JOB NAME

It prints ``ready``, waits for a line, does its job, and prints what was acknowledged at once. It imports nothing of the
tests, so that it starts fast.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Awaitable, Callable

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.core.run.session import Session
from asterism.core.run.work import Workflow
from asterism.store.protocol import Notice, PutRegister, PutRun, PutSession, Store, TakeRequest
from asterism.store.store_errors import Conflict

FLOW = Workflow("transcode", argv=("true",), version=1)
JOB_TIMEOUT = 600.0
"""A job that takes so many seconds hangs."""

WRITERS = 4
"""How many tasks write at once: whenever the process is killed, a commit is in progress."""


def say(what: str) -> None:
    os.write(sys.stdout.fileno(), f"{what}\n".encode())  # one call: a line is written completely or not at all


async def increment(store: Store, key: str, *, along: Callable[[], list[PutRun]] = list) -> None:
    """Increment a register, in one batch with the writes of ``along``."""
    while True:
        register = await store.register(key)
        value, revision = (register.value, register.revision) if register else (0, None)
        try:
            await store.commit([*along(), PutRegister(key, value + 1, revision)])
        except Conflict as error:
            if not error.concerns("register", key):
                raise
        else:
            return


async def count(store: Store, name: str) -> None:
    """Five tasks increment one register, ten times each."""

    async def count_ten() -> None:
        for _ in range(10):
            await increment(store, "counted")
            say("counted")

    await asyncio.gather(*(count_ten() for _ in range(5)))


async def work(store: Store, name: str) -> None:
    """A device takes and completes runs, two at a time, and counts each end in the same commit."""
    session = Session(f"{name}-1", name, 1.0, slots=2)
    await store.commit([PutSession(session, None)])
    offer = TakeRequest(name, frozenset(), 100.0, 2)
    while await store.waiting():
        for run in await store.take(offer, lambda run: transitions.take(run, session.owner, 100.0)):
            grant = run.grant
            assert grant is not None
            begun = transitions.start(run, grant, 101.0)
            await store.commit([PutRun(begun, run.revision)])
            done = PutRun(transitions.complete(begun, grant, {"by": name}, 102.0), begun.revision)
            await increment(store, "completed", along=lambda done=done: [done])  # type: ignore[misc]
            say(run.id)


async def write(store: Store, name: str) -> None:
    """Commit batches of several writes, each of which can be verified, until killed."""

    async def write_forever(writer: str) -> None:
        number = 0
        while True:
            data = f"{writer}.{number}".encode()
            blob = {"$blob": await store.put_blob(data), "size": len(data)}
            run: Run = transitions.create(f"{writer}.{number}", FLOW, blob, by=name, now=1.0)
            await store.commit(
                [
                    PutRegister(f"first/{writer}.{number}", number, None),
                    PutRun(run, None),
                    PutRegister(f"count/{writer}", number + 1, number or None),
                    Notice(1.0, "written", run.id, run.id, name),
                    PutRegister(f"last/{writer}.{number}", number, None),
                ]
            )
            say(run.id)
            number += 1

    await asyncio.gather(*(write_forever(f"{name}{writer}") for writer in range(WRITERS)))


JOBS: dict[str, Callable[[Store, str], Awaitable[None]]] = {"count": count, "work": work, "write": write}


async def main(opener: str, address: str, job: str, name: str) -> None:
    module, _, function = opener.partition(":")
    store: Store = await getattr(importlib.import_module(module), function)(address)
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    try:
        async with asyncio.timeout(JOB_TIMEOUT):
            await JOBS[job](store, name)
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
