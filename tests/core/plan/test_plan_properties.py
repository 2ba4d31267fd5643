"""Laws that hold for any two plans, and for any order of insertion."""

from __future__ import annotations

import contextlib
import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.core.errors import CycleFound, PlanError
from asterism.core.plan import edits
from asterism.core.plan.apply import Applied
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.diff import Outline, diff, merge
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.plan_codec import clone
from asterism.core.plan.status import COMPLETED, FAILED, TERMINAL
from asterism.core.plan.task import OUTCOMES, Priority, Task
from tests.laboratory.plan_invariants import check_invariants

NAMES = [f"t{number}" for number in range(9)]

tasks = st.builds(
    Task,
    st.sampled_from(NAMES),
    argv=st.none() | st.lists(st.text("ab", min_size=1), min_size=1, max_size=2),
    priority=st.sampled_from(Priority),
    retries=st.integers(0, 2),
    timeout=st.none() | st.integers(1, 9),
    needs=st.sets(st.sampled_from(["gpu", "linux"])),
    join=st.sampled_from(["all", "any"]),
    data=st.dictionaries(st.sampled_from("xy"), st.integers(), max_size=2),
)


@st.composite
def plans(draw: st.DrawFn) -> Constellation:
    """Any plan over a few names; its edges follow a random order, so one of two plans may turn an edge round."""
    plan = Constellation("any")
    for task in draw(st.lists(tasks, unique_by=lambda task: task.id, max_size=8)):
        plan.add(task)
    order = draw(st.permutations([task.id for task in plan]))
    for index, target in enumerate(order):
        for source in draw(st.sets(st.sampled_from(order[:index]), max_size=3)) if index else ():
            on, when = draw(st.sampled_from(OUTCOMES)), draw(st.none() | st.just("result > 1"))
            with contextlib.suppress(PlanError):  # not every task can be a set-up or a teardown
                plan.connect(source, target, on, when)
    return plan


def structure(plan: Constellation) -> tuple[Any, Any]:
    outline = Outline.of(plan)
    return outline.tasks, outline.dependencies


@given(plans(), plans())
@settings(max_examples=120, deadline=None)
def test_the_difference_applied_to_the_first_gives_the_second(a: Constellation, b: Constellation) -> None:
    before = structure(a)
    applied = a.apply(diff(a, b), 0.0)
    check_invariants(a)
    assert structure(a) == structure(b)
    assert applied.inverse is not None
    a.apply(applied.inverse, 0.0)
    check_invariants(a)
    assert structure(a) == before


@given(plans(), plans())
@settings(max_examples=60, deadline=None)
def test_a_batch_survives_json(a: Constellation, b: Constellation) -> None:
    batch = diff(a, b, author="x", reason="y")
    again = EditBatch.from_json(json.loads(json.dumps(batch.to_json())))
    assert again.to_json() == batch.to_json()
    a.apply(again, 0.0)
    assert structure(a) == structure(b)


@given(plans(), st.data())
@settings(max_examples=80, deadline=None)
def test_a_merge_never_touches_what_has_progressed(plan: Constellation, data: st.DataObject) -> None:
    copy = plan.copy()
    live_changes(plan, data)
    progressed = {task.id: (task.task, task.dependencies, task.status) for task in plan if task.status != "pending"}
    change(copy, data)
    batch, dropped = merge(plan, copy.origin or plan, copy)
    applied: Applied = plan.apply(batch, 9.0)
    check_invariants(plan)
    assert applied.batch is batch
    for task_id, facts in progressed.items():
        assert (plan[task_id].task, plan[task_id].dependencies, plan[task_id].status) == facts
    for edit in dropped:
        assert any(isinstance(name, str) and name in progressed for name in edit.names())


def live_changes(plan: Constellation, data: st.DataObject) -> None:
    """Let some tasks of a plan start and end."""
    plan.evaluate = lambda condition, status, result: True
    plan.begin(0.0)
    for _ in range(data.draw(st.integers(0, 6))):
        if not plan.queue.has_ready():
            break
        node = plan.queue.pop(next(iter(plan.queue.lanes)))
        plan.start(node, "device", 1.0)
        if data.draw(st.booleans()):
            plan.finish(node, data.draw(st.sampled_from([COMPLETED, FAILED])), 2.0, 5)


def change(copy: Constellation, data: st.DataObject) -> None:
    """What an agent does to its own copy."""
    for task_id in data.draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)):
        if task_id in copy:
            remove = data.draw(st.booleans())
            copy.edit([edits.RemoveTask(task_id, "bridge") if remove else edits.UpdateTask(task_id, retries=7)])
    copy.add(Task("fresh"), after=[task.id for task in copy][:1])


@given(plans(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_plan_survives_json_at_any_stage(plan: Constellation, data: st.DataObject) -> None:
    live_changes(plan, data)
    text = json.dumps(plan.to_json())
    again = Constellation.from_json(json.loads(text))
    again.evaluate = plan.evaluate
    check_invariants(again)
    assert json.dumps(again.to_json()) == text
    assert len(again.queue) == len(plan.queue)
    assert {t.id for t in again if t.status in TERMINAL} == {t.id for t in plan if t.status in TERMINAL}


@given(plans(), st.data())
@settings(max_examples=60, deadline=None)
def test_the_twin_of_a_plan_is_what_another_process_would_read_of_it(plan: Constellation, data: st.DataObject) -> None:
    live_changes(plan, data)
    read = Constellation.from_json(json.loads(json.dumps(plan.to_json())))
    own = clone(plan, Constellation)
    for twin in (read, own):
        twin.evaluate = plan.evaluate
    check_invariants(own)
    assert json.dumps(own.to_json()) == json.dumps(read.to_json())
    assert [node.task for node in own.nodes.values()] == [node.task for node in read.nodes.values()]
    assert list(own.story()) == list(read.story())


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=60))
@settings(max_examples=120, deadline=None)
def test_the_order_agrees_with_every_edge_and_refuses_exactly_the_cycles(pairs: list[tuple[int, int]]) -> None:
    plan = Constellation("order")
    for number in range(12):
        plan.add(Task(str(number)))
    above: dict[int, set[int]] = {number: {number} for number in range(12)}  # who can reach it, by brute force
    for source, target in pairs:
        if source == target or str(source) in plan.nodes[str(target)].parents:
            continue
        closes = target in above[source]
        try:
            plan.connect(str(source), str(target))
            assert not closes, "a cycle was let in"
        except CycleFound as error:
            assert closes, "a harmless edge was refused"
            check_path(plan, error.path, str(source), str(target))
            continue
        for reached in [number for number in above if target in above[number]]:
            above[reached] |= above[source]
        check_invariants(plan)


def check_path(plan: Constellation, path: tuple[str, ...], source: str, target: str) -> None:
    """The printed circle is a real one: the new edge and then edges that exist, back to where it began."""
    assert path[0] == path[-1] == source
    assert path[1] == target
    for upper, lower in pairwise(path[1:]):
        assert upper in plan.nodes[lower].parents
