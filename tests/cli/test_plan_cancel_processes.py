"""Plans in a store that are cancelled from the command line while processes run them."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.cli.cli_scenes import heard, read_until
from tests.cli.command_scenes import Scene, pids_in
from tests.cli.stored_plan_scenes import Trace, keeping, owned
from tests.process_scenes import PATIENCE, ended, gone, soon

pytestmark = pytest.mark.slow

QUICK = ("--takeover-after", "5")  # longer than a busy machine holds up one that lives


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)  # where tasks leave their traces
    return Scene(tmp_path)


def test_the_running_process_cancels_on_request_of_another(scene: Scene) -> None:
    trace = Trace(scene)
    with scene.process(*trace.words) as process:
        pids = pids_in(trace.pids)
        with scene.process("plan", "cancel", "nightly", "--reason", "not tonight") as asking:
            code, output, errors = ended(asking)
        assert (code, output) == (0, "Plan 'nightly' is cancelled, by ann: not tonight.\n"), errors
        assert "runs 'nightly', and was asked to cancel it." in errors
        code, output, errors = ended(process)
    assert code == 130, errors
    assert "nightly is being cancelled" in output
    assert gone(pids)
    assert trace.lines() == ["one"]
    told = scene.json("plan", "list")[0]
    assert (told["state"], told["owner"]) == ("cancelled", None)
    assert told["counts"] == {"completed": 1, "cancelled": 2}
    assert "nightly is cancelled, version 0: 3 of 3 tasks done" in scene.ok("plan", "show", "nightly")


@pytest.mark.long
def test_tasks_on_other_devices_are_stopped_though_no_process_runs_the_plan(scene: Scene) -> None:
    trace = Trace(scene)
    with scene.process("device", "join", "kitchen-pc") as device:
        heard(device, "joined as kitchen-pc")
        with scene.process(*trace.words) as process:
            pids = pids_in(trace.pids)
            process.send_signal(signal.SIGINT)
            assert ended(process)[0] == 130
        with scene.process("plan", "cancel", "nightly", "--json") as asking:
            code, output, errors = ended(asking)
        assert code == 0, errors
        told = json.loads(output)
        assert (told["name"], told["state"], told["cancelled"]) == ("nightly", "cancelled", "by ann")
        heard(device, "stopped run")
        assert gone(pids)
    assert trace.lines() == ["one"]


def test_one_whose_process_died_on_this_machine_is_cancelled_without_waiting_for_its_time(scene: Scene) -> None:
    trace = Trace(scene)
    with scene.process(*trace.words, "--takeover-after", "1h") as process:
        pids = pids_in(trace.pids)
        process.kill()
        process.wait(PATIENCE)
        assert gone(pids)
    with scene.process("plan", "cancel", "nightly") as asking:
        code, output, errors = ended(asking)
    assert (code, output) == (0, "Plan 'nightly' is cancelled, by ann.\n"), errors
    assert scene.json("plan", "list")[0]["state"] == "cancelled"


@pytest.mark.long
def test_an_owner_that_is_killed_while_it_cancels_is_followed_by_a_standby_that_finishes(scene: Scene) -> None:
    trace = Trace(scene, stubborn=True)
    with scene.process(*trace.words, *QUICK) as first:
        pids = pids_in(trace.pids)
        with scene.process("plan", "standby", "nightly", *QUICK) as second:
            standing_by = heard(second, "Standing by: ")[-1]
            assert re.search(r"Standing by: nightly@.+ runs 'nightly'\.", standing_by)
            with scene.process("plan", "cancel", "nightly") as asking:
                read_until(first, "nightly is being cancelled")
                first.kill()
                first.wait(PATIENCE)
                assert gone(pids)
                code, output, errors = ended(asking)
            assert (code, output) == (0, "Plan 'nightly' is cancelled, by ann.\n"), errors
            assert ended(second)[0] == 130
    assert scene.json("plan", "list")[0]["state"] == "cancelled"
    assert trace.lines() == ["one"]


def test_ctrl_c_stops_waiting_for_the_cancellation_and_does_not_undo_it(scene: Scene) -> None:
    owned(keeping(scene))
    with scene.process("plan", "cancel", "nightly", "--json", "--reason", "not tonight") as process:
        heard(process, "nightly@elsewhere runs 'nightly', and was asked to cancel it.")
        process.send_signal(signal.SIGINT)
        code, output, errors = ended(process)
    assert code == 130
    told = json.loads(output)
    assert (told["name"], told["state"]) == ("nightly", "ready"), "its owner has not obeyed yet"
    assert f"Wait for its end with: asterism plan cancel nightly --store {scene.url}" in errors
    assert "Traceback" not in errors
    [message] = scene.ask(lambda fleet: fleet.store.registers("mailbox/nightly/"))
    assert message.value["do"] == {"command": "CancelPlan", "why": "by ann: not tonight", "hard": False}


DATABASE = """\
asterism: 1
id: database
tasks:
  create: {shell: "touch created"}
  load: {shell: "touch loading; sleep 600", after: create}
  drop: {shell: "rm created", teardown: create}
"""


@pytest.mark.long
def test_a_cancelled_plan_tells_of_a_teardown_that_failed(scene: Scene) -> None:
    path = scene.folder / "database.yaml"
    path.write_text(DATABASE.replace("rm created", "echo still used >&2; exit 3"))
    with scene.process("run", str(path), "--store", scene.url, "--local", "--plain", *QUICK) as process:
        read_until(process, "load started")
        result = scene.run("plan", "cancel", "database", "--json")
        ended(process)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["failed_teardowns"] == {"drop": "the command exited with 3: still used"}
    assert "Teardown 'drop' failed, and does not run again: the command exited with 3: still used" in result.stderr


def assert_waits_for_teardown(scene: Scene, errors: str) -> None:
    """The plan stays ``cancelling``, and the command has told why and what to do."""
    assert "Plan 'database' is still being cancelled: no device can execute its teardowns (drop: " in errors
    assert f"Finish it here with: asterism resume database --store {scene.url} --local" in errors
    assert scene.json("plan", "list")[0]["state"] == "cancelling"
    assert "database is cancelling" in scene.ok("plan", "show", "database")
    assert (scene.folder / "created").exists()


def test_a_teardown_is_not_lost_if_its_process_is_killed_while_plan_cancel_waits(scene: Scene) -> None:
    path = scene.folder / "database.yaml"
    path.write_text(DATABASE.replace("rm created", "[ -e dropping ] && rm created || { touch dropping; sleep 600; }"))
    with scene.process("run", str(path), "--store", scene.url, "--local", "--plain", *QUICK) as process:
        read_until(process, "load started")
        with scene.process("plan", "cancel", "database", "--json") as asking:
            read_until(process, "drop started")
            assert soon((scene.folder / "dropping").exists)
            process.kill()
            process.wait(PATIENCE)
            code, output, errors = ended(asking)
    assert code == 75, errors
    told = json.loads(output)
    assert (told["state"], list(told["waiting_teardowns"])) == ("cancelling", ["drop"])
    assert_waits_for_teardown(scene, errors)
    with scene.process("resume", "database", "--local", "--plain", *QUICK) as process:
        code, output, errors = ended(process)
    assert (code, "drop completed" in output) == (130, True), errors
    assert not (scene.folder / "created").exists()


@pytest.mark.long
def test_after_kill_9_a_cancelled_plan_is_torn_down_by_who_resumes_it(scene: Scene) -> None:
    path = scene.folder / "database.yaml"
    path.write_text(DATABASE)
    with scene.process("run", str(path), "--store", scene.url, "--local", "--plain", *QUICK) as process:
        read_until(process, "load started")
        process.send_signal(signal.SIGKILL)
        process.wait()
    with scene.process("plan", "cancel", "database") as asking:
        code, _, errors = ended(asking)
    assert (code, "Teardowns come first: drop; a device of the fleet executes it." in errors) == (75, True)
    assert_waits_for_teardown(scene, errors)
    with scene.process("resume", "database", "--local", "--plain", *QUICK) as process:
        code, output, errors = ended(process)
    assert code == 130, errors
    assert "drop completed" in output
    assert not (scene.folder / "created").exists()
