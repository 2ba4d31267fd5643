"""``asterism run`` at a server, and ``asterism plan watch``: follow a plan that another process runs, to its end.

Ctrl-C only ends the following. What is printed, and the exit code, are those of a plan that runs in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from asterism.api.client_errors import ApiError
from asterism.api.documents import Cancellation, Device, Plan, PlanCopy, TaskLogEntry
from asterism.api.system import LocalSystem, System
from asterism.base.text import clean, join_names
from asterism.cli.cli_context import ask_again, note, out_of_reach, print_json
from asterism.cli.interrupts import INTERRUPTED, work_until_interrupted
from asterism.cli.plan.plan_context import OutputOptions, print_result
from asterism.cli.plan.plan_live_view import OUTPUT_LINES, UNCOUNTED, Begun, FleetState, OutputTail, Progress, watched
from asterism.cli.plan.plan_views import ENDED, command_at
from asterism.cli.screen import Screen
from asterism.core.attempt_log import LogBlock, LogChunk, TaskLog
from asterism.core.errors import AlreadyRunning, AsterismError, PlanError, RecordedError
from asterism.core.history import Reason
from asterism.core.plan.assignment_lock import EditCycle
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import WaitingEdit, edit_from_json
from asterism.core.plan.explain import Why
from asterism.core.plan.explain import why as explain
from asterism.core.plan.group_elements import edit_texts
from asterism.core.plan.journal import RecordedConstellation, RecordedLock, lock_from_json
from asterism.core.plan.node import AttemptTimes, Node
from asterism.core.plan.status import ENDED_STATES, FAILED, PENDING, RUNNING, ConstellationState, TaskStatus
from asterism.core.record import decode
from asterism.core.run.session import Session
from asterism.core.schedule.ticks import without_time
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import OwnershipLost, read_head
from asterism.durable.plan_actor import cancel_plan
from asterism.durable.plan_history import PlanFollower, Position
from asterism.durable.plan_summaries import live_owner
from asterism.durable.stored_plans import TaskExplanation, stuck_teardowns
from asterism.fleet.device.membership import DeviceNameTaken
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.events import ConstellationEvent, EditEvent, Event, EventBus, TaskEvent
from asterism.orchestrator.result import Result
from asterism.report.result_report import EarlierRun, PlanOrigin, Recording
from asterism.report.result_summary import LogsOf, failed_tasks
from asterism.store.store_errors import StoreUnavailable

MOST_NAMES = 5
"""How many devices a message names."""

WORKS = ("ready", "busy", "resting", "suspended")
"""The states of devices that execute tasks, now or later."""


async def run_at_server(system: System, submit: Callable[[], Awaitable[Plan]], name: str, output: OutputOptions) -> int:
    """Submit a plan, and follow it to its end or until Ctrl-C. ``name`` is its name, if it has not one for each start.
    Returns the exit code."""
    watch = _Watch(system, output)
    try:
        return await watch.run(watch.submitted(submit))
    except ApiError as error:
        if error.problem != "plan-exists":
            raise
    raise click.ClickException(await _taken_at_server(system, name))


async def watch_plan(system: System, name: str, output: OutputOptions) -> int:
    """Follow a plan to its end or until Ctrl-C. Returns the exit code."""
    watch = _Watch(system, output)
    return await watch.run(watch.follow(name))


def taken_text(url: str, name: str, state: str, version: int, compared: str, resume: str, retry: str) -> str:
    """That the name of a plan is taken, and what to do. ``compared`` says what the plan file is to the existing plan;
    ``resume`` is a sentence for a plan that has not ended, ``retry`` the command for one that failed."""
    at = f", version {version}" if version else ""
    action = f"Show its result with: {command_at(url, 'plan watch', name)}" if state in ENDED else resume
    again = f"  Run what failed again with: {retry}\n" if state in ("failed", "partially_failed") else ""
    return (
        f"plan {name!r} exists in {url} ({state}{at}). {compared}.\n"
        f"  {action}\n"
        f"{again}  Start a new plan with another name: --id NAME"
    )


async def _taken_at_server(system: System, name: str) -> str:
    plan, watch = await system.show_plan(name, tasks=False), command_at(system.url, "plan watch", name)
    compared, retry = "A change of the plan file does not change it", command_at(system.url, "plan retry", name)
    return taken_text(system.url, name, plan.state, plan.version, compared, f"Follow it with: {watch}", retry)


class _Watch:
    """``name`` is that of the plan, as soon as it is known."""

    def __init__(self, system: System, output: OutputOptions) -> None:
        self._system, self._output = system, output
        self._screen = Screen(stderr=output.to_stderr)
        self._recording: Recording | None = None
        self._submitting = False
        self.name: str | None = None

    async def run(self, work: Coroutine[Any, Any, Result]) -> int:
        result = await work_until_interrupted(work, self._farewell, asked="")
        if result is None:
            return await self._detached()
        logs = await logs_to_show(self._system, result, everything=self._output.report is not None)
        origin = None if self._output.report is None else await origin_of(self._system, result.plan.id)
        code = print_result(result, self._recording, self._output, self._screen, logs, origin)
        if result.state in (ConstellationState.FAILED, ConstellationState.PARTIALLY_FAILED):
            note(f"Run what failed again with: {command_at(self._system.url, 'plan retry', result.plan.id)}")
        return code

    async def submitted(self, submit: Callable[[], Awaitable[Plan]]) -> Result:
        """Once sent, a submission is not interrupted: it would be unknown whether there is a plan."""
        submission = asyncio.ensure_future(submit())
        self._submitting = True
        try:
            plan = await asyncio.shield(submission)
        except asyncio.CancelledError:
            self.name = (await submission).name
            raise
        self.name = plan.name
        return await self.follow(plan.name, plan.position)

    async def follow(self, name: str, after: str | None = None) -> Result:
        followed = await FollowedPlan.open(self._system, name)
        self.name = name
        self._recording = Recording(followed.plan, followed.events)
        subscription = followed.events.subscribe(partial(self._started, followed.plan), ConstellationEvent)
        output = partial(FollowedOutput, followed, self._system)
        try:
            async with watched(followed, followed.plan, self._screen, plain=self._output.plain, output=output):
                return await followed.until_ended(after)
        finally:
            subscription.close()
            self._recording.close()

    async def _started(self, plan: Constellation, event: ConstellationEvent) -> None:
        """Say once what the tasks wait for: now the process that runs the plan has joined, and may execute some."""
        if event.kind == "constellation_started":
            page = await self._system.list_devices()
            for line in _missing_devices(plan, page.items, self._system.url):
                note(line)

    def _farewell(self) -> str:
        if self.name is None and self._submitting:
            plans = command_at(self._system.url, "plan list")
            return f"It is unknown whether the plan was submitted. List the plans with: {plans}"
        if self.name is None:
            return "Stopped before the plan was submitted: nothing has happened."
        watch = command_at(self._system.url, "plan watch", self.name)
        return f"Plan {self.name!r} goes on. Follow it again with: {watch}"

    async def _detached(self) -> int:
        note(self._farewell())
        if self._output.as_json and self.name is not None:
            plan = await self._system.show_plan(self.name, tasks=False)
            print_json({"id": plan.name, "state": plan.state, "exit_code": INTERRUPTED, "left": True})
        return INTERRUPTED


def _missing_devices(plan: Constellation, devices: Collection[Device], url: str) -> list[str]:
    working = {device.name: device.can for device in devices if device.slots and device.state in WORKS}
    if not working:
        return [f"No device has joined, so the tasks wait. Join one with: asterism device join NAME --server {url}"]
    return absent_devices(plan, working)


def absent_devices(plan: Constellation, joined: Mapping[str, Collection[str]]) -> list[str]:
    """What pending tasks need and no joined device is or can, as sentences. ``joined`` has the capabilities of each."""
    pending = [node.task for node in plan.nodes.values() if node.status is PENDING]
    absent = sorted({device for task in pending if (device := task.device)} - joined.keys())
    lines = []
    if absent:
        lines.append(f"Some tasks need devices that have not joined: {join_names(absent, MOST_NAMES)}.")
    able = any("agent" in can for can in joined.values())
    if not able and any(task.agent is not None for task in pending):
        lines.append(
            "Some tasks are for an agent, and no joined device has one: asterism device join NAME --agent COMMAND"
        )
    return lines


async def logs_to_show(system: System, result: Result, *, everything: bool) -> LogsOf:
    """The logs that are shown at the end: of the failed tasks, or of all for a report."""
    lines: list[TaskLogEntry] = []
    nodes = result.plan.nodes
    failed = [task for task in failed_tasks(result) if task not in nodes or nodes[task].task.foreach is None]
    for task in [None] if everything else failed:  # the logs of a group are those of its elements
        more, after = True, None
        while more:
            page = await ask_again(partial(system.read_plan_logs, result.plan.id, task, after))
            lines += page.items
            more, after = page.more, page.next
    logs: dict[str, dict[int, list[LogBlock]]] = {}
    for line in lines:
        attempts = logs.setdefault(line.task, {})
        attempts.setdefault(line.attempt, []).append(LogBlock(line.at, line.stream, line.text))
    return lambda task: [
        TaskLog(attempt, (LogChunk(1, tuple(blocks)),)) for attempt, blocks in sorted(logs.get(task, {}).items())
    ]


MOST_EARLIER = 5
"""How many earlier plans of its file a report names."""

MOST_OF_ITS_FILE = 100
"""Among how many plans with a similar name they are."""


async def origin_of(system: System, name: str) -> PlanOrigin:
    """What a report says of a plan beside its result. Who may read this plan alone learns of no other."""
    plan = await ask_again(partial(system.show_plan, name, tasks=False))
    earlier: list[EarlierRun] = []
    if plan.file:
        stem = without_time(name)
        ask = partial(system.list_plans, name=f"{stem}*", file=plan.file, until=plan.created_at, limit=MOST_OF_ITS_FILE)
        try:
            earlier = [
                EarlierRun(run.name, "repaired" if run.repaired else run.state, run.started_at, run.ended_at)
                for run in (await ask_again(ask)).items
                if without_time(run.name) == stem
            ][:MOST_EARLIER]
        except ApiError as error:
            if error.problem != "scope-missing":
                raise
    return PlanOrigin(plan.file or "", plan.params, earlier)


# -- the copy of a plan ------------------------------------------------------------------------------------------------


LOOK_INTERVAL = 0.2
"""Seconds between two looks at a journal in a store."""

COPY_INTERVAL = 1.0
"""The shortest time between two copies for the live view, in seconds."""

COPY_SHARE = 10
"""A copy that took long is followed by a pause of so many times as long."""

OUTPUT_INTERVAL = 1.0
"""Seconds between two looks for output."""

_TASK_KINDS = {
    "started": "task_started",
    "started provisionally": "task_started",
    "attempt failed": "task_retrying",
    "completed": "task_completed",
    "failed": "task_failed",
    "cancelled": "task_cancelled",
    "revoked": "task_revoked",
    "confirmed": "task_confirmed",
    "put back": "task_released",
    "waits": "task_waiting",
    "unchanged": "task_unchanged",
    "late result refused": "task_result_refused",
}
"""The kinds of events by the entries of the story. Others are not told: a run reports to its plan, for example."""

_APPROVAL_KINDS = {
    f"{subject} {what}": kind
    for subject in ("edit", "start")
    for what, kind in (
        ("waits", "edit_waiting"),
        ("escalated", "edit_escalated"),
        ("refused", "edit_refused"),
        ("expired", "edit_refused"),
    )
}
_CLOSED_BY = {"timeout": "edit_timeout", "unclaimed": "edit_timeout", "abandoned": "edit_abandoned"}


@dataclass
class _Place:
    """All devices of the fleet as one."""

    id: str = "fleet"
    slots: int | None = UNCOUNTED
    running: int = 0


class FollowedPlan:
    """``plan`` is the copy: the same object for its whole life. ``events`` are published as they happen."""

    def __init__(self, system: System, copy: PlanCopy) -> None:
        self._system, self.name = system, copy.plan["id"]
        self.events = EventBus()
        self.plan: RecordedConstellation = RecordedConstellation(self.name)
        self._place = _Place()
        self._again = False
        self._take(copy)

    @classmethod
    async def open(cls, system: System, name: str) -> FollowedPlan:
        """Raises UnknownConstellation."""
        return cls(system, await system.copy_plan(name))

    def _take(self, copy: PlanCopy) -> None:
        fresh = RecordedConstellation.from_json(copy.plan)
        vars(self.plan).update(vars(fresh))
        self.lock = RecordedLock(self.plan, copy.policy)
        self.lock.history = [decode(EditCycle, cycle) for cycle in copy.closed_cycles]
        lock_from_json(self.lock, copy.lock)
        self.position, self._clock_ahead = Position.parse(copy.position), copy.now - time.time()
        self._copy = copy

    async def copy(self, *, results: bool = False) -> None:
        """Bring the copy up to date, with the results of the tasks."""
        self._take(await ask_again(partial(self._system.copy_plan, self.name, results)))

    async def until_ended(self, after: str | None = None) -> Result:
        """Publish the events after a position, by default that of the copy, until the plan has ended. Raises PlanError
        if it is removed."""
        if after is not None or self.plan.state not in ENDED_STATES:
            async with contextlib.aclosing(self._changes(after or str(self.position))) as changes:
                async for change in changes:
                    await self._tell(change)
                    if self._is_end(change):
                        break
        await self.copy(results=True)
        await self.events.drain()
        return Result(self.plan, self.lock.history, None, self.lock.policy)

    def _is_end(self, change: Mapping[str, Any]) -> bool:
        """Whether the plan ended with a change. The copy may be ahead of it."""
        if change["kind"] == "reset":
            return self.plan.state in ENDED_STATES
        return change["kind"] == "plan" and change["state"] in ENDED_STATES

    async def _changes(self, after: str) -> AsyncGenerator[Mapping[str, Any], None]:
        """What happens to the plan after a position. A connection that was cut is made again."""
        if isinstance(self._system, LocalSystem):
            follower = await PlanFollower.open(self._system.fleet.store, self.name, Position.parse(after))
            while True:
                for recorded in await ask_again(follower.read):
                    yield recorded.to_json()
                await asyncio.sleep(LOOK_INTERVAL)
        events = self._system.follow_plan(self.name, after, on_cut=self._tell_of_cut)
        async with contextlib.aclosing(events) as received:
            async for event in received:
                self._again = False
                yield event.fields

    def _tell_of_cut(self, error: Exception) -> None:
        """Say once that the server is out of reach."""
        if not self._again:
            note(f"{out_of_reach(error)}; trying again")
        self._again = True

    # -- events --------------------------------------------------------------------------------------------------------

    async def _tell(self, change: Mapping[str, Any]) -> None:
        kind, position = change["kind"], Position.parse(change["position"])
        if kind == "gone":
            raise PlanError(f"plan {self.name!r} was removed")
        if kind == "reset" or (kind == "edit" and position > self.position):
            await self.copy()
        elif position > self.position:
            self._apply(change)
        for event in self._events_of(change):
            self.events.publish(event)

    def _apply(self, change: Mapping[str, Any]) -> None:
        """Bring the node of a task, or the state of the plan, up to date."""
        plan = self.plan
        if change["kind"] == "plan" and change.get("task") is None:
            plan.state = ConstellationState(change["state"])
            plan.started_at = plan.started_at or change["at"]
            plan.ended_at = change["at"] if plan.state in ENDED_STATES else None
        node = plan.nodes.get(change["task"]) if change["kind"] == "task" else None
        if node is None:
            return
        plan.counts[node.status] -= 1
        node.status = TaskStatus(change["status"])
        plan.counts[node.status] += 1
        for name in ("device", "attempts", "started_at", "ended_at", "provisional", "needless"):
            setattr(node, name, change[name])
        times = change["attempt"]
        node.times = None if times is None else AttemptTimes(**{name[:-3]: at for name, at in times.items()})
        node.error = _error(change["reason"]) if node.status is FAILED else None

    def _events_of(self, change: Mapping[str, Any]) -> list[Event]:
        """The events of an orchestrator that a change of the journal stands for."""
        kind, what = change["kind"], change.get("what", "")
        if kind == "task" and what in _TASK_KINDS:
            return self._task_events(change)
        fields = {"at": change["at"], "constellation": self.name}
        if kind == "plan" and change.get("task") is None:
            kinds = {"began": "started", "cancelling": "cancelling", **{str(end): str(end) for end in ENDED_STATES}}
            if what in kinds:
                state = ConstellationState(change["state"])
                kind = f"constellation_{kinds[what]}"
                return [ConstellationEvent(kind=kind, state=state, version=self.plan.version, **fields)]
        elif kind == "edit":
            edits = tuple(edit_texts(list(map(edit_from_json, change["edits"]))))
            about = {name: change[name] for name in ("version", "author", "reason")}
            return [EditEvent(kind="edit_applied", edits=edits, **about, **fields)]
        elif kind == "cycle":
            return self._cycle_events(change, fields)
        elif kind == "approval" and what in _APPROVAL_KINDS:
            about = {name: change[name] for name in ("approval", "author", "reason")}
            return [EditEvent(kind=_APPROVAL_KINDS[what], version=self.plan.version, **about, **fields)]
        return []

    def _task_events(self, change: Mapping[str, Any]) -> list[Event]:
        node = self.plan.nodes.get(change["task"])
        kind, why = _TASK_KINDS[change["what"]], change["why"]
        if kind == "task_cancelled" or change["reason"] is None:
            error, reason = None, why
        else:
            error, reason = _error(why if kind == "task_retrying" else change["reason"]), change["reason"]
        return [
            TaskEvent(
                kind=kind,
                at=change["at"],
                constellation=self.name,
                task_id=change["task"],
                status=TaskStatus(change["status"]),
                device=change["device"],
                epoch=0 if node is None else node.epoch,
                attempt=change["attempts"],
                error=error,
                reason=reason,
                provisional=change["provisional"],
            )
        ]

    def _cycle_events(self, change: Mapping[str, Any], fields: Mapping[str, Any]) -> list[Event]:
        about = {"version": self.plan.version, "cycle": change["cycle"], "tasks": tuple(change["tasks"]), **fields}
        if change["what"] == "opened":
            return [EditEvent(kind="stuck" if change["stuck"] else "cycle_opened", **about)]
        if change["what"] != "closed":
            return []
        why = _CLOSED_BY.get(change["outcome"])
        return [EditEvent(kind=kind, **about) for kind in ([why] if why else []) + ["cycle_closed"]]

    # -- what the live view asks ---------------------------------------------------------------------------------------

    def now(self) -> float:
        """The clock of the system."""
        return time.time() + self._clock_ahead

    def runs(self, plan: Constellation) -> bool:
        return plan is self.plan

    def places(self) -> list[_Place]:
        self._place.running = self.plan.counts[RUNNING]
        return [self._place]

    def why(self, task_id: str, plan_id: str | None = None) -> Why:
        node: Node = self.plan.node(task_id)
        paused = None if self._copy.paused is None else Reason("pause", self.name, "the plan is paused")
        return explain(self.plan, self.lock, node, paused, self.now())

    def cycles(self, plan_id: str | None = None) -> list[EditCycle]:
        return list(self.lock.cycles.values())

    def approvals(self, plan_id: str | None = None) -> list[WaitingEdit]:
        return []

    def logs(self, task_id: str, plan_id: str | None = None) -> list[TaskLog]:
        return []

    async def keep_fresh(self, progress: Progress) -> None:
        """Copy the plan again and again, and tell the live view which tasks devices execute."""
        pause = COPY_INTERVAL
        while True:
            copy = self._copy
            begun = {task: Begun(executed.device, executed.begun_at) for task, executed in copy.executing.items()}
            progress.fleet = FleetState(self.now(), begun, len(begun), copy.queued)
            await asyncio.sleep(pause)
            began = time.monotonic()
            await self.copy()
            pause = max(COPY_INTERVAL, COPY_SHARE * (time.monotonic() - began))


def _error(text: str) -> RecordedError:
    """The error that was recorded as a text: its kind and its message."""
    kind, _, message = text.partition(": ")
    return RecordedError(kind, message)


class FollowedOutput:
    """The newest output of a followed plan for the live view; it also keeps the copy of the plan fresh."""

    def __init__(self, followed: FollowedPlan, system: System, progress: Progress) -> None:
        self._system, self._name = system, followed.name
        self._tail: OutputTail | None = None
        self._work = [asyncio.ensure_future(self._read()), asyncio.ensure_future(followed.keep_fresh(progress))]

    def __call__(self) -> OutputTail | None:
        return self._tail

    async def _read(self) -> None:
        lines: dict[str, deque[str]] = {}
        after: str | None = None
        while True:
            with contextlib.suppress(AsterismError):  # the follower says that a system is out of reach
                page = await self._system.read_plan_logs(self._name, after=after)
                after = page.next
                for line in page.items:
                    lines.setdefault(line.task, deque(maxlen=OUTPUT_LINES)).append(line.text)
                if page.items:
                    task = page.items[-1].task
                    self._tail = OutputTail(task, list(lines[task]))
                if page.more:
                    continue
            await asyncio.sleep(OUTPUT_INTERVAL)

    async def close(self) -> None:
        for work in self._work:
            work.cancel()
        await asyncio.wait(self._work)


# -- asterism plan cancel ----------------------------------------------------------------------------------------------


TEARDOWN_INTERVAL = 1.0
"""Seconds between two looks whether a plan that is being cancelled goes on."""

ANSWER_TIMEOUT = 20.0
"""How long an answer of a server may wait for the end, in seconds."""

TEARDOWNS_WAIT = 75
"""The exit code if a plan stays ``cancelling``, because its teardowns wait for a device."""


async def cancel(system: System, name: str, reason: str, as_json: bool) -> int:
    """Cancel a plan, and wait until it has ended or Ctrl-C. Returns the exit code, 1 if a teardown failed, and
    75 if only another device could execute those that are left: then the plan stays as it is.

    Raises PlanError if the plan ends in another state."""
    before = await system.show_plan(name, tasks=False)
    already = before.state in ENDED
    await request_cancel(system, name, reason)
    if before.owner is not None:
        note(f"{before.owner} runs {name!r}, and was asked to cancel it.")
    elif not already:
        _tell_of_teardowns(await system.watch_cancel(name))
    wait = command_at(system.url, "plan cancel", name)
    again = f"Plan {name!r} is still being cancelled. Wait for its end with: {wait}"
    try:
        end = await work_until_interrupted(cancelled_end(system, name), lambda: again)
    except TeardownsWait as waits:
        if as_json:
            print_json(await system.watch_cancel(name))
        note(str(waits))
        return TEARDOWNS_WAIT
    if end is None:
        note(again)
        if as_json:
            print_json(await system.watch_cancel(name))
        return INTERRUPTED
    if end.state != "cancelled":
        raise PlanError(f"plan {name!r} could not be cancelled: it is {end.state}")
    if before.owner is not None and (await system.show_plan(name, tasks=False)).epoch == before.epoch:
        note(f"{before.owner} cancelled it.")
    return _print_end(end, already, as_json)


async def request_cancel(system: System, name: str, reason: str = "") -> str | None:
    """Ask for the cancellation of a plan. Returns the process that runs it, if one does."""
    if isinstance(system, LocalSystem):
        await cancel_plan(system.fleet, name, reason)  # and this process ends it
    else:
        await system.cancel_plan(name, reason)
    return (await system.show_plan(name, tasks=False)).owner


def _print_end(end: Cancellation, already: bool, as_json: bool) -> int:
    """Print that a plan is cancelled. Returns the exit code."""
    if as_json:
        print_json(end)
    else:
        is_cancelled = "was already cancelled" if already else "is cancelled"
        click.echo(clean(f"Plan {end.name!r} {is_cancelled}{f', {end.cancelled}' if end.cancelled else ''}."))
    for task, why in end.failed_teardowns.items():
        note(f"Teardown {task!r} failed, and does not run again: {why}")
    return int(bool(end.failed_teardowns))


def _tell_of_teardowns(cancellation: Cancellation) -> None:
    """This command executes no task: say what the teardowns of a plan need that no process runs."""
    due = cancellation.teardowns
    if due:
        count = "a device of the fleet executes it" if len(due) == 1 else "devices of the fleet execute them"
        note(f"Teardowns come first: {join_names(due, MOST_NAMES)}; {count}.")


async def cancelled_end(system: System, name: str) -> Cancellation:
    """What has become of a plan that is cancelled. Raises TeardownsWait."""
    if isinstance(system, LocalSystem):
        await end_cancelled(system.fleet, name)
        return await system.watch_cancel(name)
    while True:
        cancellation = await ask_again(partial(system.watch_cancel, name, ANSWER_TIMEOUT))
        if cancellation.waiting_teardowns:
            by = cancellation.owner or "The server"
            action = f"{by} goes on with it when a device that can has joined."
            raise TeardownsWait(name, cancellation.waiting_teardowns, action)
        if cancellation.ended:
            return cancellation


class TeardownsWait(AsterismError):
    """A plan is still being cancelled, because no device can execute the teardowns that are left. ``reasons`` has why,
    by task; ``action`` is a sentence with what to do."""

    def __init__(self, name: str, reasons: Mapping[str, str], action: str) -> None:
        teardowns = "; ".join(f"{task}: {why}" for task, why in itertools.islice(reasons.items(), MOST_NAMES))
        super().__init__(
            f"Plan {name!r} is still being cancelled: no device can execute its teardowns ({teardowns}). {action}"
        )


def _teardowns_wait(fleet: Fleet, name: str, stuck: Sequence[TaskExplanation], owner: Session | None) -> TeardownsWait:
    pinned = sorted({reason.name for why in stuck for reason in why.reasons if reason.kind == "no_device"} - {""})
    if owner is not None:
        action = f"{owner.device} goes on with it when a device that can has joined."
    elif pinned:
        finish = command_at(fleet.store.url, "plan cancel", name)
        action = f"When {join_names(pinned, MOST_NAMES)} can, finish it with: {finish}"
    else:
        action = f"Finish it here with: {command_at(fleet.store.url, 'resume', name)} --local"
    return TeardownsWait(name, {why.task: "; ".join(reason.text for reason in why.reasons) for why in stuck}, action)


async def end_cancelled(fleet: Fleet, name: str) -> Result:
    """The result of a plan that its owner cancels, or this process if it has none. Executes no task here. Raises
    TeardownsWait, with the plan as it is, when it goes on only if another device joins."""
    ending = asyncio.create_task(_end_cancelled(fleet, name))
    try:
        while not (await asyncio.wait([ending], timeout=TEARDOWN_INTERVAL))[0]:
            with contextlib.suppress(StoreUnavailable):
                if stuck := await stuck_teardowns(fleet, name):
                    break
        else:
            return await ending
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
    head, _ = await read_head(fleet.store, name)
    raise _teardowns_wait(fleet, name, stuck, await live_owner(fleet.store, head))


async def _end_cancelled(fleet: Fleet, name: str) -> Result:
    orchestrator = DurableOrchestrator(fleet)
    # the death of an owner on this machine is known at once; elsewhere, when its heartbeat has timed out
    with contextlib.suppress(AlreadyRunning, DeviceNameTaken, OwnershipLost, StoreUnavailable):
        return await orchestrator.run_stored(name)
    return await orchestrator.standby(name)
