"""Copies that share nodes with their plan: the same as full copies, and paid for only by who reads or changes them."""

from __future__ import annotations

import copy as copies
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.core.errors import AsterismError, EditRejected
from asterism.core.plan import edits, plan_codec
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.diff import Outline, diff, merge
from asterism.core.plan.edits import AddDependency, AddTask, UpdateTask
from asterism.core.plan.journal import RecordedConstellation
from asterism.core.plan.node import AttemptTimes, Node
from asterism.core.plan.node_records import NodeRecords, SharedNodes, is_immutable, own_copy, own_task
from asterism.core.plan.status import COMPLETED, FAILED, PENDING, RUNNING, TERMINAL, TaskStatus
from asterism.core.plan.task import Task
from tests.laboratory.plan_invariants import check_invariants

IDS = [f"t{number}" for number in range(8)]
ids = st.sampled_from(IDS)
outcomes = st.sampled_from(["success", "failure", "completion", "always"])
conditions = st.sampled_from([None, None, "even"])
tasks = st.builds(
    lambda task_id, kind, **fields: Task(task_id, **fields, **({kind: True} if kind else {})),
    ids,
    st.sampled_from(["", "revocable", "untrusted"]),
    priority=st.sampled_from(["low", "normal", "high"]),
)
one_edit = st.one_of(
    st.builds(AddTask, tasks),
    st.builds(edits.RemoveTask, ids, st.sampled_from([None, "remove", "bridge"])),
    st.builds(lambda task_id, timeout: UpdateTask(task_id, timeout=timeout), ids, st.integers(1, 3)),
    st.builds(lambda task_id, priority: UpdateTask(task_id, priority=priority), ids, st.sampled_from(["low", "high"])),
    st.builds(lambda task_id: UpdateTask(task_id, join="any"), ids),
    st.builds(AddDependency, ids, ids, outcomes, conditions),
    st.builds(edits.UpdateDependency, ids, ids, outcomes, conditions),
    st.builds(edits.RemoveDependency, ids, ids),
    st.builds(edits.CancelTask, ids),
)
batches = st.lists(one_edit, min_size=1, max_size=3)


def evaluate(condition: str, status: TaskStatus, result: Any) -> bool | str:
    return result is None or result % 2 == 0


def full_copy(plan: Constellation) -> Constellation:
    """A copy that shares no node, as of a plan with joins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_codec, "_share_nodes", plan_codec._copy_nodes)
        return plan.copy()


def picture(plan: Constellation) -> Any:
    """All that a copy may contain of a plan, in its order."""
    nodes = plan.nodes.values()
    return dict(plan.counts), plan.provisionals, plan.tainted, [_picture(node) for node in nodes]


def _picture(node: Node) -> Any:
    facts = [(name, getattr(node, name)) for name in plan_codec.PROGRESS]
    counters = [node.open, node.held, node.value, node.error, dict(node.verdicts or {})]
    urgency = None if node.status in TERMINAL else node.urgency  # nobody reads it then
    return node.task, facts, counters, list(node.parents.items()), sorted(node.children), urgency


@st.composite
def plans_in_progress(draw: st.DrawFn) -> Constellation:
    plan = Constellation("any")
    plan.evaluate, plan.speculative = evaluate, draw(st.booleans())
    for task in draw(st.lists(tasks, unique_by=lambda task: task.id, min_size=1, max_size=6)):
        before = list(plan.nodes)
        sources = draw(st.lists(st.sampled_from(before), unique=True, max_size=2)) if before else []
        plan.add(task, {source: {"on": draw(outcomes), "when": draw(conditions)} for source in sources})
    if draw(st.booleans()):
        plan.begin(0.0)
        live_steps(plan, draw(st.lists(steps, max_size=8)))
    return plan


steps = st.one_of(
    st.tuples(st.just("start"), ids),
    st.tuples(st.just("end"), st.tuples(ids, st.sampled_from([COMPLETED, FAILED]), st.integers(0, 3), st.booleans())),
    st.tuples(st.sampled_from(["retry", "release", "settle", "lose"]), ids),
    st.tuples(st.just("edit"), batches),
    st.tuples(st.sampled_from(["copy", "close"]), st.none()),
)


def _between_attempts(node: Node) -> bool:
    return node.status is RUNNING and node.device is None


def live_steps(plan: Constellation, chosen: list[Any]) -> None:
    """Carry out those steps that are possible."""
    for what, about in chosen:
        node = plan.nodes.get(about[0] if what == "end" else about) if what not in ("edit", "copy", "close") else None
        try:
            if what == "edit":
                plan.edit(about)
            elif what == "copy":
                plan.copy()
            elif what == "close" and plan.state == "executing" and not plan.counts[RUNNING]:
                plan.close(9.0)
            elif node is not None and what == "start" and (node.entry is not None or _between_attempts(node)):
                plan.start(node, "device", 1.0)
            elif node is not None and what == "end" and node.device is not None and node.tentative is None:
                plan.finish(node, about[1], 2.0, about[2], review=about[3])
            elif node is not None and what == "settle":
                plan.settle([(node.id, node.epoch)], 3.0)
            elif node is not None and what == "lose" and node.status is RUNNING:
                plan.count_loss(node)
            elif node is not None and what in ("retry", "release"):
                getattr(plan, what)(node, 3.0, "why")
        except AsterismError:
            continue


def change(plan: Constellation, what: str, about: Any) -> Any:
    """Read or change a copy. Returns what a caller notices."""
    if what == "read":
        return _picture(plan.nodes[about]) if about in plan.nodes else None
    if what == "edit":
        try:
            return [type(edit) for edit in plan.edit(about).reverse]
        except EditRejected as rejected:
            return [(violation.edit, violation.rule) for violation in rejected.violations]
    node = plan.nodes.get(about)
    if what == "run" and node is not None and node.status is PENDING and not node.open:
        plan.start(node, "by hand", 5.0)
        plan.finish(node, COMPLETED, 6.0, 2)
    return None


changes = st.one_of(
    st.tuples(st.sampled_from(["read", "run"]), ids),
    st.tuples(st.just("edit"), batches),
)
sides = st.lists(st.one_of(st.tuples(st.just("plan"), steps), st.tuples(st.just("copy"), changes)), max_size=10)


def compare(plan: Constellation, chosen: list[Any]) -> None:
    """Change a plan and its copy in turns; a full copy is changed in the same way as the copy."""
    copy, full = plan.copy(), full_copy(plan)
    copy.evaluate = full.evaluate = evaluate
    for side, step in chosen:
        if side == "plan":
            live_steps(plan, [step])
        else:
            before = picture(plan)
            assert change(copy, *step) == change(full, *step)
            assert picture(plan) == before, "the plan has seen a change of its copy"
    again = copy.copy()
    assert picture(copy) == picture(full)
    assert picture(again) == picture(full_copy(full)), "a copy of the copy differs"
    for checked in (plan, copy, again):
        check_invariants(checked)
    assert copy.origin is not None
    assert diff(copy.origin, copy).edits == diff(full.origin or plan, full).edits


@given(plans_in_progress(), sides)
@settings(max_examples=300, deadline=None)
def test_a_copy_that_shares_nodes_is_a_full_copy(plan: Constellation, chosen: list[Any]) -> None:
    """Whatever is read or changed on either side, neither sees a change of the other."""
    compare(plan, chosen)


def _fail(plan: Constellation) -> None:
    plan.start(plan.node("a"), "device", 1.0)
    plan.finish(plan.node("a"), FAILED, 2.0)


def _run_again(plan: Constellation) -> None:
    plan.run_again(3.0)


STEPS: dict[str, Callable[[Constellation], Any]] = {
    "mark": _fail,
    "add": lambda plan: plan.edit([AddTask(Task("c"))]),
    "remove": lambda plan: plan.edit([edits.RemoveTask("b")]),
    "reset": _run_again,
}


@pytest.mark.parametrize("part", STEPS)
@pytest.mark.parametrize("ablated", [False, True])
def test_without_a_part_of_the_marks_a_copy_is_wrong(part: str, ablated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Constellation("any")
    plan.add(Task("a"))
    plan.add(Task("b"), "a")
    plan.begin(0.0)
    if part == "reset":
        _fail(plan)
        plan.close(2.0)
    plan.copy()
    if ablated:
        monkeypatch.setattr(NodeRecords, part, lambda *arguments: None)
    STEPS[part](plan)
    assert (picture(plan.copy()) == picture(full_copy(plan))) is not ablated


def test_a_copy_sees_what_a_fleet_says_of_a_task() -> None:
    plan = RecordedConstellation("any")
    plan.add(Task("a"))
    plan.begin(0.0)
    epoch = plan.start(plan.node("a"), "fleet", 1.0)
    said: list[Callable[[], None]] = [
        lambda: plan.set_device(plan.node("a"), "lab"),
        lambda: plan.set_attempts(plan.node("a"), 3, 2),
        lambda: plan.record_run("a", epoch, 3.0, AttemptTimes(1.0, 1.5, 2.0, 3.0), ""),
    ]
    for say in said:
        before = picture(plan.copy())
        say()
        assert picture(plan.copy()) == picture(full_copy(plan)) != before


def wide(count: int) -> Constellation:
    """``count`` tasks after one, and one after all of them."""
    plan = Constellation("wide")
    plan.add(Task("first"))
    for number in range(count):
        plan.add(Task(f"t{number}"), "first")
    plan.add(Task("last"), [f"t{number}" for number in range(count)])
    return plan


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes and records that are made, one word each."""
    made: list[str] = []
    thaw, record = SharedNodes._thaw, plan_codec.state_of
    monkeypatch.setattr(SharedNodes, "_thaw", lambda nodes, task_id: made.append("node") or thaw(nodes, task_id))
    monkeypatch.setattr("asterism.core.plan.node_records.state_of", lambda node: made.append("record") or record(node))
    return made


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_a_copy_costs_what_it_changes(made: list[str], count: int) -> None:
    """The same nodes and records are made for a plan of any size."""
    plan = wide(count)
    plan.begin(0.0)
    plan.copy()  # this one makes the records
    made.clear()
    plan.start(plan.node("first"), "device", 1.0)
    plan.finish(plan.node("first"), COMPLETED, 2.0)
    copy = plan.copy()
    assert made == ["record"]
    copy.edit([UpdateTask("t3", timeout=5.0), AddTask(Task("new")), AddDependency("t4", "new")])
    batch, dropped = merge(plan, copy.origin or plan, copy)
    assert (len(batch.edits), dropped) == (3, [])
    assert (made.count("node"), made.count("record")) == (2, 1 + 3)
    plan.apply(batch, 3.0)
    assert len(plan.copy()) == count + 3
    assert (made.count("node"), made.count("record")) == (2, 1 + 3 + 3)


def test_the_ablation_a_full_copy_makes_every_node() -> None:
    plan = wide(100)
    assert type(full_copy(plan).nodes) is dict
    assert type(plan.copy().nodes) is SharedNodes


def test_a_plan_with_a_join_is_copied_as_a_whole() -> None:
    """Its counters follow from nodes far away. A copy that gets a join makes all its nodes then."""
    plan = wide(3)
    copy = plan.copy()
    copy.edit([UpdateTask("last", join="any")])
    check_invariants(copy)
    assert type(copy.copy().nodes) is dict
    check_invariants(copy.copy())


def test_an_outline_stays_as_it_was() -> None:
    """Also if tasks are removed or changed after it was taken."""
    plan = wide(3)
    plan.begin(0.0)
    before = Outline.of(plan)
    tasks = before.tasks
    plan.edit([edits.RemoveTask("t0", "bridge"), UpdateTask("t1", timeout=5.0), AddTask(Task("new"))])
    assert before.tasks == tasks
    assert list(Outline.of(plan).without(before).tasks) == ["first", "t1", "last", "new"]
    assert list(before.without(Outline.of(plan)).tasks) == ["first", "t0", "t1", "last"]


# -- mutable values ----------------------------------------------------------------------------------------------------

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3))
nested = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.tuples(inner, inner),
        st.sets(st.integers(0, 5), max_size=3),
    ),
    max_leaves=8,
)


def containers_in(value: Any) -> list[Any]:
    """All mutable containers in a value, itself included."""
    if isinstance(value, dict):
        return [value, *(inner for item in value.values() for inner in containers_in(item))]
    if isinstance(value, list | tuple):
        inner = [inner for item in value for inner in containers_in(item)]
        return [value, *inner] if isinstance(value, list) else inner
    return [value] if isinstance(value, set) else []


def mutate(values: Any, choice: int) -> None:
    """Change one of the containers in some values in place, if there is any."""
    containers = containers_in(values)
    if containers:
        container = containers[choice % len(containers)]
        if isinstance(container, dict):
            container["changed"] = choice
        elif isinstance(container, list):
            container.append(choice)
        else:
            container.add(choice)


def shown(plan: Constellation) -> Any:
    """What somebody can read of results and tasks, as values of its own."""
    return copies.deepcopy({view.id: (view.value, dict(view.task.inputs), dict(view.task.data)) for view in plan})


def with_values(results: list[Any], inputs: list[Any], join: str) -> Constellation:
    plan = Constellation("values")
    for number, value in enumerate(inputs):
        plan.add(Task(f"t{number}", inputs={"x": value}, data={"y": [value]}))
    plan.add(Task("last", join=join), [f"t{number}" for number in range(len(results))])
    plan.begin(0.0)
    for number, value in enumerate(results):
        plan.start(plan.node(f"t{number}"), "device", 1.0)
        plan.finish(plan.node(f"t{number}"), COMPLETED, 2.0, value)
    return plan


mutations = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["result", "inputs", "data", "edit"]), st.integers(0, 2), st.integers(0)
    ),
    max_size=8,
)


@given(st.lists(st.tuples(nested, nested), min_size=1, max_size=3), st.sampled_from(["all", "any"]), mutations)
@settings(max_examples=200, deadline=None)
@pytest.mark.long
def test_a_value_that_is_changed_in_place_changes_in_one_plan(
    values: list[tuple[Any, Any]], join: str, chosen: list[Any]
) -> None:
    """The live plan, two copies of it and a copy of a copy: a change on one side is seen on no other."""
    plan = with_values([result for result, _ in values], [inputs for _, inputs in values], join)
    first, second = plan.copy(), plan.copy()
    sides = [plan, first, second, first.copy()]
    for number, (side, what, task, choice) in enumerate(chosen):
        changed, task_id = sides[side], f"t{task % len(values)}"
        before = [shown(other) for other in sides if other is not changed]
        if what == "edit":
            changed.edit([AddTask(Task(f"new{number}")), AddDependency(task_id, f"new{number}")])
        else:
            view = changed[task_id]
            mutate(view.value if what == "result" else dict(getattr(view.task, what)), choice)
        assert [shown(other) for other in sides if other is not changed] == before
        assert {view.id: view.value for view in changed.copy()} == {view.id: view.value for view in changed}


def test_without_copies_of_mutable_values_a_copy_changes_with_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation."""
    monkeypatch.setattr("asterism.core.plan.node_records.own_copy", lambda value: value)
    plan = with_values([{"a": 1}], [0], "all")
    copy = plan.copy()
    copy["t0"].value["a"] = 2
    assert plan["t0"].value == {"a": 2}


@pytest.mark.parametrize("join", ["all", "any"])
def test_a_copy_shows_what_was_changed_in_place_before_it_was_made(join: str) -> None:
    """Also by who has read the result before the last copy."""
    plan = with_values([{"a": 1}], [0], join)
    value = plan["t0"].value
    value["a"] = 2
    before = plan.copy()
    value["a"] = 3
    assert (before["t0"].value, plan.copy()["t0"].value, plan["t0"].value) == ({"a": 2}, {"a": 3}, {"a": 3})
    plan.edit([AddTask(Task("t9")), edits.RemoveTask("t9")])
    check_invariants(plan)


def test_what_cannot_be_copied_stays_shared() -> None:
    lock, cycle, deep = threading.Lock(), list[Any](), list[Any]()
    cycle.append({"lock": lock, "cycle": cycle})
    for _ in range(100_000):
        deep = [deep]
    values = {"lock": lock, "list": [1], "proxy": MappingProxyType({"x": [1]})}
    plan = with_values([values, cycle, deep], [0, 0, 0], "all")
    copy = plan.copy()
    assert copy["t0"].value["lock"] is lock
    copy["t0"].value["list"].append(2)
    copy["t0"].value["proxy"]["x"].append(2)
    assert (values["list"], values["proxy"]) == ([1], {"x": [1]})
    assert copy["t1"].value is copy["t1"].value[0]["cycle"] is not cycle
    assert copy["t2"].value is deep
    while deep:  # the interpreter frees a deep list recursively
        deep = deep.pop()


def test_a_copy_keeps_the_types_of_values_and_shares_immutable_ones() -> None:
    value = (1, "a", None, frozenset({b"x"}))
    assert own_copy(value) is value
    assert own_copy([defaultdict(list), OrderedDict(a=threading.Lock())])[0].default_factory is list
    partly = own_copy({"ordered": OrderedDict(a=[1], lock=threading.Lock()), "set": {1}, "tuple": ([1], 2)})
    assert type(partly["ordered"]) is OrderedDict
    assert (partly["set"], partly["tuple"]) == ({1}, ([1], 2))


def test_a_task_whose_values_are_not_comparable_is_no_difference() -> None:
    """Objects in the mappings of a task stay the same, so that a copy of the task is equal to it."""
    thing = object()
    plan = Constellation("any")
    plan.add(Task("a", data={"things": [thing, [1]]}))
    copy = plan.copy()
    copy.edit([AddTask(Task("b")), AddDependency("a", "b")])
    batch = diff(copy.origin or plan, copy)
    assert [type(edit) for edit in batch.edits] == [AddTask, AddDependency]
    copy["a"].task.data["things"][1].append(2)
    assert plan["a"].task.data["things"] == [thing, [1]]


def test_a_merged_task_shares_nothing_with_the_copy_it_comes_from() -> None:
    plan = Constellation("any")
    plan.add(Task("a"))
    plan.begin(0.0)
    copy = plan.copy()
    copy.edit([AddTask(Task("b", inputs={"x": [1]})), UpdateTask("a", inputs={"x": [1]})])
    batch, _ = merge(plan, copy.origin or plan, copy)
    plan.apply(batch, 1.0)
    for task_id in ("a", "b"):
        plan[task_id].task.inputs["x"].append(2)
        assert (copy[task_id].task.inputs, copy.copy()[task_id].task.inputs) == ({"x": [1]}, {"x": [1]})


def test_a_task_with_very_deep_data_stays_as_it_is() -> None:
    deep = list[Any]()
    for _ in range(100_000):
        deep = [deep]
    task = Task("a", data={"deep": deep})
    assert own_task(task) is task
    while deep:
        deep = deep.pop()


def test_a_very_deep_result_stays_as_it_is() -> None:
    deep: tuple[Any, ...] = ()
    for _ in range(100_000):
        deep = (deep,)
    assert own_copy(deep) is deep
    assert not is_immutable(deep)
    while deep:
        (deep,) = deep
