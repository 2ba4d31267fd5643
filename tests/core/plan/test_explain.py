"""Why is this task not running? The answer names the actual holder."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.history import Reason
from asterism.core.plan.assignment_lock import AssignmentLock, EditCycle, edit_on_all
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import CancelTask, EditBatch, UpdateTask, WaitingEdit
from asterism.core.plan.explain import Why, why
from asterism.core.plan.status import COMPLETED, FAILED, TaskStatus
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, chain, start


class Scene:
    """A plan that runs under a lock."""

    def __init__(self, plan: Constellation, **options: Any) -> None:
        self.plan = plan
        self.lock = AssignmentLock(plan, **{"edit_on": edit_on_all, **options})
        plan.begin(0.0)

    def end(self, task_id: str, status: TaskStatus = COMPLETED, error: BaseException | None = None) -> None:
        if self.plan.node(task_id).device is None:
            start(self.plan, task_id)
        self.lock.finish(self.plan.node(task_id), status, 2.0, None, error)

    def open(self, now: float = 3.0) -> EditCycle:
        cycle = self.lock.open(now)
        assert cycle is not None
        return cycle

    def why(self, task_id: str, placement: Reason | None = None, now: float = 5.0) -> Why:
        return why(self.plan, self.lock, self.plan.node(task_id), placement, now)


BUSY = Reason("device", "laptop", "every device that could take it is busy")
PAUSE = Reason("pause", "nightly", "the plan is paused")


def test_a_pause_counts_beside_whatever_else_holds_a_task() -> None:
    scene = Scene(chain("a", "b"))
    assert [holder.kind for holder in scene.why("b", PAUSE).holders] == ["dependency", "pause"]
    assert scene.why("a", PAUSE).holders == (PAUSE,)
    scene.end("a")
    scene.open()
    assert [holder.kind for holder in scene.why("b", PAUSE).holders] == ["cycle", "pause"]


# -- dependencies ------------------------------------------------------------------------------------------------------


def test_a_waiting_task_names_every_open_dependency() -> None:
    plan = chain("a")
    plan.add(Task("b"))
    plan.add(Task("c"), after={"a": "success", "b": "failure"})
    answer = Scene(plan).why("c")
    assert (answer.status, [(holder.kind, holder.name) for holder in answer.holders]) == (
        "waiting",
        [("dependency", "a"), ("dependency", "b")],
    )
    assert str(answer) == (
        "c is waiting: it needs 'a' to succeed, and 'a' is pending; it needs 'b' to fail, and 'b' is pending"
    )


def test_a_dependency_that_is_satisfied_is_not_named() -> None:
    plan = chain("a")
    plan.add(Task("b"))
    plan.add(Task("c"), after=["a", "b"])
    scene = Scene(plan, edit_on=None)
    scene.end("a")
    assert [holder.name for holder in scene.why("c").holders] == ["b"]


def test_a_dependency_that_ended_the_wrong_way_says_how() -> None:
    scene = Scene(chain("a", "b"), edit_on=None)
    scene.end("a", FAILED)
    assert str(scene.why("b")) == "b is waiting: it needs 'a' to succeed, but 'a' failed"


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (False, "its condition 'result.ok' does not hold"),
        ("no such key", "its condition 'result.ok' could not be evaluated: no such key"),
    ],
)
def test_a_condition_says_what_became_of_it(verdict: bool | str, words: str) -> None:
    plan = chain("a")
    plan.add(Task("b"), after={"a": {"when": "result.ok"}})
    plan.evaluate = lambda condition, status, result: verdict
    scene = Scene(plan, edit_on=None)
    scene.end("a")
    assert str(scene.why("b")) == f"b is waiting: it needs 'a' to succeed, but {words}"


# -- reviews -----------------------------------------------------------------------------------------------------------


def test_a_held_task_names_the_cycle_that_holds_it_and_for_how_long() -> None:
    scene = Scene(chain("a", "b"))
    scene.end("a")
    scene.open(now=3.0)
    answer = scene.why("b", placement=BUSY, now=5.5)
    assert answer.holders == (Reason("cycle", "1", "the end of 'a' is being reviewed in cycle 1, for 2.5 s"),)
    assert answer.status == "pending"


def test_a_task_after_a_failure_names_the_review_that_may_change_it() -> None:
    scene = Scene(chain("a", "b"))
    scene.end("a", FAILED, ValueError("no"))
    scene.open(now=3.0)
    answer = scene.why("b", now=5.5)
    assert [(holder.kind, holder.name) for holder in answer.holders] == [("dependency", "a"), ("cycle", "1")]
    approval = Reason("approval", "2", "an edit that changes it waits for approval 2, by ann")
    assert scene.why("b", placement=approval).holders[-1] == approval
    assert scene.why("b", placement=BUSY).holders[-1].kind == "cycle"


def test_a_claimed_cycle_names_who_claimed_it() -> None:
    scene = Scene(chain("a", "b"), claim_timeout=30.0)
    scene.end("a")
    scene.open()
    scene.lock.claim(1, "ada", 4.0, 60.0)
    assert "is being reviewed by ada in cycle 1" in str(scene.why("b"))


def test_an_end_that_no_cycle_has_taken_yet_says_how_many_are_open() -> None:
    plan = chain("a", "b")
    plan.add(Task("c"))
    plan.add(Task("d"), after="c")
    scene = Scene(plan, max_cycles=1)
    scene.end("a")
    scene.open()
    scene.end("c")
    [holder] = scene.why("d").holders
    assert (holder.kind, holder.name) == ("review", "c")
    assert holder.text.startswith("the end of 'c' waits for review: 1 cycle is open")


def test_under_global_a_task_elsewhere_is_held_by_every_cycle_and_by_the_ends_that_wait_for_one() -> None:
    plan = Constellation()
    for task_id in ("a", "b", "c", "other"):
        plan.add(Task(task_id))
    scene = Scene(plan, policy="global", max_cycles=1)
    scene.end("a")
    scene.open(now=3.0)
    scene.end("b")
    assert scene.why("other", placement=BUSY, now=5.0).holders == (
        Reason("cycle", "1", "the end of 'a' is being reviewed in cycle 1, for 2.0 s"),
        Reason("review", "b", "the end of 'b' waits for review"),
    )
    scene.end("c")
    assert scene.why("other").holders[-1].text == "the ends of 'b' and 1 more wait for review"


def test_under_global_a_cycle_over_many_ends_is_told_in_a_few_words() -> None:
    plan = Constellation()
    for task_id in "abcdef":
        plan.add(Task(task_id))
    scene = Scene(plan, policy="global")
    for task_id in "abcde":
        scene.end(task_id)
    scene.open()
    [holder] = scene.why("f").holders
    assert holder.text.startswith("the end of 'a', 'b', 'c' and 2 more is being reviewed in cycle 1")


def test_under_scoped_a_task_elsewhere_is_not_held() -> None:
    plan = chain("a", "b")
    plan.add(Task("other"))
    scene = Scene(plan)
    scene.end("a")
    assert str(scene.why("other")) == "other is pending: it is ready and will be assigned next"


def test_under_global_the_stuck_cycle_holds_too() -> None:
    plan = chain("a", "b")
    scene = Scene(plan, policy="global")
    assert scene.lock.open_stuck(3.0) is not None
    assert [holder.kind for holder in scene.why("a").holders] == ["cycle"]


def test_a_task_below_a_provisional_end_says_that_it_is_provisional() -> None:
    plan = chain("a", "b", revocable=True)
    plan.add(Task("c"), after="b")
    scene = Scene(plan, policy="speculative", edit_on=lambda node, status: node.id == "a")
    scene.end("a")
    scene.open()
    scene.end("b")
    [holder] = scene.why("c").holders
    assert holder == Reason("provisional", "b", "'b' has ended provisionally: the ends above it are under review")


def test_a_cycle_whose_review_is_void_is_not_named() -> None:
    plan = chain("a", "b", revocable=True)
    plan.add(Task("c"), after="b")
    scene = Scene(plan, policy="speculative")
    scene.end("a")
    scene.end("b")
    scene.open()  # reviews both ends
    plan.edit([UpdateTask("b", timeout=5)])
    scene.end("b")  # the end of another execution: it waits for a cycle of its own
    assert scene.lock.waiting == [("b", 3)]
    [holder] = scene.why("c").holders
    assert holder.kind != "cycle"


# -- devices -----------------------------------------------------------------------------------------------------------


def test_a_ready_task_says_what_the_runtime_knows_or_that_its_turn_has_come() -> None:
    scene = Scene(chain("a"))
    assert scene.why("a").holders == (Reason("turn", "", "it is ready and will be assigned next"),)
    assert scene.why("a", placement=BUSY).holders == (BUSY,)


def test_a_running_task_says_where_and_since_when() -> None:
    scene = Scene(chain("a"))
    start(scene.plan, "a", now=1.0)
    assert str(scene.why("a", placement=BUSY, now=3.5)) == "a is running: it runs on 'laptop' for 2.5 s, attempt 1"


def test_a_task_that_was_started_at_time_zero_has_run_since_then() -> None:
    scene = Scene(chain("a"))
    start(scene.plan, "a", now=0.0)
    assert "for 3.5 s" in str(scene.why("a", now=3.5))


def test_a_provisional_task_says_so() -> None:
    scene = Scene(chain("a", "b", revocable=True), policy="speculative")
    scene.end("a")
    start(scene.plan, "b")
    assert "it runs provisionally on 'laptop'" in str(scene.why("b"))


@pytest.mark.parametrize(("error", "ended"), [(None, "completed"), (ValueError("no"), "failed")])
def test_a_task_that_ended_provisionally_is_not_said_to_be_running(error: Exception | None, ended: str) -> None:
    plan = chain("a", "b", revocable=True)
    plan.add(Task("c"), after={"b": "failure" if error is None else "success"})
    scene = Scene(plan, policy="speculative")
    scene.end("a")
    start(scene.plan, "b")
    scene.end("b", COMPLETED if error is None else FAILED, error)
    why = scene.why("b")
    assert why.status == f"{ended} provisionally"
    assert "running" not in str(why)
    assert "it runs" not in str(why)
    assert "and waits to be confirmed" in str(why)
    assert "the end of 'a'" in str(why)
    assert f"but 'b' {ended} provisionally" in str(scene.why("c"))


@pytest.mark.parametrize(("placement", "kinds"), [(None, ["retry"]), (BUSY, ["retry", "device"])])
def test_a_task_between_two_attempts_says_so_and_what_it_waits_for(placement: Reason | None, kinds: list[str]) -> None:
    scene = Scene(chain("a"))
    start(scene.plan, "a")
    scene.plan.retry(scene.plan.node("a"), 2.0, "bad luck")
    answer = scene.why("a", placement)
    assert [holder.kind for holder in answer.holders] == kinds
    assert answer.holders[0].text == "attempt 1 failed, and the next one has not begun"


# -- ends --------------------------------------------------------------------------------------------------------------


def test_an_end_says_since_when_and_why() -> None:
    scene = Scene(chain("a"))
    scene.end("a", FAILED, ValueError("no"))
    assert scene.why("a") == Why("a", "failed", (Reason("ended", "failed", "it ended at 2.000 (ValueError: no)"),))


def test_an_end_without_a_reason_says_when() -> None:
    scene = Scene(chain("a"))
    scene.end("a")
    assert str(scene.why("a")) == "a is completed: it ended at 2.000"


def test_a_cancelled_task_says_who_cancelled_it() -> None:
    scene = Scene(chain("a"))
    scene.plan.edit([CancelTask("a", "not today")])
    assert "(not today)" in str(scene.why("a"))


def test_a_failure_that_was_confirmed_says_its_reason() -> None:
    scene = Scene(chain("a", "b", revocable=True), policy="speculative")
    scene.end("a")
    scene.end("b", FAILED, ValueError("no"))
    scene.lock.close(scene.open(), 4.0, "empty")
    assert "(ValueError: no)" in str(scene.why("b"))


def test_under_speculative_a_review_does_not_hold_what_may_be_revoked() -> None:
    plan = chain("a", "b", revocable=True)
    lock = AssignmentLock(plan, "speculative", edit_on=edit_on_all)
    begin(plan, speculative=True)
    start(plan, "a")
    lock.finish(plan.node("a"), COMPLETED, 2.0)
    assert why(plan, lock, plan.node("b"), None, 3.0).holders[0].kind == "turn"


# -- edits that wait for approval --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "author", "words"),
    [
        (("b",), "robot", "an edit that changes it waits for approval 3, by robot"),
        (("z",), "", "an edit waits for approval 3, by somebody, and until then the plan does not end"),
    ],
)
def test_a_task_that_cannot_start_names_the_edit_that_waits(tasks: tuple[str, ...], author: str, words: str) -> None:
    scene = Scene(chain("a", "b"), edit_on=None)
    scene.end("a", FAILED)
    edit = WaitingEdit(3, EditBatch((CancelTask("b"),), author), 1.0, 9.0, ("destructive",), tasks)
    answer = why(scene.plan, scene.lock, scene.plan.node("b"), None, 5.0, [edit])
    assert [(holder.kind, holder.text) for holder in answer.holders][1:] == [("approval", words)]


def test_an_edit_of_other_tasks_does_not_hold_one_that_may_start() -> None:
    scene = Scene(chain("a"))
    edit = WaitingEdit(3, EditBatch((CancelTask("z"),)), 1.0, 9.0, ("destructive",), ("z",))
    answer = why(scene.plan, scene.lock, scene.plan.node("a"), BUSY, 5.0, [edit])
    assert answer.holders == (BUSY,)
