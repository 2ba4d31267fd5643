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
* a copy read from JSON names the version it was written at, and the live plan remembers that version;
* a newly built constellation is compared with the plan as it was when the answered task ended.

Without an orchestrator a program can drive it by hand: pass events in, then call ``merge_and_sync…``.

``Pending`` are the ends that wait for an answer, each with a deadline. One timer serves all of them; without pending
ends there is no timer. ``by_task`` shows them like the documented ``_pending_modifications``, as futures by task id;
writing to it takes effect.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar

from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.event_bus import PromptObserver, runs_on, untouched
from asterism.compat.vocabulary import (
    GALAXY,
    TASK_ENDS,
    Alias,
    Event,
    ModificationRejected,
    Naming,
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

Guard = Callable[[str, "asyncio.Future[bool]"], Coroutine[Any, Any, None]]
"""Completes the future of a task's end if there is no answer in time."""


@dataclass(slots=True, eq=False)
class End:
    """An end that waits for its answer, since ``began``. ``seen`` is the plan as the agent saw it."""

    seen: Outline | None
    began: float
    deadline: float
    future: asyncio.Future[bool]
    by_hand: bool = False  # written into ``_pending_modifications``
    guarded: bool = False  # a subclass ends it when its time is over


class Pending:
    """``expired`` is called for an end without an answer in time.

    ``guard`` returns the ``_auto_complete_on_timeout`` of a subclass, if there is one: each end then has a task of its
    own that runs it, instead of a deadline."""

    def __init__(self, expired: Callable[[Key], None], guard: Callable[[], Guard | None] = lambda: None) -> None:
        self._guard = guard
        self.timeout = 600.0
        self.stats = {"total_modifications": 0, "completed_modifications": 0, "timeout_modifications": 0}
        self.failed_hooks = 0
        self.hold_seconds = self.longest_hold_seconds = 0.0
        self.ends: dict[Key, End] = {}
        self.late: dict[Key, End] = {}  # timed out, but an answer is still accepted
        self.by_task = _ByTask(self)
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

    def register(self, key: Key, seen: Outline | None, future: asyncio.Future[bool] | None = None) -> None:
        if key in self.ends:
            return
        self.follow_loop()
        assert self._loop is not None
        began, by_hand = self._loop.time(), future is not None
        deadline = began + self.timeout
        future = self._loop.create_future() if future is None else future
        guard = None if by_hand else self._guard()
        if guard is not None:
            deadline = math.inf
            task = self._loop.create_task(self._watch(key, guard, future))
            future.add_done_callback(lambda done: task.cancel())
        self.ends[key] = End(seen, began, deadline, future, by_hand, guard is not None)
        future.add_done_callback(lambda done: self._resolved(key, done))
        self.stats["total_modifications"] += 1
        if deadline < (math.inf if self._alarm is None else self._alarm.when()):
            self._set_alarm(deadline)

    async def _watch(self, key: Key, guard: Guard, future: asyncio.Future[bool]) -> None:
        """Run the guard of an end. If it fails, the end has the deadline that it has without a guard."""
        try:
            await guard(key[1], future)
        except Exception:
            self.hook_failed("_auto_complete_on_timeout", f"{key[1]} in {key[0]} waits until its timeout")
            end = self.ends.get(key)
            if end is not None and end.future is future:
                end.guarded, end.deadline = False, end.began + self.timeout
                self._set_alarm(min(other.deadline for other in self.ends.values()))

    def hook_failed(self, name: str, consequence: str) -> None:
        """Log and count the exception of an overridden method."""
        self.failed_hooks += 1
        logger.exception("the overridden %s failed: %s", name, consequence)

    def _resolved(self, key: Key, future: asyncio.Future[bool]) -> None:
        """Resolve an end whose future was set from outside."""
        end = self.ends.get(key)
        if end is not None and end.future is future:
            self.resolve(key, _succeeded(future))

    def resolve(self, key: Key, answered: bool) -> None:
        """Remove an end that was answered or timed out."""
        end = self.ends.pop(key, None)
        if answered:
            self.late.pop(key, None)
        if end is None:
            return
        assert self._loop is not None
        held = self._loop.time() - end.began
        self.hold_seconds += held
        self.longest_hold_seconds = max(self.longest_hold_seconds, held)
        if not answered:
            self.late[key] = end
        if answered or not (end.guarded and end.future.done()):  # a guard that ends it counts it
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
        """Wait until these ends, and all ends added by hand, are no longer pending."""
        wanted = {(plan_id, task) for task in tasks}
        futures = [end.future for key, end in self.ends.items() if key in wanted or end.by_hand]
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
            await asyncio.sleep(0)  # the callback removes ends that were resolved from outside
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
            earliest = min(end.deadline for end in self.ends.values())
            self._set_alarm(None if earliest == math.inf else earliest)


def _succeeded(future: asyncio.Future[bool]) -> bool:
    return not future.cancelled() and future.exception() is None and bool(future.result())


class _ByTask(MutableMapping[str, "asyncio.Future[bool]"]):
    """Task -> future. Adding an entry holds the plan after the next end until its future is done; deleting an entry
    answers the end."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    def _key(self, task: str) -> Key:
        for key in self._pending.ends:
            if key[1] == task:
                return key
        raise KeyError(task)

    def __getitem__(self, task: str) -> asyncio.Future[bool]:
        return self._pending.ends[self._key(task)].future

    def __setitem__(self, task: str, future: asyncio.Future[bool]) -> None:
        if task in self:
            del self[task]
        self._pending.register(("", task), None, future)

    def __delitem__(self, task: str) -> None:
        key = self._key(task)
        future = self._pending.ends[key].future
        self._pending.resolve(key, not future.done() or _succeeded(future))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(task for _, task in self._pending.ends))

    def __len__(self) -> int:
        return len(dict.fromkeys(task for _, task in self._pending.ends))

    def clear(self) -> None:
        """Stop waiting for all of them."""
        self._pending.expire(self._pending.ends)

    def replace(self, futures: Mapping[str, asyncio.Future[bool]]) -> None:
        """Wait for these instead."""
        self.clear()
        self.update(futures)

    def __repr__(self) -> str:
        return repr(dict(self))


class PlanSynchronizer(PromptObserver):
    """The common part of ConstellationModificationSynchronizer and OrionModificationSynchronizer."""

    naming: ClassVar[Naming] = GALAXY

    def __init__(self, orchestrator: Any, logger: logging.Logger | None = None) -> None:
        self.orchestrator = orchestrator
        self.logger = logger or logging.getLogger("asterism.compat.synchronizer")
        self.pending = Pending(self._warn_of_timeout, self._own_guard)
        self._live: dict[str, DocumentedPlan] = {}
        self._current: DocumentedPlan | None = None
        self._unmerged: tuple[DocumentedPlan, Outline | None] | None = None  # a copy that is not merged yet

    # -- events -------------------------------------------------------------------------------------------------

    @property
    def prompt(self) -> bool:
        return untouched(self, "on_event", "_handle_task_event", f"_handle_{self.naming.noun}_event")

    async def on_event(self, event: Event) -> None:
        name = "_handle_task_event" if isinstance(event, TaskEvent) else f"_handle_{self.naming.noun}_event"
        if not isinstance(event, TaskEvent | self.naming.event):
            return
        try:
            await getattr(self, name)(event)
        except Exception:
            self.pending.hook_failed(name, f"{event.event_type.value} is handled as by default")
            self.notice(event)

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
        """Whether another orchestrator on the same bus runs the plan; its events are ignored."""
        return plan_id not in self._live and plan_id in runs_on(getattr(self.orchestrator, "event_bus", None))

    def watch(self, live: DocumentedPlan) -> None:
        """Start to track a run of our orchestrator."""
        self._follow_loop()
        if self._unmerged is not None and not _same(self._unmerged[0], live):
            self._unmerged = None  # it belongs to another run
        self.merge_and_sync(live)
        self._live[live.plan_id] = self._current = live

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
        synchronizers = {id(run.synchronizer): run.synchronizer for run in runs}
        return [
            other for other in synchronizers.values() if issubclass(type(other), PlanSynchronizer) and other is not self
        ]

    def _take(self, new: Any, live: DocumentedPlan | None, seen: Outline | None, tasks: tuple[str, ...]) -> None:
        """Merge an agent's copy into the running plan, or store it until the next merge."""
        if new is None:
            return
        if not isinstance(new, DocumentedPlan):
            self.logger.warning("%s must be a %s, not %r", self.naming.new_key, self.naming.noun, new)
        elif live is None:
            self._current, self._unmerged = new, (new, seen)
        else:
            self._merge(live, new, seen, tasks)

    def _merge(
        self, live: DocumentedPlan, new: DocumentedPlan, seen: Outline | None, tasks: tuple[str, ...] = ()
    ) -> None:
        self._current = live
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

    def current(self) -> DocumentedPlan | None:
        """The latest plan: the live plan, or an agent's copy that is not merged yet."""
        return self._current

    def set_current(self, new: DocumentedPlan | None) -> None:
        """Set an agent's copy, to be merged before the plan continues; None if there is nothing to merge."""
        if new is not None and not isinstance(new, DocumentedPlan):
            raise TypeError(f"this takes a {self.naming.noun}, not {new!r}")
        self._unmerged = None if new is None or new in self._live.values() else (new, None)
        self._current = new

    def set_modification_timeout(self, timeout: float) -> None:
        """Set how many seconds a later end may wait for its answer."""
        if timeout <= 0:
            raise ValueError(f"a timeout is above 0, not {timeout}")
        self.pending.timeout = timeout

    def has_pending_modifications(self) -> bool:
        return bool(self.pending.ends)

    def get_pending_count(self) -> int:
        return len(self.pending.ends)

    def get_pending_task_ids(self) -> list[str]:
        return [task for _, task in self.pending.ends]

    def get_statistics(self) -> dict[str, float]:
        """The documented counts; ``failed_hooks``, the exceptions of overridden methods; and how long ends that are not
        pending any more were, in seconds: ``hold_seconds`` of all, ``longest_hold_seconds`` of one."""
        pending = self.pending
        return {
            **pending.stats,
            "failed_hooks": pending.failed_hooks,
            "hold_seconds": pending.hold_seconds,
            "longest_hold_seconds": pending.longest_hold_seconds,
        }

    def clear_pending_modifications(self) -> None:
        """Stop waiting for all pending ends."""
        self.pending.expire(self.pending.ends)

    # -- private names that the documents show -------------------------------------------------------------------------

    async def _auto_complete_on_timeout(self, task_id: str, future: asyncio.Future[bool]) -> None:
        """Stop waiting for the answer to a task's end when its time is over. A subclass may override it; it is then
        called for each end, in a task of its own that is cancelled when the answer comes."""
        await asyncio.sleep(self._modification_timeout)
        self.pending.expire([key for key, end in self.pending.ends.items() if end.future is future])

    def _own_guard(self) -> Guard | None:
        return None if untouched(self, "_auto_complete_on_timeout") else self._auto_complete_on_timeout

    @property
    def current_id(self) -> str | None:
        return None if self._current is None else self._current.plan_id

    _pending_modifications = Alias("pending.by_task", write="pending.by_task.replace")
    _modification_timeout = Alias("pending.timeout", write="set_modification_timeout")
    _stats = Alias("pending.stats", write="pending.stats.update")
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
        known = copy.plan.origin or live.written(copy.stamp)
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
