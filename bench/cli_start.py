"""Processor time of short commands, as a multiple of the start of Python with click, sqlite3 and asyncio.

Commands at a server are compared with a bare request of httpx to the same server.

``python -m bench.cli_start`` measures the commands of this environment; ``--before PATH`` also those of another
checkout, which has an environment of its own (``.venv``). Every round starts every command once, and the figures are
the least of all rounds: what disturbs a process only makes it slower. The bytecode is compiled first, as ``make`` does
it: otherwise every start would compile the modules anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.child_process import child_process, first_line
from bench.page import met, table, time_text
from bench.peers.surroundings import scratch
from bench.time_limit import time_limit

ROUNDS = 31
PATIENCE = 60.0
"""Seconds that one command may take."""

BASE = ("-c", "import click, sqlite3, asyncio")
TASKS = 20
RUNS = 20
CREATE = ("runs", "create", "echo", "--input", '{"text": "hello"}')

COMMANDS: dict[str, tuple[float, tuple[str, ...]]] = {
    "runs create": (3.0, CREATE),
    "runs list": (3.0, ("runs", "list")),
    "series claim": (3.0, ("series", "claim", "series-{round}", "--issue", "1")),
    "plan list": (3.0, ("plan", "list")),
    f"check, {TASKS} tasks": (4.0, ("check", "plan.yaml")),
}
"""By name: the multiple of the base that it may take, and its arguments. Each round claims a series of its own."""

REMOTE: dict[str, tuple[float, tuple[str, ...]]] = {
    "runs list, server": (3.0, ("runs", "list")),
    "runs create, server": (3.0, CREATE),
    "series claim, server": (3.0, ("series", "claim", "remote-{round}", "--issue", "1")),
}
"""The same at a server: the multiple of a bare request."""

REQUEST = """
import httpx, os
head = {"authorization": "Bearer " + os.environ["ASTERISM_TOKEN"]}
httpx.get(os.environ["ASTERISM_STORE"] + "/api/v1/runs", headers=head).raise_for_status().json()
"""


@dataclass(frozen=True)
class Start:
    """The processor time of a command and of the base, in seconds."""

    name: str
    bar: float
    base: float
    seconds: float
    before: float | None = None

    @property
    def ratio(self) -> float:
        return self.seconds / self.base


@dataclass(frozen=True)
class Effects:
    """The number of runs, the series that are claimed, and the states of the plans."""

    runs: int
    claimed: set[str]
    plans: list[str]

    def check(self, rounds: int) -> None:
        """Raise AssertionError unless these are the effects of so many rounds, here and at the server."""
        series = {f"{place}-{number}" for place in ("series", "remote") for number in range(rounds)}
        assert self.runs == RUNS + 2 * rounds, f"there are {self.runs} runs, not {RUNS + 2 * rounds}"
        assert self.claimed == series, f"these series are not claimed, or should not be: {self.claimed ^ series}"
        assert self.plans == ["completed"], f"not one completed plan: {self.plans}"


class Checkout:
    """The commands of one environment, with a store of their own: an older checkout cannot open the store of a newer
    one."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder
        folder.mkdir()
        self.environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(folder),
            "ASTERISM_STORE": f"sqlite:///{folder / 'fleet.db'}",
            "LC_ALL": "C.UTF-8",
        }

    def prepare(self) -> None:
        """Compile the bytecode, whatever PYTHONDONTWRITEBYTECODE says; write a plan file; fill the store."""
        names = ("asterism", "click", "rich", "yaml", "pydantic", "pydantic_core", "httpx")
        places = f"import {', '.join(names)}; print({', '.join(f'{name}.__path__[0]' for name in names)}, sep='\\n')"
        printed = subprocess.run([self.python, "-c", places], capture_output=True, text=True, check=True)
        subprocess.run([self.python, "-m", "compileall", "-qq", *printed.stdout.splitlines()], check=True)
        plan = ["asterism: 1", "id: nightly", "tasks:"]
        for number in range(TASKS):
            after = f", after: [task-{number - 1}]" if number else ""
            plan.append(f"  task-{number}: {{argv: [echo, '{number}'], timeout: 5m{after}}}")
        (self.folder / "plan.yaml").write_text("\n".join(plan) + "\n", encoding="utf-8")
        store = self.environment["ASTERISM_STORE"]
        for words in [("workflow", "add", "echo", "--shell", "echo {text}"), *[CREATE] * RUNS]:
            self.command(words)
        self.command(("run", "plan.yaml", "--store", store))

    def command(self, words: Sequence[str], **environment: str) -> float:
        """The processor time of a command."""
        return processor_time([self.program, *words], self.folder, {**self.environment, **environment})

    @property
    def program(self) -> str:
        return str(self.python.with_name("asterism"))

    @contextlib.contextmanager
    def server(self) -> Iterator[dict[str, str]]:
        """A server of the store; yields the environment in which commands reach it."""
        create = [self.program, "token", "create", "--scope", "admin", "--for", "bench"]
        place: Any = {"cwd": self.folder, "env": self.environment}
        token = subprocess.run(create, capture_output=True, check=True, text=True, **place).stdout.strip()
        serve = [self.program, "serve", "--listen", "127.0.0.1:0", "--no-login", "--json"]
        with child_process(serve, terminate=True, **place) as process:
            yield {"ASTERISM_STORE": json.loads(first_line(process))["url"], "ASTERISM_TOKEN": token}

    def effects(self) -> Effects:
        """What there is after all commands: each had its effect, or it was not measured."""
        runs = self.printed("runs", "list", "--workflow", "echo", "--limit", "1000")
        series = self.printed("series", "status")["series"]
        claimed = {state["series"] for state in series if state["active_issue"] == 1}
        return Effects(len(runs), claimed, [plan["state"] for plan in self.printed("plan", "list")])

    def printed(self, *words: str) -> Any:
        """The JSON that a command prints."""
        place: Any = {"cwd": self.folder, "env": self.environment, "timeout": PATIENCE}
        return json.loads(
            subprocess.run([self.program, *words, "--json"], capture_output=True, check=True, **place).stdout
        )


def measure(rounds: int = ROUNDS, before: Path | None = None) -> list[Start]:
    """Measure all commands of this environment, and with ``before`` those of another checkout."""
    with scratch() as folder:
        checkouts = [Checkout(Path(sys.executable), folder / "now")]
        if before is not None:
            checkouts.append(Checkout(before.absolute() / ".venv" / "bin" / "python", folder / "before"))
        for checkout in checkouts:
            checkout.prepare()
        base: list[float] = []
        times: dict[tuple[int, str], list[float]] = {(n, name): [] for n in range(len(checkouts)) for name in COMMANDS}
        for number in range(rounds):
            base.append(processor_time([sys.executable, *BASE], folder, checkouts[0].environment))
            for (which, name), durations in times.items():
                words = [word.replace("{round}", str(number)) for word in COMMANDS[name][1]]
                durations.append(checkouts[which].command(words))
        remote = measure_remote(rounds, checkouts[0])
        checkouts[0].effects().check(rounds)
    least = {place: min(found) for place, found in times.items()}
    local = [Start(name, bar, min(base), least[0, name], least.get((1, name))) for name, (bar, _) in COMMANDS.items()]
    return [*local, *remote]


def measure_remote(rounds: int, checkout: Checkout) -> list[Start]:
    """Measure the commands at a server."""
    base: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in REMOTE}
    with checkout.server() as environment:
        for number in range(rounds):
            reach = {**checkout.environment, **environment}
            base.append(processor_time([sys.executable, "-c", REQUEST], checkout.folder, reach))
            for name, (_, words) in REMOTE.items():
                words_now = [word.replace("{round}", str(number)) for word in words]
                times[name].append(checkout.command(words_now, **environment))
    return [Start(name, bar, min(base), min(times[name])) for name, (bar, _) in REMOTE.items()]


def processor_time(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> float:
    """The user and system time of a process, in seconds. Raises RuntimeError if it fails."""
    with (
        tempfile.TemporaryFile() as printed,
        subprocess.Popen(words, cwd=folder, env=dict(environment), stdout=printed, stderr=printed) as process,
    ):
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:  # the time limit
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            printed.seek(0)
            raise RuntimeError(f"{' '.join(words)} exits with {process.returncode}:\n{printed.read().decode()}")
    return used.ru_utime + used.ru_stime


def page(starts: Sequence[Start]) -> str:
    """The table of all commands."""
    text = f"""## Start of the command line

Processor time (user and system) of whole commands on a SQLite store with {RUNS} runs, beside
`python -c "{BASE[1]}"`, which takes {time_text(starts[0].base)}; at a server, beside one request of httpx, which takes
{time_text(starts[-1].base)}. The least of processes that were started by turns, with compiled bytecode.

"""
    earlier = any(start.before is not None for start in starts)
    rows = []
    for start in starts:
        old = (_against_base(start.before, start.base),) if start.before is not None else ()
        rows.append((start.name, *old, _against_base(start.seconds, start.base), f"{start.bar:g}×", _bar(start)))
    head = ("command", *(("before",) if earlier else ()), "time", "bar", "")
    return text + table(head, rows)


def _against_base(seconds: float, base: float) -> str:
    return f"{time_text(seconds)} ({seconds / base:.2f}×)"


def _bar(start: Start) -> str:
    return met(start.ratio, start.bar)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cli_start", description="Measure the processor time of short commands."
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often to start each command ({ROUNDS})")
    parser.add_argument("--before", type=Path, metavar="PATH", help="a checkout of an older commit, with a .venv")
    options = parser.parse_args(arguments)
    with time_limit(parser.prog):
        starts = measure(options.rounds, options.before)
    print(page(starts))
    return 0 if all(start.ratio <= start.bar for start in starts) else 1


if __name__ == "__main__":
    sys.exit(main())
