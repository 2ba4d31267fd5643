"""A sync that dies: after each of its writes in turn, with everything else it would have done undone. The next one, by
another process, puts all in step, and at no instant are two issues of the series assigned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asterism.series.github.assignment import DURATION
from tests.series.github.github_fixtures import (
    SERIES,
    assigned,
    merged,
    opened,
    service_of,
    state,
    sync,
    view,
    world_of,
)
from tests.series.github.github_server import GitHubServer


class Dead(BaseException):
    """No code catches it, and every later request fails with it again."""


def dies_after(server: GitHubServer, writes: int) -> bool:
    """A sync that is dead after so many writes; whether it came to that."""
    done = 0

    async def main() -> bool:
        register = opened(server)
        connection = register.client._connection
        send = connection.send

        async def sent(method: str, *rest: Any) -> Any:
            nonlocal done
            if done >= writes:
                raise Dead
            heard = await send(method, *rest)
            done += method != "GET"
            return heard

        connection.send = sent  # type: ignore[method-assign]
        try:
            await service_of(register, "announce").sync()
        except Dead:
            return True
        finally:
            await register.close()
        return False

    return asyncio.run(main())


def later(server: GitHubServer) -> None:
    """By the clock of GitHub the lock of the dead process has expired."""
    server.ahead = DURATION + 30


def check_in_step(server: GitHubServer) -> None:
    """The issues, the state and the only tracking issue agree."""
    document = state(server)
    world = server.world
    of_the_series = [
        listed for listed in world.listed() if listed.title.startswith(f"{SERIES}-") and listed.state == "open"
    ]
    waiting = sorted(issue.number for issue in of_the_series if issue.number != document["active_issue"])
    assert (assigned(server), sorted(document["queue"])) == ([document["active_issue"]], waiting)
    [shown] = [
        listed for listed in world.listed() if listed.title == f"{SERIES} Series State" and listed.state == "open"
    ]
    assert view(server, shown.number) == document
    assert world.doubles == []


def nothing(server: GitHubServer) -> None:
    pass


def a_merge(server: GitHubServer) -> None:
    sync(server)
    merged(server, 1)


def a_duplicate(server: GitHubServer) -> None:
    sync(server)
    server.call(lambda world: world.unassign(1, "robot"))
    server.call(lambda world: world.assign(3, "robot", by_hand=True))


@pytest.mark.parametrize(
    ("before", "every"),
    [(a_merge, 3), *(pytest.param(before, 1, marks=pytest.mark.long) for before in (nothing, a_merge, a_duplicate))],
)
def test_wherever_a_sync_dies_the_next_one_puts_all_in_step(before: Callable[[GitHubServer], None], every: int) -> None:
    """It dies after each write, or after every third."""
    writes, died = 0, True
    while died:
        with GitHubServer(world_of()) as server:
            before(server)
            died = dies_after(server, writes)
            later(server)
            report = sync(server, "announce")
            assert (report.status, report.problem) == ("in step", None), f"after {writes} writes"
            check_in_step(server)
            told = [
                note["body"].partition(" is the active")[0]
                for issue in server.world.listed()
                for note in issue.comments
            ]
            assert len(told) == len(set(told)), "nobody was announced twice"
        writes += every
    assert writes > 8, "it was let die at too few places"


def test_while_the_turn_of_one_who_died_lasts_nobody_assigns_and_that_is_told() -> None:
    with GitHubServer(world_of()) as server:
        writes = 0
        while not [ref for ref in server.world.refs if ref.startswith("refs/asterism/turns/")]:
            writes += 1
            assert dies_after(server, writes)
        report = sync(server, lock_deadline=0.01)
        assert (report.status, report.assigned, assigned(server)) == ("contended", False, [])
