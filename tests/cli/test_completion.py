"""Completion in shells: commands, options, and the names in a store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import CompletionItem, ShellComplete

from asterism.api.server_logins import ServerLogin, ServerLogins
from asterism.cli import completion_commands
from asterism.cli.main import COMMANDS, commands
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.core.run.work import Workflow
from asterism.durable.journal_store import insert_plan
from asterism.fleet.fleet import Fleet
from asterism.peers.registry import PeerRegistry
from asterism.store.protocol import PutRegister
from tests.cli.cli_scenes import write
from tests.cli.command_scenes import Scene
from tests.process_scenes import PATIENCE

PROGRAM = Path(sys.executable).with_name("asterism")


def items(*words: str) -> list[CompletionItem[str]]:
    """What a shell offers for the last word, which may be empty."""
    *typed, incomplete = words
    return ShellComplete(commands, {}, "asterism", "_ASTERISM_COMPLETE").get_completions(typed, incomplete)


def offered(*words: str) -> list[str]:
    return [item.value for item in items(*words)]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(tmp_path)
    monkeypatch.setattr(completion_commands, "TIMEOUT", PATIENCE)  # however busy the machine is
    for name, value in scene.env.items():
        monkeypatch.setenv(name, value)
    return scene


@pytest.fixture
def filled(scene: Scene) -> Scene:
    """A store with two of everything that has a name."""

    async def fill(fleet: Fleet) -> None:
        plan = Constellation("nightly")
        plan.add(Task("fetch", argv=("true",)))
        plan.add(Task("load", argv=("true",)), after=["fetch"])
        await insert_plan(fleet.store, plan)
        await fleet.workflows.add(Workflow("resize", argv=("true",)))
        await fleet.create("resize", {}, series="films")
        await PeerRegistry(fleet.store).add("kitchen", token_sha256="0" * 64)

    scene.ask(fill)
    scene.device("box")
    scene.device("desk")
    scene.ok("series", "claim", "RFC-7", "--issue", "1")
    for name in ("hourly", "gone"):
        scene.ok("schedule", "add", name, "--workflow", "resize", "--every", "1h")
    scene.ok("schedule", "remove", "gone")
    return scene


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("plan", "show", ""), ["nightly"]),
        (("resume", "n"), ["nightly"]),
        (("plan", "story", "nightly", ""), ["fetch", "load"]),
        (("plan", "why", "nightly", "l"), ["load"]),
        (("plan", "why", "unknown", ""), []),
        (("plan", "retry", "nightly", "--from", "l"), ["load"]),
        (("plan", "resume", "nightly", "--result", ""), ["fetch", "load"]),
        (("runs", "move", "x", "--to", "d"), ["desk"]),
        (("device", "drain", ""), ["box", "desk"]),
        (("runs", "list", "--device", "d"), ["desk"]),
        (("runs", "create", "r"), ["resize"]),
        (("workflow", "show", ""), ["resize"]),
        (("runs", "create", "resize", "--series", ""), ["films"]),
        (("series", "status", ""), ["RFC-7"]),
        (("series", "release", "RFC"), ["RFC-7"]),
        (("peer", "remove", ""), ["kitchen"]),
        (("schedule", "show", ""), ["hourly"]),
        (("plan", "show", "x"), []),
    ],
    ids=" ".join,
)
def test_names_come_from_the_store(words: tuple[str, ...], names: list[str], filled: Scene) -> None:
    assert sorted(offered(*words)) == names


def test_logout_offers_the_servers_that_are_known(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(scene.folder))
    assert offered("logout", "") == []
    for name in ("lab", "office"):
        ServerLogins().put(ServerLogin(name, f"https://{name}.example", "token"))
    assert offered("logout", "") == ["lab", "office"]
    assert offered("logout", "o") == ["office"]
    ServerLogins().path.write_text("{")
    assert offered("logout", "") == []


def test_tasks_come_from_the_plan_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "params: {day: {}}\ntasks:\n  fetch: {argv: [echo, '{params.day}']}\n  load: {shell: ls, after: fetch}\n",
    )
    assert offered("run", path, "--only", "") == ["fetch", "load"]
    assert offered("run", path, "--only", "fetch", "--result", "l") == ["load"]
    assert offered("check", path, "--only", "f") == ["fetch"]
    assert offered("run", str(tmp_path / "none.yaml"), "--only", "") == []
    assert offered("run", "--only", "") == []


def test_runs_are_offered_by_the_end_of_their_ids_or_by_their_beginning(filled: Scene) -> None:
    run = filled.create("resize")
    assert len(offered("runs", "show", "")) == 2
    assert offered("runs", "show", run.id[-8:-2]) == [run.id[-8:]]
    assert run.id in offered("runs", "show", run.id[:6])
    [item] = [item for item in items("runs", "cancel", "") if item.value == run.id[-8:]]
    assert item.help == "resize, created"  # another run waits for the device already
    assert {"resize", run.id[-8:]} <= set(offered("device", "scores", ""))


def test_the_store_of_the_command_line_counts(filled: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTERISM_STORE", f"sqlite:///{tmp_path}/other.db")
    assert offered("plan", "show", "") == []
    assert offered("plan", "show", "--store", filled.url, "") == ["nightly"]
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize(
    "url", ["sqlite:///absent.db", "nonsense", "memory:", "postgresql://127.0.0.1:1/x", "sqlite:x"]
)
def test_without_a_store_nothing_is_offered_printed_or_created(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASTERISM_STORE", url)
    for words in (("runs", "show", ""), ("plan", "show", ""), ("device", "drain", ""), ("series", "claim", "")):
        assert offered(*words) == []
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_series_elsewhere_are_not_those_of_the_store(filled: Scene) -> None:
    assert offered("series", "status", "--remote", "origin", "") == []


HOSTILE = ["$(touch x)", "a b", "`id`", "a;b", "x'y", "-rf", "a\nb", "*", "~", "a,b", "a:b", "ok-1.2"]


def test_names_that_a_shell_would_act_upon_are_not_offered(scene: Scene) -> None:
    async def add(fleet: Fleet) -> None:
        await fleet.store.commit([PutRegister(f"limit/{name}", {"size": 1}, None) for name in HOSTILE])

    scene.ask(add)
    assert offered("limit", "show", "") == ["ok-1.2"]


def test_unsafe_names_would_be_offered_without_the_filter(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter above is what keeps them back."""
    monkeypatch.setattr(
        completion_commands, "_HARMLESS", completion_commands.re.compile(".*", completion_commands.re.DOTALL)
    )
    test = test_names_that_a_shell_would_act_upon_are_not_offered
    with pytest.raises(AssertionError):
        test(scene)


def test_a_store_that_does_not_answer_in_time_has_no_names(filled: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_commands, "TIMEOUT", 0.0)
    assert offered("plan", "show", "") == []


# -- commands ----------------------------------------------------------------------------------------------------------


def test_commands_are_completed_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(commands.commands), "__getitem__", lambda self, name: pytest.fail(f"imports {name}"))
    assert offered("") == [entry.name for entry in COMMANDS]
    assert [(item.value, item.help) for item in items("chec")] == [
        ("check", "Report every mistake in a plan file, with line numbers.")
    ]
    assert offered("--v") == ["--version"]


def test_commands_of_a_group_options_and_choices_are_completed() -> None:
    assert offered("runs", "wa") == ["watch", "wait"]
    assert "--until-done" in offered("runs", "watch", "--")
    assert offered("runs", "list", "--status", "comp") == ["completed"]
    assert offered("completion", "") == ["bash", "zsh", "fish"]


def arguments(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Parameter]]:
    with click.Context(group, info_name=path[-1] if path else "asterism", resilient_parsing=True) as context:
        context.parent = click.Context(commands) if path else None
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from arguments(command, (*path, name))
            elif command is not None:
                yield from (
                    (" ".join((*path, name)), parameter)
                    for parameter in command.params
                    if isinstance(parameter, click.Argument)
                )


def test_every_argument_that_names_something_is_completed() -> None:
    """A new command with such an argument needs a rule in ``completion_commands``, or a line here."""
    without = {
        (command, argument.name)
        for command, argument in arguments(commands)
        if "shell_complete" not in vars(argument) and type(argument.type) is type(click.STRING)
    }
    free = {
        ("monitor", "name"),
        ("plan new", "request"),
        ("plan ask", "request"),
        ("peer accept", "invitation"),
        ("peer sync", "words"),
    }
    free |= {("login", "url")}  # a new server
    free |= {("event send", "name"), ("event list", "name"), ("plan get", "output")}  # as plans and tasks name them
    assert without <= free


# -- scripts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_calls_the_command(shell: str, tmp_path: Path) -> None:
    script = Scene(tmp_path).ok("completion", shell)
    assert f"_ASTERISM_COMPLETE={shell}_complete" in script
    assert "_asterism_completion" in script
    assert not any(tmp_path.iterdir())


def test_an_unknown_shell_is_refused(tmp_path: Path) -> None:
    result = Scene(tmp_path).run("completion", "tcsh")
    assert result.exit_code == 64
    assert "'bash', 'zsh', 'fish'" in result.stderr


def test_bash_completes_commands_and_values(tmp_path: Path) -> None:
    lines = """
eval "$(asterism completion bash)"
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _asterism_completion asterism; }
complete_words asterism runs crea; echo "${COMPREPLY[@]}"
complete_words asterism runs list --status comp; echo "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", lines],
        env={**os.environ, **Scene(tmp_path).env, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.stdout, done.stderr) == ("create\ncompleted\n", "")
