"""A whole constellation as JSON, in every stage of its life; and copies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from asterism.core.errors import CycleFound, EditRejected, NotJson, PlanError, RecordedError, UnknownTask
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddDependency, AddTask, CancelTask, EditBatch, RemoveTask, UpdateTask
from asterism.core.plan.journal import RecordedConstellation
from asterism.core.plan.plan_codec import clone
from asterism.core.plan.status import COMPLETED, FAILED, PENDING, RUNNING, ConstellationState
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, chain, end, fail, ready, review, start, structure, through_json
from tests.laboratory.plan_invariants import check_invariants

STAGES: dict[str, Callable[[], Constellation]] = {}


def stage(make: Callable[[], Constellation]) -> Callable[[], Constellation]:
    STAGES[make.__name__.replace("_", " ")] = make
    return make


@stage
def empty() -> Constellation:
    return Constellation("nothing")


@stage
def built() -> Constellation:
    plan = chain("a", "b", retries=2, needs="gpu", inputs={"n": [1, None]})
    plan.add(Task("c", call="package.module:function"), after={"a": {"on": "completion", "when": "result.ok"}})
    return plan


@stage
def begun() -> Constellation:
    return begin(chain("a", "b"))


@stage
def edited() -> Constellation:
    plan = begin(chain("a", "b"))
    plan.edit([AddTask(Task("c")), AddDependency("a", "c")], author="ada", reason="more")
    plan.edit([RemoveTask("c")])
    return plan


@stage
def running() -> Constellation:
    plan = begun()
    start(plan, "a")
    return plan


@stage
def between_two_attempts() -> Constellation:
    plan = running()
    plan.retry(plan.node("a"), 2.0, "bad luck")
    return plan


@stage
def half_done() -> Constellation:
    plan = chain("a", "b", "c")
    plan.add(Task("d"), after={"a": "failure"})
    begin(plan)
    end(plan, "a", value={"x": [1, 2.5, None, True, "é"]})
    fail(plan, "b")
    return plan


@stage
def under_review() -> Constellation:
    plan = begun()
    end(plan, "a", review=True)
    return plan


@stage
def conditions_decided() -> Constellation:
    plan = Constellation("conditions")
    plan.add(Task("a"))
    for target, condition in (("yes", "true"), ("no", "false"), ("bad", "error")):
        plan.add(Task(target), after={"a": {"when": condition}})
    plan.evaluate = lambda condition, status, result: {"true": True, "false": False}.get(condition, "it raised")
    begin(plan)
    end(plan, "a")
    return plan


@stage
def provisional() -> Constellation:
    plan = begin(chain("a", "b", "c", revocable=True), speculative=True)
    end(plan, "a", review=True)
    end(plan, "b", value=7, review=True)
    start(plan, "c")
    return plan


@stage
def cancelled_task() -> Constellation:
    plan = running()
    plan.edit([CancelTask("a", "enough")])
    return plan


@stage
def completed() -> Constellation:
    plan = begun()
    end(plan, "a")
    end(plan, "b")
    plan.close(5.0)
    return plan


@stage
def partially_failed() -> Constellation:
    plan = half_done()
    plan.close(5.0)
    return plan


@stage
def cancelled() -> Constellation:
    plan = begun()
    plan.close(5.0, cancelled=True)
    return plan


# -- there and back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", STAGES.values(), ids=STAGES.keys())
def test_a_plan_in_any_stage_comes_back_from_json_as_it_was(make: Callable[[], Constellation]) -> None:
    plan = make()
    clone = through_json(plan)
    assert structure(clone) == structure(plan)
    clone.speculative = plan.speculative
    for node in clone.nodes.values():  # the queue depends on the policy, which is the runtime's to say
        clone.requeue(node)
    check_invariants(clone)
    assert set(ready(clone)) == set(ready(plan))
    for node in plan.nodes.values():
        other = clone.nodes[node.id]
        assert (other.open, other.held, other.unsettled) == (node.open, node.held, node.unsettled)


def test_the_document_names_its_schema_and_only_what_differs_from_the_outset() -> None:
    data = chain("a", "b").to_json()
    assert data == {
        "schema": 1,
        "id": "tiny",
        "version": 0,
        "state": "created",
        "epochs": 0,
        "started_at": None,
        "ended_at": None,
        "tainted": [],
        "tasks": [{"task": {"id": "a"}}, {"task": {"id": "b"}}],
        "dependencies": [{"source": "a", "target": "b", "on": "success"}],
        "touched": [],
        "story": [],
    }


def test_an_error_comes_back_as_its_type_and_its_message() -> None:
    clone = through_json(half_done())
    error = clone["b"].error
    assert isinstance(error, RecordedError)
    assert (error.kind, error.message) == ("RuntimeError", "boom")


def test_a_plan_that_was_read_back_goes_on_where_it_was() -> None:
    clone = through_json(under_review())
    assert ready(clone) == []
    review(clone, "a")
    end(clone, "b")
    assert clone.close(9.0) is ConstellationState.COMPLETED


def test_what_a_condition_said_is_not_asked_again() -> None:
    clone = through_json(conditions_decided())
    assert ready(clone) == ["yes"]
    assert clone.node("bad").verdicts == {"a": "it raised"}


def test_a_batch_that_was_stale_before_is_stale_after_reading_back() -> None:
    plan = begin(chain("a"))
    plan.edit([UpdateTask("a", timeout=5)])
    with pytest.raises(EditRejected, match="stale"):
        through_json(plan).apply(EditBatch((UpdateTask("a", timeout=6),), base_version=0), 1.0)


def test_a_provisional_task_that_was_read_back_can_be_revoked() -> None:
    clone = through_json(provisional())
    clone.edit([UpdateTask("b", timeout=5)])
    assert [clone[task_id].status for task_id in "abc"] == [COMPLETED, PENDING, PENDING]
    assert clone.provisionals == 0


def test_epochs_go_on_from_the_greatest_that_was_read_back() -> None:
    clone = through_json(half_done())
    clone.edit([AddTask(Task("new"))])
    assert start(clone, "new") == 3


def test_an_epoch_is_never_given_twice_even_if_its_task_was_cancelled_before_the_plan_was_stored() -> None:
    plan = begin(chain("a"))
    epoch = start(plan, "a")
    plan.edit([CancelTask("a"), AddTask(Task("b"))])
    assert start(through_json(plan), "b") > epoch


# -- what has no JSON form ---------------------------------------------------------------------------------------------


def test_a_task_with_a_lambda_is_refused_by_name() -> None:
    plan = Constellation()
    plan.add(Task("build", call=lambda: None))
    with pytest.raises(NotJson, match=r"task 'build': .*lambda.* has no import path"):
        plan.to_json()


def test_a_task_with_a_function_of_the_script_that_runs_is_refused() -> None:
    def function() -> None: ...

    function.__module__, function.__qualname__ = "__main__", "function"
    plan = Constellation()
    plan.add(Task("build", call=function))
    with pytest.raises(NotJson, match="define it at the top level of an importable module"):
        plan.to_json()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({1, 2}, "value is a set, which is not JSON"),
        ({"rows": [1, object()]}, r"value.rows\[1\] is a object, which is not JSON"),
        (float("nan"), "value is nan, which JSON cannot hold"),
        ({1: "x"}, "value has the key 1, and JSON keys are strings"),
    ],
    ids=["set", "object", "nan", "key"],
)
def test_a_result_that_is_not_json_is_refused_with_its_task_and_its_place(value: Any, words: str) -> None:
    plan = begin(chain("a"))
    end(plan, "a", value=value)
    with pytest.raises(NotJson, match=f"the result of task 'a' cannot be stored or sent: {words}"):
        plan.to_json()


def test_an_input_that_is_not_json_is_refused_with_its_task_and_its_place() -> None:
    plan = Constellation()
    plan.add(Task("a", inputs={"when": [{1}]}))
    with pytest.raises(NotJson, match=r"task 'a'.inputs.when\[0\] is a set, which is not JSON"):
        plan.to_json()


# -- what is no constellation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "says"),
    [({}, None), ({"schema": 2}, 2), ({"schema": "1"}, "'1'"), (None, None), ([], None), ("plan", None)],
)
def test_another_schema_is_refused(data: Any, says: Any) -> None:
    with pytest.raises(PlanError) as caught:
        Constellation.from_json(data)
    assert str(caught.value) == f"this is not a plan of schema 1 (its schema is {says})"


def test_a_document_with_a_cycle_is_refused_with_the_path() -> None:
    data = chain("a", "b").to_json()
    data["dependencies"].append({"source": "b", "target": "a", "on": "success"})
    with pytest.raises(CycleFound, match="b -> a -> b"):
        Constellation.from_json(data)


def test_a_document_with_a_dependency_on_nothing_is_refused() -> None:
    data = chain("a").to_json()
    data["dependencies"].append({"source": "ghost", "target": "a", "on": "success"})
    with pytest.raises(UnknownTask, match="ghost"):
        Constellation.from_json(data)


@pytest.mark.parametrize("part", ["tasks", "dependencies"])
def test_a_document_that_names_something_twice_is_refused(part: str) -> None:
    data = chain("a", "b").to_json()
    data[part].append(data[part][0])
    with pytest.raises(PlanError):
        Constellation.from_json(data)


@pytest.mark.parametrize("part", ["id", "version", "state", "tasks", "dependencies", "story"])
def test_a_document_that_lacks_a_part_is_refused_with_its_name(part: str) -> None:
    data = chain("a").to_json()
    del data[part]
    with pytest.raises(PlanError, match=part):
        Constellation.from_json(data)


@pytest.mark.parametrize(
    ("part", "value"), [("state", "asleep"), ("tasks", [{"task": {"id": "a"}, "status": "asleep"}])]
)
def test_a_document_with_an_unknown_state_is_refused(part: str, value: Any) -> None:
    with pytest.raises(PlanError, match="asleep"):
        Constellation.from_json({**chain("a").to_json(), part: value})


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", STAGES.values(), ids=STAGES.keys())
def test_a_copy_has_the_same_tasks_dependencies_and_version_and_holds_together(
    make: Callable[[], Constellation],
) -> None:
    plan = make()
    before = json.dumps(plan.to_json())
    copy = plan.copy()
    assert structure(copy) == structure(plan)
    assert copy.version == plan.version
    check_invariants(copy)
    copy.add(Task("only in the copy"))
    assert json.dumps(plan.to_json()) == before


def test_a_copy_keeps_progress_and_knows_where_it_came_from() -> None:
    plan = half_done()
    copy = plan.copy()
    assert (copy["a"].status, copy["b"].status) == (COMPLETED, FAILED)
    assert copy["a"].value == plan["a"].value
    assert copy.origin is not None
    assert copy.origin.version == plan.version
    assert plan.origin is None


def test_a_copy_belongs_to_nobody_and_may_be_built_upon() -> None:
    copy = running().copy()
    assert (copy.state, copy.owner, copy["a"].status) == (ConstellationState.CREATED, None, RUNNING)


def test_what_was_only_provisional_is_pending_in_a_copy() -> None:
    plan = conditions_decided()
    copy = provisional().copy()
    assert [copy[task_id].status for task_id in "abc"] == [COMPLETED, PENDING, PENDING]
    assert copy.node("b").value is None
    assert plan.copy().node("yes").verdicts == {"a": True}


def test_what_a_condition_said_about_a_provisional_end_is_not_copied() -> None:
    plan = chain("a", "b", revocable=True)
    plan.add(Task("c"), after={"b": {"when": "ok"}})
    plan.evaluate = lambda condition, status, result: True
    begin(plan, speculative=True)
    end(plan, "a", review=True)
    end(plan, "b")
    copy = plan.copy()
    assert copy.node("c").verdicts is None
    check_invariants(copy)


def test_a_twin_shares_tasks_that_are_data_and_has_others_as_data() -> None:
    plan = Constellation("plan")
    plan.add(Task("shared", call="package.module:function", inputs={"a": 1}))
    files = ["a.mp4"]
    plan.add(Task("list", argv=("true",), inputs={"files": files}))
    plan.add(Task("tuple", argv=("true",), inputs={"a": (1, 2)}))
    plan.add(Task("function", call=json.dumps))
    own = clone(plan, Constellation)
    assert own.node("shared").task is plan.node("shared").task
    files.append("b.mp4")
    assert own.node("list").task.inputs["files"] == ["a.mp4"]
    assert own.node("tuple").task.inputs["a"] == [1, 2]
    assert own.node("function").task.call == "json:dumps"
    own.edit([UpdateTask("shared", retries=3)])
    assert plan.node("shared").task.retries == 0


class Kind(Task):
    """A class of the user."""


def test_a_recorded_plan_is_a_twin_of_another() -> None:
    plan = chain("a", "b")
    recorded = RecordedConstellation.of(plan)
    assert recorded.to_json() == plan.to_json()
    assert type(recorded) is RecordedConstellation


def test_the_twin_of_a_task_of_another_kind_is_a_task() -> None:
    plan = Constellation("plan")
    plan.add(Kind("own", argv=("true",)))
    assert clone(plan, Constellation).node("own").task == Task("own", argv=("true",))


def test_a_plan_with_something_that_is_not_data_has_no_twin() -> None:
    plan = Constellation("plan")
    plan.add(Task("odd", argv=("true",), data={"a": {1, 2}}))
    with pytest.raises(NotJson, match=r"task 'odd'\.data\.a is a set"):
        clone(plan, Constellation)
