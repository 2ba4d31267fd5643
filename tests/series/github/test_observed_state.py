"""Lists of issues are read to their end, whatever is cached, and narrowed by the required label."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from asterism.series.github.discovery import Assignee, SeriesMatcher
from asterism.series.github.observed_state import CannotRebuild, IssueObserver
from tests.series.github.github_fixtures import SERIES, assigned, opened, service_of, sync, synced, world_of
from tests.series.github.github_server import GitHubServer
from tests.series.github.github_world import World


@pytest.fixture
def server():
    with GitHubServer(world_of()) as running:
        yield running


def without_link_on_304(server: GitHubServer) -> None:
    answer = server._answered

    def answered(*args: Any) -> Any:
        status, extra, content = answer(*args)
        return status, {key: value for key, value in extra.items() if status != 304 or key != "Link"}, content

    server._answered = answered  # type: ignore[method-assign]


@pytest.mark.parametrize("link", [True, False], ids=["a 304 says what comes next", "a 304 does not"])
def test_the_101st_issue_is_found_by_one_who_knows_the_first_hundred(link):
    """The first page has not changed, and that there is a second is new."""
    world = World()
    for micro in range(1, 101):
        world.add_issue(f"RFC-1-{micro:03}: part")
    with GitHubServer(world) as server:
        if not link:
            without_link_on_304(server)

        async def scene() -> list[str]:
            register = opened(server)
            service = service_of(register, view=False)
            for _ in range(2):
                await service.sync()
            server.call(lambda world: world.add_issue("RFC-2-01: a new series"))
            server.call(lambda world: world.add_issue("RFC-1-101: one too many"))
            server.call(lambda world: world.assign(102, "robot", by_hand=True))
            report = await service.sync()
            await register.close()
            return [series_report.name for series_report in report.series]

        assert asyncio.run(scene()) == ["RFC-1", "RFC-2"]
        assert assigned(server, "RFC-1") == [1]


def test_a_list_that_is_not_given_in_pages_is_read_once(server):
    """All of it comes at once, however many there are and whichever page is asked for."""
    for number in range(97):
        server.call(lambda world, number=number: world.add_issue(f"issue {number}"))
    server.routes._page = lambda things: (200, things, {})

    async def listed() -> int:
        register = opened(server)
        issues = await register.client.get_all("issues", {"state": "open"})
        await register.close()
        return len(issues)

    assert asyncio.run(listed()) == 100
    assert server.counted["all"] == 2
    server.call(lambda world: world.add_issue("one more"))
    server.forget()
    assert (asyncio.run(listed()), server.counted["all"]) == (101, 1)


async def test_an_event_does_not_widen_which_series_are_meant(server):
    server.call(lambda world: world.add_issue("OPS-7-1: tidy"))
    register = opened(server)
    report = await service_of(register, only=frozenset({SERIES})).sync(frozenset({"OPS-7"}))
    await register.close()
    assert [series_report.name for series_report in report.series] == []
    assert (assigned(server, "OPS-7"), server.log) == ([], [])


# -- labels ------------------------------------------------------------------------------------------------------------


def test_an_issue_that_loses_the_label_leaves_its_series(server):
    def add(world: World) -> None:
        for micro in (1, 2):
            world.add_issue(f"OPS-7-{micro}: tidy", labels=["bot"])

    server.call(add)
    [report] = asyncio.run(synced(server, label="bot")).series
    assert (report.name, report.state.active, report.state.queue) == ("OPS-7", 4, (5,))
    server.call(lambda world: world.issue(4).labels.clear())
    [report] = asyncio.run(synced(server, label="bot")).series
    assert ({number: str(fate) for number, fate in report.left.items()}, report.state.active) == ({4: "evicted"}, 5)
    assert not report.state.queue


def test_a_label_is_the_same_in_whatever_case(server):
    """The repository had both labels in other letters before."""

    def prepare(world: World) -> None:
        world.labels.update({"Asterism-Series": 1, "Bot": 2})
        for number in (1, 2, 3):
            world.add_label(world.issue(number), "bot")

    server.call(prepare)
    first = sync(server, label="BOT")
    assert first.state.queue == (2, 3)
    server.forget()
    assert sync(server, label="bot").tracking == first.tracking
    assert {method for method, path, _ in server.log if path != "/graphql"} == {"GET"}
    assert server.call(lambda world: world.issue(first.tracking)).labels == ["Asterism-Series"]


# -- rebuilding --------------------------------------------------------------------------------------------------------


def live(server: GitHubServer, name: str, matcher: SeriesMatcher, known: bool) -> list[tuple[int, bool]]:
    async def scene() -> list[tuple[int, bool]]:
        register = opened(server)
        try:
            issues = await IssueObserver(register.client, matcher).live_issues(name, known)
            return [(int(issue.item), issue.assigned) for issue in issues]
        finally:
            await register.close()

    return asyncio.run(scene())


def test_a_series_of_which_nothing_is_found_is_not_rebuilt_as_empty(server):
    server.call(lambda world: world.add_issue("[Alpha 1] tidy"))
    with pytest.raises(CannotRebuild, match="nothing was written"):
        live(server, "Alpha", SeriesMatcher(), True)
    with pytest.raises(CannotRebuild, match="nothing was written"):
        live(server, SERIES, SeriesMatcher(required="bot"), True)
    assert live(server, "Alpha", SeriesMatcher(r"^\[(?P<series>\w+) (?P<micro>\d+)\]"), True) == [(4, False)]


def test_without_knowing_whom_series_assign_the_one_that_is_assigned_is_active(server):
    server.call(lambda world: world.assign(2, "robot", by_hand=True))
    assert live(server, SERIES, SeriesMatcher(), False) == [(1, False), (2, True), (3, False)]
    server.call(lambda world: world.assign(3, "ada", by_hand=True))
    with pytest.raises(CannotRebuild, match="#2, #3 of RFC-093 are assigned"):
        live(server, SERIES, SeriesMatcher(), False)
    issues = live(server, SERIES, SeriesMatcher(assignee=Assignee("robot")), True)
    assert issues == [(1, False), (2, True), (3, False)]


# -- what others read --------------------------------------------------------------------------------------------------


def test_a_comment_mentions_nobody_and_shows_no_picture(server):
    server.call(lambda world: world.add_issue("[@octocat ![x](http://e/x.png)] a"))
    asyncio.run(synced(server, "announce", pattern=r"^\[(?P<series>[^ ]+ [^ ]+)\]"))
    comments = json.dumps([body for _, path, body in server.posted if path.endswith("/comments")])
    assert "octocat" in comments
    assert "@octocat" not in comments
    assert "![" not in comments
