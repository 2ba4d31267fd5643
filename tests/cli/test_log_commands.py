"""``asterism runs logs`` and ``asterism plan logs``: lines, attempts, times, JSON, and following."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from asterism.api.local import run_handlers
from asterism.api.system import LocalSystem
from asterism.cli.log_output import LogOptions, print_run_log
from asterism.core.run.run import Run
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import PutLog, StoredChunk
from tests.cli.cli_scenes import write
from tests.cli.command_scenes import Scene, completed, failed, started, taken_by


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def printed(scene: Scene, run: Run, epoch: int, first: int, *blocks: tuple[float, str, str]) -> None:
    """What a device writes. Times are seconds from now."""

    async def put(fleet: Fleet) -> None:
        now = fleet.store.clock()
        value = [[now + at, stream, text] for at, stream, text in blocks]
        lines = sum(text.count("\n") + 1 for _, _, text in blocks)
        await fleet.store.commit([PutLog(run.id, epoch, [StoredChunk(epoch, first, lines, value)])])

    scene.ask(put)


def twice_tried(scene: Scene) -> Run:
    scene.workflow("work", shell="true", retries=2, backoff=0.0)
    created = scene.create()
    scene.device("laptop")
    run = scene.step(created, taken_by("laptop"), started, failed("no luck"))
    run = scene.step(run, taken_by("laptop"), started, completed(5))
    printed(scene, run, 1, 1, (-7200, "stdout", "hello\nworld"), (-7100, "stderr", "trouble"))
    printed(scene, run, 2, 1, (-60, "stdout", "again"))
    printed(scene, run, 2, 1001, (-30, "log", "INFO done"))
    return run


def test_the_log_of_a_run_with_its_attempts_and_its_gap(scene: Scene) -> None:
    run = twice_tried(scene)
    lines = ["hello", "world", "trouble", "-- attempt 2 --", "again", "… 999 lines left out …", "INFO done"]
    assert scene.ok("runs", "logs", run.id).splitlines() == lines
    assert scene.ok("runs", "logs", run.id, "--attempt", "1").splitlines() == lines[:3]
    assert scene.ok("runs", "logs", run.id, "--since", "45s").splitlines() == lines[5:]
    assert scene.ok("runs", "logs", run.id, "--since", "1h", "-f").splitlines() == lines[4:]
    timed = scene.ok("runs", "logs", run.id, "--attempt", "1", "--times").splitlines()
    assert timed[2].endswith(" stderr trouble")
    documents = [json.loads(line) for line in scene.ok("runs", "logs", run.id, "--json").splitlines()]
    assert [(document["attempt"], document["stream"], document["text"]) for document in documents][2:5] == [
        (1, "stderr", "trouble"),
        (2, "stdout", "again"),
        (2, "gap", "… 999 lines left out …"),
    ]
    assert {document["run"] for document in documents} == {run.id}
    nothing = scene.run("runs", "logs", run.id, "--attempt", "3")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "has printed nothing in attempt 3." in nothing.stderr
    shown = scene.ok("runs", "show", run.id)
    assert "End of the output\n  again\n" in shown
    assert scene.json("runs", "show", run.id)["tail"].endswith("INFO done\n")


def test_a_run_that_printed_nothing_says_so(scene: Scene) -> None:
    scene.workflow()
    run = scene.create()
    result = scene.run("runs", "logs", run.id)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "has printed nothing." in result.stderr
    assert scene.run("runs", "logs", "nosuchrun").exit_code != 0


def test_escape_sequences_in_a_log_reach_a_program_and_not_a_terminal(scene: Scene) -> None:
    scene.workflow()
    run = scene.create()
    printed(scene, run, 1, 1, (0, "stdout", "\x1b[2Jgone"))
    assert scene.ok("runs", "logs", run.id) == "\x1b[2Jgone\n"
    assert "\\u001b[2Jgone" in scene.ok("runs", "logs", run.id, "--json")
    assert "\x1b" not in scene.ok("runs", "show", run.id)


def test_follow_prints_what_comes_until_the_end(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.workflow()
    created = scene.create()
    scene.device("laptop")
    run = scene.step(created, taken_by("laptop"), started)
    naps = 0

    async def follow(fleet: Fleet) -> None:
        from asterism.core.run import transitions
        from asterism.store.protocol import PutRun, Write

        async def next_second(seconds: float) -> None:
            """While the command sleeps, the device writes."""
            nonlocal naps
            naps += 1
            await asyncio.sleep(0)
            assert naps < 5
            chunk = StoredChunk(1, naps, 1, [[fleet.store.clock(), "stdout", f"line {naps}"]])
            writes: list[Write] = [PutLog(run.id, 1, [chunk])]
            if naps == 3:
                before = await fleet.run(run.id)
                assert before.grant is not None
                after = transitions.complete(before, before.grant, None, fleet.store.clock())
                writes.append(PutRun(after, before.revision))
            await fleet.store.commit(writes)

        monkeypatch.setattr(fleet.clock, "sleep", next_second)
        await print_run_log(LocalSystem(fleet), run.id, LogOptions(follow=True))

    scene.ask(follow)
    assert capsys.readouterr().out == "line 1\nline 2\nline 3\n"
    assert naps == 3
    assert run_handlers.LOG_INTERVAL <= 1.0


PLAN = """
id: nightly
tasks:
  load: {shell: "echo loading; echo 'no such table' >&2; exit 1", retries: 1, backoff: 0}
  report: {shell: echo reported}
  never: {shell: echo never, after: [load]}
"""


def test_the_logs_of_a_plan_in_a_store(scene: Scene) -> None:
    plan = write(scene.folder, PLAN)
    report = scene.folder / "r.html"
    ran = scene.run("run", plan, "--store", scene.url, "--plain", "--report", str(report))
    assert ran.exit_code == 2
    shown = ran.output[ran.output.index("Output of load") :]
    assert shown.startswith("Output of load, attempt 2:\n")
    assert "  no such table\n" in shown
    assert '["stderr","no such table"]' in report.read_text(encoding="utf-8")
    everything = scene.ok("plan", "logs", "nightly").splitlines()
    assert "report | reported" in everything
    assert "load (2) | no such table" in everything
    load = scene.ok("plan", "logs", "nightly", "load", "--attempt", "2").splitlines()
    assert sorted(load) == ["loading", "no such table"]
    documents = [json.loads(line) for line in scene.ok("plan", "logs", "nightly", "--json", "-f").splitlines()]
    assert {(document["task"], document["attempt"]) for document in documents} == {
        ("load", 1),
        ("load", 2),
        ("report", 1),
    }
    never = scene.run("plan", "logs", "nightly", "never")
    assert "Task 'never' of plan 'nightly' has printed nothing; it has not started" in never.stderr
    unknown = scene.run("plan", "logs", "nightly", "other")
    assert unknown.exit_code != 0
    assert "no task 'other'" in unknown.output
    assert "did you mean 'load'?" in scene.run("plan", "logs", "nightly", "laod").stderr
    assert scene.run("plan", "logs", "other").exit_code != 0


GROUP = """
id: nightly
tasks:
  sales: {foreach: [berlin, lyon], shell: echo $item}
  report: {shell: echo reported}
"""


def test_the_logs_of_a_group_are_those_of_its_elements(scene: Scene) -> None:
    plan = write(scene.folder, GROUP)
    scene.ok("run", plan, "--store", scene.url, "--plain")
    for words in ([], ["--follow"]):
        lines = scene.ok("plan", "logs", "nightly", "sales", *words).splitlines()
        assert sorted(lines) == ["sales[berlin] | berlin", "sales[lyon] | lyon"]
    assert scene.ok("plan", "logs", "nightly", "sales[lyon]").splitlines() == ["lyon"]


def test_the_output_of_a_failed_group_is_shown_once_with_each_element(scene: Scene) -> None:
    plan = write(scene.folder, GROUP.replace("echo $item", "echo sold in $item; exit 1"))
    ran = scene.run("run", plan, "--store", scene.url, "--plain")
    assert ran.exit_code == 2
    shown = ran.output[ran.output.index("Output of ") :]
    assert "Output of sales[berlin]:\n  sold in berlin\n" in shown
    assert shown.count("sold in berlin") == 1
