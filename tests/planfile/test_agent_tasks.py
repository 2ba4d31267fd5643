"""Tasks for agents in plan files."""

from __future__ import annotations

from pathlib import Path

import pytest

from asterism.planfile import BadPlan, load

PLAN = """\
asterism: 1
params: {team: build}
tasks:
  logs: {shell: ./collect-logs}
  compare:
    agent:
      description: Compare the logs of {params.team} and name the first error
      tips: [Ignore warnings, "Read {params.team}.log first"]
      result: {type: object, required: [error], properties: {error: {type: string, pattern: "^.{1,80}$"}}}
    inputs: {logs: {from: logs}}
    after: logs
    device: {id: coder}
  mail: {agent: Write a mail about it, after: compare}
"""


def test_a_plan_file_has_work_for_agents(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    plan = load(str(file)).constellation
    work = plan.nodes["compare"].task.agent
    assert work is not None
    assert work["description"] == "Compare the logs of build and name the first error"
    assert work["tips"] == ["Ignore warnings", "Read build.log first"]
    assert work["result"]["properties"]["error"]["pattern"] == "^.{1,80}$"  # braces of a pattern are no placeholder
    assert plan.nodes["mail"].task.agent == {"description": "Write a mail about it"}


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        ("{agent: {tips: [x]}}", "description"),
        ("{agent: {description: x, hints: [y]}}", "hints"),
        ("{agent: [x]}", "must be a description, or {description: …, tips: […], result: {…}}"),
        ("{agent: x, shell: 'true'}", "has shell and agent; a task has one action"),
        ("{agent: 'x {params.tem}'}", "there is no parameter 'tem'"),
        ("{agent: {description: x, result: {type: objekt}}}", "agent.result is not a JSON Schema: 'objekt'"),
        ("{agent: {description: x, result: {pattern: '(?=a)'}}}", "agent.result: the pattern '(?=a)' is not supported"),
        ("{agent: x, inputs: {token: {secret: TOKEN}}}", "is a secret, which an agent must not read"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, task: str, problem: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(f"asterism: 1\nparams: {{team: build}}\ntasks:\n  a: {task}\n")
    with pytest.raises(BadPlan) as refused:
        load(str(file))
    assert problem in str(refused.value)
