"""A stale replica of GitHub: a state that is not there yet is neither free nor broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asterism.series.compare_and_swap import update
from asterism.series.github.github_register import GitHubRegister, open_github
from asterism.series.register import RegisterUnavailable, Snapshot
from tests.series.github.github_fixtures import (
    SERIES,
    assigned,
    environ,
    merged,
    opened,
    service_of,
    state,
    sync,
    synced,
    world_of,
)
from tests.series.github.github_server import GitHubServer
from tests.series.github.github_world import World

REF = f"refs/asterism/series/{SERIES}"


@pytest.fixture
def world() -> World:
    return world_of(4)


def with_register(server: GitHubServer, scene: Callable[[GitHubRegister], Any]) -> Any:
    async def main() -> Any:
        register = opened(server)
        try:
            return await scene(register)
        finally:
            await register.close()

    return asyncio.run(main())


def forgets(server: GitHubServer, sha: str) -> list[int]:
    """GraphQL does not know this commit, nor what is in it, until the list that is returned is emptied."""
    graphql = server.routes.graphql
    right, lagging = graphql._revision, [1]

    def revision(expression: str | None = None, oid: str | None = None) -> Any:
        return None if lagging and (expression or oid or "").startswith(sha) else right(expression, oid)

    graphql._revision = revision
    return lagging


def test_a_commit_that_one_copy_does_not_know_yet_is_not_rebuilt(server):
    """Otherwise a pause and the order of the queue would be lost."""
    sync(server)

    async def steer(register: GitHubRegister) -> None:
        await update(register, SERIES, lambda series, now: series.front(4, now), "front")
        await update(register, SERIES, lambda series, now: series.pause(now, "ann", "holiday"), "pause")

    with_register(server, steer)
    before = state(server)
    lagging = forgets(server, server.world.refs[REF])
    report = sync(server)
    assert (report.status, "does not know it yet" in (report.problem or "")) == ("unavailable", True)
    assert (state(server), assigned(server)) == (before, [1])
    lagging.clear()
    assert sync(server).status == "in step"
    assert state(server) == before


def test_what_was_not_known_yet_is_not_kept_as_empty(server, tmp_path):
    sync(server)

    async def read(known: bool) -> Snapshot | None:
        register = open_github("acme/rocket", environ=environ(server), cache=tmp_path / "cache.json")
        try:
            return await register.read(SERIES)
        except RegisterUnavailable:
            assert not known
            return None
        finally:
            await register.close()

    lagging = forgets(server, server.world.refs[REF])
    assert asyncio.run(read(known=False)) is None
    lagging.clear()
    snapshot = asyncio.run(read(known=True))
    assert snapshot is not None
    assert SERIES in (snapshot.text or "")


def test_one_commit_that_is_not_known_yet_does_not_hold_up_the_other_series(server):
    server.call(lambda world: world.add_issue("OPS-7-01: tidy"))
    asyncio.run(synced(server))
    forgets(server, server.world.refs["refs/asterism/series/OPS-7"])
    merged(server, 1)
    report = asyncio.run(synced(server))
    assert {series_report.name: series_report.status for series_report in report.series} == {
        "OPS-7": "unavailable",
        SERIES: "in step",
    }
    assert assigned(server) == [2]


def test_a_state_that_vanishes_after_it_was_written_unassigns_nobody(server):
    """The ref is written, and the copy that is asked next does not have it: nobody is active there."""

    def by_hand(world: World) -> None:
        world.assign(2, "robot", by_hand=True)
        world.assign(3, "robot", by_hand=True)  # one too many, so that a turn is taken

    server.call(by_hand)

    async def lagging(register: GitHubRegister) -> Any:
        tip = register.tip

        async def behind(name: str) -> str | None:
            written = [path for method, path, _ in server.log if method == "POST" and path.endswith("/git/refs")]
            return None if written else await tip(name)

        register.tip = behind  # type: ignore[method-assign]
        return (await service_of(register).sync()).series[0]

    report = with_register(server, lagging)
    assert (report.status, report.repaired) == ("unavailable", [])
    assert sorted(assigned(server)) == [2, 3]
    assert sync(server).repaired == [3]  # as soon as it is there


def test_a_state_that_is_older_than_the_one_that_was_seen_decides_nothing(server):
    sync(server)
    old = server.world.refs[REF]
    merged(server, 1)
    sync(server)
    server.call(lambda world: world.assign(3, "robot", by_hand=True))

    async def lagging(register: GitHubRegister) -> Any:
        async def behind(name: str) -> str | None:
            return old

        register.tip = behind  # type: ignore[method-assign]
        return (await service_of(register).sync()).series[0]

    report = with_register(server, lagging)
    assert (report.status, "revision 1" in (report.problem or "")) == ("unavailable", True)
    assert sorted(assigned(server)) == [2, 3]


async def test_a_repository_that_the_credentials_may_not_see_is_not_free(server):
    register = open_github("acme/nowhere", environ=environ(server))
    for asked in (register.read(SERIES), register.history(SERIES, 5), register.names(), register.read_all()):
        with pytest.raises(RegisterUnavailable, match="may not read it"):
            await asked
    await register.close()


async def test_a_series_whose_name_begins_as_anothers_does_is_not_taken_for_it(server):
    register = opened(server)
    await register.swap("RFC-1", None, "one", "m")
    await register.swap("RFC-11", None, "eleven", "m")
    assert (await register.read("RFC-1")).text == "one"
    assert await register.read("RFC-") == Snapshot(None, None)
    await register.close()


def test_all_series_are_read_with_two_questions(server):
    for number in range(6):
        server.call(lambda world, number=number: world.add_issue(f"OPS-{number}-1: tidy"))
    asyncio.run(synced(server, view=False))
    server.forget()
    snapshots = with_register(server, lambda register: register.read_all())
    assert len(snapshots) == 7
    assert server.counted["all"] == 2
