"""Batches of writes: the topics that a batch concerns, and whether its records are distinct."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asterism.core.run.run import Run, RunStatus
from asterism.store.protocol import (
    ENDED,
    OFFERED,
    ExpectRegister,
    ExpectSession,
    PutCopy,
    PutRegister,
    PutRun,
    PutSession,
    Write,
    for_device,
)


def topic_of(run: Run) -> str | None:
    """Return the topic of a run that was just written, if it has one."""
    if run.session is None:
        return OFFERED if run.offered else ENDED if run.ended else None
    return for_device(run.device or "") if run.status is RunStatus.ASSIGNED or run.stop_request is not None else None


def topics_of(writes: Iterable[Write]) -> set[str]:
    """Return the topics of a batch."""
    topics: set[str] = set()
    for write in writes:
        if type(write) is PutRun:
            topic = topic_of(write.run)
            if topic is not None:
                topics.add(topic)
        elif type(write) is PutCopy:
            run = write.run
            if run.ended:
                topics.add(ENDED)
            elif run.device is not None:
                topics.add(for_device(run.device))
        elif type(write) is PutSession and write.session.draining:
            topics.add(for_device(write.session.device))
    return topics


def check_distinct_records(writes: Sequence[Write]) -> None:
    """Raises ValueError for a batch that names a record twice, or gives two runs one key: the outcome would depend on
    the order in which an engine performs it, and no retry could succeed."""
    if len(writes) < 2:
        return
    if type(writes[0]) is PutRun:
        changed = {write.run.id for write in writes if type(write) is PutRun and write.expected is not None}
        if len(changed) == len(writes):
            return  # the common case of runs that end together
    seen = set()
    for write in writes:
        for name in _names(write):
            if name in seen:
                raise ValueError(f"one batch names {' '.join(name)} twice")
            seen.add(name)


def _names(write: Write) -> tuple[tuple[str, str], ...]:
    """Return the records that a write names. Without match, for speed: every commit passes here."""
    if type(write) is PutRun and write.expected is not None:
        return (("run", write.run.id),)
    if isinstance(write, PutRegister | ExpectRegister):
        return (("register", write.key),)
    if isinstance(write, PutRun | PutCopy):
        if write.expected is None and write.run.key is not None:
            return ("run", write.run.id), ("key", write.run.key)
        return (("run", write.run.id),)
    if isinstance(write, PutSession):
        return (("session", write.session.id),)
    return (("session", write.session),) if isinstance(write, ExpectSession) else ()
