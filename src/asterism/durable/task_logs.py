"""The logs of a plan in a store: each execution of a task is a run, and the log of the run is that of the task."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from asterism.core.attempt_log import TaskLog
from asterism.core.history import Entry
from asterism.core.plan.constellation import Constellation
from asterism.core.run.run import Run
from asterism.core.run.transitions import attempts_of
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import PREFIX
from asterism.orchestrator.plan_logs import tasks_with_tracebacks, tracebacks_in
from asterism.store.protocol import Query, Store

MOST_TRACEBACKS = 100
"""Of how many tasks a story shows tracebacks."""


class TaskRun(NamedTuple):
    """A run that executed a task. ``before`` is how many attempts earlier runs of the task had."""

    task: str
    epoch: int
    run: Run
    before: int


async def task_runs(store: Store, plan: str, task: str | None = None) -> list[TaskRun]:
    """The runs of a plan, or of one of its tasks, in the order of their creation. Old runs may have been pruned."""
    begin = f"{PREFIX}{plan}/" if task is None else f"{PREFIX}{plan}/{task}/"
    runs: list[TaskRun] = []
    attempts: dict[str, int] = {}
    # the search spares the decoding of the runs of all other tasks
    for run in await store.find(Query(workflow=f"{PREFIX}{plan}", search=None if task is None else begin)):
        key = run.key or ""
        name, _, epoch = key.removeprefix(f"{PREFIX}{plan}/").rpartition("/")
        if not key.startswith(begin) or not epoch.isdecimal() or task not in (None, name):
            continue
        runs.append(TaskRun(name, int(epoch), run, attempts.get(name, 0)))
        attempts[name] = attempts.get(name, 0) + attempts_of(run)
    return runs


async def task_logs(fleet: Fleet, plan: str, task: str) -> list[TaskLog]:
    """What each attempt at a task of a stored plan printed, oldest first, wherever it ran:
    ``(await task_logs(fleet, "nightly", "load"))[-1].text``. Attempts that printed nothing are left out."""
    return await _logs(fleet, await task_runs(fleet.store, plan, task))


async def logs_of_tasks(fleet: Fleet, plan: str, tasks: Collection[str]) -> dict[str, list[TaskLog]]:
    """The same for several tasks, with one search for their runs."""
    runs: dict[str, list[TaskRun]] = {task: [] for task in tasks}
    for task_run in await task_runs(fleet.store, plan):
        if task_run.task in runs:
            runs[task_run.task].append(task_run)
    return {task: await _logs(fleet, runs_of_task) for task, runs_of_task in runs.items()}


async def story_tracebacks(fleet: Fleet, plan: Constellation, story: Sequence[Entry]) -> dict[int, str]:
    """The tracebacks in the story of a stored plan, by the place of the entry. Of at most ``MOST_TRACEBACKS`` tasks:
    those that failed last."""
    tasks = tasks_with_tracebacks(plan, story)[-MOST_TRACEBACKS:]
    return tracebacks_in(story, await logs_of_tasks(fleet, plan.id, tasks)) if tasks else {}


async def _logs(fleet: Fleet, runs: Sequence[TaskRun]) -> list[TaskLog]:
    return [TaskLog(run.before + log.attempt, log.chunks) for run in runs for log in await fleet.logs(run.run.id)]
