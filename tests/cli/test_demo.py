"""The command ``asterism demo``. ``test_installed_package`` runs it from an installed package."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from asterism.cli.demo.release_demo import release
from asterism.cli.demo.workshop import Workshop
from tests.cli.cli_scenes import ASTERISM, asterism
from tests.cli.test_model_commands import served
from tests.models.model_server import ModelServer, Question, Reply
from tests.process_scenes import PATIENCE

KEY = "a-key-that-nobody-may-see"


def demo(folder: Path, model: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ASTERISM, "demo", "--report", "model.html"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "ASTERISM_MODEL": model, "RELEASE_KEY": KEY, **env},
    )


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
        done = demo(tmp_path, "openai-chat:gpt-5", **server.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "edit by openai-chat:gpt-5 applied (as the goal says): add task 'mend'" in done.stdout
    assert "State                repaired\n" in done.stdout
    calls = len(server.questions)
    assert 1 <= calls <= 2  # ends that come together share a call
    assert f"Editor               {calls} call" in done.stdout
    assert "As expected" in done.stdout
    page = (tmp_path / "model.html").read_text("utf-8")
    assert KEY not in page + done.stdout + "".join(question.text for question in server.questions)


@pytest.mark.long
def test_a_model_that_cannot_be_asked_is_named_without_a_traceback(tmp_path: Path) -> None:
    done = demo(tmp_path, "nobody:knows")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "nobody:knows has not repaired the release, so it was not published.\n" in done.stdout


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    result = asterism("demo", "--report", str(tmp_path / "missing" / "report.html"))
    assert (result.exit_code, result.stdout) == (64, "")
    assert "cannot be written: there is no directory" in result.stderr


def test_its_commands_import_nothing_from_the_folder_of_the_user(tmp_path: Path) -> None:
    """Somebody may call a package ``checks``, or a script ``unittest.py``."""
    (tmp_path / "checks").mkdir()
    for name in ("checks/__init__.py", "unittest.py", "zipfile.py", "compileall.py", "json.py"):
        (tmp_path / name).write_text("raise ImportError('the wrong one')\n")
    home = tmp_path / "home"
    home.mkdir()
    shop = Workshop(home)
    shop.generate()
    tasks = {task.id: task for task in (node.task for node in release(shop).nodes.values()) if task.argv}
    assert {"lint", "test-angles", "package", "fuzz", "sign"} <= tasks.keys()
    for name in ("lint", "test-angles", "package"):
        task = tasks[name]

        def code(argv: Sequence[str], path: str = str(home)) -> int:
            env = {**os.environ, "PYTHONPATH": path}
            return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, timeout=PATIENCE).returncode

        assert code(task.argv) == 0, name
        assert code([word for word in task.argv if word != "-P"]) == 1, name
    assert all(task.argv[:2] == (sys.executable, "-P") for task in tasks.values())
