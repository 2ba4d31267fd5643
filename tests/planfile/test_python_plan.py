"""A plan in Python as the text of a plan file: whatever it says survives, or is refused by name."""

from __future__ import annotations

import pytest

from asterism.core.errors import PlanError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Dependency, Task
from asterism.planfile.loader import examine
from asterism.planfile.python_plan import python_plan_text

REFUSED = {"data": {"any": 1}, "foreach": {"of": ["first"]}}
"""The fields of a task that a plan file cannot say, with values."""

OF_RUNS = {
    *("author", "cancel_reason", "edited", "source", "tick", "version", "state", "epochs", "started_at", "ended_at"),
    *(
        "counts",
        "deciders",
        "last_at",
        "nodes",
        "order",
        "origin",
        "owner",
        "provisionals",
        "queue",
        "ranks",
        "records",
    ),
    *("rejoined", "running", "setups", "speculative", "tainted", "touched", "unscoped", "untrusted", "urged"),
    *("check_condition", "check_plugin", "clock", "evaluate", "on_applied"),
}
"""What a Constellation knows of its tasks, of its progress, and of the process that runs it: no part of a plan file."""


def full_plan() -> Constellation:
    """Each field of a task has a value in one of its tasks, and each field of a dependency in one of them."""
    plan = Constellation("full")
    plan.tags, plan.overlap = ("etl", "nightly"), ("replace", 2, "ci")
    plan.add(
        Task(
            "first",
            argv=["make", "{target}"],
            inputs={"target": "all", "deep": {"a": [1, {"b": None}]}},
            env={"TOKEN": {"secret": "TOKEN"}, "LEVEL": 3},
            description="makes",
            priority="high",
            retries=2,
            backoff=0.25,
            timeout=300.0,
            device="laptop",
            needs=["linux", "gpu"],
            estimate=90.0,
            cost=2.5,
            effects=["spends"],
            outputs={"report": "out/*.xml"},
            uses={"warehouse": 2},
            heartbeat_timeout=6.0,
        )
    )
    plan.add(
        Task("gate", shell="true", cwd="work", approval={"by": ["ann"], "timeout": 3600.0, "else": "skip"}), "first"
    )
    plan.add(Task("call", call="json:dumps", untrusted=True), {"first": {"on": "completion", "when": "result == 1"}})
    plan.add(
        Task("request", http={"url": "https://example.test", "method": "POST"}, revocable=True), {"gate": "always"}
    )
    plan.add(Task("agent", agent={"description": "look", "tips": ["twice"], "result": {"type": "object"}}))
    plan.add(Task("plugin", plugin={"container": {"image": "alpine", "argv": ["true"]}}), handles="call")
    plan.add(Task("event", wait_for={"event": "paid", "timeout": 60.0}))
    plan.add(Task("other", wait_for={"plan": "days", "task": "load"}), ["event", "agent"])
    cached = {"inputs": ["a"], "outputs": ["b"], "shared": "builds"}
    plan.add(
        Task("cached", shell="make", skip_if_unchanged=cached, join="any"), {"other": "failure", "event": "success"}
    )
    part = {"from": "first", "select": "result"}
    plan.add(Task("joined", shell="true", inputs={"part": part}), {"first": "completion"})
    plan.add(Task("down", shell="true"), teardown="first")
    return plan


def plan_with_data() -> Constellation:
    return plan_with("data")


def plan_with_foreach() -> Constellation:
    return plan_with("foreach")


def plan_with(field: str) -> Constellation:
    plan = full_plan()
    plan.add(Task("more", **{field: REFUSED[field]}))
    return plan


def test_every_field_of_a_task_is_in_the_plan() -> None:
    tasks = [node.task for node in full_plan().nodes.values()]
    blank = Task("blank")
    unused = {
        name for name in Task.__struct_fields__ if all(getattr(task, name) == getattr(blank, name) for task in tasks)
    }
    assert unused == set(REFUSED), "give one of the tasks above a value for it, or refuse it"


def test_every_field_of_a_dependency_is_in_the_plan() -> None:
    edges = [edge for node in full_plan().nodes.values() for edge in node.parents.values()]
    blank = Dependency("first", "second")
    assert {
        name
        for name in Dependency.__struct_fields__
        if any(getattr(edge, name) != getattr(blank, name) for edge in edges)
    } == {*Dependency.__struct_fields__}


def test_every_attribute_of_a_plan_is_written_or_belongs_to_its_runs() -> None:
    attributes = {name for name in vars(Constellation("full")) if not name.startswith("_")}
    assert attributes - OF_RUNS == {"id", "tags", "overlap"}


def test_it_is_the_same_plan_when_it_is_read_again() -> None:
    loaded, mistakes = examine(python_plan_text(f"{__name__}:full_plan"), "full")
    assert loaded is not None, mistakes
    plan, again = full_plan(), loaded.constellation
    assert {name: node.task for name, node in again.nodes.items()} == {
        name: node.task for name, node in plan.nodes.items()
    }
    assert {name: dict(node.parents) for name, node in again.nodes.items()} == {
        name: dict(node.parents) for name, node in plan.nodes.items()
    }
    assert (again.id, again.tags, again.overlap) == (plan.id, plan.tags, plan.overlap)


@pytest.mark.parametrize(("field", "what"), [("data", "data"), ("foreach", "elements")])
def test_what_a_plan_file_cannot_say_is_refused(field: str, what: str) -> None:
    with pytest.raises(PlanError, match=f"task 'more' has {what}, which a plan file cannot say"):
        python_plan_text(f"{__name__}:plan_with_{field}")
