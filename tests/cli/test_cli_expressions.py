"""Expressions that cost too much, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.base.cel.cel_bombs import CONSTANT, over
from tests.cli.cli_scenes import asterism
from tests.cli.command_scenes import Scene

bombs = pytest.mark.parametrize("bomb", CONSTANT.values(), ids=CONSTANT)


@bombs
@pytest.mark.parametrize("command", ["check", "show", "run"])
def test_a_plan_file_with_a_bomb_is_refused_by_every_command(command: str, bomb: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "asterism: 1\ntasks:\n  a: {shell: echo 1}\n  b:\n    shell: echo 2\n    after:\n      a:\n"
        f'        when: "{bomb}"\n'
        f'    inputs:\n      part: {{from: a, select: "{bomb}"}}\n'
    )
    result = asterism(command, str(plan))
    assert result.exit_code == 64
    lines = [line for line in result.output.splitlines() if "steps; use fewer nested or chained macros" in line]
    assert [line.split(":")[1] for line in lines] == ["8", "10"]


@pytest.mark.parametrize("bomb", over("result").values(), ids=over("result"))
def test_a_plan_with_a_bomb_over_data_runs_to_its_end(bomb: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "asterism: 1\ntasks:\n  a: {shell: echo 1}\n  b:\n    shell: echo 2\n    after:\n      a:\n"
        f'        when: "{bomb}"\n'
    )
    assert asterism("check", str(plan)).exit_code == 0
    result = asterism("run", str(plan), "--plain")
    assert result.exit_code == 2
    assert "steps" in result.output


@bombs
def test_rules_with_a_bomb_are_refused(bomb: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path).made()
    for words in (
        ("workflow", "add", "heavy", "--shell", "true", "--requires", bomb),
        ("workflow", "add", "heavy", "--shell", "true", "--prefers", bomb),
        ("device", "join", "here", "--accepts", bomb),
        ("device", "join", "here", "--hands-back", bomb),
    ):
        result = scene.run(*words)
        assert result.exit_code == 64
        assert "steps" in result.output


@pytest.mark.parametrize("bomb", over("name").values(), ids=over("name"))
def test_a_run_that_waits_because_of_a_bomb_says_so(bomb: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path).made()
    scene.ok("workflow", "add", "heavy", "--shell", "true", "--requires", bomb)
    with scene.process("device", "join", "here") as device:
        assert device.stderr is not None
        assert any("joined as here" in line for line in iter(device.stderr.readline, ""))
        told = scene.json("runs", "create", "heavy")
        assert "steps" in " ".join(scene.run("runs", "why", told["id"]).output.split())
