"""Every command works the same on a SQLite file, on PostgreSQL and on a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from asterism.core.run.run import Run
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import OFFERED, PutLog, Query, StoredChunk
from tests.cli.cli_scenes import read_until
from tests.cli.command_scenes import a_few, completed, started, taken_by
from tests.cli.losing_proxy import LosingProxy, losing_proxy
from tests.cli.system_scenes import (
    SYSTEMS,
    Names,
    Row,
    SystemScene,
    nothing,
    rows_and_systems,
    run_everywhere,
    system_scene,
)
from tests.process_scenes import ended

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
    names = {**few_runs(scene), "next": scene.create("work").id}
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
    Row("runs list --device laptop --limit 1", "These are the newest 1 run; list all", few_runs),
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
    Row(
        "runs create transcode --each {file} --label '{{file}}' --key '{{file}}'",
        "2 runs created.\nFollow them with: asterism runs watch",
        workflow,
        labels,
        [("transcode", name, {"file": name}, "ann") for name in ("a.mp4", "b.mp4")],
    ),
    Row(
        "runs create transcode --each - --as file --json --priority 3",
        '"label": null, "key": null',
        workflow,
        lambda scene, names: [(run.input["file"], run.priority) for run in all_runs(scene)],
        [("c.mp4", 3), ("d.mp4", 3)],
        stdin="c.mp4\nd.mp4\n",
    ),
    Row("runs create transcode --each {bad}", "line 2: it is not JSON", workflow, number_of_runs, 0, code=64),
    Row(
        "runs create transcode --each {file} --label '{{name}}'",
        "line 1: '{{name}}' names {{name}}, but the input has no such field",
        workflow,
        number_of_runs,
        0,
        code=64,
    ),
    Row(
        "runs create transcode --each - --as name",
        "line 1: workflow 'transcode' needs file",
        workflow,
        code=64,
        stdin="a",
    ),
    Row("runs create transcode --each - --key k", "'k' gives every run the same key", workflow, code=64, stdin=""),
    Row("runs create nothing --each -", "there is no workflow 'nothing'", workflow, code=64, stdin="a"),
    Row("runs wait {done} {failed}", "failed", few_runs, code=1),
    Row("runs wait {done} --json", '"status": "completed"', few_runs),
    Row("runs cancel {waiting} --reason 'not needed'", "cancelled", few_runs, status_of("waiting"), "cancelled"),
    Row("runs cancel {done}", "it cannot be cancelled.", few_runs, status_of("done"), "completed", code=64),
    Row("runs pause {waiting} --reason later", "paused", few_runs, story_of, "paused by ann: later"),
    Row("runs resume {waiting} --reason now", "", paused_run, status_of("waiting"), "created"),
    Row("runs retry {failed} --json", '"retry_of": "{failed}"', few_runs, number_of_runs, 5),
    Row(
        "runs move {next} --to desk --reason near",
        "is assigned to desk",
        free_device,
        status_of("next"),
        "assigned",
    ),
    Row("runs move {waiting} --to nobody", "nobody", few_runs, status_of("waiting"), "created", code=64),
    Row("runs logs {done}", "hello\ntrouble\n", logged_run),
    Row("runs logs {done} --follow --times", " stderr trouble", logged_run),
    Row("runs logs {done} --json --attempt 1", '"stream": "stderr", "text": "trouble"', logged_run),
    Row("runs logs {waiting}", "is created and has printed nothing.", few_runs),
    Row("runs logs nosuchrun", "no run has 'nosuchrun' in its id", few_runs, code=64),
    Row("runs watch --until-done", "", nothing),
    Row("runs output {done}", '{{"n": 5}}', few_runs),
    Row("runs output {failed}", "failed: no luck", few_runs, code=1),
    Row("runs output {working}", "has no output yet", few_runs, code=64),
    Row("runs prune --older-than 0s", "2 runs deleted.", few_runs, number_of_runs, 2),
)


@rows_and_systems(RUNS, others=pytest.mark.long)
def test_runs(row: Row, systems: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run_everywhere(row, systems, tmp_path, request)


# -- what is followed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS)
def test_runs_are_watched(system: str, tmp_path: Path, postgres_url: str) -> None:
    with system_scene(system, tmp_path / system, postgres_url) as scene:
        names = few_runs(scene)
        with scene.process("runs", "watch", "--until-done", "--json") as process:
            lines = read_until(process, names["waiting"])
            scene.ask(lambda fleet: fleet.cancel(names["waiting"]))
            scene.step(names["working"], completed(2))
            code, rest, errors = ended(process)
        assert (code, errors) == (0, "")
        events = [json.loads(line) for line in [*lines, *rest.splitlines()]]
        seen = [(event["run"], event["what"]) for event in events]
        assert sorted(seen) == sorted(
            [
                (names["working"], "processing"),
                (names["working"], "completed"),
                (names["waiting"], "created"),
                (names["waiting"], "failed"),
            ]
        )


def put_line(scene: SystemScene, run: str, number: int) -> None:
    async def put(fleet: Fleet) -> None:
        chunk = StoredChunk(1, number, 1, [[fleet.store.clock(), "stdout", f"line {number}"]])
        await fleet.store.commit([PutLog(run, 1, [chunk])])

    scene.ask(put)


@pytest.mark.parametrize("command", ["logs", "watch"])
def test_a_cut_connection_neither_loses_nor_repeats_a_line(command: str, tmp_path: Path) -> None:
    with system_scene("server", tmp_path / "server", "") as scene:
        run = few_runs(scene)["working"]
        assert scene.server is not None
        put_line(scene, run, 1)
        words = ("runs", "logs", run, "--follow") if command == "logs" else ("runs", "watch", "--until-done")
        with scene.process(*words) as process:
            lines = read_until(process, "line 1" if command == "logs" else run[-8:])
            scene.server.stop()
            put_line(scene, run, 2)
            scene.step(run, completed(1))
            scene.ask(lambda fleet: cancel_open(fleet))
            assert process.stderr is not None
            assert "The server cannot be reached: " in process.stderr.readline()
            scene.server.start()
            code, rest, _ = ended(process)
        assert code == 0
        lines = [line.strip() for line in [*lines, *rest.splitlines()]]
        if command == "logs":
            assert lines == ["line 1", "line 2"]
        else:
            stories = [line.split()[-2:] for line in lines if run[-8:] in line]
            assert stories == [["on", "laptop"], ["on", "laptop"]], lines
            assert len(set(lines)) == len(lines)


async def cancel_open(fleet: Fleet) -> None:
    for run in await fleet.runs(Query()):
        if not run.ended:
            await fleet.cancel(run.id)


def test_a_server_that_never_answers_is_named_at_once(tmp_path: Path) -> None:
    with system_scene("server", tmp_path / "server", "") as scene:
        assert scene.server is not None
        scene.server.stop()
        for words in (
            ["runs", "list"],
            ["runs", "watch"],
            ["runs", "logs", "abcdef", "-f"],
            ["runs", "wait", "abcdef"],
        ):
            result = scene.run(*words)
            assert (result.exit_code, result.stdout) == (69, "")
            assert f"Error: {scene.address} does not answer: " in result.stderr


# -- bulk creation over a connection that breaks -----------------------------------------------------------------------


def test_bulk_creation_over_http_continues_and_creates_no_run_twice(tmp_path: Path) -> None:
    """The first command stops at a line that is too long for a request; the second creates what is missing."""
    with system_scene("server", tmp_path / "server", "") as scene:
        workflow(scene)
        lines = [f"v{number}.mp4" for number in range(1500)]
        words = ("runs", "create", "transcode", "--each", "-", "--as", "file", "--key", "{file}")
        stopped = scene.run(*words, stdin="\n".join([*lines[:1200], "\0" * 5_000_000]))
        assert stopped.exit_code == 64
        assert "line 1,201: the request has 30,000" in stopped.stderr
        assert len(all_runs(scene)) == 1200
        assert scene.server is not None
        scene.server.stop()
        scene.server.start()
        repeated = scene.run(*words, stdin="\n".join(lines))
        assert "300 runs created.\n1,200 lines had the key of a run that exists." in repeated.stderr
        assert sorted(run.input["file"] for run in all_runs(scene)) == sorted(lines)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[tuple[SystemScene, LosingProxy]]:
    """A server, and the connection over which commands reach it."""
    with system_scene("server", tmp_path / "server", "") as scene:
        workflow(scene)
        with losing_proxy(scene.address, b"POST /api/v1/runs/bulk ") as proxy:
            scene.env["ASTERISM_STORE"] = proxy.url
            yield scene, proxy


EACH = ("runs", "create", "transcode", "--each", "-", "--as", "file")


@pytest.mark.parametrize("unasked", [True, False])
@pytest.mark.parametrize("key", [(), ("--key", "{file}")])
def test_a_lost_answer_creates_no_run_twice(
    line: tuple[SystemScene, LosingProxy], key: tuple[str, ...], unasked: bool
) -> None:
    """The client asks again with the same Idempotency-Key, whether the server was asked or not."""
    scene, proxy = line
    proxy.losses, proxy.unasked = 1, unasked
    result = scene.run(*EACH, *key, stdin="a\nb\nc")
    assert (result.exit_code, proxy.losses) == (0, 0), result.output
    assert "3 runs created." in result.stderr
    runs = all_runs(scene)
    assert [run.input["file"] for run in runs] == ["a", "b", "c"]
    assert result.stdout.split() == [run.id for run in runs]


@pytest.mark.parametrize("key", [(), ("--key", "{file}")])
def test_a_lost_answer_that_is_too_long_to_be_kept_creates_no_run_twice(
    line: tuple[SystemScene, LosingProxy], key: tuple[str, ...]
) -> None:
    """The runs of the first part exist; their ids are known again if they have keys."""
    scene, proxy = line
    proxy.losses = 1
    files = [f"{number}-{'v' * 50}.mp4" for number in range(1003)]
    result = scene.run(*EACH, *key, "--label", "{file}", stdin="\n".join(files))
    assert (result.exit_code, proxy.losses) == (0, 0), result.output
    runs = all_runs(scene)
    assert sorted(run.input["file"] for run in runs) == sorted(files)
    assert ("The answer about lines 1 to 1,000 was lost. Their runs exist." in result.stderr) is (not key)
    assert len(result.stdout.split()) == (1003 if key else 3)


@pytest.mark.parametrize("key", [(), ("--key", "{file}")])
def test_answers_that_are_all_lost_are_said_to_be_unknown(
    line: tuple[SystemScene, LosingProxy], key: tuple[str, ...]
) -> None:
    scene, proxy = line
    proxy.losses = 1_000
    result = scene.run(*EACH, *key, stdin="a\nb")
    assert result.exit_code == 69, result.output
    assert "It is unknown whether lines 1 to 2 have their runs." in result.stderr
    assert ("Look for them, and repeat" in result.stderr) is (not key)
    assert len(all_runs(scene)) == 2
    proxy.losses = 0
    if key:
        assert "2 lines had the key of a run that exists." in scene.run(*EACH, *key, stdin="a\nb").stderr
        assert len(all_runs(scene)) == 2
