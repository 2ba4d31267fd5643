"""A snapshot of a running plan shows it as it was at one instant, to the byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from asterism.core.plan import journal, plan_codec
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, EditBatch, UpdateTask
from asterism.core.plan.journal import RecordedConstellation, RecordedLock
from asterism.core.plan.plan_codec import PlanSnapshot
from asterism.core.plan.status import COMPLETED
from asterism.core.plan.task import Task
from tests.core.plan.test_journal import RecordedPlan


def text(plan: Constellation) -> str:
    return json.dumps(plan.to_json(), separators=(",", ":"))


class FrozenPlan(RecordedPlan):
    """Everything that may happen to a plan, while it is being taken and after that."""

    snapshot: PlanSnapshot | None = None
    as_it_was = ""

    @rule()
    @precondition(lambda self: hasattr(self, "first") and self.snapshot is None)
    def take_snapshot(self) -> None:
        assert isinstance(self.plan, RecordedConstellation)
        self.as_it_was, self.snapshot = text(self.plan), self.plan.take_snapshot()

    @rule(most=st.integers(1, 2))
    @precondition(lambda self: self.snapshot is not None and not self.snapshot.complete)
    def take(self, most: int) -> None:
        assert self.snapshot is not None
        self.snapshot.copy_nodes(most)

    @rule()
    @precondition(lambda self: self.snapshot is not None and self.snapshot.complete)
    def write(self) -> None:
        assert self.snapshot is not None
        assert "".join(self.snapshot.chunks()) == self.as_it_was
        self.snapshot = None

    def teardown(self) -> None:
        if self.snapshot is not None:
            self.snapshot.copy_nodes()
            self.write()
        super().teardown()


class TestFrozenPlan(FrozenPlan.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# -- what each look ahead is for ---------------------------------------------------------------------------------------


def reviewed_plan() -> tuple[RecordedConstellation, RecordedLock]:
    """``above`` has ended and waits for its review, ``below`` was started on the strength of that, and ``judged`` waits
    for it with a condition."""
    plan = RecordedConstellation("reviewed")
    plan.evaluate = lambda condition, status, result: True
    plan.add(Task("above"))
    plan.add(Task("below", revocable=True), "above")
    plan.add(Task("judged"), {"below": {"when": "even"}})
    lock = RecordedLock(plan, "speculative", edit_on=lambda node, *end: node.id == "above")
    plan.begin(1.0)
    plan.start(plan.node("above"), "kitchen", 2.0)
    lock.finish(plan.node("above"), COMPLETED, 3.0)
    plan.start(plan.node("below"), "kitchen", 4.0)
    lock.open(5.0)
    return plan, lock


def started(plan: RecordedConstellation, lock: RecordedLock) -> None:
    plan.cancel(plan.node("judged"), 6.0, "enough")


def located(plan: RecordedConstellation, lock: RecordedLock) -> None:
    plan.set_device(plan.node("below"), "attic")


def counted(plan: RecordedConstellation, lock: RecordedLock) -> None:
    plan.set_attempts(plan.node("below"), 3, 1)


def lost(plan: RecordedConstellation, lock: RecordedLock) -> None:
    plan.count_loss(plan.node("below"))


def retried(plan: RecordedConstellation, lock: RecordedLock) -> None:
    plan.retry(plan.node("below"), 6.0, "no luck")


def released(plan: RecordedConstellation, lock: RecordedLock) -> None:
    plan.release(plan.node("below"), 6.0, "its device left")


def edited(plan: RecordedConstellation, lock: RecordedLock) -> None:
    plan.apply(EditBatch((UpdateTask("judged", timeout=3.0),)), 6.0)


def confirmed(plan: RecordedConstellation, lock: RecordedLock) -> None:
    lock.close(lock.cycles[1], 6.0, "empty")


def judged(plan: RecordedConstellation, lock: RecordedLock) -> None:
    plan.finish(plan.node("below"), COMPLETED, 6.0, 7)


def only_in_turn(
    self: PlanSnapshot, most: int | None = None, take: Callable[..., None] = PlanSnapshot.copy_nodes
) -> None:
    if most is not None:
        take(self, most)


@pytest.mark.parametrize(
    ("step", "where", "what", "instead"),
    [
        (started, PlanSnapshot, "preserve", lambda self, *nodes: None),
        *(
            (step, PlanSnapshot, "preserve", lambda self, *nodes: None)
            for step in (located, counted, lost, retried, released)
        ),
        (edited, PlanSnapshot, "copy_nodes", only_in_turn),
        (confirmed, journal, "provisional_below", lambda node: [node]),
        (judged, journal, "_conditional_children", lambda node: []),
    ],
    ids=[
        "a task that changes",
        "where it is done",
        "how often it was tried",
        "a lost device",
        "an attempt",
        "a release",
        "an edit",
        "what was started on its strength",
        "what a condition says",
    ],
)
def test_without_looking_ahead_it_is_written_as_it_never_was(
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[RecordedConstellation, RecordedLock], None],
    where: Any,
    what: str,
    instead: Callable[..., Any],
) -> None:
    for look_ahead in (True, False):
        plan, lock = reviewed_plan()
        if not look_ahead:
            monkeypatch.setattr(where, what, instead)
        before, snapshot = text(plan), plan.take_snapshot()
        step(plan, lock)
        assert text(plan) != before
        snapshot.copy_nodes(100)
        assert ("".join(snapshot.chunks()) == before) is look_ahead


# -- in pieces ---------------------------------------------------------------------------------------------------------


def some_plan(tasks: Iterable[int]) -> RecordedConstellation:
    plan = RecordedConstellation("large")
    for number in tasks:
        plan.add(Task(f"t{number}", argv=("true",)), [f"t{number - 1}"] if number else None)
    plan.begin(1.0)
    return plan


def test_a_large_plan_is_written_in_many_pieces_and_edits_are_in_the_order_of_their_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_codec, "TASKS_PER_CHUNK", 3)
    monkeypatch.setattr(plan_codec, "ENTRIES_PER_CHUNK", 4)
    plan = some_plan(range(10))
    for number in range(20, 9, -1):
        plan.apply(EditBatch((AddTask(Task(f"t{number}")),)), 2.0)
    plan.start(plan.node("t0"), "kitchen", 3.0)
    plan.finish(plan.node("t0"), COMPLETED, 4.0, {"väl": [1, None]})
    snapshot = plan.take_snapshot()
    before = text(plan)
    snapshot.copy_nodes()
    pieces = list(snapshot.chunks())
    assert "".join(pieces) == before
    lists = [piece.strip(",") for piece in pieces[1:] if piece[-1:] in ("}", "]") and len(piece) > 1]
    items = [len(json.loads(f"[{piece}]")) for piece in lists]
    assert max(items) <= 4
    assert sum(items) == 21 + 9 + 11 + len(plan.story())


def test_a_piece_is_no_longer_for_results_that_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_codec, "CHUNK_LENGTH", 1000)
    plan = some_plan(range(20))
    for number in range(20):
        plan.start(plan.node(f"t{number}"), "kitchen", 2.0)
        plan.finish(plan.node(f"t{number}"), COMPLETED, 3.0, "x" * 700)
    snapshot = plan.take_snapshot()
    snapshot.copy_nodes()
    pieces = list(snapshot.chunks())
    assert "".join(pieces) == text(plan)
    assert max(map(len, pieces)) < 2000


def test_a_plan_without_tasks_can_be_written() -> None:
    plan = RecordedConstellation("empty")
    snapshot = plan.take_snapshot()
    snapshot.copy_nodes(1)
    assert snapshot.complete
    assert "".join(snapshot.chunks()) == text(plan)


def test_taking_is_as_much_as_was_asked_for_and_a_task_is_taken_once() -> None:
    plan = some_plan(range(5))
    snapshot = plan.take_snapshot()
    snapshot.copy_nodes(2)
    assert len(snapshot._copied) == 2
    snapshot.preserve(plan.node("t0"), plan.node("t4"))
    assert len(snapshot._copied) == 3
    snapshot.copy_nodes(2)
    assert (len(snapshot._copied), snapshot.complete) == (5, False)
    snapshot.copy_nodes(2)
    assert snapshot.complete
