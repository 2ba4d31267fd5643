"""Tasks and dependencies: what they accept, what they refuse, and in which words."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from asterism.core.errors import InvalidTask, NotJson
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Dependency, Priority, Task, dependencies_of, differences, import_path


def work() -> None: ...


class Worker:
    def run(self) -> None: ...

    @classmethod
    def prepare(cls) -> None: ...


# -- what a task accepts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["high", "HIGH", 3, Priority.HIGH])
def test_a_priority_is_given_by_name_or_number(value: Any) -> None:
    assert Task("a", priority=value).priority is Priority.HIGH


@pytest.mark.parametrize("value", ["gpu", ["gpu"], {"gpu"}, frozenset({"gpu"})])
def test_needs_may_be_one_capability_or_several(value: Any) -> None:
    assert Task("a", needs=value).needs == frozenset({"gpu"})


def test_argv_may_be_any_list_of_words() -> None:
    assert Task("a", argv=["ls", "-l"]).argv == ("ls", "-l")  # type: ignore[arg-type]
    assert Task("a", argv=("ls", "-l")).argv == ("ls", "-l")


def test_two_tasks_with_the_same_fields_are_equal_and_any_other_pair_is_told_apart() -> None:
    old, new = Task("a", timeout=5, needs="gpu"), Task("a", timeout=6, needs=["gpu"], inputs={"x": 1})
    assert Task("a", inputs={}) == Task("a")
    assert differences(old, old) == {}
    assert differences(old, new) == {"timeout": 6, "inputs": {"x": 1}}


# -- what a task refuses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id": ""}, "id is empty"),
        ({"id": 5}, "id must be text"),
        ({"id": "a\nb"}, "the id must not contain control characters"),
        ({"call": work, "shell": "true"}, "only one of call, argv, shell, http, agent, plugin may be set"),
        ({"effects": ["explodes"]}, "effects[0] must be 'spends' or 'deletes', not 'explodes'"),
        ({"effects": 5}, "effects must be a list"),
        ({"cost": -1}, "cost must be 0 or more, not -1"),
        ({"cost": "much"}, "cost must be a number, not 'much'"),
        ({"call": 5}, "call must be a function or 'package.module:function'"),
        ({"call": "no_colon"}, "call must be a function or 'package.module:function'"),
        ({"argv": []}, "argv is empty"),
        ({"argv": ["ls", 5]}, "argv[1] must be text"),
        ({"argv": "ls -l"}, "argv must be a list, such as [one, two], not 'ls -l'"),
        ({"argv": 5}, "argv must be a list, such as [one, two], not 5"),
        ({"retries": -1}, "retries must be 0 or more, not -1"),
        ({"retries": 1.5}, "retries must be a whole number, not 1.5"),
        ({"retries": True}, "retries must be a whole number, not true"),
        ({"backoff": -0.1}, "backoff must be 0 or more, not -0.1"),
        ({"backoff": "1"}, "backoff must be a number, not '1'"),
        ({"timeout": 0}, "timeout must be above 0, not 0"),
        ({"timeout": float("nan")}, "timeout must be above 0, not nan"),
        ({"timeout": float("inf")}, "timeout must be 1,000,000,000,000,000 or less, not inf"),
        ({"timeout": True}, "timeout must be a number, not true"),
        ({"estimate": -2}, "estimate must be above 0, not -2"),
        ({"device": ""}, "device is empty"),
        ({"device": 5}, "device must be text"),
        ({"needs": [5]}, "needs[0] must be text"),
        ({"needs": frozenset({5})}, "needs[0] must be text"),
        ({"http": {"method": "GET"}}, "http needs a url"),
        ({"join": "some"}, "join must be 'all' or 'any', not 'some'"),
        ({"foreach": {"of": "abc"}}, "foreach has 'of', a list of ids, or 'from' and 'template'"),
        ({"foreach": {"from": 5}}, "foreach has 'of', a list of ids, or 'from' and 'template'"),
        ({"skip_if_unchanged": {}}, "skip_if_unchanged has 'outputs', a list of files"),
        ({"skip_if_unchanged": {"outputs": []}}, "skip_if_unchanged.outputs is empty"),
        ({"skip_if_unchanged": {"outputs": "a.txt"}}, "skip_if_unchanged.outputs must be a list"),
        ({"needs": 5}, "needs must be a list, such as [one, two], not 5"),
        ({"priority": "urgent"}, "priority must be low, normal, high or critical, not 'urgent'"),
        ({"priority": 9}, "priority must be low, normal, high or critical, not 9"),
    ],
)
def test_a_task_that_contradicts_itself_is_refused_with_the_reason(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        Task(**{"id": "a", **fields})
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["inputs", "env", "data", "description", "revocable", "needs", "priority"])
def test_nothing_is_refused_where_something_is_needed(name: str) -> None:
    with pytest.raises(InvalidTask, match=name):
        Task("build", **{name: None})


@pytest.mark.parametrize("name", ["call", "argv", "shell", "http", "timeout", "device", "estimate"])
def test_nothing_is_accepted_where_it_means_that_there_is_none(name: str) -> None:
    assert Task("build", **{name: None}) == Task("build")


def test_one_message_names_everything_that_is_wrong_and_the_task() -> None:
    with pytest.raises(InvalidTask) as caught:
        Task("build", retries=-1, timeout=0, device="")
    assert str(caught.value) == (
        "task 'build': timeout must be above 0, not 0; device is empty; retries must be 0 or more, not -1"
    )


@pytest.mark.parametrize("fields", [{"priority": "urgent"}, {"needs": 5}, {"argv": "ls -l"}])
def test_a_field_that_cannot_be_read_is_refused_with_the_name_of_the_task(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="'build'"):
        Task("build", **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": 5},
        {"inputs": ["x"]},
        {"env": "PATH"},
        {"data": 5},
        {"http": "GET /"},
        {"shell": 5},
        {"description": 5},
        {"revocable": "yes"},
        {"needs": [["gpu"]]},
    ],
)
def test_a_field_of_the_wrong_type_is_refused_when_the_task_is_made(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="'build'"):
        Task("build", **fields)


# -- changing a task ---------------------------------------------------------------------------------------------------


def test_a_changed_task_keeps_the_rest() -> None:
    assert Task("a", retries=2).changed({"timeout": 5}) == Task("a", retries=2, timeout=5)


def test_a_change_of_an_unknown_field_lists_the_fields_there_are() -> None:
    with pytest.raises(
        InvalidTask, match=r"'a': no such field: colour; the fields are agent, approval, argv, backoff, call, "
    ) as caught:
        Task("a").changed({"colour": "red", "timeout": 5})
    assert "timeout" in str(caught.value)


def test_the_id_of_a_task_cannot_change() -> None:
    with pytest.raises(InvalidTask, match="no such field: id"):
        Task("a").changed({"id": "b"})


def test_a_change_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidTask, match="the update changes nothing; name at least one field"):
        Task("a").changed({})


# -- JSON --------------------------------------------------------------------------------------------------------------


def test_the_json_form_names_only_what_differs_from_the_defaults() -> None:
    assert Task("a").to_json() == {"id": "a"}
    full = Task("a", argv=["ls"], priority="low", needs=["x", "b"], inputs={"n": 1}, timeout=5)  # type: ignore[arg-type]
    assert full.to_json() == {
        "id": "a",
        "argv": ["ls"],
        "priority": "low",
        "needs": ["b", "x"],
        "inputs": {"n": 1},
        "timeout": 5,
    }


@pytest.mark.parametrize(
    "task",
    [
        Task("a"),
        Task("a", call="package.module:function", retries=3, backoff=0, revocable=True, estimate=2.5),
        Task("a", argv=("ls",), env={"X": {"secret": "TOKEN"}}, device="laptop"),
        Task("a", shell="ls", needs="gpu", description="list", priority=Priority.CRITICAL),
        Task("a", http={"url": "http://localhost"}, data={"k": [1, None]}, timeout=1),
    ],
)
def test_a_task_comes_back_from_json_as_it_was(task: Task) -> None:
    assert Task.from_json(task.to_json()) == task


@pytest.mark.parametrize("data", [None, 5, "a", [], {}, {"shell": "ls"}])
def test_json_without_an_id_is_no_task(data: Any) -> None:
    with pytest.raises(InvalidTask, match="a task is an object with an 'id'"):
        Task.from_json(data)


def test_json_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(InvalidTask, match="'a': no such field: colour, size"):
        Task.from_json({"id": "a", "size": 1, "colour": 2})


def test_a_function_of_a_module_is_stored_as_its_import_path() -> None:
    assert Task("a", call=work).to_json()["call"] == f"{__name__}:work"
    assert import_path(Worker.prepare, "a") == f"{__name__}:Worker.prepare"
    assert import_path("package.module:function", "a") == "package.module:function"


def main_function() -> Any:
    def function() -> None: ...

    function.__module__, function.__qualname__ = "__main__", "function"
    return function


@pytest.mark.parametrize(
    "call",
    [lambda: None, main_function(), functools.partial(work), [].append],
    ids=["lambda", "main", "partial", "bound"],
)
def test_a_callable_without_an_import_path_is_refused_with_what_to_do(call: Any) -> None:
    with pytest.raises(NotJson) as caught:
        Task("a", call=call).to_json()
    assert "task 'a'" in str(caught.value)
    assert "has no import path, so it cannot be stored or sent" in str(caught.value)
    assert "define it at the top level of an importable module" in str(caught.value)


def test_a_local_function_is_refused() -> None:
    def local() -> None: ...

    with pytest.raises(NotJson, match="no import path"):
        import_path(local, "a")


def test_a_method_of_an_object_is_refused_for_its_path_would_lose_the_object() -> None:
    with pytest.raises(NotJson, match="no import path"):
        import_path(Worker().run, "a")


# -- dependencies ------------------------------------------------------------------------------------------------------


def test_a_dependency_waits_for_one_of_the_outcomes() -> None:
    with pytest.raises(
        InvalidTask, match="'a' -> 'b': on is one of success, failure, completion, always, teardown, not 'done'"
    ):
        Dependency("a", "b", on="done")


@pytest.mark.parametrize("when", ["", "  ", 5])
def test_a_condition_is_an_expression(when: Any) -> None:
    with pytest.raises(InvalidTask, match="'a' -> 'b': when is an expression, not"):
        Dependency("a", "b", when=when)


def test_a_task_cannot_depend_on_itself() -> None:
    with pytest.raises(InvalidTask, match="task 'a' cannot depend on itself"):
        Dependency("a", "a")


def test_the_json_form_of_a_dependency_has_a_condition_only_if_there_is_one() -> None:
    assert Dependency("a", "b").to_json() == {"source": "a", "target": "b", "on": "success"}
    assert Dependency("a", "b", "failure", "x").to_json() == {
        "source": "a",
        "target": "b",
        "on": "failure",
        "when": "x",
    }


@pytest.mark.parametrize(
    ("after", "meant"),
    [
        (None, []),
        ("a", [Dependency("a", "z")]),
        (["a", "b", "a"], [Dependency("a", "z"), Dependency("b", "z")]),
        ({"a": "completion"}, [Dependency("a", "z", "completion")]),
        ({"a": {}}, [Dependency("a", "z")]),
        ({"a": {"when": "result > 1"}}, [Dependency("a", "z", "success", "result > 1")]),
        ({"a": {"on": "failure"}, "b": "success"}, [Dependency("a", "z", "failure"), Dependency("b", "z")]),
    ],
)
def test_after_is_an_id_or_several_or_a_mapping_to_terms(after: Any, meant: list[Dependency]) -> None:
    assert dependencies_of("z", after) == meant


@pytest.mark.parametrize("condition", [None, 5, {"on": "success", "if": "x"}])
def test_after_refuses_terms_it_does_not_know(condition: Any) -> None:
    with pytest.raises(InvalidTask, match=r"after=\{'a': …\} takes an outcome or \{'on': …, 'when': …, 'handled': …\}"):
        dependencies_of("z", {"a": condition})


@pytest.mark.parametrize("after", [5, [["a"]]])
def test_after_refuses_what_names_no_task(after: Any) -> None:
    with pytest.raises(InvalidTask, match="after"):
        dependencies_of("z", after)


def test_a_copy_cannot_reach_the_data_of_the_live_task() -> None:
    plan = Constellation()
    plan.add(Task("a", data={"x": 1}))
    with pytest.raises(TypeError):
        plan.copy()["a"].task.data["x"] = "forged"  # type: ignore[index]
    inputs = {"x": 1}
    task = Task("b", inputs=inputs)
    inputs["x"] = 2
    assert task.inputs == {"x": 1}
