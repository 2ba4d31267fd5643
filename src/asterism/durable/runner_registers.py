"""Plan runners: which of them live, and what they are to run.

Each plan runner (plan_runner.py) has a register, which it renews while it lives: so the answer to an edit of a plan
that no process runs can say whether one will (``is_to_be_run``).
"""

from __future__ import annotations

import contextlib

from asterism.core.schedule.schedule import InvalidSchedule, Schedule
from asterism.durable.journal_store import read_head
from asterism.fleet.fleet import Fleet
from asterism.fleet.scheduled_work import SCHEDULES, decode
from asterism.store.optimistic_update import retry_on_conflict, try_commit
from asterism.store.protocol import PutRegister, Register, Store

SUBMITTED = "submitted/"


async def submission(fleet: Fleet, name: str) -> PutRegister:
    """The write that lets a plan runner run a plan (plan_submissions.py), as part of a commit."""
    register = await fleet.store.register(f"{SUBMITTED}{name}")
    by = {"by": fleet.by, "at": fleet.store.clock()}
    return PutRegister(f"{SUBMITTED}{name}", by, None if register is None else register.revision)


RUNNERS = "runner/"
RUNNER_RENEWAL, RUNNER_TIMEOUT = 30.0, 90.0
"""Seconds between two renewals of the register of a plan runner, and without one until it counts as dead."""


async def announce_runner(store: Store, runner: str) -> None:
    """Write or renew the register of a plan runner, and remove those of dead ones."""
    runners = {register.key: register for register in await store.registers(RUNNERS)}
    own = runners.pop(f"{RUNNERS}{runner}", None)
    await try_commit(
        store, [PutRegister(f"{RUNNERS}{runner}", {"at": store.clock()}, None if own is None else own.revision)]
    )
    for dead in runners.values():
        if not _lives(store, dead):
            await try_commit(store, [PutRegister(dead.key, None, dead.revision)])


async def withdraw_runner(store: Store, runner: str) -> None:
    """Remove the register of a plan runner that ends."""
    register = await store.register(f"{RUNNERS}{runner}")
    if register is not None:
        await try_commit(store, [PutRegister(register.key, None, register.revision)])


def _lives(store: Store, runner: Register) -> bool:
    return abs(store.clock() - float(runner.value["at"])) <= RUNNER_TIMEOUT


async def runner_lives(store: Store) -> bool:
    """Whether a process runs plans."""
    return any(_lives(store, runner) for runner in await store.registers(RUNNERS))


async def is_to_be_run(store: Store, name: str) -> bool:
    """Whether a plan runner lives that is to run this plan, because it was submitted or belongs to a schedule."""
    if not await runner_lives(store):
        return False
    if await store.register(f"{SUBMITTED}{name}") is not None:
        return True
    return any(name in schedule.open for schedule in await plan_schedules(store))


async def plan_schedules(store: Store) -> list[Schedule]:
    """The schedules that create plans, also those that were removed: the plans that they have created go on."""
    schedules = []
    for register in await store.registers(SCHEDULES):
        with contextlib.suppress(InvalidSchedule):  # the coordinator logs it
            stored = decode(register, removed=True)
            if stored is not None and stored.schedule.plan is not None:
                schedules.append(stored.schedule)
    return schedules


async def submit_again(fleet: Fleet, name: str) -> None:
    """Let a plan runner run a stored plan that has not ended, if none is to yet. Raises UnknownConstellation."""

    async def attempt() -> None:
        await read_head(fleet.store, name)
        if await fleet.store.register(f"{SUBMITTED}{name}") is None:
            await fleet.store.commit([await submission(fleet, name)])

    await retry_on_conflict(attempt)
