"""Schema in SQLite: the application id, migrations, permissions and indexes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from asterism.store import row_codec
from asterism.store.protocol import OFFERED, PutRegister, PutRun, Query
from asterism.store.sqlite import SqliteStore, reads, schema
from asterism.store.sqlite.schema import STATEMENTS
from asterism.store.store_errors import StoreError, StoreForeign, StoreMissing, UnknownSchema
from tests.store.sqlite_fixtures import filled, ids, in_the_writer, opened, run

LATEST = schema.LATEST


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.db"


def sql(file: Path, *statements: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        return [row for statement in statements for row in connection.execute(statement).fetchall()]


def test_a_new_file_records_its_application_and_version(file: Path) -> None:
    asyncio.run(filled(file, 0))
    assert sql(file, "PRAGMA application_id", "PRAGMA user_version", "PRAGMA journal_mode") == [
        (schema.APPLICATION,), (schema.LATEST,), ("wal",)
    ]  # fmt: skip


async def test_a_new_store_is_for_its_owner_alone(file: Path) -> None:
    """Also its log and its blobs."""

    async def scene() -> None:
        async with opened(file) as store:
            await store.commit([PutRun(run(1), None)])
            await store.put_blob(b"secret")
            modes = {path.name: path.stat().st_mode & 0o777 for path in file.parent.iterdir()}
            assert {"fleet.db", "fleet.db-wal", "fleet.db.blobs"} <= set(modes)
            assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}

    before = os.umask(0o022)
    try:
        await scene()
    finally:
        os.umask(before)


async def test_the_permissions_of_an_existing_store_are_not_changed(file: Path) -> None:
    await filled(file, 1)
    file.chmod(0o664)

    async def scene() -> None:
        async with opened(file) as store:
            await store.commit([PutRun(run(2), None)])
            await store.put_blob(b"not so secret")

    before = os.umask(0o002)
    try:
        await scene()
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o664
    assert file.with_name("fleet.db.blobs").stat().st_mode & 0o777 == 0o775


def test_the_columns_are_those_of_the_codec(file: Path) -> None:
    asyncio.run(filled(file, 0))
    assert {name for _, name, *_ in sql(file, "PRAGMA table_info(runs)")} == {*row_codec.COLUMNS, "urgency"}
    assert [name for _, name, *_ in sql(file, "PRAGMA table_info(sessions)")] == list(row_codec.SESSION_COLUMNS)


async def test_every_commit_is_synchronous(file: Path) -> None:
    async with opened(file) as store:
        full = await in_the_writer(store, lambda cursor: cursor.execute("PRAGMA synchronous").fetchone())
        assert full == (2,)


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE runs (id TEXT)",),
        ("PRAGMA application_id = 7",),
        ("PRAGMA user_version = 1",),
        ("PRAGMA journal_mode = WAL", "CREATE TABLE notes (text TEXT)"),
    ],
)
def test_the_database_of_another_program_is_left_alone(file: Path, statements: tuple[str, ...]) -> None:
    sql(file, *statements)
    content = file.read_bytes()
    with pytest.raises(
        StoreError, match=r"fleet\.db is a SQLite database of another program; choose another"
    ) as raised:
        asyncio.run(filled(file, 1))
    assert type(raised.value) is StoreError
    assert file.read_bytes() == content
    assert os.listdir(file.parent) == ["fleet.db"]


def test_a_file_of_a_later_version_is_refused_and_left_alone(file: Path) -> None:
    asyncio.run(filled(file, 1))
    sql(file, "PRAGMA user_version = 99")
    content = file.read_bytes()
    with pytest.raises(
        UnknownSchema, match=f"schema version 99, and this Asterism knows versions up to {schema.LATEST}"
    ):
        asyncio.run(filled(file, 1))
    assert file.read_bytes() == content


async def test_a_migration_by_a_later_version_is_noticed_in_an_open_store(file: Path) -> None:
    async with opened(file) as store:
        await store.commit([PutRun(run(1), None)])
        sql(file, "PRAGMA user_version = 99")
        store._writer._polled_at = 0.0  # a moment ago
        for _ in range(2):
            with pytest.raises(UnknownSchema, match="version 99"):
                await store.commit([PutRun(run(2), None)])
        with pytest.raises(UnknownSchema, match="version 99"):
            await ids(store)
        sql(file, f"PRAGMA user_version = {schema.LATEST}")
        assert await ids(store) == ["run-00001"]


def test_only_missing_migrations_are_applied(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(filled(file, 3))
    second = "CREATE TABLE more (a TEXT); -- and\nCREATE INDEX more_a\n  ON more (a);\n"
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, (LATEST + 1, second)])
    monkeypatch.setattr(schema, "LATEST", LATEST + 1)
    asyncio.run(filled(file, 0))
    assert sql(file, "SELECT count(*) FROM more", "PRAGMA user_version", "SELECT count(*) FROM runs") == [
        (0,),
        (LATEST + 1,),
        (3,),
    ]


def test_a_migration_that_fails_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(filled(file, 3))
    monkeypatch.setattr(
        schema, "MIGRATIONS", [*schema.MIGRATIONS, (LATEST + 1, "CREATE TABLE more (a TEXT);\nnonsense;\n")]
    )
    monkeypatch.setattr(schema, "LATEST", LATEST + 1)
    with pytest.raises(StoreError, match="nonsense"):
        asyncio.run(filled(file, 0))
    assert sql(file, "PRAGMA user_version", "SELECT count(*) FROM sqlite_master WHERE name = 'more'") == [
        (LATEST,),
        (0,),
    ]


def test_a_script_is_split_into_its_statements() -> None:
    script = "-- one; two\nCREATE TRIGGER a AFTER INSERT ON b BEGIN\n  SELECT ';';\nEND;\n\nSELECT 1;\n"
    assert [part.strip().split("\n")[-1] for part in schema.statements(script)] == ["END;", "SELECT 1;"]
    with pytest.raises(ValueError, match="ends in the middle of a statement: SELECT 2"):
        list(schema.statements("SELECT 1;\nSELECT 2\n"))


def test_a_file_without_write_ahead_logging_is_refused(file: Path) -> None:
    refused = pytest.raises(
        StoreError, match=r"cannot use a write-ahead log for .* \(mode memory\); choose a local disk"
    )
    with contextlib.closing(sqlite3.connect(":memory:")) as connection, refused:
        schema._enable_wal(connection, file, 0.0)


def test_write_ahead_logging_begins_when_the_readers_are_done(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sql(file, "CREATE TABLE a (b)")
    with (
        contextlib.closing(sqlite3.connect(file, isolation_level=None)) as reader,
        contextlib.closing(sqlite3.connect(file, isolation_level=None, timeout=0.0)) as connection,
    ):
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM a").fetchone()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            schema._enable_wal(connection, file, 0.0)
        monkeypatch.setattr(schema.time, "sleep", lambda seconds: reader.execute("ROLLBACK"))
        schema._enable_wal(connection, file, 60.0)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_old_sqlite_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 23, 1))
    with pytest.raises(StoreMissing, match=r"Asterism needs SQLite 3\.24 or later, and this Python comes with"):
        asyncio.run(filled(file, 0))


# -- indexes ----------------------------------------------------------------------------------------------------------


def plan(file: Path, statement: str, *values: object) -> str:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values))


def test_plans_whose_runs_are_kept_are_not_read_for_each_old_run(file: Path) -> None:
    """With 10,000 plans that have not ended, the removal of 500 runs would otherwise read 5,000,000 names."""
    asyncio.run(filled(file, 0))
    for name, prefix in (("forget_runs", []), ("forget_runs_of", ["plan:a/"]), ("forget_seen_runs", [""])):
        steps = plan(file, STATEMENTS[name], 1.0, 500, *prefix).split("; ")
        assert "SEARCH registers USING PRIMARY KEY (key=?)" in steps, steps


def test_the_runs_of_one_plan_are_found_by_their_keys(file: Path) -> None:
    """A search by their ends would read all ended runs of the store while others wait to write."""
    asyncio.run(filled(file, 0))
    steps = plan(file, STATEMENTS["forget_runs_of"], 1.0, 500, "plan:a/")
    assert "SEARCH runs USING INDEX runs_key (key>? AND key<?)" in steps


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (Query(session="s", limit=10), "runs_owned"),
        (Query(key="k"), "runs_key"),
        (Query(due_before=1.0, limit=10), "runs_due"),
        (Query(offered=True, avoiding=True, limit=10), "sqlite_autoindex_runs_1"),  # of what two other indexes list
        (Query(workflow="w", limit=10), "runs_workflow"),
        (Query(newest=True, limit=10), "sqlite_autoindex_runs_1"),
    ],
)
def test_frequent_queries_have_an_index(file: Path, query: Query, index: str) -> None:
    asyncio.run(filled(file, 0))

    class Asked:
        text: str

        def execute(self, text: str, values: list[object]) -> Asked:
            self.text = plan(file, text, *values)
            return self

        def fetchall(self) -> list[object]:
            return []

    asked = Asked()
    reads.find(asked, query)  # type: ignore[arg-type]
    assert f"USING INDEX {index}" in asked.text


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("offers", "SEARCH runs USING INDEX runs_offered"),
        ("offers_end", "SEARCH runs USING COVERING INDEX runs_offered"),
        ("waiting", "SCAN runs USING INDEX runs_offered"),
        ("waiting", "SCAN runs USING INDEX runs_waiting_for_limits"),
        ("limited", "SEARCH runs USING INDEX runs_limited"),
        ("limited_runs", "SEARCH runs USING INDEX runs_limited"),
        ("held", "SEARCH runs USING INDEX runs_owned"),
        ("forget_runs", "USING INDEX runs_ended"),
        ("orphans", "SEARCH runs USING INDEX runs_owned"),
        ("sessions", "SEARCH runs USING COVERING INDEX runs_owned"),
        ("registers", "SEARCH registers USING PRIMARY KEY"),
    ],
)
def test_frequent_statements_use_an_index(file: Path, name: str, index: str) -> None:
    asyncio.run(filled(file, 0))
    anything = re.sub(r"\?\d?|:\w+", "1", STATEMENTS[name])
    assert index in plan(file, anything)


async def test_own_commits_do_not_wake_watches_of_other_topics(file: Path) -> None:
    async with opened(file) as store:
        watch = store.watch(frozenset({OFFERED}))
        await store.commit([PutRun(run(1).changed(paused="by ann"), None)])
        store._writer.poll()  # a commit of another connection would be noticed now
        await in_the_writer(store, lambda cursor: None)
        assert not await watch.wait(0.0)
        await store.commit([PutRun(run(2), None)])
        assert await watch.wait(60.0)
        watch.close()


async def test_the_url_names_the_file_as_it_was_given(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    store = await SqliteStore.open("fleet.db")
    try:
        assert store.url == "sqlite:///fleet.db"
        assert store.path == file
    finally:
        await store.close()


# -- files that somebody else has prepared -----------------------------------------------------------------------------

ENDLESS = "WITH RECURSIVE forever(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM forever) SELECT n FROM forever"
FOREIGN = {
    "trigger": "CREATE TRIGGER helpful AFTER INSERT ON runs BEGIN UPDATE runs SET input = '{}' WHERE id = new.id; END",
    "view": f"CREATE VIEW helpful AS {ENDLESS}",
    "table": "CREATE TABLE helpful (a)",
    "index": "CREATE INDEX helpful ON runs (abs(priority))",
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_file_with_anything_that_is_not_of_the_store_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "fleet.db"
    await (await SqliteStore.open(path)).close()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(FOREIGN[kind])
        other.commit()
    with pytest.raises(StoreForeign, match=f"the file has the {kind} 'helpful', which is not one of the store"):
        await SqliteStore.open(path)


@pytest.mark.parametrize(
    "change",
    [
        "DROP TRIGGER logs_forgotten; "
        "CREATE TRIGGER logs_forgotten AFTER DELETE ON runs BEGIN DELETE FROM sessions; END",
        f"DROP TABLE reports; CREATE VIEW reports AS {ENDLESS}",
        "DROP TABLE reports; CREATE TABLE reports (run TEXT PRIMARY KEY DEFAULT (hex(zeroblob(1000000))), epoch, said)",
        "DROP INDEX runs_key",
    ],
)
async def test_an_object_of_the_store_that_was_changed_or_removed_is_named(tmp_path: Path, change: str) -> None:
    path = tmp_path / "fleet.db"
    await (await SqliteStore.open(path)).close()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript(change)
    with pytest.raises(
        StoreForeign, match=r"the file (has the (trigger|view|table|index) '\w+', which|lacks the index 'runs_key')"
    ):
        await SqliteStore.open(path)


async def test_a_trigger_that_is_added_to_an_open_store_is_found_by_the_check(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    store = await SqliteStore.open(path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(FOREIGN["trigger"])
        other.commit()
    assert await store.check() == ["the file has the trigger 'helpful', which is not one of the store"]
    await store.close()


async def test_an_earlier_version_that_somebody_has_prepared_is_not_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, earlier = tmp_path / "fleet.db", schema.LATEST
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, (earlier + 1, "CREATE TABLE more (a);")])
    monkeypatch.setattr(schema, "LATEST", earlier + 1)
    with contextlib.closing(sqlite3.connect(path)) as other:
        for statement in schema.statements(schema.MIGRATIONS[0][1]):
            other.execute(statement)
        other.execute(FOREIGN["trigger"])
        other.execute(f"PRAGMA application_id = {schema.APPLICATION}")
        other.execute(f"PRAGMA user_version = {earlier}")
        other.commit()
    with pytest.raises(StoreForeign, match="helpful"):
        await SqliteStore.open(path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (earlier,)


async def test_statistics_and_a_feed_are_part_of_a_store(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    store = await SqliteStore.open(path)
    await store.start_feed()
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("INSERT INTO registers VALUES ('a', '1', 1)")
        other.execute("ANALYZE")
        other.commit()
    store = await SqliteStore.open(path)
    assert await store.check() == []
    await store.close()


async def test_functions_in_the_schema_are_not_trusted(tmp_path: Path) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        trusted = await in_the_writer(store, lambda cursor: cursor.execute("PRAGMA trusted_schema").fetchone())
        assert trusted == (0,)


async def test_without_the_comparison_a_trigger_changes_what_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fleet.db"
    await (await SqliteStore.open(path)).close()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TRIGGER helpful AFTER INSERT ON registers BEGIN UPDATE registers SET value = '2'; END")
        other.commit()
    monkeypatch.setattr(schema, "foreign_object", lambda *arguments: None)
    store = await SqliteStore.open(path)
    await store.commit([PutRegister("work", 1, None)])
    register = await store.register("work")
    assert register is not None
    assert register.value == 2
    await store.close()


def test_lists_of_plans_and_of_the_runs_of_a_workflow_are_read_by_index() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for _, script in schema.MIGRATIONS:
            connection.executescript(script)

        def steps(sql: str, values: Any) -> str:
            return " ".join(str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values))

        runs = steps("SELECT * FROM runs WHERE workflow = ? ORDER BY id DESC LIMIT 50", ("none",))
        assert "runs_workflow (workflow=?)" in runs
        names = ("states", "live", "name", "file", "tag", "since", "before", "before_name", "limit")
        plans = steps(schema.STATEMENTS["plans"], dict.fromkeys(names))
        assert "USING INDEX plans_created (created_at>?" in plans
        assert "TEMP B-TREE" not in f"{runs} {plans}"
