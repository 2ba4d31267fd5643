"""The documented synchronizer: it knows which ends of tasks an agent has still to answer, and takes the answers in.

An end is registered within the step that records it. An answer (MODIFIED) is merged into the live plan on the spot,
while everything is held; only then is the end no longer pending. An answer that comes after its timeout is merged like
any other edit. One timer serves all that is pending, and none is left when nothing is.

Without an orchestrator it can be driven by hand: events in, ``merge_and_sync…`` when the merge is wanted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from asterism.compat.changes import ModificationRejected
from asterism.compat.events import Event, EventBus, EventType, PromptObserver, TaskEvent
from asterism.compat.living import LivingPlan
from asterism.compat.merging import merge_copy
from asterism.compat.naming import GALAXY, Naming
from asterism.compat.vocabulary import TaskStatus, is_more_advanced
from asterism.core.diff import Outline

Key = tuple[str, str]
"""A task's end: the id of its plan and its own."""


@dataclass(slots=True, eq=False)
class _Pending:
    """An end that waits for its answer. ``seen`` is the plan as its agent was shown it."""

    seen: Outline | None
    deadline: float
    future: asyncio.Future[bool]


class PlanSynchronizer(PromptObserver):
    """What ConstellationModificationSynchronizer and OrionModificationSynchronizer are, but for their names."""

    naming: ClassVar[Naming] = GALAXY

    def __init__(self, orchestrator: Any, logger: logging.Logger | None = None) -> None:
        self.orchestrator = orchestrator
        self.logger = logger or logging.getLogger("asterism.compat.synchronizer")
        self._timeout = 600.0
        self._stats = {"total_modifications": 0, "completed_modifications": 0, "timeout_modifications": 0}
        self._pending: dict[Key, _Pending] = {}
        self._late: dict[Key, _Pending] = {}  # timed out, and may be answered yet
        self._live: dict[str, LivingPlan] = {}
        self._current: LivingPlan | None = None
        self._unmerged: tuple[LivingPlan, Outline | None] | None = None  # a copy for a plan that nobody runs
        self._alarm: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- what is heard -------------------------------------------------------------------------------------------------

    def notice(self, event: Event) -> None:
        self._follow_loop()
        if isinstance(event, TaskEvent):
            if event.event_type in (EventType.TASK_COMPLETED, EventType.TASK_FAILED):
                self._task_ended(event)
        elif isinstance(event, self.naming.event):
            if event.event_type is self.naming.event_type("started"):
                self._started(event)
            elif event.event_type is self.naming.event_type("modified"):
                self._modified(event)

    def _follow_loop(self) -> None:
        """What was pending on an event loop that is gone can no longer be waited for."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._alarm = loop, None
            for facts in (self._pending, self._late, self._live):
                facts.clear()

    def _runs_elsewhere(self, plan_id: str | None) -> bool:
        """Whether another orchestrator on the same bus runs the plan. Its events are not for us."""
        bus = getattr(self.orchestrator, "event_bus", None)
        return isinstance(bus, EventBus) and plan_id in bus.running and plan_id not in self._live

    def watch(self, live: LivingPlan) -> None:
        """A run begins that is ours to look after."""
        self._follow_loop()
        self._live[live.plan_id] = self._current = live

    def _started(self, event: Event) -> None:
        live = event.data.get(self.naming.noun)
        if isinstance(live, LivingPlan) and live.runner is self.orchestrator:
            self.watch(live)

    def _task_ended(self, event: TaskEvent) -> None:
        plan_id = event.data.get(self.naming.id_key)
        if not plan_id or (plan_id, event.task_id) in self._pending or self._runs_elsewhere(plan_id):
            return
        assert self._loop is not None
        live = self._live.get(plan_id)
        deadline = self._loop.time() + self._timeout
        seen = None if live is None else live.outline()
        self._pending[plan_id, event.task_id] = _Pending(seen, deadline, self._loop.create_future())
        self._stats["total_modifications"] += 1
        if self._alarm is None or deadline < self._alarm.when():
            self._set_alarm(deadline)

    def _modified(self, event: Event) -> None:
        new, asked = event.data.get(self.naming.new_key), event.data.get("on_task_id") or ()
        tasks = (asked,) if isinstance(asked, str) else tuple(asked)
        plan_ids = [getattr(event, self.naming.id_key), event.data.get(self.naming.id_key), getattr(new, "plan_id", "")]
        if any(self._runs_elsewhere(plan_id) for plan_id in plan_ids):
            return
        keys = [(plan_id, task) for plan_id in dict.fromkeys(plan_ids) for task in tasks]
        known = {key: end for key in keys if (end := self._pending.get(key) or self._late.get(key)) is not None}
        live = next((self._live[plan_id] for plan_id in plan_ids if plan_id in self._live), None)
        self._take(new, live, next((end.seen for end in known.values()), None), tasks)
        for key in known:
            self._resolve(key, True)

    def _take(self, new: Any, live: LivingPlan | None, seen: Outline | None, tasks: tuple[str, ...]) -> None:
        """Merge an agent's copy into the plan that is running, or keep it until somebody asks for the merge."""
        if new is None:
            return
        if not isinstance(new, LivingPlan):
            self.logger.warning("%s must be a %s, not %r", self.naming.new_key, self.naming.noun, new)
        elif live is None:
            self._current, self._unmerged = new, (new, seen)
        else:
            self._merge(live, new, seen, tasks)

    def _merge(self, live: LivingPlan, new: LivingPlan, seen: Outline | None, tasks: tuple[str, ...] = ()) -> None:
        self._current = live
        if new is live:
            return  # it was changed in place, and each change was checked then
        try:
            merge_copy(live, new, seen, tasks, self.logger)
        except ModificationRejected as rejected:
            self.logger.warning("the answer to %s was not applied to %s: %s", list(tasks), live.plan_id, rejected)

    # -- what is pending -----------------------------------------------------------------------------------------------

    def _resolve(self, key: Key, answered: bool) -> None:
        """An end is no longer pending: it was answered, or it timed out."""
        pending = self._pending.pop(key, None)
        if answered:
            self._late.pop(key, None)
        if pending is None:
            return
        if not answered:
            self._late[key] = pending
        self._stats["completed_modifications" if answered else "timeout_modifications"] += 1
        if not pending.future.done():
            pending.future.set_result(answered)
        if not self._pending:
            self._set_alarm(None)

    def _set_alarm(self, deadline: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if deadline is not None and self._loop is not None:
            self._alarm = self._loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        assert self._loop is not None
        now = self._loop.time()
        self._expire([key for key, pending in self._pending.items() if pending.deadline <= now])
        if self._pending:
            self._set_alarm(min(pending.deadline for pending in self._pending.values()))

    def _expire(self, keys: Iterable[Key]) -> None:
        for key in tuple(keys):
            self.logger.warning("nobody answered the end of %s in %s in time; the plan goes on", key[1], key[0])
            self._resolve(key, False)

    async def answered(self, plan_id: str, tasks: Iterable[str]) -> None:
        """Wait until none of these ends is pending."""
        futures = [self._pending[plan_id, task].future for task in tasks if (plan_id, task) in self._pending]
        if futures:
            await asyncio.wait(futures)

    def forget(self, plan_id: str) -> None:
        """The run is over: nobody waits for its answers any more."""
        self._live.pop(plan_id, None)
        for ends in (self._pending, self._late):
            for key in [key for key in ends if key[0] == plan_id]:
                ends.pop(key).future.cancel()
        if not self._pending:
            self._set_alarm(None)

    # -- the documented methods ----------------------------------------------------------------------------------------

    async def wait_for_pending_modifications(self, timeout: float | None = None) -> bool:
        """Wait until nothing is pending. False when something timed out; it is then no longer pending."""
        self._follow_loop()
        loop, everything = asyncio.get_running_loop(), True
        deadline = loop.time() + (self._timeout if timeout is None else timeout)
        while self._pending:
            futures = [pending.future for pending in self._pending.values()]
            done, late = await asyncio.wait(futures, timeout=max(0.0, deadline - loop.time()))
            everything = everything and all(not future.cancelled() and future.result() for future in done)
            if late:
                self._expire(self._pending)
                return False
        return everything

    def merge_and_sync(self, live: LivingPlan) -> LivingPlan:
        """The plan with the agent's last changes merged in. While it runs, that has happened already."""
        if self._unmerged is not None:
            (new, seen), self._unmerged = self._unmerged, None
            self._merge(live, new, seen)
        return live

    def current(self) -> LivingPlan | None:
        """The plan as it was last heard of: the live one, or an agent's copy that is still to be merged."""
        return self._current

    def set_modification_timeout(self, timeout: float) -> None:
        """How long an end may wait for its answer, in seconds, for ends from now on."""
        if timeout <= 0:
            raise ValueError(f"a timeout is above 0, not {timeout}")
        self._timeout = timeout

    def has_pending_modifications(self) -> bool:
        return bool(self._pending)

    def get_pending_count(self) -> int:
        return len(self._pending)

    def get_pending_task_ids(self) -> list[str]:
        return [task for _, task in self._pending]

    def get_statistics(self) -> dict[str, int]:
        return dict(self._stats)

    def clear_pending_modifications(self) -> None:
        """Wait for nothing any more."""
        self._expire(self._pending)

    def _is_state_more_advanced(self, state1: TaskStatus, state2: TaskStatus) -> bool:
        return is_more_advanced(state1, state2)
