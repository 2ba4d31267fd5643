"""Whole-plan rewriting: the batch between two plans, and its merge into a plan that has moved on."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.errors import EditRejected
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.diff import Outline, diff, merge
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
from asterism.core.plan.status import CANCELLED, COMPLETED, RUNNING
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, chain, end, fail, start, structure
from tests.laboratory.plan_invariants import check_invariants


def test_two_equal_plans_differ_in_nothing() -> None:
    assert diff(chain("a", "b"), chain("a", "b")).edits == ()


def test_the_difference_is_told_as_edits_removals_first() -> None:
    base = chain("a", "b", "c")
    new = Constellation()
    new.add(Task("a"))
    new.add(Task("c", timeout=5), after={"a": "completion"})
    new.add(Task("d"), after="c")
    batch = diff(base, new, author="ada", reason="better", triggers=("a",))
    assert batch == EditBatch(
        (
            RemoveDependency("a", "b"),
            RemoveDependency("b", "c"),
            RemoveTask("b"),
            AddTask(Task("d")),
            UpdateTask("c", timeout=5),
            AddDependency("a", "c", "completion"),
            AddDependency("c", "d"),
        ),
        "ada",
        "better",
        0,
        ("a",),
    )


def test_changed_terms_of_a_dependency_are_an_update() -> None:
    base, new = chain("a", "b"), Constellation()
    new.add(Task("a"))
    new.add(Task("b"), after={"a": {"on": "failure", "when": "x"}})
    assert diff(base, new).edits == (UpdateDependency("a", "b", "failure", "x"),)


def test_the_batch_is_based_on_the_version_of_the_base() -> None:
    base = chain("a")
    base.edit([UpdateTask("a", timeout=5)])
    assert diff(base, chain("a")).base_version == 1
    assert diff(Outline.of(base), Outline.of(chain("a"))).base_version == 1


@pytest.mark.parametrize(
    "edits",
    [
        [RemoveDependency("a", "b"), AddDependency("b", "a")],
        [RemoveTask("b", "bridge"), AddTask(Task("x")), AddDependency("c", "x")],
        [RemoveTask("a", "remove"), AddTask(Task("z"))],
        [UpdateTask("b", needs="gpu", argv=["ls"]), UpdateDependency("b", "c", "completion")],
        [RemoveDependency("a", "b"), RemoveDependency("b", "c"), AddDependency("c", "b"), AddDependency("b", "a")],
    ],
    ids=lambda edits: "; ".join(map(str, edits)),
)
def test_the_difference_applied_to_the_base_gives_the_new_plan(edits: list[Any]) -> None:
    base, new = chain("a", "b", "c"), chain("a", "b", "c")
    new.edit(edits)
    base.apply(diff(base, new), 1.0)
    assert structure(base) == structure(new)
    check_invariants(base)


def test_progress_is_no_part_of_the_difference() -> None:
    live = begin(chain("a", "b"))
    copy = live.copy()
    end(live, "a", value=1)
    assert diff(copy, live).edits == ()
    assert diff(live, copy).edits == ()


def test_a_copy_that_forges_a_status_changes_nothing() -> None:
    live = begin(chain("a", "b"))
    copy = live.copy()
    copy.node("b").status = COMPLETED
    assert merge(live, copy.origin or live, copy)[0].edits == ()


# -- merging -----------------------------------------------------------------------------------------------------------


def test_a_merge_keeps_a_completion_that_came_while_the_copy_was_edited() -> None:
    live = begin(chain("a", "b"))
    live.add(Task("x"))
    copy = live.copy()
    copy.edit([UpdateTask("x", timeout=5), AddTask(Task("c")), AddDependency("b", "c")])
    end(live, "a", value=7)
    batch, dropped = merge(live, copy.origin or live, copy, author="agent")
    assert dropped == []
    live.apply(batch, 5.0)
    assert (live["a"].status, live["a"].value) == (COMPLETED, 7)
    assert live["x"].task.timeout == 5
    assert "c" in live
    check_invariants(live)


def test_a_merge_leaves_out_what_progress_has_overtaken_and_says_so() -> None:
    live = chain("a", "b", "c")
    live.add(Task("d"))
    begin(live)
    copy = live.copy()
    copy.edit(
        [
            UpdateTask("a", timeout=5),
            UpdateDependency("a", "b", "completion"),
            UpdateTask("c", retries=1),
            RemoveTask("d"),
        ]
    )
    end(live, "a")
    start(live, "b")
    start(live, "d")
    batch, dropped = merge(live, copy.origin or live, copy)
    assert set(map(str, dropped)) == {
        "update task 'a': timeout",
        "update dependency 'a' -> 'b' on completion",
        "remove task 'd'",
    }
    assert batch.edits == (UpdateTask("c", retries=1),)
    live.apply(batch, 5.0)
    assert live["b"].status is RUNNING
    check_invariants(live)


def test_a_merge_drops_new_edges_into_tasks_that_have_started_and_keeps_new_tasks() -> None:
    live = begin(chain("a"))
    copy = live.copy()
    copy.edit([AddTask(Task("x")), AddDependency("x", "a")])
    start(live, "a")
    batch, dropped = merge(live, copy.origin or live, copy)
    assert batch.edits == (AddTask(Task("x")),)
    assert dropped == [AddDependency("x", "a")]


def test_a_merge_into_a_plan_that_another_edit_has_changed_is_judged_by_apply() -> None:
    live = begin(chain("a", "b"))
    copy = live.copy()
    copy.edit([UpdateTask("b", timeout=5)])
    live.edit([RemoveTask("b")])
    batch, dropped = merge(live, copy.origin or live, copy)
    assert dropped == []
    with pytest.raises(EditRejected, match="was changed in version 1, after version 0"):
        live.apply(batch, 5.0)


def test_a_merge_may_repair_a_failure() -> None:
    live = begin(chain("a", "b"))
    copy = live.copy()
    fail(live, "a")
    copy.edit([AddTask(Task("a2")), RemoveDependency("a", "b"), AddDependency("a2", "b")])
    batch, dropped = merge(live, copy.origin or live, copy)
    assert dropped == []
    live.apply(batch, 5.0)
    end(live, "a2")
    end(live, "b")
    check_invariants(live)


def test_a_cancellation_in_a_copy_is_an_edit() -> None:
    live = begin(chain("a", "b", "c"))
    copy = live.copy()
    copy.edit([CancelTask("b", "not needed"), AddTask(Task("x")), CancelTask("x")])
    batch, dropped = merge(live, copy.origin or live, copy)
    assert (batch.edits, dropped) == ((AddTask(Task("x")), CancelTask("b"), CancelTask("x")), [])
    live.apply(batch, 5.0)
    assert (live["b"].status, live["x"].status) == (CANCELLED, CANCELLED)
    check_invariants(live)


def test_progress_wins_over_a_cancellation_in_a_copy() -> None:
    live = begin(chain("a"))
    for task_id in ("b", "c", "d", "e"):
        live.edit([AddTask(Task(task_id))])
    live.edit([CancelTask("e")])
    copy = live.copy()
    copy.edit([CancelTask("a"), CancelTask("b"), CancelTask("c"), CancelTask("d")])
    end(live, "a")
    start(live, "b")
    live.edit([RemoveTask("c")])
    live.edit([CancelTask("d")])
    batch, dropped = merge(live, copy.origin or live, copy)
    assert batch.edits == (CancelTask("b"),)  # a task that runs can still be cancelled; e was cancelled before
    assert dropped == [CancelTask("a"), CancelTask("c"), CancelTask("d")]
