"""Text from outside never acts on a terminal: every command, in a pseudo-terminal, over names and results that try to.

What comes out may hold rich's own styles, and in the live views its movements of the cursor; nothing else that a
terminal acts upon, no line that others have forged, and no byte that is not UTF-8.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from asterism.base.text import JOINERS, CleanStream, clean, clean_error, clean_lines, clean_streams, json_text
from asterism.cli.main import commands
from asterism.cli.screen import Screen
from asterism.core.run.run import Run
from asterism.fleet.fleet import Fleet, new_run
from asterism.store.protocol import PutLog, PutRegister, PutRun, StoredChunk
from tests.cli.cli_scenes import ASTERISM
from tests.cli.command_scenes import Scene, completed, failed, started, taken_by
from tests.cli.stored_plan_scenes import keeping
from tests.forked_commands import ForkedCommand
from tests.process_scenes import PATIENCE

MARK = "HOSTILE"
ACTS = (
    "\x1b[48;5;201mSGR\x1b[7;7HCUP\x1b[2J"  # colour, cursor, clear
    "\x1b]8;;evil:x\x1b\\LINK\x1b]8;;\x07"  # a link
    "\x1b]52;c;ZXZpbA==\x07\x1b]0;title\x1b\\\x1bP1$q\x1b\\\x1bc"  # clipboard, title, a device string, reset
    "\x9b2JC1\x9d0;x\x9c\x85NEL\x90q\x9c"  # the same as single characters
    "\u202eRLO\u2066LRI\u2069\u200fRLM\u061c\u2028LS\ufeff\U000e0041TAG"  # order and hidden text
    "\r\rOVER\x08\x08\x7fDEL\x0b\x0c\x07"
    f"\nFORGED {MARK}"
)
NAME = f"{MARK}{ACTS}"
"""What file names and words of the command line can hold."""

FILE = f"{MARK}\x1b[48;5;201m\x1b]52;c;eA==\x07\x9b2J\u202e\r\x7f\nFORGED"
"""What fits into the name of a file."""

TEXT = f"{MARK}\x00{ACTS}\udc9b"
"""What texts can hold: also NUL, and halves of characters."""

LEGIBLE = TEXT.replace("\udc9b", "")

STYLE = re.compile(r"\x1b\[(?:[0-9]{1,3}(?:;[0-9]{1,3})*)?m")
LIVE = re.compile(r"\r|\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K")
FOREIGN_STYLE = "48;5;201"


# -- the terminal --------------------------------------------------------------------------------------------------


SIZE = (50, 250)  # lines, columns


def in_terminal(scene: Scene, words: list[str], interrupt_on: str | None) -> tuple[bytes, int]:
    """What a command writes to a terminal, and its exit code. One that never ends is interrupted when it has written
    ``interrupt_on``."""
    leader, follower = os.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
    settings = termios.tcgetattr(follower)
    settings[1] &= ~termios.OPOST  # what is written is what comes out
    termios.tcsetattr(follower, termios.TCSANOW, settings)
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
    environment = {**os.environ, **scene.env, "TERM": "xterm-256color"}
    with ForkedCommand(words, **streams, cwd=scene.folder, env=environment) as process:
        os.close(follower)
        written, deadline = b"", time.monotonic() + PATIENCE
        while chunk := _read(leader, deadline):
            written += chunk
            if interrupt_on is not None and interrupt_on.encode() in written:
                interrupt_on = None
                process.send_signal(signal.SIGINT)
        process.kill()  # it has ended, or it never would
    os.close(leader)
    return written, process.returncode


def _read(leader: int, deadline: float) -> bytes:
    """What a terminal shows next; nothing once no process has it open any more, or when the time is over."""
    if not select.select([leader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        return b""
    try:
        return os.read(leader, 65_536)
    except OSError:
        return b""


def acts(told: bytes, *, live: bool = False, lines: bool = False) -> list[str]:
    """Everything in an output that a terminal would act upon and that is not ours."""
    try:
        text = told.decode("utf-8")
    except UnicodeDecodeError as error:
        return [f"not UTF-8: {error}"]
    problems = [f"a style of others: {FOREIGN_STYLE}"] if FOREIGN_STYLE in "".join(STYLE.findall(text)) else []
    text = STYLE.sub("", text)
    if live:
        text = LIVE.sub("", text)
    for at, character in enumerate(text):
        if not character.isprintable() and character not in "\n\u200c\u200d":
            problems.append(f"{character!r} in {text[max(0, at - 40) : at + 40]!r}")
    if not lines:
        problems += [f"a forged line: {line!r}" for line in text.split("\n") if line.startswith("FORGED")]
    return [problem[:200] for problem in problems[:3]]


# -- a fleet in which every text is hostile ------------------------------------------------------------------------

PLAN = {
    "asterism": 1,
    "id": "plan",
    "tasks": {
        "good": {"shell": "printf '%s' \"$HOSTILE_TEXT\"", "description": LEGIBLE},
        "bad": {"shell": "printf '%s' \"$HOSTILE_TEXT\" >&2; exit 1", "after": "good"},
    },
}
MISTAKES: tuple[dict[str, Any], ...] = (
    {"tasks": {"a": {NAME: 1, "shell": "x"}}},
    {"tasks": {NAME: {"shell": "x"}}},
    {"tasks": {"a": {"call": NAME}}},
    {"tasks": {"a": {"shell": "x", "after": NAME}}},
    {"tasks": {"a": {"shell": "x", "device": NAME}}},
    {"tasks": {"a": {"http": {"url": NAME}}}},
    {"tasks": {"a": {"shell": "x", "after": {"a": {"when": NAME}}}}},
    {"tasks": {"a": {"shell": "x", "timeout": NAME}}},
    {NAME: 1, "tasks": {"a": {"shell": "x"}}},
    {"policy": NAME, "tasks": {"a": {"shell": "x"}}},
    {"tasks": {"a": {"argv": ["x", "{" + NAME + "}"]}}},
    {"tasks": {"a": {"shell": "x", "inputs": {"b": {"secret": NAME}}}}},
    {"tasks": NAME},
    {"tasks": {"a": NAME}},
    {"asterism": NAME, "tasks": {"a": {"shell": "x"}}},
)


class HostileFleet(Scene):
    """A store in a folder with a hostile name, whose records hold hostile texts wherever they can."""

    def __init__(self, folder: Path) -> None:
        place = folder / FILE
        place.mkdir()
        super().__init__(place)
        self.env["HOSTILE_TEXT"] = NAME
        self.plan = self.file_of("plan.yaml", {**PLAN})
        self.mistakes = [
            self.file_of(f"mistake{number}.yaml", {"asterism": 1, **mistake}) for number, mistake in enumerate(MISTAKES)
        ]
        self.plans = Scene(place / "plans")  # a store of its own for constellations: here nobody else takes tasks
        self.plans.folder.mkdir()
        self.plans.env["HOSTILE_TEXT"] = NAME
        self.runs = self._fill()

    def file_of(self, name: str, content: Any) -> str:
        path = self.folder / f"{FILE}{name}"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return str(path)

    def _fill(self) -> dict[str, Run]:
        self.workflow("work", argv=("echo", NAME), description=NAME, env={"A": NAME})
        self.workflow("need", shell=NAME, needs=frozenset({NAME}), requires="false")
        run_input = {NAME: NAME}
        make = partial(self.create, "work", run_input)
        runs = {name: make() for name in ("completed", "failed", "running", "waiting", "paused", "cancel")}
        runs["completed"] = self.step(runs["completed"], taken_by("box"), started, completed(NAME))
        runs["failed"] = self.step(runs["failed"], taken_by("box"), started, failed(NAME))
        runs["running"] = self.step(runs["running"], taken_by("box"), started)
        self._fill_batches(run_input)
        self.run("limit", "set", "warehouse", "0")
        self.run("limit", "set", "spare", "0")
        self.workflow("load", shell=NAME, description=NAME, uses={"warehouse": 1})
        self.create("load", run_input)
        for name in ("box", LEGIBLE):
            self.device(name, host=LEGIBLE, can=frozenset({NAME}), profile={"os": NAME, NAME: NAME}, slots=3)
        runs["assigned"] = make()
        runs["needy"] = self.create("need", run_input)
        self.ask(lambda fleet: fleet.pause(runs["paused"].id, NAME))
        keeping(self.plans, "nightly", f"printf '%s' '{NAME}' >&2; exit 1")
        keeping(self.plans, "failed", f"printf '%s' '{NAME}' >&2; exit 1")
        keeping(self.plans, "weekly", f"printf '%s' '{NAME}'")
        keeping(self.plans, "standby", f"printf '%s' '{NAME}'")
        keeping(self.plans, "paused", f"printf '%s' '{NAME}'")
        keeping(self.plans, "edited", f"printf '%s' '{NAME}'")
        keeping(self.plans, "cancel", f"printf '%s' '{NAME}'")
        self.plans.ask(self._unreadable)
        self.plans.run("resume", "nightly", "--plain", "--local=1")
        self.plans.run("plan", "pause", "paused", "--reason", NAME)
        self.plans.run("plan", "edit", "weekly", "--add", json.dumps({"id": "more", "shell": "true"}), "--reason", NAME)
        self.run("fleet", "set", "--notify-command", NAME)
        self.run("schedule", "add", "daily", "--every", "1d", "--workflow", "work", "--input", json.dumps(run_input))
        self.run("schedule", "pause", "daily", "--reason", NAME)
        etl = self.file_of("etl.yaml", {**PLAN, "id": "etl"})
        self.run("schedule", "add", "etl", "--cron", "0 3 * * *", "--plan", etl)
        self.run("schedule", "backfill", "etl", "--from", "2026-01-01", "--to", "2026-01-03", "--detach")
        self.run("event", "send", "paid", "--data", json.dumps({NAME: NAME}))
        self.run("token", "create", "--scope", "observe", "--for", "ci")
        for issue in ("1", "2", "3"):
            self.run("series", "claim", "RFC-1", "--issue", issue, "--by", NAME)
        return runs

    def _fill_batches(self, run_input: dict[str, str]) -> None:
        """A batch with a hostile name that has ended, and one of which a run waits and one failed."""

        async def add(fleet: Fleet) -> str:  # no command takes such a name, but a record can have it
            run = new_run(fleet, await fleet.workflows.get("work", 1), run_input, batch=NAME)
            await fleet.store.commit([PutRun(run, None)])
            return run.id

        self.step(self.ask(add), taken_by("box"), started, completed(NAME))
        unlucky = self.step(self.ask(add), taken_by("box"), started, failed(NAME))
        self.create("work", run_input, batch="films")
        self.step(self.create("work", run_input, batch="films"), taken_by("box"), started, failed(NAME))

        async def write_log(fleet: Fleet) -> None:
            chunk = StoredChunk(1, 1, 1, [[fleet.store.clock(), "stderr", NAME]])
            await fleet.store.commit([PutLog(unlucky.id, 1, [chunk])])

        self.ask(write_log)

    async def _unreadable(self, fleet: Fleet) -> None:
        await fleet.store.commit([PutRegister("constellation/broken", {"schema": NAME, NAME: NAME}, None)])


@dataclass(frozen=True)
class Case:
    """One call of a command. ``quiet`` says why its output holds nothing hostile; ``until`` is the text upon which a
    command that goes on for ever is interrupted."""

    words: tuple[str, ...]
    quiet: str = ""
    until: str | None = None
    live: bool = False
    json: bool = True
    data: bool = False  # it has lines of its own, which somebody asked for


def case(*words: str, **options: Any) -> Case:
    return Case(words, **options)


def scenes(scene: HostileFleet) -> dict[str, list[Case]]:
    """What is asked of every command; ``--json`` is added where there is one."""
    run = {name: stored.id for name, stored in scene.runs.items()}
    store, memory = ("--store", scene.plans.url), ("--store", "memory:")
    backup = str(scene.folder / f"{FILE}backup")
    by = ("--by", NAME)
    return {
        "run": [
            case(scene.plan, *memory, live=True, json=False),
            case(scene.plan, *memory, "--plain"),
            case(scene.plan, *memory, "--plain", "--report", f"{scene.folder}/{FILE}.html"),
            case(scene.plan, *memory, "--report", f"{scene.folder}/absent{FILE}/x.html"),
            case(scene.plan, *memory, "--editor", NAME),
            case(scene.plan, *memory, "--lock-policy", NAME),
            case(scene.plan, "--plain", *store, "--no-local", "--id", NAME),
            case(scene.plan, *store, "--local=1", live=True),
            *(case(path, "--plain", *memory, "--no-device-timeout", "10ms", json=False) for path in scene.mistakes),
            case(NAME),
        ],
        "check": [
            *(case(path) for path in [scene.plan, *scene.mistakes, NAME]),
            case(scene.mistakes[2], "--imports"),
        ],
        "show": [
            case(scene.plan),
            case(scene.plan, "--mermaid", json=False),
            case(NAME),
            *(case(path, json=False) for path in scene.mistakes),
        ],
        "plan show": [case("nightly"), case(NAME)],
        "plan why": [case("nightly", "a", quiet="plain names"), case("nightly", NAME), case(NAME, "a")],
        "schema": [case(quiet="it is ours")],
        "plan list": [case()],
        "plan pause": [case("paused", "--reason", NAME), case(NAME)],
        "plan edit": [
            case("edited", "--remove", NAME),
            case("edited", "--add", json.dumps({"id": "x", "shell": NAME}), "--reason", NAME, quiet="ids alone"),
            case("edited", "--add", NAME, quiet="not repeated"),
            case("edited", "--edits", NAME),
            case(NAME, "--remove", "a"),
        ],
        "plan trust": [case("edited", "--reason", NAME, quiet="no taint"), case(NAME, "--reason", NAME)],
        "plan undo": [case("edited", quiet="ids alone"), case(NAME)],
        "plan resume": [
            case("failed", live=True),
            case(NAME),
            case("weekly", "--plain", quiet="results are not shown"),
            case("nightly", "--editor", NAME),
        ],
        "plan retry": [case("nightly", "--plain"), case("nightly", "--from", NAME), case(NAME)],
        "plan files": [case("nightly", quiet="it has none"), case(NAME)],
        "plan get": [case("nightly", NAME, "x", "--output", "got"), case(NAME, "a", "x", "--output", "got")],
        "plan logs": [case("nightly"), case("nightly", NAME), case(NAME)],
        "resume": [case(NAME)],
        "plan standby": [case("standby", live=True, quiet="results are not shown"), case(NAME)],
        "plan story": [
            case("nightly"),
            case("nightly", NAME),
            case(NAME),
            case("weekly", "build", quiet="no texts"),
        ],
        "plan cancel": [case("cancel", "--reason", NAME), case(NAME)],
        "plan remove": [case(NAME)],
        "plan history": [case("weekly"), case("weekly", "1", quiet="plain names"), case(NAME)],
        "plan watch": [case("nightly", "--plain"), case(NAME)],
        "plan cycles": [case("nightly", quiet="there are none"), case(NAME)],
        "plan claim": [case(NAME, "1", "--by", NAME), case("nightly", NAME)],
        "plan release-cycle": [case(NAME, "1", "--reason", NAME), case("nightly", "1")],
        "plan answer": [case(NAME, "1"), case("nightly", "1", "--edits", NAME)],
        "plan approvals": [case("nightly", quiet="there are none"), case(NAME)],
        "plan approve": [case(NAME, "1"), case("nightly", "1", "--edits", NAME)],
        "plan refuse": [case(NAME, "1", "--reason", NAME), case("nightly", NAME)],
        "plan budget": [case("nightly", quiet="there is none"), case(NAME), case("nightly", "--raise", NAME)],
        "plan new": [case(NAME, "--model", NAME)],
        "plan ask": [case("nightly", NAME, "--model", NAME), case(NAME, NAME, "--model", NAME)],
        "mcp": [case("--scope", NAME)],
        "series claim": [
            case("RFC-1", "--issue", "4", *by),
            case(NAME, "--issue", "1"),
            case("RFC-1", "--issue", NAME),
        ],
        "series next": [case("RFC-1", *by), case(*by), case(NAME, "--by", NAME, "--dry-run")],
        "series status": [case("RFC-1"), case(), case(NAME)],
        "series front": [
            case("RFC-1", "--issue", "3", *by, quiet="numbers alone"),
            case(NAME, "--issue", "1", *by),
        ],
        "series history": [case("RFC-1"), case(NAME)],
        "series pause": [case("RFC-1", "--reason", NAME, *by, quiet="numbers alone"), case(NAME)],
        "series resume": [case("RFC-1", *by, quiet="numbers alone"), case(NAME)],
        "series promote": [case("RFC-1", *by, quiet="numbers alone"), case(NAME)],
        "series release": [
            case("RFC-1", "--issue", "2", *by, quiet="numbers alone"),
            case(NAME, "--issue", "1"),
        ],
        "series rebuild": [case("RFC-1", "--issue", "1", *by, quiet="numbers alone"), case(NAME, "--empty")],
        "series sync": [case("--github", NAME, "--assign", "ann"), case("--github", "a/b", "--assign", NAME)],
        "series serve": [
            case("--github", "a/b", "--assign", "ann", "--secret-file", NAME, quiet=""),
            case("--github", "a/b", "--assign", NAME),
        ],
        "workflow add": [
            case(NAME, "--argv", NAME),
            case("--file", NAME),
            case("fine", "--http", NAME),
            case("fine", "--requires", NAME, quiet="the parser names one letter"),
        ],
        "workflow list": [case()],
        "workflow show": [case("work"), case("need"), case(NAME)],
        "workflow remove": [case(NAME)],
        "device show": [case(NAME)],
        "device join": [
            case("worker", until="joined as", json=False),
            case(NAME),
            case("worker", "--accepts", NAME, quiet="the parser names one letter"),
            case("worker", "--device-policy", NAME),
            case("worker", "--label", f"a={NAME}", until="joined as"),
        ],
        "device list": [case()],
        "device scores": [case(run["needy"]), case("work"), case(NAME)],
        "device drain": [case(NAME), case("box", quiet="a plain name")],
        "device invite": [
            case("--name", NAME),
            case("--name", "x", "--server", NAME),
            case("--name", "x", "--tls-cert", NAME),
        ],
        "device revoke": [case(NAME)],
        "top": [case("--tab", NAME)],  # what it draws: test_top.py
        "serve": [
            case("--listen", NAME),
            case("--listen", "127.0.0.1:0", "--name", NAME),
            case("--listen", "127.0.0.1:0", until="login?code", json=False, quiet="an address"),
        ],
        "token create": [
            case("--scope", "observe", "--for", NAME),
            case("--scope", NAME, "--for", "ci"),
        ],
        "token list": [case(quiet="a token has a plain name")],
        "token revoke": [case(NAME)],
        "login": [case(NAME, json=False)],
        "logout": [case(NAME)],
        "whoami": [case("--store", NAME, quiet="a store is not named")],
        "token login": [case("--for", NAME, "--server", NAME), case("--scope", NAME)],
        "runs create": [
            case("work", "--input", json.dumps({NAME: NAME}), quiet="ids alone"),
            case(NAME),
            case("work", "--input", NAME, quiet="not repeated"),
            case("--file", NAME),
        ],
        "runs list": [case(), case("--workflow", NAME, quiet="there are none")],
        "runs show": [*(case(run_id) for run_id in run.values()), case(NAME)],
        "runs watch": [case(until=MARK, live=True, json=False)],
        "runs wait": [case(run["completed"], run["failed"]), case(NAME)],
        "runs output": [case(run["completed"], data=True), case(run["failed"]), case(NAME)],
        "runs logs": [case(run["completed"], quiet="it printed nothing"), case(NAME)],
        "runs move": [case(run["completed"], "--to", NAME), case(NAME, "--to", "box")],
        "event send": [
            case("paid", "--data", json.dumps({NAME: NAME}), quiet="its name alone"),
            case(NAME, quiet="the refusal does not repeat it"),
        ],
        "event list": [case(), case(NAME, quiet="there are none")],
        "batch list": [case()],
        "batch show": [case(NAME), case(f"no {NAME}")],
        "batch wait": [case(NAME), case(f"no {NAME}")],
        "batch cancel": [case("films", "--reason", NAME, quiet="numbers alone"), case(f"no {NAME}")],
        "batch retry": [case("films", "--reason", NAME, quiet="numbers alone"), case(f"no {NAME}")],
        "batch results": [case(NAME), case(NAME, "--csv", data=True, json=False), case(f"no {NAME}")],
        "limit set": [
            case(NAME, "1"),
            case("x", "--rate", NAME),
            case("warehouse", "9", "--reason", NAME, quiet="a number"),
        ],
        "limit list": [case(quiet="plain names")],
        "limit show": [case("warehouse"), case(NAME)],
        "limit remove": [case("spare", "--reason", NAME, quiet="its name alone"), case(NAME)],
        "notice list": [case(quiet="there are none"), case("--since", NAME)],
        "schedule add": [
            case(NAME, "--every", "1d", "--workflow", "work"),
            case("other", "--cron", NAME, "--workflow", "work"),
            case("other", "--cron", "0 3 * * *", "--timezone", NAME, "--workflow", "work"),
            case("other", "--every", "1d", "--plan", NAME),
            case("other", "--every", "1d", "--workflow", NAME),
        ],
        "schedule list": [case(quiet="plain names")],
        "schedule show": [case("daily"), case(NAME)],
        "schedule next": [case("daily", quiet="times alone"), case(NAME)],
        "schedule history": [case("daily", quiet="no ticks yet"), case(NAME)],
        "schedule ticks": [case("daily", quiet="no ticks yet"), case(NAME), case("daily", "--from", NAME)],
        "schedule pause": [case("daily", "--reason", NAME, quiet="its name alone"), case(NAME)],
        "schedule resume": [case("daily", quiet="its name alone"), case(NAME)],
        "schedule run": [case("daily", quiet="ids alone"), case(NAME)],
        "schedule backfill": [
            case("etl", "--cancel", "--reason", NAME),
            case(NAME, "--from", "2026-01-01"),
            case("etl", "--from", NAME),
            case("etl", "--from", "2026-01-01", "--every", NAME),
        ],
        "schedule remove": [case("daily", quiet="its name alone"), case(NAME)],
        "runs pause": [case(run["needy"], "--reason", NAME), case(NAME)],
        "runs resume": [case(run["needy"], quiet="ids alone"), case(NAME)],
        "runs retry": [case(run["failed"], quiet="ids alone"), case(NAME)],
        "runs cancel": [case(run["cancel"], quiet="ids alone"), case(NAME)],
        "runs prune": [case("--older-than", NAME), case(quiet="numbers alone")],
        "runs why": [*(case(run_id, quiet="not all have a text to tell") for run_id in run.values()), case(NAME)],
        "monitor": [case("watcher", until="watch", json=False, quiet="a plain name"), case(NAME)],
        "peer invite": [case(NAME), case("kitchen", "--url", NAME)],
        "peer accept": [case(NAME, quiet="it may hold a token")],
        "peer keep": [case(NAME)],
        "peer list": [case(quiet="there are none")],
        "peer remove": [case(NAME)],
        "peer sync": [case(NAME)],
        "peer serve": [
            case("--listen", NAME),
            case("--listen", "127.0.0.1:0", until="listening", json=False, quiet="an address"),
        ],
        "store backup": [case(backup), case(f"{scene.folder}/absent{FILE}/x")],
        "store check": [case(quiet="the name of the store has none left")],
        "store info": [case()],
        "store init": [case("--store", f"sqlite:///{scene.folder}/{FILE}.db")],
        "store restore": [case(backup), case(NAME)],
        "fleet set": [
            case("--notify-command", NAME),
            case("--notify-url", NAME),
            case("--weight", NAME),
            case("--keep", NAME),
        ],
        "fleet show": [case()],
        "audit list": [case(), case("--by", NAME, quiet="nobody of that name has done anything")],
        "audit export": [case(json=False)],
        "plugins": [case(quiet="they are ours")],
        "demo": [case("--report", f"{NAME}/report"), case("--report", FILE, live=True)],
        "fleet metrics": [case()],
        "completion": [case(NAME), case("zsh", quiet="a script of ours")],
    }


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, (*path, name))


COMMANDS = dict(leaves(commands))
OF_PLANS = ("resume", *(name for name in COMMANDS if name.startswith("plan ")))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> HostileFleet:
    return HostileFleet(tmp_path_factory.mktemp("hostile"))


def test_every_command_has_a_scene(fleet: HostileFleet) -> None:
    assert set(scenes(fleet)) == set(COMMANDS)


AT_ONCE = list(COMMANDS)[::4]
WITH_JSON = [name for name, command in COMMANDS.items() if any("--json" in option.opts for option in command.params)]


@pytest.mark.parametrize(
    ("name", "words", "part"),
    [
        *(pytest.param(name, [], slice(1), id=name) for name in AT_ONCE),
        *(
            pytest.param(name, [], slice(1), id=name, marks=pytest.mark.long)
            for name in COMMANDS
            if name not in AT_ONCE
        ),
        *(pytest.param(name, [], slice(1, None), id=f"{name} otherwise", marks=pytest.mark.long) for name in COMMANDS),
        *(
            pytest.param(name, ["--json"], slice(None), id=f"{name} --json", marks=pytest.mark.long)
            for name in WITH_JSON
        ),
    ],
)
def test_no_command_lets_text_act_on_the_terminal(
    name: str, words: list[str], part: slice, fleet: HostileFleet
) -> None:
    """In the order of the command line, in one store: what they change is theirs to change."""
    wrong = []
    for hostile_case in scenes(fleet).get(name, [])[part]:
        if words and not hostile_case.json:
            continue
        called = [*name.split(), *words, *hostile_case.words]
        told, code = in_terminal(fleet.plans if name in OF_PLANS else fleet, called, hostile_case.until)
        problems = acts(told, live=hostile_case.live, lines=hostile_case.data)
        if b"Traceback" in told or code == 70:
            problems.append("a traceback")
        if code == -signal.SIGKILL:
            problems.append("it did not end")
        if MARK.encode() not in told and not hostile_case.quiet and not words:
            problems.append("nothing hostile was shown: is the scene any good?")
        if problems:
            shown = [repr(word)[:60] for word in called]
            wrong.append("\n  ".join([f"{' '.join(shown)} ({code})", *problems, repr(told[-300:])]))
    assert not wrong, "\n\n".join(wrong)


# -- the three rules, one by one -----------------------------------------------------------------------------------


def test_without_the_streams_and_the_screen_text_would_act() -> None:
    """What each safeguard is there for: without it the same text goes through."""
    bare, cleaned = io.StringIO(), io.StringIO()
    bare.write(TEXT)
    CleanStream(cleaned).write(TEXT)
    assert acts(bare.getvalue().encode("utf-8", "replace"))
    assert acts(cleaned.getvalue().encode("utf-8"), lines=True) == []

    for console, safe in ((Console, False), (Screen, True)):
        told = io.StringIO()
        console(file=told, force_terminal=True, width=2000).print(Text(NAME, "bold"), soft_wrap=True)
        assert (acts(told.getvalue().encode(), lines=True) == []) is safe
        assert "\x1b[1m" in told.getvalue()  # styles of our own stay


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", None])
@given(
    document=st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
)
@example(document={TEXT: TEXT})
def test_json_is_lossless_and_does_nothing(encoding: str | None, document: Any) -> None:
    for indent in (None, 2):
        text = json_text(document, indent=indent, encoding=encoding)
        assert json.loads(text) == json.loads(json.dumps(document))
        assert all(character.isprintable() for character in text.replace("\n", ""))
        text.encode(encoding or "utf-8")


@given(st.text())
@example(TEXT)
def test_cleaning_keeps_every_character_in_its_place(text: str) -> None:
    for cleaned in (clean(text), clean_lines(text)):
        assert len(cleaned) == len(text)
        for before, after in zip(text, cleaned, strict=True):
            assert after == before or not before.isprintable()
            assert after.isprintable() or after in JOINERS or (after in "\n\t" and after == before)
    assert clean(clean(text)) == clean(text)
    assert "\n" not in clean(text)


def test_what_is_printed_beside_a_live_view_is_cleaned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich shows it above the picture, and would obey the sequences in it."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.StringIO())
    terminal = sys.stdout
    with clean_streams():
        screen = Screen(force_terminal=True, width=80)
        with screen.live() as live:
            live.update(Text(NAME, "bold"), refresh=True)
            print(NAME.replace("\n", " "), file=sys.stderr)
    assert isinstance(terminal, io.StringIO)
    assert MARK in terminal.getvalue()
    assert acts(terminal.getvalue().encode(), live=True, lines=True) == []


def test_a_line_break_from_outside_forges_no_line_of_an_error() -> None:
    ours = f"the edit was rejected for 1 reason:\n  - it has the name {NAME}"
    assert [line[:9] for line in clean_error(ours).split("\n")] == ["the edit ", "  - it ha"]


def test_a_result_is_cleaned_only_for_a_terminal(fleet: HostileFleet) -> None:
    words = ["runs", "output", fleet.runs["completed"].id]
    shown, _ = in_terminal(fleet, words, None)
    assert acts(shown, lines=True) == []
    environment = {**os.environ, **fleet.env}
    piped = subprocess.run([*ASTERISM, *words], capture_output=True, env=environment, timeout=PATIENCE, check=True)
    assert piped.stdout.decode() == f"{NAME}\n"


def test_a_traceback_of_our_own_is_cleaned() -> None:
    fail = f"def fail():\n  raise RuntimeError({NAME!r})\n"
    script = f"from asterism.cli import main\n{fail}main.commands.execute = fail\nmain.main()"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=PATIENCE, check=False)
    assert b"RuntimeError" in told.stderr
    assert acts(told.stderr, lines=True) == []
