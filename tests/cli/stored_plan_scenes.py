"""Plans in a store for tests of commands: not running, owned elsewhere, and with a gate."""

from __future__ import annotations

import json
import os
from typing import Any

from asterism.core.plan.journal import RecordedConstellation, RecordedLock
from asterism.core.plan.status import ConstellationState
from asterism.core.plan.task import Task
from asterism.core.run.session import Session
from asterism.durable.journal_store import head_key, insert
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import PutRegister, PutSession
from tests.cli.cli_scenes import write
from tests.cli.command_scenes import Scene


def keeping(scene: Scene, name: str = "nightly", build: str = "echo 1") -> Scene:
    """A store with a constellation that has not begun."""

    async def make(fleet: Fleet) -> None:
        plan = RecordedConstellation(name)
        plan.add(Task("build", shell=build))
        plan.add(Task("test", shell="echo 2"), after="build")
        plan.state = ConstellationState.READY
        lock_options: dict[str, Any] = {"policy": "scoped", "max_cycles": 4, "edit_timeout": 600.0}
        await insert(fleet.store, plan, RecordedLock(plan, **lock_options), lock_options)

    scene.ask(make)
    return scene


def owned(scene: Scene, name: str = "nightly") -> None:
    """As if an orchestrator on another machine ran it."""

    async def own(fleet: Fleet) -> None:
        now = fleet.store.clock()
        session = Session("session-other", f"{name}@elsewhere", now, host="elsewhere", beat_at=now, slots=1)
        register = await fleet.store.register(head_key(name))
        assert register is not None
        head = {**register.value, "owner": session.id, "device": session.device, "epoch": 1, "state": "executing"}
        await fleet.store.commit([PutSession(session, None), PutRegister(head_key(name), head, register.revision)])

    scene.ask(own)


class Trace:
    """A plan of three tasks, each of which writes a line. The second tells its process numbers and then waits at a
    gate; ``stubborn`` does not stop when it is asked to."""

    def __init__(self, scene: Scene, stubborn: bool = False) -> None:
        self.scene = scene
        self.log, self.pids, self.gate = (scene.folder / name for name in ("log", "pids", "gate"))
        os.mkfifo(self.pids)
        os.mkfifo(self.gate)
        trap = "trap '' TERM; " if stubborn else ""
        wait = f"while ! read word < {self.gate}; do :; done"
        lines = {"one": "", "two": f"{trap}echo $$ > {self.pids}; {wait}", "three": ""}
        tasks = {name: {"shell": f"{line or ':'}; echo {name} >> {self.log}"} for name, line in lines.items()}
        tasks["two"]["after"], tasks["three"]["after"] = "one", "two"
        self.path = write(scene.folder, f"tasks: {json.dumps(tasks)}\n", "nightly.yaml")
        self.words = ("run", self.path, "--store", scene.url, "--plain")

    def lines(self) -> list[str]:
        return self.log.read_text().split()

    def open(self) -> None:
        """Waits until the second task is there."""
        self.gate.write_text("go\n")
