"""How many requests a sync makes, and that they are free if nothing has changed."""

from __future__ import annotations

import asyncio

import pytest

from asterism.series.github.github_register import open_github
from tests.series.github import sync_costs
from tests.series.github.github_fixtures import environ, service_of, world_of
from tests.series.github.github_server import GitHubServer
from tests.series.github.sync_costs import cycle, figures

MOST = {
    sync_costs.FIRST: 32,
    sync_costs.NOTHING: 3,
    sync_costs.QUEUED: 8,
    sync_costs.PROMOTED: 22,
    sync_costs.AGAIN: 24,
    sync_costs.REPAIRED: 17,
}


@pytest.mark.parametrize("kept", [False, True], ids=["without a cache", "with a cache"])
def test_a_sync_takes_few_requests(tmp_path, capsys, kept):
    with GitHubServer(world_of()) as server:
        costs = figures(server, tmp_path / "cache.json" if kept else None)
    for what, (requests, charged) in costs.items():
        assert requests <= MOST[what], what
        assert charged <= requests
    if kept:
        assert costs[sync_costs.NOTHING] == (2, 0)
    with capsys.disabled():
        print("".join(f"\n  {what}: {cost[0]} requests, {cost[1]} counted" for what, cost in costs.items()), end=" ")


def test_eight_series_in_step_take_no_more_than_one():
    world = world_of()
    for series in range(1, 8):
        for micro in (1, 2):
            world.add_issue(f"OPS-{series}-{micro}: tidy")
    with GitHubServer(world) as server:
        for _ in range(2):
            asyncio.run(cycle(server))
        assert asyncio.run(cycle(server)) == (3, 3)


async def test_a_service_that_stays_asks_two_questions_and_both_are_free():
    async def stay(server: GitHubServer) -> tuple[int, int]:
        register = open_github("acme/rocket", environ=environ(server))
        service = service_of(register)
        for _ in range(2):
            await service.sync()
        server.forget()
        await service.sync()
        await register.close()
        return server.counted["all"], server.counted["charged"]

    with GitHubServer(world_of()) as server:
        assert await stay(server) == (2, 0)
