"""The examples run as documented and end as they say."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_scenes import asterism
from tests.cli.test_model_commands import served
from tests.models.model_server import ModelServer, Question, Reply
from tests.process_scenes import PATIENCE

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


def python(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "ASTERISM_MODEL": "", "RELEASE_KEY": "a-key-that-nobody-may-see", **env},
    )


@pytest.mark.long
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
    assert "\n  OPENAI_API_KEY=… ASTERISM_MODEL=openai:gpt-5 make demo\n" in done.stdout


def maintain(question: Question) -> Reply:
    """A model that does what the goal of the demonstration says."""
    goal = question.text.partition("# What happened")[0]
    mend, test = (ast.literal_eval(words) for words in re.findall(r"\[[^]]*\]", goal)[-2:])
    home = re.findall(r"PYTHONPATH=(\S+),", goal)[-1]
    changes: list[dict[str, Any]] = []
    if "task 'test-numbers' failed" in question.text:
        retest = {"id": "retest", "argv": test, "env": {"PYTHONPATH": home}, "needs": ["test"]}
        changes += [
            {"op": "add_task", "task": {"id": "mend", "argv": mend, "priority": "critical"}},
            {"op": "add_dependency", "source": "test-numbers", "target": "mend", "on": "failure", "handled": True},
            {"op": "add_task", "task": retest},
            {"op": "add_dependency", "source": "mend", "target": "retest"},
            {"op": "add_dependency", "source": "retest", "target": "package"},
            {"op": "remove_dependency", "source": "test-numbers", "target": "package"},
        ]
    if "task 'find-typesetter' completed" in question.text:
        changes += [
            {"op": "remove_dependency", "source": "proofread-pdf", "target": "bundle-docs"},
            {"op": "remove_task", "task_id": "docs-pdf", "dependents": "remove"},
        ]
    return Reply.edits(*changes, reason="as the goal says")


@pytest.mark.long
def test_a_model_edits_the_demonstration(tmp_path: Path) -> None:
    with served(ModelServer(maintain)) as server:
        done = python("release_demo.py", tmp_path, ASTERISM_MODEL="openai-chat:gpt-5", **server.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "edit by openai-chat:gpt-5 applied: add task 'mend'" in done.stdout
    assert "State                repaired\n" in done.stdout
    calls = len(server.questions)
    assert 1 <= calls <= 2  # ends that come together share a call
    assert f"Editor               {calls} call" in done.stdout
    assert "As expected" in done.stdout
    page = (tmp_path / "asterism-report.html").read_text("utf-8")
    assert "a-key-that-nobody-may-see" not in page + done.stdout + "".join(
        question.text for question in server.questions
    )


@pytest.mark.long
def test_a_model_that_cannot_be_asked_is_named_without_a_traceback(tmp_path: Path) -> None:
    done = python("release_demo.py", tmp_path, ASTERISM_MODEL="nobody:knows")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "nobody:knows has not repaired the release, so it was not published.\n" in done.stdout


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
