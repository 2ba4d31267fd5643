"""Help texts and imports of all commands on a fleet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from asterism.cli.main import COMMANDS, commands
from tests.cli.cli_scenes import ASTERISM
from tests.cli.command_scenes import Scene
from tests.process_scenes import PATIENCE

HEAVY = (
    *("asyncio", "asyncpg", "html.entities", "httpx", "cel", "pydantic", "yaml", "rich"),
    *("asterism.store.sqlite", "asterism.store.postgres"),
)
FLEET = (
    *("runs", "batch", "workflow", "schedule", "limit", "event", "device", "fleet", "monitor", "top", "notice"),
    *("audit", "serve", "mcp", "login", "logout", "whoami", "token", "peer", "store", "plugins"),
)


def leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for inner, subcommand in command.commands.items():
            yield from leaves(f"{name} {inner}", subcommand)
    else:
        yield name, command


ALL = dict(leaf for name in FLEET for leaf in leaves(name, commands.commands[name]))


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["runs", "--help"], ["device", "join", "--help"]], ids=" ".join
)
def test_help_imports_nothing_that_takes_long(words: list[str]) -> None:
    code = f"""
import sys
sys.argv = ["asterism", *{words!r}]
from asterism.cli.main import main
try:
    main()
except SystemExit as end:
    assert end.code == 0
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert told.stderr == "[]\n"
    assert told.stdout


def test_the_list_of_commands_says_what_their_help_says() -> None:
    assert [entry.name for entry in COMMANDS] == list(commands.commands)
    for entry in COMMANDS:
        told = (commands.commands[entry.name].help or "").split("\n\n")[0].replace("\n", " ")
        assert told == entry.help


@pytest.mark.parametrize(
    "name", [name for name, command in commands.commands.items() if isinstance(command, click.Group)]
)
def test_no_line_in_a_list_of_commands_is_cut_off(name: str, tmp_path: Path) -> None:
    listed = Scene(tmp_path).ok(name, "--help").partition("Commands:")[2]
    assert listed
    assert [line for line in listed.splitlines() if line.endswith("...")] == []


def test_every_default_duration_has_a_unit() -> None:
    for name, command in {**ALL, "run": commands.commands["run"], "resume": commands.commands["resume"]}.items():
        for option in command.params:
            if option.metavar == "DURATION" and option.default is not None and isinstance(option.default, str):
                assert option.default[-1:] in "smhd", f"{name} {option.opts[0]}"


def test_the_list_of_commands_is_in_sections(tmp_path: Path) -> None:
    text = Scene(tmp_path).ok("--help")
    plans, fleets = text.partition("\nFleets:")[::2]
    assert "Start here:\n  demo " in plans
    assert "Plan files:\n  run " in plans
    assert "Plans in a store:\n  plan " in plans
    fleets = fleets.partition("\nSeries:")[0]
    assert [line.split()[0] for line in fleets.splitlines() if line.startswith("  ")] == list(FLEET)
    assert max(map(len, text.splitlines())) < 80


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"login", "logout"}))  # these name a server
def test_every_command_takes_a_store_and_gives_json(name: str) -> None:
    options = {option for param in ALL[name].params for option in param.opts}
    without = name in ("top", "mcp")  # the first draws a screen, the second speaks a protocol
    assert {"--store", "--json"} <= options | ({"--json"} if without else set())
    [store] = [param for param in ALL[name].params if param.name == "store"]
    assert store.envvar == "ASTERISM_STORE"


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_command_and_option_says_what_it_is_for(name: str) -> None:
    assert ALL[name].help
    for param in ALL[name].params:
        assert isinstance(param, click.Argument) or param.help, param.name


def test_a_command_that_there_is_not_is_refused(tmp_path: Path) -> None:
    for words in (["flet"], ["runs", "creat"]):
        result = Scene(tmp_path).run(*words)
        assert result.exit_code == 64
        assert "No such command" in result.stderr


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        (["retry", "x"], "Use: asterism plan retry x, or: asterism runs retry x"),
        (["approve", "x", "1"], "Use: asterism plan approve x 1"),
    ],
)
def test_a_command_of_a_group_is_told_with_the_group(tmp_path: Path, words: list[str], commands: str) -> None:
    result = Scene(tmp_path).run(*words)
    assert (result.exit_code, commands in result.stderr) == (64, True), result.stderr


def test_the_names_of_stores_and_users_come_from_the_environment(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    told = subprocess.run(
        [*ASTERISM, "workflow", "add", "work", "--shell", "echo 1"],
        env={"ASTERISM_STORE": scene.url, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (told.returncode, told.stdout) == (0, "work@1 added\n"), told.stderr
    assert scene.file.exists()


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()

    async def many(fleet):  # type: ignore[no-untyped-def]
        for _ in range(300):
            await fleet.create("work", {"text": "x" * 1000})

    scene.ask(many)
    with scene.process("runs", "list", "--json", "--limit", "0") as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(PATIENCE) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""
