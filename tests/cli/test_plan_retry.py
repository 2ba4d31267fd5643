"""``asterism plan retry``: a failed plan is run again from the command line, and after kills."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from tests.cli.cli_scenes import write
from tests.cli.command_scenes import Scene
from tests.cli.stored_plan_scenes import keeping, owned

PLAN = """\
tasks:
  extract: {shell: echo extracted >> trace; echo ok}
  load: {shell: "echo load >> trace; test -e ready || exit 3; echo loaded", after: extract}
  report: {shell: echo report >> trace; echo reported, after: load}
"""


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)  # where tasks leave their traces
    return Scene(tmp_path)


def failed(scene: Scene, plan: str = PLAN, code: int = 2) -> Scene:
    """A store with the plan, which has failed."""
    path = write(scene.folder, plan)
    result = scene.run("run", path, "--plain", "--store", scene.url, "--id", "nightly")
    assert result.exit_code == code, result.output
    assert "Run what failed again with: asterism plan retry nightly --store " in result.stderr
    return scene


def trace(scene: Scene) -> list[str]:
    return (scene.folder / "trace").read_text().split()


def test_a_failed_plan_is_retried_and_completes_with_the_finished_work_not_done_again(scene: Scene) -> None:
    failed(scene)
    (scene.folder / "ready").touch()
    result = scene.run("plan", "retry", "nightly", "--plain", "--reason", "the disk is back")
    assert result.exit_code == 0, result.output
    assert "Plan 'nightly' is reopened: load runs again.\n" in result.stderr
    assert trace(scene) == ["extracted", "load", "load", "report"]
    story = scene.ok("plan", "story", "nightly", "load")
    assert "retried  by ann: the disk is back" in story
    assert scene.json("plan", "list")[0]["state"] == "completed"


def test_it_may_fail_again(scene: Scene) -> None:
    failed(scene)
    result = scene.run("plan", "retry", "nightly", "--plain")
    assert result.exit_code == 2
    assert "Run what failed again with:" in result.stderr
    assert trace(scene) == ["extracted", "load", "load"]


def test_from_a_task_runs_it_and_what_lies_below(scene: Scene) -> None:
    (scene.folder / "ready").touch()
    scene.ok("run", write(scene.folder, PLAN), "--plain", "--store", scene.url, "--id", "nightly")
    told = scene.json("plan", "retry", "nightly", "--from", "load")
    assert told["state"] == "completed"
    assert trace(scene) == ["extracted", "load", "report", "load", "report"]
    result = scene.run("plan", "retry", "nightly")
    assert result.exit_code == 64
    assert (
        "in plan 'nightly' no task failed; to run it again, name the task to begin with (--from TASK)" in result.stderr
    )
    unknown = scene.run("plan", "retry", "nightly", "--from", "lod")
    assert unknown.exit_code == 64
    assert "there is no task 'lod' in the plan; did you mean 'load'?" in unknown.stderr


def test_with_edits_the_command_is_mended_first(scene: Scene) -> None:
    failed(scene)
    edits = {"edits": [{"op": "update_task", "task_id": "load", "changes": {"shell": "echo mended"}}]}
    (scene.folder / "mend.json").write_text(json.dumps(edits))
    told = scene.json("plan", "retry", "nightly", "--edits", "mend.json")
    assert told["tasks"]["load"]["value"] == "mended"
    assert told["version"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"edits": [{"op": "remove_task", "task_id": "nothing"}]}', "there is no task 'nothing' in the plan"),
        ("{", "mend.json is not JSON"),
        ('{"edits": [{"op": "fly"}]}', "mend.json is not a batch of edits"),
    ],
)
def test_bad_edits_reopen_nothing(scene: Scene, content: str, message: str) -> None:
    failed(scene)
    (scene.folder / "mend.json").write_text(content)
    result = scene.run("plan", "retry", "nightly", "--edits", "mend.json")
    assert result.exit_code == 64
    assert message in result.stderr
    assert scene.json("plan", "list")[0]["state"] == "partially_failed"


def test_a_plan_that_is_running_or_at_rest_is_not_retried(scene: Scene) -> None:
    keeping(scene)
    result = scene.run("plan", "retry", "nightly")
    assert result.exit_code == 64
    assert "plan 'nightly' has not ended; resume it with: asterism resume nightly" in result.stderr
    owned(scene)
    result = scene.run("plan", "retry", "nightly")
    assert result.exit_code == 64
    assert "plan 'nightly' is run by 'nightly@elsewhere': it can be retried when it has ended." in result.stderr
    assert "there is no plan 'other'" in scene.run("plan", "retry", "other").stderr


def test_an_edit_that_adds_a_handler_reopens_the_plan_and_repairs_it(scene: Scene) -> None:
    failed(scene)
    added = '{"id": "fix", "shell": "echo fixed", "handles": "load"}'
    assert "had ended" not in scene.ok("plan", "edit", "nightly", "--add", added, "--dry-run")
    edited = scene.ok("plan", "edit", "nightly", "--add", added)
    assert "version 0 -> 1.\nThe plan had ended, and is open again.\nNo process runs the plan. Resume it" in edited
    assert scene.ok("plan", "list").splitlines()[1].split()[:3] == ["nightly", "at", "rest"]
    result = scene.run("resume", "nightly", "--plain")
    assert result.exit_code == 0, result.output
    assert "State                repaired\n" in result.stdout
    assert scene.ok("plan", "list").splitlines()[1].split()[:2] == ["nightly", "repaired"]
    rejected = scene.run("plan", "edit", "nightly", "--remove", "report")
    assert rejected.exit_code == 1
    assert "has ended (completed); only an edit that adds a task reopens it" in rejected.stderr


def test_runs_retry_names_the_command_for_a_plan(scene: Scene) -> None:
    scene.ok("limit", "set", "disk", "1")
    failed(scene, PLAN.replace('exit 3; echo loaded",', 'exit 3; echo loaded", uses: {disk: 1},'))
    (run,) = scene.json("runs", "list", "--status", "failed")
    result = scene.run("runs", "retry", run["id"])
    assert result.exit_code != 0
    assert "belongs to plan 'nightly'" in result.stderr
    assert result.stderr.endswith("with: asterism plan retry nightly\n")


def test_the_name_of_a_failed_plan_is_taken_and_the_message_names_retry(scene: Scene) -> None:
    failed(scene)
    result = scene.run("run", str(scene.folder / "plan.yaml"), "--store", scene.url, "--id", "nightly")
    assert "Run what failed again with: asterism plan retry nightly --store" in result.stderr


# -- kills -------------------------------------------------------------------------------------------------------------

SLOW = """\
tasks:
  extract: {shell: echo extracted >> trace; echo ok}
  load: {shell: "test -e ready || exit 3; echo loaded", after: extract}
  a: {shell: echo a >> ends, after: load}
  b: {shell: echo b >> ends, after: a}
  c: {shell: echo c >> ends, after: b}
"""


MOMENTS = [(), [("stderr", 1)], *([("stdout", lines)] for lines in range(1, 9))]
"""When a process is killed: at once, when it has reopened the plan, or after some of its steps."""


def killed_during_retry(scene: Scene, kills: int) -> None:
    """Kill the process that retries, again and again, at any moment; then let it end.

    A retry that was killed leaves a plan that has ended, or one at rest, which resume continues."""
    failed(scene, SLOW)
    (scene.folder / "ready").touch()
    chance = random.Random(7)
    words = ["plan", "retry", "nightly", "--from", "load"]
    for number in range(kills):
        state = scene.json("plan", "list")[0]["state"]
        command = words if state not in ("executing", "at_rest") else ["resume", "nightly"]
        with scene.process(*command, "--plain", "--takeover-after", "1s") as process:
            for stream, lines in chance.choice(MOMENTS):
                for _ in range(lines):
                    getattr(process, stream).readline()
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert scene.json("plan", "list")[0]["state"] in ("executing", "at_rest", "partially_failed", "completed"), (
            number
        )
    if scene.json("plan", "list")[0]["state"] in ("executing", "at_rest"):
        scene.ok("resume", "nightly", "--plain")
    else:
        scene.ok(*words, "--plain")
    assert scene.json("plan", "show", "nightly")["state"] == "completed"
    shown = scene.tasks("plan", "show", "nightly")
    assert {name: task["status"] for name, task in shown.items()} == dict.fromkeys(
        ["extract", "load", "a", "b", "c"], "completed"
    )
    assert trace(scene) == ["extracted"], "what was finished before the retry is not done again"
    assert scene.ok("store", "check")


@pytest.mark.long
def test_kill_9_during_retry(scene: Scene) -> None:
    killed_during_retry(scene, 3)


@pytest.mark.long
def test_kill_9_during_retry_many_times(scene: Scene) -> None:
    killed_during_retry(scene, 50)
