"""Jobs 11, 12, 14, 16 to 20 and 24: the page and its API, rights, Python, models, agents, and the first hour.

Most of these have whole folders of tests. Here are the first things that a user checks."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task, edits
from tests.cli.server_thread import server_thread
from tests.jobs.desk import ROOT, Desk

TESTED_ELSEWHERE = {
    "11 the page": "tests/page",
    "14 top": "tests/cli/test_top.py",
    "18 a model editor": "tests/cli/test_model_story.py",
    "19 MCP": "tests/mcp",
    "20 an agent": "tests/agents",
}


@pytest.mark.parametrize("place", TESTED_ELSEWHERE.values(), ids=TESTED_ELSEWHERE)
def test_other_jobs_have_tests_of_their_own(place: str) -> None:
    assert (ROOT / place).exists()


def test_11_200_tasks_on_a_server_are_watched_edited_and_read_again(desk: Desk) -> None:
    desk.write("wide.yaml", "tasks:\n  each: {foreach: {range: [1, 200]}, shell: 'echo $item'}\n")
    assert "200 pending" in desk.sh("show wide.yaml")
    desk.write("small.yaml", "tasks:\n  one: {shell: echo 1}\n")
    desk.sh("run small.yaml --id small --plain")
    with server_thread(desk.url) as server:
        there = {"ASTERISM_STORE": server.url, "ASTERISM_TOKEN": server.token("operate")}
        desk.sh('plan edit small --add \'{"id": "two", "shell": "echo 2", "after": "one"}\' --reason more', **there)
        assert "one" in desk.sh("plan history small 0", **there)
        assert "two" not in desk.sh("plan history small 0", **there)
        assert "two" in desk.sh("plan history small 1", **there)
        assert "more" in desk.sh("plan history small", **there)
        assert desk.sh("plan logs small one", **there) == "1\n"


def test_12_a_second_person_may_only_read(desk: Desk) -> None:
    desk.write("small.yaml", "tasks:\n  one: {shell: echo 1}\n")
    desk.sh("run small.yaml --id small --plain")
    with server_thread(desk.url) as server:
        there = {"ASTERISM_STORE": server.url, "ASTERISM_TOKEN": server.token("observe")}
        assert "observe" in desk.sh("whoami", **there)
        assert "small" in desk.sh("plan list", **there)
        desk.sh("plan remove small", code=64, **there)
        assert "operate" in desk.said  # which right is missing
        assert "small" in desk.sh("plan list", **there)


def test_16_a_plan_in_python(desk: Desk) -> None:
    """tests/orchestrator has the types, which mypy checks."""
    program = """\
from asterism import Constellation, LocalDevice, Orchestrator, PlanFailed

p = Constellation("sums")

@p.task
def numbers() -> list[int]:
    return [1, 2, 3]

@p.task
def total(numbers: list[int]) -> int:
    return sum(numbers)

@p.task
def broken(total: int) -> int:
    return total // 0

result = Orchestrator([LocalDevice("here")]).run_sync(p)
print(result[total] + 1)
try:
    result.raise_for_failures()
except PlanFailed as failure:
    print(failure)
"""
    desk.write("sums.py", program)
    done = subprocess.run([sys.executable, "sums.py"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    first, *failures = done.stdout.splitlines()
    assert first == "7"
    assert "broken" in failures[0]
    assert "division" in " ".join(failures)


def test_17_an_executor_and_an_editor_of_ones_own(desk: Desk) -> None:
    """docs/how-to/devices.md and write-a-store.md."""

    class Printer:
        id, can, slots = "printer", frozenset({"print"}), 1

        async def execute(self, work: object) -> str:
            return "printed"

    async def editor(view: Any, events: list[Any]) -> list[Any]:
        return [] if "again" in view else [edits.AddTask(Task("again", call=str, needs={"print"}))]

    plan = Constellation("print")
    plan.add(Task("once", call=str, needs={"print"}))
    result = Orchestrator([Printer(), LocalDevice("here")], editor=editor).run_sync(plan)
    assert {task.id: (task.value, task.device) for task in result} == dict.fromkeys(
        ("once", "again"), ("printed", "printer")
    )


def test_24_the_first_hour(desk: Desk) -> None:
    """tests/cli has all mistakes; these are those of a first day."""
    assert "run" in desk.sh("--help")
    assert "complete" in desk.sh("completion bash")
    desk.write("typo.yaml", "tasks:\n  build: {shel: make}\n  test: {shell: make test, after: biuld}\n")
    desk.sh("check typo.yaml", code=64)
    assert "typo.yaml:3" in desk.said
    assert "'shell'" in desk.said
    assert "did you mean 'build'?" in desk.said
    mistakes = {
        "run nowhere.yaml": "nowhere.yaml",
        "plan shwo nightly": "show",
        "plan show nightly": "there is no store",
        "runs create nothing": "there is no store",
        "run typo.yaml --timeout 3 parsecs": "--timeout",
    }
    for line, said in mistakes.items():
        result = desk.run(*line.split())
        assert result.exit_code not in (0, 1), line
        assert said in result.output, result.output
