"""The examples run as documented and end as they say."""

from __future__ import annotations

import json
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
    )


@pytest.mark.long
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
