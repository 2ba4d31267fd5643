"""A store that does not exist: only commands that need a new store create it; all others say how to."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from asterism.cli.cli_context import HOW_TO_CREATE_A_STORE
from asterism.store.postgres import PostgresStore
from asterism.store.store_errors import StoreMissing
from tests.cli.cli_scenes import write
from tests.cli.command_scenes import Scene
from tests.process_scenes import ended, soon

HINT = (
    "`asterism store init`, `workflow add`, `schedule add`, `device join`, `series claim`, `serve` or "
    "`run --store URL` creates it; --store names another one"
)

READING_COMMANDS = [
    ["runs", "list"],
    ["runs", "show", "abcd"],
    ["runs", "watch", "--until-done"],
    ["runs", "wait", "abcd"],
    ["runs", "output", "abcd"],
    ["runs", "create", "work"],
    ["runs", "cancel", "abcd"],
    ["runs", "pause", "abcd"],
    ["runs", "resume", "abcd"],
    ["runs", "retry", "abcd"],
    ["runs", "prune", "--older-than", "30d"],
    ["device", "list"],
    ["device", "scores", "work"],
    ["device", "drain", "laptop"],
    ["device", "show", "laptop"],
    ["runs", "why", "abcd"],
    ["workflow", "list"],
    ["workflow", "show", "work"],
    ["workflow", "remove", "work"],
    ["notice", "list"],
    ["schedule", "list"],
    ["token", "list"],
    ["store", "check"],
    ["store", "backup", "file"],
    ["store", "info"],
    ["fleet", "show"],
    ["fleet", "set", "--keep", "7d"],
]


@pytest.mark.parametrize("words", READING_COMMANDS, ids=" ".join)
def test_reading_commands_create_no_store(tmp_path: Path, words: list[str]) -> None:
    scene = Scene(tmp_path)
    result = scene.run(*words)
    assert (result.exit_code, result.stdout) == (69, "")
    assert result.stderr == f"Error: there is no store {scene.file}; {HINT}\n"
    assert list(tmp_path.iterdir()) == []


CREATING_COMMANDS = {
    "store init": ["store", "init"],
    "workflow add": ["workflow", "add", "work", "--argv", "true"],
    "schedule add": ["schedule", "add", "nightly", "--every", "1d", "--plan", "plan.yaml"],
    "series claim": ["series", "claim", "RFC-093", "--issue", "1"],
    "run --store URL": ["run", "plan.yaml", "--store", "STORE"],
}
LONG_COMMANDS = {"device join": ["device", "join", "laptop"], "serve": ["serve", "--listen", "127.0.0.1:0"]}


def test_every_command_that_the_message_names_creates_a_store(tmp_path: Path) -> None:
    named = [name.removeprefix("asterism ") for name in re.findall("`([^`]*)`", HOW_TO_CREATE_A_STORE)]
    assert sorted(named) == sorted([*CREATING_COMMANDS, *LONG_COMMANDS])
    for number, words in enumerate(CREATING_COMMANDS.values()):
        scene = Scene(folder := tmp_path / str(number))
        folder.mkdir(exist_ok=True)
        plan = write(folder, "tasks: {a: {shell: 'true'}}\n")
        written = {"plan.yaml": plan, "STORE": scene.url}
        scene.ok(*(written.get(word, word) for word in words))
        assert scene.file.exists(), words


@pytest.mark.parametrize("words", LONG_COMMANDS.values(), ids=LONG_COMMANDS)
def test_a_long_command_that_the_message_names_creates_a_store(tmp_path: Path, words: list[str]) -> None:
    scene = Scene(tmp_path)
    with scene.process(*words):
        soon(scene.file.exists)


def test_a_plain_run_needs_no_store_and_creates_none(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.ok("run", write(tmp_path, "tasks: {a: {shell: 'true'}}\n"), ASTERISM_STORE="")
    assert not scene.file.exists()
    result = scene.run("plan", "list")
    assert (result.exit_code, HINT in result.stderr) == (69, True)


def test_a_monitor_makes_no_store(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with scene.process("monitor", "hub") as process:
        code, output, errors = ended(process)
    assert (code, output, errors) == (69, "", f"Error: there is no store {scene.file}; {HINT}\n")
    assert not scene.file.exists()


def test_the_store_in_the_users_data_is_not_made_either_nor_its_directory(tmp_path: Path) -> None:
    result = Scene(tmp_path).run("runs", "list", ASTERISM_STORE="")
    assert (result.exit_code, result.stdout) == (69, "")
    assert result.stderr == f"Error: there is no store {tmp_path}/data/asterism/fleet.db; {HINT}\n"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "data" / "asterism").mkdir(parents=True)
    result = Scene(tmp_path).run("runs", "list", ASTERISM_STORE="")
    assert (result.exit_code, HINT in result.stderr) == (69, True)
    assert list((tmp_path / "data" / "asterism").iterdir()) == []


def test_a_file_that_goes_between_looking_and_opening_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path)
    there, asked = Path.exists, 0

    def exists(path: Path) -> bool:
        """The store exists at the first question, and is gone afterwards."""
        nonlocal asked
        asked += path == scene.file
        return there(path) or (path == scene.file and asked == 1)

    monkeypatch.setattr(Path, "exists", exists)
    result = scene.run("runs", "list")
    assert (asked > 0, result.exit_code in (64, 69), result.stdout) == (True, True, "")
    assert list(tmp_path.iterdir()) == []


def test_in_a_database_no_store_is_made_either(tmp_path: Path, postgres_url: str) -> None:
    scene = Scene(tmp_path)
    result = scene.run("runs", "list", "--store", postgres_url)
    assert (result.exit_code, result.stdout) == (69, "")
    assert "there is no store in schema" in result.stderr
    assert result.stderr.endswith(f"; {HINT}\n")

    async def look_for_it() -> None:
        with pytest.raises(StoreMissing, match="there is no store in schema"):
            await PostgresStore.open(postgres_url, create=False)

    asyncio.run(look_for_it())
    assert scene.ok("workflow", "add", "work", "--shell", "echo 1", "--store", postgres_url) == "work@1 added\n"
    assert scene.run("runs", "list", "--store", postgres_url).exit_code == 0


def test_a_workflow_a_restore_and_a_run_of_a_file_make_a_store(tmp_path: Path) -> None:
    scene, file = Scene(tmp_path), tmp_path / "flow.yaml"
    file.write_text("name: work\nshell: echo 1\n")
    for words in (
        ["workflow", "add", "work", "--shell", "echo 1"],
        ["runs", "create", "--file", str(file)],
        ["store", "restore", str(tmp_path / "backup")],
    ):
        scene.ok(*words)
        scene.ok("store", "backup", str(tmp_path / "backup"))
        assert [flow["name"] for flow in scene.json("workflow", "list")] == ["work"]
        for path in tmp_path.glob("fleet.db*"):
            path.unlink()


@pytest.mark.parametrize(
    ("text", "words"),
    [("name: work\nargv: [echo, '{who}']\n", "needs who"), ("name: work\n", "work"), (None, "No such file")],
)
def test_a_run_of_a_file_that_cannot_be_used_makes_no_store(tmp_path: Path, text: str | None, words: str) -> None:
    scene, file = Scene(tmp_path), tmp_path / "flow.yaml"
    if text is not None:
        file.write_text(text)
    result = scene.run("runs", "create", "--file", str(file))
    assert (result.exit_code, result.stdout) == (64, "")
    assert words in result.stderr
    assert not scene.file.exists()


def test_a_store_without_runs_is_used_by_all(tmp_path: Path) -> None:
    scene = Scene(tmp_path).made()
    assert scene.json("runs", "list") == []


def test_an_empty_file_becomes_a_store_by_what_makes_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.file.touch()
    scene.ok("workflow", "add", "work", "--shell", "echo 1")
    assert scene.json("runs", "list") == []
