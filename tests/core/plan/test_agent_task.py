"""Tasks for agents: their fields, their problems, and what they need of a device."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.core.errors import InvalidTask
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import ApprovalRule
from asterism.core.plan.edits import AddTask, EditBatch, UpdateTask
from asterism.core.plan.task import Task, lane_of, needs_of
from asterism.core.run.work import Workflow

SCHEMA = {"type": "object", "properties": {"summary": {"type": "string"}}}

works = st.fixed_dictionaries(
    {"description": st.text(min_size=1).filter(str.strip)},
    optional={"tips": st.lists(st.text()), "result": st.just(SCHEMA)},
)


def test_a_text_is_the_description() -> None:
    assert Task("a", agent="Compare the logs").agent == {"description": "Compare the logs"}  # type: ignore[arg-type]


@given(works)
def test_json_keeps_the_work(work: dict[str, Any]) -> None:
    task = Task("a", agent=work)
    assert Task.from_json(task.to_json()) == task
    assert Workflow.from_json(Workflow("w", agent=work).to_json()) == Workflow("w", agent=work)


def test_other_tasks_are_written_as_before() -> None:
    assert "agent" not in Task("a", shell="true").to_json()
    assert "agent" not in Workflow("w", shell="true").to_json()


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        ({}, "the key 'agent.description' is missing"),
        ({"description": "  "}, "agent.description must be a text that says what to do"),
        ({"description": "x", "tips": "one"}, "agent.tips must be a list"),
        ({"description": "x", "result": "text"}, "agent.result must be a mapping"),
        ({"description": "x", "hints": []}, "unknown key 'agent.hints'; the keys are description, tips, result"),
        (["x"], "agent must be a mapping"),
    ],
)
def test_every_problem_has_a_message(work: Any, problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem):
        Task("a", agent=work)


def test_an_agent_beside_another_action_is_refused() -> None:
    with pytest.raises(InvalidTask, match="only one of call, argv, shell, http, agent, plugin may be set"):
        Task("a", agent={"description": "x"}, shell="true")


def test_a_secret_is_no_input_of_an_agent() -> None:
    with pytest.raises(InvalidTask, match="the input 'token' is a secret, which an agent must not read"):
        Task("a", agent={"description": "x"}, inputs={"token": {"secret": "TOKEN"}})
    Task("a", agent={"description": "x"}, inputs={"log": {"from": "build"}})


def test_it_needs_a_device_with_an_agent_and_nothing_is_left_after_an_update() -> None:
    task = Task("a", agent={"description": "x"}, needs=["gpu"])  # type: ignore[arg-type]
    assert needs_of(task) == {"gpu", "agent"}
    assert lane_of(task) == (None, frozenset({"gpu", "agent"}))
    plain = Task("a", agent={"description": "x"}).changed({"agent": None, "shell": "true"})
    assert lane_of(plain) is None
    assert Workflow("w", agent={"description": "x"}, needs=["gpu"]).needs == {"gpu", "agent"}  # type: ignore[arg-type]


def test_edits_and_stored_plans_carry_it() -> None:
    plan = Constellation("p")
    plan.apply(EditBatch([AddTask(Task("a", agent={"description": "x", "tips": ["y"], "result": SCHEMA}))]), now=0.0)
    plan.apply(EditBatch([UpdateTask("a", agent={"description": "z"})]), now=1.0)
    assert Constellation.from_json(plan.to_json()).nodes["a"].task.agent == {"description": "z"}


def test_an_approval_rule_names_agents() -> None:
    rule = ApprovalRule(executors=("agent",))
    task = Task("a", agent={"description": "x"})
    assert rule.matches(AddTask(task), "robot", [task])
    assert not rule.matches(AddTask(Task("b", shell="true")), "robot", [Task("b", shell="true")])
