"""Sample records: runs and sessions to test with, the contents of a whole store, and random histories of runs.

``StoreTests`` is the base of all tests of stores.

Ids sort in the order in which their runs were created, as the ids of a fleet do: an engine may sort by either.
"""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Any, NamedTuple

from hypothesis import strategies as st

from asterism.core.errors import RunRefused
from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import Grant, Owner, Progress, Run
from asterism.core.run.session import Session
from asterism.core.run.work import Workflow
from asterism.store.protocol import (
    Notice,
    PutRun,
    PutSession,
    Query,
    Register,
    Store,
    TakeRequest,
    feed_of,
)
from asterism.store.store_errors import Conflict, StoreError
from tests.laboratory.conformance import AsyncTest, AsyncTests, ProcessOpener

TIMEOUT = 64.0
"""A timeout whose sum with any time of this century is exact, in whatever order an engine adds."""

FLOW = Workflow("transcode", argv=("true",), version=1, heartbeat=30.0, heartbeat_timeout=TIMEOUT, retries=2)
KIND = f"{FLOW.name}@{FLOW.work.digest}"
"""The kind of its runs."""

LATER = 1e6
"""A time at which every run made here may be taken; all are created in the first hours of 1970."""

FAR = 1e12
"""A time after all others."""


def a_run(number: int | str, flow: Workflow = FLOW, *, at: float | None = None, input: Any = None, **more: Any) -> Run:
    """Return the run ``r0001`` for 1, created at 1 s (or ``at``)."""
    run_id = f"r{number:04d}" if isinstance(number, int) else number
    if at is None:
        at = float(number) if isinstance(number, int) else 1.0
    return transitions.create(run_id, flow, input or {}, by="tester", now=at, **more)


def a_session(name: str = "kitchen-1", device: str = "kitchen", **more: Any) -> Session:
    return Session(name, device, 1.0, **{"timeout": TIMEOUT, **more})


def taking(session: Session) -> Callable[[Run], Run | None]:
    """Return a step by which the device of ``session`` takes every run."""
    return lambda run: transitions.take(run, session.owner, LATER)


def offer(device: str = "kitchen", limit: int = 10, **more: Any) -> TakeRequest:
    return TakeRequest(device, **{"not_kinds": frozenset(), "now": LATER, "limit": limit, **more})


def held_by(run: Run, session: Session, now: float = 50.0) -> Run:
    """Return the run as claimed by the device of ``session``."""
    return transitions.take(run, session.owner, now)


def assigned_to(run: Run, session: Session, now: float = 50.0) -> Run:
    return transitions.assign(run, session.owner, by="coordinator", now=now, scores={session.device: 62.5})


def grant_of(run: Run) -> Grant:
    """The grant of a run that a device owns."""
    assert run.grant is not None
    return run.grant


def started(run: Run, now: float = 60.0) -> Run:
    return transitions.start(run, grant_of(run), now)


def completed(run: Run, output: Any = None, now: float = 70.0) -> Run:
    """Return a claimed or processing run as completed."""
    run = run if run.started_at is not None else started(run, now)
    return transitions.complete(run, grant_of(run), output, now)


def released(run: Run, now: float = 70.0) -> Run:
    return transitions.release(run, grant_of(run), "released", "enough of it", now)


def after(before: Run, new: Run) -> PutRun:
    """Return the write that replaces ``before`` by ``new``, however many steps lie between them."""
    return PutRun(new.changed(revision=before.revision + 1), before.revision)


async def joined(store: Store, *sessions: Session) -> None:
    await store.commit([PutSession(session, None) for session in sessions])


async def added(store: Store, *runs: Run) -> None:
    await store.commit([PutRun(run, None) for run in runs])


async def session_in(store: Store, name: str) -> Session:
    """Return a session as it is stored."""
    return {session.id: session for session in await store.sessions(ended=True)}[name]


def ids(runs: Iterable[Run]) -> list[str]:
    return [run.id for run in runs]


class Contents(NamedTuple):
    """All records of a store."""

    runs: dict[str, Run]
    sessions: dict[str, Session]
    registers: list[Register]
    notices: list[tuple[int, Notice]]

    def unnumbered_notices(self) -> list[Notice]:
        """The notices without their numbers, which may have gaps."""
        return [notice for _, notice in self.notices]

    def comparable(self) -> Contents:
        """Without what differs between stores: the time of heartbeats, and the numbers of notices."""
        sessions = {name: replace(session, beat_at=0.0) for name, session in self.sessions.items()}
        return self._replace(sessions=sessions, notices=[(0, notice) for notice in self.unnumbered_notices()])


async def contents(store: Store) -> Contents:
    return Contents(
        {run.id: run for run in await store.find(Query())},
        {session.id: session for session in await store.sessions(ended=True)},
        await store.registers(""),
        await store.notices(limit=1_000_000),
    )


async def wins(doing: Awaitable[Any], *what: str) -> bool:
    """Await a write. Return False if it raises a Conflict about one of ``what``."""
    try:
        await doing
    except Conflict as error:
        if error.what in what:
            return False
        raise
    return True


@contextmanager
def conflict(*what: str) -> Iterator[None]:
    """Raise AssertionError unless the block raises a Conflict about one of ``what``."""
    try:
        yield
    except Conflict as error:
        if error.what in what:
            return
        raise AssertionError(f"the conflict is about {error.what}, not {' or '.join(what)}") from error
    raise AssertionError(f"no conflict was raised about {' or '.join(what)}")


@contextmanager
def raising(*kinds: type[BaseException]) -> Iterator[None]:
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"none of these was raised: {', '.join(kind.__name__ for kind in kinds)}")


def hard_to_compress(length: int) -> str:
    """Return a text that no engine can compress."""
    return "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


async def lines_of(lines: Iterable[Mapping[str, Any]]) -> AsyncIterator[Mapping[str, Any]]:
    """Return the lines of a dump as an async iterator, to load them."""
    for line in lines:
        yield line


# -- what tests get ----------------------------------------------------------------------------------------------------

WAKE_TIMEOUT = 300.0
"""How long a test waits for something that has to happen, in seconds. Only a failure takes that long."""


class StoreTests(AsyncTests):
    """The parameters of a test say what it gets:

    - ``store``, a fresh store, which has to pass its own check at the end; ``fresh``, one more.
    - ``other``, a second connection to ``store``, or the same one if there can be only one.
    - ``feed``, the change feed of the store, which is started. An engine without a feed has to refuse to start it.
    - ``session`` and ``garage``, sessions of the devices ``kitchen`` and ``garage``, which have joined.
    """

    tells_topics_apart = True
    """Whether commits of other topics leave a watch alone. A watch may be woken without need in any case, but where
    this is True not every commit wakes it."""

    has_feed = True
    """Whether the engine can exchange records with peers. One that cannot raises StoreError."""

    async def open_store(self) -> Store:
        """Open a fresh, empty store. Has to be overridden."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to open a store: override open_store")

    async def open_another(self, store: Store) -> Store | None:
        """Open a second connection to ``store``; None if the engine lives in one process and needs none."""
        return None

    async def process_opener(self, store: Store) -> ProcessOpener:
        """Return how another process opens ``store``."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say how another process opens a store: override process_opener"
        )

    async def run_test(self, test: AsyncTest) -> None:
        async with AsyncExitStack() as closing:

            async def opened(opening: Awaitable[Store | None]) -> Store | None:
                store = await opening
                if store is not None:
                    closing.push_async_callback(store.close)
                return store

            store = await opened(self.open_store())
            assert store is not None
            arguments: dict[str, Any] = {}
            for name in inspect.signature(test).parameters:
                if name == "fresh":
                    arguments[name] = await opened(self.open_store())
                elif name == "other":
                    arguments[name] = await opened(self.open_another(store)) or store
                elif name in ("session", "garage"):
                    arguments[name] = a_session() if name == "session" else a_session("garage-1", "garage")
                    await joined(store, arguments[name])
                elif name == "feed":
                    arguments[name] = feed_of(store)
                    if not self.has_feed:
                        with raising(StoreError):
                            await feed_of(store).start_feed()
                        return
                    await feed_of(store).start_feed()
            await test(self, store, **arguments)
            problems = await store.check()
            assert problems == [], f"the check of the store found problems: {'; '.join(problems)}"


# -- random histories, for hypothesis ----------------------------------------------------------------------------------


DEVICES = (
    "kitchen", "garage", "an attic with a long name", "dach-😀", "o'brien", 'the "loft"', "50%", "a_b", "KITCHEN",
)  # fmt: skip


def _through_json(value: Any) -> Any:
    """Return a value as it comes out of JSON, where two halves of a surrogate pair become one character."""
    return json.loads(json.dumps(value))


TEXTS = st.text(st.characters(exclude_categories=()), max_size=12).map(_through_json)
"""Any Python text that JSON can hold, with NUL and lone surrogates."""

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
"""Names: any characters except control characters and surrogates."""

_PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
DOCUMENTS = (
    _PLAIN
    | st.lists(_PLAIN, max_size=3)
    | st.dictionaries(TEXTS, _PLAIN | st.lists(_PLAIN, max_size=2), max_size=3).map(_through_json)
)
"""Any JSON value."""

INPUTS = st.dictionaries(TEXTS, DOCUMENTS, max_size=2).map(_through_json)
TIMES = st.floats(0.0, 4e9) | st.sampled_from([0.0, 0.1, 1e-9, 1.7e9 + 1 / 3, 2.0**53 + 2])
_DEVICE = st.sampled_from(DEVICES)
OWNERS = st.builds(lambda device, life: Owner(device, f"{device}-{life}"), _DEVICE, st.integers(1, 2))
WORKFLOWS = st.builds(
    Workflow,
    st.sampled_from(["transcode", "index", "größer", "a b"]),
    argv=st.just(("true",)),
    description=TEXTS,
    version=st.integers(0, 3),
    retries=st.integers(0, 2),
    losses=st.integers(0, 2),
    rounds=st.integers(1, 3),
    priority=st.integers(-1_000_000, 1_000_000),
    heartbeat=st.just(0.25),
    timeout=st.floats(0.5, 1e5),
    backoff=st.floats(0.001, 10),
)

Step = Callable[[Run, float], Run]


def _grant(run: Run) -> Grant:
    return run.grant or Grant(run.id, "nobody", 0)


def _assign(owner: Owner, by: str, scores: dict[str, float]) -> Step:
    return lambda run, now: transitions.assign(run, owner, by=by, now=now, scores=scores)


def _take(owner: Owner, score: float | None) -> Step:
    scores = {} if score is None else {owner.device: score}
    return lambda run, now: transitions.take(run, owner, now, scores=scores)


def _fail(words: str, final: bool) -> Step:
    return lambda run, now: transitions.fail(run, _grant(run), words, now, final=final)


def _decline(words: str, full: bool) -> Step:
    return lambda run, now: transitions.decline(run, _grant(run), words, now, for_now=full)


def _release(reason: str, words: str, progress: Progress | None) -> Step:
    return lambda run, now: transitions.release(run, _grant(run), reason, words, now, progress)


_CLAIM: Step = lambda run, now: transitions.claim(run, _grant(run), now)  # noqa: E731
_START: Step = lambda run, now: transitions.start(run, _grant(run), now)  # noqa: E731
_NEXT_ROUND: Step = lambda run, now: transitions.offer_again(run, now)  # noqa: E731
_PROGRESS = st.none() | st.builds(Progress, st.integers(0, 9), st.none() | st.integers(0, 9))

STEPS: st.SearchStrategy[Step] = st.one_of(
    st.sampled_from([_CLAIM, _START, _NEXT_ROUND]),
    st.builds(_assign, OWNERS, _DEVICE, st.dictionaries(_DEVICE, st.floats(0, 100), max_size=2)),
    st.builds(_take, OWNERS, st.none() | st.floats(0, 100)),
    DOCUMENTS.map(lambda output: lambda run, now: transitions.complete(run, _grant(run), output, now)),
    st.builds(_fail, TEXTS, st.booleans()),
    st.builds(_decline, TEXTS, st.booleans()),
    st.builds(_release, st.sampled_from(["released", "preempted", "conflict"]), TEXTS, _PROGRESS),
    TEXTS.map(lambda words: lambda run, now: transitions.lose(run, now, words)),
    TEXTS.map(lambda words: lambda run, now: transitions.give_up(run, now, words)),
    TEXTS.map(lambda by: lambda run, now: transitions.cancel(run, now, by)),
    st.builds(lambda by: lambda run, now: transitions.pause(run, now, by), TEXTS),
    TEXTS.map(lambda by: lambda run, now: transitions.resume(run, now, by)),
)
"""Steps of a run. The core refuses those that its status does not allow."""


@st.composite
def histories(draw: st.DrawFn) -> list[Run]:
    """Return the records of a run after each step, from its creation on."""
    flow = draw(WORKFLOWS)
    now = draw(TIMES)
    run = transitions.create(
        draw(NAMES),
        flow,
        draw(INPUTS),
        by=draw(TEXTS),
        now=now,
        key=draw(st.none() | NAMES),
        series=draw(st.none() | NAMES),
        device=draw(st.none() | _DEVICE),
        retry_of=draw(st.none() | NAMES),
        label=draw(st.none() | NAMES),
        batch=draw(st.none() | NAMES),
    )
    history = [run]
    # of random steps most are refused, so the run is first assigned and worked on for a while
    usual: list[Step] = [_assign(draw(OWNERS), draw(_DEVICE), {}), _CLAIM, _START]
    for step in [*usual[: draw(st.integers(0, 3))], *draw(st.lists(STEPS, max_size=8))]:
        now += draw(st.floats(0, 100))
        try:
            run = step(run.changed(admitted=run.uses is not None), now).changed(admitted=False)
        except RunRefused:
            continue
        if run != history[-1]:
            history.append(run)
    return history
