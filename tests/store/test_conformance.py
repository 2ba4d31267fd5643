"""Every engine keeps every promise of the store's protocol, and the suite that says so notices one that does not."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import Phase

from asterism.core.errors import AsterismError
from asterism.core.run.session import REPLACED, Session
from asterism.core.run.transitions import cancel, create
from asterism.core.run.workflow import Workflow
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRun, PutSession, Store
from asterism.store.sqlite import SqliteStore, group_commit
from asterism.testing.store_conformance import (
    ProcessOpener,
    SharedStoreConformance,
    StoreConformance,
    StoreTests,
    model_tests,
    watch_tests,
)
from tests.store import store_engines
from tests.store.postgres_server import Server


class TestMemory(StoreConformance):
    async def open_store(self) -> Store:
        return MemoryStore()


class TestSqlite(SharedStoreConformance):
    """Each store is a file. The event loop does all writing that does not have to wait."""

    quick = float("inf")

    @pytest.fixture(autouse=True)
    def _in_a_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(group_commit, "QUICK", self.quick)
        self._paths = (str(tmp_path / f"{number}.db") for number in itertools.count())
        self._opened: dict[int, str] = {}

    async def open_store(self) -> Store:
        path = next(self._paths)
        store = await store_engines.open_sqlite(path)
        self._opened[id(store)] = path
        return store

    async def open_another(self, store: Store) -> Store:
        return await store_engines.open_sqlite(self._opened[id(store)])

    async def process_opener(self, store: Store) -> ProcessOpener:
        return ProcessOpener("tests.store.store_engines:open_sqlite", self._opened[id(store)])


class TestSqliteOnASlowDisk(TestSqlite):
    """A thread does all writing."""

    quick = 0.0


class TestPostgres(SharedStoreConformance):
    """Each store is a schema of its own on one server; what a test has left is emptied and used again."""

    has_feed = False
    _numbers = itertools.count()
    _left: ClassVar[list[str]] = []

    @pytest.fixture(autouse=True)
    def _on_a_server(self, postgres_server: Server) -> Iterator[None]:
        self._server = postgres_server
        self._opened: dict[int, str] = {}
        self._shared: set[str] = set()  # the server may still be at a commit of a process that was killed
        yield
        self._left.extend(set(self._opened.values()) - self._shared)

    async def open_store(self) -> Store:
        if self._left:
            schema = self._left.pop()
            await store_engines.empty_postgres(self._server.url(), schema)
        else:
            schema = f"conformance_{next(self._numbers)}"
        store = await store_engines.open_postgres(self._server.url(schema=schema))
        self._opened[id(store)] = schema
        return store

    async def open_another(self, store: Store) -> Store:
        return await store_engines.open_postgres(self._server.url(schema=self._opened[id(store)]))

    async def process_opener(self, store: Store) -> ProcessOpener:
        schema = self._opened[id(store)]
        self._shared.add(schema)
        return ProcessOpener("tests.store.store_engines:open_postgres", self._server.url(schema=schema))


# -- what a store does when its clock is set back, which only those can show that are given one ------------------------


async def has_an_heir_after_the_clock_was_set_back(store: Store, clock: list[float]) -> None:
    """A device was heard of in what is now the future; when another life of it replaces it, its grants run out by the
    clock that is right now."""
    session = Session("kitchen-1", "kitchen", 1.0)
    await store.commit([PutSession(session, None)])
    clock[0] = 1000.0
    await store.heartbeat("kitchen-1", {}, [])
    clock[0] = 500.0
    [known] = await store.sessions()
    assert known.beat_at == 1000.0
    heir = PutSession(Session("kitchen-2", "kitchen", 500.0), None)
    await store.commit([PutSession(known.changed(state=REPLACED), known.revision), heir])
    assert {session.id: session.beat_at for session in await store.sessions()} == {
        "kitchen-1": 500.0,
        "kitchen-2": 500.0,
    }
    await store.close()


def test_memory_knows_no_heartbeat_from_the_future() -> None:
    clock = [100.0]
    asyncio.run(has_an_heir_after_the_clock_was_set_back(MemoryStore(lambda: clock[0]), clock))


async def test_sqlite_knows_no_heartbeat_from_the_future(tmp_path: Path) -> None:
    clock = [100.0]
    store = await SqliteStore.open(tmp_path / "fleet.db", clock=lambda: clock[0])
    await has_an_heir_after_the_clock_was_set_back(store, clock)


# -- the reference, which is stricter than an engine can be ------------------------------------------------------------


async def test_memory_refuses_a_change_of_what_is_written_once() -> None:
    store = MemoryStore()
    run = create("r1", Workflow("transcode", argv=("true",)), {"x": 1}, by="tester", now=1.0)
    await store.commit([PutRun(run, None)])
    for change in ({"priority": 1}, {"key": "k"}, {"pinned": "kitchen"}, {"series": "s"}, {"timeout": 1.0}):
        with pytest.raises(ValueError, match="cannot change after its creation"):
            await store.commit([PutRun(run.changed(revision=2, **change), 1)])
    await store.commit([PutRun(run.changed(revision=2, input={"x": 2}), 1)])
    found = await store.run("r1")
    assert found is not None
    assert found.input == {"x": 1}


async def test_memory_does_not_pile_up_what_was_offered_once() -> None:
    store = MemoryStore()
    flow = Workflow("transcode", argv=("true",))
    for number in range(5000):
        run = create(f"r{number}", flow, {}, by="tester", now=1.0)
        await store.commit([PutRun(run, None)])
        await store.commit([PutRun(cancel(run, 2.0, "tester"), 1)])
    assert len(store._queue) <= 1000
    assert await store.check() == []


async def test_memory_notices_what_contradicts_itself() -> None:
    store = MemoryStore()
    run = create("r1", Workflow("transcode", argv=("true",)), {"$blob": "0" * 64, "size": 1}, by="x", now=1.0)
    await store.commit([PutRun(run.changed(session="nobody-1"), None)])
    found = await store.check()
    for words in ("is created, owned by nobody-1", "which does not exist", "refers to blob"):
        assert any(words in problem for problem in found), found


# -- the suite itself --------------------------------------------------------------------------------------------------


def conformance_of(engine: type[MemoryStore]) -> StoreConformance:
    class Conformance(StoreConformance):
        async def open_store(self) -> Store:
            return engine()

    return Conformance()


@pytest.mark.parametrize(("engine", "test"), store_engines.BROKEN)
def test_an_engine_that_breaks_a_promise_is_found_out(
    engine: type[MemoryStore], test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_tests, "PHASES", (Phase.generate,))  # that it is found is enough
    getattr(conformance_of(MemoryStore), test)()
    with pytest.raises((AssertionError, AsterismError)):
        getattr(conformance_of(engine), test)()


def test_an_engine_that_wakes_nobody_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_tests, "PATIENCE", 0.05)
    with pytest.raises(AssertionError):
        conformance_of(store_engines.Sleepy).test_a_watch_is_woken_by_a_commit()


def test_an_engine_that_does_not_say_how_it_is_opened_is_told_so() -> None:
    with pytest.raises(NotImplementedError, match="override open_store"):
        StoreConformance().test_a_batch_of_nothing_changes_nothing()


def test_every_test_of_the_suite_is_one_that_pytest_can_call() -> None:
    tests = [name for name in dir(SharedStoreConformance) if name.startswith("test")]
    assert len(tests) > 100
    for name in tests:
        assert getattr(SharedStoreConformance, name).__code__.co_argcount == 1, name
    assert issubclass(SharedStoreConformance, StoreTests)


def test_without_hypothesis_the_suite_says_what_to_install() -> None:
    program = "import sys; sys.modules['hypothesis'] = None; import asterism.testing.store_conformance"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "ImportError: asterism.testing.store_conformance needs hypothesis and pytest" in ended.stderr


def test_without_pytest_the_suite_can_be_used_all_the_same() -> None:
    program = """if True:
        import sys
        sys.modules["pytest"] = None
        from asterism.store.memory import MemoryStore
        from asterism.testing.store_conformance import StoreConformance

        class Mine(StoreConformance):
            async def open_store(self):
                return MemoryStore()

        Mine().test_every_kind_of_write_happens_in_one_batch()
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
