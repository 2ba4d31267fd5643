"""`asterism runs watch`: the live picture of a fleet, and lines without a terminal."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from asterism.api.fleet_operations import FleetOperations, ShowFleet
from asterism.api.system import LocalSystem
from asterism.cli.run.runs_watch import fleet_frame, watch
from asterism.cli.screen import Screen
from asterism.core.run.run import Progress, Run
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_queries import take_snapshot
from asterism.store.protocol import ProgressReport, PutRegister
from asterism.store.store_errors import StoreUnavailable
from tests.cli.cli_scenes import read_until
from tests.cli.command_scenes import Scene, assigned_to, completed, failed, started, taken_by
from tests.process_scenes import PATIENCE, ended


def drawn(scene: Scene, width: int = 100, height: int = 24) -> list[str]:
    async def ask(fleet: Fleet) -> list[str]:
        view = await LocalSystem(fleet).show_fleet(height)
        console = Console(file=io.StringIO(), width=width, height=height, color_system=None, force_terminal=True)
        console.print(fleet_frame(view, fleet.store.url, width, height))
        assert isinstance(console.file, io.StringIO)
        return [line.rstrip() for line in console.file.getvalue().splitlines()]

    return scene.ask(ask)


def busy_fleet(scene: Scene) -> list[Run]:
    scene.workflow("work")
    runs = [scene.create() for _ in range(5)]
    runs.append(scene.create(series="s"))
    runs.append(scene.create(series="s"))
    scene.device("kitchen-pc", slots=2)
    scene.device("laptop")
    scene.device("quiet", timeout=1e-6)
    scene.step(runs[0], taken_by("kitchen-pc"), started, completed(1))
    scene.step(runs[1], taken_by("kitchen-pc"), started, failed("no luck"))
    scene.step(runs[2], taken_by("kitchen-pc"), started)
    scene.step(runs[3], assigned_to("laptop"))

    async def tell(fleet: Fleet) -> None:
        await fleet.store.heartbeat("session-kitchen-pc", {}, [ProgressReport(runs[2].id, 1, Progress(3, 10), "")])
        value = {"device": "laptop", "session": "x", "epoch": 1, "until": fleet.store.clock() + 1000, "lease": 1000}
        await fleet.store.commit([PutRegister("coordinator", value, None)])

    scene.ask(tell)
    return runs


def test_the_frame_shows_owners_and_progress(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    runs = busy_fleet(scene)
    lines = drawn(scene)
    assert lines[0].startswith("1 processing, 1 assigned, 3 created, 1 completed, 1 failed  sqlite:///")
    assert lines[2].split() == ["RUN", "WORKFLOW", "STATUS", "DEVICE", "FOR", "BEAT", "DONE", "NOTE"]
    rows = {line.split()[1]: line.split() for line in lines[3:10]}
    assert list(rows) == [run.id[-8:] for run in (runs[2], runs[3], runs[4], runs[5], runs[6], runs[1], runs[0])]
    assert rows[runs[2].id[-8:]][2:5] == ["work", "processing", "kitchen-pc"]
    assert rows[runs[2].id[-8:]][-1] == "3/10"
    assert rows[runs[3].id[-8:]][3:5] == ["assigned", "laptop"]
    assert rows[runs[6].id[-8:]][-2:] == ["series", "s"]
    assert rows[runs[1].id[-8:]][-2:] == ["no", "luck"]
    devices = lines[11:]
    assert devices[0].startswith("kitchen-pc  ■□  1/2  heartbeat ")
    assert devices[1].startswith("laptop      ■   1/1  heartbeat ")
    assert devices[1].endswith("coordinator")
    assert devices[2].endswith("silent")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10), (20, 5), (10, 2), (1, 1)])
def test_the_picture_fits_into_every_terminal(tmp_path: Path, width: int, height: int) -> None:
    scene = Scene(tmp_path)
    busy_fleet(scene)
    for number in range(9):
        scene.device(f"device-{number}", slots=20)
    lines = drawn(scene, width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_of_many_runs_each_sort_has_its_share(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()

    async def many(fleet: Fleet) -> list[Run]:
        return [await fleet.create("work") for _ in range(60)]

    runs = scene.ask(many)
    scene.device("laptop", slots=30)
    for run in runs[:3]:
        scene.step(run, taken_by("laptop"), started, completed(1))
    for run in runs[3:20]:
        scene.step(run, taken_by("laptop"), started)
    words = [line.split()[3] for line in drawn(scene, height=20) if line[:1] in "◐○●" and line]
    assert {word: words.count(word) for word in words} == {"processing": 9, "created": 3, "completed": 3}


def test_an_empty_fleet_says_what_to_do(tmp_path: Path) -> None:
    lines = drawn(Scene(tmp_path))
    assert lines[0].startswith("no runs  sqlite:///")
    assert "No runs yet." in lines
    assert lines[-1] == "No device is joined. Start one with: asterism device join NAME"


def test_a_look_finds_what_a_device_that_has_gone_still_owns(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    run = scene.step(scene.create(), taken_by("nobody"), started)
    view = scene.ask(lambda fleet: LocalSystem(fleet).call(FleetOperations.show_fleet, ShowFleet(10)))
    assert [owned.id for owned in view.owned] == [run.id]
    assert " gone" in "\n".join(drawn(scene))


def test_a_look_tells_the_end_of_what_was_there_before_however_old_it_is(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    first, second = scene.create(), scene.create()
    for run in (second, first):
        scene.step(run, taken_by("a"), started, completed(1))
    snapshot = scene.ask(lambda fleet: take_snapshot(fleet, 1))
    assert [run.id for run in snapshot.ended] == [second.id]
    snapshot = scene.ask(lambda fleet: take_snapshot(fleet, 1, [first.id, "unknown"]))
    assert [run.id for run in snapshot.ended] == [first.id, second.id]


def test_without_a_terminal_everything_that_happens_is_a_line(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow(":bug: [red]")
    over, run = scene.create(":bug: [red]"), scene.create(":bug: [red]")
    scene.step(over, taken_by("laptop"), started, completed(1))
    with scene.process("runs", "watch", "--until-done") as process:
        [first] = read_until(process, run.id[-8:])
        assert first.split()[1:] == [run.id[-8:], ":bug:", "[red]", "created", "by", "ann"]
        scene.step(run, taken_by("laptop"), started, completed(1))
        code, lines, errors = ended(process)
        assert (code, errors) == (0, "")
    assert [line.split(maxsplit=4)[4] for line in lines.splitlines()] == [
        "claimed  by laptop, epoch 1",
        "processing  on laptop",
        "completed  on laptop",
    ]


def test_as_json_every_line_is_an_object(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    run = scene.create()
    with scene.process("runs", "watch", "--until-done", "--json") as process:
        [line] = read_until(process, run.id)
        told = json.loads(line)
        assert told.pop("at") == pytest.approx(run.created_at)
        assert told == {
            **{"run": run.id, "workflow": "work", "what": "created", "why": "by ann"},
            **{"status": "created", "epoch": 0, "device": None},
        }
        scene.ok("runs", "cancel", run.id)
        _, lines, _ = ended(process)
    assert [json.loads(line)["what"] for line in lines.splitlines()] == ["failed"]


def test_a_fleet_where_all_is_done_is_not_watched_further(tmp_path: Path) -> None:
    assert Scene(tmp_path).made().ok("runs", "watch", "--until-done") == ""


def test_ctrl_c_ends_the_watch(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    run = scene.create()
    with scene.process("runs", "watch") as process:
        read_until(process, run.id[-8:])
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == ""


def test_in_a_terminal_the_picture_is_drawn_over_and_over(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.workflow()
    run = scene.create()
    output = io.StringIO()
    screen = Screen(file=output, force_terminal=True, width=80, height=24, color_system=None)

    async def both(fleet: Fleet) -> None:
        watching = asyncio.create_task(watch(LocalSystem(fleet), screen, until_done=True))
        async with asyncio.timeout(PATIENCE):
            while "1 created" not in output.getvalue():  # noqa: ASYNC110 - a terminal announces nothing
                await asyncio.sleep(0)
            await fleet.cancel(run.id)
            await watching

    scene.ask(both)
    assert "1 cancelled" in output.getvalue()
    assert re.search("cancelled +by ann", output.getvalue())


@pytest.mark.parametrize("terminal", [True, False])
def test_a_store_that_is_out_of_reach_for_a_while_is_watched_on(
    tmp_path: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(tmp_path)
    output = io.StringIO()
    screen = Screen(file=output, force_terminal=terminal, width=80, height=24, color_system=None)
    troubles = 3

    async def watched(fleet: Fleet) -> None:
        counts = fleet.store.counts

        async def sometimes() -> Any:
            nonlocal troubles
            if troubles:
                troubles -= 1
                raise StoreUnavailable("the disk is away")
            return await counts()

        monkeypatch.setattr(fleet.store, "counts", sometimes)
        async with asyncio.timeout(PATIENCE):
            await watch(LocalSystem(fleet), screen, until_done=True)

    scene.ask(watched)
    told = output.getvalue() if terminal else capsys.readouterr().err
    assert "the disk is away" in told
    if not terminal:
        assert told == "The store cannot be reached: the disk is away\n"
