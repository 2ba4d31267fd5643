"""How many requests a sync takes: few, stated here, and free where nothing has changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from github_scenes import environ, merged, service_of, world_of
from github_server import GitHubServer

from asterism.series.github.opening import open_github


async def cycle(server: GitHubServer, cache: Path | None = None) -> tuple[int, int]:
    """Requests, and how many of them counted against the limit, of one sync by a process that begins anew."""
    server.forget()
    register = open_github("acme/rocket", environ=environ(server), cache=cache)
    await service_of(register).sync()
    await register.close()
    assert register.client.calls["requests"] == server.counted["all"]
    return server.counted["all"], server.counted["charged"]


def figures(server: GitHubServer, cache: Path | None) -> dict[str, tuple[int, int]]:
    found = {"the first of a series": asyncio.run(cycle(server, cache))}
    asyncio.run(cycle(server, cache))
    found["nothing has changed"] = asyncio.run(cycle(server, cache))
    server.call(lambda world: world.add_issue("RFC-093-99: one more"))
    found["one more is queued"] = asyncio.run(cycle(server, cache))
    merged(server, 1)
    found["a merge, the next is promoted and assigned"] = asyncio.run(cycle(server, cache))
    server.call(lambda world: world.unassign(2, "robot"))
    found["assigned again"] = asyncio.run(cycle(server, cache))
    server.call(lambda world: world.assign(3, "robot", by_hand=True))
    found["a duplicate is repaired"] = asyncio.run(cycle(server, cache))
    return found


MOST = {
    "the first of a series": 31,
    "nothing has changed": 3,
    "one more is queued": 8,
    "a merge, the next is promoted and assigned": 22,
    "assigned again": 17,
    "a duplicate is repaired": 17,
}


@pytest.mark.parametrize("kept", [False, True], ids=["without a cache", "with a cache"])
def test_a_sync_takes_few_requests(tmp_path, capsys, kept):
    with GitHubServer(world_of()) as server:
        found = figures(server, tmp_path / "cache.json" if kept else None)
    for what, (requests, charged) in found.items():
        assert requests <= MOST[what], what
        assert charged <= requests
    if kept:
        assert found["nothing has changed"] == (2, 0)
    with capsys.disabled():
        print("".join(f"\n  {what}: {one[0]} requests, {one[1]} counted" for what, one in found.items()), end=" ")


def test_twenty_series_in_step_take_no_more_than_one():
    world = world_of()
    for series in range(1, 20):
        for micro in (1, 2):
            world.add_issue(f"OPS-{series}-{micro}: tidy")
    with GitHubServer(world) as server:
        for _ in range(2):
            asyncio.run(cycle(server))
        assert asyncio.run(cycle(server)) == (3, 3)


def test_a_service_that_stays_asks_two_questions_and_both_are_free():
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
        assert asyncio.run(stay(server)) == (2, 0)
