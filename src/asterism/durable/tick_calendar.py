"""The ticks of a schedule with the plans or runs that were created for them, in parts of bounded size.

Plans are found by their names, which are those of the schedule and the tick, so that also those of a backfill with
other ticks are there, and those from before the times of the schedule were changed. Runs of a workflow are found by the
keys of the present ticks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from asterism.core.run.run import COMPLETED, FAILED, PROCESSING, Run
from asterism.core.schedule import calendar, ticks
from asterism.core.schedule.backfill import ticks_between
from asterism.core.schedule.calendar import Calendar, CalendarTick, TickWork
from asterism.core.schedule.schedule import Schedule
from asterism.durable.plan_summaries import ListedPlan, UnreadablePlan, list_plans
from asterism.fleet.backfills import TICKS_PER_TURN
from asterism.fleet.fleet import Fleet
from asterism.fleet.scheduled_work import plan_name, ticks_of
from asterism.store.protocol import PlanQuery, Query, Store

PLAN_STATES = {
    "completed": calendar.SUCCEEDED,
    "failed": ticks.FAILED,
    "partially_failed": ticks.FAILED,
    "cancelled": calendar.CANCELLED,
    "executing": calendar.RUNNING,
    "cancelling": calendar.RUNNING,
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
    known = Calendar(schedule, await fleet.schedules.history(schedule.name), fleet.store.clock())
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
    state = PLAN_STATES.get(plan.state_name, calendar.WAITING)
    return TickWork(name, state, plan.summary.started_at, plan.summary.ended_at)


async def _runs(store: Store, schedule: Schedule, numbers: Sequence[int]) -> dict[int, TickWork]:
    tick_of_key = {ticks.tick_key(schedule.name, tick): tick for tick in numbers}
    runs = await store.find(Query(keys=frozenset(tick_of_key))) if tick_of_key else []
    return {tick_of_key[run.key or ""]: _run_work(run) for run in runs}


def _run_work(run: Run) -> TickWork:
    if run.status == COMPLETED:
        state = calendar.SUCCEEDED
    elif run.status == FAILED:
        state = calendar.CANCELLED if run.cancelled else ticks.FAILED
    else:
        state = calendar.RUNNING if run.status == PROCESSING else calendar.WAITING
    return TickWork(run.id, state, run.started_at, run.ended_at, run.error or "")
