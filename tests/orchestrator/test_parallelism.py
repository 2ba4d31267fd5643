"""Parallelism of a plan: the critical path, the work, the width, and the lower bound."""

from __future__ import annotations

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.orchestrator.result import Parallelism, durations, parallelism
from tests.core.plan.tiny_plans import begin, chain, end, start


def diamond() -> Constellation:
    plan = Constellation()
    plan.add(Task("a", estimate=1))
    plan.add(Task("b", estimate=5), after="a")
    plan.add(Task("c", estimate=2), after="a")
    plan.add(Task("d", estimate=1), after=["b", "c"])
    return plan


def test_the_longest_chain_the_whole_work_and_the_width() -> None:
    measured = parallelism(diamond().nodes)
    assert measured == Parallelism(critical_path=7.0, path=("a", "b", "d"), work=9.0, width=2)
    assert measured.ratio == 9 / 7


def test_durations_may_be_given() -> None:
    measured = parallelism(diamond().nodes, {"a": 1.0, "b": 1.0, "c": 9.0, "d": 1.0})
    assert (measured.critical_path, measured.path) == (11.0, ("a", "c", "d"))


def test_an_empty_plan_has_no_work() -> None:
    measured = parallelism(Constellation().nodes)
    assert measured == Parallelism(0.0, (), 0, 0)
    assert measured.ratio == 0.0
    assert measured.lower_bound(4) == 0.0


def test_no_schedule_is_shorter_than_the_chain_or_than_the_work_shared_out() -> None:
    measured = Parallelism(critical_path=7.0, path=(), work=30.0, width=1)
    assert measured.lower_bound(2) == 15.0
    assert measured.lower_bound(100) == 7.0
    assert measured.lower_bound(None) == 7.0


def test_a_duration_is_measured_where_a_task_ran_estimated_where_it_has_not_and_zero_where_it_never_will() -> None:
    plan = chain("ran", "next")
    plan.add(Task("estimated", estimate=4))
    plan.add(Task("running"))
    plan.add(Task("never", estimate=9))
    begin(plan)
    start(plan, "ran", now=1.0)
    end(plan, "ran", now=3.5)
    start(plan, "running")
    plan.cancel(plan.node("never"), 4.0, "not needed")
    assert durations(plan.nodes) == {"ran": 2.5, "next": 1.0, "estimated": 4, "running": 1.0, "never": 0.0}
