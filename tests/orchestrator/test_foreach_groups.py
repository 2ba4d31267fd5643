"""Groups of a running plan: expanded when their list is known, gathered when their tasks have ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism import Constellation, LocalDevice, Orchestrator, Result, Task
from asterism.core.plan.edits import AddDependency, AddTask
from asterism.core.plan.journal import RecordedConstellation, RecordedLock, replay
from asterism.execution import placeholders
from asterism.execution.foreach_expansion import deferred_group
from asterism.orchestrator import devices
from asterism.testing.virtual_time import run
from tests.orchestrator.orchestrator_scenes import after

MODULE = "tests.orchestrator.test_foreach_groups"


async def double(number: Any) -> Any:
    """Later elements end first."""
    if number == "broken":
        raise ValueError("it broke")
    await asyncio.sleep(0 if isinstance(number, str) else max(0, 10 - number))
    return number * 2


def grouped(items: Any, *, most: int = 5, **options: Any) -> Constellation:
    """``list`` returns the items, ``it`` doubles each of them, ``last`` gets the results."""
    plan = Constellation("plan")
    plan.add(Task("list", call=after(1, items)))
    template = Task("it", call=f"{MODULE}:double", inputs={"number": "{item}"}, **options)
    plan.add(deferred_group(template, {"from": "list", "max": most, "at": "plan.yaml:7"}, {}), "list")
    plan.add(Task("last", call=echo, inputs={"values": {"from": "it"}}), "it")
    return plan


async def echo(values: Any) -> Any:
    return values


def finished(plan: Constellation, **options: Any) -> Result:
    return run(Orchestrator([LocalDevice("laptop", slots=20)], **options).run(plan))


@pytest.mark.parametrize("policy", ["scoped", "global", "speculative"])
def test_each_element_becomes_a_task_and_a_join_sees_all_results_in_order(policy: str) -> None:
    plan = grouped([1, 5, 3])
    result = finished(plan, policy=policy)
    assert result["last"].value == [2, 10, 6]
    assert [task.id for task in plan] == ["list", "it", "last", "it[1]", "it[5]", "it[3]"]
    assert plan.version == 1
    [entry] = [entry for entry in plan.story() if entry.what == "edited" and entry.task is None]
    assert entry.why.startswith("version 1 by foreach: 'it' has 3 elements")
    assert plan["it"].attempts == 1


def test_an_empty_list_is_an_empty_result() -> None:
    assert finished(grouped([]))["last"].value == []


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ("abc", "plan.yaml:7: foreach needs a list, but the result of 'list' is 'abc'"),
        (None, "plan.yaml:7: foreach needs a list, but the result of 'list' is nothing"),
        ({"a": 1}, "plan.yaml:7: foreach needs a list, but the result of 'list' is a mapping"),
        ([1] * 6, "plan.yaml:7: the result of 'list' has 6 elements, and 5 are allowed; set 'max'"),
        ([{"secret": "HOME"}], "plan.yaml:7: {item} is a mapping with the keys secret, which would be a reference"),
    ],
)
def test_what_cannot_be_expanded_fails_with_the_line_of_the_file(items: Any, words: str) -> None:
    plan = grouped(items)
    result = finished(plan)
    assert result.state == "partially_failed"
    assert words in plan["it"].reason
    assert plan["last"].reason == "unreachable: it needs 'it' to succeed, but 'it' failed"
    assert len(plan) == 3


def test_a_selection_that_fails() -> None:
    plan = Constellation("plan")
    plan.add(Task("list", call=after(0, {"files": [1]})))
    template = Task("it", call=f"{MODULE}:double", inputs={"number": "{item}"})
    plan.add(deferred_group(template, {"from": "list", "select": "result.flies", "max": 5}, {}), "list")
    finished(plan)
    assert "'result.flies' could not be evaluated" in plan["it"].reason


def test_without_the_check_an_element_could_name_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ablation: the result of a task must not decide which secret another task reads."""
    monkeypatch.setenv("SOME_TOKEN", "ss")
    monkeypatch.setattr(placeholders, "_constant", lambda path, value: value)
    plan = grouped([{"secret": "SOME_TOKEN"}])
    finished(plan)
    assert plan["last"].value == ["ssss"]


def test_a_group_fails_if_an_element_fails_and_the_others_end() -> None:
    plan = grouped([1, "broken", 3])
    plan.add(Task("sorry", call=after(0, "sorry")), {"it": "failure"})
    result = finished(plan)
    assert result.state == "partially_failed"
    assert "1 of 3 elements failed: it[broken]" in plan["it"].reason
    assert (plan["it[1]"].value, plan["it[3]"].value, plan["sorry"].value) == (2, 6, "sorry")


def test_a_group_that_fails_in_part_has_a_list_with_null_for_what_failed() -> None:
    plan = grouped([1, "broken", 3])
    wanted = {"plain": {}, "nulls": {"failed": None}, "rest": {"failed": "skip"}, "strict": {"failed": "fail"}}
    for name, more in wanted.items():
        plan.add(Task(name, call=echo, inputs={"values": {"from": "it", **more}}), {"it": "completion"})
    plan.add(Task("odd", call=echo, inputs={"values": {"from": "it", "failed": "drop"}}), {"it": "completion"})
    few = {"from": "it", "failed": "skip", "select": "result[1]"}
    plan.add(Task("few", call=echo, inputs={"values": few}), {"it": "completion"})
    result = finished(plan)
    assert plan["it"].value == [2, None, 6]
    assert plan["it"].reason.endswith("1 of 3 elements failed: it[broken] (ValueError: it broke)")
    assert [result[name].value for name in ("plain", "nulls", "rest", "few")] == [[2, None, 6], [2, None, 6], [2, 6], 6]
    assert "input 'values': 'it' failed: ElementsFailed: 1 of 3 elements failed" in plan["strict"].reason
    assert "failed is skip, null or fail, not 'drop'" in plan["odd"].reason


def test_a_group_of_groups_that_fails_in_part() -> None:
    plan = Constellation("plan")
    for name, items in {"a": [1, "broken"], "b": ["broken"], "c": [3]}.items():
        of = [f"it[{name}][{index}]" for index, _ in enumerate(items)]
        for task_id, item in zip(of, items, strict=True):
            plan.add(Task(task_id, call=f"{MODULE}:double", inputs={"number": item}))
        plan.add(Task(f"it[{name}]", foreach={"of": of}), dict.fromkeys(of, "completion"))
    plan.add(
        Task("it", foreach={"of": ["it[a]", "it[b]", "it[c]"]}),
        dict.fromkeys(["it[a]", "it[b]", "it[c]"], "completion"),
    )
    plan.add(Task("rest", call=echo, inputs={"values": {"from": "it", "failed": "skip"}}), {"it": "completion"})
    result = finished(plan)
    assert plan["it"].value == [[2, None], [None], [6]]
    assert result["rest"].value == [[2], [], [6]]


def test_an_element_that_exists_already_is_refused_whole() -> None:
    plan = grouped([1, 2])
    plan.add(Task("it[2]", call=after(0)))
    finished(plan)
    assert "it[2]" in plan["it"].reason
    assert "it[1]" not in plan


def test_a_large_group_has_a_short_story() -> None:
    plan = grouped([*range(300)], most=300)
    assert len(finished(plan)["last"].value) == 300
    [entry] = [entry for entry in plan.story() if entry.what == "edited" and entry.task is None]
    assert entry.why.endswith("; and 801 more edits)")


def test_a_group_needs_no_free_device() -> None:
    """Its tasks start although the only slot is busy when it is expanded and gathered."""
    plan = grouped([10, 10.0])
    plan.add(Task("long", call=after(100)))
    run(Orchestrator([LocalDevice("laptop", slots=2)]).run(plan))
    assert plan["last"].ended_at is not None
    assert plan["last"].ended_at < plan["long"].ended_at  # type: ignore[operator]


def test_a_group_waits_for_the_review_of_its_list() -> None:
    plan, versions = grouped([1]), []

    async def editor(view: Any, events: Any) -> Any:
        versions.append((view.version, [event.task_id for event in events]))
        await asyncio.sleep(5)
        return [AddTask(Task("more", call=after(0)))] if view.version == 0 else None

    finished(plan, editor=editor)
    assert versions[0] == (0, ["list"])
    stories = [entry.why.partition(":")[0] for entry in plan.story() if entry.what == "edited" and entry.task is None]
    assert stories[0].startswith("version 1 by editor")
    assert stories[1].startswith("version 2 by foreach")


def test_elements_may_start_provisionally() -> None:
    plan = grouped([1, 2], revocable=True)

    async def editor(view: Any, events: Any) -> None:
        await asyncio.sleep(1)

    assert finished(plan, policy="speculative", editor=editor)["last"].value == [2, 4]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 9) | st.text(max_size=3).filter(lambda text: text != "broken"), max_size=5))
def test_any_list_gives_its_results_in_order_and_the_journal_the_same_plan(items: list[Any]) -> None:
    plan = RecordedConstellation.of(recordable(items))
    start, steps = plan.to_json(), list[Any]()
    plan.record = steps.append
    finished(plan)
    assert plan["last"].value == [item * 2 for item in items]
    again = RecordedConstellation.from_json(start)
    replay(again, RecordedLock(again), steps)
    assert again.to_json() == plan.to_json()


def recordable(items: list[Any]) -> Constellation:
    plan = Constellation("plan")
    plan.add(Task("list", call=f"{MODULE}:echo", inputs={"values": items}))
    template = Task("it", call=f"{MODULE}:double", inputs={"number": "{item}"})
    plan.add(deferred_group(template, {"from": "list"}, {}), "list")
    plan.add(Task("last", call=f"{MODULE}:echo", inputs={"values": {"from": "it"}}), "it")
    return plan


# -- run again ---------------------------------------------------------------------------------------------------------


def again(plan: Constellation, *from_tasks: str) -> Result:
    return run(Orchestrator([LocalDevice("laptop", slots=20)]).retry(plan, from_tasks=from_tasks))


def test_a_list_that_is_made_again_has_new_elements() -> None:
    lists = [[1, 2], [2, 3, 4]]

    async def next_list() -> Any:
        return lists.pop(0)

    plan = grouped([])
    plan.node("list").task = Task("list", call=next_list)
    finished(plan)
    assert again(plan, "list")["last"].value == [4, 6, 8]
    assert {task.id for task in plan} == {"list", "it", "last", "it[2]", "it[3]", "it[4]"}


def test_an_element_that_failed_is_run_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = grouped([1, "broken"])
    finished(plan)
    assert plan["it"].status == "failed"

    async def mended(number: Any) -> Any:
        return "mended"

    monkeypatch.setattr(devices, "load_function", lambda path: mended)
    assert again(plan)["last"].value == [2, "mended"]
    assert (plan["list"].attempts, plan["it[1]"].attempts, plan.version) == (1, 1, 1)


def test_elements_on_which_another_task_depends_stay() -> None:
    plan = grouped([1])

    async def editor(view: Any, events: Any) -> Any:
        if "it[1]" in view and "more" not in view:
            return [AddTask(Task("more", call=after(0))), AddDependency("it[1]", "more")]
        return None

    finished(plan, editor=editor)
    assert again(plan, "list")["last"].value == [2]
    assert plan["more"].status == "completed"
