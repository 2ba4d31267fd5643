"""The conformance suite: every engine passes it, and an engine that breaks a promise fails it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import Phase

from asterism.core.errors import AsterismError
from asterism.core.run.session import REPLACED, Session
from asterism.core.run.transitions import cancel, create
from asterism.core.run.work import Work, Workflow
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRun, PutSession, Store
from asterism.store.sqlite import SqliteStore, group_commit
from tests.laboratory import store_conformance
from tests.laboratory.store_conformance import (
    ProcessOpener,
    SharedStoreConformance,
    StoreConformance,
    StoreTests,
    model_tests,
    session_tests,
)
from tests.laboratory.store_conformance.concurrency_tests import ProcessTests, RaceTests
from tests.laboratory.store_conformance.maintenance_tests import DumpTests, FeedTests, RetentionTests
from tests.laboratory.store_conformance.query_tests import FindTests, OrphanTests, TakeTests
from tests.laboratory.store_conformance.record_tests import CommitTests, LogTests, RegisterTests, ValueTests
from tests.laboratory.store_conformance.session_tests import HeartbeatTests, WatchTests
from tests.store import store_engines
from tests.store.postgres_fixtures import without_definitions
from tests.store.postgres_server import Server


class TestMemory(StoreConformance):
    async def open_store(self) -> Store:
        return MemoryStore()


class TestSqlite(SharedStoreConformance):
    """SQLite with commits in the event loop, unless they have to wait."""

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


@pytest.mark.long
class TestSqliteOnASlowDisk(TestSqlite):
    """SQLite with all commits in the thread."""

    quick = 0.0


_only_long: Any = None
"""In place of a test that takes half a second or more."""


class PostgresTests(StoreTests):
    """PostgreSQL, with a schema for each store on one server. Used schemas are emptied and used again."""

    has_feed = False
    _numbers = itertools.count()
    _left: ClassVar[list[str]] = []

    @pytest.fixture(autouse=True)
    def _on_a_server(self, postgres_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        without_definitions(monkeypatch)  # of the check at the end of each test
        self._server = postgres_server
        self._opened: dict[int, str] = {}
        self._shared: set[str] = set()  # the server may still perform a commit of a killed process
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


class TestPostgres(
    PostgresTests, CommitTests, FindTests, HeartbeatTests, OrphanTests, ProcessTests, RaceTests, TakeTests, WatchTests
):
    """What depends most on the statements, locks and notifications of this engine, and an example of all else."""

    test_a_restored_store_holds_the_same = (
        DumpTests.test_a_restored_store_holds_the_same_records_and_no_run_has_an_owner
    )
    test_blobs_are_kept = RetentionTests.test_blobs_are_kept_as_long_as_a_run_refers_to_them
    test_only_runs_that_ended_are_pruned = RetentionTests.test_only_runs_that_ended_long_ago_are_pruned
    test_a_register_counts_its_changes = RegisterTests.test_a_register_counts_its_changes
    test_a_log_is_part_of_its_commit = LogTests.test_a_log_is_part_of_its_commit
    test_anything_may_have_any_name = ValueTests.test_anything_may_have_any_name
    test_a_store_without_a_feed = FeedTests.test_a_store_without_a_feed_has_no_copies_and_no_changes
    test_a_search_in_bounded_parts_finds_everything_once = _only_long
    test_fifty_increments_of_one_register_lose_nothing = _only_long
    test_increments_on_two_connections_lose_nothing = _only_long
    test_two_processes_share_the_work_and_do_nothing_twice = _only_long
    test_two_processes_that_count_together_lose_nothing = _only_long
    test_a_batch_may_be_large = _only_long


@pytest.mark.long
class TestAllOfPostgres(PostgresTests, SharedStoreConformance):
    """The whole suite."""


# -- a clock that is set back: only engines that are given a clock can show that ---------------------------------------


async def has_an_heir_after_the_clock_was_set_back(store: Store, clock: list[float]) -> None:
    """The last heartbeat of a device lies in the future; when another session replaces it, its grants expire by the new
    clock."""
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


async def test_memory_corrects_a_heartbeat_from_the_future() -> None:
    clock = [100.0]
    await has_an_heir_after_the_clock_was_set_back(MemoryStore(lambda: clock[0]), clock)


async def test_sqlite_corrects_a_heartbeat_from_the_future(tmp_path: Path) -> None:
    clock = [100.0]
    store = await SqliteStore.open(tmp_path / "fleet.db", clock=lambda: clock[0])
    await has_an_heir_after_the_clock_was_set_back(store, clock)


# -- the reference, which is stricter than other engines --------------------------------------------------------------


async def test_memory_refuses_a_change_of_a_field_that_is_written_once() -> None:
    store = MemoryStore()
    run = create("r1", Workflow("transcode", argv=("true",)), {"x": 1}, by="tester", now=1.0)
    await store.commit([PutRun(run, None)])
    for change in ({"priority": 1}, {"key": "k"}, {"pinned": "kitchen"}, {"series": "s"}, {"work": Work(shell="x")}):
        with pytest.raises(ValueError, match="cannot change after its creation"):
            await store.commit([PutRun(run.changed(revision=2, **change), 1)])
    await store.commit([PutRun(run.changed(revision=2, input={"x": 2}), 1)])
    stored = await store.run("r1")
    assert stored is not None
    assert stored.input == {"x": 1}


@pytest.mark.long
async def test_the_queue_in_memory_does_not_grow_without_bound() -> None:
    store = MemoryStore()
    flow = Workflow("transcode", argv=("true",))
    for number in range(5000):
        run = create(f"r{number}", flow, {}, by="tester", now=1.0)
        await store.commit([PutRun(run, None)])
        await store.commit([PutRun(cancel(run, 2.0, "tester"), 1)])
    assert len(store._queue) <= 1000
    assert await store.check() == []


async def test_the_check_of_memory_finds_contradictions() -> None:
    store = MemoryStore()
    run = create("r1", Workflow("transcode", argv=("true",)), {"$blob": "0" * 64, "size": 1}, by="x", now=1.0)
    await store.commit([PutRun(run.changed(session="nobody-1"), None)])
    problems = await store.check()
    for words in ("is created, owned by nobody-1", "which does not exist", "refers to blob"):
        assert any(words in problem for problem in problems), problems


# -- the suite itself --------------------------------------------------------------------------------------------------


def conformance_of(engine: type[MemoryStore]) -> StoreConformance:
    class Conformance(StoreConformance):
        async def open_store(self) -> Store:
            return engine()

    return Conformance()


@pytest.mark.parametrize(("engine", "test"), store_engines.BROKEN)
@pytest.mark.long
def test_an_engine_that_breaks_a_promise_fails_the_suite(
    engine: type[MemoryStore], test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_tests, "PHASES", (Phase.generate,))  # without shrinking
    getattr(conformance_of(MemoryStore), test)()
    with pytest.raises((AssertionError, AsterismError)):
        getattr(conformance_of(engine), test)()


def test_an_engine_that_wakes_no_watch_fails_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_tests, "WAKE_TIMEOUT", 0.05)
    with pytest.raises(AssertionError):
        conformance_of(store_engines.Sleepy).test_a_watch_is_woken_by_a_commit()


def test_a_suite_without_open_store_names_what_to_override() -> None:
    with pytest.raises(NotImplementedError, match="override open_store"):
        StoreConformance().test_an_empty_batch_changes_nothing()


def test_pytest_can_call_every_test_of_the_suite() -> None:
    tests = [name for name in dir(SharedStoreConformance) if name.startswith("test")]
    assert len(tests) > 100
    for name in tests:
        assert getattr(SharedStoreConformance, name).__code__.co_argcount == 1, name
    assert issubclass(SharedStoreConformance, StoreTests)


def test_assertions_of_every_module_of_the_suite_are_rewritten() -> None:
    """So that pytest shows the compared values of a failed assertion."""
    folder = Path(str(store_conformance.__file__)).parent
    modules = {path.stem for path in folder.glob("*_tests.py")}
    assert {*modules, "sample_records"} == set(store_conformance._TESTS)
