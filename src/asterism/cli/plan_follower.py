"""A constellation that is run before somebody's eyes: shown while this process has it, left on Ctrl-C, told in the
end."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from asterism.base.gc_tuning import look_less_often
from asterism.base.text import some
from asterism.cli.cli_context import note, tell_json
from asterism.cli.interrupts import INTERRUPTED, work_until_interrupted
from asterism.cli.live_view import watched
from asterism.cli.policy_lookup import find_policy
from asterism.cli.run_output import Wishes, tell_end
from asterism.cli.screen import Screen
from asterism.core.errors import AlreadyRunning
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.status import PENDING
from asterism.core.run.session import Session
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import StoredConstellation, UnknownConstellation, load, read_head, read_heads
from asterism.durable.ownership import FleetMembership
from asterism.fleet.device.membership import DeviceNameTaken
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.result import Result
from asterism.report.run_recorder import Recording

MOST_NAMES = 5


@dataclass(frozen=True, slots=True)
class Here:
    """What this process does itself. ``slots`` is how many tasks at once; None for as many as there are processors, if
    no other device is joined to do any. ``can`` is what for; None for whatever the tasks need."""

    slots: int | None = None
    can: frozenset[str] | None = None


class Followed(DurableOrchestrator):
    """Shows what it does. It does tasks itself if it is told to, or if nobody else is there when it begins."""

    def __init__(self, fleet: Fleet, here: Here, wishes: Wishes, *, takeover_after: float, **terms: Any) -> None:
        policy, _ = find_policy(None)
        super().__init__(
            fleet,
            device_policy=policy,
            heartbeat=takeover_after / 3,
            timeout=takeover_after,
            **terms,
        )
        self.here, self.wishes = here, wishes
        self.screen = Screen(stderr=wishes.as_json)
        self.recording: Recording | None = None
        self._joined_devices: list[Session] = []

    async def run(self, plan: Constellation, *, assignments: Mapping[str, str] | None = None) -> Result:
        await self._look_around(plan.id)
        return await super().run(plan, assignments=assignments)

    async def run_stored(self, name: str) -> Result:
        """As every durable orchestrator, whether the other one is elsewhere or on this machine."""
        await self._look_around(name)
        try:
            return await super().run_stored(name)
        except DeviceNameTaken:
            raise AlreadyRunning(
                f"constellation {name!r} is run by another process on this machine; "
                f"`asterism standby {name}` waits until it is gone"
            ) from None

    async def _look_around(self, name: str) -> None:
        """Who else could do the tasks, and so what is left for this process. Orchestrators do not count: they leave
        when their own constellation has ended, and one that died may still be heard of."""
        store = self.fleet.store
        now, orchestrators = store.clock(), {one.device for one in await read_heads(store)}
        self._joined_devices = [
            session
            for session in await store.sessions()
            if session.reachable(now) and session.slots and not session.draining and session.device not in orchestrators
        ]
        wanted = self.here.slots
        if wanted is None:
            wanted = 0 if self._joined_devices else os.cpu_count() or 1
        self.local, self.can = wanted, tuple(self.here.can or ())
        if wanted and self.here.can is None:
            nodes = (await load(self.fleet.store, name)).plan.nodes.values()
            self.can = tuple(sorted({need for node in nodes for need in node.task.needs}))

    async def own(self, kept: StoredConstellation, member: FleetMembership) -> Result:
        if self.here.slots is None and self.local:
            note(
                f"No device is joined: this process does the tasks, {self.local} at once; devices that join take part."
            )
        self._tell_of_absent_devices(kept)
        estimated = any(node.task.estimate is not None for node in kept.plan.nodes.values())
        self.options = dataclasses.replace(self.options, rank=estimated)
        self.recording = Recording(kept.plan, self.events)
        try:
            return await super().own(kept, member)
        finally:
            self.recording.close()

    def watch(self, kept: StoredConstellation) -> AbstractAsyncContextManager[object]:
        return watched(self, kept.plan, self.screen, plain=self.wishes.plain)

    def _tell_of_absent_devices(self, kept: StoredConstellation) -> None:
        there = {session.device for session in self._joined_devices}
        pending = [node.task for node in kept.plan.nodes.values() if node.status is PENDING]
        fixed = {device for task in pending if (device := task.device)}
        absent = sorted(fixed - there)
        if absent:
            note(f"Some tasks are fixed to devices that have to join first: {some(absent, MOST_NAMES)}.")


async def follow(
    orchestrator: Followed, name: str, begin: Callable[[], Coroutine[Any, Any, Result]], *, standby: bool = False
) -> int:
    """Until it has ended, or is left. Returns the exit code."""
    fleet, wishes = orchestrator.fleet, orchestrator.wishes
    look_less_often()
    result = await work_until_interrupted(begin(), lambda: _left(fleet, name))
    if result is not None:
        tell_end(result, orchestrator.recording, wishes, orchestrator.screen)
        return result.exit_code
    try:
        found, _ = await read_head(fleet.store, name)
    except UnknownConstellation:
        note(f"stopped before {name} was kept: nothing has happened")
        return INTERRUPTED
    if standby and orchestrator.recording is None:
        note(f"nobody stands by for {name} here any more")
    else:
        note(_left(fleet, name))
    if wishes.as_json:
        tell_json({"id": name, "state": found.state, "exit_code": INTERRUPTED, "left": True})
    return INTERRUPTED


def _left(fleet: Fleet, name: str) -> str:
    return f"left {name}; {resume_command(fleet, name)} goes on"


def resume_command(fleet: Fleet, name: str) -> str:
    return shlex.join(["asterism", "resume", name, "--store", fleet.store.url])
