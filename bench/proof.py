"""Proof of what was timed: there is a figure only if all of the work was done, once, with the result that it should
have, as the plan or the store itself says afterwards.

Everything here raises AssertionError. Modules of Asterism are imported where they are needed: ``bench.compare_commits``
checks plans of commits with another layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from asterism import Constellation

if TYPE_CHECKING:
    from asterism.core.run.run import Run
    from asterism.orchestrator.result import Result
    from asterism.store.protocol import Store

SHOWN = 5
"""How many wrong tasks an error names."""

PAGE = 5000


def check_plan(plan: Result | Constellation, values: Mapping[str, Any]) -> None:
    """A plan has completed: it has exactly these tasks, each completed at its first attempt and has this value."""
    assert plan.state == "completed", f"the plan is {plan.state}: {_wrong(plan, values)}"
    assert not (wrong := _wrong(plan, values)), f"not done as it should be: {wrong}"
    assert len(plan) == len(values), f"the plan has {len(plan)} tasks, not {len(values)}"


def _wrong(plan: Result | Constellation, values: Mapping[str, Any]) -> list[str]:
    texts = []
    for task in plan:
        if task.id not in values:
            texts.append(f"{task.id} should not be there")
        elif task.status != "completed":
            texts.append(f"{task.id} is {task.status} {task.reason}".rstrip())
        elif task.attempts != 1:
            texts.append(f"{task.id} was executed {task.attempts} times")
        elif task.value != values[task.id]:
            texts.append(f"{task.id} has the value {task.value!r}, not {values[task.id]!r}")
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return texts[:SHOWN] + more


def nothing(names: Iterable[object]) -> dict[str, None]:
    """The values of tasks that return nothing."""
    return dict.fromkeys(map(str, names))


async def check_stored_plan(store: Store, name: str, values: Mapping[str, Any]) -> None:
    """``check_plan`` with the plan as it is in the store."""
    from asterism.durable.journal_store import load

    check_plan((await load(store, name)).plan, values)


async def check_runs(store: Store, number: int) -> None:
    """The store has exactly so many runs; each has completed, and was given to a device once."""
    runs = await all_runs(store)
    statuses = Counter(str(run.status) for run in runs)
    assert statuses == {"completed": number}, f"{number} runs should have completed: {dict(statuses)}"
    repeated = [run.id for run in runs if run.epoch != 1]
    assert not repeated, f"{len(repeated)} runs were given out more than once: {repeated[:SHOWN]}"


async def check_created(store: Store, number: int) -> None:
    """The store has exactly so many runs, and each waits for a device."""
    statuses = Counter(str(run.status) for run in await all_runs(store))
    assert statuses == {"created": number}, f"{number} runs should wait: {dict(statuses)}"


async def all_runs(store: Store) -> list[Run]:
    from asterism.store.protocol import Query

    runs: list[Run] = []
    while page := await store.find(Query(after=runs[-1].id if runs else None, limit=PAGE)):
        runs += page
    assert len({run.id for run in runs}) == len(runs), "a run is listed twice"
    return runs
