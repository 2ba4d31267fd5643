"""``asterism batch``: the same on a SQLite file, on PostgreSQL and on a server."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asterism.api.documents import BatchDetails, FailedRun
from asterism.cli.run import runs_commands
from asterism.cli.run.run_views import batch_lines, progress_line
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import PutLog, Query, StoredChunk
from tests.cli.command_scenes import completed, create_later, enter_device, failed, started, taken_by, write_steps
from tests.cli.system_scenes import Names, Row, SystemScene, rows_and_systems, run_everywhere, system_scene


def films(scene: SystemScene) -> Names:
    """A batch: one run completed, one failed and printed two lines, one was cancelled, one runs and one waits."""

    async def create(fleet: Fleet) -> list[str]:
        await fleet.workflows.add(Workflow("cut", argv=("cut", "{file}"), needs=frozenset({"gpu"})))  # none is assigned
        await enter_device(fleet, "laptop")
        names = ("done", "failed", "dropped", "working", "waiting")
        runs = [await create_later(fleet, "cut", input={"file": f"{name}.mp4"}, batch="films") for name in names]
        ids = [run.id for run in runs]
        await write_steps(fleet, ids[0], taken_by("laptop"), started, completed({"size": 7}))
        await write_steps(fleet, ids[1], taken_by("laptop"), started, failed("no luck"))
        await fleet.cancel(ids[2])
        await write_steps(fleet, ids[3], taken_by("laptop"), started)
        chunk = StoredChunk(1, 1, 2, [[fleet.store.clock(), "stderr", text] for text in ("opening", "no codec")])
        await fleet.store.commit([PutLog(ids[1], 1, [chunk])])
        return ids

    names = ("done", "failed", "dropped", "working", "waiting")
    lines = scene.folder / "files.txt"
    lines.write_text("a.mp4\nb.mp4\n")
    return {"lines": str(lines), **dict(zip(names, scene.ask(create), strict=True))}


def ended_films(scene: SystemScene) -> Names:
    names = films(scene)
    scene.step(names["working"], completed("=1+1"))
    scene.step(names["waiting"], taken_by("laptop"), started, completed(1))
    return names


def finish(scene: SystemScene, names: Names) -> None:
    scene.step(names["working"], completed("text"))
    scene.step(names["waiting"], taken_by("laptop"), started, completed(1))


def statuses(scene: SystemScene, names: Names) -> Any:
    runs = scene.ask(lambda fleet: fleet.runs(Query(batch="films")))
    return sorted(run.reported_status for run in runs)


def retries(scene: SystemScene, names: Names) -> Any:
    words = {run: name for name, run in names.items()}
    runs = scene.ask(lambda fleet: fleet.runs(Query(batch="films")))
    return sorted(words[run.retry_of] for run in runs if run.retry_of is not None)


BATCHES = (
    Row("batch list", "films", films),
    Row("batch list --json", '"failed": 1', films),
    Row("batch list", "There are no batches. Create one with: asterism runs create WORKFLOW --each FILE --batch NAME"),
    Row("batch show films", "60 % of 5 runs: 1 completed, 1 failed, 1 cancelled, 1 running, 1 waiting", films),
    Row("batch show films", "(failed.mp4) on laptop: no luck\n    opening\n    no codec\n", films),
    Row(
        "batch show flims",
        "no run belongs to batch 'flims'; list the batches with: asterism batch list",
        films,
        code=64,
    ),
    Row("batch wait films --json", '"ended": true', ended_films, code=1),
    Row("batch wait films", "100 % of 5 runs", films, meanwhile=finish, code=1),
    Row(
        "batch cancel films --reason enough",
        "2 runs cancelled.",
        films,
        statuses,
        ["cancelled", "cancelled", "cancelling", "completed", "failed"],
    ),
    Row("batch cancel flims", "no run belongs to batch 'flims'", films, code=64),
    Row("batch retry films --failed", "1 run retried.", films, retries, ["failed"]),
    Row("batch retry films", "2 runs retried.", films, retries, ["dropped", "failed"]),
    Row("batch results films", "2 runs of the batch have not ended.", films),
    Row("batch results films --csv --json", "Give either --csv or --json.", films, code=64),
    Row("runs list --batch films --status failed", "no luck", films),
    Row("runs create cut --each {lines} --as file --batch new", "Follow them with: asterism batch wait new", films),
    Row("runs create cut --each {lines} --as file --batch new --wait", "asterism batch wait new", films, code=64),
    Row('runs create cut --input \'{{"file": "a"}}\' --batch films --json', '"batch": "films"', films),
)


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far a batch has come is not told: when depends on the speed of the machine."""
    monkeypatch.setattr(runs_commands, "TOLD_EVERY", 20.0)


@rows_and_systems(BATCHES, others=pytest.mark.long)
def test_batches(row: Row, systems: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run_everywhere(row, systems, tmp_path, request)


def test_a_batch_of_which_all_runs_completed_ends_with_0(tmp_path: Path) -> None:
    with system_scene("sqlite", tmp_path / "sqlite", "") as scene:
        names = films(scene)
        assert scene.run("batch", "retry", "films").exit_code == 0
        for run in scene.ask(lambda fleet: fleet.runs(Query(batch="films"))):
            if not run.ended:
                steps = [completed(1)] if run.id == names["working"] else [taken_by("laptop"), started, completed(1)]
                scene.step(run.id, *steps)
        result = scene.run("batch", "wait", "films")
        assert (result.exit_code, "100 % of 5 runs: 5 completed" in result.output) == (0, True)


def test_results_are_json_lines_or_a_table(tmp_path: Path) -> None:
    with system_scene("sqlite", tmp_path / "sqlite", "") as scene:
        names = ended_films(scene)
        lines = [json.loads(line) for line in scene.ok("batch", "results", "films").splitlines()]
        rows = list(csv.DictReader(scene.ok("batch", "results", "films", "--csv").splitlines()))
        order = ("done", "failed", "dropped", "working", "waiting")
        assert [line["id"] for line in lines] == [row["id"] for row in rows] == [names[name] for name in order]
        assert [line["output"] for line in lines] == [{"size": 7}, None, None, "=1+1", 1]
        assert [row["output"] for row in rows] == ['{"size": 7}', "", "", "'=1+1", "1"]
        assert rows[1]["error"] == "no luck"
        assert rows[2]["status"] == "cancelled"
        assert json.loads(rows[0]["input"]) == {"file": "done.mp4"}


def test_an_interrupted_creation_of_a_batch_continues(tmp_path: Path) -> None:
    with system_scene("server", tmp_path / "server", "") as scene:
        films(scene)
        words = ("runs", "create", "cut", "--each", "-", "--as", "file", "--batch", "new", "--key", "{file}")
        lines = [f"v{number}.mp4" for number in range(1500)]
        stopped = scene.run(*words, stdin="\n".join([*lines[:1200], "\0" * 5_000_000]))
        assert stopped.exit_code == 64
        assert scene.json("batch", "show", "new")["runs"] == 1200
        assert "300 runs created." in scene.run(*words, stdin="\n".join(lines)).stderr
        assert scene.json("batch", "show", "new")["runs"] == 1500
        cancelled = scene.run("batch", "cancel", "new")
        assert cancelled.stdout == "1,500 runs cancelled.\n"
        assert scene.json("batch", "show", "new")["cancelled"] == 1500


def test_a_name_with_odd_characters_works_over_http(tmp_path: Path) -> None:
    with system_scene("server", tmp_path / "server", "") as scene:
        scene.workflow("work")
        name = "a b?c#d%2e/ü"
        scene.create("work", batch=name)
        assert scene.json("batch", "show", name)["runs"] == 1
        assert scene.run("batch", "cancel", name).exit_code == 0


@pytest.mark.parametrize(
    ("rate", "left", "text"),
    [
        (2.5, 40.0, "2.5 runs per second, about 40 s left"),
        (0.05, 300.0, "3.0 runs per minute, about 5 min left"),
        (0.001, 7200.0, "3.6 runs per hour, about 2 h left"),
        (None, None, "No run has ended yet."),
    ],
)
def test_the_rate_has_a_unit_that_people_can_read(rate: float | None, left: float | None, text: str) -> None:
    failure = FailedRun(id="0" * 24, label="x\x1b", device=None, ended_at=1.0, error="no room", tail="a\x1b[31m\n")
    batch = BatchDetails(
        name="films",
        runs=50,
        waiting=20,
        running=8,
        completed=10,
        failed=12,
        cancelled=0,
        ended=False,
        created_at=0.0,
        ended_at=1.0,
        now=2.0,
        rate=rate,
        time_left=left,
        failures=[failure],
    )
    lines = [str(line) for line in batch_lines(batch, 200)]
    assert lines[0] == "films  44 % of 50 runs: 10 completed, 12 failed, 8 running, 20 waiting"
    assert lines[1].strip() == text
    assert lines[3] == "Failed, the newest"
    assert lines[6] == "  and 11 more; list them with: asterism runs list --batch films --status failed"
    assert "\x1b" not in "".join(lines)
    told = text.partition(", ")[2] or "no run has ended yet"
    assert progress_line(batch) == f"films  44 % of 50 runs: 10 completed, 12 failed, 8 running, 20 waiting; {told}"


def test_who_waits_for_a_batch_reads_how_far_it_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_commands, "TOLD_EVERY", 0.0)
    with system_scene("sqlite", tmp_path / "sqlite", "") as scene:
        names = films(scene)
        notes: list[str] = []

        def read(line: str) -> None:
            notes.append(line)
            if len(notes) == 1:
                scene.step(names["working"], completed("text"))
            elif len(notes) == 2:
                scene.step(names["waiting"], taken_by("laptop"), started, completed(1))

        monkeypatch.setattr(runs_commands, "note", read_apart(read))
        result = scene.run("batch", "wait", "films")
    assert [note.partition(";")[0] for note in notes] == [
        "films  60 % of 5 runs: 1 completed, 1 failed, 1 cancelled, 1 running, 1 waiting",
        "films  80 % of 5 runs: 2 completed, 1 failed, 1 cancelled, 1 waiting",
    ]
    assert "100 % of 5 runs" in result.stdout


def read_apart(read: Callable[[str], None]) -> Callable[[str], None]:
    """``read`` in a thread of its own, outside the event loop of the command."""

    def apart(line: str) -> None:
        reader = threading.Thread(target=read, args=(line,))
        reader.start()
        reader.join()

    return apart
