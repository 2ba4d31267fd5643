"""A store that has lost commits, such as after the promotion of a standby that lagged behind: the process of a plan
ends with that reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.fleet.fleet import Fleet
from asterism.store.store_errors import StoreCorrupt, StoreError
from tests.durable import durable_work
from tests.durable.durable_scenes import Line, Stage, behind, chain
from tests.store.postgres_cluster import Cluster


class Lagging(Line):
    """A store that refuses everything once it ``has_lost`` commits."""

    has_lost = False

    def __getattr__(self, name: str) -> Any:
        member = super().__getattr__(name)
        if not asyncio.iscoroutinefunction(member):
            return member

        async def asked(*arguments: Any, **more: Any) -> Any:
            if self.has_lost:
                raise StoreCorrupt("2 of the last 4 commits are missing")
            return await member(*arguments, **more)

        return asked


@pytest.mark.virtual_time
@pytest.mark.parametrize("first", ["journal", "heartbeat"])
async def test_the_process_of_a_plan_ends_with_the_reason(
    stage: Stage, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    line = Lagging(stage)
    running = stage.spawn(behind(stage, line).run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    await asyncio.sleep(5.0)
    line.has_lost = True
    if first == "journal":
        durable_work.gate("a").set()
    with pytest.raises(StoreCorrupt, match="2 of the last 4 commits are missing"):
        await running
    assert [record.message for record in caplog.records if record.exc_info] == [], "no traceback"


@pytest.mark.long
async def test_after_the_promotion_of_a_lagging_standby_a_process_says_why_it_ends() -> None:
    durable_work.reset()
    with Cluster(synchronous=False) as cluster:
        async with asyncio.timeout(300.0), await Fleet.open(cluster.url()) as fleet:
            running = asyncio.create_task(DurableOrchestrator(fleet, local=1).run(chain("a", "b", "c", call="wait")))
            await durable_work.gate("a begun").wait()
            await asyncio.to_thread(cluster.cut)
            durable_work.gate("a").set()
            await durable_work.gate("b begun").wait()
            await asyncio.to_thread(cluster.fail_over)
            durable_work.gate("b").set()
            with pytest.raises(StoreError, match=r"commits .* are missing"):
                await running
