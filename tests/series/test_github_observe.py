"""Who only observes gives nobody anything, says so, and writes nothing twice."""

from __future__ import annotations

import asyncio

import pytest
from github_scenes import SERIES, assigned, opened, service_of, sync, view, world_of
from github_server import GitHubServer
from github_world import iso

from asterism.series.register import STATE_FILE


@pytest.fixture
def server():
    with GitHubServer(world_of()) as running:
        yield running


@pytest.mark.parametrize(("mode", "dry"), [("observe", False), ("enforce", True)])
def test_what_is_only_observed_says_so(server, mode, dry):
    report = sync(server, mode, dry_run=dry)
    assert (report.status, report.observed, report.state.active, report.promoted) == ("observed", True, 1, 1)
    assert report.lines() == [
        f"series {SERIES}: #1 would be active, 2 waiting",
        "  #1 would be promoted",
        "  would queue #2, #3",
    ]
    assert report.to_json()["observed"]
    assert assigned(server) == []


def writes(server: GitHubServer) -> list[tuple[str, str]]:
    return [(method, path) for method, path, _ in server.log if method != "GET" and path != "/graphql"]


@pytest.mark.parametrize("state", [None, "{broken", '{"active_issue": 3, "queue": "rubbish"}'])
def test_to_observe_twice_writes_once(server, state):
    """Also of what would be changed: the view says nothing that differs each time, such as when."""
    if state is not None:
        server.call(lambda world: world.write_document(f"refs/asterism/series/{SERIES}", state, STATE_FILE))

    async def scene() -> None:
        register = opened(server)
        service = service_of(register, "observe")
        await service.sync()
        server.forget()
        ahead = register.client.clock
        register.client.clock = lambda: ahead() + 3600  # type: ignore[method-assign]
        report = await service.sync()
        assert writes(server) == []
        assert view(server, report.series[0].tracking or 0)["updated_at"] == opened_last
        await register.close()

    opened_last = iso(server.call(lambda world: world.issue(3)).created_at)
    asyncio.run(scene())


def test_what_would_change_after_an_enforced_beginning_is_observed_without_writing_twice(server):
    sync(server)
    server.call(lambda world: world.close(1))
    assert sync(server, "observe").state.active == 2
    server.forget()
    assert sync(server, "observe").state.active == 2
    assert writes(server) == []


def test_only_what_was_done_is_counted(server):
    async def counted() -> dict[str, int]:
        register = opened(server)
        service = service_of(register, "observe")
        for _ in range(2):
            await service.sync()
        await register.close()
        assert service.metrics.gauges[SERIES]["duplicates"] == 1
        return service.metrics.counts

    server.call(lambda world: world.assign(1, "robot", by_hand=True))
    server.call(lambda world: world.assign(3, "robot", by_hand=True))
    counts = asyncio.run(counted())
    assert {key for key, count in counts.items() if count} <= {"api_requests", "api_not_modified"}
