"""Syncs in a repository with many open issues and constant comments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asterism.series.github.assignment import DURATION, SeriesAssignmentLock
from asterism.series.github.discovery import Assignee, SeriesMatcher
from asterism.series.github.observed_state import IssueObserver
from tests.series.github.github_fixtures import SERIES, assigned, merged, opened, service_of, sync, world_of
from tests.series.github.github_server import GitHubServer
from tests.series.github.github_world import World

OTHERS = 230


def crowded() -> World:
    world = world_of()
    for number in range(OTHERS):
        world.add_issue(f"another thing {number}")
    return world


@pytest.fixture
def world() -> World:
    return crowded()


def before_each(server: GitHubServer, happens: Callable[[str, str], None]) -> None:
    """``happens`` is called with method and target before each request is answered."""
    answer = server._answered

    def answered(method: str, target: str, *rest: Any) -> Any:
        happens(method, target)
        return answer(method, target, *rest)

    server._answered = answered  # type: ignore[method-assign]


def is_list(method: str, target: str) -> bool:
    return method == "GET" and "/issues?" in target


def test_a_sync_succeeds_while_people_comment_between_any_two_lists(server):
    def comment(method: str, target: str) -> None:
        if is_list(method, target):
            server.world.comment(50, "me too", "ada")

    before_each(server, comment)
    report = sync(server)
    assert (report.status, report.problem, assigned(server)) == ("in step", None, [1])

    async def live() -> list[Any]:
        register = opened(server)
        try:
            return [
                live_issue.item
                for live_issue in await IssueObserver(
                    register.client, SeriesMatcher(assignee=Assignee("robot"))
                ).live_issues(SERIES, True)
            ]
        finally:
            await register.close()

    assert asyncio.run(live()) == [1, 2, 3]  # what a state is rebuilt from, which takes a list that stays the same


@pytest.mark.parametrize("assignee", ["robot", "copilot-swe-agent"])
async def test_in_the_turn_no_list_of_all_issues_is_read(server, assignee):
    """A page takes twenty seconds here, so all of them once would take a turn to its end."""
    now = [0.0]
    lists: list[str] = []

    def slow(method: str, target: str) -> None:
        if is_list(method, target):
            now[0] += 20.0
            lists.append(target)

    before_each(server, slow)
    register = opened(server)
    service = service_of(register, view=False, assignee=assignee)
    service.lock = SeriesAssignmentLock(register, clock=lambda: now[0])
    for active in (1, 2):
        lists.clear()
        [report] = (await service.sync()).series
        assert (report.status, report.assigned, report.state.active) == ("in step", True, active)
        assert len([path for path in lists if "assignee=" not in path]) == 3, "it is listed once, before the turn"
        merged(server, active)
    await register.close()
    assert DURATION - 30.0 < 3 * 20.0 + 20.0


async def test_who_is_assigned_by_hand_after_the_list_was_read_is_seen_in_the_turn(server):
    """Also one that is not among the issues that were listed."""
    gate = server.hold("GET", f"/git/matching-refs/asterism/turns/{SERIES}")

    def by_hand(world: World) -> None:
        new = world.add_issue(f"{SERIES}-09: late")
        world.assign(new.number, "robot", by_hand=True)
        world.assign(2, "robot", by_hand=True)

    register = opened(server)
    syncing = asyncio.create_task(service_of(register).sync())
    await gate.reached_by(syncing)
    await asyncio.to_thread(server.call, by_hand)
    gate.open()
    report = (await syncing).series[0]
    await register.close()
    assert sorted(report.repaired) == [2, OTHERS + 4]
    assert assigned(server) == [1]
