"""``asterism plan approvals``, ``approve`` and ``refuse``: a person decides about edits that wait."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from asterism.api.system import LocalSystem
from asterism.cli.top import read_listing
from asterism.core.errors import AsterismError
from asterism.durable import plan_actor
from asterism.durable.approval_store import list_approvals
from asterism.durable.journal_store import load, read_head
from asterism.durable.plan_actor import approve_edit
from asterism.fleet.fleet import Fleet
from asterism.gateway.enrolment import invite
from asterism.store.protocol import PutRegister
from tests.cli.cli_scenes import write
from tests.cli.command_scenes import Scene
from tests.cli.stored_plan_scenes import keeping
from tests.cli.test_live_edit_kills import STANDBY, running, until_asked
from tests.process_scenes import PATIENCE, soon

RULES = {"approvals": {"rules": [{"edits": ["remove_task"]}, {"tasks": ["deploy-*"]}], "timeout": 86_400.0}}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIN", "hunter2")
    scene = keeping(Scene(tmp_path))

    async def rule(fleet: Fleet) -> None:
        head = await fleet.store.register("plan/nightly")
        assert head is not None
        head_terms = {**head.value["terms"], **RULES}
        await fleet.store.commit([PutRegister(head.key, {**head.value, "terms": head_terms}, head.revision)])

    scene.ask(rule)
    return scene


def submit(scene: Scene, *words: str) -> str:
    result = scene.run("plan", "edit", "nightly", *words, "--store", scene.url)
    assert result.exit_code == 3, result.output
    return result.stdout


def test_an_edit_waits_is_listed_and_approved(scene: Scene) -> None:
    assert "Nothing in plan 'nightly' waits" in scene.run("plan", "approvals", "nightly").stderr
    assert submit(scene, "--remove", "test", "--reason", "slow").splitlines() == [
        "remove task 'test'",
        "The edit waits for a person: approval 1.",
        f"Approve it with: asterism plan approve nightly 1 --store {scene.url}",
    ]
    assert scene.ok("plan", "show", "nightly").splitlines()[-1] == (
        "1 approval waits for a person; list with: asterism plan approvals nightly"
    )
    assert ", 1 approval waits " in scene.ok("plan", "list")
    assert scene.json("plan", "list")[0]["waiting_edits"] == 1
    lines = scene.ok("plan", "approvals", "nightly").splitlines()
    assert lines[0].startswith("approval 1: edit by ann: slow, waits for ")
    assert lines[1] == "    remove task 'test'"
    assert lines[2] == "    waits because of: remove task 'test' (edits=remove_task)"
    assert lines[3].startswith("    refused in ")
    assert lines[3].endswith("; holds test")
    assert lines[4:] == [
        "Decide with: asterism plan approve nightly 1",
        "         or: asterism plan refuse nightly 1 [--reason …]",
    ]
    done = scene.ok("plan", "approve", "nightly", "1", "--by", "bob")
    assert done == "remove task 'test'\nPlan 'nightly' changed: version 0 -> 1.\n"
    assert scene.ok("plan", "approvals", "nightly", "--all").splitlines()[0] == (
        "approval 1: edit by ann: slow, approved by bob"
    )
    again = scene.run("plan", "approve", "nightly", "1")
    assert (again.exit_code, "nothing waits for approval 1" in again.stderr) == (64, True)
    assert "edit approved" in scene.ok("plan", "story", "nightly")


def test_the_work_of_each_edit_is_shown_to_the_person_who_decides(scene: Scene) -> None:
    """Also after many edits, and with characters that a terminal hides."""
    scene.ask(lambda fleet: invite(fleet.store, name="prod-*"))
    many = [{"op": "add_task", "task": {"id": f"deploy-{number}", "argv": ["true"]}} for number in range(12)]
    hidden = {"id": "deploy-last", "shell": "true # \nrm -rf ~", "device": "prod-1"}
    edits = [
        *many,
        {"op": "add_task", "task": hidden},
        {"op": "update_task", "task_id": "test", "changes": {"shell": "rm -rf ~", "timeout": 5}},
        {"op": "update_task", "task_id": "deploy-last", "changes": {"device": "prod-2"}},
        {"op": "update_dependency", "source": "build", "target": "test", "on": "completion"},
    ]
    Path("edits.json").write_text(json.dumps({"edits": edits}))
    submit(scene, "--edits", "edits.json")
    lines = scene.ok("plan", "approvals", "nightly").splitlines()
    assert [line for line in lines if "argv" in line] == ['        argv: ["true"]'] * 12
    at = lines.index("    add task 'deploy-last'")
    assert lines[at : at + 9] == [
        "    add task 'deploy-last'",
        '        shell: "true # \\nrm -rf ~"',
        "        device: prod-1",
        "    update task 'test': shell, timeout",
        "        shell: echo 2 -> rm -rf ~",
        "        timeout: null -> 5",
        "    update task 'deploy-last': device",
        "        device: prod-1 -> prod-2",
        "    update dependency 'build' -> 'test' on completion (before: add dependency 'build' -> 'test' on success)",
    ]
    assert "    waits because of: add task 'deploy-last' (tasks=deploy-*)" in lines
    scene.ok("plan", "refuse", "nightly", "1")
    assert "        shell: rm -rf ~" in scene.ok("plan", "approvals", "nightly", "--all").splitlines()


def test_top_says_that_an_edit_waits(scene: Scene) -> None:
    submit(scene, "--remove", "test")

    async def look(fleet: Fleet) -> None:
        ((_, cells),) = (await read_listing(LocalSystem(fleet), "plans")).rows
        assert str(cells[1]).endswith(", 1 approval waits")

    scene.ask(look)


def test_an_edit_is_refused_with_a_reason(scene: Scene) -> None:
    submit(scene, "--remove", "test")
    said = scene.ok("plan", "refuse", "nightly", "1", "--reason", "we need it")
    assert said == "The edit of approval 1 is refused; plan 'nightly' stays as it is.\n"
    (edit,) = scene.json("plan", "approvals", "nightly", "--all")
    assert (edit["state"], edit["why"]) == ("refused", "we need it")
    assert scene.json("plan", "approvals", "nightly") == []


def test_an_edit_is_approved_with_other_edits(scene: Scene) -> None:
    submit(scene, "--remove", "test")
    bad = scene.run("plan", "approve", "nightly", "1", "--remove", "nobody")
    assert (bad.exit_code, "there is no task 'nobody'" in bad.stderr) == (1, True)
    mail = json.dumps({"id": "deploy-mail", "shell": "true", "after": "test"})
    assert scene.json("plan", "approve", "nightly", "1", "--add", mail)["version"] == 1
    assert "deploy-mail" in scene.tasks("plan", "show", "nightly")


def test_rules_on_the_command_line(scene: Scene) -> None:
    path = write(scene.folder, "tasks: {a: {shell: 'true'}}\n", "plan.yaml")
    alone = scene.run("run", path, "--store", "memory:", "--approve", "all")
    assert (alone.exit_code, "--approve needs --store" in alone.stderr) == (64, True)
    wrong = scene.run("run", path, "--store", scene.url, "--approve", "edits=fly")
    assert (wrong.exit_code, "an approval rule: edits[0] must be" in wrong.stderr) == (64, True)
    scene.run(
        "run", path, "--store", scene.url, "--id", "weekly", "--approve", "destructive", "--approval-timeout", "1h"
    )
    head = scene.ask(lambda fleet: read_head(fleet.store, "weekly"))[0]
    assert head.terms["approvals"]["timeout"] == 3600.0
    assert head.terms["approvals"]["rules"] == [{"edits": ["remove_task", "cancel_task", "remove_dependency"]}]


@pytest.mark.long
def test_no_approval_is_lost_or_applied_twice(scene: Scene) -> None:
    """The owner is killed while a person approves. Each edit is applied once, or still waits."""
    scene.ask(lambda fleet: plan_actor.pause_plan(fleet, "nightly"))  # no task starts, and so the plan does not end
    epoch = 0
    for number in range(1, 9):
        submit(scene, "--add", json.dumps({"id": f"deploy-{number}", "shell": "true"}))
        with scene.process(*STANDBY) as owner:
            running(scene, owner, epoch)

            async def both(fleet: Fleet, owner: Popen[str] = owner, number: int = number) -> Any:
                asking = asyncio.create_task(approve_edit(fleet, "nightly", number))
                await until_asked(fleet, random.Random(number), asking)
                owner.kill()
                await asyncio.to_thread(owner.wait, PATIENCE)
                return (await asyncio.gather(asking, return_exceptions=True))[0]

            done = scene.ask(both)
            assert not isinstance(done, BaseException) or isinstance(done, AsterismError), done
        epoch = scene.ask(lambda fleet: read_head(fleet.store, "nightly"))[0].epoch
        edits = {
            approval.id: approval.state for approval in scene.ask(lambda fleet: list_approvals(fleet.store, "nightly"))
        }
        applied = f"deploy-{number}" in scene.ask(lambda fleet: load(fleet.store, "nightly")).plan
        assert (edits[number] == "approved") == applied == (not isinstance(done, BaseException))
    plan = scene.ask(lambda fleet: load(fleet.store, "nightly")).plan
    assert plan.version == sum(view.id.startswith("deploy-") for view in plan)


def test_a_dry_run_says_that_the_edit_would_wait_and_an_approval_has_a_reason(scene: Scene) -> None:
    dry = scene.ok("plan", "edit", "nightly", "--remove", "test", "--dry-run").splitlines()
    assert dry[-1] == "The edit would wait for a person: remove task 'test' (edits=remove_task)."
    assert "Nothing in plan 'nightly' waits" in scene.run("plan", "approvals", "nightly").stderr
    submit(scene, "--remove", "test")
    scene.ok("plan", "approve", "nightly", "1", "--reason", "fine by me")
    assert "fine by me" in scene.ok("plan", "approvals", "nightly", "--all")


RELEASE = """
id: release
tasks:
  build: {shell: 'echo built'}
  deploy:
    shell: 'echo deployed hunter2'
    env: {PIN: {secret: PIN}}
    inputs: {note: hunter2}
    after: build
    approval: {by: [ann, "release-*"], timeout: 4h, else: fail}
"""


def test_a_task_waits_for_approval_also_after_its_process_was_killed(scene: Scene) -> None:
    path = write(scene.folder, RELEASE, "release.yaml")
    alone = scene.run("run", path, "--store", "memory:")
    assert (alone.exit_code, "Task 'deploy' needs approval" in alone.stderr) == (64, True), alone.output
    with scene.process("run", path, "--store", scene.url, "--local") as owner:
        soon(lambda: "1 approval waits" in scene.ok("plan", "list"))
        owner.kill()
        owner.wait(PATIENCE)
    lines = scene.ok("plan", "approvals", "release").splitlines()
    assert lines[0].startswith("approval 1: start of task 'deploy', waits for ")
    assert lines[1:3] == ["    start task 'deploy'", "        shell: echo deployed [secret]"]
    assert '        inputs: {"note": "[secret]"}' in lines
    assert "hunter2" not in "".join(lines)
    assert "    waits because of: task 'deploy' waits for approval by ann or release-*" in lines
    assert any(line.startswith("    not approved in ") for line in lines)
    assert "it waits for approval 1 by ann or release-*" in scene.ok("plan", "why", "release", "deploy")
    other = scene.run("plan", "approve", "release", "1", "--by", "bob")
    assert (other.exit_code, "is decided by ann or release-*, and not by 'bob'" in other.stderr) == (64, True)
    said = scene.ok("plan", "approve", "release", "1", "--by", "release-bot", "--reason", "tested")
    assert said == "Approval 1 of plan 'release' is given: the task starts when a device is free.\n"
    again = scene.run("plan", "approve", "release", "1", "--by", "ann")
    assert (again.exit_code, "approval 1: it was approved already by release-bot" in again.stderr) == (64, True)
    scene.ok("resume", "release", "--store", scene.url, "--local", "--takeover-after", "2s")
    assert scene.json("plan", "show", "release")["state"] == "completed"


def test_a_task_that_may_not_start_says_who_refused(scene: Scene) -> None:
    path = write(scene.folder, RELEASE, "release.yaml")
    with scene.process("run", path, "--store", scene.url, "--local") as owner:
        soon(lambda: "1 approval waits" in scene.ok("plan", "list"))
        said = scene.ok("plan", "refuse", "release", "1", "--by", "ann", "--reason", "too late")
        assert said == "Task 'deploy' of plan 'release' does not start.\n"
        assert owner.wait(PATIENCE) == 2
    assert "the start was refused by ann: too late" in scene.ok("plan", "story", "release")
