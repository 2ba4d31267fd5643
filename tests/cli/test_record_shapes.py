"""Records of any shape: no list and no other command that reads ends in a traceback, and what it cannot read is named,
also by `store check`."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asterism.api.credentials import Credentials
from asterism.core.plan.edits import CancelTask, EditBatch, WaitingEdit
from asterism.durable.approval_store import approval_key
from asterism.durable.editor_budget import Account, Budget, Spent, account_key
from asterism.durable.rejected_edits import RejectedEdit, rejected_prefix
from asterism.fleet.fleet import Fleet
from asterism.gateway.enrolment import enrol, invite
from asterism.models.cassette import Exchange, exchange_prefix
from asterism.models.model_messages import ModelAnswer
from asterism.store.protocol import Notice, PutRegister
from tests.cli.command_scenes import Scene, started, taken_by

PLAN = "asterism: 1\nid: small\noverlap: queue\ntasks:\n  a: {shell: 'true'}\n  b: {shell: 'echo x', after: [a]}\n"
COMMANDS = [
    *("runs list", "runs show {run}", "runs why {run}", "runs logs {run}", "batch list", "batch show one"),
    *("workflow list", "workflow show work", "limit list", "limit show api", "event list", "event list pushed"),
    *("schedule list", "schedule show nightly", "schedule next nightly", "schedule history nightly"),
    *("schedule show planned", "schedule history planned", "schedule ticks planned"),
    *("device list", "device show laptop", "device show den", "device scores work"),
    *("fleet show", "fleet metrics", "notice list", "audit list", "audit export", "token list", "peer list"),
    *("series list", "series status line", "series history line"),
    *("series status rfc --store {url}", "series history rfc --store {url}"),
    *("plan list", "plan show stored", "plan story stored", "plan why stored a", "plan history stored"),
    *("plan cycles stored", "plan approvals stored", "plan budget stored"),
    *("plan files stored a", "plan logs stored a"),
    *("store info", "store backup {folder}/backup.jsonl"),
]
COLUMNS = {
    "runs": ("input", "state", "uses"),
    "sessions": ("profile", "terms"),
    "notices": ("said",),
    "plans": ("summary", "tags"),
    "registers": ("value",),
}
KEYS = {"runs": "id", "sessions": "id", "notices": "number", "plans": "name", "registers": "key"}

Record = tuple[str, str, Any]
"""A table, a column and a key."""

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
shapes = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


async def _records(fleet: Fleet) -> None:
    """What commands alone would take long to write."""
    store = fleet.store
    await Credentials(store).create("ci", scopes=["observe"], by="ann", valid_for=60.0)
    await enrol(store, await invite(store, name="den"), "den", "ab" * 32)
    await fleet.schedules.start_backfill("planned", "2026-01-01", "2026-01-03")
    batch = EditBatch((CancelTask("a"),))
    waiting = WaitingEdit(1, batch, 1.0, 2.0, ("by rule",), ("a",))
    rejected = RejectedEdit(1, 1.0, 1, "ann", "", (), None, ())
    account = Account(Budget(calls=3), Spent(calls=1))
    exchange = Exchange(1, "a", "what next?", ModelAnswer("nothing"))
    await store.commit(
        [
            PutRegister(approval_key("stored", 1), waiting.to_json(), None),
            PutRegister(f"{rejected_prefix('stored')}01", rejected.to_json(), None),
            PutRegister(account_key("stored"), {"account": account.to_json(), "exchanges": 1}, None),
            PutRegister(f"{exchange_prefix('stored')}000001", exchange.to_json(), None),
            Notice(1.0, "late", "a result came too late", device="laptop"),
        ]
    )


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A store with a record of each kind."""
    scene = Scene(tmp_path_factory.mktemp("filled"))
    plan = scene.folder / "p.yaml"
    plan.write_text(PLAN)
    scene.workflow()
    scene.ok("run", str(plan), "--id", "stored", "--store", scene.url, "--local")
    scene.ok("limit", "set", "api", "1")
    scene.ok("workflow", "add", "limited", "--argv", "true", "--uses", "api=1")
    scene.ok("schedule", "add", "nightly", "--cron", "0 3 * * *", "--workflow", "work")
    scene.ok("schedule", "run", "nightly")
    scene.ok("schedule", "add", "planned", "--cron", "0 4 * * *", "--plan", str(plan))
    scene.ok("schedule", "run", "planned")
    scene.ok("fleet", "set", "--most", "1M")
    scene.ok("event", "send", "pushed", "--data", '{"a": 1}', "--key", "k")
    scene.ok("token", "login", "--for", "bo")
    scene.ok("peer", "invite", "other", "--url", "https://localhost:1")
    scene.ok("series", "claim", "rfc", "--issue", "1", "--store", scene.url)
    run = scene.create()
    scene.create("limited")
    scene.create("work", series="line", batch="one")
    scene.create("work", series="line")
    scene.device("laptop")
    scene.step(run, taken_by("laptop"), started)
    scene.ask(_records)
    return scene


def records_of(scene: Scene) -> dict[Record, Any]:
    """All JSON values in the store: table, column and key, and the value."""
    values = {}
    with contextlib.closing(sqlite3.connect(scene.file)) as connection:
        for table, columns in COLUMNS.items():
            for column in columns:
                rows = connection.execute(f"SELECT {KEYS[table]}, {column} FROM {table} WHERE {column} IS NOT NULL")
                values |= {(table, column, key): json.loads(text) for key, text in rows}
    return values


SCENES: dict[str, tuple[str, ...]] = {
    "runs": ("runs", "batch", "device show", "fleet", "series", "plan show"),
    "sessions": ("device", "fleet", "runs show", "runs why", "plan show"),
    "notices": ("notice",),
    "plans": ("plan list", "fleet"),
    **dict.fromkeys(("approval", "budget", "exchange", "journal", "log", "log-part"), ("plan",)),
    **dict.fromkeys(("plan", "plan-turns", "rejected"), ("plan",)),
    **dict.fromkeys(("schedule", "schedule-history", "schedule-plan", "backfill"), ("schedule", "plan list")),
    **dict.fromkeys(("event", "event-key", "event-log", "events"), ("event",)),
    **dict.fromkeys(("limit", "limit-account"), ("limit", "runs why", "fleet")),
    **dict.fromkeys(("issue-series", "issue-series-history"), ("series", "fleet")),
    **dict.fromkeys(("workflow", "workflow-version"), ("workflow", "runs show", "runs why", "device scores")),
    **dict.fromkeys(("coordinator", "device", "gateway", "store"), ("device", "fleet", "store info", "plan list")),
    **dict.fromkeys(("credential", "login"), ("token",)),
    "audit": ("audit",),
    "peer": ("peer", "device list", "fleet"),
    "settings": ("fleet", "store info", "runs show"),
}
"""The commands that read a table, or registers of a kind. `store check` and `store backup` read everything."""


def test_every_kind_of_record_is_there(filled: Scene) -> None:
    kinds = {kind_of(record) for record in records_of(filled)}
    assert kinds == SCENES.keys()


def kind_of(record: Record) -> str:
    table, _, key = record
    return str(key).partition("/")[0] if table == "registers" else table


def look(scene: Scene, kind: str, run: str) -> str:
    """What the commands that read this kind say. None of them ends in a traceback."""
    lines = [line for line in COMMANDS if line.startswith((*SCENES[kind], "store backup"))]
    words = [line.format(run=run, url=scene.url, folder=scene.folder).split() for line in lines]
    return "".join(scene.run(*line).output for line in words)


def damaged(scene: Scene, folder: Path, record: Record, value: Any) -> Scene:
    """A copy of a store with another value in a record."""
    table, column, key = record
    copy = Scene(folder)
    for file in folder.glob("fleet.db*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    with (
        contextlib.closing(sqlite3.connect(scene.file)) as source,
        contextlib.closing(sqlite3.connect(copy.file)) as connection,
    ):
        source.backup(connection)
        with connection:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {KEYS[table]} = ?", (json.dumps(value), key))
    return copy


@settings(max_examples=240, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_shape_of_a_record_is_a_traceback_and_what_cannot_be_read_is_named(
    filled: Scene, tmp_path: Path, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(sorted(SCENES)))
    values = {record: value for record, value in records_of(filled).items() if kind_of(record) == kind}
    number = data.draw(st.integers(0, len(values) - 1))
    record, value = list(values.items())[number]
    field = data.draw(st.sampled_from([None, *value])) if isinstance(value, dict) else None
    shape = data.draw(shapes)
    copy = damaged(filled, tmp_path, record, shape if field is None else {**value, field: shape})
    said = look(copy, kind, run_of(filled))
    check = copy.run("store", "check")
    if "cannot be read" in said or (field is None and type(shape) is not type(value)):
        assert check.exit_code == 64, said
        name = str(record[2])
        assert kind == "notices" or name in check.stdout or name.partition("/")[2] in check.stdout


def run_of(scene: Scene) -> str:
    """The run that a device has."""
    with contextlib.closing(sqlite3.connect(scene.file)) as connection:
        [name] = connection.execute("SELECT id FROM runs WHERE device = 'laptop'").fetchone()
    return str(name)


def test_an_enrolled_device_without_the_time_of_its_revocation_is_restored(filled: Scene, tmp_path: Path) -> None:
    key = next(record for record in records_of(filled) if str(record[2]).startswith("gateway/device/"))
    value = records_of(filled)[key]
    copy = damaged(filled, tmp_path, key, {name: value[name] for name in value if name != "revoked_at"})
    copy.ok("store", "backup", str(tmp_path / "backup.jsonl"))
    restored = f"sqlite:///{tmp_path / 'restored.db'}"
    copy.ok("store", "restore", str(tmp_path / "backup.jsonl"), "--keep-devices", "--store", restored)
