"""Applying a batch: what it does, what it refuses, and that a refused batch leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.errors import EditRejected
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    CancelTask,
    EditBatch,
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)
from asterism.core.plan.status import CANCELLED, PENDING, RUNNING, TaskStatus
from asterism.core.plan.task import Dependency, Task
from tests.core.plan.tiny_plans import begin, chain, end, facts, fail, ready, start, structure, told, violations
from tests.laboratory.plan_invariants import check_invariants


def reasons(problems: list[Any]) -> list[tuple[int | None, str]]:
    return [(violation.edit, violation.rule) for violation in problems]


# -- what an accepted batch does ---------------------------------------------------------------------------------------


def test_an_accepted_batch_makes_one_version_and_tells_who_and_why() -> None:
    plan = begin(chain("a"))
    batch = EditBatch((AddTask(Task("b")), AddDependency("a", "b")), "ada", "we forgot b", triggers=("a",))
    applied = plan.apply(batch, 5.0)
    assert (applied.version, plan.version, applied.batch) == (1, 1, batch)
    assert told(plan, "b") == [("added", "version 1 by ada: we forgot b")]
    [(what, why)] = told(plan, None)[1:]
    assert what == "edited"
    assert why == "version 1 by ada: we forgot b (add task 'b'; add dependency 'a' -> 'b' on success)"
    check_invariants(plan)


def test_a_batch_without_author_or_reason_is_by_somebody() -> None:
    plan = chain("a")
    plan.edit([UpdateTask("a", timeout=5)])
    assert told(plan, "a") == [("edited", "version 1 by somebody")]


def test_an_empty_batch_changes_nothing_not_even_the_version() -> None:
    plan = chain("a")
    before = facts(plan)
    applied = plan.apply(EditBatch(()), 1.0)
    assert (applied.version, applied.inverse, applied.stopped) == (0, EditBatch(()), ())
    assert facts(plan) == before


def test_an_added_task_without_dependencies_is_ready_at_once() -> None:
    plan = begin(chain("a"))
    plan.edit([AddTask(Task("b", priority="high"))])
    assert ready(plan) == ["b", "a"]


def test_an_update_moves_a_ready_task_to_where_it_now_belongs() -> None:
    plan = chain("a")
    plan.add(Task("b"))
    begin(plan)
    plan.edit([UpdateTask("b", priority="critical")])
    assert ready(plan) == ["b", "a"]
    plan.edit([UpdateTask("b", needs="gpu")])
    assert (None, frozenset({"gpu"})) in plan.queue.lanes
    check_invariants(plan)


def test_an_added_dependency_takes_a_ready_task_back() -> None:
    plan = chain("a")
    plan.add(Task("b"))
    begin(plan)
    plan.edit([AddDependency("a", "b")])
    assert ready(plan) == ["a"]
    check_invariants(plan)


def test_a_dependency_on_an_end_counts_at_once() -> None:
    plan = begin(chain("a"))
    fail(plan, "a")
    plan.edit(
        [AddTask(Task("yes")), AddTask(Task("no")), AddDependency("a", "yes", "failure"), AddDependency("a", "no")]
    )
    assert ready(plan) == ["yes"]
    check_invariants(plan)


def test_a_removed_dependency_lets_the_task_go() -> None:
    plan = begin(chain("a", "b"))
    plan.edit([RemoveDependency("a", "b")])
    assert ready(plan) == ["a", "b"]
    check_invariants(plan)


def test_an_updated_dependency_waits_for_something_else() -> None:
    plan = begin(chain("a", "b"))
    fail(plan, "a")
    plan.edit([UpdateDependency("a", "b", "completion")])
    assert plan["b"].dependencies == (Dependency("a", "b", "completion"),)
    assert ready(plan) == ["b"]
    check_invariants(plan)


def test_edits_of_one_batch_see_what_the_ones_before_them_did() -> None:
    plan = chain("a")
    plan.edit(
        [
            AddTask(Task("b")),
            UpdateTask("b", timeout=5),
            AddDependency("a", "b"),
            UpdateDependency("a", "b", "completion"),
            AddTask(Task("gone")),
            RemoveTask("gone"),
        ]
    )
    tasks, dependencies = structure(plan)
    assert tasks == {"a": Task("a"), "b": Task("b", timeout=5)}
    assert dependencies == {("a", "b"): Dependency("a", "b", "completion")}
    check_invariants(plan)


def test_an_edge_may_be_turned_round_in_one_batch() -> None:
    plan = begin(chain("a", "b"))
    plan.edit([RemoveDependency("a", "b"), AddDependency("b", "a")])
    assert ready(plan) == ["b"]
    check_invariants(plan)


def test_the_owner_of_a_plan_is_told_of_what_was_applied() -> None:
    plan, heard = chain("a"), []
    plan.on_applied = heard.append
    applied = plan.edit([UpdateTask("a", timeout=5)])
    assert heard == [applied]


def test_an_update_with_the_values_that_are_there_already_is_accepted() -> None:
    plan = chain("a")
    assert plan.edit([UpdateTask("a", retries=0)]).version == 1
    assert plan["a"].task == Task("a")


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "rule", "words"),
    [
        (
            RemoveTask("ghost"),
            "unknown_task",
            "there is no task 'ghost' in the plan; it is named in: remove task 'ghost'",
        ),
        (UpdateTask("ghost", timeout=5), "unknown_task", "there is no task 'ghost' in the plan"),
        (CancelTask("ghost"), "unknown_task", "it is named in: cancel task 'ghost'"),
        (AddDependency("ghost", "a"), "unknown_task", "it is named in: add dependency 'ghost' -> 'a' on success"),
        (AddDependency("a", "ghost"), "unknown_task", "there is no task 'ghost' in the plan"),
        (RemoveDependency("ghost", "a"), "unknown_task", "there is no task 'ghost' in the plan"),
        (UpdateDependency("a", "ghost"), "unknown_task", "there is no task 'ghost' in the plan"),
        (AddTask(Task("a")), "duplicate_task", "task 'a' already exists; choose another id, or update"),
        (AddDependency("a", "b"), "duplicate_dependency", "'b' already depends on 'a'"),
        (RemoveDependency("a", "c"), "unknown_dependency", "'c' does not depend on 'a'"),
        (UpdateDependency("a", "c"), "unknown_dependency", "'c' does not depend on 'a'"),
        (AddDependency("a", "a"), "invalid", "task 'a' cannot depend on itself"),
        (
            AddDependency("a", "c", "done"),
            "invalid",
            "on is one of success, failure, completion, always, teardown, not 'done'",
        ),
        (AddDependency("c", "a"), "cycle", "this dependency would close a cycle: c -> a -> b -> c"),
        (UpdateTask("a", retries=-1), "invalid", "task 'a': retries must be 0 or more, not -1"),
        (UpdateTask("a", colour="red"), "invalid", "task 'a': no such field: colour; the fields are"),
        (UpdateTask("a"), "invalid", "the update changes nothing; name at least one field"),
        (RemoveTask("a", "adopt"), "malformed", "dependents is 'remove' or 'bridge', not 'adopt'"),
    ],
    ids=lambda value: str(value),
)
def test_an_edit_that_cannot_be_carried_out_is_rejected_with_the_reason(edit: Any, rule: str, words: str) -> None:
    [violation] = violations(chain("a", "b", "c"), edit)
    assert (violation.edit, violation.rule) == (0, rule)
    assert words in violation.message


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("remove everything", "'remove everything' is not an edit"),
        (None, "None is not an edit"),
        (AddTask("b"), "add_task takes a Task, not 'b'"),  # type: ignore[arg-type]
        (RemoveTask(5), "a task id is a string, not 5"),  # type: ignore[arg-type]
        (UpdateTask(["a"], timeout=5), "a task id is a string, not ['a']"),  # type: ignore[arg-type]
        (AddDependency("a", 5), "a task id is a string, not ('a', 5)"),  # type: ignore[arg-type]
        (CancelTask("a", 5), "the reason of a cancellation is a string, not 5"),  # type: ignore[arg-type]
    ],
    ids=["text", "nothing", "no task", "number", "list", "edge", "reason"],
)
def test_nonsense_is_a_violation_and_not_a_crash(edit: Any, words: str) -> None:
    [violation] = violations(chain("a"), edit)
    assert (violation.rule, violation.message) == ("malformed", words)


@pytest.mark.parametrize(
    "edit",
    [
        UpdateTask("a", needs=[["gpu"]]),
        RemoveTask("ghost", ["children"]),  # type: ignore[arg-type]
        UpdateTask("a", inputs=5),
    ],
    ids=["unhashable need", "unhashable dependents", "inputs that are no mapping"],
)
def test_nonsense_deep_inside_an_edit_takes_back_the_edits_before_it(edit: Any) -> None:
    [violation] = violations(chain("a"), AddTask(Task("x")), edit)
    assert violation.edit == 1


def test_a_base_version_that_is_no_number_is_rejected() -> None:
    assert violations(chain("a"), UpdateTask("a", timeout=5), base_version="1")  # type: ignore[arg-type]


def test_a_condition_that_does_not_parse_is_rejected_with_what_the_parser_said() -> None:
    plan = chain("a", "b", "c")
    plan.check_condition = lambda text: "a bracket is missing at 3" if "(" in text else None
    edits = AddDependency("a", "c", when="f(x"), UpdateDependency("a", "b", "failure", "g(")
    problems = violations(plan, *edits)
    assert reasons(problems) == [(0, "condition"), (1, "condition")]
    assert problems[0].message == "the condition 'f(x' is not valid: a bracket is missing at 3"
    plan.edit([AddDependency("a", "c", when="x > 1")])
    assert plan["c"].dependencies[-1].when == "x > 1"


def test_a_checker_that_raises_leaves_the_plan_as_it_was() -> None:
    def crash(text: str) -> str | None:
        raise ZeroDivisionError("crash")

    plan = chain("a", "b", "c")
    plan.check_condition = crash
    before = structure(plan)
    with pytest.raises((EditRejected, ZeroDivisionError)):
        plan.edit([AddTask(Task("x")), AddDependency("a", "c", when="x > 1")])
    assert structure(plan) == before
    check_invariants(plan)


def test_a_condition_over_an_end_is_asked_when_the_edge_is_added() -> None:
    plan = begin(chain("a"))
    plan.evaluate = lambda condition, status, result: result == condition
    end(plan, "a", value="yes")
    plan.edit(
        [
            *(AddTask(Task(name)) for name in ("b", "c")),
            *(AddDependency("a", target, when=text) for target, text in (("b", "yes"), ("c", "no"))),
        ]
    )
    assert ready(plan) == ["b"]
    check_invariants(plan)


def test_a_condition_that_raises_over_an_end_counts_as_false() -> None:
    plan = begin(chain("a"))
    plan.evaluate = lambda condition, status, result: "no such key"
    end(plan, "a")
    plan.edit([AddTask(Task("b")), AddDependency("a", "b", when="result.x")])
    assert ready(plan) == []
    assert plan.node("b").verdicts == {"a": "no such key"}
    check_invariants(plan)


# -- what must not change (I3) -----------------------------------------------------------------------------------------


def edits_of(task_id: str) -> list[Any]:
    return [
        UpdateTask(task_id, timeout=5),
        RemoveTask(task_id),
        RemoveTask(task_id, "remove"),
        RemoveTask(task_id, "bridge"),
        AddDependency("free", task_id),
        RemoveDependency("a", task_id),
        UpdateDependency("a", task_id, "completion"),
    ]


def plan_with_b(status: str) -> Constellation:
    """a -> b -> c and a free task; b is in the wanted state."""
    plan = chain("a", "b", "c")
    plan.add(Task("free"))
    begin(plan)
    end(plan, "a")
    if status == "cancelled":
        plan.edit([CancelTask("b")])
    elif status == "failed":
        fail(plan, "b")
    elif status == "completed":
        end(plan, "b")
    else:
        start(plan, "b")
    return plan


@pytest.mark.parametrize("edit", edits_of("b"), ids=str)
def test_an_edit_of_a_running_task_is_rejected(edit: Any) -> None:
    [violation] = violations(plan_with_b("running"), edit)
    assert violation.rule == "immutable"
    assert violation.message == (
        "task 'b' is running: neither it nor its dependencies can change; use cancel_task to stop it"
    )


@pytest.mark.parametrize("edit", edits_of("b"), ids=str)
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_an_edit_of_a_finished_task_is_rejected(status: str, edit: Any) -> None:
    [violation] = violations(plan_with_b(status), edit)
    assert violation.rule == "immutable"
    assert violation.message == f"task 'b' is {status}: neither it nor its dependencies can change"


def test_the_edges_out_of_a_running_task_may_change() -> None:
    plan = plan_with_b("running")
    plan.edit([RemoveDependency("b", "c"), AddDependency("b", "free")])
    check_invariants(plan)


def test_a_task_above_one_that_was_cancelled_early_cannot_be_removed() -> None:
    plan = begin(chain("a", "b"))
    plan.edit([CancelTask("b")])
    for dependents in (None, "remove", "bridge"):
        [violation] = violations(plan, RemoveTask("a", dependents))
        assert violation.message == "task 'b' is cancelled: neither it nor its dependencies can change"


def test_an_edit_that_is_refused_half_way_does_not_mislead_the_ones_after_it() -> None:
    plan = begin(chain("a", "b", "c"))
    plan.edit([CancelTask("b")])
    problems = violations(plan, RemoveTask("a", "remove"), UpdateTask("c", timeout=5))
    assert reasons(problems) == [(0, "immutable")]


def test_a_plan_that_has_ended_takes_no_edit_that_adds_nothing() -> None:
    plan = begin(chain("a"))
    end(plan, "a")
    plan.close(3.0)
    [violation] = violations(plan, UpdateTask("a", timeout=5))
    assert (violation.edit, violation.rule) == (None, "ended")
    assert violation.message == "plan 'tiny' has ended (completed); only an edit that adds a task reopens it"


# -- all or nothing ----------------------------------------------------------------------------------------------------


def test_every_violation_is_reported_with_the_index_of_its_edit() -> None:
    plan = begin(chain("a", "b", "c"))
    end(plan, "a")
    problems = violations(
        plan,
        AddTask(Task("new")),
        RemoveTask("ghost"),
        AddTask(Task("b")),
        AddDependency("c", "b"),
        UpdateTask("a", timeout=5),
        UpdateTask("c", timeout=-5),
        AddDependency("b", "new"),
        "nonsense",  # type: ignore[arg-type]
    )
    assert reasons(problems) == [
        (1, "unknown_task"),
        (2, "duplicate_task"),
        (3, "cycle"),
        (4, "immutable"),
        (5, "invalid"),
        (7, "malformed"),
    ]


def test_the_message_of_a_rejection_can_be_handed_to_a_language_model() -> None:
    with pytest.raises(EditRejected) as caught:
        chain("a", "b").edit([AddDependency("b", "a"), RemoveTask("ghost")])
    assert str(caught.value) == (
        "the edit was rejected for 2 reasons:\n"
        "  - edit 0: this dependency would close a cycle: b -> a -> b [cycle]\n"
        "  - edit 1: there is no task 'ghost' in the plan; it is named in: remove task 'ghost' [unknown_task]"
    )


@pytest.mark.parametrize(
    "edits",
    [
        [AddTask(Task("x")), AddDependency("a", "x"), AddDependency("x", "c")],
        [UpdateTask("b", timeout=5), UpdateTask("b", retries=1)],
        [RemoveDependency("a", "b"), AddDependency("b", "d")],
        [UpdateDependency("a", "b", "completion")],
        [RemoveTask("b", "bridge")],
        [RemoveTask("b", "remove")],
        [RemoveTask("b"), AddTask(Task("b", retries=3)), AddDependency("d", "b")],
        [RemoveTask("c"), RemoveTask("b"), AddTask(Task("c"))],
        [CancelTask("b")],
        [AddTask(Task("x")), RemoveTask("x")],
        [RemoveDependency("a", "b"), RemoveDependency("b", "c"), AddDependency("c", "b"), AddDependency("b", "a")],
    ],
    ids=lambda edits: "; ".join(map(str, edits)),
)
def test_whatever_was_done_before_a_violation_is_taken_back(edits: list[Any]) -> None:
    plan = chain("a", "b", "c")
    plan.add(Task("d"))
    begin(plan)
    violations(plan, *edits, RemoveTask("ghost"))
    violations(plan, RemoveTask("ghost"), *edits)


def test_a_rollback_brings_back_what_a_condition_said() -> None:
    plan = chain("a")
    plan.add(Task("b"), after={"a": {"when": "yes"}})
    plan.add(Task("c"), after={"a": {"when": "no"}})
    asked = []

    def once(condition: str, status: TaskStatus, result: Any) -> bool:
        asked.append(condition)
        return condition == "yes"

    plan.evaluate = once
    begin(plan)
    end(plan, "a")
    violations(plan, RemoveTask("b"), RemoveDependency("a", "c"), RemoveTask("ghost"))
    assert ready(plan) == ["b"]
    assert asked == ["yes", "no"]


# -- cancelling by edit ------------------------------------------------------------------------------------------------


def test_a_cancel_edit_stops_a_running_task_and_tells_why() -> None:
    plan = begin(chain("a", "b"))
    epoch = start(plan, "a")
    applied = plan.edit([CancelTask("a", "it loops")])
    assert (applied.stopped, applied.revoked, applied.cancelled) == ((("a", epoch),), (), (plan.node("a"),))
    assert plan["a"].status is CANCELLED
    assert told(plan, "a")[-1] == ("cancelled", "it loops")
    assert ready(plan) == []
    check_invariants(plan)


def test_a_cancel_edit_without_a_reason_names_the_version_and_its_author() -> None:
    plan = begin(chain("a"))
    plan.edit([CancelTask("a")], author="ada", reason="enough")
    assert told(plan, "a") == [("cancelled", "version 1 by ada: enough")]


def test_a_cancel_edit_keeps_a_pending_task_in_the_record() -> None:
    plan = begin(chain("a"))
    plan.edit([CancelTask("a")])
    assert plan["a"].status is CANCELLED
    assert ready(plan) == []


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_an_end_cannot_be_cancelled_by_an_edit(status: str) -> None:
    [violation] = violations(plan_with_b(status), CancelTask("b"))
    assert (violation.rule, violation.message) == (
        "immutable",
        f"task 'b' is already {status}: it cannot be cancelled",
    )


def test_a_batch_with_a_cancellation_cannot_be_undone() -> None:
    plan = begin(chain("a"))
    assert plan.edit([AddTask(Task("b")), CancelTask("a")]).inverse is None


def test_a_task_that_is_cancelled_twice_in_one_batch_is_cancelled_once() -> None:
    plan = begin(chain("a"))
    plan.edit([CancelTask("a", "first"), CancelTask("a", "second")])
    assert told(plan, "a") == [("cancelled", "first")]


def test_a_task_that_is_cancelled_and_then_removed_is_removed() -> None:
    plan = begin(chain("a", "b"))
    plan.edit([CancelTask("b"), RemoveTask("b")])
    assert "b" not in plan
    check_invariants(plan)


def test_a_replacement_is_not_cancelled_with_the_task_it_replaces() -> None:
    plan = begin(chain("a"))
    plan.edit([CancelTask("a"), RemoveTask("a"), AddTask(Task("a", retries=1))])
    assert plan["a"].status is PENDING
    assert ready(plan) == ["a"]


def test_a_running_task_that_is_cancelled_may_be_replaced_under_another_name() -> None:
    plan = begin(chain("a", "b"))
    start(plan, "a")
    plan.edit([CancelTask("a"), AddTask(Task("a2")), RemoveDependency("a", "b"), AddDependency("a2", "b")])
    start(plan, "a2")
    assert (plan["a"].status, plan["a2"].status) == (CANCELLED, RUNNING)
    check_invariants(plan)


def test_a_replacement_takes_over_its_own_dependents_alone() -> None:
    plan = chain("a", "b")
    plan.add(Task("x"))
    plan.add(Task("y"), after="x")
    plan.edit([RemoveTask("a"), RemoveTask("x"), AddTask(Task("a")), AddTask(Task("x"))])
    assert {(d.source, d.target) for d in plan.dependencies} == {("a", "b"), ("x", "y")}
    check_invariants(plan)
