"""A device that was frozen between a grant and its execution."""

from __future__ import annotations

import pytest

from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.fleet.device.lease import Lease
from tests.fleet.fleet_scenes import Stage

pytestmark = pytest.mark.virtual_time

WORK = Workflow("work", call="work:do", heartbeat=3.0, heartbeat_timeout=10.0)


async def test_a_run_received_before_a_long_freeze_is_not_begun_after_it(stage: Stage) -> None:
    """The lease held when the run came. It has run out when the execution begins."""
    kitchen = await stage.device("kitchen")
    lease = kitchen.agent.lease
    asked: list[float] = []

    def expired_at_the_second_look(run: Run, now: float | None = None) -> float:
        asked.append(Lease.remaining(lease, run, now))
        return asked[-1] if len(asked) == 1 else 0.0

    lease.remaining = expired_at_the_second_look  # type: ignore[method-assign]
    run = await stage.person.create(WORK)
    await stage.until(lambda: len(asked) >= 2)
    del lease.remaining
    given_back = await stage.reaches(run, "reassigning")
    assert given_back.previous[-1].detail == "kitchen had to stop it"
    assert kitchen.hands.begun == []
