"""Assignments keep the other assignees, also those that are added at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asterism.series.github.github_client import MAX_ATTEMPTS
from tests.series.github.github_fixtures import sync, world_of
from tests.series.github.github_server import GitHubServer

BOT = "copilot-swe-agent"


@pytest.fixture
def server():
    with GitHubServer(world_of()) as running:
        yield running


def people(server: GitHubServer, number: int) -> set[str]:
    return {one.login for one in server.call(lambda world: world.issue(number)).assignees}


def before_the_list(server: GitHubServer, happens: Callable[[], None]) -> None:
    """``happens`` once, after the assignees were read and before the whole list is replaced."""
    answer = server.routes.answer
    left = [happens]

    def answered(method: str, path: str, query: Any, headers: Any, body: bytes) -> Any:
        if path == "/graphql" and b"replaceActorsForAssignable(" in body and left:
            left.pop()()
        return answer(method, path, query, headers, body)

    server.routes.answer = answered


def test_who_is_assigned_while_the_bot_is_stays_assigned(server):
    server.call(lambda world: world.assign(1, "grace", by_hand=True))
    before_the_list(server, lambda: server.world.assign(1, "ada", by_hand=True))
    report = sync(server, assignee=BOT)
    assert (report.status, people(server, 1)) == ("in step", {"grace", "ada", BOT})


def test_who_is_assigned_while_the_bot_is_taken_away_stays_assigned(server):
    sync(server, assignee=BOT)
    server.call(lambda world: world.assign(3, BOT, by_hand=True))
    before_the_list(server, lambda: server.world.assign(3, "ada", by_hand=True))
    report = sync(server, assignee=BOT)
    assert (report.repaired, people(server, 3)) == ([3], {"ada"})


def test_who_leaves_while_the_bot_is_assigned_is_not_brought_back(server):
    """The list that is put in place has them, and so they are there until they leave again; whom people take away
    later is not ours to assign."""
    server.call(lambda world: world.assign(2, "ada", by_hand=True))
    server.call(lambda world: world.unassign(2, "ada", by="grace"))
    before_the_list(server, lambda: (server.world.assign(1, "ada"), server.world.unassign(1, "ada", by="grace")))
    sync(server, assignee=BOT)
    assert people(server, 1) == {BOT}


@pytest.mark.parametrize("times", [1, MAX_ATTEMPTS], ids=["once", "each time"])
def test_who_was_dropped_by_a_list_whose_reply_got_lost_is_brought_back_too(server, times):
    lost: list[int] = []
    write, answer = server._write, server.routes.answer

    def answered(method: str, path: str, query: Any, headers: Any, body: bytes) -> Any:
        if path == "/graphql" and b"replaceActorsForAssignable(" in body and server.counted["replies lost"] < times:
            server.counted["replies lost"] += 1
            lost.append(1)
        return answer(method, path, query, headers, body)

    async def written(writer: Any, *rest: Any) -> None:
        if lost:
            lost.pop()
            writer.transport.abort()
        else:
            await write(writer, *rest)

    server.routes.answer, server._write = answered, written
    before_the_list(server, lambda: server.world.assign(1, "ada", by_hand=True))
    report = sync(server, assignee=BOT)
    assert (report.status, people(server, 1)) == ("in step", {"ada", BOT})
    assert server.counted["replies lost"] == times


def test_a_bot_that_is_the_last_of_many_who_can_be_assigned_is_found():
    world = world_of()
    for number in range(230):
        world.add_person(f"person-{number}")
    world.add_person("release-robot", "Bot")
    with GitHubServer(world) as server:
        report = sync(server, assignee="release-robot[bot]")
        assert (report.status, people(server, 1)) == ("in step", {"release-robot"})
        assert sync(server, assignee="nobody-at-all[bot]", view=False).status == "unassignable"
