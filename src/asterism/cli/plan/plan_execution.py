"""Run and resume a plan in a store, with a live view and Ctrl-C.

``begin`` stores the plan of a plan file and runs it, ``follow`` runs a stored plan until its end or Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shlex
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import islice
from typing import Any

import click

from asterism.api.documents import LogEntry
from asterism.api.local.run_handlers import LOG_BEGIN, LogPlace, new_lines
from asterism.api.system import LocalSystem
from asterism.base.startup import tune_gc
from asterism.base.text import join_names
from asterism.cli.cli_context import note, print_json, same_system
from asterism.cli.editor_options import editor_words, find_device_policy
from asterism.cli.interrupts import INTERRUPTED, work_until_interrupted
from asterism.cli.plan.plan_context import (
    LocalWork,
    OutputOptions,
    default_slots,
    print_result,
    prints_beside,
    warn_of_slots,
)
from asterism.cli.plan.plan_live_view import (
    OUTPUT_LINES,
    OUTPUT_TASKS,
    Begun,
    FleetState,
    OutputTail,
    Progress,
    watched,
)
from asterism.cli.plan.plan_views import command_at
from asterism.cli.plan.plan_watch import absent_devices, logs_to_show, origin_of, taken_text
from asterism.cli.screen import Screen
from asterism.core.attempt_log import lines_of
from asterism.core.errors import AlreadyRunning, AsterismError
from asterism.core.json_values import JsonObject
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node, is_process
from asterism.core.plan.status import RUNNING, ConstellationState
from asterism.core.record import replace
from asterism.core.run.run import PROCESSING, Run
from asterism.core.run.session import PLAN, Session
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import (
    ConstellationExists,
    StoredConstellation,
    UnknownConstellation,
    initial_plan,
    load,
    read_head,
)
from asterism.durable.ownership import FleetMembership
from asterism.durable.stored_plans import read_plan
from asterism.durable.task_logs import log_chunks, stored_logs
from asterism.execution.foreach_expansion import template_of
from asterism.fleet.device.membership import DeviceNameTaken
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import PREFIX
from asterism.orchestrator.options import Options
from asterism.orchestrator.result import Result
from asterism.report.result_report import Recording
from asterism.store.protocol import Query

MOST_NAMES = 5
"""How many tasks or devices a message names."""


class WatchedOrchestrator(DurableOrchestrator):
    """A durable orchestrator that shows the plan while it runs, and decides whether this process executes tasks."""

    def __init__(
        self, fleet: Fleet, local_work: LocalWork, output: OutputOptions, *, takeover_after: float, **options: Any
    ) -> None:
        policy, _ = find_device_policy(None)
        super().__init__(
            fleet,
            device_policy=policy,
            heartbeat=takeover_after / 3,
            takeover_after=takeover_after,
            **options,
        )
        self.local_work, self.output = local_work, output
        self.screen = Screen(stderr=output.to_stderr)
        self.recording: Recording | None = None
        self._joined_devices: list[Session] = []

    async def run(
        self,
        plan: Constellation,
        *,
        assignments: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        file: str = "",
    ) -> Result:
        await self._choose_local_work(plan.id)
        return await super().run(plan, assignments=assignments, params=params, file=file)

    async def run_stored(self, name: str) -> Result:
        await self._choose_local_work(name)
        try:
            return await super().run_stored(name)
        except DeviceNameTaken:
            raise AlreadyRunning(
                f"plan {name!r} is run by another process on this machine; "
                f"to take over when it ends, use: asterism plan standby {name}"
            ) from None

    async def _choose_local_work(self, name: str) -> None:
        """Execute tasks here if the options say so, or if no device has joined.

        Processes of other plans do not count as devices: they leave when their plan has ended, and a dead one still has
        a session for a while."""
        now = self.fleet.store.clock()
        self._joined_devices = [
            session
            for session in await self.fleet.store.sessions()
            if session.reachable(now) and session.slots and not session.draining and PLAN not in session.profile
        ]
        slots = self.local_work.slots
        if slots is None:
            slots = 0 if self._joined_devices else default_slots(self.options.concurrency)
        self.local, self.can = slots, tuple(self.local_work.can or ())
        if slots and self.local_work.can is None:
            nodes = (await load(self.fleet.store, name)).plan.nodes.values()
            tasks = [template_of(node.task) or node.task for node in nodes]
            self.can = tuple(sorted({need for task in tasks for need in task.needs}))

    async def own(self, kept: StoredConstellation, member: FleetMembership) -> Result:
        if self.local_work.slots is None and self.local:
            note(f"No device is joined: this process executes the tasks, {self.local} at once. Devices may join later.")
        joined = sum(session.slots for session in self._joined_devices)
        warn_of_slots(self.options.concurrency, self.local + joined, "this process and the joined devices have")
        for line in absent_devices(kept.plan, {session.device: session.can for session in self._joined_devices}):
            note(line)
        if self.options.external:
            cycles = f"asterism plan cycles {kept.plan.id}{same_system(self.fleet.store.url)}"
            note(f"Edit cycles wait for editors. List them: {cycles}")
        self.recording = Recording(kept.plan, self.events)
        try:
            return await super().own(kept, member)
        finally:
            self.recording.close()

    def waits_for_turn(self, name: str, ahead: str) -> None:
        note(f"Plan {name!r} waits for its turn: plan {ahead!r} of the same file or key has not ended.")

    def plan_options(self, plan: Constellation) -> Options:
        """Tasks are ranked by their estimates if at least one of them has one."""
        estimated = any(node.task.estimate is not None for node in plan.nodes.values())
        return replace(self.options, rank=estimated)

    def watch(self, kept: StoredConstellation) -> AbstractAsyncContextManager[object]:
        output = partial(FleetProgress, self.fleet)
        return watched(self, kept.plan, self.screen, plain=self.output.plain, output=output)


async def follow(
    orchestrator: WatchedOrchestrator,
    plan: Constellation | str,
    begin: Callable[[], Coroutine[Any, Any, Result]],
    *,
    standby: bool = False,
) -> int:
    """Run a plan until it has ended or Ctrl-C stops this process. ``plan`` is its name; or the plan, which gets its
    name when it is stored. Returns the exit code."""
    fleet, output = orchestrator.fleet, orchestrator.output
    tune_gc()
    with prints_beside(output):
        result = await work_until_interrupted(begin(), lambda: _stopped(fleet, _name_of(plan)))
    name = _name_of(plan)
    if result is not None:
        system = LocalSystem(fleet)
        logs = await logs_to_show(system, result, everything=output.report is not None)
        origin = None if output.report is None else await origin_of(system, name)
        code = print_result(result, orchestrator.recording, output, orchestrator.screen, logs, origin)
        if result.state in (ConstellationState.FAILED, ConstellationState.PARTIALLY_FAILED):
            note(f"Run what failed again with: {_with_editor(command_at(fleet.store.url, 'plan retry', name))}")
        return code
    try:
        head, _ = await read_head(fleet.store, name)
    except UnknownConstellation:
        note(f"Stopped before {name!r} was stored: nothing has happened.")
        return INTERRUPTED
    if standby and orchestrator.recording is None:
        note(f"Stopped standing by for {name!r}.")
    else:
        note(_stopped(fleet, name))
    if output.as_json:
        print_json({"id": name, "state": head.state, "exit_code": INTERRUPTED, "left": True})
    return INTERRUPTED


def _name_of(plan: Constellation | str) -> str:
    return plan if isinstance(plan, str) else plan.id


def _stopped(fleet: Fleet, name: str) -> str:
    return f"Stopped {name!r}. Resume it with: {_with_editor(command_at(fleet.store.url, 'resume', name))}"


def _with_editor(command: str) -> str:
    """An advised command, with the options of the editor of this one: they are not kept with the plan."""
    return shlex.join([*shlex.split(command), *editor_words()])


async def begin(
    orchestrator: WatchedOrchestrator, plan: Constellation, params: Mapping[str, Any], names: Iterable[str], file: str
) -> Result:
    """Store a plan under the first of ``names`` that is free, and run it. If all are taken, nothing changes and the
    error describes the existing plan."""
    for name in names:
        plan.id = name
        with contextlib.suppress(ConstellationExists):
            return await orchestrator.run(plan, params=params, file=file)
    raise click.ClickException(await _name_is_taken(orchestrator.fleet, plan))


async def _name_is_taken(fleet: Fleet, plan: Constellation) -> str:
    kept = await read_plan(fleet, plan.id)
    first = await initial_plan(fleet.store, plan.id)
    if first is None:
        compared = "A change of the plan file does not change it"
    elif changes := differences(first, plan):
        compared = f"The plan file has changed since its start: {changes}"
    else:
        compared = "The plan file has not changed since its start"
    url = fleet.store.url
    resume = f"Resume it as stored with: {_with_editor(command_at(url, 'resume', plan.id))}"
    retry = _with_editor(command_at(url, "plan retry", plan.id))
    return taken_text(url, plan.id, kept.state_name, kept.record.plan.version, compared, resume, retry)


def differences(old: Constellation, new: Constellation) -> str:
    """Which tasks differ, in words; empty if none does."""
    before, after = _outline(old), _outline(new)
    groups = [
        (sorted(after.keys() - before.keys()), "new"),
        (sorted(before.keys() - after.keys()), "gone"),
        (sorted(name for name in before.keys() & after.keys() if before[name] != after[name]), "changed"),
    ]
    return "; ".join(f"{join_names(names, MOST_NAMES)} {word}" for names, word in groups if names)


def _outline(plan: Constellation) -> JsonObject:
    """Each task with its dependencies."""
    return {
        node.id: (node.task.to_json(), {source: edge.to_json() for source, edge in node.parents.items()})
        for node in plan.nodes.values()
    }


# -- what the live view reads in the store -----------------------------------------------------------------------------


LOOK_INTERVAL = 1.0
"""The shortest time between two looks at the store, in seconds."""

ASKED_TASKS = 40
"""How many running tasks are looked up: those that started first, because devices begin the oldest runs first."""


@dataclasses.dataclass
class _Tail:
    """The last lines of a run. ``ended``: the run had ended when its log was read up to ``place``."""

    place: LogPlace = LOG_BEGIN
    ended: bool = False
    lines: deque[str] = dataclasses.field(default_factory=lambda: deque(maxlen=OUTPUT_LINES))


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
                await self._read_own_logs()
        finally:
            self._look = None

    async def _runs(self) -> list[Run]:
        """The runs of the tasks that started first or ended last, in the order of their creation."""
        progress = self._progress
        tasks = (*islice(progress.running, ASKED_TASKS), *islice(progress.ended, OUTPUT_TASKS))
        nodes = [progress.plan.nodes[task] for task in tasks if task in progress.plan.nodes]
        keys = frozenset(f"{self._workflow}/{node.id}/{node.epoch}" for node in nodes)
        return await self._fleet.store.find(Query(keys=keys)) if keys else []

    def _own(self) -> list[Node]:
        """The running tasks that the process of the plan executes itself, as many as a view shows."""
        progress = self._progress
        nodes = (progress.plan.nodes.get(task) for task in islice(progress.running, ASKED_TASKS))
        return [node for node in nodes if node is not None and node.status is RUNNING and is_process(node.device)]

    async def _read_state(self, runs: Sequence[Run], executing: Sequence[Run]) -> None:
        count = self._progress.plan.counts[RUNNING]
        if count <= ASKED_TASKS:
            queued = sum(not run.ended and run.status is not PROCESSING for run in runs)
        else:
            kinds = await self._fleet.store.waiting()
            queued = sum(kind.number for kind in kinds if kind.workflow == self._workflow)
        begun = {self._task_of(run): Begun(run.device or "", run.started_at or self._looked_at) for run in executing}
        own = {node.id: Begun(node.device or "", node.begun_at) for node in self._own()}
        begun = own | begun
        busy = len(begun) if count <= ASKED_TASKS else max(len(begun), count - queued)
        self._progress.fleet = FleetState(self._looked_at, begun, busy, queued)

    async def _read_logs(self, runs: Sequence[Run]) -> None:
        before, self._tails = self._tails, {}
        for run in runs:
            tail = self._tails[run.id] = before.get(run.id, _Tail())
            if not tail.ended:  # the log of an ended run is read once
                tail.ended = run.ended
                lines, tail.place = await new_lines(self._fleet, run, tail.place)
                self._add(tail, self._task_of(run), lines)

    async def _read_own_logs(self) -> None:
        store, plan = self._fleet.store, self._progress.plan.id
        for log in (await stored_logs(store, plan))[-OUTPUT_TASKS:]:
            lines = lines_of(await log_chunks(store, plan, log.id))[-OUTPUT_LINES:]
            if lines and (self._newest is None or lines[-1].at >= self._newest[0]):
                self._newest = lines[-1].at, OutputTail(log.task, [line.text for line in lines])

    def _add(self, tail: _Tail, task: str, lines: Sequence[LogEntry]) -> None:
        tail.lines.extend(line.text for line in lines[-OUTPUT_LINES:])
        if lines and (self._newest is None or lines[-1].at >= self._newest[0]):
            self._newest = lines[-1].at, OutputTail(task, list(tail.lines))

    def _task_of(self, run: Run) -> str:
        return (run.key or "").removeprefix(f"{self._workflow}/").rpartition("/")[0]
