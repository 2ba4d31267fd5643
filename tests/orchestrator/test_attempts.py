"""Attempts: retries, timeouts, what a task may raise, and in which order tasks get their turn."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable
from typing import Any

import pytest

from asterism import LocalDevice, Orchestrator, Task
from asterism.orchestrator.devices import Work
from asterism.testing.virtual_time import run
from tests.orchestrator.orchestrator_scenes import (
    Diary,
    after,
    at,
    chain,
    deadline,
    failing,
    independent,
    orchestrate,
    span,
    stubborn,
    told,
    until,
    why_of,
)


class Attempts:
    """Work that fails ``failures`` times, and remembers when it was tried."""

    def __init__(self, failures: int, seconds: float = 0.0) -> None:
        self.failures, self.seconds = failures, seconds
        self.at: list[float] = []

    async def __call__(self) -> str:
        self.at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds)
        if len(self.at) <= self.failures:
            raise RuntimeError(f"failure {len(self.at)}")
        return f"attempt {len(self.at)}"

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.at, self.at[1:], strict=False)]


# -- retries -----------------------------------------------------------------------------------------------------------


def test_a_task_without_retries_is_tried_once() -> None:
    work = Attempts(1)
    result = orchestrate(independent(Task("a", call=work)))
    assert len(work.at) == 1
    assert result["a"].status == "failed"


def test_a_task_is_tried_again_until_it_succeeds() -> None:
    work = Attempts(2)
    result = orchestrate(independent(Task("a", call=work, retries=5)))
    assert result["a"].value == "attempt 3"
    assert result["a"].attempts == 3
    assert result["a"].error is None
    assert result.state == "completed"


def test_the_last_error_stands_when_the_retries_are_used_up() -> None:
    work = Attempts(99)
    result = orchestrate(independent(Task("a", call=work, retries=3)))
    assert len(work.at) == 4
    assert str(result["a"].error) == "failure 4"


def test_the_pause_before_the_next_attempt_doubles_with_a_jitter_of_half() -> None:
    for seed in range(20):
        work = Attempts(5)
        orchestrate(independent(Task("a", call=work, retries=5, backoff=2)), devices=[LocalDevice("d")])
        for exponent, gap in enumerate(work.gaps):
            assert 2 * 2**exponent * 0.5 <= gap <= 2 * 2**exponent * 1.5, (seed, exponent)


def test_the_jitter_follows_the_seed() -> None:
    def gaps(seed: int) -> list[float]:
        work = Attempts(4)
        orchestrate_seeded = Orchestrator([LocalDevice("d")], seed=seed)
        run(orchestrate_seeded.run(independent(Task("a", call=work, retries=4, backoff=1))))
        return work.gaps

    assert gaps(1) == gaps(1)
    assert gaps(1) != gaps(2)
    expected = random.Random(1)
    microsecond = 1e-6  # the clock shows no shorter times
    assert gaps(1) == pytest.approx([2**n * expected.uniform(0.5, 1.5) for n in range(4)], abs=microsecond)


def test_the_pause_grows_no_longer_than_a_minute_and_a_half() -> None:
    work = Attempts(12)
    orchestrate(independent(Task("a", call=work, retries=12, backoff=1)))
    assert 30 <= max(work.gaps) <= 90


@pytest.mark.long
def test_a_task_may_be_retried_more_than_a_thousand_times() -> None:
    work = Attempts(1100)
    result = orchestrate(independent(Task("a", call=work, retries=1100)))
    assert result["a"].value == "attempt 1101"


def test_no_backoff_means_at_once() -> None:
    work = Attempts(3)
    orchestrate(independent(Task("a", call=work, retries=3, backoff=0)))
    assert work.at == [0, 0, 0, 0]


def test_the_slot_is_free_for_others_while_a_task_waits_for_its_next_attempt() -> None:
    work = Attempts(1, seconds=1)
    plan = independent(Task("a", call=work, retries=1, backoff=10), Task("b", call=after(1)))
    result = orchestrate(plan, devices=[LocalDevice("one", slots=1)])
    assert span(result, "b") == (1, 2)
    assert result["a"].status == "completed"


@pytest.mark.virtual_time
async def test_retries_are_announced_with_the_error() -> None:
    orchestrator = Orchestrator([LocalDevice("d")])
    diary = Diary(orchestrator)
    await orchestrator.run(independent(Task("a", call=Attempts(2), retries=2)))
    assert [str(event.error) for event in diary.of("task_retrying")] == ["failure 1", "failure 2"]
    assert [event.attempt for event in diary.of("task_started")] == [1, 2, 3]
    assert diary.tasks("task_completed") == ["a"]
    assert diary.tasks("task_failed") == []


def test_only_the_last_failure_is_reviewed() -> None:
    asked: list[Any] = []

    async def editor(view: Any, events: Any) -> None:
        asked.extend(event.kind for event in events)

    orchestrate(independent(Task("a", call=Attempts(2), retries=2)), editor=editor)
    assert asked == ["task_completed"]


# -- timeouts ----------------------------------------------------------------------------------------------------------


def test_a_task_past_its_timeout_fails_with_a_timeout_error() -> None:
    result = orchestrate(independent(Task("a", call=after(100), timeout=5)))
    assert span(result, "a") == (0, 5)
    assert isinstance(result["a"].error, TimeoutError)
    assert "'a'" in str(result["a"].error)
    assert "5 s" in str(result["a"].error)


def test_every_attempt_has_the_whole_timeout() -> None:
    work = Attempts(0, seconds=100)
    result = orchestrate(independent(Task("a", call=work, timeout=5, retries=2, backoff=0)))
    assert work.at == [0, 5, 10]
    assert result["a"].status == "failed"


def test_a_task_that_ends_in_time_leaves_no_timer_that_could_hit_its_next_attempt() -> None:
    work = Attempts(1, seconds=4)
    result = orchestrate(independent(Task("a", call=work, timeout=5, retries=1, backoff=0)))
    assert result["a"].status == "completed"
    assert span(result, "a") == (0, 8)


@pytest.mark.virtual_time
async def test_a_coroutine_that_ignores_its_timeout_fails_on_time_and_its_late_result_is_refused() -> None:
    orchestrator = Orchestrator([LocalDevice("d")])
    diary = Diary(orchestrator)
    plan = independent(Task("a", call=stubborn(7, "late"), timeout=5), Task("b", call=after(20)))
    result = await orchestrator.run(plan)
    assert span(result, "a") == (0, 5)
    assert result["a"].value is None
    assert "late result refused" in told(result, "a")
    assert diary.tasks("task_result_refused") == ["a"]
    assert "abandoned" not in told(result, "a")


def test_a_coroutine_that_ignores_its_timeout_keeps_its_slot_until_it_stops_and_no_longer_than_the_grace() -> None:
    plan = independent(Task("a", call=stubborn(8), timeout=5, priority="high"), Task("b", call=after(1)))
    result = orchestrate(plan, devices=[LocalDevice("one", slots=1)], grace=10)
    assert span(result, "b") == (8, 9)

    plan = independent(Task("a", call=stubborn(8), timeout=5, priority="high"), Task("b", call=after(1)))
    result = orchestrate(plan, devices=[LocalDevice("one", slots=1)], grace=2)
    assert span(result, "b") == (7, 8)
    assert "abandoned" in told(result, "a")


class StubbornDevice(LocalDevice):
    def execute(self, work: Work) -> Awaitable[Any]:
        return stubborn(8)()


@pytest.mark.parametrize(("grace", "ended"), [(10, 8), (2, 7)])
def test_a_task_with_outputs_fails_when_it_has_stopped_and_no_later_than_the_grace(grace: float, ended: float) -> None:
    plan = independent(
        Task("a", call=after(100), outputs={"a": "a"}, timeout=5, priority="high"), Task("b", call="x:y")
    )
    result = orchestrate(plan, devices=[StubbornDevice("one", slots=1)], grace=grace)
    assert span(result, "a") == (0, ended)
    assert isinstance(result["a"].error, TimeoutError)
    assert span(result, "b") == (ended, ended + 8)
    assert ("abandoned" in told(result, "a")) == (grace == 2)


def test_an_abandoned_execution_frees_its_slot_only_once() -> None:
    tasks = [Task("a", call=stubborn(30), timeout=5, priority="high")]
    tasks += [Task(f"b{n}", call=after(10)) for n in range(4)]
    result = orchestrate(independent(*tasks), devices=[LocalDevice("one", slots=1)], grace=2)
    assert [span(result, f"b{n}") for n in range(4)] == [(7, 17), (17, 27), (27, 37), (37, 47)]


async def test_a_thread_that_hangs_fails_on_time_and_never_keeps_the_program() -> None:
    release = threading.Event()

    async def main() -> Any:
        orchestrator = Orchestrator([LocalDevice("d", slots=1)], grace=0.05)
        plan = independent(Task("hangs", call=release.wait, timeout=0.05, priority="high"), Task("b", call=after(0)))
        return await deadline(orchestrator.run(plan))

    try:
        result = await main()
    finally:
        release.set()
    assert isinstance(result["hangs"].error, TimeoutError)
    assert result["b"].status == "completed"
    assert "abandoned" in told(result, "hangs")


async def test_a_thread_that_fails_after_its_timeout_is_ignored() -> None:
    release, ended = threading.Event(), threading.Event()

    def late() -> None:
        release.wait()
        ended.set()
        raise RuntimeError("too late")

    orchestrator = Orchestrator([LocalDevice("d")], grace=0.01)
    result = await deadline(orchestrator.run(independent(Task("late", call=late, timeout=0.01))))
    release.set()
    await asyncio.get_running_loop().run_in_executor(None, ended.wait)
    await asyncio.sleep(0)
    assert isinstance(result["late"].error, TimeoutError)


# -- what a task may raise ---------------------------------------------------------------------------------------------


class Peculiar(BaseException):
    """What some libraries raise to get past ``except Exception``."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"),
        asyncio.CancelledError(),
        SystemExit(3),
        StopIteration("over"),
        StopAsyncIteration("over"),
        TimeoutError(),
        Peculiar("of its own"),
        GeneratorExit(),
        ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_task_raises_fails_it_and_nothing_else(error: BaseException) -> None:
    plan = independent(Task("a", call=failing(1, error)), Task("b", call=after(2, "fine")))
    result = orchestrate(plan)
    assert result["a"].status == "failed"
    assert result["a"].error is not None
    assert result["b"].value == "fine"
    assert result.state == "partially_failed"


def test_a_task_that_cancels_itself_has_failed_and_is_tried_again() -> None:
    tries = []

    async def work() -> str:
        tries.append(1)
        if len(tries) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)
        return "second time"

    result = orchestrate(independent(Task("a", call=work, retries=1)))
    assert result["a"].value == "second time"
    assert "cancelled itself" in why_of(result, "a", "attempt failed")


def test_an_error_that_cannot_be_printed_fails_its_task_and_nothing_else() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    plan = independent(Task("a", call=failing(1, Broken())), Task("b", call=after(2)))
    result = orchestrate(plan)
    assert result["a"].status == "failed"
    assert isinstance(result["a"].error, Broken)
    assert result["a"].ended_at is not None
    assert result["b"].status == "completed"


# -- whose turn it is --------------------------------------------------------------------------------------------------


def order(result: Any) -> list[str]:
    return [task.id for task in sorted(result, key=lambda task: task.started_at)]


def test_higher_priorities_go_first_and_equal_ones_in_the_order_they_became_ready() -> None:
    tasks = [Task(f"{priority}{n}", call=after(1), priority=priority)
             for n in (1, 2) for priority in ("low", "normal", "high", "critical")]  # fmt: skip
    result = orchestrate(independent(*tasks), devices=[LocalDevice("one", slots=1)])
    assert order(result) == [f"{priority}{n}" for priority in ("critical", "high", "normal", "low") for n in (1, 2)]


def test_with_rank_the_longest_tail_goes_first_among_equal_priorities() -> None:
    def plan() -> Any:
        made = independent(Task("short", call=after(1)), Task("head", call=after(1)))
        made.add(Task("tail", call=after(1), estimate=10), after="head")
        made.add(Task("urgent", call=after(1), priority="high"))
        return made

    devices = [LocalDevice("one", slots=1)]
    assert order(orchestrate(plan(), devices=devices)) == ["urgent", "short", "head", "tail"]
    assert order(orchestrate(plan(), devices=devices, rank=True)) == ["urgent", "head", "tail", "short"]


class Gauge:
    """Counts how much runs at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def __call__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(1)
        self.now -= 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("devices", "concurrency", "most", "makespan"),
    [
        ([LocalDevice("a", slots=1)], None, 1, 12),
        ([LocalDevice("a", slots=1), LocalDevice("b", slots=3)], None, 4, 3),
        ([LocalDevice("a", slots=4), LocalDevice("b", slots=4)], 3, 3, 4),
        ([LocalDevice("a")], 5, 5, 3),
        ([LocalDevice("a")], None, 12, 1),
        ([LocalDevice("a", slots=2), LocalDevice("b")], None, 12, 1),
    ],
)
def test_slots_and_concurrency_limit_the_running_tasks(
    devices: list[LocalDevice], concurrency: int | None, most: int, makespan: int, seed: int
) -> None:
    gauge = Gauge()
    plan = independent(*(Task(f"t{n}", call=gauge) for n in range(12)))
    result = orchestrate(plan, devices=devices, concurrency=concurrency, seed=seed)
    assert gauge.most == most
    assert result.summary.makespan == pytest.approx(makespan, abs=1e-4)


def test_the_slots_of_each_device_are_never_exceeded() -> None:
    slots = {"small": 1, "middle": 2, "large": 4}
    used = dict.fromkeys(slots, 0)

    class Counting(LocalDevice):
        async def execute(self, work: Any) -> Any:
            used[self.id] += 1
            assert used[self.id] <= slots[self.id]
            try:
                return await super().execute(work)
            finally:
                used[self.id] -= 1

    tasks = [
        Task(f"t{n}", call=(failing if n % 5 == 0 else after)(0.5 + n % 3), retries=n % 2, timeout=1.2)
        for n in range(60)
    ]
    result = orchestrate(independent(*tasks), devices=[Counting(name, slots=n) for name, n in slots.items()], seed=3)
    assert not any(isinstance(task.error, AssertionError) for task in result)
    assert set(used.values()) == {0}


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="concurrency"):
        Orchestrator(concurrency=limit)
    with pytest.raises(ValueError, match="slots"):
        LocalDevice("d", slots=limit)


# -- several plans -----------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_several_plans_share_the_devices_fairly() -> None:
    async def main() -> list[Any]:
        orchestrator = Orchestrator([LocalDevice("d", slots=4)])
        big = independent(*(Task(f"t{n}", call=after(1)) for n in range(40)), id="big")
        small = independent(*(Task(f"t{n}", call=after(1)) for n in range(4)), id="small")
        first = asyncio.create_task(orchestrator.run(big))
        await at(0.5)
        second = asyncio.create_task(orchestrator.run(small))
        return [await first, await second]

    big, small = await main()
    # the first four slots free up at 1; then both get two each until the small one is done
    assert small.summary.makespan == pytest.approx(2.5, abs=1e-4)
    assert big.summary.makespan == pytest.approx(11, abs=1e-4)


@pytest.mark.virtual_time
async def test_a_late_plan_does_not_starve_behind_a_higher_priority_elsewhere() -> None:
    orchestrator = Orchestrator([LocalDevice("d", slots=2)])
    urgent = independent(*(Task(f"t{n}", call=after(1), priority="critical") for n in range(30)), id="urgent")
    humble = independent(Task("one", call=after(1), priority="low"), id="humble")
    first = asyncio.create_task(orchestrator.run(urgent))
    result = await orchestrator.run(humble)
    await first
    assert result.summary.makespan <= 3


def test_a_plan_of_many_tasks_runs_in_the_order_of_its_dependencies() -> None:
    seen: list[int] = []

    def step(n: int) -> Task:
        async def work() -> None:
            seen.append(n)

        return Task(f"t{n}", call=work)

    orchestrate(chain(*(step(n) for n in range(200))), seed=9)
    assert seen == list(range(200))


def test_a_task_cancelled_in_the_turn_it_was_assigned_frees_its_slot_at_once() -> None:
    async def main(turns: int) -> float:
        orchestrator = Orchestrator([LocalDevice("one", slots=1)])
        plan = independent(Task("a", call=after(100)), id="p")
        running = asyncio.create_task(orchestrator.run(plan))
        await until(lambda: plan.state == "executing")
        for _ in range(turns):
            await asyncio.sleep(0)
        await orchestrator.cancel("p")
        await running
        return asyncio.get_running_loop().time()

    assert [run(main(turns)) for turns in range(5)] == [0, 0, 0, 0, 0]


def test_another_attempt_waits_until_the_one_that_timed_out_has_stopped() -> None:
    at_once, most = 0, 0

    async def stubborn() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            await asyncio.sleep(100)
        finally:
            try:
                await asyncio.sleep(3)
            finally:
                at_once -= 1

    plan = independent(Task("a", call=stubborn, timeout=1, retries=3, backoff=0.1), id="p")
    result = run(Orchestrator([LocalDevice("d")]).run(plan))
    assert (result["a"].status, result["a"].attempts, most) == ("failed", 4, 1)


def test_a_generator_function_fails_with_a_clear_message() -> None:
    def generate() -> Any:
        yield 1

    result = run(Orchestrator([LocalDevice("d")]).run(independent(Task("a", call=generate), id="p")))
    assert result["a"].status == "failed"
    assert "is a generator function" in result["a"].reason
