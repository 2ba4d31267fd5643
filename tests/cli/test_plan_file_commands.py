"""`asterism check`, `show` and `schema`, and what all commands share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asterism import __version__
from asterism.planfile import json_schema
from tests.cli.cli_scenes import asterism, write

GOOD = "tasks:\n  fetch: {shell: x}\n  build: {argv: [make], after: fetch}\n"
BAD = "tasks:\n  fetch: {shell: x}\n  build: {argv: [make], after: fecth, retires: 1}\n"


def test_a_good_plan_is_valid(tmp_path: Path) -> None:
    result = asterism("check", write(tmp_path, GOOD))
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path / 'plan.yaml'} is valid: 2 tasks, 1 dependency.\n"
    assert result.stderr == ""


def test_every_mistake_of_a_bad_plan_is_reported_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, BAD)
    result = asterism("check", path)
    assert result.exit_code == 64
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"{path}:4: task 'build': comes after 'fecth', but there is no such task; did you mean 'fetch'?",
        f"{path}:4: task 'build': unknown key 'retires'; did you mean 'retries'?",
        f"2 mistakes in {path}.",
    ]


def test_a_warning_is_printed_and_the_plan_is_valid(tmp_path: Path) -> None:
    path = write(tmp_path, "tasks:\n  a: {shell: x, device: moon}\n")
    result = asterism("check", path)
    assert result.exit_code == 0
    assert f"{path}:3: warning: task 'a': needs the device 'moon'" in result.stderr
    assert "with 1 warning." in result.stdout


def test_a_check_for_programs_is_one_document(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    result = asterism("check", "--json", path)
    assert (result.exit_code, result.stderr) == (0, "")
    counts = {"file": path, "valid": True, "tasks": 2, "dependencies": 1}
    assert json.loads(result.stdout) == {**counts, "mistakes": [], "warnings": []}

    path = write(tmp_path, BAD.replace("make]", "make], device: moon"))
    result = asterism("check", "--json", path)
    assert (result.exit_code, result.stderr) == (64, "")
    findings = json.loads(result.stdout)
    assert (findings["valid"], findings["tasks"], findings["dependencies"]) == (False, None, None)
    assert [(mistake["file"], mistake["line"], mistake["warning"]) for mistake in findings["mistakes"]] == [
        (path, 4, False)
    ] * 2
    assert [mistake["text"].partition(":")[0] for mistake in findings["warnings"]] == ["task 'build'"]

    result = asterism("check", "--json", str(tmp_path / "none.yaml"))
    assert (result.exit_code, result.stdout) == (64, "")


def test_imports_are_found_beside_the_plan(tmp_path: Path) -> None:
    (tmp_path / "beside_the_plan.py").write_text("def work(size): ...\n")
    path = write(tmp_path, "tasks:\n  a: {call: 'beside_the_plan:work'}\n")
    assert asterism("check", path).exit_code == 0
    result = asterism("check", "--imports", path)
    assert result.exit_code == 64
    assert "no input or dependency fills the parameter 'size'" in result.stderr


@pytest.mark.parametrize("command", ["check", "show", "run"])
def test_a_file_that_is_not_there_is_one_sentence(command: str, tmp_path: Path) -> None:
    result = asterism(command, str(tmp_path / "none.yaml"))
    assert result.exit_code == 64
    assert result.stderr == f"{tmp_path / 'none.yaml'} cannot be read: No such file or directory.\n"
    assert asterism(command, str(tmp_path)).stderr.endswith("cannot be read: Is a directory.\n")


@pytest.mark.parametrize(
    "words", [[], ["run"], ["fly"], ["run", "--lock-policy", "lax", "x"], ["run", "--concurrency", "0", "x"]]
)
def test_a_wrong_command_is_never_taken_for_the_end_of_a_plan(words: list[str]) -> None:
    result = asterism(*words)
    assert result.exit_code in ([0, 64] if not words else [64])
    assert "Usage" in result.output


def test_the_version() -> None:
    assert asterism("--version").stdout == f"asterism {__version__}\n"


def test_the_schema_is_printed() -> None:
    assert json.loads(asterism("schema").stdout) == json_schema()


def test_a_plan_is_drawn(tmp_path: Path) -> None:
    result = asterism("show", write(tmp_path, GOOD))
    assert result.exit_code == 0
    assert "2 tasks, 1 dependency" in result.stdout
    assert "build" in result.stdout
    assert "  ○ build" in result.stdout or "  ◌ build" in result.stdout


def test_a_plan_is_drawn_as_mermaid(tmp_path: Path) -> None:
    result = asterism("show", write(tmp_path, GOOD), "--mermaid")
    assert "flowchart LR" in result.stdout
    assert "n0 --> n1" in result.stdout


def test_two_formats_at_once_are_refused(tmp_path: Path) -> None:
    assert asterism("show", write(tmp_path, GOOD), "--json", "--mermaid").exit_code == 64


def test_a_bad_plan_is_not_drawn(tmp_path: Path) -> None:
    result = asterism("show", write(tmp_path, BAD))
    assert result.exit_code == 64
    assert result.stdout == ""
    assert "2 mistakes" in result.stderr


def test_show_of_a_name_points_to_plan_show() -> None:
    result = asterism("show", "nightly")
    assert (result.exit_code, result.stdout) == (64, "")
    assert result.stderr == "There is no file nightly. To show a plan in a store, use: asterism plan show nightly\n"
