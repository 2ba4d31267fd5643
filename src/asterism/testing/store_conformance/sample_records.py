"""Runs and sessions to test with, and ways to look at a whole store.

Ids sort as their runs were created, for that is how the ids of a fleet are made: an engine may go by either.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.core.run.session import Session
from asterism.core.run.workflow import Workflow
from asterism.core.series.machine import Series
from asterism.store.protocol import Notice, PutRegister, PutRun, PutSession, Query, Register, Store, TakeRequest
from asterism.store.store_errors import Conflict

TIMEOUT = 64.0
"""Added to any time of this century it is exact, in whatever order an engine computes."""

FLOW = Workflow("transcode", argv=("true",), version=1, heartbeat=30.0, timeout=TIMEOUT, retries=2)
LATER = 1e6
"""A time by which every run made here may be taken; all of them are from the first hours of 1970."""

FAR = 1e12
"""A time after everything."""


def a_run(number: int | str, flow: Workflow = FLOW, *, at: float | None = None, given: Any = None, **more: Any) -> Run:
    """The run ``r0001`` for 1, created at 1 s (or ``at``)."""
    run_id = f"r{number:04d}" if isinstance(number, int) else number
    now = at if at is not None else float(number) if isinstance(number, int) else 1.0
    return transitions.create(run_id, flow, given or {}, by="tester", now=now, **more)


def a_session(name: str = "kitchen-1", device: str = "kitchen", **more: Any) -> Session:
    return Session(name, device, 1.0, timeout=TIMEOUT, **more)


def taking(session: Session, flow: Workflow = FLOW) -> Callable[[Run], Run | None]:
    """The step by which the device of ``session`` takes whatever it is offered."""
    return lambda run: transitions.take(run, session.owner, flow, LATER)


def offer(device: str = "kitchen", limit: int = 10, **more: Any) -> TakeRequest:
    return TakeRequest(device, **{"not_kinds": frozenset(), "now": LATER, "limit": limit, **more})


def held_by(run: Run, session: Session, flow: Workflow = FLOW, now: float = 50.0) -> Run:
    """Claimed by the device of ``session``."""
    return transitions.take(run, session.owner, flow, now)


def assigned_to(run: Run, session: Session, now: float = 50.0) -> Run:
    return transitions.assign(run, session.owner, FLOW, by="coordinator", now=now, scores={session.device: 62.5})


def started(run: Run, now: float = 60.0) -> Run:
    grant = run.grant
    assert grant is not None
    return transitions.start(run, grant, now)


def completed(run: Run, output: Any = None, now: float = 70.0) -> Run:
    """From claimed or processing to completed."""
    run = run if run.started_at is not None else started(run, now)
    grant = run.grant
    assert grant is not None
    return transitions.complete(run, grant, output, now)


def released(run: Run, now: float = 70.0) -> Run:
    grant = run.grant
    assert grant is not None
    return transitions.release(run, grant, "released", "enough of it", now)


def after(before: Run, new: Run) -> PutRun:
    """The write by which ``new`` replaces ``before``, however many steps lie between them."""
    return PutRun(new.changed(revision=before.revision + 1), before.revision)


async def joined(store: Store, *sessions: Session) -> None:
    await store.commit([PutSession(session, None) for session in sessions])


async def added(store: Store, *runs: Run) -> None:
    await store.commit([PutRun(run, None) for run in runs])


def series_of(name: str, *, active: str | None = None, queue: Sequence[str] = (), revision: int = 0) -> PutRegister:
    """The state of a series as a fleet writes it, in place of ``revision``. An engine may check that it fits the
    runs. Those in the queue wait for an issue, unless one of them is active."""
    state = Series(name, 93 if queue and active is None else active, tuple(queue), 1.0, revision + 1)
    return PutRegister(f"series/{name}", state.to_json(), revision or None)


async def session_in(store: Store, name: str) -> Session:
    """The session as the store knows it now."""
    return {session.id: session for session in await store.sessions(ended=True)}[name]


def ids(runs: Iterable[Run]) -> list[str]:
    return [run.id for run in runs]


class Contents(NamedTuple):
    """All that can be seen in a store."""

    runs: dict[str, Run]
    sessions: dict[str, Session]
    registers: list[Register]
    notices: list[tuple[int, Notice]]

    def told(self) -> list[Notice]:
        """The notices without their numbers, between which there may be gaps."""
        return [notice for _, notice in self.notices]

    def comparable(self) -> Contents:
        """Without what is each store's own affair: its clock, and how it numbers notices."""
        sessions = {name: replace(one, beat_at=0.0) for name, one in self.sessions.items()}
        return self._replace(sessions=sessions, notices=[(0, notice) for notice in self.told()])


async def contents(store: Store) -> Contents:
    return Contents(
        {run.id: run for run in await store.find(Query())},
        {session.id: session for session in await store.sessions(ended=True)},
        await store.registers(""),
        await store.notices(limit=1_000_000),
    )


async def wins(doing: Awaitable[Any], *what: str) -> bool:
    """Whether it was done; not, if there was a Conflict about one of ``what``."""
    try:
        await doing
    except Conflict as error:
        if error.what in what:
            return False
        raise
    return True


@contextmanager
def conflict(*what: str) -> Iterator[None]:
    """Raises AssertionError unless there is a Conflict about one of ``what``."""
    try:
        yield
    except Conflict as error:
        if error.what in what:
            return
        raise AssertionError(f"the conflict is about {error.what}, not {' or '.join(what)}") from error
    raise AssertionError(f"no conflict, though {' and '.join(what)} cannot be as expected")


@contextmanager
def raising(*kinds: type[BaseException]) -> Iterator[None]:
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"nothing raised any of {', '.join(kind.__name__ for kind in kinds)}")


def hard_to_compress(length: int) -> str:
    """Letters that no engine can make short."""
    return "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


async def lines_of(lines: Iterable[Mapping[str, Any]]) -> AsyncIterator[Mapping[str, Any]]:
    """What was read of a dump, as something to load."""
    for line in lines:
        yield line
