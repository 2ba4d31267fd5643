"""``asterism run`` at a server, and ``asterism plan watch``: follow a plan that another process runs, to its end.

Ctrl-C only ends the following. What is printed, and the exit code, are those of a plan that runs in this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

import click

from asterism.api.client_errors import ApiError
from asterism.api.documents import Device, Plan, TaskLogEntry
from asterism.api.system import System
from asterism.base.text import join_names
from asterism.cli.cli_context import ask_again, note, print_json
from asterism.cli.interrupts import INTERRUPTED, work_until_interrupted
from asterism.cli.plan.followed_plan import FollowedOutput, FollowedPlan
from asterism.cli.plan.plan_context import OutputOptions, print_result
from asterism.cli.plan.plan_live_view import watched
from asterism.cli.plan.plan_views import ENDED, list_command, retry_command, watch_command
from asterism.cli.screen import Screen
from asterism.core.attempt_log import LogBlock, LogChunk, TaskLog
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.status import PENDING, ConstellationState
from asterism.orchestrator.events import ConstellationEvent
from asterism.orchestrator.result import Result
from asterism.report.log_text import LogsOf, failed_tasks
from asterism.report.result_report import Recording

MOST_NAMES = 5
"""How many devices a message names."""

WORKS = ("ready", "busy", "resting", "suspended")
"""The states of devices that execute tasks, now or later."""

Value = TypeVar("Value")


async def run_at_server(system: System, submit: Callable[[], Awaitable[Plan]], name: str, output: OutputOptions) -> int:
    """Submit a plan, and follow it to its end or until Ctrl-C. ``name`` is its name, if it has not one for each start.
    Returns the exit code."""
    watch = _Watch(system, output)
    try:
        return await watch.run(lambda: watch.submitted(submit))
    except ApiError as error:
        if error.problem != "plan-exists":
            raise
    raise click.ClickException(await _taken_at_server(system, name))


async def watch_plan(system: System, name: str, output: OutputOptions) -> int:
    """Follow a plan to its end or until Ctrl-C. Returns the exit code."""
    watch = _Watch(system, output)
    return await watch.run(lambda: watch.follow(name))


def taken_text(url: str, name: str, state: str, version: int, compared: str, resume: str, retry: str) -> str:
    """That the name of a plan is taken, and what to do. ``compared`` says what the plan file is to the existing plan;
    ``resume`` is a sentence for a plan that has not ended, ``retry`` the command for one that failed."""
    at = f", version {version}" if version else ""
    action = f"Show its result with: {watch_command(url, name)}" if state in ENDED else resume
    again = f"  Run what failed again with: {retry}\n" if state in ("failed", "partially_failed") else ""
    return (
        f"plan {name!r} exists in {url} ({state}{at}). {compared}.\n"
        f"  {action}\n"
        f"{again}  Start a new plan with another name: --id NAME"
    )


async def _taken_at_server(system: System, name: str) -> str:
    plan, watch = await system.show_plan(name, tasks=False), watch_command(system.url, name)
    compared, retry = "A change of the plan file does not change it", retry_command(system.url, name)
    return taken_text(system.url, name, plan.state, plan.version, compared, f"Follow it with: {watch}", retry)


class _Watch:
    """``name`` is that of the plan, as soon as it is known."""

    def __init__(self, system: System, output: OutputOptions) -> None:
        self._system, self._output = system, output
        self._screen = Screen(stderr=output.to_stderr)
        self._recording: Recording | None = None
        self._submitting = False
        self.name: str | None = None

    async def run(self, begin: Callable[[], Awaitable[Result]]) -> int:
        result = await work_until_interrupted(_coroutine(begin), self._farewell, asked="")
        if result is None:
            return await self._detached()
        logs = await logs_to_show(self._system, result, everything=self._output.report is not None)
        code = print_result(result, self._recording, self._output, self._screen, logs)
        if result.state in (ConstellationState.FAILED, ConstellationState.PARTIALLY_FAILED):
            note(f"Run what failed again with: {retry_command(self._system.url, result.plan.id)}")
        return code

    async def submitted(self, submit: Callable[[], Awaitable[Plan]]) -> Result:
        """Once sent, a submission is not interrupted: it would be unknown whether there is a plan."""
        submission = asyncio.ensure_future(_coroutine(submit))
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
            return (
                f"It is unknown whether the plan was submitted. List the plans with: {list_command(self._system.url)}"
            )
        if self.name is None:
            return "Stopped before the plan was submitted: nothing has happened."
        return f"Plan {self.name!r} goes on. Follow it again with: {watch_command(self._system.url, self.name)}"

    async def _detached(self) -> int:
        note(self._farewell())
        if self._output.as_json and self.name is not None:
            plan = await self._system.show_plan(self.name, tasks=False)
            print_json({"id": plan.name, "state": plan.state, "exit_code": INTERRUPTED, "left": True})
        return INTERRUPTED


async def _coroutine(begin: Callable[[], Awaitable[Value]]) -> Value:
    return await begin()


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
    for task in [None] if everything else failed_tasks(result):
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
