"""The examples run as documented and end as they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cli_scenes import asterism
from tests.process_scenes import PATIENCE

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


def python(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "RELEASE_KEY": "a-key-that-nobody-may-see"},
    )


def test_the_demonstration_reaches_its_end_and_writes_its_report(tmp_path: Path) -> None:
    done, folder = python("release_demo.py", tmp_path), tmp_path
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = [line[10:] for line in done.stdout.splitlines()]
    applied = [line for line in lines if line.startswith("edit by Maintainer applied")]
    assert any("remove task 'docs-pdf' and what depends on it" in line for line in applied)
    assert any("add task 'patch'" in line for line in applied)
    assert any(line.startswith("test-numbers failed after ") for line in lines)
    assert any(line.startswith("retest completed after ") for line in lines)
    assert "State                repaired\n" in done.stdout
    assert "Tasks                17 completed, 1 failed\n" in done.stdout
    report = folder / "asterism-report.html"
    assert f"Report: {report.resolve()}\n" in done.stdout
    page = report.read_text("utf-8")
    assert "proofread-pdf" in page
    assert "a-key-that-nobody-may-see" not in page + done.stdout
    assert list(folder.iterdir()) == [report]
    # other tasks start or end while the editor reviews the failure
    failed = next(number for number, line in enumerate(lines) if line.startswith("test-numbers failed"))
    repaired = next(number for number, line in enumerate(lines) if "add task 'patch'" in line)
    assert any(" started on " in line or " completed after " in line for line in lines[failed + 1 : repaired])


def test_the_quick_start(tmp_path: Path) -> None:
    done = python("quickstart.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "partially_failed",
        "  fetch: completed, ['main.c', 'stars.c']",
        "  build: failed, the compiler is broken",
        "  report: completed, told everybody",
        "  rebuild: completed, 2 files built",
    ]


def test_the_plan_is_fine_and_runs() -> None:
    plan = str(EXAMPLES / "plan.yaml")
    assert asterism("check", "--imports", plan).stderr == ""
    result = asterism("run", "--json", plan)
    assert result.exit_code == 0, result.output
    tasks = json.loads(result.stdout)["tasks"]
    assert len(tasks["throw"]["value"]) == 8
    assert tasks["report"]["value"].startswith(f"The first throw was {tasks['throw']['value'][0]}, the mean ")
    assert {tasks["lucky"]["status"], tasks["unlucky"]["status"]} == {"completed", "cancelled"}
    assert tasks["alarm"]["status"] == "cancelled"


def test_the_editor_rewrites_the_plan() -> None:
    result = asterism("run", "--json", str(EXAMPLES / "plan.yaml"), "--editor", "editor:throw_more")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["version"] == 1
    throws = told["tasks"]["throw-more"]["value"]
    assert len(throws) == 100
    assert abs(told["tasks"]["mean"]["value"] - sum(throws) / 100) < 1e-9
