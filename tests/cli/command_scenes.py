"""A fleet in a SQLite file, and commands on it, in the test process and in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from click.testing import CliRunner, Result

from asterism.api import documents
from asterism.api.local.run_handlers import run_document
from asterism.cli.main import commands
from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.session import Session
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import failure_notice
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRun, PutSession
from tests.forked_commands import ForkedCommand, Server
from tests.process_scenes import PATIENCE, alive

Value = TypeVar("Value")


RUN_FIELDS = {
    *(
        "id",
        "workflow",
        "version",
        "created_at",
        "created_by",
        "key",
        "series",
        "priority",
        "pinned",
        "retry_of",
        "uses",
    ),
    *(
        "heartbeat_timeout",
        "revision",
        "epoch",
        "device",
        "session",
        "assigned_by",
        "assigned_at",
        "claimed_at",
        "started_at",
    ),
    *("ended_at", "due_at", "waiting_since", "not_before", "held", "paused", "wish", "wished_by", "failures"),
    *("losses", "rounds", "error", "cancelled", "status", "assigned_to", "last_heartbeat_at"),
    *("assignment_expires_at", "claim_expires_at", "completed_at", "failed_at", "cancelled_at", "avoid", "declined"),
    *("previous_assignments", "scores", "progress", "input", "output", "story", "keep", "superseded", "label"),
    *("shown_label", "ended", "attempts", "took", "waited", "waiting", "held_for", "traceparent", "batch"),
}
"""The fields of a run as JSON, which programs count on."""


class Scene:
    """A store in a folder of its own. Commands that are run here know it by ``ASTERISM_STORE``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "fleet.db"
        self.url = f"sqlite:///{self.file}"
        self.env = {
            "ASTERISM_STORE": self.url,
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_DATA_HOME": str(folder / "data"),
            "USER": "ann",
            "LOGNAME": "ann",
        }

    # -- the command line --------------------------------------------------------------------------------------------

    def run(self, *words: str, stdin: str | bytes | None = None, **env: str) -> Result:
        """A command in this process; whatever it says, it is no traceback."""
        result = CliRunner().invoke(commands, words, input=stdin, env={**self.env, **env})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert "Traceback" not in result.output
        return result

    def ok(self, *words: str, **options: Any) -> str:
        """What a command that went well printed on standard output."""
        result = self.run(*words, **options)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *words: str, code: int = 0) -> Any:
        """The one JSON document that a command prints."""
        result = self.run(*words, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def tasks(self, *words: str) -> dict[str, Any]:
        """The tasks of the plan that a command prints as JSON, by id; ``after`` has what each depends on."""
        document = self.json(*words)
        tasks = {task["id"]: {**task, "after": {}} for task in document["tasks"]}
        for edge in document["dependencies"]:
            tasks[edge["target"]]["after"][edge["source"]] = edge["when"] or edge["on"]
        return tasks

    @contextmanager
    def process(self, *words: str, server: Server | None = None, **env: str) -> Iterator[subprocess.Popen[str]]:
        """A command as a process, from ``server``; whatever happens, it is gone afterwards."""
        around = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        process = ForkedCommand(
            [*words],
            server=server,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env={**around, **self.env, **env},
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    # -- the store ---------------------------------------------------------------------------------------------------

    def ask(self, question: Callable[[Fleet], Awaitable[Value]]) -> Value:
        async def main() -> Value:
            async with await Fleet.open(self.url, by="ann") as fleet:
                return await question(fleet)

        return asyncio.run(main())

    def made(self) -> Scene:
        """With a store in which nothing is."""

        async def nothing(fleet: Fleet) -> None: ...

        self.ask(nothing)
        return self

    def workflow(self, name: str = "work", **fields: Any) -> Workflow:
        fields = fields or {"argv": ("true",)}
        return self.ask(lambda fleet: fleet.workflows.add(Workflow(name, **fields)))

    def create(self, name: str = "work", run_input: dict[str, Any] | None = None, **options: Any) -> Run:
        return self.ask(lambda fleet: fleet.create(name, run_input, **options))

    def device(self, name: str, **fields: Any) -> Session:
        """A device that has joined and does nothing by itself."""

        return self.ask(lambda fleet: enter_device(fleet, name, **fields))

    def step(self, run: Run | str, *steps: Callable[[Run, float], Run]) -> Run:
        """What devices and coordinators do to a run, written as it is."""

        return self.ask(lambda fleet: write_steps(fleet, run if isinstance(run, str) else run.id, *steps))


def document_of(run: Run) -> documents.Run:
    """The document of a run that no store has."""

    async def describe() -> documents.Run:
        async with Fleet(MemoryStore()) as fleet:
            return await run_document(fleet, run)

    return asyncio.run(describe())


async def enter_device(fleet: Fleet, name: str, **fields: Any) -> Session:
    session = Session(f"session-{name}", name, fleet.store.clock(), **{"host": "there", **fields})
    await fleet.store.commit([PutSession(session, None)])
    return session


async def write_steps(fleet: Fleet, run_id: str, *steps: Callable[[Run, float], Run]) -> Run:
    before = await fleet.run(run_id)
    after = before
    for step in steps:
        after = step(after, fleet.store.clock())
        await fleet.store.commit([PutRun(after, before.revision), *failure_notice(after)])
        before = after
    return after


# -- steps -------------------------------------------------------------------------------------------------------------


def assigned_to(device: str) -> Callable[[Run, float], Run]:
    owner = Owner(device, f"session-{device}")
    return lambda run, now: transitions.assign(run, owner, by="laptop", now=now, scores={device: 90.0})


def taken_by(device: str) -> Callable[[Run, float], Run]:
    owner = Owner(device, f"session-{device}")
    return lambda run, now: transitions.take(run, owner, now)


def started(run: Run, now: float) -> Run:
    assert run.grant is not None
    return transitions.start(run, run.grant, now)


def completed(output: Any) -> Callable[[Run, float], Run]:
    def step(run: Run, now: float) -> Run:
        assert run.grant is not None
        return transitions.complete(run, run.grant, output, now)

    return step


def failed(error: str) -> Callable[[Run, float], Run]:
    def step(run: Run, now: float) -> Run:
        assert run.grant is not None
        return transitions.fail(run, run.grant, error, now)

    return step


def a_few(scene: Scene) -> list[Run]:
    """One that completed, one that failed, one under way, and one that waits for a device."""

    async def create(fleet: Fleet) -> list[Run]:
        await fleet.workflows.add(Workflow("work", argv=("true",)))
        await fleet.workflows.add(Workflow("play", shell="echo 1"))
        runs = [await create_later(fleet, name) for name in ("work", "play", "work")]
        await enter_device(fleet, "laptop")
        return [
            await write_steps(fleet, runs[0].id, taken_by("laptop"), started, completed({"n": 5})),
            await write_steps(fleet, runs[1].id, taken_by("laptop"), started, failed("no luck")),
            await write_steps(fleet, runs[2].id, taken_by("laptop"), started),
            await create_later(fleet, "play", series="s", device="desktop"),
        ]

    return scene.ask(create)


async def create_later(fleet: Fleet, workflow: str, **options: Any) -> Run:
    """A run after all others in lists: an id begins with its millisecond, so runs of one millisecond have no order."""
    millisecond = int(fleet.store.clock() * 1000)
    while int(fleet.store.clock() * 1000) <= millisecond:
        pass  # it is over in a millisecond
    return await fleet.create(workflow, **options)


# -- processes ---------------------------------------------------------------------------------------------------------


def pids_in(path: Path) -> list[int]:
    """The output of a command in a pipe; a read waits for it."""
    pids = [int(word) for word in path.read_text().split()]
    assert all(map(alive, pids))
    return pids


def until(scene: Scene, run_id: str, **wanted: Any) -> dict[str, Any]:
    """Wait until another process has changed some fields of a run, and return the run."""
    deadline = time.monotonic() + PATIENCE
    told: dict[str, Any] = {}
    while time.monotonic() < deadline:
        result = scene.run("runs", "show", run_id, "--json")
        told = json.loads(result.stdout) if result.exit_code == 0 else {}
        if all(told.get(name) == value for name, value in wanted.items()):
            return told
        time.sleep(0.05)  # each look costs as much as a command
    raise AssertionError(f"{wanted} never came; it is {told}")
