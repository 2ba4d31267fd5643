"""``asterism plan cycles``, ``claim`` and ``answer``: a person edits a plan that another process runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from asterism.core.errors import PlanError
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.task import Task
from asterism.durable import plan_actor
from asterism.durable.journal_store import load, read_head
from asterism.durable.plan_actor import answer_cycle
from asterism.fleet.fleet import Fleet
from tests.cli.cli_scenes import write
from tests.cli.command_scenes import Scene
from tests.cli.stored_plan_scenes import keeping
from tests.cli.test_live_edit_kills import STANDBY, running, until_asked
from tests.process_scenes import PATIENCE, soon


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    return Scene(tmp_path)


@contextmanager
def outside(scene: Scene, *words: str) -> Iterator[Popen[str]]:
    """A plan of two tasks whose first has ended, in a process with editors outside of it."""
    keeping(scene)
    with scene.process("resume", "nightly", "--editor", "outside", "--plain", *words) as owner:
        soon(lambda: scene.ask(lambda fleet: load(fleet.store, "nightly")).lock.cycles)
        yield owner


@pytest.mark.slow
def test_a_person_lists_claims_and_answers(scene: Scene) -> None:
    with outside(scene) as owner:
        lines = scene.ok("plan", "cycles", "nightly").splitlines()
        assert lines[0].startswith("cycle 1: reviews build, open for ")
        assert lines[1] == "    build completed"
        assert lines[2].startswith("    not claimed; closed in ")
        assert lines[3] == "Claim one to have more time: asterism plan claim nightly 1"
        assert lines[4] == "Answer one with: asterism plan answer nightly 1 [--add … --remove …]"
        assert scene.ok("plan", "show", "nightly").splitlines()[-1] == (
            "edit cycle 1 is open (reviews build); list with: asterism plan cycles nightly"
        )
        claimed = scene.ok("plan", "claim", "nightly", "1", "--by", "bob", "--lease", "5m")
        assert claimed.startswith("Cycle 1 of plan 'nightly' (reviews build) is claimed by bob for ")
        assert claimed.endswith("\nAnswer it with: asterism plan answer nightly 1 [--add … --remove …]\n")
        assert scene.json("plan", "cycles", "nightly")[0]["claimed_by"] == "bob"
        other = scene.run("plan", "answer", "nightly", "1", "--by", "eve", "--store", scene.url)
        assert (other.exit_code, "is claimed by 'bob', not by 'eve'" in other.stderr) == (64, True)
        bad = scene.run("plan", "answer", "nightly", "1", "--by", "bob", "--remove", "x", "--store", scene.url)
        assert (bad.exit_code, "there is no task 'x'" in bad.stderr) == (1, True)
        done = scene.ok("plan", "answer", "nightly", "1", "--by", "bob", "--remove", "test", "--reason", "enough")
        assert done.splitlines()[0] == "remove task 'test'"
        assert done.splitlines()[-1] == "Cycle 1 is closed."
        assert owner.wait(PATIENCE) == 0
    assert [version["author"] for version in scene.json("plan", "history", "nightly")["items"]] == ["", "bob"]


@pytest.mark.slow
def test_an_answer_without_edits_goes_on(scene: Scene) -> None:
    with outside(scene, "--edit-on", "all") as owner:
        assert scene.ok("plan", "answer", "nightly", "1") == "Cycle 1 of plan 'nightly' is closed without an edit.\n"
        soon(lambda: scene.ask(lambda fleet: load(fleet.store, "nightly")).lock.cycles)
        scene.ok("plan", "answer", "nightly", "2", "--json")
        assert owner.wait(PATIENCE) == 0


def test_nothing_to_answer(scene: Scene) -> None:
    keeping(scene)
    assert "Plan 'nightly' has no open edit cycle." in scene.run("plan", "cycles", "nightly").stderr
    assert scene.json("plan", "cycles", "nightly") == []
    refused = scene.run("plan", "answer", "nightly", "1")
    assert (refused.exit_code, "no process runs plan 'nightly'" in refused.stderr) == (64, True)


def test_the_editor_outside_needs_a_store(scene: Scene) -> None:
    path = write(scene.folder, "tasks: {a: {shell: 'true'}}\n", "plan.yaml")
    refused = scene.run("run", path, "--store", "memory:", "--editor", "outside")
    assert (refused.exit_code, "--editor outside needs --store" in refused.stderr) == (64, True)


@pytest.mark.long
def test_no_answer_is_lost_or_applied_twice(scene: Scene) -> None:
    """The owner is killed while it is asked. An answer that was accepted is in the plan once, and one that was not is
    not. Answers to a closed cycle are checked like any edit."""
    with outside(scene):
        scene.ask(lambda fleet: plan_actor.pause_plan(fleet, "nightly"))  # no task starts, and so the plan does not end
    accepted, refused, epoch = [], [], 1
    for number in range(12):
        author = f"author{number}"
        with scene.process(*STANDBY, "--editor", "outside") as owner:
            running(scene, owner, epoch)

            async def both(fleet: Fleet, owner: Popen[str] = owner, author: str = author, seed: int = number) -> None:
                import asyncio

                batch = EditBatch((AddTask(Task(author, shell="true")),), author)
                asking = asyncio.create_task(answer_cycle(fleet, "nightly", 1, batch, who=author))
                await until_asked(fleet, random.Random(seed), asking)
                owner.kill()
                await asyncio.to_thread(owner.wait, PATIENCE)
                try:
                    await asking
                    accepted.append(author)
                except PlanError:
                    refused.append(author)

            scene.ask(both)
        epoch = scene.ask(lambda fleet: read_head(fleet.store, "nightly"))[0].epoch
    plan = scene.ask(lambda fleet: load(fleet.store, "nightly")).plan
    edits = [entry.why for entry in plan.story() if entry.what == "edited" and entry.task is None]
    times = {name: sum(f" by {name} (" in why for why in edits) for name in (*accepted, *refused)}
    assert times == {**dict.fromkeys(accepted, 1), **dict.fromkeys(refused, 0)}
