"""Scopes of editors: they find every change outside, whatever form the batch has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan import edit_rules
from asterism.core.plan.apply import apply
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import OTHER_FIELDS, EditScope, fits, scope_violations
from asterism.core.plan.edit_trial import trial
from asterism.core.plan.edits import (
    EDITS,
    AddDependency,
    AddTask,
    CancelTask,
    EditBatch,
    RemoveDependency,
    RemoveTaint,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)
from asterism.core.plan.group_elements import most_tasks, tasks_added, work_of
from asterism.core.plan.task import ACTIONS, TASK_FIELDS, Task
from asterism.core.plan.work_patterns import work_name
from asterism.execution.foreach_expansion import expansion, template_of


def plan() -> Constellation:
    made = Constellation("p")
    made.add(Task("fetch", http={"url": "https://example.org/"}))
    made.add(Task("fix-1", argv=("make", "test"), device="sandbox-1"), "fetch")
    made.add(Task("deploy", shell="deploy", env={"TOKEN": {"secret": "DEPLOY"}}), "fix-1")
    made.add(Task("verify", call="time:time"), "fetch")
    made.begin(1.0)
    return made


def allowing_else(text: str) -> EditScope:
    """A scope that allows what ``any`` allows, but for what the text says."""
    return EditScope.from_json({**EditScope.parse("any").to_json(), **EditScope.parse(text).to_json()})


def outside(scope: str, *edits: Any, editor: str = "robot") -> list[str]:
    made, batch = plan(), EditBatch(edits, "ann")
    scopes = [allowing_else(text) for text in scope.split(" | ")]
    return [str(violation) for violation in scope_violations(scopes, editor, batch, trial(made, batch), made)]


def with_critical_work() -> Constellation:
    made = Constellation("p")
    made.add(Task("base", priority="low"))
    made.add(Task("middle", priority="low"))
    made.add(Task("release", priority="critical"))
    made.add(Task("mended", priority="low"))
    made.add(Task("deploy", priority="critical"))
    made.apply(EditBatch((AddDependency("mended", "deploy", on="failure"),), "ann"), 0.0)
    made.apply(EditBatch((UpdateTask("mended", argv=("make",)),), "robot", editor="robot"), 0.0)
    made.apply(EditBatch((AddTask(Task("urgent", priority="low")),), "robot", editor="robot"), 0.0)
    made.apply(EditBatch((AddDependency("urgent", "release"),), "ann"), 0.0)
    return made


@pytest.mark.parametrize(
    ("edits", "within"),
    [
        ([AddTask(Task("x", priority="low")), AddDependency("x", "release")], False),
        ([AddTask(Task("x", priority="low")), AddDependency("x", "release", on="failure")], True),  # it lends nothing
        ([AddTask(Task("x", priority="low")), AddDependency("x", "middle")], True),
        (
            [AddTask(Task("x", priority="low")), AddDependency("x", "middle"), AddDependency("middle", "release")],
            False,
        ),
        ([AddDependency("middle", "release")], True),  # a person's work
        ([AddDependency("middle", "release"), UpdateTask("middle", argv=("mine",))], False),
        ([AddDependency("mended", "release")], False),  # the editor's from an earlier batch
        ([UpdateDependency("mended", "deploy", on="success")], False),
        ([RemoveDependency("urgent", "release"), AddDependency("urgent", "release")], True),  # it counts so already
        ([AddDependency("none-such", "release")], True),  # rejected for another reason
    ],
)
def test_work_of_an_editor_gets_no_priority_above_its_scope_from_a_task_that_waits_for_it(
    edits: list[Any], within: bool
) -> None:
    made = with_critical_work()
    batch = EditBatch(tuple(edits), "robot", editor="robot")
    assert (scope_violations([allowing_else("priority=low")], "robot", batch, trial(made, batch), made) == []) is within
    assert scope_violations([EditScope.parse("any")], "robot", batch, trial(made, batch), made) == []


def test_a_task_keeps_the_retries_that_it_has() -> None:
    made = Constellation("p")
    made.add(Task("a", retries=5))
    scope = [allowing_else("retries=2")]
    for retries, within in ((4, True), (5, True), (6, False)):
        batch = EditBatch((UpdateTask("a", priority=3, retries=retries),))
        assert (scope_violations(scope, "robot", batch, trial(made, batch), made) == []) is within


FIX = Task("fix-2", argv=("make", "test"), device="sandbox-2")
FOREACH = {"from": "fetch", "template": {"id": "fix-3", "shell": "rm -r /"}}


def group(name: str = "g", most: int | None = None, **template: Any) -> Task:
    """A group over the result of fetch."""
    return Task(name, foreach={"from": "fetch", "template": template, **({} if most is None else {"max": most})})


NESTED = group(foreach={"from": "fetch", "template": {"shell": "rm -r /"}})


@pytest.mark.parametrize(
    ("scope", "edits", "within"),
    [
        ("any", [AddTask(Task("x", shell="true")), CancelTask("deploy")], True),
        ("edits=cancel_task", [CancelTask("deploy")], True),
        ("edits=cancel_task", [AddTask(FIX)], False),
        ("tasks=fix-*", [AddTask(FIX), AddDependency("fetch", "fix-2")], True),
        ("tasks=fix-*", [AddTask(Task("x"))], False),
        ("tasks=fix-*", [CancelTask("deploy")], False),
        ("tasks=fix-*", [AddDependency("verify", "deploy")], False),
        ("tasks=fix-*", [RemoveDependency("fix-1", "deploy")], False),
        ("tasks=fix-*", [UpdateDependency("fix-1", "deploy", "completion")], False),
        ("tasks=fix-*", [RemoveTask("fix-1", dependents="remove")], False),  # with deploy, which it does not name
        ("tasks=fix-*", [RemoveTask("fix-1", dependents="bridge")], False),  # deploy would start without it
        ("tasks=fix-*,deploy", [RemoveTask("fix-1", dependents="bridge")], True),
        ("tasks=fix-*", [AddTask(FIX), AddDependency("verify", "fix-2", "failure", handled=True)], False),
        ("executors=argv", [AddTask(FIX)], True),
        ("executors=argv", [AddTask(Task("x", shell="true"))], False),
        ("executors=argv", [AddTask(Task("x"))], False),
        ("executors=argv", [AddTask(Task("x", foreach=FOREACH))], False),  # what its elements execute
        ("executors=argv", [AddTask(NESTED)], False),  # what the elements of its elements execute
        ("work=make", [AddTask(NESTED)], False),
        ("executors=shell", [AddTask(NESTED)], True),
        ("executors=argv", [AddTask(Task("x", foreach={"of": ["fetch"]}))], True),
        ("executors=argv", [UpdateTask("verify", priority=3)], False),  # it executes a function
        ("executors=argv", [UpdateTask("fix-1", argv=None), UpdateTask("fix-1", shell="rm")], False),  # in two steps
        ("executors=argv", [AddTask(FIX), UpdateTask("fix-2", argv=None, shell="rm")], False),
        ("executors=argv", [CancelTask("deploy")], True),
        ("retries=2", [AddTask(Task("x", retries=2))], True),
        ("retries=2", [AddTask(Task("x", retries=3))], False),
        ("retries=0", [UpdateTask("fix-1", retries=1)], False),
        ("retries=2", [AddTask(group(argv=["make"], retries=3))], False),
        ("retries=2", [AddTask(FIX), UpdateTask("fix-2", retries=3)], False),
        ("work=make,pytest", [AddTask(FIX)], True),
        ("work=make,pytest", [AddTask(Task("x", argv=("rm",)))], False),
        ("work=make,pytest", [AddTask(Task("x", shell="make"))], False),
        ("work=*", [AddTask(Task("x", agent="make it"))], False),
        ("executors=argv", [AddTask(Task("x", agent="make it"))], False),
        ("executors=agent", [AddTask(Task("x", agent="make it"))], True),
        ("work=make", [AddTask(Task("x", argv=("make",), env={"PATH": "/tmp"}))], False),
        ("work=make", [AddTask(Task("x", argv=("make",), cwd="/tmp"))], False),
        ("work=https://example.org/*", [AddTask(Task("x", http={"url": "https://example.org/a"}))], True),
        ("work=https://example.org/*", [AddTask(Task("x", http={"url": "https://example.org@evil.net/"}))], False),
        ("work=time:*", [AddTask(Task("x", call="os:system"))], False),
        ("work=time:*", [AddTask(Task("x", call="time:time"))], True),
        ("work=time:*", [AddTask(Task("x", call="time:subprocess.getoutput"))], False),  # what the module imports
        ("work=time:*.*", [AddTask(Task("x", call="time:struct_time.count"))], True),
        ("work=lib.*:run_*", [AddTask(Task("x", call="lib.sub.mod:run_it"))], True),
        ("work=time", [AddTask(Task("x", call="time:time"))], False),
        ("work=./tools/*", [AddTask(Task("x", argv=("./tools/lint",)))], True),
        ("work=./tools/*", [AddTask(Task("x", argv=("./tools/../../../../bin/sh",)))], False),
        ("work=./tools/*/*", [AddTask(Task("x", argv=("./tools/../sh",)))], False),
        ("work=./tools/*", [AddTask(Task("x", argv=("./tools/a/b",)))], False),
        ("work=./tools/*", [AddTask(Task("x", argv=("./tools/..\\sh",)))], False),
        ("work=./tools/*", [AddTask(Task("x", argv=("./tools/{a}",), inputs={"a": "../../bin/sh"}))], False),
        ("work=./tools/*", [AddTask(group(argv=["./tools/{item}"]))], False),
        ("work=make", [AddTask(Task("x", argv=("./make",)))], False),
        ("work=*", [AddTask(Task("x", argv=("./tools/../sh",)))], True),  # all work that has a name
        ("work=https://*.example.org/*", [AddTask(Task("x", http={"url": "https://a.example.org/b?c=d"}))], True),
        ("work=https://*.example.org/*", [AddTask(Task("x", http={"url": "https://A.Example.org"}))], True),
        (
            "work=https://*.example.org/*",
            [AddTask(Task("x", http={"url": "https://evil.test/x.example.org/y"}))],
            False,
        ),
        ("work=https://*.example.org/*", [AddTask(Task("x", http={"url": "https://evil.test?.example.org/y"}))], False),
        ("work=https://*.example.org/*", [AddTask(Task("x", http={"url": "https://evil.test#.example.org/y"}))], False),
        ("work=https://*.example.org/*", [AddTask(Task("x", http={"url": "https://evil\\.example.org/y"}))], False),
        ("work=https://*.example.org/*", [AddTask(Task("x", http={"url": "https://evil.test／.example.org/"}))], False),
        ("work=https://*.example.org/*", [AddTask(Task("x", http={"url": "https://a.example.org:8443/"}))], False),
        ("work=https://*.example.org:*/*", [AddTask(Task("x", http={"url": "https://a.example.org:8443/"}))], True),
        ("work=https://*.example.org/*", [AddTask(Task("x", http={"url": "http://a.example.org/"}))], False),
        ("work=https://*.example.org/*", [AddTask(Task("x", http={"url": "https://{a}.example.org/"}))], False),
        ("work=https://a.org/*", [AddTask(Task("x", http={"url": "https://a.org/{b}"}))], True),
        ("work=https://a.org/b/*", [AddTask(Task("x", http={"url": "https://a.org/b/{c}"}))], False),
        ("work=https://a.org/b/*", [AddTask(Task("x", http={"url": "https://a.org/b/../c"}))], False),
        ("work=https://a.org/b/*", [AddTask(Task("x", http={"url": "https://a.org/b/%2E%2e/c"}))], False),
        ("work=https://a.org/*/c", [AddTask(Task("x", http={"url": "https://a.org/b?/c"}))], False),
        ("work=https://a.org/*", [AddTask(Task("x", http={"url": "https://a.org/", "headers": {"host": "b"}}))], False),
        ("devices=sandbox-*", [AddTask(FIX)], True),
        ("devices=[!p]*", [AddTask(group(argv=["make"], device="{item}"))], False),
        ("devices=sandbox-*", [AddTask(Task("x"))], False),  # it may run anywhere
        ("devices=sandbox-*", [UpdateTask("fix-1", device="prod")], False),
        ("any", [AddTask(Task("x", inputs={"a": [{"secret": "DEPLOY"}]}))], False),
        ("any", [AddTask(Task("x", http={"url": "https://a/", "headers": {"A": {"secret": "K"}}}))], False),
        ("any", [AddTask(Task("x", foreach={"from": "fetch", "template": {"env": {"A": {"secret": "K"}}}}))], False),
        ("secrets=DEPLOY", [AddTask(Task("x", env={"A": {"secret": "DEPLOY"}}))], True),
        ("any", [UpdateTask("deploy", priority=3)], True),  # it has the secret already
        ("any", [UpdateTask("deploy", env={"A": {"secret": "OTHER"}})], False),
        ("any", [UpdateTask("deploy", shell="send $TOKEN")], False),  # its secret, for other work
        ("any", [UpdateTask("deploy", inputs={"host": "evil.test"})], False),
        ("any", [UpdateTask("deploy", device="mine")], False),
        ("any", [UpdateTask("deploy", cwd="/tmp")], False),
        ("secrets=DEPLOY", [UpdateTask("deploy", shell="send $TOKEN")], True),
        ("any", [AddTask(Task("x", skip_if_unchanged={"outputs": ["out"]}))], False),  # the server reads the files
        ("files=src/*", [AddTask(Task("x", skip_if_unchanged={"inputs": ["src/a"], "outputs": ["src/b/*"]}))], True),
        ("files=src/*", [AddTask(Task("x", skip_if_unchanged={"inputs": ["/dev/zero"], "outputs": ["src/b"]}))], False),
        ("files=src/*", [AddTask(Task("x", skip_if_unchanged={"outputs": ["src/../etc/passwd"]}))], False),
        ("files=src/*", [AddTask(Task("x", cwd="/etc", skip_if_unchanged={"outputs": ["src/b"]}))], False),
        ("files=/w/*", [AddTask(Task("x", cwd="/w/", skip_if_unchanged={"outputs": ["b"]}))], True),
        ("files=src/*", [AddTask(group(argv=["make"], skip_if_unchanged={"outputs": ["src/{item}"]}))], False),
        ("files=src/*", [UpdateTask("fix-1", skip_if_unchanged={"outputs": ["etc"]})], False),
        ("priority=normal", [AddTask(Task("x"))], True),
        ("priority=normal", [AddTask(Task("x", priority="high"))], False),  # it would lend it to what it waits for
        ("priority=normal", [UpdateTask("fix-1", priority="critical")], False),
        ("priority=low", [UpdateTask("fix-1", timeout=3.0)], True),  # it keeps the one that it has
        ("priority=low", [AddTask(group(argv=["make"], priority="normal"))], False),
        ("priority=critical", [AddTask(Task("x", priority="critical"))], True),
        ("adds=1", [AddTask(FIX)], True),
        ("adds=1", [AddTask(FIX), AddTask(Task("x"))], False),
        ("adds=1", [AddTask(group(argv=["make"]))], False),  # a group counts with its elements
        ("adds=6", [AddTask(group(argv=["make"], most=5))], True),
        ("adds=5", [AddTask(group(argv=["make"], most=5))], False),
        ("adds=1001", [AddTask(NESTED)], False),
        ("adds=1", [AddTask(FIX), UpdateTask("fix-2", argv=None, foreach=group(argv=["make"]).foreach)], False),
        ("adds=0", [UpdateTask("fix-1", argv=None, foreach=group(argv=["make"]).foreach)], False),
        ("size=9", [AddTask(group(argv=["make"], most=4))], True),
        ("size=8", [AddTask(group(argv=["make"], most=4))], False),
        ("adds=9", [AddTask(group(argv=["make"], most=10**5000))], False),
        ("adds=0", [AddTask(FIX)], False),
        ("adds=0", [CancelTask("deploy")], True),
        ("size=5", [AddTask(FIX)], True),
        ("size=5", [AddTask(FIX), AddTask(Task("x"))], False),
        ("edits=cancel_task | tasks=fix-*", [CancelTask("deploy"), AddTask(FIX)], True),  # each within one of them
        ("edits=cancel_task | tasks=fix-*", [AddTask(Task("x"))], False),
        ("editors=other", [CancelTask("deploy")], False),  # no scope is for this editor
        ("editors=rob*", [CancelTask("deploy")], True),
        ("editors=ann", [CancelTask("deploy")], False),  # the author that a batch names does not count
    ],
)
def test_what_is_within_a_scope(scope: str, edits: list[Any], within: bool) -> None:
    messages = outside(scope, *edits)
    assert (messages == []) is within, messages
    assert outside(scope) == []  # an empty answer


# -- what a scope does not name ----------------------------------------------------------------------------------------

EVERYTHING = {
    **EditScope.parse("any").to_json(),
    "secrets": ["*"],
    "files": ["*"],
    "waits": ["*"],
    "uses": ["*:1000"],
}
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "call": ({"call": "os:system"}, "executors"),
    "argv": ({"argv": ["true"]}, "executors"),
    "shell": ({"shell": "true"}, "executors"),
    "http": ({"http": {"url": "https://a/"}}, "executors"),
    "agent": ({"agent": "make it"}, "executors"),
    "plugin": ({"plugin": {"container": {"image": "a"}}}, "executors"),
    "inputs": ({"inputs": {"a": 1}}, "executors"),
    "description": ({"description": "a"}, "executors"),
    "env": ({"env": {"A": "b"}}, "fields"),
    "cwd": ({"cwd": "/tmp"}, "fields"),
    "priority": ({"priority": "critical"}, "fields"),
    "retries": ({"retries": 1}, "fields"),
    "backoff": ({"backoff": 9.0}, "fields"),
    "timeout": ({"timeout": 9.0}, "fields"),
    "device": ({"device": "d"}, "fields"),
    "needs": ({"needs": ["gpu"]}, "fields"),
    "estimate": ({"estimate": 9.0}, "fields"),
    "revocable": ({"revocable": True}, "fields"),
    "join": ({"join": "any"}, "fields"),
    "data": ({"data": {"a": 1}}, "fields"),
    "foreach": ({"foreach": {"of": []}}, "fields"),
    "skip_if_unchanged": ({"skip_if_unchanged": {"outputs": ["a"]}}, "files"),
    "untrusted": ({"untrusted": True}, "fields"),
    "cost": ({"cost": 1.0}, "fields"),
    "effects": ({"effects": ["spends"]}, "fields"),
    "outputs": ({"outputs": {"a": "a"}, "skip_if_unchanged": {}}, "fields"),
    "uses": ({"uses": {"warehouse": 1}}, "uses"),
    "wait_for": ({"wait_for": {"event": "paid"}}, "waits"),
    "heartbeat_timeout": ({"heartbeat_timeout": 9.0}, "fields"),
    "approval": ({"approval": {"by": "ann"}}, "fields"),
}
"""A value of each field of a task, and the name in a scope without which it may not be set."""
ALSO_NAMED = {"retries": "retries=1", "priority": "priority=critical", "device": "devices=d"}
"""Fields that have a name of their own, beside ``fields``."""

OPS = {
    "add_task": AddTask(Task("x")),
    "remove_task": RemoveTask("fix-1", dependents="remove"),
    "update_task": UpdateTask("verify", timeout=1.0),
    "add_dependency": AddDependency("verify", "deploy", handled=False),
    "update_dependency": UpdateDependency("fetch", "verify", "completion"),
    "remove_dependency": RemoveDependency("fetch", "verify"),
    "cancel_task": CancelTask("deploy"),
    "remove_taint": RemoveTaint("fine"),
}


def allowed(scope: dict[str, Any], *edits: Any) -> bool:
    made, batch = plan(), EditBatch(edits)
    made.add(Task("bare"))
    return not scope_violations([EditScope.from_json(scope)], "robot", batch, trial(made, batch), made)


def but(*names: str) -> dict[str, Any]:
    """A scope that allows everything, but that it does not name these."""
    return {name: value for name, value in EVERYTHING.items() if name not in names}


def placed(fields: dict[str, Any]) -> dict[str, Sequence[Any]]:
    """A task with these fields is added, added as the elements of a group, and changed."""
    nested = {"from": "fetch", "template": {"shell": "true", **fields} if {*fields} & {"foreach"} else fields}
    return {
        "added": [AddTask(Task("x", **fields))],
        "element": [AddTask(Task("x", foreach=nested))],
        "changed": [UpdateTask("bare", **fields)],
    }


def test_every_edit_and_every_field_of_a_task_is_in_these_tables() -> None:
    """Who adds a field says here which name of a scope allows it. Until then no scope does."""
    assert set(FIELDS) == TASK_FIELDS
    assert set(OPS) == set(EDITS)


@pytest.mark.parametrize("op", OPS)
def test_an_edit_that_a_scope_does_not_name_is_refused(op: str) -> None:
    assert allowed(EVERYTHING, OPS[op])
    others = [other for other in EDITS if other != op]
    assert not allowed({**EVERYTHING, "edits": others}, OPS[op])
    assert not allowed(but("edits"), OPS[op])
    assert op == "remove_taint" or not allowed(but("tasks"), OPS[op])


@pytest.mark.parametrize("place", ["added", "element", "changed"])
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_a_scope_does_not_name_is_refused(name: str, place: str) -> None:
    fields, key = FIELDS[name]
    edits = placed(fields)[place]
    assert allowed(EVERYTHING, *edits)
    assert not allowed(but(key), *edits)
    if key == "fields":
        assert not allowed({**EVERYTHING, key: [other for other in OTHER_FIELDS if other != name]}, *edits)
        assert allowed({**EVERYTHING, key: [*fields.keys() & {*OTHER_FIELDS}, "foreach"]}, *edits)
    if name in ALSO_NAMED:
        assert allowed({**EVERYTHING, key: ["foreach"], **EditScope.parse(ALSO_NAMED[name]).to_json()}, *edits)


@pytest.mark.parametrize(
    ("scope", "fields", "is_within"),
    [
        ("waits=plan:nightly/*", {"wait_for": {"plan": "nightly", "task": "t"}}, True),
        ("waits=plan:nightly/*", {"wait_for": {"plan": "secret", "task": "t"}}, False),
        ("waits=plan:nightly/*", {"wait_for": {"event": "paid"}}, False),
        ("waits=plan:*", {"wait_for": {"plan": "{a}", "task": "t"}}, False),
        ("waits=event:paid", {"wait_for": {"event": "paid"}}, True),
        ("waits=event:paid", {"wait_for": {"event": "paid/7"}}, False),
        ("waits=time", {"wait_for": {"until": "2026-11-18T09:00"}}, True),
        ("waits=event:*", {"wait_for": {"until": "2026-11-18T09:00"}}, False),
        ("uses=warehouse", {"shell": "true", "uses": {"warehouse": 1}}, True),
        ("uses=warehouse", {"shell": "true", "uses": {"warehouse": 2}}, False),
        ("uses=warehouse:2", {"shell": "true", "uses": {"warehouse": 2}}, True),
        ("uses=warehouse:2", {"shell": "true", "uses": {"warehouse": 1, "other": 1}}, False),
        ("uses=w*:2,api", {"shell": "true", "uses": {"warehouse": 2, "api": 1}}, True),
    ],
)
def test_what_a_task_may_wait_for_and_use(scope: str, fields: dict[str, Any], is_within: bool) -> None:
    for edits in placed(fields).values():
        assert allowed(allowing_else(scope).to_json(), *edits) is is_within


def test_a_task_keeps_what_it_has() -> None:
    made = Constellation("p")
    made.add(Task("a", shell="true", uses={"warehouse": 5}, priority="critical", retries=9, timeout=5.0))
    batch = EditBatch((UpdateTask("a", cost=1.0, uses={"warehouse": 5}),))
    scope = EditScope.parse("edits=update_task tasks=a executors=shell fields=cost")
    assert scope_violations([scope], "robot", batch, trial(made, batch), made) == []


def test_a_task_that_a_batch_reaches_through_its_own_dependency_is_found() -> None:
    trick = (AddTask(Task("fix-9")), AddDependency("fix-9", "deploy"), RemoveTask("fix-9", dependents="remove"))
    messages = outside("tasks=fix-* | edits=add_dependency", *trick)
    assert messages == [
        "edit 2: remove task 'fix-9' and what depends on it is outside the scope of the editor 'robot': it changes "
        "the task 'deploy', and its tasks are fix-*; or its edits are add_dependency [scope]"
    ]


def test_every_edit_that_is_outside_is_named() -> None:
    messages = outside("edits=cancel_task", CancelTask("deploy"), AddTask(FIX), RemoveTask("verify"))
    assert [line.split(":")[0] for line in messages] == ["edit 1", "edit 2"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "edits=",
        "edits=fly",
        "executors=rocket",
        "adds=-1",
        "adds=x",
        "adds=1,2",
        "size=²",
        "priority=urgent",
        "colour=red",
    ],
)
def test_what_is_not_a_scope(text: str) -> None:
    with pytest.raises(PlanError):
        EditScope.parse(text)


def test_numbers_of_a_scope_are_whole() -> None:
    with pytest.raises(PlanError, match="a scope: adds must be a whole number"):
        EditScope(adds=True)


words = st.lists(st.text("abc*-", min_size=1, max_size=4), max_size=2).map(tuple)
numbers = st.none() | st.integers(0, 9)
scopes = st.builds(
    EditScope,
    words,
    st.lists(st.sampled_from(list(EDITS)), max_size=2).map(tuple),
    words,
    st.lists(st.sampled_from(ACTIONS), max_size=2).map(tuple),
    words,
    words,
    words,
    words,
    numbers,
    numbers,
    numbers,
    st.none() | st.sampled_from(["low", "critical"]),
    st.lists(st.sampled_from(["*", "env", "timeout"]), max_size=2).map(tuple),
    words,
    words,
)


@given(scopes)
def test_a_scope_is_the_same_after_it_was_stored_and_written_down(scope: EditScope) -> None:
    assert EditScope.from_json(scope.to_json()) == scope
    assert EditScope.parse(str(scope)) == scope


names = st.sampled_from(["fetch", "fix-1", "fix-2", "fix-3", "deploy", "verify"])
actions = st.sampled_from(
    [{}, {"argv": ("make",)}, {"shell": "x"}, {"call": "os:system"}, {"argv": ("make",), "device": "sandbox-1"}]
)
new_tasks = st.builds(lambda name, action: Task(name, **action), names, actions)
some_edits = st.one_of(
    st.builds(AddTask, new_tasks),
    st.builds(RemoveTask, names, st.sampled_from([None, "remove", "bridge"])),
    st.builds(lambda name, action: UpdateTask(name, **(action or {"priority": 3})), names, actions),
    st.builds(AddDependency, names, names),
    st.builds(RemoveDependency, names, names),
    st.builds(CancelTask, names),
)


@given(st.lists(some_edits, max_size=5))
@settings(max_examples=300)
def test_no_batch_within_a_scope_changes_what_is_outside(some: list[Any]) -> None:
    scope = allowing_else("tasks=fix-* executors=argv devices=sandbox-* adds=2")
    made, batch = plan(), EditBatch(tuple(some))
    before = {node.id: (node.task, dict(node.parents), node.status) for node in made.nodes.values()}
    tried = trial(made, batch)
    assert {node.id: (node.task, dict(node.parents), node.status) for node in made.nodes.values()} == before
    if scope_violations([scope], "robot", batch, tried, made):
        return
    try:
        apply(made, batch, 2.0)
    except EditRejected:
        assert tried.violations
        return
    after = {node.id: (node.task, dict(node.parents), node.status) for node in made.nodes.values()}
    assert {name: after.get(name) for name in before if not name.startswith("fix-")} == {
        name: node for name, node in before.items() if not name.startswith("fix-")
    }
    new = [name for name in after if name not in before]
    assert len(new) <= 2
    for name in (name for name in after if after[name] != before.get(name)):
        task = after[name][0]
        assert name.startswith("fix-")
        if task != before.get(name, (None,))[0]:
            assert task.argv is not None
            assert str(task.device).startswith("sandbox-")


def test_without_the_trial_an_edit_reaches_what_it_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation: judged by the names in it, a removal with all that depends on it looks harmless."""
    monkeypatch.setattr(edit_rules, "_names", lambda change: (n for n in [change.task_id] if n == "fix-1"))
    assert outside("tasks=fix-*", RemoveTask("fix-1", dependents="remove")) == []


def test_groups_that_wait_for_their_lists_count_for_the_size_of_the_plan() -> None:
    """Otherwise an editor adds one small group after the other before the first gets its elements."""
    made, scope = plan(), allowing_else("size=12")
    for name, within in (("g", True), ("h", False)):
        batch = EditBatch((AddTask(group(name, 4, argv=["make"])),))
        assert (scope_violations([scope], "robot", batch, trial(made, batch), made) == []) is within
        apply(made, batch, 2.0)
    hidden = EditBatch((UpdateTask("h", foreach={"of": [], **(made.node("h").task.foreach or {})}),))
    apply(made, hidden, 3.0)  # a group with its list
    back = EditBatch((UpdateTask("h", foreach=group(most=4, argv=["make"]).foreach),))
    assert scope_violations([scope], "robot", back, trial(made, back), made)


templates = st.recursive(
    st.just({"argv": ["make"]}),
    lambda inner: st.builds(
        lambda most, template: {"foreach": {"from": "fetch", "template": template, "max": most}},
        st.integers(0, 4),
        inner,
    ),
    max_leaves=4,
)


@given(templates)
def test_a_group_never_becomes_more_tasks_than_it_counts_for(template: dict[str, Any]) -> None:
    batch = EditBatch((AddTask(Task.from_json({"id": "g", **template})),))
    task = batch.edits[0].task
    made = Constellation("p")
    made.add(Task("fetch"))
    made.begin(1.0)
    apply(made, EditBatch((*batch.edits, AddDependency("fetch", "g"))), 2.0)
    while True:
        groups = [node for node in made.nodes.values() if template_of(node.task) is not None]
        if not groups:
            break
        for node in groups:
            result = list("abcdefgh"[: (node.task.foreach or {})["max"]])
            apply(made, expansion(node.task, tuple(node.parents.values()), result), 3.0)
    assert len(made) - 1 == most_tasks(task) == tasks_added(batch)


def test_without_all_levels_a_group_in_a_group_executes_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outside("executors=argv adds=1", AddTask(NESTED))
    monkeypatch.setattr(edit_rules, "work_of", lambda task: islice(work_of(task), 2))
    assert outside("executors=argv", AddTask(NESTED)) == []
    monkeypatch.setattr(edit_rules, "most_tasks", lambda task: 1)
    assert outside("executors=argv adds=1", AddTask(NESTED)) == []


def test_without_the_comparison_of_the_work_a_secret_goes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_rules, "_same_work", lambda change: change.before is not None)
    assert outside("any", UpdateTask("deploy", shell="send $TOKEN")) == []


def test_without_parts_a_pattern_of_work_fits_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_rules, "work_fits", lambda task, patterns: fits(str(work_name(task)), patterns))
    sh = Task("x", argv=("./tools/../../../../bin/sh",))
    assert outside("work=./tools/*", AddTask(sh)) == []


def test_what_is_no_edit_is_left_to_the_rejection() -> None:
    assert outside("edits=cancel_task", "rm -r /") == []  # type: ignore[arg-type]
    with pytest.raises(EditRejected, match="not an edit"):
        apply(plan(), EditBatch(("rm -r /",)), 2.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (Task("x", call="time:time"), "time:time"),
        (Task("x", call=plan), f"{__name__}:plan"),
        (Task("x", argv=("make", "test")), "make"),
        (Task("x", shell="make test"), None),
        (Task("x"), None),
    ],
)
def test_the_name_of_what_a_task_executes(task: Task, name: str | None) -> None:
    assert work_name(task) == name


def test_the_lists_of_a_scope_are_tuples() -> None:
    assert EditScope(editors=["bot*"], edits=["add_task"]) == EditScope(editors=("bot*",), edits=("add_task",))
