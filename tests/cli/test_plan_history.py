"""``asterism plan history``: the versions of a plan, with rejected edits, and the plan as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_scenes import Scene
from tests.cli.stored_plan_scenes import keeping

MAIL = '{"id": "mail", "shell": "echo 3", "after": "test"}'


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    scene = keeping(Scene(tmp_path))
    scene.ok("plan", "edit", "nightly", "--add", MAIL, "--reason", "tell everyone")
    assert scene.run("plan", "edit", "nightly", "--remove", "build", "--store", scene.url).exit_code == 1
    scene.ok("plan", "undo", "nightly")
    return scene


def test_versions_and_rejected_edits_in_the_order_of_time(scene: Scene) -> None:
    lines = [line.split("  ", 1)[-1].strip() for line in scene.ok("plan", "history", "nightly").splitlines()]
    assert lines == [
        "version 0: as stored",
        "version 1  by ann: tell everyone",
        "add task 'mail'",
        "add dependency 'test' -> 'mail' on success",
        "rejected  by ann",
        "remove task 'build'",
        "! task 'test' depends on 'build', which is removed; rewire or remove 'test' in the same batch, or set "
        "dependents='remove' or dependents='bridge'",
        "version 2  by ann: undo version 1",
        "remove dependency 'test' -> 'mail'",
        "remove task 'mail'",
    ]


def test_the_same_as_json(scene: Scene) -> None:
    history = scene.json("plan", "history", "nightly")
    assert [edit["version"] for edit in history["items"]] == [0, 1, 2]
    assert history["items"][1]["diff"]["added"] == ["mail"]
    assert history["items"][2]["undoes"] == 1
    assert [edit["violations"][0]["rule"] for edit in history["rejected"]] == ["dependents"]


def test_a_version_is_drawn_as_it_was(scene: Scene) -> None:
    assert "mail" in (drawn := scene.ok("plan", "history", "nightly", "1"))
    assert "Version 1, " in drawn
    assert " by ann: tell everyone" in drawn
    assert "mail" not in scene.ok("plan", "history", "nightly", "2")
    assert list(scene.tasks("plan", "history", "nightly", "1")) == ["build", "test", "mail"]
    assert "mail" in scene.ok("plan", "history", "nightly", "1", "--mermaid")


def test_mistakes(scene: Scene) -> None:
    unknown = scene.run("plan", "history", "nightly", "9", "--store", scene.url)
    assert "no version 9 in its history: versions 0 to 2 are known" in unknown.stderr
    assert unknown.exit_code != 0
    assert "draws one version" in scene.run("plan", "history", "nightly", "--mermaid", "--store", scene.url).stderr
    assert "no plan 'weekly'" in scene.run("plan", "history", "weekly", "--store", scene.url).stderr


def test_a_plan_without_edits(tmp_path: Path) -> None:
    scene = keeping(Scene(tmp_path))
    result = scene.run("plan", "history", "nightly", "--store", scene.url)
    assert "version 0: as stored" in result.stdout
    assert "Plan 'nightly' has not been edited." in result.stderr
    assert json.loads(json.dumps(scene.json("plan", "history", "nightly")))["rejected"] == []
