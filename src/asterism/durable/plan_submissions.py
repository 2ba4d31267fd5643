"""Submitted plans: a register names each plan that some plan runner has to run until it has ended.

A plan is stored together with its submission, in one commit. A plan that was stopped is submitted again when a person
resumes it; one that is reopened by an edit, or for a retry through a server, in the commit that reopens it. A plan
runner (plan_runner.py) in any process runs what is submitted and run nowhere. It removes a submission only together
with the end of the plan that it read: if the plan was reopened meanwhile, it stays.

What durable plans plug into fleets: how the plan of a tick is stored, whether it has ended, how it is cancelled.

A schedule keeps a plan as a document: the plan as JSON, and its lock policy. A tick stores a copy of it under a name of
its own, in the commit that moves the schedule on. A process that runs plans takes it up (plan_runner.py).

``read_ticks`` reads the ticks of a schedule with the plans or runs that were created for them, in parts of bounded
size. Plans are found by their names, which are those of the schedule and the tick, so that also those of a backfill
with other ticks are there, and those from before the times of the schedule were changed. Runs of a workflow are found
by the keys of the present ticks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asterism.core.errors import PlanError
from asterism.core.json_values import NOTHING, plain_json
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.journal import UnreadableJournal
from asterism.core.plan.status import ConstellationState
from asterism.core.plan.task_files import handles_files
from asterism.core.run.run import COMPLETED, FAILED, PROCESSING, Run
from asterism.core.schedule import ticks
from asterism.core.schedule.schedule import Schedule
from asterism.core.schedule.tick_values import TickValues
from asterism.core.schedule.ticks import Calendar, CalendarTick, TickWork, ticks_between
from asterism.durable.journal_store import (
    ConstellationExists,
    UnknownConstellation,
    check_storable,
    head_key,
    insertion,
    read_head,
    unstarted,
)
from asterism.durable.plan_summaries import ListedPlan, UnreadablePlan, list_plans
from asterism.durable.plan_turns import AWAITED, entering, turn_terms
from asterism.durable.runner_registers import SUBMITTED, submission
from asterism.execution.artifacts import ArtifactProblem, Artifacts
from asterism.execution.plan_tick import with_tick
from asterism.fleet.fleet import Fleet
from asterism.fleet.scheduled_work import plan_name, ticks_of
from asterism.fleet.schedules import TICKS_PER_TURN
from asterism.fleet.stored_limits import check_plan_limits
from asterism.store.optimistic_update import retry_on_conflict, try_commit
from asterism.store.protocol import ExpectRegister, PlanQuery, PutRegister, Query, Register, Store, Write


async def submit_plan(
    fleet: Fleet,
    plan: Constellation,
    *,
    policy: str = "scoped",
    params: Mapping[str, Any] = NOTHING,
    options: Mapping[str, Any] = NOTHING,
    names: Iterable[str] = (),
    file: str = "",
) -> None:
    """Store a plan under its id, or under the first of ``names`` that is free, to be run by a plan runner.
    ``options`` are those of its edits and runs, ``file`` is the name of its plan file. Raises ConstellationExists,
    PlanError for a name that cannot be stored, and NotJson if another process could not execute a task."""
    await check_place(fleet, plan)
    store = fleet.store
    await check_plan_limits(store, plan)
    document = {**plan_document(plan, policy, fleet.by), "params": plain_json(dict(params), "params"), "file": file}
    document["terms"] = dict(options)

    async def attempt() -> None:
        if await store.register(head_key(plan.id)) is not None:
            raise ConstellationExists(f"there is a plan {plan.id!r} already; give this one another name")
        writes = plan_writes(store, plan.id, document)  # checks the name
        turn = await plan_turn(store, plan.id, document)
        await store.commit([*writes, *turn, await submission(fleet, plan.id)])

    for name in names or [plan.id]:
        plan.id = name
        with contextlib.suppress(ConstellationExists):
            return await retry_on_conflict(attempt)
    await retry_on_conflict(attempt)  # raises


async def open_submissions(store: Store) -> list[str]:
    """The submitted plans that have not ended. The submissions of others are removed."""
    names = []
    for register in await store.registers(SUBMITTED):
        name = register.key.removeprefix(SUBMITTED)
        if await _is_open(store, register, name):
            names.append(name)
    return names


async def _is_open(store: Store, register: Register, name: str) -> bool:
    removal: list[Write] = [PutRegister(register.key, None, register.revision)]
    try:
        head, revision = await read_head(store, name)
    except UnknownConstellation:  # it was pruned
        await try_commit(store, removal)
        return False
    except UnreadableJournal:  # its runner reports that; it holds up no other plan
        return True
    if head.ended:  # if it is reopened meanwhile, nothing is removed
        await try_commit(store, [*removal, ExpectRegister(head_key(name), revision)])
    return not head.ended


# -- schedule port -----------------------------------------------------------------------------------------------------


def plan_document(plan: Constellation, policy: str, by: str) -> dict[str, Any]:
    """A plan as a schedule keeps it. ``by`` is its author. Raises NotJson if another process could not execute a task
    of it."""
    check_storable(plan)
    return {"plan": {**plan.to_json(), "source": plan.source or plan.id, "author": by}, "policy": policy}


def plan_writes(
    store: Store, name: str, document: Mapping[str, Any], tick: TickValues = NOTHING, awaited: str | None = None
) -> Sequence[Write]:
    """The writes that store the plan of a document under a name, with the values of a tick; the first is the head of
    the plan. If it is to wait for the success of another plan, that is ``awaited``. Raises UnknownPlaceholder."""
    plan = _ticked(document, tick)
    plan.id = name
    terms = {"policy": document["policy"], **document.get("terms", {}), **turn_terms(plan)}
    if awaited is not None:
        terms[AWAITED] = awaited
    recorded, lock, options = unstarted(plan, terms)
    return insertion(store, recorded, lock, options, document.get("params", {}), file=document.get("file", ""))[1]


def _ticked(document: Mapping[str, Any], tick: TickValues) -> Constellation:
    plan = Constellation.from_json(document["plan"])
    return with_tick(plan, tick) if tick else plan


async def plan_turn(
    store: Store, name: str, document: Mapping[str, Any], tick: TickValues = NOTHING
) -> Sequence[Write]:
    """The write with which the plan of a document waits for its turn among the plans of its file; none if it needs
    none. Raises PlanOverlaps."""
    if not document["plan"].get("overlap"):
        return []
    return await entering(store, name, turn_terms(_ticked(document, tick)))


async def plan_ended(store: Store, name: str) -> bool:
    """Whether a stored plan has ended, or was removed. One that cannot be read has not."""
    try:
        head, _ = await read_head(store, name)
    except UnknownConstellation:
        return True
    except UnreadableJournal:
        return False
    return head.ended


async def plan_succeeded(store: Store, name: str) -> bool:
    """Whether a stored plan has completed."""
    try:
        head, _ = await read_head(store, name)
    except UnknownConstellation:
        return False
    return head.state == ConstellationState.COMPLETED


async def run_again(fleet: Fleet, name: str, reason: str) -> None:
    """Run again what failed in a plan that has ended. Raises PlanError if that cannot be."""
    from asterism.durable.plan_actor import retry_plan

    await retry_plan(fleet, name, reason=reason, submit=True)


async def plan_cancelling(store: Store, name: str) -> bool:
    """Whether a stored plan is being cancelled, by its owner or the next one."""
    try:
        head, _ = await read_head(store, name)
    except (UnknownConstellation, UnreadableJournal):
        return False
    return not head.ended and head.cancelling


async def cancel_plan(fleet: Fleet, name: str, reason: str) -> None:
    """Ask the owner of a plan to cancel it. Does nothing if it has ended."""
    from asterism.durable import plan_actor

    with contextlib.suppress(PlanError):  # it has ended
        await plan_actor.cancel_plan(fleet, name, reason)


# -- files of tasks ----------------------------------------------------------------------------------------------------


async def check_place(fleet: Fleet, plan: Constellation) -> None:
    """Raise PlanError for a plan with files if the fleet has no place for them."""
    for node in plan.nodes.values():
        if handles_files(node.task):
            try:
                await fleet.artifacts()
            except ArtifactProblem as error:
                raise PlanError(f"task {node.id!r} has files, and {error}") from None
            return


async def readable_files(fleet: Fleet) -> Artifacts | None:
    """The files that tasks have made; None if the fleet has no place for any."""
    try:
        return await fleet.files()
    except ArtifactProblem:
        return None


# -- the ticks of a schedule -------------------------------------------------------------------------------------------


PLAN_STATES = {
    "completed": ticks.SUCCEEDED,
    "failed": ticks.FAILED,
    "partially_failed": ticks.FAILED,
    "cancelled": ticks.CANCELLED,
    "executing": ticks.RUNNING,
    "cancelling": ticks.RUNNING,
}
"""The state of a tick by that of its plan; a plan in another state waits."""


async def read_ticks(
    fleet: Fleet, schedule: Schedule, first: float, last: float, limit: int
) -> tuple[list[CalendarTick], bool]:
    """The first ``limit`` ticks from one time to another, both included; and whether there are more."""
    numbers = await _ticks(schedule, first, last, limit + 1)
    works: Mapping[int, TickWork]
    if schedule.plan is not None:
        works = await _plans(fleet.store, schedule, int(first), int(last), limit + 1)
    else:
        works = await _runs(fleet.store, schedule, numbers)
    # both lists are cut at the same length, so the first of the two together are complete
    together = sorted({*numbers, *works})
    now = fleet.store.clock()
    due = None if schedule.paused is not None else ticks.due_tick(schedule, now, ticks_of(schedule))
    known = Calendar(schedule, await fleet.schedules.history(schedule.name), now, due and due.tick)
    return [known.tick(tick, works.get(tick)) for tick in together[:limit]], len(together) > limit


async def _ticks(schedule: Schedule, first: float, last: float, number: int) -> list[int]:
    found = list[int]()
    for tick in ticks_between(first, last, ticks_of(schedule)):
        found.append(tick)
        if len(found) == number:
            break
        if not len(found) % TICKS_PER_TURN:
            await asyncio.sleep(0)
    return found


async def _plans(store: Store, schedule: Schedule, first: int, last: int, limit: int) -> dict[int, TickWork]:
    between = plan_name(schedule.name, first, ""), plan_name(schedule.name, last, "")
    plans = {}
    for plan in await list_plans(store, PlanQuery(between=between, limit=limit)):
        name = plan.summary.name if isinstance(plan, ListedPlan) else plan.name
        tick = ticks.tick_of(name)
        if tick is not None and name == plan_name(schedule.name, tick, ""):
            plans[tick] = _plan_work(name, plan)
    return plans


def _plan_work(name: str, plan: ListedPlan | UnreadablePlan) -> TickWork:
    if isinstance(plan, UnreadablePlan):
        return TickWork(name, ticks.FAILED, None, None, plan.why)
    state = PLAN_STATES.get(plan.state_name, ticks.WAITING)
    return TickWork(name, state, plan.summary.started_at, plan.summary.ended_at)


async def _runs(store: Store, schedule: Schedule, numbers: Sequence[int]) -> dict[int, TickWork]:
    tick_of_key = {ticks.tick_key(schedule.name, tick): tick for tick in numbers}
    runs = await store.find(Query(keys=frozenset(tick_of_key))) if tick_of_key else []
    return {tick_of_key[run.key or ""]: _run_work(run) for run in runs}


def _run_work(run: Run) -> TickWork:
    if run.status == COMPLETED:
        state = ticks.SUCCEEDED
    elif run.status == FAILED:
        state = ticks.CANCELLED if run.cancelled else ticks.FAILED
    else:
        state = ticks.RUNNING if run.status == PROCESSING else ticks.WAITING
    return TickWork(run.id, state, run.started_at, run.ended_at, run.error or "")
