"""`asterism runs` on existing runs: show, cancel, pause, resume, retry, output, wait, prune."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import pytest

from asterism.cli.run.run_views import describe_outcome
from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import Progress, Run
from asterism.core.run.work import Workflow
from asterism.fleet import run_queries
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import ProgressReport
from tests.cli.command_scenes import (
    RUN_FIELDS,
    Scene,
    a_few,
    assigned_to,
    completed,
    document_of,
    failed,
    started,
    taken_by,
)


def test_a_run_is_shown_with_its_story(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow(argv=("true",), retries=1, backoff=0)
    run = scene.create(run_input={"n": 1}, priority=5)
    scene.device("laptop")
    scene.step(run, assigned_to("laptop"))
    scene.step(run, lambda current, now: _declined(current, now))
    run = scene.step(run, taken_by("laptop"), started, failed("the disk is full"), taken_by("laptop"), started)
    text = scene.ok("runs", "show", run.id[-6:])
    for words in (
        f"◐ {run.id}  work@1  processing",
        " by ann",
        "device     laptop, epoch 3",
        "heartbeat",
        "the run is lost after 90 s without one",
        'input      {"n": 1}',
        "priority   5",
        "attempts   2 (1 failed)",
        "it has been running on laptop for",
        "declined: it is raining",
        "Previous assignments",
        "failed    the disk is full",
    ):
        assert words in text, text
    told = scene.json("runs", "show", run.id)
    assert set(told) == RUN_FIELDS | {"now", "tail", "more_output", "notices", "why", "advice"}
    assert [assignment["reason"] for assignment in told["previous_assignments"]] == ["declined", "failed"]
    assert [reason["kind"] for reason in told["why"]] == ["running"]


def _declined(run: Run, now: float) -> Run:
    assert run.grant is not None
    return transitions.decline(run, run.grant, "it is raining", now)


def test_a_failed_run_is_shown_with_its_error_and_its_notice(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _, bad, _, _ = a_few(scene)
    text = scene.ok("runs", "show", bad.id)
    assert "error    no luck" in text
    assert f"run {bad.id} (play) failed: no luck" in text
    assert scene.json("runs", "show", bad.id)["notices"][0]["kind"] == "failed"


def test_what_a_run_says_is_shown_as_far_as_its_device_has_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _, _, busy, _ = a_few(scene)

    async def tell(fleet: Fleet) -> None:
        report = ProgressReport(busy.id, busy.epoch, Progress(3, 10), "frame 1\nframe \x1b[31m2")
        await fleet.store.heartbeat("session-laptop", {}, [report])

    scene.ask(tell)
    text = scene.ok("runs", "show", busy.id)
    assert "progress   3/10" in text
    assert "End of the output so far\n  frame 1\n  frame ·[31m2" in text
    told = scene.json("runs", "show", busy.id)
    assert (told["progress"], told["tail"]) == ({"step": 3, "total": 10}, "frame 1\nframe \x1b[31m2")
    assert " 3/10" in scene.ok("runs", "list")


def beginning_of(runs: list[Run]) -> str:
    """What the ids of all of them begin with."""
    places = zip(*(run.id for run in runs), strict=True)
    return "".join(letters[0] for letters in takewhile(lambda some: len(set(some)) == 1, places))


def test_a_run_is_meant_by_any_part_of_its_id_that_no_other_has(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    first, other = scene.create(), scene.create()
    part = beginning_of([first, other])
    assert scene.json("runs", "show", first.id[len(part) :].upper())["id"] == first.id
    result = scene.run("runs", "show", part)
    assert (result.exit_code, result.stdout) == (64, "")
    assert f"Error: several runs have '{part}' in their ids; give more letters:" in result.stderr
    for run in (first, other):
        assert f"  {run.id}  work  created" in result.stderr
    result = scene.run("runs", "show", "zzzz")
    assert "no run has 'zzzz' in its id" in result.stderr
    assert "the id of the run is empty" in scene.run("runs", "show", " ").stderr


def test_very_many_candidates_are_not_all_listed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()

    async def many(fleet: Fleet) -> list[Run]:
        return [await fleet.create("work") for _ in range(13)]

    runs = scene.ask(many)
    result = scene.run("runs", "show", beginning_of(runs))
    assert result.stderr.count("  work  created") == 10
    assert "and more than 10 in all" in result.stderr


# -- what is asked of runs ---------------------------------------------------------------------------------------------


def test_runs_are_cancelled_at_once_or_their_devices_are_asked(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    done, _, busy, new = a_few(scene)
    result = scene.run("runs", "cancel", new.id, busy.id, done.id, new.id)
    assert result.exit_code == 64
    assert result.stdout.splitlines() == [
        f"{new.id[-8:]} cancelled by ann",
        f"{busy.id[-8:]}: laptop was asked to cancel it",
    ]
    assert result.stderr == (f"Run {done.id}: it is completed, which is final: it cannot be cancelled.\n")
    again = scene.json("runs", "cancel", busy.id)
    assert [(run["status"], run["wish"], run["wished_by"]) for run in again] == [("cancelling", "cancel", "ann")]
    assert scene.ok("runs", "cancel", busy.id) == f"{busy.id[-8:]} is unchanged: cancelling\n"
    assert " cancelling " in scene.ok("runs", "list")
    assert " cancelled " in scene.ok("runs", "list")


def test_runs_are_paused_with_a_reason_and_resumed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _, _, busy, new = a_few(scene)
    assert scene.ok("runs", "pause", new.id, busy.id, "--reason", "the disk is full").splitlines() == [
        f"{new.id[-8:]} is paused by ann: the disk is full",
        f"{busy.id[-8:]}: laptop was asked to pause it",
    ]
    listed = scene.ok("runs", "list")
    assert " paused " in listed
    assert " pausing " in listed
    assert scene.ok("runs", "resume", new.id, busy.id).splitlines() == [
        f"{new.id[-8:]} is resumed; it waits for its turn in series s",
        f"{busy.id[-8:]} is resumed: laptop continues it, or hands it back to be offered again if it was stopping",
    ]
    result = scene.run("runs", "resume", new.id)
    assert (result.exit_code, result.stderr) == (
        64,
        f"Run {new.id}: it is created: it cannot be resumed: it is not paused.\n",
    )


def test_lists_json_and_why_report_one_status_for_a_run(tmp_path: Path) -> None:
    """Every word of the table is one of --status, finds the runs that it is said of, and no others."""
    scene = Scene(tmp_path)
    done, bad, busy, new = a_few(scene)
    other = scene.create(device="desktop")
    scene.ok("runs", "cancel", new.id, busy.id)
    scene.ok("runs", "pause", other.id, "--reason", "lunch")
    statuses = {done.id: "completed", bad.id: "failed", new.id: "cancelled", busy.id: "cancelling", other.id: "paused"}
    assert {run["id"]: run["status"] for run in scene.json("runs", "list")} == statuses
    for run_id, status in statuses.items():
        assert [run["id"] for run in scene.json("runs", "list", "--status", status)] == [run_id]
        assert f" {status} " in scene.ok("runs", "list", "--status", status)
        assert scene.json("runs", "show", run_id)["status"] == status
        assert scene.json("runs", "why", run_id)["status"] == status
        assert scene.ok("runs", "why", run_id).startswith(f"Run {run_id} is {status}:")
    assert "it is paused by ann: lunch" in scene.ok("runs", "why", other.id)
    ended = {run["id"] for run in scene.json("runs", "list", "--status", "ended")}
    opened = {run["id"] for run in scene.json("runs", "list", "--status", "open")}
    assert (ended, opened) == ({done.id, bad.id, new.id}, {busy.id, other.id})
    shown = scene.json("runs", "show", new.id)
    assert (shown["failed_at"], shown["cancelled_at"]) == (None, shown["ended_at"])


def test_cancelled_runs_are_found_behind_any_number_of_failed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_queries, "PAGE", 2)
    scene = Scene(tmp_path)
    scene.workflow()
    cancelled = [scene.create() for _ in range(3)]
    scene.ok("runs", "cancel", *(run.id for run in cancelled))
    for _ in range(5):
        scene.step(scene.create(), taken_by("laptop"), started, failed("no luck"))
    listed = [run["id"] for run in scene.json("runs", "list", "--status", "cancelled", "--limit", "2")]
    assert listed == [cancelled[1].id, cancelled[2].id]
    assert "--limit 0" in scene.run("runs", "list", "--status", "cancelled", "--limit", "2").stderr
    assert len(scene.json("runs", "list", "--status", "cancelled", "--limit", "0")) == 3


def test_a_retry_is_a_new_run_that_names_the_old_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _, bad, busy, _ = a_few(scene)
    new_id, *words = scene.ok("runs", "retry", bad.id).split()
    assert words[:5] == ["is", "a", "retry", "of", f"{bad.id[-8:]}:"]
    assert scene.json("runs", "show", new_id)["retry_of"] == bad.id
    assert "retry of " in scene.ok("runs", "show", new_id)
    [again] = scene.json("runs", "retry", bad.id)
    assert again["retry_of"] == bad.id
    result = scene.run("runs", "retry", busy.id, bad.id)
    assert result.exit_code == 64
    assert "only a run that has ended can be retried" in result.stderr
    assert f"is a retry of {bad.id[-8:]}" in result.stdout


def test_the_output_of_a_run_is_printed_unchanged(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    runs = [scene.create() for _ in range(3)]
    for run, output in zip(runs, ["a line\nand another", {"n": [1, "é"]}, "x" * 200_000], strict=True):
        scene.step(run, taken_by("laptop"), started, completed(output if len(output) < 99 else _kept(scene, output)))
    assert scene.ok("runs", "output", runs[0].id) == "a line\nand another\n"
    assert scene.json("runs", "output", runs[0].id) == "a line\nand another"
    assert scene.ok("runs", "output", runs[1].id) == '{"n": [1, "é"]}\n'
    assert scene.ok("runs", "output", runs[2].id) == "x" * 200_000 + "\n"


def _kept(scene: Scene, value: str) -> object:
    async def keep(fleet: Fleet) -> object:
        return await fleet.blobs.keep(value, "it")

    return scene.ask(keep)


def test_a_run_that_returned_nothing_says_why(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _, bad, busy, _ = a_few(scene)
    result = scene.run("runs", "output", bad.id)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Run {bad.id} failed: no luck\n")
    result = scene.run("runs", "output", busy.id)
    assert (result.exit_code, result.stdout) == (64, "")
    assert "is processing and has no output yet" in result.stderr


def test_waiting_tells_each_end_and_whether_one_failed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    done, bad, _, new = a_few(scene)
    result = scene.run("runs", "wait", done.id, bad.id)
    assert result.exit_code == 1
    assert sorted(line.split(" after ")[0] for line in result.stdout.splitlines()) == sorted(
        [f"{done.id[-8:]} completed on laptop", f"{bad.id[-8:]} failed on laptop"]
    )
    told = scene.json("runs", "wait", bad.id, done.id, code=1)
    assert [run["id"] for run in told] == [bad.id, done.id]
    assert scene.run("runs", "wait", done.id).exit_code == 0
    scene.ok("runs", "cancel", new.id)
    result = scene.run("runs", "wait", new.id)
    assert (result.exit_code, result.stdout) == (1, f"{new.id[-8:]} cancelled by ann\n")


def test_old_runs_are_forgotten(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    a_few(scene)
    assert scene.ok("runs", "prune", "--older-than", "30d") == "0 runs deleted.\n"
    assert scene.json("runs", "prune", "--older-than", "0") == {"pruned": 2}
    assert [run["status"] for run in scene.json("runs", "list")] == ["processing", "created"]
    assert "'30 days' is not a valid duration" in scene.run("runs", "prune", "--older-than", "30 days").stderr


def test_what_a_terminal_would_act_upon_never_reaches_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    run = scene.step(scene.create(), taken_by("laptop"), started, failed("\x1b]0;gotcha\x07\x1b[2J"))
    for words in (["list"], ["show", run.id], ["wait", run.id]):
        assert "\x1b" not in scene.run("runs", *words).output
    assert "\x1b" not in scene.run("runs", "why", run.id).output


# -- resuming ----------------------------------------------------------------------------------------------------------


def handed_back(run: Run, now: float) -> Run:
    assert run.grant is not None
    return transitions.release(run, run.grant, "released", "pause", now)


def test_to_resume_a_run_whose_device_still_stops_says_what_becomes_of_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    run = scene.step(scene.create(), taken_by("laptop"), started)
    scene.ok("runs", "pause", run.id)
    assert scene.ok("runs", "resume", run.id) == (
        f"{run.id[-8:]} is resumed: laptop continues it, or hands it back to be offered again if it was stopping\n"
    )
    told = scene.json("runs", "show", run.id)
    assert (told["status"], told["device"], told["wish"]) == ("processing", "laptop", None)
    back = scene.step(run.id, handed_back)  # a device that has begun to stop does not turn back
    assert (back.status, back.paused, back.offered) == ("reassigning", None, True)


def test_to_resume_a_run_whose_device_has_stopped_says_that_it_is_offered_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    run = scene.step(scene.create(), taken_by("laptop"), started)
    scene.ok("runs", "pause", run.id)
    scene.step(run.id, handed_back)
    assert scene.ok("runs", "resume", run.id) == f"{run.id[-8:]} is resumed and offered to any capable device\n"
    assert scene.ask(lambda fleet: fleet.run(run.id)).offered


def resumed(change: Callable[[Run], Run]) -> str:
    paused = transitions.pause(
        change(transitions.create("r" * 20, Workflow("work", shell="true", version=1), {}, by="ann", now=1000.0)),
        1001.0,
        "ann",
    )
    return describe_outcome(document_of(paused), document_of(transitions.resume(paused, 1002.0, "ann")))


def test_what_holds_a_resumed_run_is_named() -> None:
    assert resumed(lambda run: replace(run, series="s")) == ("rrrrrrrr is resumed; it waits for its turn in series s")
    assert resumed(lambda run: replace(run, not_before=1032.0)) == (
        "rrrrrrrr is resumed and offered in 30 s to any capable device"
    )
    assert resumed(lambda run: replace(run, pinned="desktop")) == "rrrrrrrr is resumed and offered to desktop"
