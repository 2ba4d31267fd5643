"""What the live view of a plan in a store reads there: which tasks devices execute, and the newest output.

The tasks of such a plan are runs of the fleet. A task "runs" for the plan as soon as its run is created, though it may
wait for a device; its output is in the store a second or two after it was printed. A frame shows what the last look at
the store has found, and waits for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from itertools import islice

from asterism.cli.log_output import RunLine, RunLogReader
from asterism.cli.plan.plan_progress import OUTPUT_LINES, OUTPUT_TASKS, Begun, FleetState, OutputTail, Progress
from asterism.core.errors import AsterismError
from asterism.core.plan.status import RUNNING
from asterism.core.run.run import PROCESSING, Run
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import PREFIX
from asterism.store.protocol import Query

LOOK_INTERVAL = 1.0
"""The shortest time between two looks at the store, in seconds."""

ASKED_TASKS = 40
"""How many running tasks are looked up: those that started first, because devices begin the oldest runs first."""


class _Tail:
    """The last lines of a run."""

    def __init__(self, reader: RunLogReader) -> None:
        self.reader = reader
        self.lines: deque[str] = deque(maxlen=OUTPUT_LINES)


class FleetProgress:
    """Finds the task that has printed last, among those that a device executes or that have just ended. Each look reads
    few runs, by their keys, and of their logs what is new."""

    def __init__(self, fleet: Fleet, progress: Progress) -> None:
        self._fleet, self._progress = fleet, progress
        self._workflow = f"{PREFIX}{progress.plan.id}"
        self._tails: dict[str, _Tail] = {}
        self._looked_at = float("-inf")
        self._look: asyncio.Task[None] | None = None
        self._newest: tuple[float, OutputTail] | None = None

    def __call__(self) -> OutputTail | None:
        now = self._fleet.store.clock()
        if self._look is None and self._progress.executing and now - self._looked_at >= LOOK_INTERVAL:
            self._looked_at = now
            self._look = asyncio.create_task(self._read())
        return None if self._newest is None else self._newest[1]

    async def close(self) -> None:
        """End a look that is under way."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.wait([self._look])

    async def _read(self) -> None:
        try:
            with contextlib.suppress(AsterismError):  # the store may be unavailable: the view continues without it
                runs = await self._runs()
                executing = [run for run in runs if run.status is PROCESSING]
                await self._read_state(runs, executing)
                await self._read_logs([*executing[-OUTPUT_TASKS:], *(run for run in runs if run.ended)])
        finally:
            self._look = None

    async def _runs(self) -> list[Run]:
        """The runs of the tasks that started first or ended last, in the order of their creation."""
        progress = self._progress
        tasks = (*islice(progress.running, ASKED_TASKS), *islice(progress.ended, OUTPUT_TASKS))
        nodes = [progress.plan.nodes[task] for task in tasks if task in progress.plan.nodes]
        keys = frozenset(f"{self._workflow}/{node.id}/{node.epoch}" for node in nodes)
        return await self._fleet.store.find(Query(keys=keys)) if keys else []

    async def _read_state(self, runs: Sequence[Run], executing: Sequence[Run]) -> None:
        count = self._progress.plan.counts[RUNNING]
        if count <= ASKED_TASKS:
            queued = sum(not run.ended and run.status is not PROCESSING for run in runs)
        else:
            kinds = await self._fleet.store.waiting()
            queued = sum(kind.number for kind in kinds if kind.workflow == self._workflow)
        begun = {self._task_of(run): Begun(run.device or "", run.started_at or self._looked_at) for run in executing}
        busy = len(executing) if count <= ASKED_TASKS else max(len(executing), count - queued)
        self._progress.fleet = FleetState(self._looked_at, begun, busy, queued)

    async def _read_logs(self, runs: Sequence[Run]) -> None:
        before, self._tails = self._tails, {}
        for run in runs:
            known = before.get(run.id)
            tail = self._tails[run.id] = known or _Tail(RunLogReader(self._fleet, run))
            if known is None or not known.reader.run.ended:  # the log of an ended run is read once
                tail.reader.run = run
                self._add(tail, self._task_of(run), await tail.reader.read())

    def _add(self, tail: _Tail, task: str, lines: Sequence[RunLine]) -> None:
        tail.lines.extend(line.line.text for line in lines[-OUTPUT_LINES:])
        if lines and (self._newest is None or lines[-1].line.at >= self._newest[0]):
            self._newest = lines[-1].line.at, OutputTail(task, list(tail.lines))

    def _task_of(self, run: Run) -> str:
        return (run.key or "").removeprefix(f"{self._workflow}/").rpartition("/")[0]
