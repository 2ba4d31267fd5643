"""Every command works the same on a SQLite file, on PostgreSQL and on a server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from asterism.core.run.run import Run
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import OFFERED, PutLog, Query, StoredChunk
from tests.cli.command_scenes import a_few, completed, started, taken_by
from tests.cli.system_scenes import Names, Row, SystemScene, run_everywhere

# -- runs --------------------------------------------------------------------------------------------------------------


def few_runs(scene: SystemScene) -> Names:
    """A run that completed, one that failed, one that a device works on, and one that waits for a device."""
    names = ("done", "failed", "working", "waiting")
    return dict(zip(names, (run.id for run in a_few(scene)), strict=True))


def paused_run(scene: SystemScene) -> Names:
    names = few_runs(scene)
    scene.ask(lambda fleet: fleet.pause(names["waiting"], "later"))
    return names


def logged_run(scene: SystemScene) -> Names:
    """A run that completed and printed two lines."""
    names = few_runs(scene)

    async def print_lines(fleet: Fleet) -> None:
        now = fleet.store.clock()
        chunk = StoredChunk(1, 1, 2, [[now, "stdout", "hello"], [now, "stderr", "trouble"]])
        await fleet.store.commit([PutLog(names["done"], 1, [chunk])])

    scene.ask(print_lines)
    return names


def free_device(scene: SystemScene) -> Names:
    names = few_runs(scene)
    scene.device("desk")
    return names


def workflow(scene: SystemScene) -> Names:
    scene.workflow("transcode", argv=("ffmpeg", "{file}"))
    path = scene.folder / "files.jsonl"
    path.write_text('{"file": "a.mp4"}\n\n{"file": "b.mp4"}\n')
    (scene.folder / "bad.jsonl").write_text('{"file": "a.mp4"}\n{"file": \n')
    return {"file": str(path), "bad": str(scene.folder / "bad.jsonl")}


def status_of(name: str) -> Callable[[SystemScene, Names], Any]:
    return lambda scene, names: run_of(scene, names[name]).reported_status


def run_of(scene: SystemScene, run: str) -> Run:
    return scene.ask(lambda fleet: fleet.run(run))


def story_of(scene: SystemScene, names: Names) -> Any:
    entry = run_of(scene, names["waiting"]).story[-1]
    return f"{entry.what} {entry.why}"


def labels(scene: SystemScene, names: Names) -> Any:
    return [(run.workflow, run.label, run.input, run.created_by) for run in all_runs(scene)]


def number_of_runs(scene: SystemScene, names: Names) -> Any:
    return len(all_runs(scene))


def all_runs(scene: SystemScene) -> list[Run]:
    return scene.ask(lambda fleet: fleet.runs(Query()))


def finish_new_run(scene: SystemScene, names: Names) -> None:
    """A device executes the run that the command creates."""

    async def first_run(fleet: Fleet) -> Run:
        with closing(fleet.store.watch(frozenset({OFFERED}))) as watch:
            while not (runs := await fleet.runs(Query())):
                await watch.wait(1.0)
        return runs[0]

    scene.step(scene.ask(first_run), taken_by("laptop"), started, completed("cut"))


RUNS = (
    Row("runs list", "{waiting:.0}play", few_runs),
    Row("runs list --json", '"status": "processing"', few_runs),
    Row("runs list --status failed", "no luck", few_runs),
    Row("runs list --status open --workflow work --newest", "processing", few_runs),
    Row("runs list --device laptop --limit 1", "There are more than 1 runs", few_runs),
    Row("runs list --series s", "only on desktop", few_runs),
    Row("runs list --search nowhere", "No run matches.", few_runs),
    Row("runs list", "There are no runs. Create one with: asterism runs create WORKFLOW"),
    Row("runs show {done}", "completed", few_runs),
    Row("runs show {failed} --json", '"error": "no luck"', few_runs),
    Row("runs show 0000000", "no run has '0000000' in its id", few_runs, code=64),
    Row("runs show abc", "'abc' is too short", few_runs, code=64),
    Row("runs why {waiting}", "asterism device join desktop", few_runs),
    Row("runs why {waiting} --json", '"kind": "no_device"', few_runs),
    Row(
        'runs create transcode --input \'{{"file": "a.mp4"}}\' --label a',
        "It waits: ",
        workflow,
        labels,
        [("transcode", "a", {"file": "a.mp4"}, "ann")],
    ),
    Row("runs create transcode", "needs file", workflow, number_of_runs, 0, code=64),
    Row("runs create nothing", "there is no workflow 'nothing'", workflow, number_of_runs, 0, code=64),
    Row(
        'runs create transcode --input \'{{"file": "a.mp4"}}\' --wait --json',
        '"status": "completed"',
        workflow,
        lambda scene, names: [run.output for run in all_runs(scene)],
        ["cut"],
        meanwhile=finish_new_run,
    ),
    Row("runs wait {done} {failed}", "failed", few_runs, code=1),
    Row("runs wait {done} --json", '"status": "completed"', few_runs),
    Row("runs cancel {waiting} --reason 'not needed'", "cancelled", few_runs, status_of("waiting"), "cancelled"),
    Row("runs cancel {done}", "it cannot be cancelled.", few_runs, status_of("done"), "completed", code=64),
    Row("runs pause {waiting} --reason later", "paused", few_runs, story_of, "paused by ann: later"),
    Row("runs resume {waiting} --reason now", "", paused_run, status_of("waiting"), "created"),
    Row("runs retry {failed} --json", '"retry_of": "{failed}"', few_runs, number_of_runs, 5),
    Row("runs move {waiting} --to nobody", "nobody", few_runs, status_of("waiting"), "created", code=64),
    Row("runs output {done}", '{{"n": 5}}', few_runs),
    Row("runs output {failed}", "failed: no luck", few_runs, code=1),
    Row("runs output {working}", "has no output yet", few_runs, code=64),
    Row("runs prune --older-than 0s", "2 runs deleted.", few_runs, number_of_runs, 2),
)


@pytest.mark.parametrize("row", RUNS, ids=str)
def test_runs(row: Row, tmp_path: Path, postgres_url: str) -> None:
    run_everywhere(row, tmp_path, postgres_url)
