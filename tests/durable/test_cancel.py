"""Cancellation of a stored plan by the process that runs it, with crashes and reloads meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism import Result
from asterism.core.plan.status import ConstellationState
from asterism.durable.journal_store import OwnershipLost
from asterism.store.protocol import Query
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, chain, slowly_completed, written

pytestmark = pytest.mark.virtual_time


async def test_the_next_owner_cancels_runs_on_other_devices(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.device("kitchen")
    first = stage.orchestrator(host="there", local=0)
    running = asyncio.ensure_future(first.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()

    async def never(run_id: str) -> Any:
        await asyncio.sleep(1e6)

    first.fleet.cancel = never  # type: ignore[method-assign]
    cancelling = asyncio.ensure_future(first.cancel("nightly"))
    await stage.until(lambda: first.stored is not None and first.stored.head.cancelling)
    running.cancel()  # it dies before it cancels any run
    await asyncio.wait([running])
    cancelling.cancel()
    find = stage.store.find

    async def slowly(query: Query) -> Any:
        await asyncio.sleep(0.01)  # like a store that is not in memory
        return await find(query)

    monkeypatch.setattr(stage.store, "find", slowly)
    result = await stage.orchestrator(local=0).run_stored("nightly")
    assert result.state is ConstellationState.CANCELLED
    (run,) = await find(Query(workflow="plan:nightly"))
    await asyncio.sleep(60.0)
    (run,) = await find(Query(workflow="plan:nightly"))
    assert run.stop_request == "cancel" or run.ended, (run.status, run.stop_request)


async def test_cancel_raises_if_the_plan_is_left_before_its_end(stage: Stage) -> None:
    first = stage.orchestrator(host="there", grace=3.0)
    running = asyncio.ensure_future(first.run(chain("a", "b", call="stubborn")))
    await durable_work.gate("a begun").wait()
    cancelling = asyncio.ensure_future(first.cancel("nightly"))
    await stage.until(lambda: first.stored is not None and first.stored.head.cancelling)
    running.cancel()
    durable_work.gate("a").set()
    await asyncio.wait([running])
    done, _ = await asyncio.wait([cancelling], timeout=100.0)
    assert done, "it never ends"

    with pytest.raises(OwnershipLost):
        cancelling.result()


async def cancelled_during_a_reload(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> asyncio.Future[Result]:
    """Cancel a plan while its owner has to reload it. Returns the call of ``run``, which may not have returned yet."""
    orchestrator = stage.orchestrator()
    running = asyncio.ensure_future(orchestrator.run(chain("a", "b", call="wait")))
    await written("a")
    reached, go = slowly_completed(stage, monkeypatch, refused=True)
    durable_work.gate("a").set()
    await reached.wait()
    cancelling = asyncio.ensure_future(orchestrator.cancel("nightly"))
    await asyncio.sleep(0)
    go.set()
    await cancelling
    return running


async def test_a_cancelled_plan_has_ended_when_cancel_returns(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    running = await cancelled_during_a_reload(stage, monkeypatch)
    state = (await stage.load()).plan.state
    await running
    assert state is ConstellationState.CANCELLED


async def test_a_cancellation_is_durable_when_cancel_returns(stage: Stage) -> None:
    orchestrator = stage.orchestrator()
    running = asyncio.ensure_future(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    await orchestrator.cancel("nightly")
    state = (await stage.load()).plan.state
    await running
    assert state is ConstellationState.CANCELLED


async def test_a_reload_does_not_undo_a_cancellation(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    running = await cancelled_during_a_reload(stage, monkeypatch)
    assert (await running).state is ConstellationState.CANCELLED
    assert DONE == {"a": 1}


async def test_the_next_owner_finishes_a_cancellation(stage: Stage) -> None:
    first = stage.orchestrator(host="there")
    running = asyncio.ensure_future(first.run(chain("a", "b", call="stubborn")))
    await durable_work.gate("a begun").wait()
    cancelling = asyncio.ensure_future(first.cancel("nightly"))
    await stage.until(lambda: first.stored is not None and first.stored.head.cancelling)
    running.cancel()  # it stops in the middle of the cancellation
    durable_work.gate("a").set()
    await asyncio.wait([running])
    cancelling.cancel()
    result = await stage.orchestrator().run_stored("nightly")
    assert result.state is ConstellationState.CANCELLED
    assert str((await stage.load()).plan["b"].status) == "cancelled"
