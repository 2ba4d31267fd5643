"""The documented synchronizer: tracks unanswered ends of tasks and merges the answers of agents.

An end is registered within the step that records it. An answer (MODIFIED) is merged into the live plan at once, while
everything is held; only then does the end stop being pending. An answer after its timeout is merged like any other
edit.

An answer belongs to the plan that it names. If that plan does not have the task, the answer goes to the only live run
in which the task is pending, as the documents have it. With no such run, or several, it is ignored with a warning.

``merge_copy`` is a three-way merge of an agent's edited copy. The structure comes from the copy; progress always comes
from the live plan, whatever state the copy claims for a task. A task that the copy cancels is cancelled, unless it has
ended meanwhile. The copy is compared with its base to find the changes:

* a copy made in this process holds its base;
* a newly built constellation is compared with the plan as it was when the answered task ended.

Without an orchestrator a program can drive it by hand: pass events in, then call ``merge_and_sync…``.

``Pending`` are the ends that wait for an answer, each with a deadline. One timer serves all of them; without pending
ends there is no timer.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.event_bus import PromptObserver, runs_on
from asterism.compat.vocabulary import (
    GALAXY,
    TASK_ENDS,
    Event,
    ModificationRejected,
    Naming,
    ReadOnly,
    TaskEvent,
    TaskStatus,
    is_more_advanced,
    refusing,
)
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.diff import Outline, merge
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    Edit,
    EditBatch,
    RemoveDependency,
    RemoveTaint,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)
from asterism.core.plan.status import CANCELLED

logger = logging.getLogger("asterism.compat.synchronizer")

Key = tuple[str, str]
"""A task's end: the ids of its plan and of the task."""


@dataclass(slots=True, eq=False)
class End:
    """An end that waits for its answer. ``seen`` is the plan as the agent saw it."""

    seen: Outline | None
    deadline: float
    future: asyncio.Future[bool]


class Pending:
    """``expired`` is called for an end without an answer in time."""

    def __init__(self, expired: Callable[[Key], None]) -> None:
        self.timeout = 600.0
        self.stats = {"total_modifications": 0, "completed_modifications": 0, "timeout_modifications": 0}
        self.ends: dict[Key, End] = {}
        self.late: dict[Key, End] = {}  # timed out, but an answer is still accepted
        self._expired = expired
        self._alarm: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def follow_loop(self) -> bool:
        """Drop the ends of a previous event loop, since nothing can wait for them. True if the loop has changed."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return False
        self._loop, self._alarm = loop, None
        self.ends.clear()
        self.late.clear()
        return True

    def register(self, key: Key, seen: Outline | None) -> None:
        if key in self.ends:
            return
        self.follow_loop()
        assert self._loop is not None
        deadline = self._loop.time() + self.timeout
        self.ends[key] = end = End(seen, deadline, self._loop.create_future())
        end.future.add_done_callback(lambda done: self._resolved(key, end))
        self.stats["total_modifications"] += 1
        if deadline < (math.inf if self._alarm is None else self._alarm.when()):
            self._set_alarm(deadline)

    def _resolved(self, key: Key, end: End) -> None:
        """Resolve an end whose future a program has set."""
        if self.ends.get(key) is end:
            self.resolve(key, _succeeded(end.future))

    def resolve(self, key: Key, answered: bool) -> None:
        """Remove an end that was answered or timed out."""
        end = self.ends.pop(key, None)
        if answered:
            self.late.pop(key, None)
        if end is None:
            return
        if not answered:
            self.late[key] = end
        self.stats["completed_modifications" if answered else "timeout_modifications"] += 1
        if not end.future.done():
            end.future.set_result(answered)
        if not self.ends:
            self._set_alarm(None)

    def expire(self, keys: Iterable[Key]) -> None:
        for key in tuple(keys):
            self._expired(key)
            self.resolve(key, False)

    def forget(self, plan_id: str) -> None:
        """Drop the pending ends of a run that has ended."""
        for ends in (self.ends, self.late):
            for key in [key for key in ends if key[0] == plan_id]:
                ends.pop(key).future.cancel()
        if not self.ends:
            self._set_alarm(None)

    def find(self, plan_ids: Iterable[str | None], task: str) -> list[Key]:
        """The ends of a task in one of these plans that may be answered."""
        keys = [(plan_id, task) for plan_id in dict.fromkeys(plan_ids) if plan_id is not None]
        return [key for key in keys if key in self.ends or key in self.late]

    def anywhere(self, task: str) -> list[Key]:
        """The pending ends of a task in any plan or, without any, the late ones."""
        return [key for key in self.ends if key[1] == task] or [key for key in self.late if key[1] == task]

    def seen(self, keys: Iterable[Key]) -> Outline | None:
        ends = (self.ends.get(key) or self.late.get(key) for key in keys)
        return next((end.seen for end in ends if end is not None), None)

    async def answered(self, plan_id: str, tasks: Iterable[str]) -> None:
        """Wait until these ends are no longer pending."""
        futures = [self.ends[plan_id, task].future for task in tasks if (plan_id, task) in self.ends]
        if futures:
            await asyncio.wait(futures)

    async def wait(self, timeout: float | None) -> bool:
        """Wait until nothing is pending. False if an end timed out, which removes it. 0 is the timeout of ends, too, as
        documented."""
        self.follow_loop()
        loop, everything = asyncio.get_running_loop(), True
        deadline = loop.time() + (timeout or self.timeout)
        while self.ends:
            futures = [end.future for end in self.ends.values()]
            done, late = await asyncio.wait(futures, timeout=max(0.0, deadline - loop.time()))
            await asyncio.sleep(0)  # the callback removes ends whose future a program has set
            everything = everything and all(map(_succeeded, done))
            if late:
                self.expire(self.ends)
                return False
        return everything

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
        self.expire([key for key, end in self.ends.items() if end.deadline <= now])
        if self.ends:
            self._set_alarm(min(end.deadline for end in self.ends.values()))


def _succeeded(future: asyncio.Future[bool]) -> bool:
    return not future.cancelled() and future.exception() is None and future.result()


class PlanSynchronizer(PromptObserver):
    """The common part of ConstellationModificationSynchronizer and OrionModificationSynchronizer."""

    naming: ClassVar[Naming] = GALAXY

    def __init__(self, orchestrator: Any, logger: logging.Logger | None = None) -> None:
        self.orchestrator = orchestrator
        self.logger = logger or logging.getLogger("asterism.compat.synchronizer")
        self.pending = Pending(self._warn_of_timeout)
        self._live: dict[str, DocumentedPlan] = {}
        self.current: DocumentedPlan | None = None
        self._unmerged: tuple[DocumentedPlan, Outline | None] | None = None  # a copy that is not merged yet

    # -- events -------------------------------------------------------------------------------------------------

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
        """Whether another orchestrator on the same bus runs the plan; its events are ignored."""
        return plan_id not in self._live and plan_id in runs_on(getattr(self.orchestrator, "event_bus", None))

    def watch(self, live: DocumentedPlan) -> None:
        """Start to track a run of our orchestrator."""
        self._follow_loop()
        if self._unmerged is not None and not _same(self._unmerged[0], live):
            self._unmerged = None  # it belongs to another run
        self.merge_and_sync(live)
        self._live[live.plan_id] = self.current = live

    def _started(self, event: Event) -> None:
        live = event.data.get(self.naming.noun)
        if isinstance(live, DocumentedPlan) and live.runner is self.orchestrator and live.plan_id not in self._live:
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
        """The plan of an answer: a named plan that has such a task, else the only plan in which such a task is pending,
        else a named plan that is running. None if there is no such plan."""
        named = [plan_id for plan_id in plan_ids if plan_id]
        runs = runs_on(getattr(self.orchestrator, "event_bus", None))
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
        return {
            key[0]
            for synchronizer in (self, *self._others())
            for task in tasks
            for key in synchronizer.pending.anywhere(task)
        }

    def _warn_of_stray(self, tasks: tuple[str, ...], plan_ids: Iterable[str | None]) -> None:
        waiting = self._waiting(tasks)
        if waiting and not any(self.pending.anywhere(task) for task in tasks):
            return  # the synchronizers that have it pending warn
        names = ", ".join(repr(plan_id) for plan_id in dict.fromkeys(plan_ids) if plan_id) or "nothing"
        pending = ", ".join(map(repr, sorted(waiting)))
        where = f"it is pending in {pending}; name one of them" if pending else "no run waits for it"
        self.logger.warning(
            "the answer to %s is ignored: its %s is %s, and %s", list(tasks), self.naming.id_key, names, where
        )

    def _others(self) -> Iterable[PlanSynchronizer]:
        """The other synchronizers of runs on the same bus."""
        runs = runs_on(getattr(self.orchestrator, "event_bus", None)).values()
        synchronizers = {id(run.options.synchronizer): run.options.synchronizer for run in runs}
        return [other for other in synchronizers.values() if other is not None and other is not self]

    def _take(self, new: Any, live: DocumentedPlan | None, seen: Outline | None, tasks: tuple[str, ...]) -> None:
        """Merge an agent's copy into the running plan, or store it until the next merge."""
        if new is None:
            return
        if not isinstance(new, DocumentedPlan):
            self.logger.warning("%s must be a %s, not %r", self.naming.new_key, self.naming.noun, new)
        elif live is None:
            self.current, self._unmerged = new, (new, seen)
        else:
            self._merge(live, new, seen, tasks)

    def _merge(
        self, live: DocumentedPlan, new: DocumentedPlan, seen: Outline | None, tasks: tuple[str, ...] = ()
    ) -> None:
        self.current = live
        if new is live:
            return  # it was changed in place, and each change was checked
        try:
            merge_copy(live, new, seen, tasks, self.logger)
        except ModificationRejected as rejected:
            self.logger.warning("the answer to %s was not applied to %s: %s", list(tasks), live.plan_id, rejected)

    def _warn_of_timeout(self, key: Key) -> None:
        self.logger.warning("no answer to the end of %s in %s in time; the plan continues", key[1], key[0])

    def forget(self, plan_id: str) -> None:
        """Drop the pending ends of a run that has ended."""
        self._live.pop(plan_id, None)
        self.pending.forget(plan_id)

    # -- the documented methods ----------------------------------------------------------------------------------------

    async def wait_for_pending_modifications(self, timeout: float | None = None) -> bool:
        """Wait until nothing is pending. False if an end timed out, which removes it."""
        return await self.pending.wait(timeout)

    def merge_and_sync(self, live: DocumentedPlan) -> DocumentedPlan:
        """Merge the agent's last changes into the plan and return it. In a run they are merged already."""
        if self._unmerged is not None:
            (new, seen), self._unmerged = self._unmerged, None
            self._merge(live, new, seen)
        return live

    def set_modification_timeout(self, timeout: float) -> None:
        """Set how many seconds a later end may wait for its answer."""
        if timeout <= 0:
            raise ValueError(f"a timeout is above 0, not {timeout}")
        self.pending.timeout = timeout

    def has_pending_modifications(self) -> bool:
        return bool(self.pending.ends)

    def get_pending_task_ids(self) -> list[str]:
        return [task for _, task in self.pending.ends]

    def get_statistics(self) -> dict[str, int]:
        return dict(self.pending.stats)

    # -- private names that the documents show -------------------------------------------------------------------------

    @property
    def _pending_modifications(self) -> Mapping[str, asyncio.Future[bool]]:
        return MappingProxyType({task: end.future for (_, task), end in self.pending.ends.items()})

    _modification_timeout = ReadOnly("pending.timeout", "use set_modification_timeout")
    _stats = ReadOnly("pending.stats", "it counts the ends")
    _is_state_more_advanced = staticmethod(is_more_advanced)


def _same(plan: DocumentedPlan, other: DocumentedPlan) -> bool:
    return plan.lineage == other.lineage or plan.plan_id == other.plan_id


def _task_ids(asked: Any) -> tuple[str, ...]:
    """The tasks in ``on_task_id``: one or several."""
    if isinstance(asked, str):
        return (asked,) if asked else ()
    return tuple(task for task in asked if isinstance(task, str)) if isinstance(asked, Iterable) else ()


def merge_copy(
    live: DocumentedPlan, copy: DocumentedPlan, seen: Outline | None, triggers: tuple[str, ...], logger: logging.Logger
) -> None:
    """Apply the changes of ``copy`` to ``live``, all or none; then update the copy from the live plan.

    ``seen`` is the plan as it was when the copy's author was asked. Raises ModificationRejected and changes nothing."""
    if copy.follows(live):
        return  # it was merged before, and nobody has used it since
    base, base_version = _base(live, copy, seen)
    new = Outline.of(copy.plan)
    _warn_of_claims(live.plan, new.without(base), logger)
    wanted, overtaken = merge(live.plan, base, new)
    if overtaken:
        left_out = "; ".join(map(str, overtaken))
        logger.warning("%s: left out, because the tasks have started or ended: %s", live.plan_id, left_out)
    edits = tuple(edit for edit in wanted.edits if not _in_effect(live.plan, edit))
    live.conditions.register_all(copy.conditions)
    with live.reopened(), refusing():
        batch = EditBatch(edits, "agent", f"the copy of {copy.plan_id!r}", base_version, triggers)
        applied = live.plan.apply(batch, live.plan.clock())
    live.adopt(copy, applied)
    if copy.runner is None:
        copy.follow(live)
        copy.lineage = live.lineage


def _base(live: DocumentedPlan, copy: DocumentedPlan, seen: Outline | None) -> tuple[Outline, int | None]:
    """The base of the copy, and the version of that base (None: unknown)."""
    if copy.lineage == live.lineage:
        known = copy.plan.origin
        if known is not None:
            return known, known.version
    return seen or live.outline(), None


def _in_effect(live: Constellation, edit: Edit) -> bool:
    """Whether the plan already has the change of the edit."""
    nodes = live.nodes
    if isinstance(edit, AddTask):
        return edit.task.id in nodes and nodes[edit.task.id].task == edit.task
    if isinstance(edit, RemoveTask):
        return edit.task_id not in nodes
    if isinstance(edit, UpdateTask):
        node = nodes.get(edit.task_id)
        return node is not None and all(getattr(node.task, name) == value for name, value in edit.changes.items())
    if isinstance(edit, AddDependency | UpdateDependency | RemoveDependency):
        target = nodes.get(edit.target)
        there = None if target is None else target.parents.get(edit.source)
        if isinstance(edit, RemoveDependency):
            return there is None
        return there == edit.dependency
    if isinstance(edit, RemoveTaint):
        return not live.tainted
    return edit.task_id in nodes and nodes[edit.task_id].status is CANCELLED


def _warn_of_claims(live: Constellation, changed: Outline, logger: logging.Logger) -> None:
    """Warn of progress that only a copy knows of, in the part of it that its author has changed."""
    for task_id, record in changed.records.items():
        there = live.nodes.get(task_id)
        if there is None or there.status is record.state.status:
            continue
        claimed, known = TaskStatus(record.state.status), TaskStatus(there.status)
        if claimed is not TaskStatus.CANCELLED and is_more_advanced(claimed, known):  # that is a wish, not a claim
            logger.warning("%s: the copy says that %r is %s; it is %s", live.id, task_id, claimed, known)
