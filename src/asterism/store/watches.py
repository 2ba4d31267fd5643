"""Watches within one process: a commit wakes the waiters of its topics.

``topics_of`` returns the topics that a batch of writes concerns, and ``check_distinct_records`` refuses a batch that
names a record twice. A commit costs time for the watches that it wakes, not for those of other topics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence

from asterism.core.run.run import RunStatus
from asterism.store.protocol import (
    CREDENTIAL_KEYS,
    CREDENTIALS_CHANGED,
    ENDED,
    EVENTS_SENT,
    LIMIT_HOLDS,
    LIMITED,
    LIMITS,
    OFFERED,
    PLAN_TOPICS,
    ExpectRegister,
    ExpectSession,
    PutCopy,
    PutLog,
    PutPlan,
    PutPriority,
    PutRegister,
    PutRun,
    PutSession,
    Write,
    for_device,
    for_plan,
)


class LocalWatch:
    """An event of one event loop, woken from that loop. Once closed it is never woken again."""

    def __init__(self, topics: frozenset[str], forget: Callable[[LocalWatch], None]) -> None:
        self.topics = topics
        self._event = asyncio.Event()
        self._forget = forget

    def wake(self) -> None:
        self._event.set()

    async def wait(self, timeout: float) -> bool:
        woken = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                woken = await self._event.wait()
        # of several waiters, the first to resume clears the event; the others rely on the result of their own wait
        woken = woken or self._event.is_set()
        self._event.clear()
        return woken

    @property
    def woken(self) -> bool:
        return self._event.is_set()

    def close(self) -> None:
        self._forget(self)


class Watches:
    """All watches on one store, by topic."""

    def __init__(self) -> None:
        self.open: set[LocalWatch] = set()
        self._by_topic: dict[str, set[LocalWatch]] = {}

    def add(self, topics: frozenset[str]) -> LocalWatch:
        watch = LocalWatch(topics, self._forget)
        self.open.add(watch)
        for topic in topics:
            self._by_topic.setdefault(topic, set()).add(watch)
        return watch

    def _forget(self, watch: LocalWatch) -> None:
        self.open.discard(watch)
        for topic in watch.topics:
            watching = self._by_topic.get(topic, set())
            watching.discard(watch)
            if not watching:
                self._by_topic.pop(topic, None)

    def wake(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for watch in self._by_topic.get(topic, ()):
                watch.wake()

    def wake_all(self) -> None:
        """Wake every watch: something changed, and the topics are unknown."""
        for watch in self.open:
            watch.wake()


# -- batches of writes -------------------------------------------------------------------------------------------------


def topics_of(writes: Iterable[Write]) -> set[str]:
    """Return the topics of a batch."""
    writes, topics = list(writes), set[str]()
    prioritised = {write.run for write in writes if type(write) is PutPriority}
    for write in writes:
        if type(write) is PutRun:
            run = write.run
            if run.session is not None:
                if run.status is RunStatus.ASSIGNED or run.stop_request is not None or run.id in prioritised:
                    topics.add(for_device(run.device or ""))
            elif run.offered:
                topics.add(OFFERED)
            elif run.ended:
                topics.add(ENDED)
            if run.uses is not None and run.session is None:
                topics.add(LIMITED)  # it holds nothing any more
        elif type(write) is PutCopy:
            run = write.run
            if run.ended:
                topics.add(ENDED)
            elif run.device is not None:
                topics.add(for_device(run.device))
        elif type(write) is PutSession and write.session.draining:
            topics.add(for_device(write.session.device))
        elif type(write) is PutRegister and write.key.startswith(PLAN_TOPICS):
            topics.add(for_plan(write.key.split("/")[1]))
        elif type(write) is PutRegister and write.key.startswith((LIMITS, LIMIT_HOLDS)):
            topics.add(LIMITED)
        elif type(write) is PutRegister and write.key.startswith(CREDENTIAL_KEYS):
            topics.add(CREDENTIALS_CHANGED)
        elif type(write) is PutRegister and write.key == EVENTS_SENT:
            topics.add(EVENTS_SENT)
    return topics


def check_distinct_records(writes: Sequence[Write]) -> None:
    """Raises ValueError for a batch that names a record twice, or gives two runs one key: the outcome would depend on
    the order in which an engine performs it, and no retry could succeed."""
    if len(writes) < 2:
        return
    if type(writes[0]) is PutRun:
        runs = [write.run for write in writes if type(write) is PutRun]
        keys = [write.run.key for write in writes if type(write) is PutRun and write.expected is None]
        named = [key for key in keys if key is not None]
        if len({run.id for run in runs}) == len(runs) == len(writes) and len(set(named)) == len(named):
            return  # the common cases of runs that end, or are created, together
    seen = set()
    for write in writes:
        names = (("register", write.key),) if isinstance(write, PutRegister | ExpectRegister) else _names(write)
        for name in names:
            if name in seen:
                raise ValueError(f"one batch names {' '.join(name)} twice")
            seen.add(name)


def _names(write: Write) -> tuple[tuple[str, str], ...]:
    """Return the records that a write names. Without match, for speed: every commit passes here."""
    if type(write) is PutRun and write.expected is not None:
        return (("run", write.run.id),)
    if isinstance(write, PutRun | PutCopy):
        if write.expected is None and write.run.key is not None:
            return ("run", write.run.id), ("key", write.run.key)
        return (("run", write.run.id),)
    if isinstance(write, PutSession):
        return (("session", write.session.id),)
    if isinstance(write, PutPlan):
        return (("plan", write.name),)
    if isinstance(write, PutLog):
        return (("log", f"{write.run} {write.epoch}"),)
    return (("session", write.session),) if isinstance(write, ExpectSession) else ()
