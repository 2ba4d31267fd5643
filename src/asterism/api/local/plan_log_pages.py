"""What the tasks of a plan printed, as pages that continue where the one before has ended.

A position names an execution up to which all have ended and were read, and how far the others were read:
``RUN RUN:EPOCH.LINE …``. So it stays short: only what runs, or has just been created, is in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from asterism.api.documents import PlanLog, TaskLogEntry
from asterism.base.follow import Looks
from asterism.base.http_limits import RequestRefused
from asterism.core.attempt_log import LogReader
from asterism.durable.journal_store import read_head
from asterism.durable.stored_plans import read_plan, unknown_task
from asterism.durable.task_logs import TaskRun, task_runs
from asterism.fleet.fleet import Fleet, attempt_number

MOST_LINES = 5_000
"""After so many lines an answer ends."""

SETTLED_AFTER = 5.0
"""Executions are read in the order of their ids, which begin with the time. After so many seconds none comes before."""

LOOK_INTERVAL = 0.5
"""How often the store is asked for new lines, in seconds."""


@dataclass
class LogPosition:
    """``read`` is the execution up to which all were read. ``places`` are the epoch and the line up to which others
    were read, by execution."""

    read: str = ""
    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> LogPosition:
        """Raises RequestRefused."""
        if text is None:
            return cls()
        if not re.fullmatch(r"[\w-]{0,100}( [\w-]{1,100}:\d{1,9}\.\d{1,12})*", text, re.ASCII):
            raise RequestRefused(422, f"after={text[:50]!r} is not the `next` of an earlier answer")
        read, *others = text.split(" ")
        places = {}
        for part in others:
            run, _, place = part.partition(":")
            epoch, _, line = place.partition(".")
            places[run] = int(epoch), int(line)
        return cls(read, places)

    def __str__(self) -> str:
        return " ".join([self.read, *(f"{run}:{epoch}.{line}" for run, (epoch, line) in self.places.items())])

    def is_new(self, run: str) -> bool:
        """Whether an execution may have lines that were not read."""
        return run > self.read or run in self.places


async def plan_log(
    fleet: Fleet, plan: str, task: str | None, after: str | None, attempt: int | None, timeout: float
) -> PlanLog:
    """The lines after a position. Waits up to ``timeout`` seconds for some, unless the plan has ended. Raises
    UnknownConstellation and UnknownTask."""
    stored = (await read_plan(fleet, plan)).record.plan
    if task is not None and task not in stored and not await task_runs(fleet.store, plan, task):
        raise unknown_task(stored, task)
    async for last in Looks(fleet.clock, interval=LOOK_INTERVAL, timeout=timeout):
        ended = (await read_head(fleet.store, plan))[0].ended  # before the lines: the last ones come with the end
        executions = await task_runs(fleet.store, plan, task)
        position = LogPosition.parse(after)
        items, more = await _new_lines(fleet, executions, position, attempt)
        if items or ended or last:
            break
    return PlanLog(
        items=sorted(items, key=lambda line: line.at),
        next=str(position),
        now=fleet.store.clock(),
        more=more,
        ended=ended,
        executed=bool(executions),
    )


async def _new_lines(
    fleet: Fleet, executions: list[TaskRun], position: LogPosition, attempt: int | None
) -> tuple[list[TaskLogEntry], bool]:
    """The lines after a position, which moves on, and whether there are more."""
    items: list[TaskLogEntry] = []
    settled = f"{int((fleet.store.clock() - SETTLED_AFTER) * 1000) & 0xFFFFFFFFFFFF:012x}"
    all_read = True
    for execution in sorted(executions, key=lambda execution: execution.run.id):
        run = execution.run
        if len(items) >= MOST_LINES:
            return items, True
        if position.is_new(run.id):
            lines, place = await _lines_of(fleet, execution, position.places.get(run.id, (0, 0)))
            items += [line for line in lines if attempt in (None, line.attempt)]
            position.places[run.id] = place
        all_read = all_read and run.ended and run.id < settled
        if all_read:
            position.read = max(position.read, run.id)
            position.places.pop(run.id, None)
    return items, False


async def _lines_of(
    fleet: Fleet, execution: TaskRun, place: tuple[int, int]
) -> tuple[list[TaskLogEntry], tuple[int, int]]:
    """The lines of one execution after a place, and the place where they end."""
    run, (epoch, seen) = execution.run, place
    items: list[TaskLogEntry] = []
    for chunk in await fleet.store.log(run.id, after=place):
        reader = LogReader(seen if chunk.epoch == epoch else 0)
        number = execution.before + attempt_number(run, chunk.epoch)
        lines = reader.read([await fleet.log_chunk(chunk)])
        items += [TaskLogEntry(run=run.id, task=execution.task, attempt=number, **line._asdict()) for line in lines]
        epoch, seen = chunk.epoch, reader.seen
    return items, (epoch, seen)
