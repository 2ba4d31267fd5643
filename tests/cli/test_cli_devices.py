"""`asterism device` and `asterism monitor` without processes: lists, scores, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from asterism.api.local.fleet_handlers import device_scores
from asterism.core.run import transitions
from asterism.core.run.placement import candidate_of, score
from asterism.core.run.run import Run
from asterism.core.run.session import ABROAD, ENDED, REPLACED, REVOKED
from asterism.fleet.fleet import Fleet, new_run
from asterism.store.protocol import PutRegister, PutSession
from tests.cli.cli_scenes import write
from tests.cli.command_scenes import Scene, assigned_to, completed, started, taken_by

DEVICE_FIELDS = {
    *(
        "name",
        "state",
        "coordinator",
        "session",
        "resting",
        "host",
        "peer",
        "can",
        "slots",
        "backlog",
        "used",
        "load",
        "quality",
        "rank",
    ),
    *("battery", "labels", "accepts", "draining", "heartbeat_timeout", "joined_at", "last_heartbeat_at", "profile"),
}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    new_scene = Scene(tmp_path)
    new_scene.workflow()
    return new_scene


def elect(scene: Scene, name: str) -> None:
    async def write(fleet: Fleet) -> None:
        value = {
            "device": name,
            "session": f"session-{name}",
            "epoch": 1,
            "until": fleet.store.clock() + 1000,
            "lease": 1000,
        }
        await fleet.store.commit([PutRegister("coordinator", value, None)])

    scene.ask(write)


def change(scene: Scene, name: str, **changes: object) -> None:
    async def write(fleet: Fleet) -> None:
        [session] = [candidate for candidate in await fleet.store.sessions() if candidate.device == name]
        await fleet.store.commit([PutSession(session.changed(**changes), session.revision)])

    scene.ask(write)


def test_a_device_is_listed_with_the_peer_through_which_it_is_known(scene: Scene) -> None:
    scene.device("laptop")
    scene.device("cooker", host="via kitchen")
    change(scene, "cooker", state=ABROAD)
    titles, cooker, laptop = (line.split() for line in scene.ok("device", "list").splitlines())
    assert titles[:3] == ["DEVICE", "STATE", "PEER"]
    assert cooker[:3] == ["cooker", "ready", "kitchen"]
    assert "kitchen" not in laptop
    assert [device["peer"] for device in scene.json("device", "list")] == ["kitchen", None]


def test_the_process_of_a_plan_vanishes_when_it_has_left(scene: Scene, tmp_path: Path) -> None:
    scene.device("laptop@den", profile={"plan": "nightly"})
    assert [device["name"] for device in scene.json("device", "list")] == ["laptop@den"]
    change(scene, "laptop@den", state=ENDED)
    scene.device("laptop")
    change(scene, "laptop", state=ENDED)
    assert [(device["name"], device["state"]) for device in scene.json("device", "list")] == [("laptop", "left")]
    scene.ok("run", write(tmp_path, "tasks: {a: {shell: 'true'}}"), "--store", scene.url, "--id", "evening")
    assert [device["name"] for device in scene.json("device", "list")] == ["laptop"]
    assert scene.ok("plan", "list").count("evening") == 1


def test_devices_are_listed_with_their_state(scene: Scene) -> None:
    run = scene.create()
    scene.device("ready", can=frozenset({"gpu", "ffmpeg"}), slots=2, profile={"battery": 0.42, "plugged": False})
    scene.device("busy", profile={"quality": 0.5})
    scene.device("draining", draining=True)
    scene.device("silent", timeout=1e-6)
    scene.device("watcher", slots=0)
    scene.device("left")
    scene.device("replaced")
    scene.device("revoked")
    scene.step(run, taken_by("busy"), started)
    change(scene, "left", state=ENDED)
    change(scene, "replaced", state=REPLACED)
    change(scene, "revoked", state=REVOKED)
    elect(scene, "watcher")
    titles, *rows = scene.ok("device", "list").splitlines()
    assert titles.split() == ["DEVICE", "STATE", "SLOTS", "LOAD", "QUALITY", "RANK", "BATTERY", "BEAT", "CAN"]
    words = {row.replace("*", " ").split()[0]: row.replace("*", " ").split() for row in rows}
    assert {name: row[1] for name, row in words.items()} == {
        "busy": "busy",
        "draining": "draining",
        "left": "left",
        "ready": "ready",
        "replaced": "replaced",
        "revoked": "revoked",
        "silent": "silent",
        "watcher": "watching",
    }
    assert [row for row in rows if row.startswith("*")] == [row for row in rows if " watcher " in row]
    assert words["ready"][2:4] == ["0/2", "0.00"]
    assert "42%" in words["ready"]
    assert words["ready"][-2:] == ["ffmpeg,", "gpu"]
    assert words["busy"][2:5] == ["1/1", "1.00", "0.50"]


def test_a_device_that_rests_is_shown_as_resting_and_not_chosen(scene: Scene) -> None:
    scene.workflow("hard", argv=("true",))
    scene.device("laptop", profile={"battery": 0.1, "resting": "'battery < 0.2' holds"})
    [told] = scene.json("device", "list")
    assert (told["state"], told["resting"]) == ("resting", "'battery < 0.2' holds")
    assert "resting" not in told["profile"]
    assert " resting " in scene.ok("device", "list")
    [told] = scene.json("device", "scores", "hard")["devices"]
    words = "resting: it would hand this back because 'battery < 0.2' holds"
    assert (told["candidate"], told["chosen"], told["score"], told["why"]) == (False, False, None, words)
    assert words in scene.ok("device", "scores", "hard")
    result = scene.run("runs", "create", "hard")
    assert "It waits: laptop is resting: it would hand it back because 'battery < 0.2' holds." in result.stderr
    assert [reason["kind"] for reason in scene.json("runs", "why", result.stdout.strip())["reasons"]] == ["resting"]


def test_as_json_a_device_has_the_names_that_programs_count_on(scene: Scene) -> None:
    scene.device("laptop", profile={"labels": {"room": "kitchen"}, "os": "linux", "battery": None, "plugged": True})
    elect(scene, "laptop")
    [told] = scene.json("device", "list")
    assert set(told) == DEVICE_FIELDS
    assert (told["name"], told["state"], told["coordinator"], told["rank"]) == ("laptop", "ready", True, 1.0)
    assert (told["labels"], told["profile"]) == (
        {"room": "kitchen"},
        {"os": "linux", "battery": None, "plugged": True},
    )
    assert told["battery"] is None


def test_a_fleet_without_devices_says_what_to_do(scene: Scene) -> None:
    assert scene.run("device", "list").stderr == "No device has joined. Start one with: asterism device join NAME\n"
    assert scene.json("device", "list") == []


def test_a_device_is_asked_to_leave(scene: Scene) -> None:
    first = scene.create()
    scene.device("laptop", slots=2)
    scene.step(first, taken_by("laptop"), started)
    assert scene.ok("device", "drain", "laptop") == "laptop was asked to leave; it has 1 run to finish.\n"
    assert scene.json("device", "drain", "laptop")["draining"] is True
    scene.device("phone", timeout=1e-6)
    assert "it leaves when it comes back." in scene.ok("device", "drain", "phone")
    result = scene.run("device", "drain", "attic")
    assert (result.exit_code, result.stderr) == (64, "Error: no device 'attic' is joined\n")


def test_scores_are_shown_in_their_parts_and_add_up_to_what_selection_uses(scene: Scene) -> None:
    scene.workflow("hard", argv=("true",), needs={"gpu"})
    busy = scene.create()
    scene.device("big", can=frozenset({"gpu"}), slots=4, profile={"quality": 0.9})
    scene.device("full", can=frozenset({"gpu"}))
    scene.device("plain")
    scene.device("quiet", can=frozenset({"gpu"}), timeout=1e-6)
    scene.step(busy, taken_by("full"), started)
    elect(scene, "full")
    told = scene.json("device", "scores", "hard")
    assert {name: told[name] for name in ("workflow", "version", "strategy", "run", "assignment")} == {
        **{"workflow": "hard", "version": 1, "strategy": "score"},
        **{"run": None, "assignment": None},
    }
    scores = {device["device"]: device for device in told["devices"]}
    assert list(scores) == ["big", "full", "plain", "quiet"]
    assert scores["big"]["parts"] == pytest.approx(
        {"load": 40.0, "connection": 27.0, "rank": 13.33, "capability": 10.0}, abs=0.01
    )
    assert scores["big"]["score"] == pytest.approx(90.33, abs=0.01)
    assert (scores["big"]["chosen"], scores["big"]["candidate"], scores["big"]["why"]) == (True, True, None)
    assert (scores["full"]["parts"]["load"], scores["full"]["why"]) == (0.0, "no free slot")
    assert (scores["plain"]["candidate"], scores["plain"]["why"]) == (False, "it lacks gpu")
    assert scores["quiet"]["why"].startswith("no heartbeat for ")

    async def same(fleet: Fleet) -> None:
        flow = await fleet.workflows.latest("hard")
        placer = await fleet.placer(fresh=True)
        for rating in await device_scores(fleet, new_run(fleet, flow, {})):
            if rating.parts is not None:
                candidate = candidate_of(placer.sessions[rating.device], placer.now, placer.ranks[rating.device])
                assert rating.score == round(score(candidate, (None, flow.needs), placer.weights), 2)

    scene.ask(same)
    text = scene.ok("device", "scores", "hard").splitlines()
    assert text[0] == "hard@1, strategy score"
    assert text[1].split() == ["DEVICE", "SCORE", "LOAD", "CONNECTION", "RANK", "CAPABILITY", "WHY", "NOT"]
    assert text[2].split() == ["*", "big", "90.33", "40.0", "27.0", "13.3", "10.0"]
    assert text[4].split() == ["plain", "it", "lacks", "gpu"]


def test_weights_of_the_fleet_count_in_the_scores(scene: Scene) -> None:
    scene.device("a")
    scene.ok("fleet", "set", "--weight", "load=100", "--weight", "connection=0", "--weight", "rank=0")
    [told] = scene.json("device", "scores", "work")["devices"]
    assert told["score"] == 100.0


def test_for_a_run_the_scores_of_its_assignment_are_shown_too(scene: Scene) -> None:
    run = scene.create()
    scene.device("a")
    scene.step(run, assigned_to("a"), _claimed, started, completed(1))
    told = scene.json("device", "scores", run.id[-7:])
    assert (told["run"], told["assignment"]) == (run.id, {"a": 90.0})
    text = scene.ok("device", "scores", run.id)
    assert text.splitlines()[-1] == "At its assignment to a, epoch 1: a 90.00"


def _claimed(run: Run, now: float) -> Run:
    assert run.grant is not None
    return transitions.claim(run, run.grant, now)


def test_scores_without_devices_or_of_nothing(scene: Scene) -> None:
    assert "No device is joined." in scene.ok("device", "scores", "work")
    result = scene.run("device", "scores", "zzzz")
    assert result.exit_code == 64
    assert "there is no workflow 'zzzz', and no run has 'zzzz' in its id" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--accepts", "run.by =="], "Invalid value for --accepts: the expression is not valid"),
        (["--hands-back", "battery <"], "Invalid value for --hands-back: the expression is not valid"),
        (["--heartbeat", "60"], "--heartbeat-timeout must be at least twice --heartbeat"),
        (["--slots", "0"], "0 is not in the range x>=1"),
        (["--label", "x"], "'x' is not NAME=VALUE."),
        (["--device-policy", "none.yaml"], "there is no device policy file none.yaml"),
        (["--drain-for", "soon"], "'soon' is not a valid duration"),
    ],
)
def test_a_device_that_makes_no_sense_does_not_join(scene: Scene, words: list[str], told: str) -> None:
    result = scene.run("device", "join", "laptop", *words)
    assert result.exit_code == 64
    assert told in result.stderr
    assert scene.json("device", "list") == []


def test_a_policy_with_a_mistake_keeps_a_device_from_joining(scene: Scene) -> None:
    policy = scene.folder / "config" / "asterism" / "policy.yaml"
    policy.parent.mkdir(parents=True)
    policy.write_text("commands: [ffmpeg]\nshel: true\n")
    result = scene.run("device", "join", "laptop")
    assert result.exit_code == 64
    assert f"{policy}:2: there is no key 'shel'; did you mean 'shell'?" in result.stderr
    assert scene.json("device", "list") == []


def test_a_name_that_cannot_be_one_is_refused(scene: Scene) -> None:
    result = scene.run("device", "join", "a|b")
    assert result.exit_code == 64
    assert "the name of a device must have 1 to 100 characters" in result.stderr
