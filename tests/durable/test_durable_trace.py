"""The trace of a plan in a store: kept with its head and its runs, and continued by devices and later owners."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.peer_record_validation import problems_in
from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.fleet.device.executor import DeviceExecutor, RunWork
from asterism.fleet.policy.device_policy import DevicePolicy
from asterism.store import row_codec
from asterism.store.protocol import Query
from tests.durable import durable_work
from tests.durable.durable_scenes import Stage, chain, left
from tests.trace_scenes import Spans, ids, parent, traceparent

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return Spans(monkeypatch)


@pytest.mark.virtual_time
async def test_the_runs_of_a_plan_are_in_its_trace(stage: Stage, spans: Spans) -> None:
    await stage.device("kitchen")
    await stage.orchestrator(local=0).run(chain("a", "b"))
    runs = await stage.store.find(Query())
    assert [run.traceparent for run in runs] == [traceparent(spans.only(f"task {name}")) for name in "ab"]
    for name, executed in zip("ab", spans.named("run plan:nightly"), strict=True):
        assert parent(executed) == ids(spans.only(f"task {name}"))[1]  # the device continues the trace
    assert len({ids(span)[0] for span in spans.all()}) == 1
    assert (await stage.load()).head.traceparent == traceparent(spans.only("plan nightly"))


@pytest.mark.virtual_time
async def test_the_next_owner_continues_the_trace(stage: Stage, spans: Spans) -> None:
    first = asyncio.ensure_future(stage.orchestrator().run(chain("a", "b", call="wait")))
    await left(first, lambda: durable_work.gate("a begun").is_set(), stage)
    for name in "ab":
        durable_work.gate(name).set()
    await stage.orchestrator(host="there").run_stored("nightly")
    before, after = spans.named("plan nightly")
    assert ids(after)[0] == ids(before)[0]
    assert parent(after) == ids(before)[1]
    assert ids(spans.only("task b"))[0] == ids(before)[0]


@pytest.mark.virtual_time
async def test_without_a_tracer_nothing_is_recorded(stage: Stage) -> None:
    await stage.device("kitchen")
    await stage.orchestrator(local=0).run(chain("a"))
    [run] = await stage.store.find(Query())
    assert run.traceparent is None
    assert (await stage.load()).head.traceparent is None


def made(**options: Any) -> Run:
    return transitions.create("1", Workflow("w", shell="true"), {}, by="ann", now=1.0, **options)


def test_a_run_keeps_its_trace_in_its_row() -> None:
    assert "traceparent" not in str(row_codec.row_of(made()))
    traced = made(traceparent=SPAN)
    assert row_codec.run_of(row_codec.row_of(traced)) == traced


@pytest.mark.parametrize("odd", ["", "x", f"{SPAN}\n", f"{SPAN}\0", 7])
def test_a_peer_cannot_hand_any_text_to_the_work_as_a_trace(odd: Any) -> None:
    assert problems_in(made(traceparent=SPAN)) == []
    assert any("traceparent" in problem for problem in problems_in(made().changed(traceparent=odd)))


async def executed(run: Run, workflow: Workflow) -> Any:
    executor = DeviceExecutor(DevicePolicy.open(), device="here", session="s")
    try:
        return await executor.execute(RunWork(run.changed(work=workflow.work), {}, lambda _: None, lambda _: None))
    finally:
        executor.close()


PRINT = [sys.executable, "-c", "import os; print(os.environ.get('TRACEPARENT'))"]


async def test_a_device_without_a_tracer_hands_the_span_of_the_creator_on() -> None:
    flow = Workflow("w", argv=PRINT)
    assert (await executed(made(traceparent=SPAN), flow)).strip() == SPAN
    assert (await executed(made(), flow)).strip() == "None"


async def test_a_device_with_a_tracer_makes_a_span_of_its_own(spans: Spans) -> None:
    value = await executed(made(traceparent=SPAN), Workflow("w", argv=PRINT))
    own = spans.only("run w")
    assert value.strip() == traceparent(own)
    assert f"{ids(own)[0]:032x}" in SPAN
    assert f"{parent(own):016x}" in SPAN


async def given_run(run: Any) -> str | None:
    return str(run.traceparent)


async def test_a_function_reads_its_span_from_its_run() -> None:
    flow = Workflow("w", call="tests.durable.test_durable_trace:given_run")
    assert await executed(made(traceparent=SPAN), flow) == SPAN
