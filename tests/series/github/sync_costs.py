"""How many requests each kind of sync takes, by a process that begins anew: what the tests hold to its bounds, and the
benchmarks write down."""

from __future__ import annotations

import asyncio
from pathlib import Path

from asterism.series.github.github_register import open_github
from tests.series.github.github_fixtures import environ, merged, service_of
from tests.series.github.github_server import GitHubServer

FIRST = "the first of a series"
NOTHING = "nothing has changed"
QUEUED = "one more is queued"
PROMOTED = "a merge, the next is promoted and assigned"
AGAIN = "assigned again after a person unassigned it, with a comment"
REPAIRED = "a duplicate is repaired"


async def cycle(server: GitHubServer, cache: Path | None = None) -> tuple[int, int]:
    """Requests, and how many of them counted against the limit: all but those that were answered with 304."""
    server.forget()
    register = open_github("acme/rocket", environ=environ(server), cache=cache)
    await service_of(register).sync()
    await register.close()
    assert register.client.calls["requests"] == server.counted["all"]
    return server.counted["all"], server.counted["charged"]


def figures(server: GitHubServer, cache: Path | None) -> dict[str, tuple[int, int]]:
    """Of a repository with one series of three issues, one kind of sync after the other."""
    costs = {FIRST: asyncio.run(cycle(server, cache))}
    asyncio.run(cycle(server, cache))
    costs[NOTHING] = asyncio.run(cycle(server, cache))
    server.call(lambda world: world.add_issue("RFC-093-99: one more"))
    costs[QUEUED] = asyncio.run(cycle(server, cache))
    merged(server, 1)
    costs[PROMOTED] = asyncio.run(cycle(server, cache))
    server.call(lambda world: world.unassign(2, "robot"))
    costs[AGAIN] = asyncio.run(cycle(server, cache))
    server.call(lambda world: world.assign(3, "robot", by_hand=True))
    costs[REPAIRED] = asyncio.run(cycle(server, cache))
    return costs
