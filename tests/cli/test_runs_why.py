"""`asterism runs why`: every reason why a run is not running, as text and as JSON."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.core.run.session import ENDED
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import UnknownRun
from asterism.fleet.run_explanation import RunExplanation, explain_run
from asterism.store.protocol import PutRegister, PutSession
from tests.cli.command_scenes import Scene, assigned_to, completed, failed, started, taken_by


def reasons(scene: Scene, run: Run, kind: str | None = None) -> list[str]:
    """The sentences, or those of one kind."""
    answer = scene.ask(lambda fleet: explain_run(fleet, run.id))
    return [reason.text for reason in answer.reasons if kind is None or reason.kind == kind]


def kinds(scene: Scene, run: Run) -> list[tuple[str, str]]:
    answer: RunExplanation = scene.ask(lambda fleet: explain_run(fleet, run.id))
    return [(reason.kind, reason.name) for reason in answer.reasons]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    new_scene = Scene(tmp_path)
    new_scene.workflow()
    return new_scene


# -- runs without an owner ---------------------------------------------------------------------------------------------


def test_without_any_device_that_is_the_reason(scene: Scene) -> None:
    run = scene.create()
    assert kinds(scene, run) == [("no_device", "")]
    assert reasons(scene, run) == ["no device is joined"]


def test_processes_that_only_run_plans_are_no_devices(scene: Scene) -> None:
    run = scene.create()
    scene.device("cc@vm", slots=0)
    assert reasons(scene, run) == ["no device that executes work is joined"]


def test_each_device_has_a_reason_why_it_is_not_a_candidate(scene: Scene) -> None:
    scene.workflow("hard", argv=("true",), needs={"gpu"}, requires="os == 'plan9'")
    run = scene.create("hard")
    scene.device("a")
    scene.device("b", can=frozenset({"gpu"}))
    scene.device("c", can=frozenset({"gpu"}), slots=0)
    scene.device("d", can=frozenset({"gpu"}), draining=True)
    assert kinds(scene, run) == [("no_device", ""), *(("objection", name) for name in "abd")]
    assert reasons(scene, run) == [
        "none of the 3 devices can take it",
        "a: it lacks gpu",
        "b: \"os == 'plan9'\" does not hold",
        "d: it is draining",
    ]


def test_a_rule_of_the_device_itself_is_named(scene: Scene) -> None:
    run = scene.create()
    scene.device("a", accepts="run.by == 'bob'")
    assert reasons(scene, run, "objection") == ["a: its own rule: \"run.by == 'bob'\" does not hold"]


def test_a_run_for_one_device_says_when_that_is_not_there(scene: Scene) -> None:
    run = scene.create(device="desktop")
    scene.device("a")
    assert kinds(scene, run) == [("no_device", "desktop")], "of the others there is nothing to say"
    assert reasons(scene, run) == ["only device desktop may take it, and it is not joined"]
    result = scene.run("runs", "why", run.id)
    assert (
        "On any machine that reaches the store, start a capable device: asterism device join desktop" in result.stdout
    )


def test_a_run_for_one_device_says_why_that_one_cannot_take_it(scene: Scene) -> None:
    run = scene.create(device="desktop")
    scene.device("a")
    scene.device("desktop", accepts="run.by == 'bob'")
    assert kinds(scene, run) == [("no_device", "desktop"), ("objection", "desktop")]
    assert reasons(scene, run)[0] == "only device desktop may take it, and it cannot"
    assert "asterism device join" not in scene.ok("runs", "why", run.id)


def test_a_device_that_fell_silent_is_named(scene: Scene) -> None:
    run = scene.create()
    scene.device("a", timeout=1e-6)
    assert kinds(scene, run) == [("no_device", ""), ("silent", "a")]
    assert reasons(scene, run, "silent")[0].startswith("a has not been heard of for ")


def test_when_all_are_busy_each_is_named(scene: Scene) -> None:
    first, second = scene.create(), scene.create()
    scene.device("a")
    scene.step(first, taken_by("a"), started)
    assert kinds(scene, second) == [("busy", "a")]
    assert reasons(scene, second) == ["a can take it, but its slot is taken"]


def test_with_a_free_device_it_is_about_to_begin(scene: Scene) -> None:
    run = scene.create()
    scene.device("a")
    assert reasons(scene, run) == ["a can take it and has a free slot: it is about to start"]


def test_a_pause_is_shown_with_author_and_reason(scene: Scene) -> None:
    run = scene.create()
    scene.ok("runs", "pause", run.id, "--reason", "the disk is full")
    assert kinds(scene, run) == [("pause", "by ann: the disk is full")]
    told = scene.ok("runs", "why", run.id)
    assert "it is paused by ann: the disk is full, until it is resumed" in told
    assert f"Resume it with: asterism runs resume {run.id[-8:]}" in told


def test_a_series_names_its_active_run_and_the_place_in_the_queue(scene: Scene) -> None:
    first, second, third = (scene.create(series="RFC-093") for _ in range(3))
    assert kinds(scene, second) == [("series", "RFC-093")]
    assert reasons(scene, second) == [
        f"run {first.id} (work, created) is the active one of series RFC-093, and it is next"
    ]
    assert reasons(scene, third)[0].endswith("is the active one of series RFC-093, and 1 more come before it")


def test_a_pause_before_the_next_try_says_how_long_and_after_what(scene: Scene) -> None:
    scene.workflow("again", argv=("true",), retries=3, backoff=300)
    run = scene.step(scene.create("again"), taken_by("a"), started, failed("no luck"))
    assert kinds(scene, run) == [("backoff", "")]
    assert reasons(scene, run)[0].startswith(
        "the next attempt begins in 5 min, after the last one on a (failed: no luck)"
    )
    assert scene.json("runs", "why", run.id)["reasons"][0]["at"] == pytest.approx(run.not_before)


# -- runs with an owner ------------------------------------------------------------------------------------------------


def test_an_assignment_that_is_not_claimed_says_how_long_it_lasts(scene: Scene) -> None:
    run = scene.create()
    scene.device("a")
    scene.step(run, assigned_to("a"))
    assert kinds(scene, run) == [("assigned", "a")]
    [text] = reasons(scene, run)
    assert text.startswith("it was assigned to a ")
    assert text.endswith(" left to answer")


def test_a_claim_names_what_its_device_works_on_first(scene: Scene) -> None:
    first, second = scene.create(priority=5), scene.create()
    scene.device("a", backlog=1)
    scene.step(first, taken_by("a"), started)
    scene.step(second, taken_by("a"))
    assert kinds(scene, second) == [("claimed", "a"), ("behind", first.id)]
    assert reasons(scene, second, "behind") == [f"a executes {first.id} (work, priority 5) first"]


def test_work_under_way_says_where_and_how_far(scene: Scene) -> None:
    run = scene.create()
    scene.device("a")
    run = scene.step(run, taken_by("a"), started)
    assert kinds(scene, run) == [("running", "a")]
    assert reasons(scene, run)[0].startswith("it has been running on a for ")
    assert scene.ok("runs", "why", run.id).startswith(f"Run {run.id} is processing:\n  it has been running on a for ")


def test_a_pending_stop_request_is_named(scene: Scene) -> None:
    run = scene.create()
    scene.device("a")
    scene.step(run, taken_by("a"), started)
    scene.ok("runs", "cancel", run.id)
    assert kinds(scene, run) == [("running", "a"), ("wish", "cancel")]
    assert reasons(scene, run, "wish") == ["a was asked to cancel it by ann, and has not stopped yet"]


def silent(scene: Scene, *names: str) -> Run:
    """A run on the first of some devices, all of them silent."""
    scene.workflow("quick", argv=("true",), heartbeat=1.0, heartbeat_timeout=2.0)
    run = scene.create("quick")
    for name in names:
        scene.device(name, timeout=2.0)
    run = scene.step(run, taken_by(names[0]), started)
    with contextlib.closing(sqlite3.connect(scene.file, isolation_level=None)) as file:
        file.execute("UPDATE sessions SET beat_at = beat_at - 3")
    return run


def test_a_silent_owner_without_a_coordinator_is_named(scene: Scene) -> None:
    run = silent(scene, "a")
    assert kinds(scene, run) == [("running", "a"), ("silent", "a"), ("unwatched", "")]
    assert reasons(scene, run, "silent")[0].endswith("; the run may be taken away now")
    assert "Start a coordinator: asterism monitor" in scene.ok("runs", "why", run.id)


def elect(scene: Scene, name: str) -> None:
    async def write(fleet: Fleet) -> None:
        value = {"device": name, "session": "x", "epoch": 1, "until": fleet.store.clock() + 1000, "lease": 1000}
        await fleet.store.commit([PutRegister("coordinator", value, None)])

    scene.ask(write)


def test_the_brake_is_named_with_how_long_it_lasts(scene: Scene) -> None:
    run = silent(scene, "a", "b", "c")
    elect(scene, "watcher")
    assert kinds(scene, run) == [("running", "a"), ("silent", "a"), ("brake", "")]
    assert re.search(r"nothing is taken away for \d+ s", reasons(scene, run, "brake")[0])


def test_with_a_coordinator_and_no_brake_a_silent_owner_is_the_only_reason(scene: Scene) -> None:
    run = silent(scene, "a")
    elect(scene, "watcher")
    assert kinds(scene, run) == [("running", "a"), ("silent", "a")]


def test_an_owner_that_has_gone_is_named(scene: Scene) -> None:
    run = scene.create()
    session = scene.device("a")
    scene.step(run, taken_by("a"), started)

    async def leave(fleet: Fleet) -> None:
        await fleet.store.commit([PutSession(session.changed(state=ENDED), session.revision)])

    scene.ask(leave)
    assert ("silent", "a") in kinds(scene, run)
    assert reasons(scene, run, "silent") == ["a has left the fleet: the run is about to be taken away"]


# -- it has ended ------------------------------------------------------------------------------------------------------


def given_up(run: Run, now: float) -> Run:
    return transitions.give_up(run, now, "no device could take it for 300 s. a: it lacks gpu")


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((taken_by("a"), started, completed(1)), "it completed on a, 0 s ago"),
        ((taken_by("a"), started, failed("no luck")), "it failed 0 s ago: no luck"),
        ((given_up,), "it failed 0 s ago: no device could take it for 300 s. a: it lacks gpu"),
    ],
)
def test_the_end_of_a_run_is_explained(scene: Scene, steps: tuple[Callable[..., Run], ...], words: str) -> None:
    run = scene.step(scene.create(), *steps)
    [(kind, _)] = kinds(scene, run)
    assert kind == "ended"
    [text] = reasons(scene, run)
    assert text.split(" s ago")[1] == words.split(" s ago")[1]
    assert text.split(" ")[:2] == words.split(" ")[:2]


def test_the_author_of_a_cancellation_is_shown(scene: Scene) -> None:
    run = scene.create()
    scene.ok("runs", "cancel", run.id)
    [text] = reasons(scene, run)
    assert text.startswith("it was cancelled ")
    assert text.endswith(" ago by ann")


# -- the answer --------------------------------------------------------------------------------------------------------


def test_the_answer_is_a_line_and_a_document(scene: Scene) -> None:
    run = scene.create()
    answer = scene.ask(lambda fleet: explain_run(fleet, run.id))
    assert str(answer) == f"run {run.id} is created: no device is joined"
    assert scene.json("runs", "why", run.id[-7:]) == {
        "run": run.id,
        "status": "created",
        "reasons": [{"kind": "no_device", "name": "", "text": "no device is joined", "at": None}],
        "advice": ["On any machine that reaches the store, start a capable device: asterism device join NAME"],
    }
    with pytest.raises(UnknownRun):
        scene.ask(lambda fleet: explain_run(fleet, "none"))


def test_of_very_many_devices_only_some_are_named(scene: Scene) -> None:
    scene.workflow("hard", argv=("true",), needs={"gpu"})
    run = scene.create("hard")
    for number in range(30):
        scene.device(f"d{number:02}")
    assert len(kinds(scene, run)) == 21
    assert reasons(scene, run)[0] == "none of the 30 devices can take it"
