"""Election ranks for the devices of a gateway: read once for all, and again for a device that is new."""

from __future__ import annotations

import pytest

from asterism.gateway.gateway_runs import KNOWN_FOR, Standings
from tests.fleet.fleet_scenes import Line, staged

pytestmark = pytest.mark.virtual_time


async def test_ranks_are_read_once_for_many_devices() -> None:
    async with staged() as stage:
        line = Line(stage.store)
        standings = Standings(stage.fleet("server", line))
        await stage.device("kitchen")
        await stage.device("attic")
        for _ in range(3):
            for name in ("kitchen", "attic"):
                ranks, _ = await standings.of(name)
                assert set(ranks) == {"kitchen", "attic"}
        assert line.asked["sessions"] == 1
        await stage.device("cellar")
        assert "cellar" in (await standings.of("cellar"))[0], "a device that is new is known at once"
        assert line.asked["sessions"] == 2
        await stage.devices[0].clock.sleep(KNOWN_FOR)
        await standings.of("kitchen")
        assert line.asked["sessions"] == 3


async def test_a_slow_reading_is_not_repeated_at_once() -> None:
    async with staged() as stage:
        line = Line(stage.store)
        standings = Standings(stage.fleet("server", line))
        await stage.device("kitchen")
        line.slow["sessions"] = 0.5
        await standings.of("kitchen")
        began = stage.now()
        await standings.of("nobody")
        assert stage.now() - began == pytest.approx(4.5), "reading takes a tenth of the time at most"
