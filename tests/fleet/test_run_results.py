"""Requests to stop a run, reports of its execution, and its result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.core.errors import AsterismError, TooLarge
from asterism.core.record import replace
from asterism.core.run.run import Progress
from tests.fleet.fleet_scenes import WORK, Stage
from tests.trace_scenes import Spans

pytestmark = pytest.mark.virtual_time

# -- requests ----------------------------------------------------------------------------------------------------------


async def test_a_request_to_cancel_is_followed_as_soon_as_the_device_is_woken(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    began = stage.now()
    asked = await stage.person.cancel(run.id)
    assert (asked.status, asked.stop_request) == ("processing", "cancel")
    ended = await stage.end_of(run)
    assert (ended.status, ended.cancelled, ended.error) == ("failed", True, "cancelled by ann (cancel)")
    assert stage.now() - began < 1.0
    assert not kitchen.hands.busy


async def test_a_wish_is_heard_with_the_heartbeat_if_the_wake_gets_lost(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", heartbeat=20.0)
    run = await stage.person.create(replace(WORK, heartbeat=20.0))
    await stage.at_work(kitchen, run)
    kitchen.line.drops["find"] = 1000
    await stage.person.pause(run.id, "lunch")
    began = stage.now()
    paused = await stage.reaches(run, "reassigning")
    assert paused.paused == "by ann: lunch"
    assert stage.now() - began <= 20.5


async def test_a_paused_run_keeps_its_progress_until_it_is_resumed(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.hands.progress(run, 7, 10)
    await stage.person.pause(run.id, "lunch")
    paused = await stage.reaches(run, "reassigning")
    assert (paused.paused, paused.progress) == ("by ann: lunch", Progress(7, 10))
    await asyncio.sleep(600.0)
    assert not kitchen.hands.busy
    await stage.person.resume(run.id)
    await stage.at_work(kitchen, run)
    assert kitchen.hands.works[run.id].run.progress == Progress(7, 10)


async def test_an_execution_that_ends_while_being_stopped_ends_once(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    kitchen.hands.stopping = 2.0
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    await stage.person.cancel(run.id)
    await asyncio.sleep(1.0)
    await stage.person.cancel(run.id)
    ended = await stage.end_of(run)
    assert ended.cancelled
    assert len(kitchen.hands.stopped) == 1


@pytest.mark.store_only("runs are created in its process")
async def test_a_run_stopped_before_its_first_step_leaves_the_worker(stage: Stage) -> None:
    """A task that is cancelled before it has begun takes no step at all."""
    kitchen = await stage.device("kitchen")
    await kitchen.fleet.workflows.add(WORK)
    run = await kitchen.fleet.create("work")
    [held] = kitchen.agent.worker
    kitchen.agent.worker.stop(held, "the device changed its mind")
    assert kitchen.hands.begun == []
    await stage.at_work(kitchen, run)
    stored = await stage.read(run)
    assert (stored.epoch, stored.previous[0].detail) == (2, "the device changed its mind")
    assert (len(kitchen.agent.worker), kitchen.agent.worker.free_slots) == (1, 0)


# -- reports ---------------------------------------------------------------------------------------------------------


async def test_progress_and_the_tail_of_the_output_are_reported_within_a_second_or_so(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    await asyncio.sleep(10.0)
    beats = kitchen.line.asked["heartbeat"]
    for step in range(10):
        kitchen.hands.progress(run, step, 10)
        kitchen.hands.says(run, f"step {step}")
    await asyncio.sleep(1.5)
    assert kitchen.line.asked["heartbeat"] == beats + 1, "one heartbeat for all of it"
    report = (await stage.store.reports([run.id]))[run.id]
    assert (report.progress, report.tail, report.epoch) == (Progress(9, 10), "step 9", 1)


async def test_a_report_that_got_lost_is_made_again(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    await asyncio.sleep(5.0)
    kitchen.line.drops["heartbeat"] = 1
    kitchen.hands.progress(run, 5, 10)
    await asyncio.sleep(20.0)
    assert (await stage.store.reports([run.id]))[run.id].progress == Progress(5, 10)


async def test_progress_is_kept_for_the_next_attempt_whichever_way_a_run_is_lost(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.hands.progress(run, 4, 10)
    await asyncio.sleep(5.0)
    await kitchen.crash()
    monitor = stage.monitor()
    while (await stage.read(run)).status == "processing":
        await monitor.run_pass()
        await asyncio.sleep(5.0)
    assert (await stage.read(run)).progress == Progress(4, 10)


# -- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({1, 2}, "NotJson: the result of run"),
        (float("nan"), "which JSON cannot hold"),
        (10**5000, "is a number with more than 4,300 digits"),
        ({"$blob": "x", "size": 1}, "looks like a reference"),
        ("x" * 3000, "TooLarge: the result of run"),
    ],
    ids=["a set", "not a number", "very many digits", "a reference", "too large"],
)
async def test_a_result_that_cannot_be_kept_is_a_failure_with_words(stage: Stage, value: Any, words: str) -> None:
    await stage.person.configure(large=1000, most=2000)
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.hands.finish(run, value)
    ended = await stage.end_of(run)
    assert ended.status == "failed"
    assert words in (ended.error or "")


async def test_large_inputs_and_outputs_are_kept_apart(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run_input = {"text": "ü" * 200_000}
    run = await stage.person.create(WORK, run_input)
    assert set(run.input) == {"$blob", "size"}
    await stage.at_work(kitchen, run)
    assert kitchen.hands.works[run.id].input == run_input
    kitchen.hands.finish(run, [1] * 100_000)
    ended = await stage.end_of(run)
    assert set(ended.output) == {"$blob", "size"}
    assert await stage.person.output(ended) == [1] * 100_000


@pytest.mark.parametrize("value", ["x" * 200, ["x" * 200]])
async def test_a_value_above_the_limit_is_refused_even_below_the_blob_size(stage: Stage, value: Any) -> None:
    await stage.person.configure(most=100)
    with pytest.raises(TooLarge, match=r"it has 20\d bytes, and the limit is 100: .* asterism fleet set --most"):
        await stage.person.blobs.keep(value, "it")


async def test_an_input_that_is_too_large_is_refused(stage: Stage) -> None:
    await stage.person.configure(most=100_000)
    with pytest.raises(AsterismError, match=r"the input of 'work' has 200,\d+ bytes, and the limit is"):
        await stage.person.create(WORK, {"text": "x" * 200_000})


async def test_the_results_that_a_task_hands_on_have_the_limit_of_a_result_each(stage: Stage) -> None:
    await stage.person.configure(large=10, most=100)
    both = {"a": "x" * 90, "b": "y" * 90}
    stored = await stage.person.blobs.keep(both, "the input", results=True)
    assert await stage.person.blobs.fetch(stored) == both
    with pytest.raises(TooLarge, match=r"'b' in the input has 112 bytes, and the limit is 100"):
        await stage.person.blobs.keep({**both, "b": "y" * 110}, "the input", results=True)


async def test_an_input_that_is_gone_fails_the_run_instead_of_sending_it_round_and_round(stage: Stage) -> None:
    run = await stage.person.create(WORK, {"text": "x" * 200_000})
    stage.store._blobs.clear()
    kitchen = await stage.device("kitchen")
    ended = await stage.end_of(run)
    assert (ended.error or "").endswith("is missing")
    assert kitchen.hands.begun == []
    stage.store._runs[run.id] = ended.changed(input={})  # the stage itself is not the matter here


async def test_a_result_is_not_done_again_because_the_store_could_not_keep_it_at_once(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.line.drops["put_blob"] = 5
    kitchen.hands.finish(run, "x" * 200_000)
    ended = await stage.end_of(run)
    assert (ended.status, ended.epoch) == ("completed", 1)
    assert len(kitchen.hands.begun) == 1


async def test_failed_work_is_tried_again_elsewhere_as_often_as_it_may_be(stage: Stage) -> None:
    kitchen, attic = await stage.device("kitchen"), await stage.device("attic", monitor_every=5.0)
    run = await stage.person.create(replace(WORK, retries=1))
    await stage.until(lambda: kitchen.hands.busy or attic.hands.busy)
    first, second = (kitchen, attic) if kitchen.hands.busy else (attic, kitchen)
    first.hands.fail(run, RuntimeError("out of paper"))
    await stage.at_work(second, run)
    second.hands.fail(run, RuntimeError("out of ink"))
    ended = await stage.end_of(run)
    assert (ended.error, ended.failures) == ("RuntimeError: out of ink", 2)
    assert [assignment.detail for assignment in ended.previous] == [
        "RuntimeError: out of paper",
        "RuntimeError: out of ink",
    ]


# -- traces ------------------------------------------------------------------------------------------------------------


async def test_the_work_belongs_to_the_trace_in_which_the_run_was_created(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = Spans(monkeypatch)
    kitchen = await stage.device("kitchen")
    with spans.tracer.start_as_current_span("creation") as span:
        run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    handed = kitchen.hands.works[run.id].run.traceparent
    assert handed is not None
    kitchen.hands.finish(run, 42)
    await stage.end_of(run)
    trace = f"{span.get_span_context().trace_id:032x}"
    assert run.traceparent is not None
    assert [run.traceparent.split("-")[1], handed.split("-")[1]] == [trace, trace]
