"""Model tests: random programs on an engine and on MemoryStore must have the same effect.

The programs are made of writes, takes and heartbeats, and compared after each step. A failure shows the shortest
program that hypothesis can find.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from asterism.core.errors import RunRefused
from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import CREATED, OWNED, REASSIGNING, TERMINAL, Grant, Progress, Run
from asterism.core.run.session import ENDED, OPEN, REPLACED, Session
from asterism.store.memory import MemoryStore
from asterism.store.protocol import (
    ExpectRegister,
    ExpectSession,
    Notice,
    ProgressReport,
    PutRegister,
    PutRun,
    PutSession,
    Query,
    Store,
    Write,
)
from asterism.store.store_errors import Conflict
from tests.laboratory.store_conformance.sample_records import FAR, FLOW, StoreTests, contents, ids, offer

PROGRAMS, STEPS = 12, 25
PHASES = (Phase.generate, Phase.shrink)

_FLOWS = [replace(FLOW, losses=1, rounds=2, retries=1), replace(FLOW, name="index", version=2, losses=0, retries=0)]
_KINDS = tuple(f"{flow.name}@{flow.work.digest}" for flow in _FLOWS)
_DEVICES = ("kitchen", "garage", "attic")
_CHANGES: list[Callable[[Run, Grant, Session, float], Run]] = [
    lambda run, grant, session, now: transitions.assign(run, session.owner, by="x", now=now),
    lambda run, grant, session, now: transitions.take(run, session.owner, now),
    lambda run, grant, session, now: transitions.claim(run, grant, now),
    lambda run, grant, session, now: transitions.start(run, grant, now),
    lambda run, grant, session, now: transitions.complete(run, grant, {"at": now}, now),
    lambda run, grant, session, now: transitions.fail(run, grant, "it failed", now),
    lambda run, grant, session, now: transitions.decline(run, grant, "no room", now),
    lambda run, grant, session, now: transitions.release(run, grant, "released", "", now, Progress(1, 2)),
    lambda run, grant, session, now: transitions.lose(run, now, "no heartbeat arrived"),
    lambda run, grant, session, now: transitions.offer_again(run, now),
    lambda run, grant, session, now: transitions.cancel(run, now, "x"),
    lambda run, grant, session, now: transitions.pause(run, now, "x"),
    lambda run, grant, session, now: transitions.resume(run, now, "x"),
]
_CRITERIA: list[dict[str, Any]] = [
    *({"statuses": these} for these in (OWNED, TERMINAL, frozenset({CREATED, REASSIGNING}))),
    *({"device": device} for device in _DEVICES),
    *({"session": f"{device}-0"} for device in _DEVICES),
    *({name: wanted} for name in ("offered", "avoiding") for wanted in (True, False)),
    *({name: then} for name in ("waiting_before", "ended_before") for then in (5.0, 20.0)),
    {"due_before": 50.0},
    {"id_like": "1"},
    {"after": "r0007"},
    {"workflow": "index"},
    {"key": "k1"},
]


def _described(write: Write) -> str:
    """Describe a write briefly: a failure shows the steps, and a record has forty fields."""
    match write:
        case PutRun(run, expected):
            return f"run {run.id} ({run.story[-1].what}, revision {run.revision} after {expected})"
        case PutSession(session, expected):
            return f"session {session.id} ({session.state}, revision {session.revision} after {expected})"
    return repr(write)


async def _outcome(doing: Awaitable[Any]) -> Any:
    """Return the outcome, which may be a conflict."""
    try:
        return await doing
    except Conflict as error:
        return error


class Pair:
    """An engine with two connections, and the reference. ``_one`` chooses by numbers of hypothesis."""

    def __init__(self, store: Store, other: Store) -> None:
        self._connections = (store, other)
        self._model = MemoryStore()
        self._now, self._done = 0.0, 0
        self._numbers = iter(b"")

    def _one(self, *options: Any) -> Any:
        return options[next(self._numbers, 0) % len(options)]

    async def do(self, what: str, numbers: bytes) -> None:
        """Do one step. Raises AssertionError if the engine and the reference differ."""
        self._numbers = iter(numbers)
        self._now += 1.0
        self._done += 1
        step: Callable[[], Awaitable[None]] = getattr(self, what)
        await step()

    async def _both(self, do: Callable[[Store], Awaitable[Any]]) -> tuple[Any, Any]:
        return await _outcome(do(self._connections[self._done % 2])), await _outcome(do(self._model))

    async def _commit(self, writes: Sequence[Write]) -> None:
        wrong = await self._mismatches(writes)
        note(f"  commit {', '.join(map(_described, writes))}" + (f": conflicts about {wrong}" if wrong else ""))
        actual, expected = await self._both(lambda store: store.commit(writes))
        assert isinstance(actual, Conflict) == isinstance(expected, Conflict) == bool(wrong)
        assert not wrong or actual.what in wrong

    async def _mismatches(self, writes: Sequence[Write]) -> set[str]:
        """Return every record that is not as the batch expects."""
        wrong = set()
        sessions = {session.id: session.revision for session in await self._model.sessions(ended=True)}
        for write in writes:
            match write:
                case PutRun(run, expected):
                    known = await self._model.run(run.id)
                    if (known.revision if known else None) != expected:
                        wrong.add(f"run {run.id}")
                    if expected is None and run.key and await self._model.find(Query(key=run.key)):
                        wrong.add(f"key {run.key}")
                case PutSession(Session(id=name), revision) | ExpectSession(name, revision):
                    if sessions.get(name) != revision:
                        wrong.add(f"session {name}")
                case PutRegister(key, _, expected) | ExpectRegister(key, expected):
                    register = await self._model.register(key)
                    if (register.revision if register else None) != expected:
                        wrong.add(f"register {key}")
        return wrong

    async def _session(self, *strangers: Session) -> Session:
        """Choose an existing one, or one of the ``strangers``."""
        session: Session = self._one(*reversed(await self._model.sessions(ended=True)), *strangers)
        return session

    async def _changed(self) -> list[PutRun]:
        """Choose a change of some run that the core allows."""
        runs, session = await self._model.find(Query()), await self._session()
        if not runs:
            return []
        run: Run = self._one(*runs)
        changes = []
        for change in _CHANGES:
            with contextlib.suppress(RunRefused):
                changes.append(change(run, run.grant or Grant(run.id, "nobody", 0), session, self._now))
        changes = [new for new in changes if new is not run]
        return [PutRun(self._one(*changes), run.revision)] if changes else []

    def _new(self, number: int = 0, **more: Any) -> Run:
        run_id = f"r{int(self._now):04d}{number or ''}"
        flow = self._one(_FLOWS[0], _FLOWS[0], _FLOWS[1])
        options = {"priority": self._one(0, 1, -1), "device": self._one(None, None, None, "kitchen"), **more}
        run = transitions.create(run_id, flow, {"x": number}, by="x", now=self._now, **options)
        return run.changed(not_before=self._one(0.0, 0.0, self._now + 5.0))

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def nothing(self) -> None:
        """Do nothing, so that hypothesis can leave a step out."""

    async def begin(self) -> None:
        """Create a small fleet with work, so that most steps have something to act on."""
        sessions = [Session(f"{device}-0", device, 1.0, slots=2) for device in _DEVICES]
        runs = [self._new(number) for number in range(1, 8)]
        await self._commit([*(PutSession(session, None) for session in sessions), *(PutRun(run, None) for run in runs)])

    async def create(self) -> None:
        run = self._new(key=self._one(None, None, "k1", "k2"))
        await self._commit([PutRun(run, None)])
        if self._one(False, True):
            await self._commit([PutRun(run, None)])

    async def join(self) -> None:
        """A device joins with another session."""
        device = self._one(*_DEVICES)
        writes = [
            PutSession(session.changed(state=REPLACED), session.revision)
            for session in await self._model.sessions()
            if session.device == device and session.state == OPEN
        ]
        new = Session(f"{device}-{self._now:.0f}", device, self._now, slots=2, draining=self._one(False, True))
        await self._commit([*writes, PutSession(new, None)])

    async def change_session(self) -> None:
        session = await self._session()
        changed = session.changed(state=self._one(OPEN, OPEN, REPLACED, ENDED), draining=self._one(False, True))
        await self._commit([PutSession(changed, session.revision - self._one(0, 0, 1))])

    async def change(self) -> None:
        stale = self._one(0, 0, 0, 0, 1)
        await self._commit([replace(write, expected=(write.expected or 0) - stale) for write in await self._changed()])

    async def batch(self) -> None:
        """Several changes in one batch, some of which may conflict."""
        changes = {write.run.id: write for _ in range(3) for write in await self._changed()}
        writes: list[Write] = list(changes.values())
        keys = self._one("", "a", "ab", "bc")
        for key in keys:
            known = await self._model.register(key)
            expected = known.revision if known else None
            writes.append(PutRegister(key, self._one([1], {"x": 0}, None), self._one(expected, expected, 77)))
        if self._one(False, True):
            other = next(key for key in "abc" if key not in keys)
            known = await self._model.register(other)
            writes.append(ExpectRegister(other, known.revision if known else self._one(1, 2)))
        if self._one(False, True):
            session = await self._session(A_STRANGER)
            writes.append(ExpectSession(session.id, session.revision + self._one(0, 0, 1)))
        writes += [Notice(self._now, "info", f"{number}") for number in range(self._one(0, 1, 2))]
        await self._commit(writes)

    async def take(self) -> None:
        """A device takes runs, works on them, and reports."""
        session, now = await self._session(), self._now + self._one(0.0, 100.0)
        unable = self._one((), (), _KINDS[1:], _KINDS)
        above = self._one(None, None, -1, 0)
        asked = offer(session.device, self._one(3, 1, 2, 0), above=above, not_kinds=frozenset(unable), now=now)
        unwanted = self._one("", "", "3", "2")
        note(f"  {session.id} takes {asked}, but none with {unwanted!r} in its id")

        def step(run: Run) -> Run | None:
            if unwanted and unwanted in run.id:
                return None
            return transitions.take(run, session.owner, now)

        actual, expected = await self._both(lambda store: store.take(asked, step))
        assert actual == expected
        await self._beat(session.id)

    async def heartbeat(self) -> None:
        await self._beat((await self._session(A_STRANGER)).id)

    async def _beat(self, name: str) -> None:
        """A heartbeat with reports about its runs, some of another epoch, and one about any run."""
        reports = [
            ProgressReport(run.id, run.epoch + self._one(0, -1, 0, 1), Progress(int(self._now)), "tail")
            for run in await self._model.find(Query(session=name))
        ]
        of_others = [run for run in await self._model.find(Query(statuses=OWNED)) if run.session != name]
        if of_others:
            reports.append(ProgressReport(of_others[0].id, of_others[0].epoch, None, "of another"))
        note(f"  {name} reports {reports}")
        actual, expected = await self._both(lambda store: store.heartbeat(name, {"reports": len(reports)}, reports))
        assert (actual.alive, actual.draining) == (expected.alive, expected.draining)
        assert sorted(actual.held) == sorted(expected.held)

    async def prune(self) -> None:
        before = self._one(self._now - 2.0, self._now - 2.0, FAR)

        async def all_of_it(store: Store) -> int:
            total = 0
            while number := await store.prune(before, 100):
                total += number
            return total

        actual, expected = await self._both(all_of_it)
        assert actual == expected

    async def find(self) -> None:
        query = Query(
            **{**self._one(*_CRITERIA), **self._one(*[{}] * len(_CRITERIA), *_CRITERIA)},
            newest=self._one(False, True),
            limit=self._one(None, None, 1, 3),
        )
        note(f"  find {query}")
        actual, expected = await self._both(lambda store: store.find(query))
        assert actual == expected

    # -- comparison ----------------------------------------------------------------------------------------------------

    async def compare(self) -> None:
        """Compare the contents, and the result of one of the other reads."""
        actual, expected = await self._both(contents)
        actual, expected = actual.comparable(), expected.comparable()
        assert actual.runs == expected.runs
        assert actual.sessions == expected.sessions
        assert actual.registers == expected.registers
        assert actual.notices == expected.notices
        await self._ask(list(_QUESTIONS)[self._done % len(_QUESTIONS)])

    async def compare_everything(self) -> None:
        for question in _QUESTIONS:
            await self._ask(question)

    async def _ask(self, question: str) -> None:
        actual, expected = await self._both(_QUESTIONS[question])
        assert actual == expected, question


A_STRANGER = Session("nobody-1", "nobody", 1.0)
"""A session that never joined."""

LIKELY = ["nothing", *(["take"] * 5), *(["change"] * 5), *(["batch"] * 3), *(["create"] * 2), *(["heartbeat"] * 2),
          "join", "change_session", "prune", *(["find"] * 2)]  # fmt: skip


async def _counts(store: Store) -> Any:
    return {status: number for status, number in (await store.counts()).items() if number}


async def _batches(store: Store) -> Any:
    return await store.batches()


async def _waiting(store: Store) -> Any:
    return sorted(await store.waiting(), key=repr)


async def _reports(store: Store) -> Any:
    return await store.reports(ids(await store.find(Query())))


async def _orphans(store: Store) -> Any:
    """Return the orphans at the beginning and at the end of time."""
    orphans = [(now, run, owner) for now in (-1.0, FAR) for run, owner in await store.orphans(now, 1000)]
    return sorted((now, run.id, run.revision, owner.id, owner.revision) for now, run, owner in orphans)


async def _sessions(store: Store) -> Any:
    return sorted(session.id for session in await store.sessions())


async def _check(store: Store) -> Any:
    return await store.check()


_QUESTIONS: dict[str, Callable[[Store], Awaitable[Any]]] = {
    "reports": _reports,
    "orphans": _orphans,
    "waiting": _waiting,
    "counts": _counts,
    "batches": _batches,
    "sessions": _sessions,
    "check": _check,
}
"""Further reads: one of them after each step, all of them at the end, sorted for comparison."""


class ModelTests(StoreTests):
    """Tests of random programs."""

    def test_any_sequence_has_the_same_effect_on_the_engine_as_on_the_reference(self) -> None:
        steps = st.lists(
            st.tuples(st.sampled_from(LIKELY), st.binary(min_size=12, max_size=12)), min_size=STEPS, max_size=STEPS
        )

        @settings(
            phases=PHASES,
            max_examples=PROGRAMS,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
        )
        @given(first=st.binary(min_size=30, max_size=30), program=steps)
        def follow(first: bytes, program: list[tuple[str, bytes]]) -> None:
            asyncio.run(self._follow([("begin", first), *program]))

        follow()

    async def _follow(self, program: list[tuple[str, bytes]]) -> None:
        async with contextlib.AsyncExitStack() as closing:
            store = await self.open_store()
            closing.push_async_callback(store.close)
            other = await self.open_another(store)
            if other is not None:
                closing.push_async_callback(other.close)
            pair = Pair(store, other or store)
            for what, numbers in program:
                if what != "nothing":
                    note(what)
                    await pair.do(what, numbers)
                    await pair.compare()
            await pair.compare_everything()
