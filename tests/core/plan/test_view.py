"""Read-only windows on a task and on a plan."""

from __future__ import annotations

import pytest

from asterism.core.errors import UnknownTask
from asterism.core.plan.constellation import ConstellationView, EndView, Upstream
from asterism.core.plan.edits import UpdateTask
from asterism.core.plan.status import COMPLETED, FAILED, PENDING, RUNNING, ConstellationState
from asterism.core.plan.task import Dependency, Task
from tests.core.plan.tiny_plans import begin, chain, end, fail, start


def test_a_window_on_a_task_follows_it() -> None:
    plan = begin(chain("a", "b", retries=1))
    view = plan["a"]
    assert (view.id, view.task, view.status) == ("a", Task("a", retries=1), PENDING)
    start(plan, "a", now=1.0)
    assert (view.status, view.device, view.attempts, view.started_at, view.ended_at) == (
        RUNNING,
        "laptop",
        1,
        1.0,
        None,
    )
    end(plan, "a", value=7, now=2.0)
    assert (view.status, view.value, view.ended_at, view.error) == (COMPLETED, 7, 2.0, None)
    assert not view.provisional


def test_a_window_shows_the_neighbours() -> None:
    plan = chain("a", "b", "c")
    assert plan["b"].dependencies == (Dependency("a", "b"),)
    assert plan["b"].dependents == ("c",)


def test_waiting_is_what_a_pending_task_with_open_dependencies_is_called() -> None:
    plan = begin(chain("a", "b"))
    assert plan["b"].waiting
    assert repr(plan["b"]) == "<task 'b' waiting>"
    assert repr(plan["a"]) == "<task 'a' pending>"
    end(plan, "a")
    assert not plan["b"].waiting
    assert not plan["a"].waiting
    assert repr(plan["a"]) == "<task 'a' completed>"


def test_an_error_is_shown_when_the_task_has_failed() -> None:
    plan = begin(chain("a"))
    fail(plan, "a", "out of paper")
    assert str(plan["a"].error) == "out of paper"


def test_a_reason_says_in_words_why_a_task_failed_or_was_cancelled() -> None:
    plan = begin(chain("a", "b"))
    plan.add(Task("c"))
    assert plan["a"].reason == ""
    fail(plan, "a", "out of paper")
    assert plan["a"].reason == "RuntimeError: out of paper"
    plan.cancel(plan.node("c"), 3.0, "not today")
    assert plan["c"].reason == "not today"
    plan.close(4.0)
    assert plan["b"].reason == "unreachable: it needs 'a' to succeed, but 'a' failed"


def test_a_provisional_result_is_not_shown() -> None:
    plan = begin(chain("a", "b", revocable=True), speculative=True)
    end(plan, "a", review=True)
    fail(plan, "b")
    assert plan["b"].provisional
    assert (plan["b"].value, plan["b"].error) == (None, None)


def test_a_window_cannot_be_written_to() -> None:
    view = chain("a")["a"]
    with pytest.raises(AttributeError):
        view.status = COMPLETED  # type: ignore[misc]


def test_what_a_predicate_sees_is_the_end_that_is_about_to_be_recorded() -> None:
    plan = begin(chain("a"))
    start(plan, "a")
    error = ValueError("no")
    view = EndView(plan.node("a"), FAILED, 7, error)
    assert (view.id, view.status, view.value, view.error) == ("a", FAILED, 7, error)
    assert plan["a"].status is RUNNING


def test_upstream_results_are_read_when_they_are_asked_for() -> None:
    plan = chain("a")
    plan.add(Task("b"))
    plan.add(Task("c"), after=["a", "b"])
    begin(plan)
    upstream = Upstream(plan.nodes, plan.node("c").parents)
    assert (len(upstream), list(upstream)) == (2, ["a", "b"])
    end(plan, "a", value=7)
    fail(plan, "b")
    assert dict(upstream) == {"a": 7, "b": None}
    assert repr(upstream) == "Upstream({'a': 7, 'b': None})"


def test_upstream_shows_nothing_but_what_a_task_depends_on() -> None:
    plan = begin(chain("a", "b", "c"))
    end(plan, "a", value=7)
    upstream = Upstream(plan.nodes, plan.node("c").parents)
    assert "a" not in upstream
    with pytest.raises(KeyError):
        upstream["a"]


def test_a_window_on_a_plan_shows_it_as_it_is_and_remembers_the_version_it_was_opened_at() -> None:
    plan = begin(chain("a", "b"))
    view = ConstellationView(plan)
    plan.edit([UpdateTask("b", timeout=5)])
    start(plan, "a")
    assert (view.id, view.version, view.base_version) == ("tiny", 1, 0)
    assert [task.id for task in view] == ["a", "b"]
    assert (len(view), "a" in view, "ghost" in view) == (2, True, False)
    assert view["b"].task.timeout == 5
    assert list(view.dependencies) == [Dependency("a", "b")]
    assert view.modifiable() == ["b"]
    assert [entry.what for entry in view.story("b")] == ["edited"]
    assert [entry.what for entry in view.story()] == ["began", "edited", "edited", "started"]
    with pytest.raises(UnknownTask, match="ghost"):
        view["ghost"]


def test_a_frozen_copy_stands_still_and_may_be_changed() -> None:
    plan = begin(chain("a", "b"))
    frozen = ConstellationView(plan).frozen()
    end(plan, "a")
    frozen.add(Task("c"), after="b")
    assert frozen["a"].status is PENDING
    assert frozen.state is ConstellationState.CREATED
    assert "c" not in plan
