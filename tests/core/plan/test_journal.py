"""Replay of the recorded steps gives the same plan and the same lock, to the byte."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import precondition, rule

from asterism.core.errors import EditRejected, InvalidTransition, NotJson, Violation
from asterism.core.plan import edits
from asterism.core.plan.assignment_lock import AssignmentLock, EditCycle, edit_on_all
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.edits import EditBatch, RemoveTask
from asterism.core.plan.journal import (
    SCHEMA,
    Begin,
    Close,
    Decide,
    Edit,
    ErrorText,
    Finish,
    Locate,
    Lose,
    Note,
    Open,
    RecordedConstellation,
    RecordedLock,
    Reviewed,
    Start,
    Step,
    Tried,
    UnreadableJournal,
    Wait,
    check_schema,
    decode_steps,
    lock_from_json,
    lock_to_json,
    replay,
)
from asterism.core.plan.status import COMPLETED, FAILED
from asterism.core.plan.task import Task
from asterism.core.record import decode, encode, encode_json, replace
from tests.core.plan.test_plan_machine import LivingPlan, check, evaluate


def picture(plan: Constellation, lock: AssignmentLock) -> str:
    return json.dumps([plan.to_json(), lock_to_json(lock)])


class RecordedPlan(LivingPlan):
    """Everything that may happen to a plan, recorded, and taken again from the beginning or from a snapshot."""

    Plan = RecordedConstellation
    Lock = RecordedLock

    def before(self) -> None:
        self.first = picture(self.plan, self.lock)
        self.steps: list[bytes] = []
        assert isinstance(self.plan, RecordedConstellation)
        self.plan.record = lambda step: self.steps.append(encode_json(step))

    def again(self) -> tuple[Constellation, AssignmentLock]:
        """Made from what was kept, and from that alone."""
        data, waiting = json.loads(self.first)
        plan = RecordedConstellation.from_json(data)
        plan.evaluate, plan.check_condition = evaluate, check
        lock = RecordedLock(plan, self.lock.policy, self.lock.max_cycles)
        lock_from_json(lock, waiting)
        replay(plan, lock, decode_steps(list(map(json.loads, self.steps))))
        return plan, lock

    @rule()
    @precondition(lambda self: hasattr(self, "first"))
    def look_back(self) -> None:
        assert picture(*self.again()) == picture(self.plan, self.lock)

    @rule()
    @precondition(lambda self: hasattr(self, "first"))
    def take_a_snapshot(self) -> None:
        self.first, self.steps = picture(self.plan, self.lock), []

    @rule()
    @precondition(lambda self: hasattr(self, "first") and self.lock.idle)
    def get_stuck(self) -> None:
        self.lock.open_stuck(self.tick())

    @rule()
    @precondition(lambda self: self.lock.cycles)
    def reject(self) -> None:
        self.lock.record_rejection(next(iter(self.lock.cycles.values())))

    @rule()
    @precondition(lambda self: any(node.device for node in self.settled_running()))
    def lose_a_device(self) -> None:
        self.plan.count_loss(next(node for node in self.settled_running() if node.device))

    @rule()
    @precondition(lambda self: any(node.device for node in self.settled_running()))
    def find_out_where_one_is(self) -> None:
        self.plan.set_device(next(node for node in self.settled_running() if node.device), f"attic {self.tick()}")

    @rule()
    @precondition(lambda self: any(node.device for node in self.settled_running()))
    def hear_how_often_one_was_tried(self) -> None:
        node = next(node for node in self.settled_running() if node.device)
        self.plan.set_attempts(node, node.attempts + 2, node.losses + 1)

    @rule()
    @precondition(lambda self: self.settled_running())
    def cancel_one(self) -> None:
        self.plan.cancel(self.settled_running()[0], self.tick(), "enough")

    @rule()
    @precondition(lambda self: hasattr(self, "first"))
    def say_something(self) -> None:
        self.plan.note(self.tick(), "said", None, "something")

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "first"):
            self.look_back()


TestRecordedPlan = RecordedPlan.TestCase
TestRecordedPlan.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def recorded(*ids: str) -> tuple[RecordedConstellation, RecordedLock, list[Any]]:
    plan = RecordedConstellation("nightly")
    for id in ids:
        plan.add(Task(id))
    steps: list[Any] = []
    plan.record = steps.append
    return plan, RecordedLock(plan, edit_on=edit_on_all), steps


def test_each_step_is_one_entry() -> None:
    plan, lock, steps = recorded("a", "b")
    plan.begin(1.0)
    plan.start(plan.queue.pop(next(iter(plan.queue.lanes))), "kitchen", 2.0)
    lock.finish(plan.node("a"), FAILED, 3.0, None, OSError("no disk"))
    cycle = lock.open(4.0)
    assert cycle is not None
    plan.apply(EditBatch((edits.CancelTask("b", "not now"),), "ann"), 5.0)
    lock.close(cycle, 6.0, "accepted")
    plan.close(7.0)
    batch = {
        "edits": [{"op": "cancel_task", "task_id": "b", "reason": "not now"}],
        **{"author": "ann", "reason": "", "base_version": None, "triggers": []},
    }
    assert steps == [
        Begin(1.0),
        Start("a", "kitchen", 2.0),
        Finish("a", FAILED, 3.0, None, ErrorText("OSError", "no disk"), True),
        Open(4.0),
        Edit(batch, 5.0),
        Reviewed(1, 6.0, "accepted"),
        Close(7.0),
    ]
    assert encode(steps[1]) == {"step": "start", "task": "a", "device": "kitchen", "at": 2.0}
    assert decode_steps(encode(steps)) == steps


def test_a_plan_that_nobody_keeps_is_a_plan_like_any_other() -> None:
    plan = RecordedConstellation("nightly")
    plan.add(Task("a"))
    plan.begin(1.0)
    assert plan.story()[0].what == "began"


def test_an_edit_is_heard_of_when_it_is_recorded() -> None:
    plan, _, steps = recorded("a")
    heard: list[int] = []
    plan.on_applied = lambda applied: heard.append(len(steps))
    plan.edit([edits.AddTask(Task("b"))])
    assert heard == [1]


def test_a_rejected_edit_leaves_no_entry() -> None:
    plan, _, steps = recorded("a")
    plan.begin(1.0)
    with pytest.raises(EditRejected):
        plan.apply(EditBatch((edits.RemoveTask("nobody"),)), 2.0)
    assert steps == [Begin(1.0)]


def a_lambda() -> Callable[[], None]:
    return lambda: None


def test_what_cannot_be_kept_is_not_accepted() -> None:
    plan, lock, steps = recorded("a")
    plan.begin(1.0)
    with pytest.raises(EditRejected, match=r"the plan is kept in a store, and task 'b': .* no import path"):
        plan.apply(EditBatch((edits.AddTask(Task("b", call=a_lambda())),)), 2.0)
    assert "b" not in plan
    plan.start(plan.queue.pop(next(iter(plan.queue.lanes))), "kitchen", 2.0)
    with pytest.raises(NotJson, match="the result of task 'a' is a set"):
        lock.finish(plan.node("a"), COMPLETED, 3.0, {1})
    assert plan["a"].status == "running"
    assert len(steps) == 2


def test_nothing_to_open_is_no_entry() -> None:
    plan, lock, steps = recorded("a")
    plan.begin(1.0)
    assert lock.open(2.0) is None
    lock.progress_at_stuck = 0
    assert lock.open_stuck(2.0) is None
    assert steps == [Begin(1.0)]


def test_cycles_go_on_counting_after_a_restart() -> None:
    plan, lock, _ = recorded("a")
    plan.begin(1.0)
    plan.start(plan.queue.pop(next(iter(plan.queue.lanes))), "kitchen", 2.0)
    lock.finish(plan.node("a"), COMPLETED, 3.0)
    cycle = lock.open(4.0)
    assert cycle is not None
    again = RecordedLock(RecordedConstellation.from_json(plan.to_json()), edit_timeout=10.0)
    lock_from_json(again, lock_to_json(lock))
    [reopened] = again.cycles.values()
    assert (reopened.id, reopened.ends, reopened.expires_at) == (1, (("a", 1),), 14.0)
    again.close(reopened, 5.0, "accepted")
    again.edit_on = edit_on_all
    later = again.open_stuck(6.0)
    assert later is not None
    assert later.id == 2


@pytest.mark.parametrize(
    "step",
    [
        Start("nobody", "kitchen", 1.0),
        Finish("a", COMPLETED, 1.0),
        Reviewed(7, 1.0, "accepted"),
    ],
    ids=str,
)
def test_a_step_that_cannot_be_taken_is_named(step: Step) -> None:
    plan, lock, _ = recorded("a")
    with pytest.raises(UnreadableJournal, match=r"step 1 .* cannot be replayed"):
        replay(plan, lock, [Note(1.0, "said"), step])


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"step": "dance", "at": 1.0}, "Invalid value 'dance'"),
        ({"step": "begin"}, "the key '[1].at' is missing"),
        ({"step": "begin", "at": "noon"}, "[1].at must be a number, not 'noon'"),
        ({"step": "finish", "task": "a", "at": 1.0, "status": "asleep"}, "[1].status is not valid"),
        ({"begin": 1.0}, "[1] is not valid"),
        (["begin", 1.0], "[1] must be a mapping, not a list"),
    ],
    ids=str,
)
def test_a_step_that_cannot_be_read_is_named(step: Any, problem: str) -> None:
    with pytest.raises(UnreadableJournal, match=re.escape(problem)):
        decode_steps([{"step": "note", "at": 1.0, "what": "said"}, step])


def test_a_snapshot_names_the_place_of_a_result_that_a_store_keeps() -> None:
    plan, _, steps = recorded("a", "b")
    plan.begin(1.0)
    for node in list(plan.nodes.values()):
        plan.start(plan.queue.pop(next(iter(plan.queue.lanes))), "kitchen", 2.0)
        plan.finish(node, COMPLETED, 3.0, {"rows": [node.id]})
    place = {"$blob": "ab", "size": 1}
    again, other, _ = recorded("a", "b")
    replay(again, other, [replace(step, stored=place) if step is steps[2] else step for step in steps])
    snapshot = again.take_snapshot()
    snapshot.copy_nodes()
    first, second = json.loads("".join(snapshot.chunks()))["tasks"]
    assert (first["stored"], "value" in first) == (place, False)
    assert ("stored" in second, second["value"]) == (False, {"rows": ["b"]})
    again.node("a").value = {"rows": ["of another attempt"]}
    later = again.take_snapshot()
    later.copy_nodes()
    assert "of another attempt" in "".join(later.chunks())


def test_an_answer_that_is_rejected_after_its_cycle_was_closed_leaves_a_journal_that_can_be_read() -> None:
    plan, lock, steps = recorded("a")
    first = plan.to_json()
    plan.begin(1.0)
    plan.start(plan.queue.pop(next(iter(plan.queue.lanes))), "kitchen", 2.0)
    lock.finish(plan.node("a"), COMPLETED, 3.0)
    cycle = lock.open(4.0)
    assert cycle is not None
    lock.close(cycle, 5.0, "timeout")
    lock.record_rejection(cycle)
    again = RecordedConstellation.from_json(first)
    replay(again, RecordedLock(again), steps)
    assert again.to_json() == plan.to_json()


def test_where_a_task_is_done_and_how_often_it_was_tried_is_recorded_while_it_runs() -> None:
    plan, lock, steps = recorded("a")
    plan.begin(1.0)
    with pytest.raises(InvalidTransition):
        plan.set_device(plan.node("a"), "kitchen")
    with pytest.raises(InvalidTransition):
        plan.set_attempts(plan.node("a"), 3, 1)
    plan.start(plan.queue.pop(next(iter(plan.queue.lanes))), "fleet", 2.0)
    plan.set_device(plan.node("a"), "kitchen")
    assert (plan.node("a").device, steps[-1]) == ("kitchen", Locate("a", "kitchen"))
    plan.set_attempts(plan.node("a"), 3, 1)
    assert (plan.node("a").attempts, plan.node("a").losses) == (3, 1)
    assert steps[-1] == Tried("a", 3, 1)
    again = RecordedConstellation("nightly")
    again.add(Task("a"))
    replay(again, lock, steps)
    assert again.to_json() == plan.to_json()


def test_a_lost_device_is_counted_and_recorded() -> None:
    plan, lock, steps = recorded("a")
    plan.begin(1.0)
    plan.start(plan.queue.pop(next(iter(plan.queue.lanes))), "kitchen", 2.0)
    plan.count_loss(plan.node("a"))
    plan.retry(plan.node("a"), 3.0, "it vanished")
    plan.start(plan.node("a"), "attic", 4.0)
    plan.release(plan.node("a"), 5.0, "it left")
    assert (plan.node("a").losses, steps[2]) == (1, Lose("a"))
    again = RecordedConstellation("nightly")
    again.add(Task("a"))
    replay(again, lock, steps)
    assert again.to_json() == plan.to_json()


def test_a_rejected_edit_is_told_and_not_recorded() -> None:
    plan, _, steps = recorded("a")
    told: list[Any] = []
    plan.on_rejected = lambda version, batch, error: told.append((version, batch, error))
    batch = EditBatch((RemoveTask("z"),))
    with pytest.raises(EditRejected) as rejected:
        plan.apply(batch, 2.0)
    assert (told, steps) == ([(0, batch, rejected.value)], [])


def test_an_edit_that_is_rejected_from_outside_is_told_and_not_recorded() -> None:
    plan, _, steps = recorded("a")
    told: list[Any] = []
    batch, violations = EditBatch((RemoveTask("a"),)), (Violation(0, "scope", "not within its scope"),)
    with pytest.raises(EditRejected, match="not within its scope"):
        plan.reject(batch, violations)
    plan.on_rejected = lambda version, batch, error: told.append((version, batch, error.violations))
    with pytest.raises(EditRejected, match="not within its scope"):
        plan.reject(batch, violations)
    assert (told, steps) == ([(0, batch, violations)], [])


@pytest.mark.parametrize("cost", [None, EditorCost(calls=2)])
def test_a_closed_cycle_is_written_and_read(cost: EditorCost | None) -> None:
    plan, lock, _ = recorded("a")
    plan.begin(1.0)
    plan.start(plan.queue.pop(next(iter(plan.queue.lanes))), "kitchen", 2.0)
    lock.finish(plan.node("a"), COMPLETED, 2.0)
    cycle = lock.open(3.0)
    assert cycle is not None
    assert "outcome" not in cycle.to_json()
    cycle.cost = cost
    lock.close(cycle, 4.0, "accepted")
    again = decode(EditCycle, json.loads(json.dumps(cycle.to_json())))
    assert (again.ends, again.closed_at, again.outcome, again.cost) == (cycle.ends, 4.0, "accepted", cost)


@pytest.mark.parametrize("record", [{"schema": SCHEMA + 1}, {}, None, []])
def test_a_record_of_another_schema_is_refused(record: Any) -> None:
    check_schema({"schema": SCHEMA}, "plan/nightly")
    with pytest.raises(UnreadableJournal, match=r"^plan/nightly is damaged, or was written by another version"):
        check_schema(record, "plan/nightly")


def test_a_step_without_a_kind_cannot_be_replayed() -> None:
    plan = RecordedConstellation()
    with pytest.raises(NotImplementedError):
        Step().replay(plan, RecordedLock(plan))


def test_a_decision_is_replayed() -> None:
    plan = RecordedConstellation.of(Constellation("p"))
    plan.add(Task("a", approval={"by": ["ops"]}))
    replay(plan, RecordedLock(plan), [Begin(0.0), Wait("a", 1.0), Decide("a", 2.0, "approved", "ann")])
    assert any("ann" in entry.why for entry in plan.story())
