"""Systems for commands: a SQLite file, PostgreSQL, and a server on a socket of this machine.

A ``Row`` is a command that is run on all three: it has the same effect, says the same, and ends with the same code.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from asterism.api.credentials import Credentials
from asterism.api.local import run_handlers  # noqa: F401 - an event loop would load them for long
from asterism.base.listen_address import ListenAddress
from asterism.durable.plan_runner import runs_plans
from asterism.fleet.fleet import Fleet
from asterism.server.http_service import http_service
from tests.cli.command_scenes import Scene, Value
from tests.process_scenes import PATIENCE

SYSTEMS = ("sqlite", "postgresql", "server")


class SystemScene(Scene):
    """``url`` is the store. Commands know the system by ``ASTERISM_STORE``, which is the store or its server."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        super().__init__(folder)
        self.url = url or self.url
        self.server: ServerThread | None = None
        self._fleet: Fleet | None = None
        self.env |= {"ASTERISM_STORE": self.url, "ASTERISM_TOKEN": "", "COLUMNS": "200"}

    @property
    def address(self) -> str:
        """Where the system is."""
        return self.env["ASTERISM_STORE"]

    def ask(self, question: Callable[[Fleet], Awaitable[Value]]) -> Value:
        return super().ask(question) if self._fleet is None else self._runner.run(_answer(question, self._fleet))

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Ask over the same connections each time: to connect to PostgreSQL takes longer than to ask."""
        with asyncio.Runner() as self._runner:
            self._fleet = self._runner.run(Fleet.open(self.url, by="ann"))
            try:
                yield
            finally:
                self._runner.run(self._fleet.close())
                self._fleet = None


async def _answer(question: Callable[[Fleet], Awaitable[Value]], fleet: Fleet) -> Value:
    return await question(fleet)


class ServerThread:
    """A server of a store. Commands of the test process have event loops of their own, so it runs in a thread."""

    def __init__(self, store: str, *, plans: bool = False) -> None:
        self._store, self.port, self.url, self.token = store, 0, "", ""
        self._plans = plans
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start it; again on the port that it had."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        self._thread.start()
        assert ready.wait(PATIENCE)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._leaving = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with (
                await Fleet.open(self._store, by="server") as fleet,
                http_service(fleet, ListenAddress("127.0.0.1", self.port)) as service,
                runs_plans(fleet) if self._plans else nullcontext() as runner,
            ):
                if runner is not None:
                    service.state.submitted = runner.wake
                self.url, self.port = service.url, int(service.url.rpartition(":")[2])
                self.token = self.token or await _token(fleet)
                ready.set()
                await self._leaving.wait()
        finally:
            ready.set()

    def stop(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._leaving.set)
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive()
            self._thread = None


async def _token(fleet: Fleet) -> str:
    return (await Credentials(fleet.store).create("ann", ["admin"], by="test")).token


@contextmanager
def system_scene(system: str, folder: Path, postgres_url: str, *, plans: bool = False) -> Iterator[SystemScene]:
    """The scene of one of ``SYSTEMS``, with an empty store. With ``plans`` the server runs plans."""
    folder.mkdir()
    scene = SystemScene(folder, postgres_url if system == "postgresql" else None)
    if system == "postgresql":
        with scene.kept_open():
            yield scene
        return
    scene.made()
    if system == "sqlite":
        yield scene
        return
    scene.server = ServerThread(scene.url, plans=plans)
    scene.server.start()
    scene.env |= {"ASTERISM_STORE": scene.server.url, "ASTERISM_TOKEN": scene.server.token}
    try:
        yield scene
    finally:
        scene.server.stop()


# -- rows --------------------------------------------------------------------------------------------------------------

Names = Mapping[str, str]


def nothing(scene: SystemScene) -> Names:
    return {}


@dataclass(frozen=True)
class Row:
    """``words`` is the command; names in braces are those that ``prepare`` returns. ``says`` is a part of what it
    prints. ``state`` reads a fact of the system afterwards, which is ``left``. ``stdin`` is its standard input.
    ``meanwhile`` is done by others while the command runs."""

    words: str
    says: str
    prepare: Callable[[SystemScene], Names] = nothing
    state: Callable[[SystemScene, Names], Any] = field(default=lambda scene, names: None)
    left: Any = None
    code: int = 0
    stdin: str | None = None
    meanwhile: Callable[[SystemScene, Names], None] | None = None

    def __str__(self) -> str:
        return re.sub(r"[^\w-]+", "-", self.words).strip("-")

    def run(self, scene: SystemScene) -> str:
        """Run it and check what it says and leaves. Returns what it said, with ids, times and addresses masked."""
        names = {"folder": str(scene.folder), **self.prepare(scene)}
        words = [word.format_map(names) if "{" in word else word for word in shlex.split(self.words)]
        others = threading.Thread(target=self.meanwhile, args=(scene, names)) if self.meanwhile is not None else None
        if others is not None:
            others.start()
        result = scene.run(*words, stdin=self.stdin)
        if others is not None:
            others.join()
        assert result.exit_code == self.code, result.output
        assert self.says.format_map(names) in result.output, result.output
        left = self.state(scene, names)
        assert left == self.left, left
        return masked(f"{result.stdout}\n---\n{result.stderr}", scene)


_MASKS = (
    (r"(\"(took|waited|rank|due_in|rate|time_left)\": )[\d.e-]+", r"\1TIME"),
    (r"(\"(makespan|lower_bound|critical_path|work|parallelism)\": )[\d.e-]+", r"\1TIME"),
    (r"(?m)^ +\d+\.\d\d  ", "TIME "),
    (r"\b\d+\.\d\d ×", "RATIO"),
    (r"-\d{8}-\d{4}(-\d+)?\b", "-START"),
    (r"(\"clock_ahead\": )-?[\d.e-]+", r"\1TIME"),
    (r"\b[0-9a-f]{24}\b", "RUN"),
    (r"\b[0-9a-f]{8}\b", "RUN"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"\b1\d{9}(\.\d+)?\b", "TIME"),
    (r"\b1\d{15}(\.\d+)?\b", "POSITION"),
    (r"\bast_[a-z2-7]{10}_[\w-]{43}", "TOKEN"),
    (r"(?m)(^|\brevoke |\bRevoked |\"id\": \")[a-z2-7]{10}\b", r"\1ID"),
    (r"\bcode=[\w-]+", "code=CODE"),
    (r"\bastc_[\w-]{32}", "CODE"),
    (r"\b(\d+ h )?\d+(\.\d+)? (ms|s|min)\b", "AGE"),
    (r"\b[\d.,]+ runs per \w+\b", "RATE"),
    (r"-{2,}|─+", "--"),
    (r" +", " "),
)


def masked(text: str, scene: SystemScene) -> str:
    for address in (scene.address, scene.url, str(scene.folder)):
        text = text.replace(shlex.quote(address), "ADDRESS").replace(address, "ADDRESS")
    for pattern, mask in _MASKS:
        text = re.sub(pattern, mask, text)
    return text


def rows_and_systems(rows: Iterable[Row], others: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """The parameters ``row`` and ``systems`` of a test: the first row of each command without PostgreSQL; with a mark,
    each row everywhere. A command without a verb has the name of a file instead, in braces."""
    commands: set[str] = set()
    parameters = []
    for row in rows:
        noun, *verb = row.words.split()[:2]
        command = " ".join((noun.removesuffix("s"), *(word for word in verb if not word.startswith("{"))))
        if command not in commands:
            parameters.append(pytest.param(row, ("sqlite", "server"), id=str(row)))
            commands.add(command)
        parameters.append(pytest.param(row, SYSTEMS, id=f"{row} everywhere", marks=others))
    return pytest.mark.parametrize(("row", "systems"), parameters)


def run_everywhere(row: Row, systems: Iterable[str], folder: Path, request: pytest.FixtureRequest) -> None:
    """Run a row on the systems. What it says is equal."""
    said = {}
    for system in systems:
        url = request.getfixturevalue("emptied_postgres_url") if system == "postgresql" else ""
        with system_scene(system, folder / system, url) as scene:
            said[system] = row.run(scene)
    assert set(said.values()) == {said["sqlite"]}, said
