"""``why`` names what holds a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task, edits
from asterism.core.errors import DeviceUnavailable, UnknownTask
from asterism.testing.virtual_time import run
from tests.orchestrator.orchestrator_scenes import Script, after, at, chain, failing, independent, stubborn

pytestmark = pytest.mark.virtual_time


def ask(
    plan: Constellation,
    task: str,
    when: float,
    before: Callable[[Orchestrator], Any] | None = None,
    **options: Any,
) -> Any:
    """Ask why a task is not running, so many seconds after the beginning; ``before`` may do something first."""

    async def main() -> Any:
        orchestrator = Orchestrator(**{"devices": [LocalDevice("device")], **options})
        running = asyncio.create_task(orchestrator.run(plan))
        await at(when)
        if before is not None:
            outcome = before(orchestrator)
            doing = asyncio.ensure_future(outcome) if asyncio.iscoroutine(outcome) else None
            await asyncio.sleep(0)
            del doing
        answer = orchestrator.why(task)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return answer

    return run(main())


def holder(answer: Any) -> tuple[str, str]:
    (only,) = answer.holders
    return only.kind, only.name


def test_an_open_dependency_is_named() -> None:
    answer = ask(chain(Task("a", call=after(10)), Task("b")), "b", 1)
    assert holder(answer) == ("dependency", "a")
    assert str(answer) == "b is waiting: it needs 'a' to succeed, and 'a' is running"


def test_every_open_dependency_is_named_and_no_other() -> None:
    plan = independent(Task("a", call=after(10)), Task("b", call=failing(1)), Task("c", call=after(1)))
    plan.add(Task("d"), after={"a": "completion", "b": "success", "c": "success"})
    answer = ask(plan, "d", 5)
    assert [(holder.kind, holder.name) for holder in answer.holders] == [("dependency", "a"), ("dependency", "b")]
    assert "it needs 'b' to succeed, but 'b' failed" in str(answer)


def test_a_condition_that_does_not_hold_or_could_not_be_evaluated_is_quoted() -> None:
    plan = independent(Task("a", call=after(1, {"n": 1})), Task("busy", call=after(100)))
    plan.add(Task("b"), after={"a": {"when": "result.n > 5"}})
    plan.add(Task("c"), after={"a": {"when": "result.m > 5"}})
    assert "its condition 'result.n > 5' does not hold" in str(ask(plan, "b", 2))

    plan = independent(Task("a", call=after(1, {"n": 1})), Task("busy", call=after(100)))
    plan.add(Task("c"), after={"a": {"when": "result.m > 5"}})
    assert "its condition 'result.m > 5' could not be evaluated" in str(ask(plan, "c", 2))


def test_an_open_cycle_is_named_with_its_editor_and_its_age() -> None:
    answer = ask(chain(Task("a", call=after(1)), Task("b")), "b", 4, editor=Script(seconds=10))
    assert holder(answer) == ("cycle", "1")
    assert "the end of 'a' is being reviewed by Script in cycle 1, for 3.0 s" in str(answer)


def test_an_end_that_waits_for_its_cycle_is_named() -> None:
    plan = independent(Task("x", call=after(1)), Task("a", call=after(2)))
    plan.add(Task("b"), after="a")
    answer = ask(plan, "b", 4, editor=Script(seconds=10), max_cycles=1)
    assert holder(answer) == ("review", "a")
    assert "waits for review: 1 cycle is open" in str(answer)


def test_under_global_the_cycle_that_holds_everything_is_named() -> None:
    plan = independent(Task("a", call=after(1)), Task("b", call=after(3)), Task("c", call=after(1)))
    devices = [LocalDevice("one", slots=1)]
    answer = ask(plan, "c", 2, editor=Script(seconds=10), policy="global", devices=devices)
    assert holder(answer) == ("cycle", "1")
    assert "'a'" in str(answer)


def test_under_global_the_stuck_cycle_that_holds_everything_is_named() -> None:
    plan = chain(Task("a", call=failing(1)), Task("b"), id="p")

    def add(orchestrator: Orchestrator) -> None:
        orchestrator.edit("p", edits.EditBatch((edits.AddTask(Task("new", call=after(1))),)))

    answer = ask(plan, "new", 25, add, editor=Script(seconds=20), policy="global")
    assert [holder.kind for holder in answer.holders] == ["cycle"]
    assert "cycle 2" in str(answer)


def test_an_unconfirmed_parent_is_named() -> None:
    plan = chain(Task("root", call=after(1)), Task("b", call=after(1), revocable=True), Task("firm"))
    answer = ask(plan, "firm", 2.5, editor=Script(seconds=10), policy="speculative", edit_on=lambda t: t.id == "root")
    assert holder(answer) == ("provisional", "b")


def test_a_pause_is_named() -> None:
    plan = independent(*(Task(name, call=after(10)) for name in "ab"), id="p")
    answer = ask(plan, "b", 1, lambda runner: runner.pause("p"), devices=[LocalDevice("one", slots=1)])
    assert holder(answer) == ("pause", "p")
    assert "the plan is paused" in str(answer)


def test_a_pause_is_named_with_what_the_task_waits_for() -> None:
    plan = chain(Task("a", call=after(10)), Task("b", call=after(10)), id="p")
    answer = ask(plan, "b", 1, lambda runner: runner.pause("p"))
    assert [holder.kind for holder in answer.holders] == ["dependency", "pause"]


def test_a_cancellation_is_named() -> None:
    plan = independent(*(Task(name, call=stubborn(10)) for name in "ab"), id="p")
    answer = ask(plan, "b", 1, lambda runner: runner.cancel("p"), devices=[LocalDevice("one", slots=1)], grace=20)
    assert holder(answer) == ("ended", "cancelled")
    assert "the constellation was cancelled" in str(answer)


def test_busy_devices_are_named_with_their_load() -> None:
    plan = independent(*(Task(name, call=after(10)) for name in "abc"))
    devices = [LocalDevice("one", slots=1), LocalDevice("two", slots=1), LocalDevice("other", slots=9, can=["x"])]
    plan.add(Task("d", device="one"))
    answer = ask(plan, "d", 1, devices=devices[:2])
    assert holder(answer) == ("busy", "one (1)")
    assert "every device that can run it is busy: one (1)" in str(answer)


def test_a_device_that_rests_after_a_refusal_is_not_called_busy() -> None:
    class Refusing(LocalDevice):
        async def execute(self, work: Any) -> Any:
            raise DeviceUnavailable("out for lunch")

    answer = ask(independent(Task("a", call=after(1))), "a", 0.5, devices=[Refusing("moody")])
    assert "moody" in str(answer)
    assert "busy" not in str(answer)


def test_a_task_without_a_capable_device_names_its_needs_and_the_devices() -> None:
    answer = ask(independent(Task("a", needs=["gpu", "disk"])), "a", 0.001)
    assert holder(answer)[0] == "no_device"
    assert str(answer) == ("a is pending: no device with 'disk', 'gpu' has joined; the devices are device")
    assert "the devices are none" in str(ask(independent(Task("a")), "a", 0.001, devices=[]))


def test_the_limit_on_concurrency_is_named() -> None:
    answer = ask(independent(*(Task(name, call=after(10)) for name in "ab")), "b", 1, concurrency=1)
    assert holder(answer)[0] == "concurrency"
    assert "the limit of 1 running tasks" in str(answer)


def test_the_pause_before_the_next_attempt_is_named() -> None:
    answer = ask(independent(Task("a", call=failing(1), retries=1, backoff=100)), "a", 5)
    assert [holder.kind for holder in answer.holders] == ["retry", "backoff"]
    assert "attempt 1 failed" in str(answer)


def test_a_next_attempt_without_a_device_is_explained() -> None:
    plan = independent(Task("a", call=failing(1), retries=1, backoff=1))
    answer = ask(plan, "a", 0.5, lambda runner: runner.leave("device"))
    assert answer.status == "running"

    async def main() -> Any:
        orchestrator = Orchestrator([LocalDevice("device")])
        running = asyncio.create_task(
            orchestrator.run(independent(Task("a", call=failing(1), retries=1, backoff=1), id="p"))
        )
        await at(0.5)
        orchestrator.leave("device")
        await at(10)
        answer = orchestrator.why("a")
        await orchestrator.cancel("p")
        await running
        return answer

    assert [holder.kind for holder in run(main()).holders] == ["retry", "no_device"]


def test_a_running_task_names_its_device_and_since_when() -> None:
    answer = ask(independent(Task("a", call=after(10))), "a", 4)
    assert holder(answer) == ("device", "device")
    assert str(answer) == "a is running: it runs on 'device' for 4.0 s, attempt 1"


def test_a_provisional_task_is_explained_as_provisional() -> None:
    plan = chain(Task("a", call=after(1)), Task("b", call=after(10), revocable=True))
    answer = ask(plan, "b", 2, editor=Script(seconds=10), policy="speculative")
    assert "it runs provisionally on 'device'" in str(answer)


def test_an_ended_task_is_explained_with_its_reason() -> None:
    plan = independent(Task("a", call=failing(1)), Task("b", call=after(10)))
    answer = ask(plan, "a", 2)
    assert holder(answer) == ("ended", "failed")
    assert "(RuntimeError: it broke)" in str(answer)


async def test_a_ready_task_is_about_to_be_assigned() -> None:
    orchestrator = Orchestrator([LocalDevice("device")])
    plan = independent(Task("a", call=after(1)))
    running = asyncio.create_task(orchestrator.run(plan))
    await asyncio.sleep(0)
    answer = orchestrator.why("a")
    await running
    assert holder(answer)[0] in ("turn", "device")


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(UnknownTask, match="there is no task 'nobody'"):
        ask(independent(Task("a", call=after(10))), "nobody", 1)
