"""The times of an attempt in a fleet: what a running task does, how long it waited and worked."""

from __future__ import annotations

import pytest

from asterism.core.plan.journal import RecordedConstellation, RecordedLock, Step, replay
from asterism.core.plan.node import AttemptTimes
from asterism.core.plan.status import COMPLETED
from asterism.core.plan.step_changes import task_progress
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, chain, start


@pytest.mark.parametrize(
    ("times", "phase"),
    [
        (AttemptTimes(1.0), "queued"),
        (AttemptTimes(1.0, 2.0), "starting"),
        (AttemptTimes(1.0, 2.0, 3.0), "running"),
    ],
)
def test_an_attempt_is_queued_then_starting_then_running(times: AttemptTimes, phase: str) -> None:
    assert times.phase == phase
    assert times.seconds is None


def test_the_story_tells_how_long_an_attempt_waited_and_ran() -> None:
    times = AttemptTimes(1.0, 6.0, 6.5, 7.0785)
    assert str(times) == "waited 5.500 s, ran 0.579 s"
    assert times.seconds == pytest.approx((5.5, 0.5785))


def started(steps: list[Step], *tasks: str) -> RecordedConstellation:
    plan = RecordedConstellation("nightly")
    for task in tasks:
        plan.add(Task(task))
    plan.record = steps.append
    plan.begin(0.0)
    for task in tasks:
        plan.queue.pop(next(iter(plan.queue.active_lanes)))
        plan.start(plan.node(task), "fleet", 1.0)
    return plan


def replayed(steps: list[Step], *tasks: str) -> RecordedConstellation:
    plan = RecordedConstellation("nightly")
    for task in tasks:
        plan.add(Task(task))
    replay(plan, RecordedLock(plan), steps)
    return plan


def test_a_task_of_a_fleet_took_as_long_as_its_attempt_worked() -> None:
    steps: list[Step] = []
    plan = started(steps, "a", "b", "c")
    a, b, c = map(plan.node, "abc")
    assert a.span == (1.0, None)  # as long as nothing else is known
    snapshot = plan.take_snapshot()
    plan.record_run("a", a.epoch, 8.0, AttemptTimes(1.0, 6.0, 6.0, 7.5), "run 1")
    plan.finish(a, COMPLETED, 8.0)
    snapshot.copy_nodes()
    assert '"times":' not in "".join(snapshot.chunks())
    assert (a.span, a.worked) == ((6.0, 7.5), 1.5)
    assert task_progress(a)["attempt"] == {"created_at": 1.0, "assigned_at": 6.0, "begun_at": 6.0, "ended_at": 7.5}
    plan.cancel(b, 9.0, "not needed")
    plan.snapshot = None
    plan.record_run("b", 2, 9.5, AttemptTimes(1.0, None, None, 9.5), "run 2")  # after its cancellation
    assert (b.span, b.worked) == (None, 0.0)
    plan.record_run("b", 2, 9.6, AttemptTimes(1.0, 2.0, 3.0, 4.0), "a late one")
    plan.record_run("gone", 7, 9.7, AttemptTimes(1.0), "of a task that was removed")
    plan.record_run("c", 1, 9.8, AttemptTimes(1.0, 2.0, 3.0, 4.0), "of an earlier execution")
    assert (b.span, c.times) == (None, None)
    assert [entry.what for entry in plan.story("c")] == ["started", "run ended"]
    assert replayed(steps, "a", "b", "c").to_json() == plan.to_json()
    assert RecordedConstellation.from_json(plan.to_json()).to_json() == plan.to_json()


def test_without_a_fleet_a_task_took_from_its_start_to_its_end() -> None:
    plan = started([], "a")
    plan.finish(plan.node("a"), COMPLETED, 4.0)
    assert (plan.node("a").span, plan.node("a").worked) == ((1.0, 4.0), 3.0)
    pending = RecordedConstellation("nightly")
    pending.add(Task("b"))
    assert pending.node("b").span is None


def test_the_times_of_an_attempt_of_the_process_are_those_of_its_start_and_end() -> None:
    plan = begin(chain("a"))
    start(plan, "a", 1.0, device="nightly@here")
    assert plan.node("a").attempt_times == AttemptTimes(1.0, 1.0, 1.0, None)
    plan.finish(plan.node("a"), COMPLETED, 3.0)
    assert plan.node("a").attempt_times == AttemptTimes(1.0, 1.0, 1.0, 3.0)


def test_the_times_of_an_earlier_attempt_are_not_those_of_the_next() -> None:
    plan = begin(chain("a"))
    epoch = start(plan, "a", 1.0)
    plan.record_run("a", epoch, 2.0, AttemptTimes(1.0, begun=1.0, ended=2.0), "it failed")
    plan.retry(plan.node("a"), 2.0, "it failed")
    assert plan.node("a").times is not None
    plan.start(plan.node("a"), "laptop", 3.0)
    assert plan.node("a").times is None
