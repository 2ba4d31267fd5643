"""Approval rules: which edits wait for a person, and which tasks they hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan.apply import check
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import ApprovalRule, approval_reasons
from asterism.core.plan.edit_trial import touched_tasks
from asterism.core.plan.edits import (
    EDITS,
    AddDependency,
    AddTask,
    CancelTask,
    EditBatch,
    EditWaits,
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
    WaitingEdit,
)
from asterism.core.plan.task import ACTIONS, Task
from asterism.core.record import replace


def plan() -> Constellation:
    made = Constellation("p")
    made.add(Task("a", shell="make"))
    made.add(Task("b", argv=("true",), device="lab-1"), "a")
    made.add(Task("c", call="time:time"), "b")
    made.add(Task("d"), "a")
    made.add(Task("dear", cost=9.0))
    made.begin(1.0)
    return made


def waits(rule: str, *edits: Any, author: str = "robot") -> bool:
    return bool(approval_reasons([ApprovalRule.parse(rule)], EditBatch(edits, author), plan()))


@pytest.mark.parametrize(
    ("rule", "edit", "expected"),
    [
        ("all", AddTask(Task("x")), True),
        ("destructive", AddTask(Task("x")), False),
        ("destructive", RemoveTask("d"), True),
        ("destructive", CancelTask("a"), True),
        ("destructive", RemoveDependency("a", "d"), True),
        ("edits=add_task", AddTask(Task("x")), True),
        ("edits=add_task", UpdateTask("d", priority=3), False),
        ("tasks=deploy-*", AddTask(Task("deploy-eu")), True),
        ("tasks=deploy-*", AddTask(Task("x")), False),
        ("tasks=d", AddDependency("b", "d"), True),
        ("tasks=b", AddDependency("b", "d"), False),
        ("tasks=d", UpdateDependency("a", "d", "failure"), True),
        ("executors=shell", AddTask(Task("x", shell="rm")), True),
        ("executors=shell", AddTask(Task("x", argv=("rm",))), False),
        ("executors=shell", UpdateTask("d", shell="rm"), True),  # as it will be
        ("executors=shell,http", UpdateTask("a", shell=None), True),  # as it is
        ("executors=shell", CancelTask("a"), True),
        ("devices=lab-*", RemoveTask("b", dependents="bridge"), True),
        ("devices=lab-*", UpdateTask("d", device="lab-2"), True),
        ("devices=lab-*", UpdateTask("d", priority=3), False),
        ("tasks=c", RemoveTask("a", dependents="remove"), True),  # what it removes without naming it
        ("tasks=c", RemoveTask("b", dependents="bridge"), True),  # whose dependencies it changes
        ("authors=robot", AddTask(Task("x")), True),
        ("authors=ann*", AddTask(Task("x")), False),
        ("edits=add_task executors=shell tasks=x", AddTask(Task("x", shell="rm")), True),
        ("edits=add_task executors=shell tasks=y", AddTask(Task("x", shell="rm")), False),
    ],
)
def test_which_edits_match_a_rule(rule: str, edit: Any, expected: bool) -> None:
    assert waits(rule, edit) is expected
    assert waits(rule, AddDependency("c", "d"), edit) is (expected or rule in ("tasks=d", "all"))


def test_a_dependency_of_a_task_of_the_same_batch_counts_for_that_task() -> None:
    new = AddTask(Task("x", shell="rm"))
    assert waits("edits=add_dependency executors=shell", new, AddDependency("a", "x"))


def test_an_edit_cannot_hide_behind_a_malformed_one() -> None:
    assert waits("destructive", "nonsense", UpdateTask("d", nonsense=1), RemoveTask("d"))
    assert not waits("destructive", "nonsense")


def test_a_reason_names_edit_and_rule() -> None:
    rules = [ApprovalRule.parse("edits=remove_task"), ApprovalRule()]
    assert approval_reasons(rules, EditBatch((RemoveTask("d"), AddTask(Task("x")))), plan()) == (
        "remove task 'd' (edits=remove_task)",
        "add task 'x' (all)",
    )


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ((AddTask(Task("x")),), ()),
        ((AddTask(Task("x")), AddDependency("x", "d")), ("d",)),
        ((RemoveTask("a", dependents="remove"),), ("a", "b", "d", "c")),
        ((RemoveTask("b", dependents="bridge"),), ("b", "c")),
        ((UpdateTask("c", priority=3), CancelTask("d"), RemoveTask("nobody")), ("c", "d")),
    ],
)
def test_which_tasks_an_edit_holds(edits: Any, expected: tuple[str, ...]) -> None:
    assert touched_tasks(EditBatch(edits), plan()) == expected


def test_a_running_task_is_not_held() -> None:
    made = plan()
    made.start(made.node("a"), "kitchen", 2.0)
    assert touched_tasks(EditBatch((CancelTask("a"),)), made) == ()


words = st.lists(st.text("abc*-", min_size=1, max_size=4), max_size=2).map(tuple)
rules = st.builds(
    ApprovalRule,
    st.lists(st.sampled_from(list(EDITS)), max_size=2).map(tuple),
    words,
    st.lists(st.sampled_from(ACTIONS), max_size=2).map(tuple),
    words,
    words,
)


@given(rules)
def test_a_rule_is_the_same_after_it_was_stored_and_written_down(rule: ApprovalRule) -> None:
    assert ApprovalRule.from_json(rule.to_json()) == rule
    assert ApprovalRule.parse(str(rule)) == rule


@given(st.lists(rules, max_size=3), st.lists(st.sampled_from([RemoveTask("d"), CancelTask("b"), AddTask(Task("x"))])))
@settings(max_examples=60)
def test_more_rules_or_more_edits_never_need_less_approval(some: list[ApprovalRule], edits: list[Any]) -> None:
    made = plan()
    for shorter in (some[:-1], some):
        fewer = bool(approval_reasons(shorter, EditBatch(tuple(edits[:-1])), made))
        assert fewer <= bool(approval_reasons(some, EditBatch(tuple(edits)), made))


@pytest.mark.parametrize(
    "text", ["", "nonsense", "edits=", "edits=fly", "executors=rocket", "tasks", "colour=red", "edits=add_task x"]
)
def test_what_is_not_a_rule(text: str) -> None:
    with pytest.raises(PlanError):
        ApprovalRule.parse(text)


@pytest.mark.parametrize("field", [{"tasks": "abc"}, {"tasks": [1]}, {"edits": [""]}])
def test_what_is_not_a_field_of_a_rule(field: Any) -> None:
    with pytest.raises(PlanError):
        ApprovalRule.from_json(field)


def test_a_waiting_edit_as_json() -> None:
    edit = WaitingEdit(3, EditBatch((RemoveTask("d"),), "robot", "tidy", 0), 1.0, 2.0, ("why",), ("d",), 7)
    assert WaitingEdit.from_json(edit.to_json()) == edit
    decided = edit.decided("refused", "ann", 5.0, "no")
    assert WaitingEdit.from_json(decided.to_json()) == decided


@pytest.mark.parametrize("edits", [(RemoveTask("a"),), (RemoveTask("d"), AddDependency("c", "a")), (RemoveTask("d"),)])
def test_a_check_says_what_apply_would_and_changes_nothing(edits: Any) -> None:
    made, same = plan(), plan()
    batch = EditBatch(edits)

    def violations(tried: Any) -> Any:
        try:
            tried()
        except EditRejected as rejected:
            return rejected.violations
        return None

    before = made.to_json()
    assert violations(lambda: check(made, batch, 2.0)) == violations(lambda: same.apply(batch, 2.0))
    assert made.to_json() == before


# -- cost, effects, and what a batch hides -----------------------------------------------------------------------------


GROUP = {"from": "a", "template": {"id": "x", "shell": "rm", "cost": 2.0, "device": "lab-9"}, "max": 3}
NESTED = {"from": "a", "template": {"foreach": GROUP}, "max": 4}


@pytest.mark.parametrize(
    ("rule", "edits", "expected"),
    [
        ("cost=5", [AddTask(Task("x", cost=5.0))], False),
        ("cost=5", [AddTask(Task("x", cost=5.1))], True),
        ("cost=5", [AddTask(Task("x", cost=3.0)), AddTask(Task("y", cost=3.0))], True),  # together
        ("cost=5", [UpdateTask("d", cost=9.0)], True),
        ("cost=5", [UpdateTask("c", cost=0.0, call="time:sleep")], False),
        ("cost=5", [UpdateTask("dear", cost=0.0, shell="make all")], True),  # its cost before
        ("cost=5", [RemoveTask("dear"), AddTask(Task("dear", shell="make all"))], True),
        ("cost=5", [RemoveTask("dear")], False),
        ("cost=5", [CancelTask("d")], False),
        ("cost=5", [AddTask(Task("x", foreach=GROUP))], True),  # as many elements as it may have
        ("cost=6", [AddTask(Task("x", foreach=GROUP))], False),
        ("effects=spends", [AddTask(Task("x", effects=frozenset({"spends"})))], True),
        ("effects=spends", [AddTask(Task("x", shell="rm -r /"))], False),
        ("effects=deletes", [AddTask(Task("x", shell="rm -r /"))], True),
        ("effects=deletes", [AddTask(Task("x", shell="cd /tmp&&/bin/rm x"))], True),
        ("effects=deletes", [AddTask(Task("x", argv=("sh", "-c", "rm x")))], True),
        ("effects=deletes", [AddTask(Task("x", argv=("kubectl", "delete", "pod")))], True),
        ("effects=deletes", [AddTask(Task("x", argv=("echo", "warm")))], False),
        ("effects=deletes", [AddTask(Task("x", call="shop:clear", effects=frozenset({"deletes"})))], True),
        ("effects=deletes", [AddTask(Task("x", http={"url": "https://a/", "method": "DELETE"}))], True),
        ("effects=deletes", [AddTask(Task("x", http={"url": "https://a/delete"}))], False),
        ("effects=deletes", [AddTask(Task("x", argv=("{c}", "-rf", "x"), inputs={"c": "rm"}))], True),
        ("effects=deletes", [AddTask(Task("x", argv=("{c}", "x"), inputs={"c": "ls"}))], False),
        ("effects=deletes", [AddTask(Task("x", argv=("{c}", "x"), inputs={"c": {"from": "a"}}))], True),
        ("effects=deletes", [AddTask(Task("x", argv=("ls", "{c}"), inputs={"c": {"from": "a"}}))], False),
        ("effects=deletes", [AddTask(Task("x", argv=("sudo", "{c}"), inputs={"c": {"from": "a"}}))], True),
        ("effects=deletes", [AddTask(Task("x", http={"url": "https://a/", "method": "{m}"}))], True),
        (
            "effects=deletes",
            [AddTask(Task("x", http={"url": "https://a/", "method": "{m}"}, inputs={"m": "delete"}))],
            True,
        ),
        ("effects=deletes", [AddTask(Task("x", http={"url": "https://a/{b}", "method": "POST"}))], False),
        ("effects=deletes", [AddTask(Task("x", shell="$C x", env={"C": "rm"}))], True),
        ("effects=deletes", [AddTask(Task("x", shell="${C} x", env={"C": "{item}"}))], True),
        ("effects=deletes", [AddTask(Task("x", shell="$C x", env={"C": "ls"}))], False),
        ("effects=deletes", [AddTask(Task("x", shell="$C x", env={"C": "rm"}, inputs={"C": "ls"}))], True),
        ("effects=deletes", [AddTask(Task("x", shell='cd y && A=1 "$ASTERISM_INPUT_C" x'))], True),
        ("effects=deletes", [AddTask(Task("x", shell="echo $HOME {c}; { ls; }"))], False),
        ("effects=deletes", [AddTask(Task("x", argv=("grep", "a|$b")))], False),
        ("effects=deletes", [AddTask(Task("x", foreach={"from": "a", "template": {"argv": ["{item}"]}}))], True),
        ("effects=spends,deletes", [UpdateTask("d", effects={"spends"})], True),
        ("executors=shell", [AddTask(Task("x", foreach=GROUP))], True),  # what its elements execute
        ("executors=shell", [AddTask(Task("x", foreach=NESTED))], True),  # and the elements of these
        ("effects=deletes", [AddTask(Task("x", foreach=NESTED))], True),
        ("cost=23", [AddTask(Task("x", foreach=NESTED))], True),
        ("cost=24", [AddTask(Task("x", foreach=NESTED))], False),
        ("cost=24", [AddTask(Task("x", foreach={**NESTED, "max": 10**500}))], True),
        ("devices=lab-9", [AddTask(Task("x", foreach=GROUP))], True),
        ("devices=prod-*", [AddTask(Task("x", foreach={"from": "a", "template": {"device": "{item}"}}))], True),
        ("devices=prod-*", [AddTask(Task("x", needs=["deploy"]))], False),  # documented
        ("executors=shell", [UpdateTask("c", call=None), UpdateTask("c", shell="rm")], True),  # in two steps
        (
            "edits=remove_task tasks=d",
            [AddTask(Task("x")), AddDependency("x", "d"), RemoveTask("x", dependents="remove")],
            True,  # through a dependency of the same batch
        ),
    ],
)
def test_rules_judge_what_a_batch_does(rule: str, edits: list[Any], expected: bool) -> None:
    assert waits(rule, *edits) is expected


def test_a_rule_about_authors_matches_the_editor_whatever_name_it_signs_with() -> None:
    rule, batch = [ApprovalRule.parse("authors=robot")], EditBatch((AddTask(Task("x")),), "ann")
    assert approval_reasons(rule, batch, plan(), editor="robot")
    assert not approval_reasons(rule, batch, plan())


@pytest.mark.parametrize("text", ["cost=x", "cost=1,2", "cost=-1", "cost=inf", "effects=fly"])
def test_what_is_not_a_cost_or_an_effect(text: str) -> None:
    with pytest.raises(PlanError):
        ApprovalRule.parse(text)


def test_a_rule_with_cost_and_effects_is_stored_and_written_down() -> None:
    rule = ApprovalRule(effects=("spends",), cost=2.5)
    assert str(rule) == "effects=spends cost=2.5"
    assert ApprovalRule.parse(str(rule)) == ApprovalRule.from_json(rule.to_json()) == rule


def test_an_edit_that_waits_says_for_what() -> None:
    reasons = ("cancel task 'a' (destructive)", "cancel task 'b' (destructive)")
    waiting = WaitingEdit(3, EditBatch((CancelTask("a"), CancelTask("b"))), 1.0, 9.0, reasons, ("a", "b"))
    assert str(EditWaits(waiting)) == f"the edit waits for approval 3: {reasons[0]}; {reasons[1]}"


def test_an_empty_edit_passes_the_check() -> None:
    checked = plan()
    check(checked, EditBatch(()), 2.0)
    assert checked.version == 0


def test_a_waiting_edit_survives_json_whether_it_was_escalated_or_not() -> None:
    waiting = WaitingEdit(3, EditBatch((CancelTask("a"),)), 1.0, 9.0, ("why",), ("a",))
    for edit in (waiting, replace(waiting, escalated_at=5.0)):
        assert WaitingEdit.from_json(edit.to_json()) == edit
