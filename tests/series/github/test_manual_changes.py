"""Syncs while people meddle: they merge, close, reopen, assign, release, pause, delete and edit, and replies get lost.

Nothing that the service assigns ever stands beside another that it assigned. What people do by hand is put right by the
next cycle.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable

import pytest

from asterism.core.series.machine import UnreadableSeries
from asterism.series.compare_and_swap import update
from asterism.series.register import STATE_FILE, RegisterUnavailable, SeriesError
from tests.series.github.github_fixtures import QUICK, SERIES, opened, service_of, state, synced, view, world_of
from tests.series.github.github_server import Faults, GitHubServer
from tests.series.github.github_world import World

TOGETHER = 4


def open_issues(world: World) -> list[int]:
    return [issue.number for issue in world.listed() if issue.state == "open" and issue.title.startswith(SERIES + "-")]


def meddle(world: World, chance: random.Random) -> None:
    """Something that a person does on the web page, or with a git program."""
    issues = [listed for listed in world.listed() if listed.title.startswith(SERIES + "-") and not listed.is_pull]
    ref = f"refs/asterism/series/{SERIES}"
    tracking = [listed.number for listed in world.listed() if "asterism-series" in listed.labels]

    def merge() -> None:
        for active in world.active_of(SERIES)[:1]:
            world.merge(world.open_pull("done", [active.number]).number)

    deeds: list[Callable[[], object]] = [
        merge,
        merge,
        lambda: [world.close(active.number, "not_planned") for active in world.active_of(SERIES)[:1]],
        lambda: [world.reopen(issue.number) for issue in issues if issue.state == "closed"][:1],
        lambda: world.assign(chance.choice(issues).number, "robot", by_hand=True),
        lambda: world.unassign(chance.choice(issues).number, "robot"),
        lambda: world.add_issue(f"{SERIES}-{chance.randrange(100)}: new"),
        lambda: [world.delete(number) for number in tracking[:1]],
        lambda: [setattr(world.issue(number), "body", "mine") for number in tracking],
        lambda: world.write_document(ref, "{broken", STATE_FILE) if ref in world.refs else None,
    ]
    chance.choice(deeds)()


async def command(server: GitHubServer, chance: random.Random) -> None:
    """What a person does with the command line."""
    register = opened(server)
    number = chance.choice(server.call(open_issues) or [1])
    steps = [
        lambda series, now: series.leave(number, now),
        lambda series, now: series.front(number, now),
        lambda series, now: series.claim(number, now, "by hand"),
        lambda series, now: series.pause(now, "ada", "lunch"),
        lambda series, now: series.resume(now),
        lambda series, now: series.resume(now),
    ]
    try:
        await update(register, SERIES, chance.choice(steps), "by hand", retry=QUICK)
    except (UnreadableSeries, SeriesError):
        pass
    finally:
        await register.close()


async def one_sync(server: GitHubServer) -> None:
    register = opened(server)
    try:
        report = await service_of(register, lock_deadline=2.0).sync()
        allowed = {"in step", "contended", "unavailable", "unreadable", "no view", "unassignable"}
        assert {series_report.status for series_report in report.series} <= allowed, report.series
    except RegisterUnavailable:
        pass
    finally:
        await register.close()


async def storm(server: GitHubServer, seed: int, rounds: int) -> None:
    chance = random.Random(seed)

    async def people() -> None:
        for _ in range(3):
            await asyncio.to_thread(server.call, lambda world: meddle(world, chance))
            await command(server, chance)

    for _ in range(rounds):
        await asyncio.gather(people(), *(one_sync(server) for _ in range(TOGETHER)))


@pytest.mark.parametrize(
    ("seed", "rounds"), [(1, 2), pytest.param(1, 8, marks=pytest.mark.long), pytest.param(2, 8, marks=pytest.mark.long)]
)
def test_whatever_people_do_the_service_never_assigns_two_and_puts_right_what_they_did(seed, rounds):
    with GitHubServer(world_of(6), Faults(seed=seed, lose=0.03, drop=0.02, broken=0.01)) as server:
        server.limit.remaining = 1_000_000
        asyncio.run(storm(server, seed, rounds))
        assert server.world.doubles == []
        server.faults = Faults()
        server.call(lambda world: world.refs.pop(f"refs/asterism/turns/{SERIES}", None))  # the lock of a dead process
        [report] = asyncio.run(synced(server)).series
        assert report.problem is None
        document = state(server)
        holding = server.call(lambda world: world.assigned_by_series().get(SERIES, []))
        live = server.call(open_issues)
        if document["active_issue"] is not None:
            assert holding == [document["active_issue"]]
        else:
            assert len(holding) <= (1 if "paused" in document else 0)
        known = [issue for issue in [document["active_issue"], *document["queue"]] if issue is not None]
        assert sorted(known) == sorted(live)
        assert view(server, report.tracking) == json.loads(json.dumps(document))
        assert server.world.doubles == []
