"""The whole story with the commands and a scripted model: plan, failure, repair, prune, approval, end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_scenes import Scene
from tests.cli.test_model_commands import MODEL, served
from tests.forked_commands import Server
from tests.models.model_server import ModelServer, Question, Reply
from tests.process_scenes import ended, soon

pytestmark = pytest.mark.slow

REQUEST = "Compare the three build logs and write a summary"
FILE = """asterism: 1
id: logs
tasks:
  collect: {shell: echo three logs}
  compare: {shell: "echo log 2 is cut off; exit 3", after: collect}
  draw: {shell: echo a diagram, after: collect}
  print: {shell: echo ten pages, after: draw}
  summary: {shell: echo all builds are the same, after: compare}
"""
REPAIR: list[dict[str, Any]] = [
    {"op": "add_task", "task": {"id": "compare-again", "shell": "echo the same"}},
    {"op": "add_dependency", "source": "compare", "target": "compare-again", "on": "failure", "handled": True},
    {"op": "remove_dependency", "source": "compare", "target": "summary"},
    {"op": "add_dependency", "source": "compare-again", "target": "summary"},
]
PRUNE: list[dict[str, Any]] = [{"op": "remove_task", "task_id": "print"}]


def answer(question: Question) -> Reply:
    """A model that writes the plan, repairs the failure, and removes what nobody asked for."""
    if question.tools == ["plan"]:
        return Reply.call({"file": FILE, "explanation": "Two ways from the logs."})
    repair = REPAIR if "task 'compare' failed" in question.text else []
    return Reply.edits(*repair, *(PRUNE if "task 'draw' completed" in question.text else []))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    return Scene(tmp_path).made()


def approve_all(scene: Scene, process: Any) -> list[str]:
    """Approve what waits until the plan has ended. Returns the edits that waited."""
    decided: list[str] = []

    def step() -> bool:
        listed = scene.run("plan", "approvals", "logs", "--json")  # an error, until the plan is in the store
        for approval in json.loads(listed.stdout) if listed.exit_code == 0 else []:
            decided.extend(edit["op"] for edit in approval["batch"]["edits"])
            scene.ok("plan", "approve", "logs", str(approval["id"]))
        return process.poll() is not None

    soon(step)
    return decided


@pytest.mark.long
def test_a_model_plans_repairs_and_prunes_and_a_person_approves(scene: Scene, model_commands: Server) -> None:
    with served(ModelServer(answer)) as server:
        draft = scene.run("plan", "new", REQUEST, "--model", MODEL, **server.environment)
        (scene.folder / "plan.yaml").write_text(draft.stdout)
        assert "plan.yaml is valid" in scene.ok("check", "plan.yaml")
        words = ("run", "plan.yaml", "--store", scene.url, "--plain", "--editor", "model", "--model", MODEL)
        rules = ("--budget", "$2 9calls 5tasks", "--approve", "destructive")
        ask = ("--edit-on", "failure", "--edit-on", "tasks=draw")
        with scene.process(*words, *rules, *ask, server=model_commands, **server.environment) as process:
            decided = approve_all(scene, process)
            code, output, errors = ended(process)
    assert code == 0, output + errors
    assert {"remove_task", "remove_dependency"} <= set(decided)
    tasks = {name: task["status"] for name, task in scene.tasks("plan", "show", "logs").items()}
    assert tasks == dict.fromkeys(("collect", "compare-again", "draw", "summary"), "completed") | {"compare": "failed"}
    story = scene.ok("plan", "story", "logs")
    assert all(words in story for words in ("editor called", "edit waits", "edit approved", "edited"))
    spent = scene.json("plan", "budget", "logs")["spent"]
    assert (spent["calls"], spent["tasks"]) == (len(server.questions) - 1, 1)
