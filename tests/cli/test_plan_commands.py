"""Plans in a store on the command line, while no process runs them: list, show, edit, pause, resume, cancel."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asterism.api.client_errors import ApiError
from asterism.api.system import System
from asterism.cli.plan.plan_watch import origin_of
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.core.run.session import ENDED
from asterism.durable.journal_store import head_key, insert_plan, load, record_key
from asterism.durable.stored_plans import unreadable_plans
from asterism.fleet.fleet import Fleet
from asterism.report.result_report import PlanOrigin
from asterism.store.protocol import PutRegister, PutSession, Register
from asterism.store.store_errors import StoreBusy
from tests.cli.cli_scenes import read_until, write
from tests.cli.command_scenes import Scene
from tests.cli.stored_plan_scenes import keeping, owned
from tests.process_scenes import soon

PLAN = "tasks:\n  build: {shell: echo 1}\n  test: {shell: echo 2, after: build}\n"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)  # where tasks leave their traces
    return Scene(tmp_path)


# -- at rest: looking --------------------------------------------------------------------------------------------------


def test_a_store_without_plans_says_how_to_start_one(scene: Scene) -> None:
    result = scene.made().run("plan", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "The store has no plans. Start one with: asterism run PLAN.YAML --store" in result.stderr
    assert scene.json("plan", "list") == []


def test_the_list_tells_state_tasks_owner_and_pause(scene: Scene) -> None:
    keeping(keeping(scene), "weekly")
    scene.ok("resume", "weekly")
    scene.ok("plan", "pause", "nightly", "--reason", "lunch")
    owned(scene)
    titles, first, second = scene.ok("plan", "list").splitlines()
    assert titles.split() == ["NAME", "STATE", "TASKS", "OWNER", "HEARD", "PAUSED"]
    assert first.split()[:4] == ["nightly", "ready", "0/2", "nightly@elsewhere"]
    assert first.endswith("by ann: lunch")
    assert second.split() == ["weekly", "completed", "2/2"]
    nightly, weekly = scene.json("plan", "list")
    assert (nightly["owner"], nightly["paused"], nightly["done"]) == ("nightly@elsewhere", "by ann: lunch", 0)
    assert (weekly["state"], weekly["owner"], weekly["counts"]) == ("completed", None, {"completed": 2})


def test_one_that_cannot_be_read_does_not_hide_the_others(scene: Scene) -> None:
    keeping(keeping(scene), "broken")

    async def spoil(fleet: Fleet) -> None:
        head = await fleet.store.register(head_key("broken"))
        assert head is not None
        await fleet.store.commit([PutRegister(record_key("broken", head.value["first"]), None, 1)])
        await fleet.store.commit([PutRegister(head.key, head.value, head.revision)])  # forgets the summary

    scene.ask(spoil)
    lines = scene.ok("plan", "list").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["nightly", "ready"], ["broken", "unreadable"]]
    assert scene.json("plan", "list")[1]["error"].endswith(", the first of the journal of plan 'broken', is missing")
    assert scene.run("plan", "show", "broken", "--store", scene.url).exit_code == 64
    result = scene.run("store", "check")
    assert result.exit_code == 64
    missing = r"record \d+, the first of the journal of plan 'broken', is missing"
    assert re.match(f"plan broken cannot be read: {missing}\n", result.stdout), result.stdout
    assert len(scene.json("store", "check", code=64)["problems"]) == 1


@pytest.mark.parametrize("spoilt", [{"text": "{}"}, {"text": "[]"}, {"of": "many"}])
def test_one_whose_snapshot_is_no_snapshot_is_a_finding_and_no_accident(scene: Scene, spoilt: dict[str, str]) -> None:
    keeping(keeping(scene), "broken")

    async def spoil(fleet: Fleet) -> None:
        [record] = await fleet.store.registers("journal/broken/")
        await fleet.store.commit([PutRegister(record.key, {**record.value, **spoilt}, record.revision)])

    scene.ask(spoil)
    [problem] = scene.json("store", "check", code=64)["problems"]
    assert problem.startswith("plan broken cannot be read: the journal of plan 'broken' is damaged: ")
    assert [plan["name"] for plan in scene.json("plan", "list")] == ["nightly", "broken"]


def test_one_of_a_later_version_keeps_no_other_from_going_on(scene: Scene) -> None:
    keeping(keeping(scene), "newer")

    async def renew(fleet: Fleet) -> None:
        head = await fleet.store.register(head_key("newer"))
        assert head is not None
        await fleet.store.commit([PutRegister(head.key, {**head.value, "schema": 99}, head.revision)])

    scene.ask(renew)
    scene.ok("resume", "nightly")
    assert "was written by another version of Asterism: its schema is 99" in scene.run("resume", "newer").stderr


def test_a_store_that_is_away_and_a_constellation_that_was_just_forgotten_are_no_damage(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(fleet: Fleet) -> None:
        registers = fleet.store.registers

        async def busy(prefix: str) -> list[Register]:
            if prefix != head_key(""):
                raise StoreBusy("it is locked")
            return await registers(prefix)

        async def forgotten(prefix: str) -> list[Register]:
            removed = await registers(prefix)
            await fleet.store.commit([PutRegister(register.key, None, register.revision) for register in removed])
            return removed

        monkeypatch.setattr(fleet.store, "registers", busy)
        with pytest.raises(StoreBusy):
            await unreadable_plans(fleet)
        monkeypatch.setattr(fleet.store, "registers", forgotten)
        assert await unreadable_plans(fleet) == []

    keeping(scene).ask(look)


@pytest.mark.parametrize(
    "words",
    [
        *(["resume"], ["standby"], ["pause"], ["cancel"], ["show"], ["story"]),
        *(["why", "build"], ["edit", "--remove", "build"]),
    ],
    ids=" ".join,
)
def test_an_unknown_plan_is_reported_with_the_plans_that_exist(scene: Scene, words: list[str]) -> None:
    missing = scene.run("plan", words[0], "nope", *words[1:])
    assert (missing.exit_code, scene.file.exists()) == (69, False)
    empty = scene.made().run("plan", words[0], "nope", *words[1:])
    assert empty.exit_code == 64
    assert "there is no plan 'nope' in " in empty.stderr
    result = keeping(scene).run("plan", words[0], "nope", *words[1:])
    assert (result.exit_code, result.stdout) == (64, "")
    assert result.stderr.rstrip().endswith(". The plans are: nightly")


def test_show_draws_a_plan_with_its_states(scene: Scene) -> None:
    keeping(scene, build="exit 3")
    assert "  ◌ test  waiting  echo 2" in scene.ok("plan", "show", "nightly")
    assert scene.run("resume", "nightly").exit_code == 1
    told = scene.ok("plan", "show", "nightly", "--store", scene.url)
    assert "✗ build   failed     exit 3" in told
    assert "nightly is failed, version 0: 2 of 2 tasks done" in told
    assert "flowchart" in scene.ok("plan", "show", "nightly", "--mermaid")
    tasks = scene.tasks("plan", "show", "nightly")
    assert tasks["build"]["reason"].startswith("CommandFailed: ")
    assert tasks["test"]["after"] == {"build": "success"}
    assert scene.run("plan", "show", "nightly", "--json", "--mermaid").exit_code == 64
    rows = list(csv.DictReader(scene.ok("plan", "show", "nightly", "--csv").splitlines()))
    assert [(row["id"], row["status"], row["attempts"]) for row in rows] == [
        ("build", "failed", "1"),
        ("test", "cancelled", "0"),
    ]
    assert rows[0]["reason"].startswith("CommandFailed: ")
    assert float(rows[0]["ended_at"]) - float(rows[0]["started_at"]) == pytest.approx(float(rows[0]["took"]), abs=0.01)
    assert len(scene.ok("plan", "show", "nightly", "--csv", "--failed").splitlines()) == 2
    refused = scene.run("plan", "show", "nightly", "--csv", "--json")
    assert (refused.exit_code, "--csv has a row for each task" in refused.stderr) == (64, True)


def test_why_names_what_holds_a_task(scene: Scene) -> None:
    keeping(scene, build="exit 3")
    assert scene.ok("plan", "why", "nightly", "build").splitlines() == [
        "Task 'build' of plan 'nightly' is pending:",
        "  no process runs the plan; resume it with: asterism resume nightly",
    ]
    told = scene.json("plan", "why", "nightly", "test")
    assert (told["name"], told["task"], told["status"], told["run"]) == ("nightly", "test", "waiting", None)
    assert [(reason["kind"], reason["name"]) for reason in told["reasons"]] == [("dependency", "build")]
    scene.ok("plan", "pause", "nightly", "--reason", "lunch")
    assert "the plan is paused by ann: lunch" in scene.ok("plan", "why", "nightly", "build")
    scene.run("resume", "nightly")
    assert "is failed:\n  it ended " in scene.ok("plan", "why", "nightly", "build")
    missing = scene.run("plan", "why", "nightly", "fly")
    assert (missing.exit_code, missing.stdout) == (64, "")
    assert "'fly'" in missing.stderr


def test_why_of_a_dispatched_task_names_what_holds_its_run(scene: Scene) -> None:
    path = write(scene.folder, "tasks:\n  build: {shell: echo 1, device: moon}\n", "nightly.yaml")
    with scene.process("run", path, "--store", scene.url, "--no-local", "--plain") as process:
        read_until(process, "build")
        soon(lambda: scene.json("plan", "why", "nightly", "build")["run"])  # stored after the event is printed
        told = scene.json("plan", "why", "nightly", "build")
        assert told["reasons"][0]["kind"] == "no_device"
        assert f"as run {told['run']}:" in scene.ok("plan", "why", "nightly", "build")
        assert "asterism device join moon" in scene.ok("plan", "why", "nightly", "build")


def test_show_reads_a_file_and_plan_show_the_store(scene: Scene) -> None:
    path = write(scene.folder, PLAN, "nightly")
    keeping(scene, build="echo kept")
    assert "build   pending  echo 1" in scene.ok("show", path)
    assert "build   pending  echo kept" in scene.ok("plan", "show", "nightly")
    assert scene.run("show", "nothing.yaml").exit_code == 64
    assert scene.tasks("show", path)["test"]["status"] == "waiting"


def test_the_story_of_a_plan_or_of_one_task_is_printed(scene: Scene) -> None:
    keeping(scene)
    assert "Nothing has happened to 'test' yet." in scene.run("plan", "story", "nightly", "test").stderr
    scene.ok("resume", "nightly")
    told = scene.ok("plan", "story", "nightly", "test").splitlines()
    assert [line.split("  ")[2] for line in told] == ["started", "completed"]
    whole = scene.json("plan", "story", "nightly")
    assert [entry["what"] for entry in whole][:2] == ["taken up", "began"]
    assert {entry["task"] for entry in whole} == {None, "build", "test"}
    unknown = scene.run("plan", "story", "nightly", "fly")
    assert unknown.exit_code == 64
    assert "there is no task 'fly' in the plan" in unknown.stderr
    assert "did you mean 'test'?" in scene.run("plan", "story", "nightly", "tset").stderr
    assert "did you mean 'test'?" in scene.run("plan", "why", "nightly", "tset").stderr


def test_a_plan_that_nobody_runs_says_so_since_when_and_how_to_resume_it(scene: Scene) -> None:
    assert "no process runs it\nresume it with: asterism resume nightly" in keeping(scene).ok("plan", "show", "nightly")
    owned(scene)

    async def silent_for_long(fleet: Fleet) -> None:
        [session] = [candidate for candidate in await fleet.store.sessions() if candidate.id == "session-other"]
        await fleet.store.commit([PutSession(session.changed(state=ENDED), session.revision)])

    scene.ask(silent_for_long)
    told = scene.ok("plan", "show", "nightly").splitlines()
    assert re.fullmatch(r"no process runs it: nightly@elsewhere is gone, and was last heard .* s ago", told[-2])
    assert told[-1] == f"resume it with: asterism resume nightly --store {scene.url}"
    data = scene.json("plan", "list")[0]
    assert (data["owner"], data["last_owner"]) == (None, "nightly@elsewhere")
    assert data["last_heard_at"] > 0


# -- at rest: editing --------------------------------------------------------------------------------------------------


def test_an_edit_says_what_changed_and_from_which_version_to_which(scene: Scene) -> None:
    mail = json.dumps({"id": "mail", "shell": "echo 3", "after": {"test": "completion"}})
    would = keeping(scene).ok("plan", "edit", "nightly", "--add", mail, "--dry-run")
    assert would.endswith("Plan 'nightly' would change: version 0 -> 1.\n")
    assert "mail" not in scene.tasks("plan", "show", "nightly")
    assert scene.ok("plan", "edit", "nightly", "--add", mail, "--reason", "they asked").splitlines() == [
        "add task 'mail'",
        "add dependency 'test' -> 'mail' on completion",
        "Plan 'nightly' changed: version 0 -> 1.",
        f"No process runs the plan. Resume it with: asterism resume nightly --store {scene.url}",
    ]
    told = scene.json("plan", "edit", "nightly", "--remove", "test", "--dependents", "bridge")
    assert (told["accepted"], told["version_before"], told["version"]) == (True, 1, 2)
    assert scene.tasks("plan", "show", "nightly")["mail"]["after"] == {"build": "success"}
    assert "version 1 by ann" in scene.ok("plan", "story", "nightly", "mail")
    assert scene.json("resume", "nightly")["tasks"]["mail"]["value"] == "3"


def test_a_task_may_take_the_place_of_another_and_wait_for_one_that_is_added_after_it(scene: Scene) -> None:
    first = json.dumps({"id": "test", "shell": "echo new", "after": ["lint", "build"]})
    second = json.dumps({"id": "lint", "shell": "echo 0"})
    keeping(scene).ok("plan", "edit", "nightly", "--remove", "test", "--add", first, "--add", second)
    assert scene.tasks("plan", "show", "nightly")["test"]["after"] == {"lint": "success", "build": "success"}


def test_a_rejected_edit_names_every_violation_and_changes_nothing(scene: Scene) -> None:
    keeping(scene)
    before = {**scene.json("plan", "show", "nightly"), "now": 0}
    words = ["plan", "edit", "nightly", "--remove", "build", "--remove", "fly", "--add", '{"id": "test"}']
    result = scene.run(*words)
    assert (result.exit_code, result.stdout) == (1, "")
    for rule in ("[unknown_task]", "[duplicate_task]", "[dependents]"):
        assert rule in result.stderr
    first, *reasons = result.stderr.splitlines()
    assert first == "the edit was rejected for 3 reasons:"
    assert [line[:9] for line in reasons] == ["  - edit "] * 3
    told = scene.json(*words, code=1)
    assert {violation["rule"] for violation in told["violations"]} == {"unknown_task", "duplicate_task", "dependents"}
    assert {**scene.json("plan", "show", "nightly"), "now": 0} == before


def test_a_batch_comes_from_a_file_or_from_the_standard_input(scene: Scene) -> None:
    batch = {"edits": [{"op": "update_task", "task_id": "test", "changes": {"shell": "echo 5"}}], "base_version": 0}
    (scene.folder / "batch.json").write_text(json.dumps(batch))
    assert "update task 'test': shell" in keeping(scene).ok("plan", "edit", "nightly", "--edits", "batch.json")
    stale = scene.run("plan", "edit", "nightly", "--edits", "-", stdin=json.dumps(batch))
    assert stale.exit_code == 1
    assert "[stale]" in stale.stderr
    assert scene.json("resume", "nightly")["tasks"]["test"]["value"] == "5"
    late = scene.run("plan", "edit", "nightly", "--edits", "batch.json")
    assert late.exit_code == 1
    assert "[ended]" in late.stderr


def test_a_task_is_changed_without_json(scene: Scene) -> None:
    keeping(scene)
    script = "set -e\n\techo 'one'\necho \"zwei – {x}\"\n"
    (scene.folder / "new.sh").write_text(script)
    words = ["--set", "test.timeout=5m", "--set", "test.retries=2", "--set", "test.description=two words = one"]
    scene.ok("plan", "edit", "nightly", "--set-file", "test.shell=new.sh", *words)
    task = scene.ask(lambda fleet: load(fleet.store, "nightly")).plan["test"].task
    assert (task.shell, task.timeout, task.retries) == (script, 300.0, 2)
    assert task.description == "two words = one"
    scene.ok("plan", "edit", "nightly", "--set", "test.description=", "--set", "test.timeout=null")
    task = scene.ask(lambda fleet: load(fleet.store, "nightly")).plan["test"].task
    assert (task.description, task.timeout) == ("", None)
    words = ["--set", "test.heartbeat_timeout=10s", "--set", 'test.approval={"by": "ann", "timeout": "4h"}']
    scene.ok("plan", "edit", "nightly", *words)
    task = scene.ask(lambda fleet: load(fleet.store, "nightly")).plan["test"].task
    assert (task.heartbeat_timeout, task.approval) == (10.0, {"by": "ann", "timeout": 14_400.0})
    wrong = scene.run("plan", "edit", "nightly", "--set", 'test.approval={"timeout": "soon"}')
    assert (wrong.exit_code, "soon" in wrong.stderr) == (64, True)


@pytest.mark.parametrize(
    "edits",
    [
        [{"op": "add_task", "task": {"id": "mail", "shell": "true"}, "after": "test"}],
        [{"op": "add_task", "task": {"id": "mail", "shell": "true", "after": {"test": "completion"}}}],
        [
            {"op": "add_task", "task": {"id": "mail", "shell": "true", "after": ["log"]}},  # one that comes later
            {"op": "add_task", "task": {"id": "log", "shell": "true", "handles": "test"}},
        ],
    ],
)
def test_a_batch_adds_a_task_with_its_dependencies(scene: Scene, edits: list[dict[str, Any]]) -> None:
    keeping(scene)
    scene.ok("plan", "edit", "nightly", "--edits", "-", stdin=json.dumps({"edits": edits}))
    assert scene.tasks("plan", "show", "nightly")["mail"]["after"].keys() <= {"test", "log"} != set()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "No edit is given"),
        (["--add", "[1]"], "is a list"),
        (["--add", "{"], "it is not JSON"),
        (["--add", '{"shell": "x"}'], "a task is an object with an 'id'"),
        (["--add", '{"id": "x", "fly": 1}'], "no such field: fly"),
        (["--add", '{"id": "x", "after": 5}'], "after= takes ids of tasks"),
        (["--dependents", "bridge", "--add", '{"id": "x"}'], "--dependents needs --remove"),
        (["--edits", "nothing.json"], "nothing.json cannot be read"),
        (["--edits", "-"], "standard input is not JSON"),
        (["--edits", "-", "--remove", "x"], "--edits excludes --add, --remove, --set and --set-file"),
        (["--set", "shell=x"], "'shell=x' is not TASK.FIELD=VALUE"),
        (["--set", "test.color=x"], "the fields are agent, approval, argv,"),
        (["--set", "test.retries=x"], "retries is JSON, and 'x' is not"),
        (["--set", "test.timeout=x"], "'x' is not a"),
        (["--set-file", "test.shell=nothing.sh"], "nothing.sh cannot be read"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused(scene: Scene, words: list[str], message: str) -> None:
    result = keeping(scene).run("plan", "edit", "nightly", *words, stdin="edits:")
    assert (result.exit_code, result.stdout) == (64, "")
    assert message in " ".join(result.stderr.split())


def test_the_process_that_runs_a_plan_owns_its_edits(scene: Scene) -> None:
    owned(keeping(scene))
    result = scene.run("plan", "edit", "nightly", "--remove", "test", "--wait", "20ms")
    assert result.exit_code == 64
    assert "'nightly@elsewhere' runs plan 'nightly', but did not answer within" in result.stderr
    assert "The request was withdrawn, and nothing has changed." in result.stderr
    assert scene.json("plan", "show", "nightly")["version"] == 0
    paused = scene.ok("plan", "pause", "nightly")
    assert paused == "Plan 'nightly' is paused, by ann. nightly@elsewhere runs it, and has not answered yet.\n"


def test_the_newest_edit_is_undone(scene: Scene) -> None:
    keeping(scene).ok("plan", "edit", "nightly", "--add", '{"id": "mail", "shell": "x"}')
    would = scene.ok("plan", "undo", "nightly", "--dry-run")
    assert would == "remove task 'mail'\nPlan 'nightly' would change: version 1 -> 2.\n"
    told = scene.json("plan", "undo", "nightly", "--reason", "a mistake")
    assert (told["version_before"], told["version"], told["applied_by"]) == (1, 2, None)
    assert "by ann: undo version 1: a mistake" in scene.ok("plan", "story", "nightly")
    assert "mail" not in scene.tasks("plan", "show", "nightly")
    nothing = scene.run("plan", "undo", "nightly")
    assert nothing.exit_code == 1
    assert "there is no edit that can be undone" in nothing.stderr


def test_a_person_removes_the_taint_of_a_plan(scene: Scene) -> None:
    keeping(scene).ok("plan", "edit", "nightly", "--add", '{"id": "mail", "shell": "x", "untrusted": true}')
    early = scene.run("plan", "trust", "nightly", "--reason", "it is ours")
    assert early.exit_code == 1
    assert "wait for the end of 'mail', or cancel it: its result is not known yet" in early.stderr
    scene.ok("plan", "edit", "nightly", "--remove", "mail")
    told = scene.ok("plan", "trust", "nightly", "--reason", "it is ours")
    assert told.startswith("remove the taint: it is ours\n")
    assert "there is no taint to remove" in scene.run("plan", "trust", "nightly", "--reason", "again").stderr
    assert scene.run("plan", "trust", "nightly").exit_code == 64


# -- at rest: pausing and resuming -------------------------------------------------------------------------------------


def test_a_pause_is_recorded_once_and_ended_by_resume(scene: Scene) -> None:
    assert (
        keeping(scene).ok("plan", "pause", "nightly", "--reason", "lunch")
        == "Plan 'nightly' is paused, by ann: lunch.\n"
    )
    assert scene.ok("plan", "pause", "nightly") == "Plan 'nightly' was already paused, by ann: lunch.\n"
    told = scene.json("plan", "pause", "nightly")
    assert (told["name"], told["paused"], told["owner"], told["already"]) == ("nightly", "by ann: lunch", None, True)
    assert "paused by ann: lunch" in scene.ok("plan", "show", "nightly")
    scene.ok("resume", "nightly")
    assert scene.json("plan", "list")[0]["paused"] is None
    late = scene.run("plan", "pause", "nightly")
    assert late.exit_code == 64
    assert "is completed: it cannot be paused" in late.stderr


@pytest.mark.parametrize(("build", "code", "state"), [("echo 1", 0, "completed"), ("exit 3", 1, "failed")])
def test_resuming_an_ended_plan_returns_its_exit_code(scene: Scene, build: str, code: int, state: str) -> None:
    keeping(scene, build=build)
    first = scene.run("resume", "nightly", "--report", "report.html")
    assert first.exit_code == code, first.output
    assert "No device is joined: this process executes the tasks" in first.stderr
    assert "<html" in (scene.folder / "report.html").read_text("utf-8")
    again = scene.run("resume", "nightly")
    assert again.exit_code == code
    assert f"State                {state}" in again.stdout
    assert "started" not in again.stdout
    assert "Plan 'nightly' has already ended." in again.stderr
    raw = scene.run("resume", "nightly", "--result", "build")
    assert (raw.exit_code, raw.stdout) == (code, "" if code else "1\n")
    told = scene.json("plan", "standby", "nightly", code=code)
    assert (told["state"], told["exit_code"]) == (state, code)


def test_a_report_compares_a_plan_with_earlier_plans_of_its_file(scene: Scene) -> None:
    """Those of another file, those of another id in a file of the same name, and later ones are not named."""
    file = scene.folder / "backup.yaml"
    file.write_text("asterism: 1\nparams: {day: monday, api_token: abc}\ntasks:\n  a: {shell: echo 1}\n", "utf-8")
    other = scene.folder / "other.yaml"
    other.write_text("asterism: 1\ntasks:\n  a: {shell: echo 1}\n", "utf-8")
    twin = scene.folder / "elsewhere" / "backup.yaml"
    twin.parent.mkdir()
    twin.write_text(other.read_text("utf-8"), "utf-8")
    for words in (
        (file, "--id", "job-20261101"),
        (other, "--id", "job-20261107"),
        (twin, "--id", "twin"),
        (file, "--id", "job-20261102"),
    ):
        scene.ok("run", *map(str, words), "--store", scene.url)
    words = ("--id", "job-20261103", "--set", "day=sunday", "--store", scene.url, "--report", "third.html")
    scene.ok("run", str(file), *words)
    page = (scene.folder / "third.html").read_text("utf-8")
    summary = json.loads(page.partition(' id="data">')[2].partition("</script>")[0])["summary"]
    assert [run["name"] for run in summary["earlier"]] == ["job-20261102", "job-20261101"], "the newest first"
    assert "the median of 2 earlier runs that completed" in summary["took"]
    assert summary["file"] == "backup.yaml"
    assert summary["params"] == [["day", "sunday"], ["api_token", "[secret]"]]
    scene.ok("plan", "watch", "job-20261102", "--report", "second.html")
    page = (scene.folder / "second.html").read_text("utf-8")
    summary = json.loads(page.partition(' id="data">')[2].partition("</script>")[0])["summary"]
    assert [run["name"] for run in summary["earlier"]] == ["job-20261101"]


@pytest.mark.parametrize("problem", ["scope-missing", "internal-error"])
async def test_who_may_read_one_plan_alone_has_a_report_without_earlier_plans(problem: str) -> None:
    class OnePlan:
        async def show_plan(self, name: str, *, tasks: bool) -> Any:
            return SimpleNamespace(file="backup.yaml", created_at=1.0, params={"day": "monday"})

        async def list_plans(self, **conditions: Any) -> Any:
            raise ApiError(403, problem, "this needs the scope read")

    asked = origin_of(cast(System, OnePlan()), "nightly")
    if problem != "scope-missing":
        with pytest.raises(ApiError):
            await asked
        return
    assert await asked == PlanOrigin("backup.yaml", {"day": "monday"}, [])


def test_one_that_is_resumed_goes_by_the_critical_path_if_there_are_estimates(scene: Scene) -> None:
    async def make(fleet: Fleet) -> None:
        plan = Constellation("nightly")
        for name, seconds in (("short", 1.0), ("long", 100.0)):
            plan.add(Task(name, shell=f"echo {name} >> order", estimate=seconds))
        await insert_plan(fleet.store, plan)

    scene.ask(make)
    scene.ok("resume", "nightly", "--local=1", "--concurrency", "1")
    assert (scene.folder / "order").read_text().split() == ["long", "short"]


def test_a_plan_owned_elsewhere_is_not_resumed_but_its_pause_ends(scene: Scene) -> None:
    owned(keeping(scene))
    result = scene.run("resume", "nightly")
    assert result.exit_code == 64
    assert "is run by 'nightly@elsewhere'" in result.stderr
    assert "To wait until it is gone: asterism plan standby nightly" in result.stderr


def test_a_paused_plan_owned_elsewhere_is_resumed_there(scene: Scene) -> None:
    keeping(scene).ok("plan", "pause", "nightly")
    owned(scene)
    told = scene.ok("resume", "nightly")
    assert told == "Plan 'nightly' is resumed; nightly@elsewhere runs it.\n"


# -- running: what is refused, and what is there already ---------------------------------------------------------------


def test_a_run_in_memory_makes_no_store(scene: Scene) -> None:
    scene.ok("run", write(scene.folder, PLAN), "--store", "memory:")
    assert not scene.file.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--store", "memory:", "--id", "x"], "--id needs --store"),
        (["--store", "memory:", "--local"], "--local needs --store"),
        (["--store", "memory:", "--no-local"], "--no-local needs --store"),
        (["--store", "sqlite:///x.db", "--local", "--no-local"], "exclude each other"),
        (["--store", "sqlite:///x.db", "--local=none"], "is not a number of slots"),
        (["--store", "sqlite:///x.db", "--id", "a/b"], "without '/'"),
        (["--store", "sqlite:///x.db", "--result-limit", "1M"], "--result-limit has no effect with --store: use"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(scene: Scene, words: list[str], message: str) -> None:
    result = scene.run("run", *words, write(scene.folder, PLAN))
    assert (result.exit_code, result.stdout) == (64, "")
    assert message in " ".join(result.stderr.split())


def test_a_taken_name_is_reported_with_the_differences(scene: Scene) -> None:
    path = write(scene.folder, PLAN, "nightly.yaml")
    words = ["run", path, "--store", scene.url]
    assert scene.run(*words, "--json").exit_code == 0
    same = scene.run(*words)
    assert same.exit_code == 64
    assert "plan 'nightly' exists in " in same.stderr
    assert "(completed). The plan file has not changed since its start." in same.stderr
    assert f"Show its result with: asterism plan watch nightly --store {scene.url}\n" in same.stderr
    write(scene.folder, "tasks:\n  build: {shell: echo 9}\n  lint: {shell: echo 3}\n", "nightly.yaml")
    other = scene.run(*words)
    assert "has changed since its start: lint new; test gone; build changed." in other.stderr
    assert scene.run(*words, "--id", "weekly").exit_code == 0
    assert [plan["name"] for plan in scene.json("plan", "list")] == ["nightly", "weekly"]


def test_a_plan_whose_start_is_compacted_is_not_compared(scene: Scene) -> None:
    keeping(scene)

    async def shorten(fleet: Fleet) -> None:
        head = await fleet.store.register(head_key("nightly"))
        assert head is not None
        number = head.value["first"]
        first = await fleet.store.register(record_key("nightly", number))
        assert first is not None
        moved = PutRegister(record_key("nightly", number + 1), first.value, None)
        changed = PutRegister(head_key("nightly"), {**head.value, "first": number + 1}, head.revision)
        await fleet.store.commit([moved, changed, PutRegister(first.key, None, first.revision)])

    scene.ask(shorten)
    result = scene.run("run", write(scene.folder, PLAN, "nightly.yaml"), "--store", scene.url)
    assert result.exit_code == 64
    assert "(ready). A change of the plan file does not change it." in result.stderr


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_a_plan_at_rest_is_cancelled_at_once_and_stays_cancelled(scene: Scene) -> None:
    keeping(scene, build="echo built >> built")
    scene.ok("plan", "pause", "nightly")
    assert (
        scene.ok("plan", "cancel", "nightly", "--reason", "not tonight")
        == "Plan 'nightly' is cancelled, by ann: not tonight.\n"
    )
    assert not (scene.folder / "built").exists()
    told = scene.json("plan", "list")[0]
    assert (told["state"], told["owner"], told["cancelling"]) == ("cancelled", None, False)
    assert scene.ok("plan", "list").splitlines()[1].split() == ["nightly", "cancelled", "2/2"]
    shown = scene.ok("plan", "show", "nightly")
    assert "nightly is cancelled, version 0: 2 of 2 tasks done\ncancelled by ann: not tonight\n" in shown
    assert "asked to cancel  by ann: not tonight" in scene.ok("plan", "story", "nightly")
    assert scene.ok("plan", "cancel", "nightly") == "Plan 'nightly' was already cancelled, by ann: not tonight.\n"
    told = scene.json("plan", "cancel", "nightly")
    assert (told["state"], told["ended"], told["cancelled"]) == ("cancelled", True, "by ann: not tonight")
    resumed = scene.run("resume", "nightly")
    assert resumed.exit_code == 130
    assert "Plan 'nightly' has already ended." in resumed.stderr
    again = scene.run("run", write(scene.folder, PLAN, "nightly.yaml"), "--store", scene.url)
    assert again.exit_code == 64
    assert f"plan 'nightly' exists in {scene.url} (cancelled)." in again.stderr


def test_one_that_has_ended_otherwise_cannot_be_cancelled(scene: Scene) -> None:
    keeping(scene).ok("resume", "nightly")
    late = scene.run("plan", "cancel", "nightly")
    assert (late.exit_code, late.stdout) == (64, "")
    assert "plan 'nightly' is completed: it cannot be cancelled" in late.stderr
    assert scene.json("plan", "list")[0]["state"] == "completed"
