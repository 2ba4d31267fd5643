"""`asterism runs move`: what it prints, and what it refuses."""

from __future__ import annotations

from pathlib import Path

from asterism.base.text import short
from tests.cli.command_scenes import Scene


def test_a_run_is_moved_and_said_to_be(tmp_path: Path) -> None:
    scene = Scene(tmp_path).made()
    scene.workflow()
    scene.device("kitchen")
    run = scene.create()
    assert run.device == "kitchen"
    scene.device("desk")
    assert scene.ok("runs", "move", run.id, "--to", "desk") == f"{short(run.id)} is assigned to desk\n"
    shown = scene.json("runs", "show", run.id)
    assert (shown["device"], shown["epoch"], shown["assigned_by"]) == ("desk", 2, "ann")
    assert shown["previous_assignments"][0]["detail"] == "moved to desk by ann"
    assert shown["previous_assignments"][0]["score"] == run.scores["kitchen"]
    assert scene.ok("runs", "move", run.id, "--to", "desk") == f"{short(run.id)} is unchanged: assigned\n"
    [moved] = scene.json("runs", "move", run.id, "--to", "kitchen")
    assert (moved["device"], moved["epoch"]) == ("kitchen", 3)


def test_what_cannot_be_moved_is_refused_with_the_reason(tmp_path: Path) -> None:
    scene = Scene(tmp_path).made()
    scene.workflow()
    scene.device("kitchen")
    pinned, open_ = scene.create(device="kitchen"), scene.create()
    scene.device("desk")
    result = scene.run("runs", "move", pinned.id, "--to", "desk")
    assert result.exit_code == 64
    assert "the run is pinned to kitchen" in result.stderr
    result = scene.run("runs", "move", open_.id, "--to", "attic")
    assert result.exit_code == 64
    assert "no device 'attic' is joined" in result.stderr
    assert result.stderr.endswith("with: asterism device list\n")  # a command, to be copied as it is
    result = scene.run("runs", "move", open_.id)
    assert result.exit_code == 64
    assert "Missing option '--to'" in result.stderr
