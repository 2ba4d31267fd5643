"""The proof of what was timed notices work that failed, is missing, or was done twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.core.run import transitions
from asterism.core.run.run import Owner
from asterism.core.run.work import Workflow
from asterism.orchestrator.result import Result
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRun
from bench import proof
from bench.runs.work import NOTHING


async def _fails() -> None:
    raise ValueError("it fails")


async def _works() -> int:
    return 1


def _result(**tasks: Any) -> Result:
    plan = Constellation("proof")
    for name, call in tasks.items():
        plan.add(Task(name, call=call, retries=1))
    return asyncio.run(Orchestrator([LocalDevice("here")]).run(plan))


def test_a_plan_that_did_what_it_should_passes() -> None:
    proof.check_plan(_result(a=_works, b=_works), {"a": 1, "b": 1})


@pytest.mark.parametrize(
    ("tasks", "values", "complaint"),
    [
        (
            {"a": _works, "b": _fails},
            {"a": 1, "b": 1},
            "the plan is partially_failed: .*b is failed ValueError: it fails",
        ),
        ({"a": _works}, {"a": 2}, "a has the value 1, not 2"),
        ({"a": _works}, {"a": 1, "b": 1}, "the plan has 1 tasks, not 2"),
        ({"a": _works, "b": _works}, {"a": 1}, "b should not be there"),
    ],
)
def test_a_plan_that_did_not_is_noticed(tasks: dict[str, Any], values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        proof.check_plan(_result(**tasks), values)


def test_a_task_that_was_executed_twice_is_noticed() -> None:
    times = 0

    async def second_time_lucky() -> None:
        nonlocal times
        times += 1
        if times == 1:
            raise ValueError("not yet")

    with pytest.raises(AssertionError, match="a was executed 2 times"):
        proof.check_plan(_result(a=second_time_lucky), {"a": None})


async def test_runs_that_failed_wait_or_were_repeated_are_noticed() -> None:
    store, flow = MemoryStore(), Workflow("nothing", call=NOTHING, retries=1)
    waiting = transitions.create("a", flow, None, by="bench", now=1.0)
    await store.commit([PutRun(waiting, None)])
    await proof.check_created(store, 1)
    with pytest.raises(AssertionError, match=r"1 runs should have completed: \{'created': 1\}"):
        await proof.check_runs(store, 1)
    taken = transitions.take(waiting, Owner("device", "session"), 1.0)
    assert taken.grant is not None
    done = transitions.complete(transitions.start(taken, taken.grant, 1.0), taken.grant, None, 2.0)
    await store.commit([PutRun(done, waiting.revision)])
    await proof.check_runs(store, 1)
    with pytest.raises(AssertionError, match="2 runs should have completed"):
        await proof.check_runs(store, 2)
    with pytest.raises(AssertionError, match=r"1 runs should wait: \{'completed': 1\}"):
        await proof.check_created(store, 1)
    await store.commit([PutRun(done.changed(id="b", epoch=2), None)])
    with pytest.raises(AssertionError, match="1 runs were given out more than once"):
        await proof.check_runs(store, 2)
