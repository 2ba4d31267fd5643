"""`asterism store`, and errors of commands on a store that cannot be used."""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import stat
import tracemalloc
from pathlib import Path

import pytest

from asterism.api.credentials import Credentials, NewToken
from asterism.cli.cli_context import format_size
from asterism.cli.store_commands import write_backup
from asterism.gateway.device_key import DeviceKey
from asterism.gateway.enrolment import DeviceCredentials, enrol, find_device, invite, revoke
from asterism.store.sqlite import SqliteStore
from asterism.store.sqlite.error_mapping import read_only
from tests.cli.command_scenes import Scene, completed, started, taken_by

COMMANDS = [
    ["workflow", "list"],
    ["device", "list"],
    ["runs", "list"],
    ["runs", "create", "work"],
    ["runs", "why", "x"],
    ["store", "info"],
    ["fleet", "show"],
]


def filled(folder: Path) -> Scene:
    scene = Scene(folder)
    scene.workflow()
    runs = [scene.create(run_input={"n": number}, series="s" if number else None) for number in range(3)]
    scene.create(run_input={"text": "x" * 100_000})
    scene.device("laptop")
    scene.step(runs[0], taken_by("laptop"), started, completed("done"))
    return scene


def test_a_restore_revives_no_token_and_makes_a_new_secret(tmp_path: Path) -> None:
    file = tmp_path / "backup.jsonl"

    async def backed_up() -> tuple[list[NewToken], bytes]:
        store = await SqliteStore.open(tmp_path / "fleet.db")
        credentials = Credentials(store)
        tokens = [await credentials.create("ci", ["admin"], by="ann") for _ in range(2)]
        await enrol(store, await invite(store, name="lab-1"), "lab-1", DeviceKey.new().public)
        secret = (await DeviceCredentials.open(store))._secret
        await write_backup(store, file)
        await credentials.revoke(tokens[0].credential.id)
        await store.close()
        return tokens, secret

    tokens, secret = asyncio.run(backed_up())
    assert not any(
        hidden in file.read_text() for hidden in (secret.hex(), *(token.credential.sha256 for token in tokens))
    )
    (tmp_path / "new").mkdir()
    scene = Scene(tmp_path / "new")
    restored = scene.run("store", "restore", str(file))
    assert "1 device of the backup may not join: lab-1. Invite them again" in restored.stderr

    async def looked() -> None:
        store = await SqliteStore.open(scene.file)
        assert [await Credentials(store).find(token.token) for token in tokens] == [None, None]
        assert (await DeviceCredentials.open(store))._secret != secret
        device = await find_device(store, "lab-1")
        assert device is not None
        assert device.revoked_at is not None
        await store.close()

    asyncio.run(looked())


@pytest.mark.parametrize(("options", "kept"), [([], []), (["--keep-devices"], ["lab-1"])])
def test_a_restore_revives_no_device_that_was_revoked_since(
    tmp_path: Path, options: list[str], kept: list[str]
) -> None:
    file = tmp_path / "backup.jsonl"

    async def backed_up() -> None:
        store = await SqliteStore.open(tmp_path / "fleet.db")
        for name in ("lab-1", "lab-2"):
            await enrol(store, await invite(store, name=name), name, DeviceKey.new().public)
        await revoke(store, "lab-2")
        await write_backup(store, file)
        await revoke(store, "lab-1")
        await store.close()

    asyncio.run(backed_up())
    (tmp_path / "new").mkdir()
    scene = Scene(tmp_path / "new")
    answer = json.loads(scene.ok("store", "restore", str(file), *options, "--json"))
    revoked = [name for name in ("lab-1", "lab-2") if name not in kept]
    assert answer["devices"] == {"kept": kept, "revoked": revoked}

    async def valid() -> list[str]:
        store = await SqliteStore.open(scene.file)
        devices = [await find_device(store, name) for name in ("lab-1", "lab-2")]
        names = [device.name for device in devices if device is not None and device.revoked_at is None]
        await store.close()
        return names

    assert asyncio.run(valid()) == kept


# -- looking at it -----------------------------------------------------------------------------------------------------


def test_store_info_shows_the_contents(tmp_path: Path) -> None:
    scene = filled(tmp_path)
    told = scene.json("store", "info")
    assert told.pop("clock") > 0
    assert abs(told.pop("clock_ahead")) < 1000
    assert told == {
        "store": scene.url,
        "runs": {
            **dict.fromkeys(("assigned", "claimed", "processing", "failed", "cancelled", "reassigning"), 0),
            **{"created": 3, "completed": 1},
        },
        "devices": {"ready": 1},
        "coordinator": None,
        "workflows": 1,
        "series": 1,
        "series_active": 0,
    }
    lines = scene.ok("store", "info").splitlines()
    assert lines[0] == f"store        {scene.url}"
    assert "runs         3 created, 1 completed" in lines


def test_an_intact_store_passes_the_check(tmp_path: Path) -> None:
    scene = filled(tmp_path)
    assert scene.ok("store", "check") == f"{scene.url} is intact: 4 runs.\n"
    assert scene.json("store", "check") == {"problems": [], "runs": 4}


def test_the_check_prints_every_problem_of_a_store(tmp_path: Path) -> None:
    scene = filled(tmp_path)
    with sqlite3.connect(scene.file) as connection:
        connection.execute("UPDATE runs SET state = '{}' WHERE status = 'completed'")
    connection.close()
    result = scene.run("store", "check")
    assert result.exit_code == 64
    assert "cannot be read" in result.stdout
    assert f" in {scene.url}." in result.stderr
    assert scene.json("store", "check", code=64)["problems"]


# -- backups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["backup.jsonl", "backup.jsonl.gz"])
def test_a_backup_is_restored_into_an_empty_store(tmp_path: Path, name: str) -> None:
    scene = filled(tmp_path)
    file = tmp_path / name
    told = scene.json("store", "backup", str(file))
    assert told == {"file": str(file), "runs": 4, "size": file.stat().st_size}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (file.read_bytes()[:2] == b"\x1f\x8b") is name.endswith(".gz")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    (tmp_path / "new").mkdir()
    new = Scene(tmp_path / "new")
    assert new.ok("store", "restore", str(file)) == f"{new.url}: 4 runs restored.\n"
    before, after = scene.json("runs", "list"), new.json("runs", "list")
    assert after == before
    assert new.json("workflow", "list") == scene.json("workflow", "list")
    assert new.ok("runs", "output", after[0]["id"]) == "done\n"
    assert new.ok("store", "check")


def test_restored_schedules_are_paused_and_said_so(tmp_path: Path) -> None:
    scene = filled(tmp_path)
    for name in ("daily", "gone", "mine"):
        scene.ok("schedule", "add", name, "--cron", "0 3 * * *", "--workflow", "work")
    scene.ok("schedule", "pause", "mine", "--reason", "holiday")
    scene.ok("schedule", "remove", "gone")
    scene.ok("store", "backup", str(tmp_path / "backup.jsonl"))
    assert scene.json("schedule", "show", "daily")["paused"] is None
    (tmp_path / "new").mkdir()
    new = Scene(tmp_path / "new")
    told = new.run("store", "restore", str(tmp_path / "backup.jsonl")).stderr
    assert "2 schedules are paused: daily, mine. If the old store no longer creates their work, resume each" in told
    shown = {schedule["name"]: schedule["paused"] for schedule in new.json("schedule", "list")}
    assert shown == {"daily": "by the restore of a backup", "mine": "by ann: holiday"}
    assert "is resumed; next at 20" in new.ok("schedule", "resume", "daily")


def test_a_store_that_is_not_empty_is_not_restored_into(tmp_path: Path) -> None:
    scene = filled(tmp_path)
    scene.ok("store", "backup", str(tmp_path / "backup"))
    result = scene.run("store", "restore", str(tmp_path / "backup"))
    assert (result.exit_code, result.stdout) == (64, "")
    assert f"a backup can only be restored into an empty store, and {scene.url} has 4 runs" in result.stderr


def damaged(how: str, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    return {
        "cut off": b"".join(lines[:-2]),
        "without its last line": b"".join(lines[:-1]),
        "cut off in a line": content[: len(content) // 2],
        "a line too few": b"".join(lines[:2] + lines[3:]),
        "a line too many": content + lines[1],
        "no JSON": b"hello\n",
        "not an object": b"[]\n",
        "empty": b"",
        "cut off, compressed": gzip.compress(content)[:-20],
        "garbled, compressed": gzip.compress(content)[:200] + b"garbage" + gzip.compress(content)[207:],
    }[how]


@pytest.mark.parametrize(
    "how",
    [
        *("cut off", "without its last line", "cut off in a line", "a line too few", "a line too many", "no JSON"),
        *("not an object", "empty", "cut off, compressed", "garbled, compressed"),
    ],
)
def test_a_backup_that_is_not_whole_restores_nothing(tmp_path: Path, how: str) -> None:
    scene = filled(tmp_path)
    file = tmp_path / "backup"
    scene.ok("store", "backup", str(file))
    file.write_bytes(damaged(how, file.read_bytes()))
    (tmp_path / "new").mkdir()
    new = Scene(tmp_path / "new")
    result = new.run("store", "restore", str(file))
    assert (result.exit_code, result.stdout) == (64, "")
    assert str(file) in result.stderr
    assert not new.file.exists(), "nor does it make a store"


@pytest.mark.parametrize("name", ["backup", "backup.gz"])
def test_a_line_of_a_backup_has_a_limit(tmp_path: Path, name: str) -> None:
    scene, file = filled(tmp_path), tmp_path / name
    scene.ok("store", "backup", str(file))
    opened = gzip.open if name.endswith(".gz") else open
    with opened(file, "rt") as lines:
        longest, number = max((len(line) - 1, -place) for place, line in enumerate(lines, 1))
    (tmp_path / "new").mkdir()
    new = Scene(tmp_path / "new")
    result = new.run("store", "restore", str(file), "--line-limit", str(longest - 1))
    assert (result.exit_code, result.stdout) == (64, "")
    assert f"{file}: line {-number} has {format_size(longest + 1)}, and the limit is" in result.stderr
    assert "--line-limit" in result.stderr
    assert not new.file.exists()
    new.ok("store", "restore", str(file), "--line-limit", str(longest))


@pytest.mark.long
def test_an_endless_line_of_a_compressed_backup_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "backup.gz"
    file.write_bytes(gzip.compress(b'{"asterism": "store", "version": 3}\n' + b" " * (64 << 20)))
    tracemalloc.start()
    result = Scene(tmp_path).run("store", "restore", str(file), "--line-limit", "4M")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.exit_code == 64
    assert "line 2 has more than 16 MiB, and the limit is 4 MiB" in result.stderr
    assert most < 32 << 20


def test_a_line_with_too_many_parts_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is short, but each part of it takes 64 bytes and more."""
    file = tmp_path / "deep.jsonl"
    file.write_text('{"register":["k",[' + "{}," * 150_000 + "{}],1]}\n")
    with monkeypatch.context() as patched:
        patched.setattr("asterism.cli.store_commands.json.loads", None)
        result = Scene(tmp_path).run("store", "restore", str(file), "--line-limit", "4M")
    assert result.exit_code == 64
    assert "line 1 has 300,006 parts, which take too much memory" in result.stderr


def test_a_file_that_is_not_a_backup_is_refused(tmp_path: Path) -> None:
    scene = filled(tmp_path)
    (tmp_path / "new").mkdir()
    result = Scene(tmp_path / "new").run("store", "restore", str(scene.file))
    assert (result.exit_code, result.stdout) == (64, "")
    assert f"{scene.file} is not a backup" in result.stderr


@pytest.mark.parametrize(("version", "words"), [(99, "use a later one"), (2, "with the Asterism that wrote it")])
def test_a_backup_of_another_version_is_refused(tmp_path: Path, version: int, words: str) -> None:
    scene = Scene(tmp_path)
    file = tmp_path / "backup"
    file.write_text(f'{{"asterism": "store", "version": {version}}}\n{{"end": 1}}\n')
    result = scene.run("store", "restore", str(file))
    assert result.exit_code == 64
    assert f"the backup has schema version {version}, and this Asterism knows versions" in result.stderr
    assert words in result.stderr


def test_a_backup_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    scene = filled(tmp_path)
    result = scene.run("store", "backup", str(tmp_path / "none" / "backup"))
    assert result.exit_code == 64
    assert f"'{tmp_path}/none/backup' cannot be written: there is no directory '{tmp_path}/none'" in result.stderr
    result = scene.run("store", "restore", str(tmp_path / "none"))
    assert "there is no file" in result.stderr


def test_a_backup_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    scene = filled(tmp_path)
    file = tmp_path / "backup"
    file.write_text("old")
    assert scene.ok("store", "backup", str(file)).startswith(f"{file}: 4 runs, ")
    assert json.loads(file.read_text().splitlines()[0]) == {"asterism": "store", "version": 3}


@pytest.mark.parametrize("words", [["check"], ["backup", "file"]])
def test_a_file_that_is_not_there_is_neither_checked_nor_backed_up_nor_made(tmp_path: Path, words: list[str]) -> None:
    scene = Scene(tmp_path)
    result = scene.run("store", *words)
    assert (result.exit_code, result.stdout) == (69, "")
    assert f"there is no store {scene.file}" in result.stderr
    assert not scene.file.exists()


# -- stores that cannot be used ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_store_of_a_later_version_is_refused_with_words(tmp_path: Path, words: list[str]) -> None:
    scene = filled(tmp_path)
    with sqlite3.connect(scene.file) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    result = scene.run(*words)
    assert (result.exit_code, result.stdout) == (64, "")
    assert "has schema version 99, and this Asterism knows versions up to" in result.stderr


def test_the_check_of_a_store_of_an_earlier_version_says_what_to_do(tmp_path: Path) -> None:
    scene = filled(tmp_path)
    with sqlite3.connect(scene.file) as connection:
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    result = scene.run("store", "check")
    assert (result.exit_code, result.stdout) == (64, "")
    assert "has schema version 1, and this Asterism knows versions from 2 on: let the plans and runs" in result.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_store_out_of_reach_is_one_sentence_and_a_code_of_its_own(tmp_path: Path, words: list[str]) -> None:
    scene = Scene(tmp_path)
    result = scene.run(*words, "--store", f"sqlite:///{tmp_path}/none/fleet.db")
    assert (result.exit_code, result.stdout) == (69, "")
    assert len(result.stderr.splitlines()) == 1
    assert f"{tmp_path}/none" in result.stderr


def test_a_server_that_is_not_there_is_one_sentence_without_the_password(tmp_path: Path) -> None:
    result = Scene(tmp_path).run("runs", "list", "--store", "postgresql://ann:hunter2@127.0.0.1:1/fleet")
    assert (result.exit_code, result.stdout) == (69, "")
    assert "postgresql://ann:***@127.0.0.1:1/fleet" in result.stderr
    assert "hunter2" not in result.output


def test_a_file_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.file.write_text("hello " * 1000)
    result = scene.run("runs", "list")
    assert (result.exit_code, result.stdout) == (64, "")
    assert "is damaged, or not a store" in result.stderr
    result = scene.run("store", "check")
    assert result.exit_code == 64
    assert "is damaged, or not a store" in result.stdout
    assert "asterism store check" not in result.output


def test_a_store_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = filled(tmp_path)

    async def refuse(store: SqliteStore, writes: object) -> None:
        raise read_only(store.path)

    monkeypatch.setattr(SqliteStore, "commit", refuse)
    result = scene.run("runs", "create", "work")
    assert (result.exit_code, result.stdout) == (64, "")
    assert f"no permission to write {scene.file}" in result.stderr


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("fleet", "is not the address of a store"),
        ("mysql://localhost/x", "unknown kind of store 'mysql'"),
        ("sqlite:/fleet.db", "too few slashes"),
        ("memory:", "A store in memory ends with its process"),
    ],
)
def test_what_names_no_store_is_refused(tmp_path: Path, url: str, words: str) -> None:
    result = Scene(tmp_path).run("runs", "list", "--store", url)
    assert (result.exit_code, result.stdout) == (64, "")
    assert words in result.stderr


def test_without_any_word_about_it_the_store_is_in_the_users_data(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.ok("workflow", "add", "work", "--shell", "echo 1", ASTERISM_STORE="")
    assert (tmp_path / "data" / "asterism" / "fleet.db").exists()
    assert not scene.file.exists()
