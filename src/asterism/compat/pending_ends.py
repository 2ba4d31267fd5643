"""Ends of tasks that wait for the answer of an agent, each with a deadline.

One timer serves all pending ends; without pending ends there is no timer. ``by_task`` shows them like the documented
``_pending_modifications``, as futures by task id; writing to it takes effect.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from asterism.core.plan.diff import Outline

logger = logging.getLogger("asterism.compat.synchronizer")

Key = tuple[str, str]
"""A task's end: the ids of its plan and of the task."""

Guard = Callable[[str, "asyncio.Future[bool]"], Coroutine[Any, Any, None]]
"""Completes the future of a task's end if there is no answer in time."""


@dataclass(slots=True, eq=False)
class End:
    """An end that waits for its answer. ``seen`` is the plan as the agent saw it."""

    seen: Outline | None
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
        by_hand, deadline = future is not None, self._loop.time() + self.timeout
        future = self._loop.create_future() if future is None else future
        guard = None if by_hand else self._guard()
        if guard is not None:
            deadline = math.inf
            task = self._loop.create_task(self._watch(key, guard, future))
            future.add_done_callback(lambda done: task.cancel())
        self.ends[key] = End(seen, deadline, future, by_hand, guard is not None)
        future.add_done_callback(lambda done: self._resolved(key, done))
        self.stats["total_modifications"] += 1
        if deadline < (math.inf if self._alarm is None else self._alarm.when()):
            self._set_alarm(deadline)

    async def _watch(self, key: Key, guard: Guard, future: asyncio.Future[bool]) -> None:
        """Run the guard of an end. If it fails, the end times out: nothing waits for ever."""
        try:
            await guard(key[1], future)
        except Exception:
            logger.exception("_auto_complete_on_timeout failed for %s in %s", key[1], key[0])
            self.expire([key])

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

    def __repr__(self) -> str:
        return repr(dict(self))
