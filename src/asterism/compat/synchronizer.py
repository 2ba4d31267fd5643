"""The documented synchronizer: tracks pending ends of tasks and merges the answers of agents.

An end is registered within the step that records it. An answer (MODIFIED) is merged into the live plan on the spot,
while everything is held; only then is the end no longer pending. An answer that comes after its timeout is merged like
any other edit.

An answer belongs to the plan that it names. If no plan of that name has the task, the task decides, as the documents
have it: the answer goes to the one live run that waits for it. If there is none, or more than one, it is ignored with a
warning.

Without an orchestrator it can be driven by hand: events in, ``merge_and_sync…`` when the merge is wanted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, MutableMapping
from typing import Any, ClassVar

from asterism.compat.checked_changes import ModificationRejected
from asterism.compat.copy_merge import merge_copy
from asterism.compat.documented_events import TASK_ENDS, Event, PromptObserver, TaskEvent, untouched
from asterism.compat.event_outlet import live_on
from asterism.compat.living_plan import LivingPlan
from asterism.compat.name_sets import GALAXY, Naming
from asterism.compat.pending_ends import Key, Pending
from asterism.compat.vocabulary import TaskStatus, is_more_advanced
from asterism.core.plan.diff import Outline


class PlanSynchronizer(PromptObserver):
    """What ConstellationModificationSynchronizer and OrionModificationSynchronizer are, but for their names."""

    naming: ClassVar[Naming] = GALAXY

    def __init__(self, orchestrator: Any, logger: logging.Logger | None = None) -> None:
        self.orchestrator = orchestrator
        self.logger = logger or logging.getLogger("asterism.compat.synchronizer")
        self.pending = Pending(self._warn_of_silence)
        self._live: dict[str, LivingPlan] = {}
        self._current: LivingPlan | None = None
        self._unmerged: tuple[LivingPlan, Outline | None] | None = None  # a copy that is not merged yet

    # -- events -------------------------------------------------------------------------------------------------

    @property
    def prompt(self) -> bool:
        return untouched(self, "on_event", "_handle_task_event", f"_handle_{self.naming.noun}_event")

    async def on_event(self, event: Event) -> None:
        if isinstance(event, TaskEvent):
            await self._handle_task_event(event)
        elif isinstance(event, self.naming.event):
            await getattr(self, f"_handle_{self.naming.noun}_event")(event)

    async def _handle_task_event(self, event: TaskEvent) -> None:
        self.notice(event)

    def notice(self, event: Event) -> None:
        self._follow_loop()
        if isinstance(event, TaskEvent):
            if event.event_type in TASK_ENDS:
                self._task_ended(event)
        elif isinstance(event, self.naming.event):
            if event.event_type is self.naming.event_type("started"):
                self._started(event)
            elif event.event_type is self.naming.event_type("modified"):
                self._modified(event)

    def _follow_loop(self) -> None:
        if self.pending.follow_loop():
            self._live.clear()

    def _elsewhere(self, plan_id: str | None) -> bool:
        """Whether another orchestrator on the same bus runs the plan. Its events are not for us."""
        return plan_id not in self._live and plan_id in live_on(getattr(self.orchestrator, "event_bus", None))

    def watch(self, live: LivingPlan) -> None:
        """A run begins that is ours to look after."""
        self._follow_loop()
        if self._unmerged is not None and not _same(self._unmerged[0], live):
            self._unmerged = None  # it was meant for another run
        self.merge_and_sync(live)
        self._live[live.plan_id] = self._current = live

    def _started(self, event: Event) -> None:
        live = event.data.get(self.naming.noun)
        if isinstance(live, LivingPlan) and live.runner is self.orchestrator and live.plan_id not in self._live:
            self.watch(live)

    def _task_ended(self, event: TaskEvent) -> None:
        plan_id = event.data.get(self.naming.id_key)
        if plan_id and not self._elsewhere(plan_id):
            live = self._live.get(plan_id)
            self.pending.register((plan_id, event.task_id), None if live is None else live.outline())

    # -- answers -------------------------------------------------------------------------------------------------------

    def _modified(self, event: Event) -> None:
        new, tasks = event.data.get(self.naming.new_key), _task_ids(event.data.get("on_task_id"))
        if not tasks:
            self.logger.warning("a %s without on_task_id answers no task and is ignored", event.event_type.value)
            return
        plan_ids = [getattr(event, self.naming.id_key), event.data.get(self.naming.id_key), getattr(new, "plan_id", "")]
        target = self._target(plan_ids, tasks)
        if target is None and self._live:
            self._warn_of_stray(tasks, plan_ids)
        elif target is None or not self._elsewhere(target):
            keys = [] if target is None else [key for task in tasks for key in self.pending.find([target], task)]
            self._take(new, self._live.get(target or ""), self.pending.seen(keys), tasks)
            for key in keys:
                self.pending.resolve(key, True)

    def _target(self, plan_ids: Iterable[str | None], tasks: tuple[str, ...]) -> str | None:
        """The plan that an answer is for: one that it names and that has such a task, or the only one in which such a
        task is pending, or one that it names and that is running. None if it cannot be told."""
        named = [plan_id for plan_id in plan_ids if plan_id]
        runs = live_on(getattr(self.orchestrator, "event_bus", None))
        plans = {plan_id: run.live for plan_id, run in runs.items()} | self._live
        for plan_id in named:
            live = plans.get(plan_id)
            known = any(self.pending.find([plan_id], task) for task in tasks)
            if known or (live is not None and any(task in live.plan for task in tasks)):
                return plan_id
        waiting = self._waiting(tasks)
        if len(waiting) == 1:
            return next(iter(waiting))
        return next((plan_id for plan_id in named if plan_id in plans), None)

    def _waiting(self, tasks: tuple[str, ...]) -> set[str]:
        """The plans on this bus in which such a task waits for an answer."""
        return {key[0] for one in (self, *self._others()) for task in tasks for key in one.pending.anywhere(task)}

    def _warn_of_stray(self, tasks: tuple[str, ...], plan_ids: Iterable[str | None]) -> None:
        waiting = self._waiting(tasks)
        if waiting and not any(self.pending.anywhere(task) for task in tasks):
            return  # those that have it pending warn
        names = ", ".join(repr(plan_id) for plan_id in dict.fromkeys(plan_ids) if plan_id) or "nothing"
        pending = ", ".join(map(repr, sorted(waiting)))
        where = f"it is pending in {pending}; name one of them" if pending else "no run waits for it"
        self.logger.warning(
            "the answer to %s is ignored: its %s is %s, and %s", list(tasks), self.naming.id_key, names, where
        )

    def _others(self) -> Iterable[PlanSynchronizer]:
        """The other synchronizers that look after runs on the same bus."""
        runs = live_on(getattr(self.orchestrator, "event_bus", None)).values()
        found = {id(run.synchronizer): run.synchronizer for run in runs}
        return [one for one in found.values() if issubclass(type(one), PlanSynchronizer) and one is not self]

    def _take(self, new: Any, live: LivingPlan | None, seen: Outline | None, tasks: tuple[str, ...]) -> None:
        """Merge an agent's copy into the plan that is running, or keep it until the next merge."""
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

    def _warn_of_silence(self, key: Key) -> None:
        self.logger.warning("no answer to the end of %s in %s in time; the plan continues", key[1], key[0])

    def forget(self, plan_id: str) -> None:
        """The run is over: drop its pending ends."""
        self._live.pop(plan_id, None)
        self.pending.forget(plan_id)

    # -- the documented methods ----------------------------------------------------------------------------------------

    async def wait_for_pending_modifications(self, timeout: float | None = None) -> bool:
        """Wait until nothing is pending. False when something timed out; it is then no longer pending."""
        return await self.pending.wait(timeout)

    def merge_and_sync(self, live: LivingPlan) -> LivingPlan:
        """The plan with the agent's last changes merged in. While it runs, that has happened already."""
        if self._unmerged is not None:
            (new, seen), self._unmerged = self._unmerged, None
            self._merge(live, new, seen)
        return live

    def current(self) -> LivingPlan | None:
        """The plan as it was last heard of: the live one, or an agent's copy that is still to be merged."""
        return self._current

    @property
    def current_plan(self) -> LivingPlan | None:
        return self.current()

    @current_plan.setter
    def current_plan(self, new: LivingPlan | None) -> None:
        """An agent's copy, to be merged before the plan continues; None for nothing to merge."""
        if new is not None and not isinstance(new, LivingPlan):
            raise TypeError(f"this takes a {self.naming.noun}, not {new!r}")
        self._unmerged = None if new is None or new in self._live.values() else (new, None)
        self._current = new

    def set_modification_timeout(self, timeout: float) -> None:
        """How long an end may wait for its answer, in seconds, for ends from now on."""
        if timeout <= 0:
            raise ValueError(f"a timeout is above 0, not {timeout}")
        self.pending.timeout = timeout

    def has_pending_modifications(self) -> bool:
        return bool(self.pending.ends)

    def get_pending_count(self) -> int:
        return len(self.pending.ends)

    def get_pending_task_ids(self) -> list[str]:
        return [task for _, task in self.pending.ends]

    def get_statistics(self) -> dict[str, int]:
        return dict(self.pending.stats)

    def clear_pending_modifications(self) -> None:
        """Wait for nothing any more."""
        self.pending.expire(self.pending.ends)

    # -- private names that the documents show -------------------------------------------------------------------------

    @property
    def current_id(self) -> str | None:
        return None if self._current is None else self._current.plan_id

    @property
    def _pending_modifications(self) -> MutableMapping[str, Any]:
        return self.pending.by_task

    @_pending_modifications.setter
    def _pending_modifications(self, value: MutableMapping[str, Any]) -> None:
        self.pending.by_task.clear()
        self.pending.by_task.update(value)

    @property
    def _modification_timeout(self) -> float:
        return self.pending.timeout

    @_modification_timeout.setter
    def _modification_timeout(self, value: float) -> None:
        self.set_modification_timeout(value)

    @property
    def _stats(self) -> dict[str, int]:
        return self.pending.stats

    @_stats.setter
    def _stats(self, value: dict[str, int]) -> None:
        self.pending.stats.update(value)

    def _is_state_more_advanced(self, state1: TaskStatus, state2: TaskStatus) -> bool:
        return is_more_advanced(state1, state2)


def _same(one: LivingPlan, other: LivingPlan) -> bool:
    return one.lineage == other.lineage or one.plan_id == other.plan_id


def _task_ids(asked: Any) -> tuple[str, ...]:
    """What ``on_task_id`` names: one task or several."""
    if isinstance(asked, str):
        return (asked,) if asked else ()
    return tuple(task for task in asked if isinstance(task, str)) if isinstance(asked, Iterable) else ()
