"""Manners of the commands on a fleet: no store where none was wanted, and words that say what is so."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from asterism.cli import fleet_snapshot
from asterism.cli.fleet_snapshot import CancelledCount, take_snapshot
from asterism.cli.fleet_tables import note_on, runs_table
from asterism.cli.fleet_watch import fleet_frame
from asterism.cli.run_actions import describe_end, describe_outcome
from asterism.cli.run_details import Details, lines
from asterism.core.run import transitions
from asterism.core.run.run import FAILED, REASSIGNING, Owner, Run
from asterism.core.run.workflow import Workflow
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_explanation import RunExplanation
from asterism.planfile.workflow_file import BadWorkflowFile, parse_workflows
from asterism.store.postgres import PostgresStore
from asterism.store.store_errors import StoreMissing
from tests.cli.command_scenes import Scene, failed, started, taken_by
from tests.process_scenes import ended

HINT = "the first `asterism workflow add` or `asterism device join` creates it; use --store for another one"

THAT_MAKE_NONE = [
    ["runs", "list"],
    ["runs", "show", "abcd"],
    ["runs", "watch", "--until-done"],
    ["runs", "wait", "abcd"],
    ["runs", "output", "abcd"],
    ["runs", "create", "work"],
    ["runs", "cancel", "abcd"],
    ["runs", "pause", "abcd"],
    ["runs", "resume", "abcd"],
    ["runs", "retry", "abcd"],
    ["runs", "prune", "--older-than", "30d"],
    ["device", "list"],
    ["device", "scores", "work"],
    ["device", "drain", "laptop"],
    ["runs", "why", "abcd"],
    ["workflow", "list"],
    ["workflow", "show", "work"],
    ["store", "check"],
    ["store", "backup", "file"],
    ["store", "info"],
    ["fleet", "show"],
    ["fleet", "set", "--keep", "7d"],
]

# -- no store where none was wanted ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", THAT_MAKE_NONE, ids=" ".join)
def test_reading_commands_create_no_store(tmp_path: Path, words: list[str]) -> None:
    scene = Scene(tmp_path)
    result = scene.run(*words)
    assert (result.exit_code, result.stdout) == (69, "")
    assert result.stderr == f"Error: there is no store {scene.file}; {HINT}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_monitor_makes_no_store(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with scene.process("monitor", "hub") as process:
        code, output, errors = ended(process)
    assert (code, output, errors) == (69, "", f"Error: there is no store {scene.file}; {HINT}\n")
    assert not scene.file.exists()


def test_the_store_in_the_users_data_is_not_made_either_nor_its_directory(tmp_path: Path) -> None:
    result = Scene(tmp_path).run("runs", "list", ASTERISM_STORE="")
    assert (result.exit_code, result.stdout) == (69, "")
    assert result.stderr == f"Error: there is no store {tmp_path}/data/asterism/fleet.db; {HINT}\n"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "data" / "asterism").mkdir(parents=True)
    result = Scene(tmp_path).run("runs", "list", ASTERISM_STORE="")
    assert (result.exit_code, HINT in result.stderr) == (69, True)
    assert list((tmp_path / "data" / "asterism").iterdir()) == []


def test_a_file_that_goes_between_looking_and_opening_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path)
    there, asked = Path.exists, 0

    def exists(path: Path) -> bool:
        """Who asks first is told that it is there; then it is gone."""
        nonlocal asked
        asked += path == scene.file
        return there(path) or (path == scene.file and asked == 1)

    monkeypatch.setattr(Path, "exists", exists)
    result = scene.run("runs", "list")
    assert (asked > 0, result.exit_code in (64, 69), result.stdout) == (True, True, "")
    assert list(tmp_path.iterdir()) == []


def test_in_a_database_no_store_is_made_either(tmp_path: Path, postgres_url: str) -> None:
    scene = Scene(tmp_path)
    result = scene.run("runs", "list", "--store", postgres_url)
    assert (result.exit_code, result.stdout) == (69, "")
    assert "there is no store in schema" in result.stderr
    assert result.stderr.endswith(f"; {HINT}\n")

    async def look_for_it() -> None:
        with pytest.raises(StoreMissing, match="there is no store in schema"):
            await PostgresStore.open(postgres_url, create=False)

    asyncio.run(look_for_it())
    assert scene.ok("workflow", "add", "work", "--shell", "echo 1", "--store", postgres_url) == "work@1 added\n"
    assert scene.run("runs", "list", "--store", postgres_url).exit_code == 0


def test_a_workflow_a_restore_and_a_run_of_a_file_make_a_store(tmp_path: Path) -> None:
    scene, file = Scene(tmp_path), tmp_path / "flow.yaml"
    file.write_text("name: work\nshell: echo 1\n")
    for words in (
        ["workflow", "add", "work", "--shell", "echo 1"],
        ["runs", "create", "--file", str(file)],
        ["store", "restore", str(tmp_path / "backup")],
    ):
        scene.ok(*words)
        scene.ok("store", "backup", str(tmp_path / "backup"))
        assert [flow["name"] for flow in scene.json("workflow", "list")] == ["work"]
        for path in tmp_path.glob("fleet.db*"):
            path.unlink()


@pytest.mark.parametrize(
    ("text", "words"),
    [("name: work\nargv: [echo, '{who}']\n", "needs who"), ("name: work\n", "work"), (None, "No such file")],
)
def test_a_run_of_a_file_that_cannot_be_used_makes_no_store(tmp_path: Path, text: str | None, words: str) -> None:
    scene, file = Scene(tmp_path), tmp_path / "flow.yaml"
    if text is not None:
        file.write_text(text)
    result = scene.run("runs", "create", "--file", str(file))
    assert (result.exit_code, result.stdout) == (64, "")
    assert words in result.stderr
    assert not scene.file.exists()


def test_a_store_without_runs_is_used_by_all(tmp_path: Path) -> None:
    scene = Scene(tmp_path).made()
    assert scene.json("runs", "list") == []


def test_an_empty_file_becomes_a_store_by_what_makes_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.file.touch()
    scene.ok("workflow", "add", "work", "--shell", "echo 1")
    assert scene.json("runs", "list") == []


# -- capabilities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["gpu,ffmpeg", "big"], ["gpu", "ffmpeg", "big"], [" gpu , ffmpeg,big,gpu"]])
def test_capabilities_are_named_one_by_one_or_with_commas(tmp_path: Path, words: list[str]) -> None:
    scene = Scene(tmp_path)
    needs = [word for one in words for word in ("--needs", one)]
    assert scene.json("workflow", "add", "work", "--shell", "echo 1", *needs)["needs"] == ["big", "ffmpeg", "gpu"]
    can = [word for one in words for word in ("--can", one)]
    run_id = scene.json("runs", "create", "work")["id"]
    with scene.process("device", "join", "laptop", *can) as process:
        assert scene.run("runs", "wait", run_id).exit_code == 0
        assert scene.json("device", "list")[0]["can"] == ["big", "ffmpeg", "gpu"]
        process.terminate()
        assert ended(process)[0] == 0


@pytest.mark.parametrize("word", ["gpu,", ",", "", "gpu,,ffmpeg", " "])
@pytest.mark.parametrize(
    "command", [["workflow", "add", "work", "--shell", "echo 1", "--needs"], ["device", "join", "laptop", "--can"]]
)
def test_a_capability_without_a_name_is_refused(tmp_path: Path, command: list[str], word: str) -> None:
    scene = Scene(tmp_path)
    # with a --timeout that is refused as well, so that no device joins if the word is not
    result = scene.run(*command, word, "--timeout", "1", "--heartbeat", "9")
    assert (result.exit_code, result.stdout) == (64, "")
    assert f"Invalid value for '{command[-1]}': {word!r} contains an empty capability" in result.stderr
    assert "a comma separates names" in result.stderr
    assert not scene.file.exists()


def test_in_a_file_a_capability_with_a_comma_is_a_mistake() -> None:
    with pytest.raises(BadWorkflowFile) as bad:
        parse_workflows('name: a\nshell: x\nneeds: [big, "gpu, ffmpeg"]\n', "flows.yaml")
    assert str(bad.value) == "flows.yaml:3: needs: a capability has no comma in it, so 'gpu, ffmpeg' is [gpu, ffmpeg]"


# -- what was cancelled did not fail -----------------------------------------------------------------------------------


def heading(scene: Scene, tally: CancelledCount, limit: int = 10) -> str:
    """The first line of the picture, without the name of the store."""

    async def ask(fleet: Fleet) -> str:
        console = Console(file=io.StringIO(), width=300, color_system=None)
        console.print(fleet_frame(await take_snapshot(fleet, limit, (), tally), 300, 20))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().partition("  sqlite:")[0]

    return scene.ask(ask)


def with_ends(folder: Path, ends: str) -> Scene:
    """A fleet in which runs failed (f) and were cancelled (c)."""
    scene = Scene(folder)
    scene.workflow()
    for end in ends:
        if end == "f":
            fail(scene)
        else:
            scene.ok("runs", "cancel", scene.create().id)
    return scene


def fail(scene: Scene) -> None:
    scene.step(scene.create(), taken_by("laptop"), started, failed("no luck"))


def test_the_picture_counts_what_was_cancelled_apart(tmp_path: Path) -> None:
    scene = with_ends(tmp_path, "fcc")
    tally = CancelledCount()
    assert heading(scene, tally) == "1 failed, 2 cancelled"
    scene.ok("runs", "cancel", scene.create().id)
    assert heading(scene, tally) == "1 failed, 3 cancelled"
    fail(scene)
    assert heading(scene, tally) == "2 failed, 3 cancelled"


def test_what_is_out_of_sight_is_counted_too_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_snapshot, "PAGE", 2)
    scene = with_ends(tmp_path, "ccfcf")
    tally, reads = CancelledCount(), 0
    read = CancelledCount._read

    async def counted(self: CancelledCount, fleet: Fleet) -> dict[str, bool]:
        nonlocal reads
        reads += 1
        return await read(self, fleet)

    monkeypatch.setattr(CancelledCount, "_read", counted)
    assert [heading(scene, tally, limit=1) for _ in range(3)] == ["2 failed, 3 cancelled"] * 3
    assert reads == 1, "runs that have ended do not change"
    scene.ok("runs", "cancel", scene.create().id)
    assert heading(scene, tally, limit=1) == "2 failed, 4 cancelled"
    assert reads == 2


def test_one_that_took_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    """Their number is the same: one was forgotten, another failed."""
    scene = with_ends(tmp_path, "cc")
    tally = CancelledCount()
    assert heading(scene, tally, limit=1) == "2 cancelled"
    scene.ok("runs", "prune", "--older-than", "0")
    fail(scene)
    fail(scene)
    assert heading(scene, tally, limit=1) == "2 failed"


def test_too_many_to_be_counted_apart_are_named_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_snapshot, "MOST_FAILED_RUNS", 2)
    assert heading(with_ends(tmp_path, "fcc"), CancelledCount()) == "3 failed or cancelled"


# -- how long it took --------------------------------------------------------------------------------------------------

FLOW = Workflow("work", shell="true", version=1, retries=1)
LAPTOP = Owner("laptop", "session-laptop")


def begun(at: float, created: float = 1000.0) -> Run:
    run = transitions.create("r" * 20, FLOW, {}, by="ann", now=created)
    return transitions.take(run, LAPTOP, FLOW, at, starts=True)


def end(run: Run, at: float) -> Run:
    assert run.grant is not None
    return transitions.complete(run, run.grant, 1, at)


def again(run: Run, failed_at: float, at: float) -> Run:
    assert run.grant is not None
    return transitions.take(transitions.fail(run, run.grant, "no luck", FLOW, failed_at), LAPTOP, FLOW, at, starts=True)


def cancelled(run: Run, at: float) -> Run:
    return transitions.cancel(run, at, "ann")


@pytest.mark.parametrize(
    ("run", "waited", "took"),
    [
        (end(begun(1040.0), 1045.0), "40 s", "5.0 s"),
        (end(begun(0.0, created=0.0), 5.0), "0 s", "5.0 s"),
        (end(again(begun(1040.0), 1060.0, 1070.0), 1077.0), "50 s", "7.0 s"),
        (cancelled(transitions.create("r" * 20, FLOW, {}, by="ann", now=1000.0), 1020.0), "20 s", None),
        (end(begun(900.0), 905.0), "0 s", "0 s"),
    ],
    ids=["once", "at the beginning of time", "twice", "never", "the clock was set back"],
)
def test_the_time_of_the_work_and_the_waiting_time_are_shown_apart(run: Run, waited: str, took: str | None) -> None:
    found = Details(run, 2000.0, {}, None, (), nothing_holds(run))
    facts = dict(re.findall(r"^  (waited|took) +(.*)$", "\n".join(line.plain for line in lines(found, None)), re.M))
    assert (facts.get("waited"), facts.get("took")) == (waited, took)
    row = runs_table([run], 2000.0, {}, {}, None)[1].plain
    assert re.findall(r"[0-9.]+ (?:s|min)\b", row) == ([took] if took else []), "nothing but the work is in the table"
    assert describe_end(run).endswith(f"completed on laptop after {took}" if took else "cancelled by ann")


def nothing_holds(run: Run) -> RunExplanation:
    return RunExplanation(run.id, str(run.status), ())


# -- resuming ----------------------------------------------------------------------------------------------------------


def handed_back(run: Run, flow: Workflow, now: float) -> Run:
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
    paused = transitions.pause(change(transitions.create("r" * 20, FLOW, {}, by="ann", now=1000.0)), 1001.0, "ann")
    return describe_outcome(paused, transitions.resume(paused, 1002.0, "ann"))


def test_what_holds_a_resumed_run_is_named() -> None:
    assert resumed(lambda run: replace(run, series="s", held=True)) == (
        "rrrrrrrr is resumed; it waits for its turn in series s"
    )
    assert resumed(lambda run: replace(run, not_before=1032.0)) == (
        "rrrrrrrr is resumed and offered in 30 s to any capable device"
    )
    assert resumed(lambda run: replace(run, pinned="desktop")) == "rrrrrrrr is resumed and offered to desktop"


def test_a_cancelled_run_is_not_counted_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the record it is failed; people and programs are told the same word."""
    scene = with_ends(tmp_path, "c")
    told = scene.json("store", "info")
    assert (told["runs"][str(FAILED)], told["runs"]["cancelled"]) == (0, 1)
    assert "1 cancelled" in scene.ok("store", "info")
    assert "failed" not in scene.ok("store", "info")
    monkeypatch.setattr(fleet_snapshot, "MOST_FAILED_RUNS", 0)  # too many to tell
    assert scene.json("store", "info")["runs"]["failed or cancelled"] == 1
    assert "1 failed or cancelled" in scene.ok("store", "info")


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"status": FAILED, "error": "CommandFailed: the command exited with 3"}, "the command exited with 3"),
        ({"status": FAILED, "error": "ValueError: no such month"}, "ValueError: no such month"),
        ({"status": FAILED, "cancelled": True, "error": "cancelled by ann (cancel)"}, "by ann"),
        ({"status": REASSIGNING, "declined": {"attic": "there is no oven"}}, "attic declined: there is no oven"),
    ],
)
def test_a_note_in_the_list_says_what_the_status_does_not(terms: dict[str, Any], words: str) -> None:
    assert note_on(replace(Run("r1", "work", 1, 0.0, "ann"), **terms), 5.0) == words
