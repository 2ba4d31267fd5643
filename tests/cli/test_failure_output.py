"""The end of a failed run shows the real error: the last lines of each failed task."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from asterism.cli.main import commands
from tests.cli.cli_scenes import asterism, write


def test_the_real_error_of_a_failing_command_is_on_the_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "correct-horse-battery")
    plan = write(
        tmp_path,
        """
tasks:
  build:
    shell: |
      seq 1 30
      echo "main.c:3: error: expected a semicolon" >&2
      echo "see https://x:$DEPLOY_TOKEN@example.com" >&2
      echo
      exit 2
  silent: {shell: exit 3}
  fine: {shell: echo fine}
""",
    )
    result = asterism("run", plan, "--plain", "--report", str(tmp_path / "r.html"))
    assert result.exit_code == 2
    shown = result.output[result.output.index("Output of build") :]
    assert shown.startswith("Output of build (the last 10 lines):\n")
    assert "  main.c:3: error: expected a semicolon\n" in shown
    assert "  30\n" in shown
    assert "  5\n" not in shown
    assert "correct-horse" not in result.output
    assert "Output of silent" not in result.output
    assert "Output of fine" not in result.output
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert '["stderr","main.c:3: error: expected a semicolon"]' in page
    assert "correct-horse" not in page


@pytest.mark.parametrize("stored", [False, True])
def test_the_traceback_of_a_function_is_on_the_screen_in_the_story_and_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "correct-horse-battery")
    plan = write(tmp_path, f"id: nightly\ntasks: {{load: {{call: '{__name__}:fall'}}}}")
    store = ("--store", f"sqlite:///{tmp_path / 'fleet.db'}") if stored else ()
    report = tmp_path / "r.html"
    result = CliRunner().invoke(commands, ["run", plan, "--plain", "--report", str(report), *store])
    assert result.exit_code == 1
    shown = result.output[result.output.index("Output of load") :]
    assert shown.count(", in fall\n") == 10  # more lines than of other output
    assert "RuntimeError: at the ground with [secret]" in shown
    page = report.read_text(encoding="utf-8")
    assert '["traceback","RuntimeError: at the ground with [secret]"]' in page
    assert '"traceback":"Traceback (most recent call last):\\n' in page
    if stored:
        story = CliRunner().invoke(commands, ["plan", "story", "nightly", *store]).output
        assert "  failed  RuntimeError: at the ground with [secret]\n    Traceback (most recent call last):\n" in story
        entries = json.loads(CliRunner().invoke(commands, ["plan", "story", "nightly", "--json", *store]).output)
        assert [entry["what"] for entry in entries if entry["traceback"]] == ["failed"]
    assert "correct-horse" not in result.output + page


def fall(depth: int = 9) -> None:
    if not depth:
        raise RuntimeError(f"at the ground with {os.environ['DEPLOY_TOKEN']}")
    if depth % 2:
        fall(depth - 1)
    fall(depth - 1)


def test_a_plan_that_completes_shows_no_output(tmp_path: Path) -> None:
    result = asterism("run", write(tmp_path, "tasks: {fine: {shell: echo fine}}"), "--plain")
    assert result.exit_code == 0
    assert "Output of" not in result.output


def test_output_with_escape_sequences_moves_no_cursor(tmp_path: Path) -> None:
    plan = write(tmp_path, r"tasks: {bad: {shell: 'printf \"\\033[2Jgone\\n\" >&2; exit 1'}}")
    result = asterism("run", plan, "--plain")
    assert "·[2Jgone" in result.output
    assert "\x1b" not in result.output


def test_of_a_long_line_the_beginning_and_the_end_are_shown(tmp_path: Path) -> None:
    plan = write(tmp_path, "tasks: {a: {shell: \"printf 'begin%05000d' 0; echo end; exit 1\"}}\n")
    result = asterism("run", plan, "--plain")
    shown = result.output[result.output.index("Output of a:") :].splitlines()
    zeros = "0" * 445
    assert shown[1] == f"  begin{zeros} … (4,108 characters are left out) … 00{zeros}end"


@pytest.mark.parametrize("end", ["exit 1", ":"])
def test_data_in_one_line_does_not_fill_the_screen(tmp_path: Path, end: str) -> None:
    """Neither as the output nor as the reason, which is its last line, nor in the log that a person reads."""
    plan = write(tmp_path, f"tasks: {{a: {{shell: \"printf 'begin%0500000d' 0; echo end; {end}\"}}}}\n")
    result = asterism("run", plan, "--plain", "--result-limit", "100k")
    assert result.exit_code == 1
    assert len(result.output) < 6000
    assert "begin000" in result.output
    assert "000end" in result.output
    assert (" has 500,009 bytes, and the limit is 102,400" in result.output) == (end == ":")
