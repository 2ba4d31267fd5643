"""The end of a failed run shows the real error: the last lines of each failed task."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    assert '<span class="stderr">main.c:3: error: expected a semicolon</span>' in page
    assert "correct-horse" not in page


def test_a_plan_that_completes_shows_no_output(tmp_path: Path) -> None:
    result = asterism("run", write(tmp_path, "tasks: {fine: {shell: echo fine}}"), "--plain")
    assert result.exit_code == 0
    assert "Output of" not in result.output


def test_output_with_escape_sequences_moves_no_cursor(tmp_path: Path) -> None:
    plan = write(tmp_path, r"tasks: {bad: {shell: 'printf \"\\033[2Jgone\\n\" >&2; exit 1'}}")
    result = asterism("run", plan, "--plain")
    assert "·[2Jgone" in result.output
    assert "\x1b" not in result.output
