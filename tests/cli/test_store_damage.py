"""Commands on a damaged SQLite file: each says what is wrong or works, none hangs, none hides that runs are missing.

Two stores are damaged over and over: one that was closed, and one whose process was killed, so that its last commits
are only in the write-ahead log.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asterism.fleet.coordinator import Election
from asterism.fleet.fleet import Fleet
from asterism.store.sqlite import connection
from asterism.store.sqlite.connection import FileConnection
from asterism.store.store_errors import StoreCorrupt
from tests.cli.command_scenes import Scene
from tests.forked_commands import ForkedProgram
from tests.long_tests import rest_long

PAGE = 4096
PATIENCE = 300
"""How many seconds a command may take before it counts as hung: far beyond what any of them takes."""

FILL_AND_DIE = """
import asyncio, os, signal, sys
from asterism.fleet.fleet import Fleet

async def main():
    fleet = await Fleet.open(sys.argv[1])
    for number in range(120):
        await fleet.create("work", {"number": number, "text": "x" * (number * 37 % 9000)})
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


GROW_AND_DIE = """
import asyncio, os, shutil, signal, sys
from asterism.store.url import open_store
from asterism.store.protocol import PutRegister

def salts():
    with open(f"{sys.argv[1].removeprefix('sqlite:///')}-wal", "rb") as log:
        return log.read(24)[16:]

async def main():
    store = await open_store(sys.argv[1])
    number, first, last = 0, None, None
    while number != last:
        before = await store.register("x")
        await store.commit([PutRegister("x", {"number": number, "text": "y" * 3000}, before and before.revision)])
        if number == 20:
            shutil.copy(f"{store.path}-shm", sys.argv[2])
            first = salts()
        elif last is None and first not in (None, salts()):
            last = number + 20  # the log has begun anew
        number += 1
    print(number - 1, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def died_after(program: str, *words: str) -> str:
    """What a program said that kills itself."""
    with ForkedProgram(program, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        said, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL, errors
    return said


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Its process was killed: what it committed is in the log."""
    scene = Scene(tmp_path_factory.mktemp("killed"))
    scene.workflow("work")
    plan = scene.folder / "plan.yaml"
    plan.write_text("asterism: 1\nid: nightly\ntasks:\n  a: {shell: 'true'}\n  b: {shell: 'true', after: a}\n")
    scene.ok("run", str(plan), "--store", scene.url)
    scene.device("laptop")
    died_after(FILL_AND_DIE, scene.url)
    assert log_of(scene.file).stat().st_size > 20 * PAGE
    return scene


@pytest.fixture(scope="module")
def closed(killed: Scene, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The last process has closed it: everything is in the one file."""
    scene = copy_of(killed, tmp_path_factory.mktemp("closed") / "store")
    scene.ok("runs", "list")
    assert not log_of(scene.file).exists()
    return scene


@pytest.fixture(scope="module")
def there(closed: Scene) -> set[str]:
    """The ids of all runs."""
    return ids_in(closed)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[Callable[[], None]]:
    """Raises in the middle of a command that hangs. Call it to begin anew."""

    def ring(signum: int, frame: object) -> None:
        raise TimeoutError(f"a command took more than {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda: signal.alarm(PATIENCE) and None
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def copy_of(scene: Scene, folder: Path) -> Scene:
    shutil.copytree(scene.folder, folder)
    return Scene(folder)


def log_of(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def index_of(file: Path) -> Path:
    return file.with_name(f"{file.name}-shm")


def ids_in(scene: Scene) -> set[str]:
    return {run["id"] for run in json.loads(scene.ok("runs", "list", "--limit", "1000", "--json"))}


# -- damages -----------------------------------------------------------------------------------------------------------


def _page(file: Path, chance: random.Random) -> int:
    return chance.randrange(file.stat().st_size // PAGE) * PAGE


def _overwrite(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


def _read(file: Path, at: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(at)
        return opened.read(PAGE)


def zero_a_page(file: Path, chance: random.Random) -> None:
    _overwrite(file, _page(file, chance), bytes(PAGE))


def shift_a_page(file: Path, chance: random.Random) -> None:
    at, by = _page(file, chance), chance.randrange(1, PAGE)
    data = _read(file, at)
    _overwrite(file, at, data[by:] + data[:by])


def swap_two_pages(file: Path, chance: random.Random) -> None:
    page, other = _page(file, chance), _page(file, chance)
    first, second = _read(file, page), _read(file, other)
    _overwrite(file, page, second)
    _overwrite(file, other, first)


def scramble_a_page(file: Path, chance: random.Random) -> None:
    _overwrite(file, _page(file, chance), chance.randbytes(PAGE))


def flip_a_byte_of_the_header(file: Path, chance: random.Random) -> None:
    at = chance.randrange(100)
    _overwrite(file, at, bytes([_read(file, at)[0] ^ 0xFF]))


def cut_off_the_end(file: Path, chance: random.Random) -> None:
    os.truncate(file, chance.randrange(file.stat().st_size))


def empty_the_file(file: Path, chance: random.Random) -> None:
    os.truncate(file, 0)


def remove_the_log(file: Path, chance: random.Random) -> None:
    log_of(file).unlink()


def remove_the_index(file: Path, chance: random.Random) -> None:
    index_of(file).unlink()


def zero_a_part_of_the_log(file: Path, chance: random.Random) -> None:
    at = chance.randrange(log_of(file).stat().st_size - PAGE)
    _overwrite(log_of(file), at, bytes(PAGE))


def cut_off_the_end_of_the_log(file: Path, chance: random.Random) -> None:
    cut_off_the_end(log_of(file), chance)


def damage_the_beginning_of_the_log(file: Path, chance: random.Random) -> None:
    at = chance.randrange(32)
    _overwrite(log_of(file), at, bytes([_read(log_of(file), at)[0] ^ 0xFF]))


OF_THE_FILE = (
    zero_a_page,
    shift_a_page,
    swap_two_pages,
    scramble_a_page,
    flip_a_byte_of_the_header,
    cut_off_the_end,
    empty_the_file,
)
OF_THE_LOG = (
    remove_the_log,
    zero_a_part_of_the_log,
    cut_off_the_end_of_the_log,
    damage_the_beginning_of_the_log,
)

LOOKS = (
    ("store", "info"),
    ("device", "list"),
    ("device", "scores", "work"),
    ("workflow", "list"),
    ("workflow", "show", "work"),
    ("plan", "list"),
    ("plan", "show", "nightly"),
    ("plan", "story", "nightly"),
    ("plan", "pause", "nightly"),
    ("series", "status", "RFC-093"),
    ("fleet", "show"),
    ("peer", "list"),
    ("runs", "create", "work", "--input", '{"number": 1}'),
    ("runs", "prune"),
)


FEW, MANY = 3, 80


def _do_not_wait_for_content(self: FileConnection) -> None:
    """No process is creating these stores, so that seven commands need not wait for five seconds each."""
    if not self.path.stat().st_size:
        raise StoreCorrupt(f"{self.path} is empty")


@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(FEW, MANY))]
)
def test_no_command_hides_a_damage(
    killed: Scene,
    closed: Scene,
    there: set[str],
    tmp_path: Path,
    no_hang: Callable[[], None],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FileConnection, "_wait_for_content", _do_not_wait_for_content)
    chance = random.Random(seed)
    whole = closed if seed % 2 else killed
    damages = OF_THE_FILE if seed % 2 else (*OF_THE_FILE, *OF_THE_LOG, *OF_THE_LOG, remove_the_index)
    damage = chance.choice(damages)
    scene = copy_of(whole, tmp_path / "damaged")
    damage(scene.file, chance)
    some = chance.choice(sorted(there))

    def run(*words: str) -> tuple[int, str]:
        no_hang()
        result = scene.run(*words, stdin="")
        assert result.exit_code in (0, 1, 2, 64, 65, 69), (damage, words, result.output)
        assert result.exit_code == 0 or result.output, (damage, words)
        return result.exit_code, result.stdout

    for words in chance.sample(LOOKS, 3):
        run(*words)
    run("runs", "show", some)
    listed = run("runs", "list", "--limit", "1000", "--json")
    backup = run("store", "backup", str(tmp_path / "backup"))
    checked, _ = run("store", "check")
    assert checked in (0, 64)
    assert checked == 64 or damage not in OF_THE_LOG
    listings = [{run["id"] for run in json.loads(listed[1])}] if listed[0] == 0 else []
    if backup[0] == 0:
        lines = map(json.loads, (tmp_path / "backup").read_text().splitlines())
        listings.append({line["run"][0] for line in lines if "run" in line})
    for ids in listings:
        assert there <= ids or checked == 64, (
            f"{damage.__name__}: {len(there - ids)} runs are missing, and nobody says so"
        )


# -- the log -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", rest_long(OF_THE_LOG, 1))
def test_a_damaged_log_is_left_alone_and_a_whole_copy_brings_everything_back(
    killed: Scene, there: set[str], tmp_path: Path, damage: Callable[[Path, random.Random], None]
) -> None:
    scene = copy_of(killed, tmp_path / "damaged")
    damage(scene.file, random.Random(1))
    before = {path.name: path.read_bytes() for path in scene.folder.glob("fleet.db*")}
    for words in (["runs", "list"], ["runs", "create", "work", "--input", '{"number": 1}'], ["store", "check"]):
        result = scene.run(*words)
        assert result.exit_code == 64, words
        assert "commits to" in result.output, result.output
        assert "remove fleet.db-shm" in result.output
    assert {path.name: path.read_bytes() for path in scene.folder.glob("fleet.db*")} == before
    shutil.copy(log_of(killed.file), log_of(scene.file))
    assert ids_in(scene) == there


def test_after_the_index_is_removed_the_readable_rest_is_used(killed: Scene, there: set[str], tmp_path: Path) -> None:
    scene = copy_of(killed, tmp_path / "damaged")
    os.truncate(log_of(scene.file), log_of(scene.file).stat().st_size // 2)
    assert scene.run("runs", "list").exit_code == 64
    index_of(scene.file).unlink()
    assert ids_in(scene) < there
    assert "is intact" in scene.ok("store", "check")


def test_an_index_from_before_a_power_cut_is_not_believed(tmp_path: Path) -> None:
    """The log is synced with every commit and the index never: it may be of a time before the log began anew."""
    scene = Scene(tmp_path)
    said = died_after(GROW_AND_DIE, scene.url, str(tmp_path / "old-index"))
    shutil.copy(tmp_path / "old-index", index_of(scene.file))
    register = scene.ask(lambda fleet: fleet.store.register("x"))
    assert register is not None
    assert register.value["number"] == int(said)


def test_without_the_check_of_the_log_commits_are_lost_in_silence(
    killed: Scene, there: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "missing_commits", lambda path: None)
    scene = copy_of(killed, tmp_path / "damaged")
    log_of(scene.file).unlink()
    assert "is intact" in scene.ok("store", "check")
    assert ids_in(scene) < there


def test_an_empty_file_is_not_taken_for_a_new_store(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.file.touch()
    result = scene.run("runs", "list")
    assert result.exit_code == 64
    assert "is empty" in result.output
    assert scene.file.stat().st_size == 0


@pytest.mark.parametrize(
    "value",
    rest_long(["7", "{}", "[" * 100_000, '"x"', "[]", "null", "[[1]]", '{"version": "x"}'], 3),
    ids=lambda value: value[:8],
)
@pytest.mark.parametrize("key", ["coordinator", "settings", "workflow/work"])
def test_a_register_of_another_shape_is_named(tmp_path: Path, key: str, value: str) -> None:
    scene = Scene(tmp_path)
    scene.ok("workflow", "add", "work", "--shell", "true")
    scene.ok("fleet", "set", "--keep", "3d")
    with contextlib.closing(sqlite3.connect(scene.file)) as other:
        other.execute("INSERT OR REPLACE INTO registers VALUES (?, ?, 1)", (key, value))
        other.commit()
    for words in (
        ("device", "list"),
        ("fleet", "show"),
        ("workflow", "list"),
        ("store", "check"),
        ("runs", "create", "work"),
    ):
        result = scene.run(*words)  # never with a traceback
        assert result.exit_code == 0 or "Error: " in result.stderr or key in result.output


@pytest.mark.parametrize("value", ["{", "[" * 100_000, "{}"], ids=["no JSON", "deep", "empty"])
def test_an_unreadable_lease_of_the_coordinator_is_replaced(tmp_path: Path, value: str) -> None:
    scene = Scene(tmp_path)
    scene.ok("workflow", "add", "work", "--shell", "true")
    with contextlib.closing(sqlite3.connect(scene.file)) as other:
        other.execute("INSERT OR REPLACE INTO registers VALUES ('coordinator', ?, 7)", (value,))
        other.commit()

    async def elected(fleet: Fleet) -> tuple[bool, int, str | None]:
        election = Election("coordinator", fleet.store, fleet.clock, "hub", "hub-1")
        return await election.campaign(), election.epoch, await fleet.coordinator()

    assert scene.ask(elected) == (True, 8, "hub")


@pytest.mark.parametrize(
    "line",
    ['{"run": ' + "[" * 100_000, '{"register": {"key": "a", "value": ' + '{"a":' * 100_000, '{"notice": {"at": "x"}}'],
)
def test_a_hostile_line_of_a_backup_is_named(tmp_path: Path, line: str) -> None:
    scene, file = Scene(tmp_path), tmp_path / "backup"
    file.write_text('{"asterism": "store", "version": 2}\n' + line + '\n{"end": 2}\n')
    result = scene.run("store", "restore", str(file))
    assert result.exit_code == 64
    assert "Error: " in result.stderr
    assert len(result.stderr) < 1000


def test_every_with_hundreds_of_digits_is_not_a_duration(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    result = scene.run("schedule", "add", "x", "--every", "9" * 400, "--workflow", "work")
    assert result.exit_code == 64
    assert "is not a valid duration" in result.stderr
