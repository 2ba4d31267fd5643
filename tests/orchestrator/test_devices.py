"""Devices: the choice of one for a task; refusals, losses, joins and leaves; no capable device."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from asterism import Constellation, DeviceEvent, LocalDevice, Options, Orchestrator, Task, Work, edits
from asterism.core.errors import DeviceLost, DeviceUnavailable, NoDevice, UnknownTask
from asterism.testing.virtual_time import run
from tests.orchestrator.orchestrator_scenes import (
    Diary,
    after,
    at,
    chain,
    failing,
    independent,
    orchestrate,
    span,
    told,
    until,
    why_of,
)

pytestmark = pytest.mark.virtual_time


class Refusing(LocalDevice):
    """A device that gives the first ``times`` tasks back, or loses them."""

    def __init__(
        self, id: str, times: float = float("inf"), error: type[Exception] = DeviceUnavailable, **options: Any
    ):
        super().__init__(id, **options)
        self.times, self.error, self.calls = times, error, 0

    async def execute(self, work: Any) -> Any:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error(f"{self.id} says no")
        return await super().execute(work)


# -- who gets it -------------------------------------------------------------------------------------------------------


def spread(strategy: Any, **options: Any) -> list[str | None]:
    devices = [LocalDevice("a", slots=4), LocalDevice("b", slots=2), LocalDevice("c", slots=4)]
    tasks = [Task(f"t{n}", call=after(1)) for n in range(6)]
    result = orchestrate(independent(*tasks), devices=devices, strategy=strategy, **options)
    return [task.device for task in result]


def test_round_robin_takes_turns() -> None:
    assert spread("round_robin") == ["a", "b", "c", "a", "b", "c"]


def test_load_balance_and_score_fill_the_least_loaded_device() -> None:
    for strategy in ("load_balance", "score"):
        assert Counter(spread(strategy)) == {"a": 2, "b": 2, "c": 2} or Counter(spread(strategy)) == {
            "a": 3,
            "b": 1,
            "c": 2,
        }


def test_capability_match_spares_the_versatile_device() -> None:
    devices = [LocalDevice("versatile", can=["gpu", "disk", "net"]), LocalDevice("plain", can=["gpu"])]
    result = orchestrate(
        independent(Task("t", call=after(1), needs="gpu")), devices=devices, strategy="capability_match"
    )
    assert result["t"].device == "plain"


def test_a_strategy_may_be_a_function() -> None:
    assert set(spread(lambda devices, lane: devices[-1], concurrency=1)) == {"c"}


@pytest.mark.parametrize("answer", [RuntimeError("no idea"), None, "a"])
async def test_a_strategy_that_fails_or_talks_nonsense_does_not_hang_the_plan(answer: Any) -> None:
    def strategy(devices: Any, lane: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def main() -> str:
        """How it ended: with a result, or with an error."""
        orchestrator = Orchestrator([LocalDevice("a"), LocalDevice("b")], strategy=strategy, no_device_timeout=10)
        running = asyncio.create_task(orchestrator.run(independent(Task("t", call=after(1)))))
        await asyncio.wait([running], timeout=1000)
        if not running.done():
            running.cancel()
            await asyncio.wait([running])
            return "it hangs"
        error = running.exception()
        return str(running.result()["t"].error) if error is None else str(error)

    assert await main() != "it hangs"


def test_an_unknown_strategy_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(
        ValueError, match=r"strategy must be one of score, round_robin, capability_match, load_balance, not 'x'"
    ):
        Orchestrator(strategy="x")


def test_an_unknown_policy_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ValueError, match="the lock policy is one of global, scoped, speculative, not 'x'"):
        Orchestrator(policy="x")


def test_an_unknown_edit_on_and_a_max_cycles_of_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="edit_on must be 'all', 'failure' or a function"):
        Orchestrator(editor=lambda view, events: None, edit_on="sometimes")
    with pytest.raises(ValueError, match="max_cycles"):
        Orchestrator(max_cycles=0)


def test_options_are_a_record_and_a_parameter_replaces_a_field() -> None:
    options = Options(policy="global", max_cycles=2)
    chosen = Orchestrator(options=options, max_cycles=1).options
    assert (chosen.policy, chosen.max_cycles, options.max_cycles) == ("global", 1, 2)
    with pytest.raises(TypeError, match="polcy"):
        Orchestrator(polcy="global")


def test_a_task_goes_only_where_its_needs_are_met() -> None:
    devices = [LocalDevice("a"), LocalDevice("b", can=["gpu"]), LocalDevice("c", can=["gpu", "disk"])]
    plan = independent(
        Task("one", call=after(1), needs=["gpu", "disk"]),
        Task("two", call=after(1), device="a"),
        Task("three", call=after(1), device="b", needs=["gpu"]),
    )
    result = orchestrate(plan, devices=devices)
    assert [task.device for task in result] == ["c", "a", "b"]


def test_a_task_that_waits_for_a_busy_device_does_not_stand_in_the_way_of_others() -> None:
    devices = [LocalDevice("a", slots=1), LocalDevice("b", slots=1)]
    plan = independent(
        Task("one", call=after(5), device="a", priority="critical"),
        Task("two", call=after(5), device="a", priority="critical"),
        Task("three", call=after(1), priority="low"),
    )
    assert span(orchestrate(plan, devices=devices), "three") == (0, 1)


async def test_explicit_assignments_fix_the_device_of_a_task() -> None:
    devices = [LocalDevice("a"), LocalDevice("b")]
    plan = independent(*(Task(f"t{n}", call=after(1)) for n in range(4)))
    assert {
        task.device for task in (await Orchestrator(devices).run(plan, assignments={f"t{n}": "b" for n in range(4)}))
    } == {"b"}


def test_an_assignment_of_an_unknown_task_is_refused_and_changes_nothing() -> None:
    plan = independent(Task("a", call=after(1)))
    with pytest.raises(UnknownTask, match="'nobody'"):
        run(Orchestrator([LocalDevice("d")]).run(plan, assignments={"a": "elsewhere", "nobody": "d"}))
    assert plan["a"].task.device is None
    assert orchestrate(plan).state == "completed"


async def test_an_assignment_to_an_unknown_device_waits_is_explained_and_fails() -> None:
    orchestrator = Orchestrator([LocalDevice("d")], no_device_timeout=10)
    plan = independent(Task("a", call=after(1)))
    running = asyncio.create_task(orchestrator.run(plan, assignments={"a": "elsewhere"}))
    await at(1)
    why = str(orchestrator.why("a"))
    result = await running
    assert "no device 'elsewhere' has joined; the devices are d" in why
    assert isinstance(result["a"].error, NoDevice)


def test_two_devices_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="a device 'a' has joined already"):
        Orchestrator([LocalDevice("a"), LocalDevice("a")])


def test_a_device_that_is_unknown_cannot_leave() -> None:
    with pytest.raises(ValueError, match="no device 'x' has joined; the devices are a"):
        Orchestrator([LocalDevice("a")]).leave("x")


def test_a_device_is_anything_with_the_right_attributes() -> None:
    class Mine:
        id, can, slots = "mine", frozenset({"magic"}), 2

        async def execute(self, work: Any) -> str:
            return f"{work.task.id} of {work.constellation}, attempt {work.attempt}"

    result = orchestrate(independent(Task("a", needs="magic"), id="p"), devices=[Mine()])
    assert result["a"].value == "a of p, attempt 1"


def test_a_device_whose_execute_is_no_coroutine_fails_the_task() -> None:
    class Wrong(LocalDevice):
        def execute(self, work: Any) -> Any:
            return 5

    assert orchestrate(independent(Task("a")), devices=[Wrong("w")])["a"].status == "failed"


# -- joining and leaving -----------------------------------------------------------------------------------------------


async def test_a_device_that_joins_gets_work_at_once() -> None:
    orchestrator = Orchestrator([LocalDevice("a", slots=1)])
    diary = Diary(orchestrator, DeviceEvent)
    plan = independent(*(Task(f"t{n}", call=after(10)) for n in range(3)))
    running = asyncio.create_task(orchestrator.run(plan))
    await at(4)
    orchestrator.join(LocalDevice("b", slots=1))
    result = await running
    assert span(result, "t1") == (4, 14)
    assert result["t1"].device == "b"
    assert [(event.kind, event.device) for event in diary.events] == [("device_joined", "b")]


async def test_a_leaving_device_finishes_its_tasks_and_gets_no_more() -> None:
    orchestrator = Orchestrator([LocalDevice("a", slots=1), LocalDevice("b", slots=1)])
    diary = Diary(orchestrator, DeviceEvent)
    plan = independent(*(Task(f"t{n}", call=after(10)) for n in range(4)))
    running = asyncio.create_task(orchestrator.run(plan))
    await at(4)
    orchestrator.leave("a")
    result = await running
    assert [task.device for task in result] == ["a", "b", "b", "b"]
    assert result["t0"].status == "completed"
    assert result["t0"].attempts == 1
    assert [(event.kind, event.device) for event in diary.events] == [("device_left", "a")]


async def test_a_task_whose_device_left_before_the_start_is_assigned_again() -> None:
    async def main(turns: int) -> Any:
        executed: list[str] = []

        class Noting(LocalDevice):
            async def execute(self, work: Any) -> Any:
                executed.append(self.id)
                return await super().execute(work)

        orchestrator = Orchestrator([Noting("a")])
        plan = independent(Task("t", call=after(1)))
        running = asyncio.create_task(orchestrator.run(plan))
        await until(lambda: plan["t"].status == "running")
        orchestrator.leave("a")
        orchestrator.join(Noting("b"))
        result = await running
        return executed, result

    executed, result = await main(0)
    assert executed == ["b"]
    assert result["t"].attempts == 1
    assert result["t"].device == "b"
    assert told(result, "t") == ["started", "put back", "started", "completed"]


async def test_a_device_that_left_may_come_back_under_its_name() -> None:
    orchestrator = Orchestrator([LocalDevice("a", slots=1)])
    plan = chain(Task("t0", call=after(2)), Task("t1", call=after(2)))
    running = asyncio.create_task(orchestrator.run(plan))
    await at(1)
    orchestrator.leave("a")
    await at(5)
    orchestrator.join(LocalDevice("a", slots=1))
    result = await running
    assert span(result, "t1") == (5, 7)


# -- refusing and vanishing --------------------------------------------------------------------------------------------


def test_a_task_that_a_device_gives_back_goes_to_another_and_no_attempt_is_counted() -> None:
    refusing, willing = Refusing("refusing"), LocalDevice("willing", slots=1)
    result = orchestrate(independent(Task("t", call=after(1))), devices=[refusing, willing], strategy="round_robin")
    assert result["t"].device == "willing"
    assert result["t"].attempts == 1
    assert refusing.calls == 1
    assert "refusing says no" in why_of(result, "t", "put back")


def test_a_device_that_always_refuses_never_spins_and_the_task_fails_in_the_end() -> None:
    device = Refusing("device")
    result = orchestrate(independent(Task("t", call=after(1))), devices=[device], no_device_timeout=60)
    assert result["t"].status == "failed"
    assert isinstance(result["t"].error, NoDevice)
    assert "device says no" in str(result["t"].error)
    assert device.calls <= 62
    assert 59 <= result.summary.makespan <= 62


def test_many_tasks_before_a_refusing_device_do_not_spin_either() -> None:
    device = Refusing("device", slots=10)
    tasks = [Task(f"t{n}", call=after(1)) for n in range(50)]
    result = orchestrate(independent(*tasks), devices=[device], no_device_timeout=60)
    assert result.state == "failed"
    assert device.calls <= 50 * 62


def test_a_refusal_long_ago_does_not_count_against_a_task_that_has_run_since() -> None:
    class Moody(LocalDevice):
        calls = 0

        async def execute(self, work: Any) -> Any:
            self.calls += 1
            if self.calls in (1, 3):
                raise DeviceUnavailable("not now")
            return await super().execute(work)

    tries: list[int] = []

    async def work() -> str:
        tries.append(1)
        await asyncio.sleep(500)
        if len(tries) == 1:
            raise RuntimeError("once")
        return "done"

    result = orchestrate(independent(Task("t", call=work, retries=1)), devices=[Moody("d")], no_device_timeout=300)
    assert result["t"].value == "done"


def test_a_refusal_of_one_task_does_not_tell_another_that_its_device_has_left() -> None:
    class Picky(LocalDevice):
        async def execute(self, work: Any) -> Any:
            if work.task.id == "bad":
                raise DeviceUnavailable("not this one")
            return await super().execute(work)

    plan = independent(Task("bad", call=after(1), priority="high"), Task("good", call=after(1)))
    result = orchestrate(plan, devices=[Picky("d")], no_device_timeout=3)
    assert result["good"].status == "completed"
    assert not any("left" in entry.why for entry in result.story("good"))


def test_a_device_that_rests_after_a_refusal_is_ready_again_in_a_second_event_loop() -> None:
    shy = Refusing("shy", times=1)
    orchestrator = Orchestrator([shy, LocalDevice("other")], strategy="round_robin")
    assert run(orchestrator.run(independent(Task("t", call=after(0)), id="first")))["t"].device == "other"
    result = run(orchestrator.run(independent(Task("t", call=after(0), device="shy"), id="second")))
    assert result["t"].device == "shy"


async def test_the_loss_of_a_device_is_counted_apart_from_failures() -> None:
    device = Refusing("device", 3, DeviceLost)
    orchestrator = Orchestrator([device], max_losses=3)
    diary = Diary(orchestrator, DeviceEvent)
    result = await orchestrator.run(independent(Task("t", call=after(1, "done"))))
    assert result["t"].value == "done"  # although the task has no retries
    assert result["t"].attempts == 4
    assert diary.kinds() == ["device_lost"] * 3


def test_losses_use_up_no_retries_and_failures_no_losses() -> None:
    class Both(LocalDevice):
        calls = 0

        async def execute(self, work: Any) -> Any:
            self.calls += 1
            if self.calls in (1, 3):
                raise DeviceLost("gone")
            if self.calls in (2, 4):
                raise RuntimeError("work failed")
            return "done"

    result = orchestrate(independent(Task("t", retries=2)), devices=[Both("d")], max_losses=2)
    assert result["t"].value == "done"


def test_a_task_that_loses_every_device_fails_with_the_loss() -> None:
    device = Refusing("device", error=DeviceLost)
    result = orchestrate(independent(Task("t", retries=10)), devices=[device], max_losses=2)
    assert device.calls == 3
    assert isinstance(result["t"].error, DeviceLost)


# -- no device ---------------------------------------------------------------------------------------------------------


async def test_a_task_without_a_capable_device_is_reported_waits_for_a_join_and_runs() -> None:
    orchestrator = Orchestrator([LocalDevice("a")])
    diary = Diary(orchestrator, DeviceEvent)
    plan = independent(Task("t", call=after(1), needs=["gpu"]), Task("u", call=after(1)))
    running = asyncio.create_task(orchestrator.run(plan))
    await at(0.001)
    why = orchestrator.why("t")
    await at(200)
    orchestrator.join(LocalDevice("b", can=["gpu"]))
    result = await running
    assert why.holders[0].kind == "no_device"
    assert "no device with 'gpu' has joined; the devices are a" in str(why)
    assert [event.detail for event in diary.of("no_device")] == ["no device with 'gpu' has joined"]
    assert span(result, "t") == (200, 201)
    assert result.state == "completed"


def test_a_task_no_device_can_take_fails_after_the_stated_time() -> None:
    result = orchestrate(independent(Task("t", call=after(1), needs="gpu")), no_device_timeout=40)
    assert isinstance(result["t"].error, NoDevice)
    assert "no device with 'gpu' became available within 40 s" in str(result["t"].error)
    assert result.summary.makespan == pytest.approx(40, abs=1e-4)


def test_without_any_device_the_plan_fails_after_the_stated_time() -> None:
    result = orchestrate(chain(Task("a"), Task("b")), devices=[], no_device_timeout=40)
    assert result.state == "failed"
    assert str(result["a"].error) == "no device became available within 40 s"
    assert result["b"].status == "cancelled"


async def test_devices_of_another_kind_that_come_and_go_do_not_prolong_the_wait() -> None:
    orchestrator = Orchestrator([LocalDevice("a")], no_device_timeout=300)
    running = asyncio.create_task(orchestrator.run(independent(Task("t", needs="gpu"))))
    for n in range(10):
        await at(100 * n + 50)
        if running.done():
            break
        orchestrator.join(LocalDevice(f"guest{n}"))
        orchestrator.leave(f"guest{n}")
    assert (await running).summary.makespan == pytest.approx(300, abs=1)


async def test_a_retry_that_finds_no_device_waits_and_then_fails() -> None:
    orchestrator = Orchestrator([LocalDevice("a")], no_device_timeout=30)
    plan = independent(Task("t", call=failing(5), retries=1, backoff=1))
    running = asyncio.create_task(orchestrator.run(plan))
    await at(2)
    orchestrator.leave("a")
    result = await running
    assert isinstance(result["t"].error, NoDevice)
    assert result["t"].attempts == 1


def test_the_failure_of_a_task_without_a_device_is_reviewed_like_any_other() -> None:
    async def editor(view: Any, events: Any) -> Any:
        if events[0].kind == "task_failed":
            return [edits.AddTask(Task("instead", call=after(1)))]
        return None

    plan = independent(Task("t", needs="gpu"))
    result = orchestrate(plan, editor=editor, no_device_timeout=5)
    assert result["instead"].status == "completed"


async def test_a_stranded_task_that_an_edit_makes_placeable_runs() -> None:
    orchestrator = Orchestrator([LocalDevice("a")])
    plan = independent(Task("t", call=after(1), needs="gpu"), id="p")
    running = asyncio.create_task(orchestrator.run(plan))
    await at(10)
    plan.edit([edits.UpdateTask("t", needs=[])])
    assert span((await running), "t") == (10, 11)


async def test_a_stranded_task_that_an_edit_removes_does_not_keep_the_plan() -> None:
    orchestrator = Orchestrator([LocalDevice("a")])
    plan = independent(Task("t", needs="gpu"), Task("u", call=after(1)), id="p")
    running = asyncio.create_task(orchestrator.run(plan))
    await at(10)
    plan.edit([edits.RemoveTask("t")])
    result = await running
    assert result.state == "completed"
    assert result.summary.makespan == pytest.approx(10, abs=1e-4)


async def test_tasks_after_an_idle_plan_find_the_devices_as_they_are_now() -> None:
    orchestrator = Orchestrator([LocalDevice("a")])
    await orchestrator.run(Constellation("first"))
    orchestrator.leave("a")
    orchestrator.join(LocalDevice("b"))
    assert (await orchestrator.run(independent(Task("t", call=after(1)), id="second")))["t"].device == "b"


async def test_two_plans_take_turns_on_one_slot() -> None:
    order: list[str] = []

    async def note(work: Work) -> None:
        order.append(work.constellation)
        await asyncio.sleep(1)

    orchestrator = Orchestrator([LocalDevice("one", slots=1, run=note)])
    plans = [independent(*(Task(str(n)) for n in range(4)), id=name) for name in "AB"]
    await asyncio.gather(*(orchestrator.run(plan) for plan in plans))
    assert "".join(order) in ("ABABABAB", "AABABABB", "ABABABBA")


def test_a_task_whose_device_was_lost_goes_to_another_one() -> None:
    class Gone(LocalDevice):
        async def execute(self, work: Work) -> Any:
            raise DeviceLost("gone")

    result = run(Orchestrator([Gone("gone"), LocalDevice("well")]).run(independent(Task("a", call=after(1)), id="p")))
    assert (result.state, result["a"].device) == ("completed", "well")


async def test_a_paused_plan_does_not_fail_a_task_that_waits_for_a_device() -> None:
    orchestrator = Orchestrator([LocalDevice("d")], no_device_timeout=10)
    running = asyncio.ensure_future(orchestrator.run(independent(Task("a", needs=["gpu"], call=after(1)), id="p")))
    await asyncio.sleep(1)
    orchestrator.pause("p")
    await asyncio.sleep(15)
    orchestrator.join(LocalDevice("gpu", can=["gpu"]))
    orchestrator.resume("p")
    assert (await running).state == "completed"
