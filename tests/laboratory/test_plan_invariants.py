"""The checker checked: whatever is tampered with in a graph, it notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.status import COMPLETED, FAILED, PENDING
from asterism.core.plan.task import Dependency
from tests.core.plan.tiny_plans import begin, chain, end, start
from tests.laboratory.plan_invariants import check_invariants


def plan_with_progress() -> Constellation:
    """a has ended and is unreviewed; b runs provisionally on the strength of it; c waits for b. x runs, y is ready."""
    plan = chain("a", "b", "c", revocable=True)
    other = chain("x")
    plan.add(other["x"].task)
    plan.add(chain("y")["y"].task)
    begin(plan, speculative=True)
    end(plan, "a", review=True)
    start(plan, "b")
    start(plan, "x")
    return plan


TAMPERED: dict[str, Callable[[Constellation], object]] = {
    "I4: b depends on a, which is gone": lambda plan: plan.nodes.pop("a"),
    "I4: a does not know its child b": lambda plan: plan.nodes["a"].children.pop("b"),
    "I4: an edge under a wrong name": lambda plan: plan.nodes["b"].parents.update(a=Dependency("a", "c")),
    "I4: b does not know its parent a": lambda plan: plan.nodes["b"].parents.pop("a"),
    "I2: a is not ordered before b": lambda plan: setattr(plan.nodes["b"], "label", plan.nodes["a"].label),
    "open of c": lambda plan: setattr(plan.nodes["c"], "open", 0),
    "held of c": lambda plan: setattr(plan.nodes["c"], "held", 1),
    "y is pending and has an epoch": lambda plan: setattr(plan.nodes["y"], "epoch", 9),
    "y is pending and has ended": lambda plan: setattr(plan.nodes["y"], "tentative", COMPLETED),
    "I3: b runs with open dependencies": lambda plan: _reopen(plan),
    "P2: b runs below an unreviewed end": lambda plan: setattr(plan.nodes["b"], "provisional", False),
    "x is provisional and not running": lambda plan: _end_provisionally(plan),
    "b is provisional and not revocable": lambda plan: setattr(plan.nodes["b"], "task", chain("b")["b"].task),
    "x is provisional with nothing to wait for": lambda plan: _make_provisional(plan),
    "x is unsettled and has not ended": lambda plan: setattr(plan.nodes["x"], "unsettled", True),
    "y is not queued": lambda plan: setattr(plan.nodes["y"], "entry", None),
    "c is queued": lambda plan: plan.queue.push(plan.nodes["c"]),
    "a has ended and is queued": lambda plan: plan.queue.push(plan.nodes["a"]),
    "count of running": lambda plan: plan.counts.update(running=7),
    "count of provisional tasks": lambda plan: setattr(plan, "provisionals", 0),
    "I1: two tasks share an epoch": lambda plan: setattr(plan.nodes["x"], "epoch", plan.nodes["b"].epoch),
}


def _reopen(plan: Constellation) -> None:
    plan.nodes["a"].status = FAILED
    plan.nodes["b"].open = 1


def _make_provisional(plan: Constellation) -> None:
    node = plan.nodes["x"]
    node.provisional, node.task = True, node.task.changed({"revocable": True})


def _end_provisionally(plan: Constellation) -> None:
    node = plan.nodes["x"]
    node.provisional, node.status = True, COMPLETED


def test_a_plan_that_nobody_tampered_with_passes() -> None:
    check_invariants(plan_with_progress())
    check_invariants(Constellation())


@pytest.mark.parametrize(("complaint", "tamper"), TAMPERED.items(), ids=TAMPERED.keys())
def test_tampering_is_noticed(complaint: str, tamper: Callable[[Constellation], object]) -> None:
    plan = plan_with_progress()
    tamper(plan)
    with pytest.raises(AssertionError) as caught:
        check_invariants(plan)
    assert str(caught.value).splitlines()[0] == complaint


# -- what it should notice too -----------------------------------------------------------------------------------------


def test_a_child_that_is_no_longer_in_the_plan_is_noticed() -> None:
    plan = plan_with_progress()
    del plan.nodes["c"]
    plan.counts[PENDING] -= 1
    with pytest.raises(AssertionError):
        check_invariants(plan)


def test_a_ready_task_that_is_in_no_heap_is_noticed() -> None:
    plan = plan_with_progress()
    plan.queue.lanes.clear()
    with pytest.raises(AssertionError):
        check_invariants(plan)


def test_an_unreviewed_end_that_holds_nobody_is_noticed() -> None:
    plan = begin(chain("a", "b"))
    end(plan, "a", review=True)
    plan.nodes["a"].unsettled = False
    plan.nodes["b"].held = 0
    plan.requeue(plan.nodes["b"])
    with pytest.raises(AssertionError):
        check_invariants(plan)


def test_a_ready_task_may_be_kept_outside_the_queue_if_that_is_said() -> None:
    plan = begin(chain("a"))
    node = plan.queue.pop(None)
    with pytest.raises(AssertionError, match="a is not queued"):
        check_invariants(plan)
    check_invariants(plan, outside={node})
