"""Edits of a running plan while its processes, and those that ask for the edits, are killed."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from pathlib import Path

import pytest

from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.task import Task
from asterism.durable import plan_actor
from asterism.durable.journal_store import load, read_head
from asterism.durable.plan_actor import edit_plan, mailbox_prefix
from asterism.fleet.fleet import Fleet
from tests.cli.command_scenes import Scene
from tests.cli.stored_plan_scenes import keeping
from tests.process_scenes import PATIENCE, soon

pytestmark = pytest.mark.slow

STANDBY = ("plan", "standby", "nightly", "--plain", "--takeover-after", "3s")
"""Who asks for an edit waits that long after a kill, before it makes the edit itself."""
MOST_LOOKS = 30
"""How many times the store is read at most between a request and a kill, so that kills come at different moments."""


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    return Scene(tmp_path)


def running(scene: Scene, process: subprocess.Popen[str], epoch: int) -> bool:
    """Wait until this process owns the plan."""
    owned = soon(
        lambda: process.poll() is not None or scene.ask(lambda f: read_head(f.store, "nightly"))[0].epoch > epoch
    )
    assert process.poll() is None, process.communicate()
    return bool(owned)


async def until_asked(fleet: Fleet, chance: random.Random, done: asyncio.Task[object] | None = None) -> None:
    """Wait until a request is in the store or was answered, and then a little."""
    async with asyncio.timeout(PATIENCE):
        while done is None or not done.done():
            if await fleet.store.registers(mailbox_prefix("nightly")):
                break
        for _ in range(chance.randrange(MOST_LOOKS)):
            await fleet.store.registers(mailbox_prefix("nightly"))


def edit_while_the_owner_is_killed(scene: Scene, owner: subprocess.Popen[str], author: str, seed: int) -> None:
    async def both(fleet: Fleet) -> None:
        batch = EditBatch((AddTask(Task(author, shell="true")),), author)
        asking = asyncio.create_task(edit_plan(fleet, "nightly", batch))
        await until_asked(fleet, random.Random(seed), asking)
        owner.kill()
        await asyncio.to_thread(owner.wait, PATIENCE)
        await asking  # it is accepted in any case, by the owner or by this process

    scene.ask(both)


def kill_the_asking_process(scene: Scene, author: str, seed: int) -> None:
    batch = json.dumps({"edits": [{"op": "add_task", "task": {"id": author, "shell": "true"}}], "author": author})
    file = scene.folder / f"{author}.json"
    file.write_text(batch)
    with scene.process("plan", "edit", "nightly", "--file", str(file)) as asking:

        async def kill(fleet: Fleet) -> None:
            ended = asyncio.create_task(asyncio.to_thread(asking.wait, PATIENCE))
            await until_asked(fleet, random.Random(seed), ended)
            asking.kill()
            await ended

        scene.ask(kill)


@pytest.mark.long
def test_no_edit_is_lost_or_applied_twice(scene: Scene) -> None:
    keeping(scene)
    scene.ask(lambda fleet: plan_actor.pause_plan(fleet, "nightly"))  # no task starts, and so the plan does not end
    accepted, killed, epoch = [], [], 0
    for number in range(8):
        author = f"author{number}"
        with scene.process(*STANDBY) as owner:
            running(scene, owner, epoch)
            if number % 3 == 2:
                kill_the_asking_process(scene, author, number)
                killed.append(author)
            else:
                edit_while_the_owner_is_killed(scene, owner, author, number)
                accepted.append(author)
        epoch = scene.ask(lambda fleet: read_head(fleet.store, "nightly"))[0].epoch
    with scene.process(*STANDBY) as owner:  # applies what is left
        running(scene, owner, epoch)
        soon(lambda: not unanswered(scene))
    plan = scene.ask(lambda fleet: load(fleet.store, "nightly")).plan
    edits = [entry.why for entry in plan.story() if entry.what == "edited" and entry.task is None]
    times = {name: sum(f" by {name} (" in why for why in edits) for name in (*accepted, *killed)}
    assert {name: times[name] for name in accepted} == dict.fromkeys(accepted, 1)
    assert all(times[name] <= 1 for name in killed), times
    assert plan.version == sum(times.values())


def unanswered(scene: Scene) -> list[str]:
    requests = scene.ask(lambda fleet: fleet.store.registers(mailbox_prefix("nightly")))
    return [request.key for request in requests if "answer" not in request.value]
