"""Cancelled runs are counted apart from failed ones, in ``runs watch`` and ``store info``."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from asterism.api.system import LocalSystem
from asterism.cli.run.runs_watch import fleet_frame
from asterism.core.run.run import FAILED
from asterism.fleet import run_queries
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_queries import CancelledCount
from tests.cli.command_scenes import Scene, failed, started, taken_by


def heading(scene: Scene, tally: CancelledCount, limit: int = 10) -> str:
    """The first line of the picture, without the name of the store."""

    async def ask(fleet: Fleet) -> str:
        console = Console(file=io.StringIO(), width=300, color_system=None)
        vars(fleet)["cancelled_count"] = tally  # the fleet object of a server lives on
        console.print(fleet_frame(await LocalSystem(fleet).show_fleet(limit), fleet.store.url, 300, 20))
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


def test_runs_outside_the_view_are_counted_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_queries, "PAGE", 2)
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
    monkeypatch.setattr(run_queries, "MOST_FAILED_RUNS", 2)
    assert heading(with_ends(tmp_path, "fcc"), CancelledCount()) == "3 failed or cancelled"


def test_a_cancelled_run_is_not_counted_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the record it is failed; people and programs are told the same word."""
    scene = with_ends(tmp_path, "c")
    told = scene.json("store", "info")
    assert (told["runs"][str(FAILED)], told["runs"]["cancelled"]) == (0, 1)
    assert "1 cancelled" in scene.ok("store", "info")
    assert "failed" not in scene.ok("store", "info")
    monkeypatch.setattr(run_queries, "MOST_FAILED_RUNS", 0)  # too many to tell
    assert scene.json("store", "info")["runs"]["failed or cancelled"] == 1
    assert "1 failed or cancelled" in scene.ok("store", "info")
