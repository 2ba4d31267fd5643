"""Devices as processes: first steps, signals, sudden death, refusals."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tests.cli.cli_scenes import heard, read_until
from tests.cli.command_scenes import Scene, pids_in, until
from tests.process_scenes import PATIENCE, ended, gone

QUICK = ("--heartbeat", "0.3", "--heartbeat-timeout", "60")  # quick to hear of things, and slow to be given up
WATCHFUL = (*QUICK, "--every", "0.2")
MORTAL = ("--heartbeat", "0.3", "--heartbeat-timeout", "5")
"""For a device that is killed, and for its work: a test can wait for that loss, and no busy machine holds up one that
lives for so long."""


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def sleeper(scene: Scene, name: str = "nap", *options: str) -> Path:
    """A workflow that tells its process numbers and then sleeps until it is stopped."""
    place = scene.folder / f"{name}-pids"
    os.mkfifo(place)
    line = f"sleep 1000 & echo $$ $! > {place}; wait"
    scene.ok("workflow", "add", name, "--shell", line, *options)
    return place


# -- the first ten minutes ---------------------------------------------------------------------------------------------


def test_a_fleet_works_from_the_first_command_to_the_last(scene: Scene) -> None:
    (scene.folder / "a.mp4").write_text("pictures")
    scene.ok("workflow", "add", "transcode", "--argv", "cp {file} {out}", "--needs", "gpu")
    run_input = json.dumps({"file": "a.mp4", "out": "a.webm"})
    with scene.process("device", "join", "kitchen-pc", "--can", "gpu", "--slots", "2") as kitchen:
        joining = heard(kitchen, "joined as kitchen-pc")
        assert any(
            "no device policy file: this device executes every workflow in the store" in line for line in joining
        )
        with scene.process("device", "join", "laptop") as laptop:
            heard(laptop, "joined as laptop")
            result = scene.run("runs", "create", "transcode", "--input", run_input, "--wait")
            assert result.exit_code == 0, result.output
            run_id, end = result.stdout.splitlines()
            assert end.startswith(f"{run_id[-8:]} completed on kitchen-pc after ")
            assert (scene.folder / "a.webm").read_text() == "pictures"
            told = heard(kitchen, "finished run")
            assert [line.split("  ", 1)[1] for line in told[:1]] == [f"started run {run_id[-8:]} (transcode)\n"]
            states = {device["name"]: device["state"] for device in scene.json("device", "list")}
            assert states == {"kitchen-pc": "ready", "laptop": "ready"}
            for process in (kitchen, laptop):
                process.send_signal(signal.SIGINT)
            for process in (kitchen, laptop):
                code, output, errors = ended(process)
                assert (code, output) == (0, "")
                assert errors.splitlines()[-1].endswith("  left")
    assert {device["state"] for device in scene.json("device", "list")} == {"left"}


def test_a_run_goes_to_the_device_on_the_machine_where_it_is_created(scene: Scene) -> None:
    """Though another one has the better score; not if that is not wanted, nor if the device was killed."""
    scene.ok("workflow", "add", "work", "--argv", "true")
    scene.ok("workflow", "add", "elsewhere", "--argv", "true", "--requires", "name == 'server'")
    scene.ok("workflow", "add", "preferring", "--argv", "true", "--prefers", "name == 'server'")
    scene.device("server", slots=1000)
    with scene.process("device", "join", "laptop", "--no-monitor") as laptop:
        heard(laptop, "joined as laptop")
        result = scene.run("runs", "create", "work")
        assert re.search(r"It is assigned to laptop, score [0-9.]+, on this machine\.", result.stderr), result.stderr
        told = scene.json("runs", "show", result.stdout.strip())
        [why] = [entry["why"] for entry in told["story"] if entry["what"] == "assigning to other"]
        assert re.fullmatch(
            r"laptop, score [0-9.]+ of 2, preferred, since it is on the machine where the run was created", why
        )
        until(scene, told["id"], status="completed")
        assert scene.json("runs", "create", "work", "--no-prefer-local")["device"] == "server"
        assert scene.json("runs", "create", "elsewhere")["device"] == "server", "no filter is overridden"
        assert scene.json("runs", "create", "preferring")["device"] == "server", "nor what the workflow prefers"
        laptop.kill()
        ended(laptop)
    assert {device["name"]: device["state"] for device in scene.json("device", "list")}["laptop"] == "ready", (
        "as far as known"
    )
    assert scene.json("runs", "create", "work")["device"] == "server"


@pytest.mark.long
def test_what_a_policy_refuses_is_never_granted(scene: Scene) -> None:
    (scene.folder / "policy.yaml").write_text("commands: [sh]\n")
    scene.ok("workflow", "add", "any", "--argv", "{tool} x", "--rounds", "9")
    run_id = scene.json("runs", "create", "any", "--input", '{"tool": "shred"}')["id"]
    policy = str(scene.folder / "policy.yaml")
    with scene.process("device", "join", "laptop", "--no-monitor", "--device-policy", policy) as laptop:
        heard(laptop, "declined: ")
        told = scene.json("runs", "show", run_id)
        assert (told["epoch"], told["previous_assignments"]) == (0, [])
        assert [entry["what"] for entry in told["story"]][:2] == ["created", "declined"]
        assert "does not allow the command 'shred'" in told["declined"].get("laptop", told["story"][1]["why"])


def test_a_run_that_fails_says_so_where_it_is_waited_for(scene: Scene) -> None:
    scene.ok("workflow", "add", "bad", "--shell", "echo no luck >&2; exit 3")
    with scene.process("device", "join", "laptop") as laptop:
        heard(laptop, "joined as laptop")
        result = scene.run("runs", "create", "bad", "--wait")
        assert result.exit_code == 1
        assert "failed on laptop after" in result.stdout
        assert result.stdout.endswith(": CommandFailed: the command exited with 3: no luck\n")
        assert scene.json("runs", "create", "bad", "--wait", code=1)["status"] == "failed"
        [line] = [text for text in heard(laptop, "failed run") if "failed run" in text]
        assert "the command exited with 3: no luck" in line


def test_what_a_function_returns_that_is_not_json_fails_its_run(scene: Scene) -> None:
    scene.ok("workflow", "add", "bytes", "--call", "os:getcwdb")
    (scene.folder / "beside.py").write_text("def add(a, b=1):\n    return {'sum': a + b}\n")
    scene.ok("workflow", "add", "sum", "--call", "beside:add")
    with scene.process("device", "join", "laptop") as laptop:
        heard(laptop, "joined as laptop")
        told = scene.json("runs", "create", "bytes", "--wait", code=1)
        assert "which is not JSON" in told["error"]
        result = scene.run("runs", "output", told["id"])
        assert (result.exit_code, result.stdout) == (1, "")
        assert "which is not JSON" in result.stderr
        told = scene.json("runs", "create", "sum", "--input", '{"a": 4}', "--wait")
        assert told["output"] == {"sum": 5}


@pytest.mark.long
def test_an_input_of_ten_megabytes_reaches_its_command(scene: Scene) -> None:
    (scene.folder / "large.json").write_text(json.dumps({"text": "x" * 10_000_000}))
    scene.ok("workflow", "add", "count", "--shell", 'wc -c < "$ASTERISM_INPUT"')
    with scene.process("device", "join", "laptop") as laptop:
        heard(laptop, "joined as laptop")
        told = scene.json("runs", "create", "count", "--input", f"@{scene.folder / 'large.json'}", "--wait")
    assert int(told["output"]) == pytest.approx(10_000_012, abs=10)


def test_as_json_a_device_tells_its_life_in_objects(scene: Scene) -> None:
    scene.ok("workflow", "add", "work", "--shell", "echo 1")
    with scene.process("device", "join", "laptop", "--json") as laptop:
        heard(laptop, "joined as laptop")
        run_id = scene.json("runs", "create", "work", "--wait")["id"]
        told = [json.loads(line) for line in heard(laptop, "finished run")]
        assert [(event["run"], event["workflow"], event["level"]) for event in told] == 2 * [(run_id, "work", "info")]
        laptop.terminate()
        code, output, _ = ended(laptop)
    assert code == 0
    document = json.loads(output)
    assert (document["name"], document["store"], document["runs"]) == ("laptop", scene.url, 1)


# -- leaving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_lets_what_runs_finish(scene: Scene, number: signal.Signals) -> None:
    gate = scene.folder / "gate"
    os.mkfifo(gate)
    scene.ok("workflow", "add", "wait", "--shell", f"cat {gate}")
    with scene.process("device", "join", "laptop") as laptop:
        heard(laptop, "joined as laptop")
        first = scene.json("runs", "create", "wait")["id"]
        heard(laptop, "started run")
        laptop.send_signal(number)
        heard(laptop, "leaving: 1 run may take 60 s; a second signal hands back now")
        second = scene.json("runs", "create", "wait")["id"]
        gate.write_text("go on\n")
        code, _, errors = ended(laptop)
    assert code == 0
    assert "finished run" in errors
    assert scene.ok("runs", "output", first) == "go on\n"
    told = scene.json("runs", "show", second)
    assert told["output"] is None
    assert "finished" not in [entry["what"] for entry in told["story"]]


def test_a_second_signal_hands_back_at_once(scene: Scene) -> None:
    place = sleeper(scene)
    with scene.process("device", "join", "laptop") as laptop:
        heard(laptop, "joined as laptop")
        run_id = scene.json("runs", "create", "nap")["id"]
        pids = pids_in(place)
        laptop.terminate()
        heard(laptop, "leaving: 1 run")
        laptop.terminate()
        heard(laptop, "handing back unfinished runs")
        code, _, errors = ended(laptop)
    assert code == 0
    assert gone(pids)
    assert f"stopped run {run_id[-8:]} (nap)" in errors
    told = scene.json("runs", "show", run_id)
    assert told["status"] == "reassigning"
    assert [(assignment["reason"], assignment["detail"]) for assignment in told["previous_assignments"]] == [
        ("released", "the device is leaving")
    ]
    assert told["losses"] == told["failures"] == 0


@pytest.mark.long
def test_what_takes_too_long_to_finish_is_handed_back(scene: Scene) -> None:
    place = sleeper(scene)
    with scene.process("device", "join", "laptop", "--drain-for", "0.1") as laptop:
        heard(laptop, "joined as laptop")
        run_id = scene.json("runs", "create", "nap")["id"]
        pids = pids_in(place)
        laptop.terminate()
        code, _, errors = ended(laptop)
    assert code == 0
    assert "handing back unfinished runs" in errors
    assert gone(pids)
    assert scene.json("runs", "show", run_id)["status"] == "reassigning"


def test_a_third_signal_ends_it_and_its_children(scene: Scene) -> None:
    place = scene.folder / "pids"
    os.mkfifo(place)
    line = f"trap '' TERM; sleep 1000 & echo $$ $! > {place}; while :; do wait; done"
    scene.ok("workflow", "add", "stubborn", "--shell", line)
    with scene.process("device", "join", "laptop") as laptop:
        heard(laptop, "joined as laptop")
        scene.json("runs", "create", "stubborn")
        pids = pids_in(place)
        laptop.terminate()
        heard(laptop, "leaving: 1 run")
        laptop.terminate()
        heard(laptop, "handing back")
        laptop.terminate()
        assert laptop.wait(PATIENCE) == 130
        assert gone(pids)


def test_a_device_is_drained_by_command(scene: Scene) -> None:
    gate = scene.folder / "gate"
    os.mkfifo(gate)
    scene.ok("workflow", "add", "wait", "--shell", f"cat {gate}", *QUICK)
    with scene.process("device", "join", "laptop", *QUICK) as laptop:
        heard(laptop, "joined as laptop")
        run_id = scene.json("runs", "create", "wait")["id"]
        heard(laptop, "started run")
        assert scene.ok("device", "drain", "laptop") == "laptop was asked to leave; it has 1 run to finish.\n"
        gate.write_text("go on\n")
        code, _, _ = ended(laptop)
    assert code == 0
    assert scene.json("runs", "show", run_id)["status"] == "completed"
    assert scene.json("device", "list")[0]["state"] == "left"


@pytest.mark.long
def test_a_drained_device_hands_back_what_takes_too_long(scene: Scene) -> None:
    place = sleeper(scene, "nap", *QUICK)
    with scene.process("device", "join", "laptop", "--drain-for", "0.1", *QUICK) as laptop:
        heard(laptop, "joined as laptop")
        run_id = scene.json("runs", "create", "nap")["id"]
        pids = pids_in(place)
        scene.ok("device", "drain", "laptop")
        heard(laptop, "leaving: 1 run may take 0.1 s; a signal hands back now")
        code, _, errors = ended(laptop)
    assert code == 0
    assert "handing back unfinished runs" in errors
    assert gone(pids)
    assert scene.json("runs", "show", run_id)["status"] == "reassigning"


def test_a_signal_hurries_a_device_that_is_drained_by_command(scene: Scene) -> None:
    place = sleeper(scene, "nap", *QUICK)
    with scene.process("device", "join", "laptop", *QUICK) as laptop:
        heard(laptop, "joined as laptop")
        scene.json("runs", "create", "nap")
        pids = pids_in(place)
        scene.ok("device", "drain", "laptop")
        heard(laptop, "leaving: 1 run may take 60 s; a signal hands back now")
        laptop.terminate()
        heard(laptop, "handing back unfinished runs")
        assert ended(laptop)[0] == 0
    assert gone(pids)


# -- asking things of work under way -----------------------------------------------------------------------------------


def test_running_work_is_cancelled_paused_and_resumed(scene: Scene) -> None:
    place = sleeper(scene, "nap", *QUICK)
    with scene.process("device", "join", "laptop", *QUICK) as laptop:
        heard(laptop, "joined as laptop")
        run_id = scene.json("runs", "create", "nap")["id"]
        pids = pids_in(place)
        scene.ok("runs", "pause", run_id, "--reason", "lunch")
        assert gone(pids)
        told = until(scene, run_id, paused="by ann: lunch")
        assert told["status"] == "paused"
        scene.ok("runs", "resume", run_id)
        pids = pids_in(place)
        scene.ok("runs", "cancel", run_id)
        assert scene.run("runs", "wait", run_id).exit_code == 1
        assert gone(pids)
    told = scene.json("runs", "show", run_id)
    assert (told["status"], told["cancelled"]) == ("cancelled", True)
    assert told["error"].startswith("cancelled by ann")


def test_progress_and_output_are_seen_while_it_runs(scene: Scene) -> None:
    gate = scene.folder / "gate"
    os.mkfifo(gate)
    line = f'echo 3/10 > "$ASTERISM_PROGRESS"; echo frame 3; cat {gate}'
    scene.ok("workflow", "add", "work", "--shell", line, *QUICK)
    with scene.process("device", "join", "laptop", *QUICK) as laptop:
        heard(laptop, "joined as laptop")
        run_id = scene.json("runs", "create", "work")["id"]
        until(scene, run_id, progress={"step": 3, "total": 10}, tail="frame 3\n")
        assert "it has been running on laptop" in scene.ok("runs", "why", run_id)
        assert "and has reached 3/10" in scene.ok("runs", "why", run_id)
        gate.write_text("done\n")
        assert scene.run("runs", "wait", run_id).exit_code == 0
    assert scene.ok("runs", "output", run_id) == "frame 3\ndone\n"


# -- sudden death ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_run_of_a_device_that_is_killed_is_taken_over_by_another(scene: Scene) -> None:
    place = sleeper(scene, "nap", *MORTAL, "--prefers", "name == 'one'", "--backoff", "0")
    with scene.process("device", "join", "two", *WATCHFUL) as two:
        heard(two, "joined as two")
        with scene.process("device", "join", "one", *MORTAL, "--every", "0.2") as killed:
            heard(killed, "joined as one")
            run_id = scene.json("runs", "create", "nap")["id"]
            pids = pids_in(place)
            heard(killed, "started run")
            killed.kill()
            assert gone(pids)
        again = pids_in(place)
        heard(two, f"started run {run_id[-8:]} (nap), attempt 2")
        told = until(scene, run_id, status="processing", device="two")
        assert (told["epoch"], told["losses"]) == (2, 1)
        [before] = told["previous_assignments"]
        assert (before["device"], before["reason"]) == ("one", "timeout")
        scene.ok("runs", "cancel", run_id)
        assert gone(again)


@pytest.mark.long
def test_a_monitor_watches_over_devices_that_do_not(scene: Scene) -> None:
    place = sleeper(scene, "nap", *MORTAL, "--losses", "0")
    with (
        scene.process("monitor", "watcher", "--every", "0.2", *QUICK) as monitor,
        scene.process("device", "join", "one", *QUICK, "--no-monitor") as device_process,
    ):
        heard(monitor, "joined as watcher")
        heard(device_process, "joined as one")
        run_id = scene.json("runs", "create", "nap")["id"]
        pids_in(place)
        told = {device["name"]: device for device in scene.json("device", "list")}
        assert (told["watcher"]["state"], told["watcher"]["slots"]) == ("watching", 0)
        device_process.kill()
        result = scene.run("runs", "wait", run_id)
        assert result.exit_code == 1
        assert "lost 1 times, the last time because one was not heard of" in result.stdout
        assert scene.ask(lambda fleet: fleet.coordinator()) == "watcher"
        monitor.send_signal(signal.SIGINT)
        assert ended(monitor)[0] == 0


@pytest.mark.long
def test_a_monitor_goes_by_the_policy_of_its_machine_when_it_tells_people(scene: Scene) -> None:
    """It does no work, but it runs the command that the store names."""
    policy = scene.folder / "config" / "asterism" / "policy.yaml"
    policy.parent.mkdir(parents=True)
    policy.write_text("commands: [echo]\n")
    mark = scene.folder / "mark"
    scene.ok("workflow", "add", "work", "--shell", "true", "--no-device-timeout", "0.1")
    scene.ok("fleet", "set", "--notify-command", f"touch {mark}")
    with scene.process("monitor", "watcher", "--every", "0.2", *QUICK) as monitor:
        scene.run("runs", "create", "work", "--wait")
        heard(monitor, "policy.yaml of this device does not allow the command 'touch'")
        assert not mark.exists()
        monitor.send_signal(signal.SIGINT)
        assert ended(monitor)[0] == 0
    policy.unlink()
    other = scene.folder / "other.yaml"
    other.write_text("commands: [touch]\n")
    with scene.process("monitor", "watcher", "--every", "0.2", "--device-policy", str(other), *QUICK) as monitor:
        heard(monitor, f"the device policy is {other}")
        deadline = time.monotonic() + PATIENCE
        while not mark.exists():  # the first notice is still to be told
            assert time.monotonic() < deadline, "no notice arrived"
            time.sleep(0.05)
        monitor.send_signal(signal.SIGINT)
        assert ended(monitor)[0] == 0


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_two_devices_of_one_name_are_refused_with_words(scene: Scene) -> None:
    with scene.process("device", "join", "laptop") as first:
        heard(first, "joined as laptop")
        with scene.process("device", "join", "laptop") as second:
            code, output, errors = ended(second)
        assert (code, output) == (64, "")
        assert errors.endswith("Error: a device 'laptop' of this store is running on this machine already\n")
        [told] = scene.json("device", "list")
        assert told["state"] == "ready"
        assert first.poll() is None


def test_a_name_that_is_in_use_elsewhere_is_refused_unless_it_is_to_be_replaced(scene: Scene) -> None:
    scene.device("laptop", host="another machine")
    result = scene.run("device", "join", "laptop")
    assert result.exit_code == 64
    assert "a device 'laptop' is joined from another machine and was heard of" in result.stderr
    with scene.process("device", "join", "laptop", "--replace") as process:
        heard(process, "joined as laptop")
        process.terminate()
        assert ended(process)[0] == 0


def test_the_policy_of_a_device_is_what_it_goes_by(scene: Scene) -> None:
    policy = scene.folder / "config" / "asterism" / "policy.yaml"
    policy.parent.mkdir(parents=True)
    policy.write_text("commands: [echo]\n")
    scene.ok("workflow", "add", "say", "--argv", "echo {word}")
    scene.ok("workflow", "add", "shout", "--shell", "echo hello", "--rounds", "1")
    with scene.process("device", "join", "laptop", *WATCHFUL) as laptop:
        joining = heard(laptop, "joined as laptop")
        assert any(f"the device policy is {policy}" in line for line in joining)
        told = scene.json("runs", "create", "say", "--input", '{"word": "hi"}', "--wait")
        assert told["output"] == "hi"
        told = scene.json("runs", "create", "shout", "--wait", code=1)
        assert "policy.yaml of this device does not allow shell lines" in told["error"]


def test_the_environment_of_a_device_is_not_shown(scene: Scene) -> None:
    scene.ok("workflow", "add", "leak", "--shell", 'echo "$word"; echo "$word" >&2; exit 1', "--env", "A=1")
    run_input = json.dumps({"word": {"secret": "TOKEN"}})
    with scene.process("device", "join", "laptop", TOKEN="hunter2") as laptop:
        heard(laptop, "joined as laptop")
        told = scene.json("runs", "create", "leak", "--input", run_input, "--wait", code=1)
        assert "[secret]" in told["error"]
        assert "hunter2" not in json.dumps(told)
        laptop.terminate()
        _, output, errors = ended(laptop)
    assert "hunter2" not in output + errors


def test_a_device_whose_store_is_out_of_reach_says_so(scene: Scene) -> None:
    with scene.process("device", "join", "laptop", ASTERISM_STORE=f"sqlite:///{scene.folder}/none/x.db") as process:
        code, output, errors = ended(process)
    assert (code, output) == (69, "")
    assert len(errors.splitlines()) == 1


def test_a_signal_before_it_has_joined_ends_it(scene: Scene) -> None:
    scene.workflow()
    lock = sqlite3.connect(scene.file, isolation_level=None)
    try:
        lock.execute("BEGIN IMMEDIATE")  # nobody can join meanwhile
        with scene.process("device", "join", "laptop") as process:
            heard(process, "joining ")
            process.terminate()
            code, output, errors = ended(process)
    finally:
        lock.close()
    assert (code, output) == (130, "")
    assert "Traceback" not in errors
    assert scene.json("device", "list") == []


def test_watching_shows_a_run_from_its_creation_to_its_end(scene: Scene) -> None:
    scene.ok("workflow", "add", "work", "--shell", "echo 1")
    waiting = scene.create(device="elsewhere")
    with scene.process("runs", "watch") as watching, scene.process("device", "join", "laptop") as laptop:
        read_until(watching, waiting.id[-8:])  # what is over before it begins to watch it does not tell
        heard(laptop, "joined as laptop")
        run_id = scene.json("runs", "create", "work")["id"]
        lines = read_until(watching, "completed")
        assert all(run_id[-8:] in line for line in lines)
