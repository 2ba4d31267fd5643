"""Tasks that wait for the world: their rules, their steps in plan and journal, and the choice of an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.core.errors import InvalidTask, InvalidTransition, PlanError
from asterism.core.plan import edits
from asterism.core.plan.assignment_lock import AssignmentLock
from asterism.core.plan.awaited import (
    KeptEvent,
    WaitFailed,
    awaited_plan,
    awaited_text,
    deadline,
    event_for,
    event_name_problem,
    moment,
    timeout_error,
    wait_text,
    with_zone,
)
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.explain import why
from asterism.core.plan.journal import RecordedConstellation, RecordedLock, replay
from asterism.core.plan.status import COMPLETED
from asterism.core.plan.task import Task
from tests.laboratory.plan_invariants import check_invariants

EVENT: Mapping[str, Any] = {"event": "payment/17"}
BERLIN = ZoneInfo("Europe/Berlin")


def waiting(*further: Task, make: type[Constellation] = Constellation) -> Constellation:
    """A plan that has begun, whose task ``a`` waits."""
    plan = make("p")
    plan.add(Task("a", wait_for=EVENT))
    for task in further:
        plan.add(task)
    plan.begin(0.0)
    plan.wait(plan.node("a"), 1.0)
    return plan


# -- the field of a task -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait", "problem"),
    [
        ({}, "wait_for: it has one of event, until, plan"),
        ({"event": "a", "until": "2026-11-18"}, "wait_for: it has one of event, until, plan"),
        ({"until": "2026-11-18", "timeout": 5}, "wait_for: it has no field timeout beside until"),
        ({"event": "a", "task": "b"}, "wait_for: it has no field task beside event"),
        ({"plan": "a"}, "wait_for: it needs task, to wait for a task of another plan"),
        ({"plan": 5, "task": "b"}, 'wait_for.plan must be text; write it in quotes: "5"'),
        ({"plan": "a", "task": "b", "tick": 5}, 'wait_for.tick must be text; write it in quotes: "5"'),
        ({"event": "a", "timeout": 0}, "wait_for.timeout must be above 0, not 0"),
        ({"event": "a", "timeout": True}, "wait_for.timeout must be a number, not true"),
        ({"event": "a", "timeout": "6h"}, "wait_for.timeout must be a number, not '6h'"),
        ({"event": " a"}, "wait_for: the name of an event has 1 to 200 printable characters, and no space at its ends"),
        (
            {"until": "soon"},
            "wait_for: until: 'soon' is not a time (examples: 2026-11-18T09:00, 2026-11-18T09:00+01:00)",
        ),
        ({"until": 5}, 'wait_for.until must be text; write it in quotes: "5"'),
        ({"until": "1066-10-14"}, "wait_for: until: '1066-10-14' is not a time between the years 1970 and 9000"),
        ("payment", "wait_for must be a mapping, not 'payment'"),
    ],
)
def test_a_wait_that_cannot_be(wait: Any, problem: str) -> None:
    with pytest.raises(InvalidTask) as error:
        Task("a", wait_for=wait)
    assert [found.text for found in error.value.problems] == [problem]


def test_a_task_that_waits_has_nothing_that_a_device_executes() -> None:
    with pytest.raises(InvalidTask, match="is executed by no device, so it cannot have shell, retries, revocable"):
        Task("a", wait_for={"until": "2026-11-18"}, shell="true", retries=1, revocable=True)


def test_a_placeholder_is_judged_when_it_has_its_value() -> None:
    task = Task("a", wait_for={"until": "{tick.date}T09:00"})
    with pytest.raises(WaitFailed, match=r"'{tick.date}T09:00' is not a time"):
        deadline(task.wait_for or {}, 0.0)


def test_the_data_of_an_event_are_untrusted() -> None:
    assert Task("a", wait_for=EVENT).untrusted
    assert Task("a", wait_for=EVENT).changed({"untrusted": False}).untrusted
    assert not Task("a", wait_for={"until": "2026-11-18"}).untrusted


@pytest.mark.parametrize("wait", [EVENT, {"until": "2026-11-18T09:00"}, {"plan": "b", "task": "c", "timeout": 60.0}])
def test_a_task_that_waits_is_written_and_read(wait: Any) -> None:
    task = Task("a", wait_for=wait)
    assert Task.from_json(task.to_json()) == task


# -- texts and times ---------------------------------------------------------------------------------------------------


def test_texts_say_what_is_awaited() -> None:
    assert wait_text({**EVENT, "timeout": 21600}) == "for event 'payment/17', at most 6h"
    assert wait_text({"until": "2026-11-18"}) == "until 2026-11-18"
    assert awaited_text({"plan": "n", "task": "t", "tick": "x"}) == "task 't' of plan 'n' at x"
    assert str(timeout_error({**EVENT, "timeout": 1.5})) == "event 'payment/17' did not arrive within 1.5s"
    assert str(timeout_error({"plan": "n", "task": "t", "timeout": 60})).endswith("did not complete within 1m")
    assert event_name_problem(5) is not None


def test_a_time_is_in_the_zone_of_the_tick_on_both_sides_of_a_change_of_clocks() -> None:
    assert with_zone("2026-03-28T09:00", BERLIN) == "2026-03-28T09:00:00+01:00"
    assert with_zone("2026-03-29T09:00", BERLIN) == "2026-03-29T09:00:00+02:00"
    assert with_zone("2026-03-29T09:00Z", BERLIN) == "2026-03-29T09:00:00+00:00"
    skipped, repeated = with_zone("2026-03-29T02:30", BERLIN), with_zone("2026-10-25T02:30", BERLIN)
    assert moment(skipped, BERLIN) == moment("2026-03-29T03:30+02:00", BERLIN)
    assert repeated == "2026-10-25T02:30:00+02:00"  # the first of the two
    assert with_zone("soon", BERLIN) == "soon"


def test_a_wait_ends_at_its_time_or_after_its_timeout() -> None:
    assert deadline({"until": "1970-01-01T00:01"}, 5.0) == 60.0
    assert deadline({**EVENT, "timeout": 60}, 5.0) == 65.0
    assert deadline(EVENT, 5.0) is None


def test_the_plan_of_a_tick_has_its_name() -> None:
    assert awaited_plan({"plan": "n", "task": "t"}) == "n"
    assert awaited_plan({"plan": "n", "task": "t", "tick": "2026-11-18T03:00+01:00"}) == "n-20261118T020000Z"
    with pytest.raises(WaitFailed):
        awaited_plan({"plan": "n", "task": "t", "tick": "{tick}"})


# -- steps -------------------------------------------------------------------------------------------------------------


def test_a_wait_leaves_the_queue_and_is_no_work() -> None:
    plan = waiting()
    node = plan.node("a")
    assert (node.awaits, plan.queue.has_ready(), str(node.status)) == (True, False, "pending")
    plan.requeue(node)
    assert node.entry is None
    check_invariants(plan)
    plan.start(node, "here", 5.0)
    plan.finish(node, COMPLETED, 5.0, {"amount": 1})
    assert [entry.what for entry in plan.story("a")] == ["waits", "started", "completed"]
    assert not node.awaits
    check_invariants(plan)


def test_only_a_ready_task_with_wait_for_waits() -> None:
    plan = waiting(Task("b"))
    for name in ("a", "b"):
        if name == "a":
            plan.start(plan.node("a"), "here", 2.0)
        with pytest.raises(InvalidTransition, match="wait"):
            plan.wait(plan.node(name), 2.0)


def test_why_says_what_is_awaited_and_since_when() -> None:
    plan = waiting()
    answer = why(plan, AssignmentLock(plan), plan.node("a"), None, 11.0)
    assert str(answer) == "a is waiting: it waits for event 'payment/17'; it has waited 10.0 s"
    assert (answer.holders[0].kind, answer.holders[0].name) == ("event", "payment/17")


def test_an_edit_changes_a_wait_and_its_undo_changes_it_back() -> None:
    plan = waiting()
    applied = plan.apply(EditBatch((edits.UpdateTask("a", wait_for={"event": "other"}),)), 5.0)
    node = plan.node("a")
    assert (node.awaited_since, node.entry is not None) == (None, True)
    plan.wait(plan.queue.pop(next(iter(plan.queue.lanes))), 6.0)
    assert node.awaited_since == 6.0
    assert applied.inverse is not None
    plan.apply(applied.inverse, 7.0)
    assert (node.task.wait_for, node.awaited_since) == (EVENT, None)
    check_invariants(plan)


def test_another_field_of_a_task_changes_and_it_goes_on_waiting() -> None:
    plan = waiting()
    plan.apply(EditBatch((edits.UpdateTask("a", description="money", priority="high"),)), 5.0)
    assert plan.node("a").awaited_since == 1.0
    check_invariants(plan)


def test_a_wait_that_comes_to_depend_on_others_is_none_any_more() -> None:
    plan = waiting(Task("b"))
    plan.apply(EditBatch((edits.AddDependency("b", "a"),)), 5.0)
    assert plan.node("a").awaited_since is None
    check_invariants(plan)


def test_a_task_that_waits_becomes_an_ordinary_one() -> None:
    plan = waiting()
    plan.apply(EditBatch((edits.UpdateTask("a", wait_for=None, shell="true"),)), 5.0)
    assert plan.node("a").entry is not None
    check_invariants(plan)


def test_a_retry_of_the_plan_waits_again() -> None:
    plan = waiting()
    plan.start(plan.node("a"), "here", 2.0)
    plan.finish(plan.node("a"), COMPLETED, 2.0)
    plan.close(3.0)
    plan.reopen(["a"], 4.0, "again")
    assert (plan.node("a").awaited_since, plan.queue.has_ready()) == (None, True)


@pytest.mark.parametrize("role", ["set-up", "teardown"])
def test_a_wait_is_neither_a_set_up_nor_a_teardown(role: str) -> None:
    plan = Constellation("p")
    plan.add(Task("up", wait_for=EVENT if role == "set-up" else None))
    with pytest.raises(PlanError, match="waits for the world, so it can be neither a set-up nor a teardown"):
        plan.add(Task("down", wait_for=EVENT if role == "teardown" else None), teardown="up")


def test_a_journal_replays_waits_and_taint_to_the_byte() -> None:
    plan = RecordedConstellation("p")
    plan.add(Task("a", wait_for={"plan": "other", "task": "b"}))
    copy = RecordedConstellation.from_json(plan.to_json())
    steps: list[Any] = []
    plan.record = steps.append
    plan.begin(0.0)
    snapshot = plan.take_snapshot()
    plan.wait(plan.node("a"), 1.0)
    snapshot.copy_nodes()
    waited = RecordedConstellation.from_json(plan.to_json())
    assert (waited.node("a").awaited_since, waited.queue.has_ready()) == (1.0, False)
    plan.add_taint(plan.node("a"), 2.0, "of plan 'other'")
    plan.start(plan.node("a"), "here", 2.0)
    plan.finish(plan.node("a"), COMPLETED, 2.0, 5)
    replay(copy, RecordedLock(copy), steps)
    assert copy.to_json() == plan.to_json()
    assert copy.tainted == {"a"}


# -- which event -------------------------------------------------------------------------------------------------------

events = st.lists(st.floats(0, 100), max_size=6).map(
    lambda times: [KeptEvent(number, at) for number, at in enumerate(sorted(times), 1)]
)
takers = st.dictionaries(st.integers(1, 6), st.sets(st.sampled_from("pqr"), min_size=1), max_size=6)


def test_a_later_plan_gets_the_first_event_that_no_plan_of_its_file_has_taken() -> None:
    sent = [KeptEvent(1, 10.0), KeptEvent(2, 20.0), KeptEvent(3, 30.0)]
    assert event_for(sent, {1: {"q"}}, "p", 50.0) == sent[1]
    assert event_for(sent, {1: {"q"}, 2: {"q"}}, "p", 25.0) == sent[2]
    assert event_for(sent[:1], {1: {"q"}}, "p", 50.0) is None


@given(events, takers, st.floats(0, 100))
def test_a_plan_gets_the_event_that_is_its_own(
    sent: list[KeptEvent], taken: dict[int, set[str]], began_at: float
) -> None:
    event = event_for(sent, taken, "p", began_at)
    mine = [candidate for candidate in sent if "p" in taken.get(candidate.number, ())]
    if mine:
        assert event == mine[0]  # all tasks of a plan get the same one
    elif event is None:
        assert all(candidate.at < began_at and taken.get(candidate.number) for candidate in sent)
    else:
        assert event.at >= began_at or not taken.get(event.number)
        older = [candidate for candidate in sent if candidate.number < event.number]
        assert all(candidate.at < began_at and taken.get(candidate.number) for candidate in older)
