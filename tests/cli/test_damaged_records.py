"""Records of unexpected shape: commands leave them out or name them, and `store check` names them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from asterism.fleet.fleet import Fleet
from asterism.store.store_errors import StoreCorrupt
from tests.cli.command_scenes import Scene, started, taken_by
from tests.cli.stored_plan_scenes import keeping
from tests.server.server_scenes import ServerScene

SHAPES = [None, [], {}, 0, "", True, [[]], {"a": None}, [{"id": 1}]]
COMMANDS = [
    "runs list",
    "device list",
    "workflow list",
    "schedule list",
    "limit list",
    "fleet show",
    "store info",
    "series list",
]
COLUMNS = {
    "runs": ("uses", "input", "state"),
    "sessions": ("profile", "terms"),
}


def filled(folder: Path) -> Scene:
    scene = Scene(folder)
    scene.workflow()
    scene.ok("limit", "set", "api", "1")
    scene.ok("workflow", "add", "limited", "--argv", "true", "--uses", "api=1")
    scene.ok("schedule", "add", "nightly", "--cron", "0 3 * * *", "--workflow", "work")
    scene.ok("schedule", "run", "nightly")
    scene.ok("fleet", "set", "--most", "1M")
    runs = [scene.create(), scene.create("limited"), scene.create("limited")]
    scene.device("laptop")
    scene.step(runs[0], taken_by("laptop"), started)
    return scene


def damage(scene: Scene, statement: str, *values: Any) -> None:
    with contextlib.closing(sqlite3.connect(scene.url.removeprefix("sqlite:///"))) as connection, connection:
        assert connection.execute(statement, values).rowcount > 0


def shaped(value: Any, shape: Any) -> list[Any]:
    """The shape, and the value with each of its fields in this shape."""
    fields = value if isinstance(value, dict) else {}
    return [shape, *({**fields, name: shape} for name in fields)]


def look(scene: Scene) -> None:
    """No command ends in a traceback."""
    for line in [*COMMANDS, "store check"]:
        result = scene.run(*line.split())
        assert isinstance(result.exception, SystemExit | None), (line, result.exception)


@pytest.mark.parametrize(("table", "column"), [(table, name) for table, names in COLUMNS.items() for name in names])
def test_no_shape_of_a_column_is_a_traceback_and_check_names_the_record(
    tmp_path: Path, table: str, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = filled(tmp_path)
    with contextlib.closing(sqlite3.connect(scene.url.removeprefix("sqlite:///"))) as connection:
        key, text = connection.execute(f"SELECT id, {column} FROM {table} WHERE {column} IS NOT NULL").fetchone()
    for shape in SHAPES:
        for value in shaped(json.loads(text), shape):
            damage(scene, f"UPDATE {table} SET {column} = ? WHERE id = ?", json.dumps(value), key)
            look(scene)
            if not isinstance(value, dict):
                assert key in scene.run("store", "check").stdout, (column, value)
                listed = scene.run("runs" if table == "runs" else "device", "list", "--json")
                assert key not in listed.stdout, (column, value)
                assert f"{table[:-1]} {key} cannot be read" in caplog.text, (column, value)


@pytest.mark.parametrize("shape", [[], 0, "x", True])
def test_the_id_of_a_store_that_is_no_object_is_named(tmp_path: Path, shape: Any) -> None:
    scene = filled(tmp_path)
    scene.ok("workflow", "add", "other", "--argv", "true")
    statement = "INSERT OR REPLACE INTO registers (key, value, revision) VALUES ('store/id', ?, 1)"
    damage(scene, statement, json.dumps(shape))
    look(scene)
    assert "register store/id cannot be read" in scene.run("store", "check").stdout


KINDS = ("settings", "workflow/", "workflow-version/", "schedule/", "schedule-history/", "limit/")


@pytest.mark.parametrize("kind", KINDS)
def test_no_shape_of_a_register_is_a_traceback(tmp_path: Path, kind: str) -> None:
    scene = filled(tmp_path)
    with contextlib.closing(sqlite3.connect(scene.url.removeprefix("sqlite:///"))) as connection:
        key, _ = connection.execute("SELECT key, value FROM registers WHERE key LIKE ?", (f"{kind}%",)).fetchone()
    for shape in SHAPES:
        damage(scene, "UPDATE registers SET value = ? WHERE key = ?", json.dumps(shape), key)
        look(scene)


# -- records of which none may be left out -----------------------------------------------------------------------------

CUT = '{"schema": 1, "st'


def test_the_last_record_of_a_journal_is_not_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else a plan would be shown, and would go on, as it was before an acknowledged step."""
    scene = keeping(Scene(tmp_path))
    scene.ok("resume", "nightly")
    last = "(SELECT max(key) FROM registers WHERE key LIKE 'journal/nightly/%')"
    damage(scene, f"UPDATE registers SET value = ? WHERE key = {last}", CUT)
    for words in (["plan", "show", "nightly"], ["plan", "story", "nightly"], ["resume", "nightly"]):
        result = scene.run(*words)
        assert result.exit_code == 64, (words, result.output)
        assert "register journal/nightly/" in result.stderr, words

    async def show(fleet: Fleet) -> None:
        server = ServerScene(fleet)
        async with server.client() as client:
            answer = await client.get("/api/v1/plans/nightly")
        await server.state.close()
        assert answer.is_error
        assert "the store is damaged" in answer.text

    scene.ask(show)
    assert "register journal/nightly/" in caplog.text


@pytest.mark.parametrize("key", ["approval/nightly/000002", "limit/api", "limit-account/api", "uses-files/plan/p/a"])
def test_a_damaged_record_that_its_readers_rely_on_is_an_error(tmp_path: Path, key: str) -> None:
    """An approval, a limit, what counts its use, and what keeps a file."""
    scene = Scene(tmp_path).made()
    damage(scene, "INSERT INTO registers (key, value, revision) VALUES (?, ?, 1)", key, CUT)

    async def read(fleet: Fleet) -> None:
        with pytest.raises(StoreCorrupt, match=f"register {key} cannot be read"):
            await fleet.store.registers(f"{key.partition('/')[0]}/")

    scene.ask(read)
