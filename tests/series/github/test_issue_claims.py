"""A claim on GitHub reads the issues: it does not wait behind a closed issue, and never claims one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.series.claims import Claim, take_next
from asterism.series.claims import claim as claim_in_register
from asterism.series.compare_and_swap import Outcome, UpdateCounts, update
from asterism.series.github.issue_claims import ClaimAfterDepartures, IssueClaims
from asterism.series.github.observed_state import Departure
from asterism.series.register import NotClaimable
from tests.series.github.github_fixtures import QUICK, SERIES, assigned, merged, opened, state, sync, world_of
from tests.series.github.github_server import GitHubServer
from tests.series.github.github_world import World


@pytest.fixture
def world() -> World:
    return world_of(6)


def claimed(
    server: GitHubServer, number: int, assignee: str | None = None, **options: Any
) -> tuple[Outcome, dict[int, Departure]]:
    async def main() -> tuple[Outcome, dict[int, Departure]]:
        register = opened(server)
        claims = IssueClaims(register.client, assignee)
        try:
            return await claims.claim(register, SERIES, Claim(number, "ann"), retry=QUICK, **options), claims.left
        finally:
            await register.close()

    return asyncio.run(main())


def queued(server: GitHubServer, *numbers: int) -> None:
    async def main() -> None:
        register = opened(server)
        for number in numbers:
            await claim_in_register(register, SERIES, Claim(number), retry=QUICK)
        await register.close()

    asyncio.run(main())


def closed_by_hand(server: GitHubServer, number: int) -> None:
    server.call(lambda world: world.close(number, "not_planned"))


def closed_by_a_commit(server: GitHubServer, number: int) -> None:
    server.call(lambda world: world.close(number, closer="f" * 40))


def deleted(server: GitHubServer, number: int) -> None:
    server.call(lambda world: world.delete(number))


def transferred(server: GitHubServer, number: int) -> None:
    server.call(lambda world: world.transfer(number))


ENDS = [
    (merged, Departure.COMPLETED),
    (closed_by_a_commit, Departure.COMPLETED),
    (closed_by_hand, Departure.ABANDONED),
    (deleted, Departure.DELETED),
    (transferred, Departure.TRANSFERRED),
]


@pytest.mark.parametrize(("end", "fate"), ENDS)
def test_nobody_waits_behind_an_active_issue_that_is_gone(server, end, fate):
    queued(server, 1)
    end(server, 1)
    outcome, left = claimed(server, 2)
    assert (outcome.after.active, left) == (2, {1: fate})
    assert (state(server)["active_issue"], state(server)["revision"]) == (2, 2)  # one change


@pytest.mark.parametrize(("end", "fate"), ENDS)
def test_the_first_that_is_open_has_its_turn_and_not_the_newcomer(server, end, fate):
    queued(server, 1, 2, 3)
    for number in (1, 2):
        end(server, number)
    outcome, left = claimed(server, 4)
    assert (outcome.after.active, outcome.after.queue, left) == (3, (4,), {1: fate, 2: fate})


@pytest.mark.parametrize("candidate", [2, 3, 5])
def test_an_assigned_issue_has_the_turn_of_one_that_does_not_exist(server, candidate):
    queued(server, 1, 2, 3, 4)
    deleted(server, 1)
    server.call(lambda world: world.assign(2, "ann"))
    server.call(lambda world: world.assign(3, "robot"))
    outcome, left = claimed(server, candidate, assignee="robot")
    assert (outcome.after.active, left) == (3, {1: Departure.DELETED})
    assert outcome.after.queue == ((2, 4) if candidate != 5 else (2, 4, 5))
    assert state(server)["revision"] == 5  # one change


def test_without_an_assignee_any_assigned_issue_has_that_turn(server):
    queued(server, 1, 2, 3)
    server.call(lambda world: world.assign(3, "ann"))
    closed_by_hand(server, 1)
    assert claimed(server, 4)[0].after.active == 2  # a closed issue says that its work has ended
    deleted(server, 2)
    assert claimed(server, 5)[0].after.active == 3


def test_the_head_of_the_queue_may_claim_its_turn(server):
    queued(server, 1, 2, 3)
    merged(server, 1)
    assert claimed(server, 2)[0].after.active == 2


def test_the_next_issue_is_one_that_is_open(server):
    queued(server, 1, 2, 3)
    closed_by_hand(server, 1)
    deleted(server, 2)

    async def next_of(holder: str) -> Outcome | None:
        register = opened(server)
        try:
            return await take_next(register, holder, make=IssueClaims(register.client).claim, retry=QUICK)
        finally:
            await register.close()

    outcome = asyncio.run(next_of("ann"))
    assert outcome is not None
    assert (outcome.after.active, outcome.after.holder, outcome.after.queue) == (3, "ann", ())
    assert asyncio.run(next_of("bob")) is None


def test_an_open_active_issue_is_waited_for_as_before(server):
    queued(server, 1)
    counts = UpdateCounts()
    outcome, left = claimed(server, 2, counts=counts)
    assert (outcome.after.active, outcome.after.queue, left) == (1, (2,), {})
    assert counts.duplicate_prevented == 1
    server.forget()
    assert not claimed(server, 2)[0].changed
    looked = [path.rpartition("/")[2] for method, path, _ in server.log if method == "GET" and "/issues/" in path]
    assert looked == ["2", "1"]  # the candidate and the active one, and nobody else


def test_while_a_series_is_paused_nobody_gets_the_turn_of_who_is_gone(server):
    async def pause() -> None:
        register = opened(server)
        await update(register, SERIES, lambda series, now: series.pause(now, "ann"), "pause", retry=QUICK)
        await register.close()

    queued(server, 1, 2)
    asyncio.run(pause())
    merged(server, 1)
    outcome, left = claimed(server, 3)
    assert (outcome.after.active, outcome.after.queue, left) == (None, (2, 3), {1: Departure.COMPLETED})


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (merged, r"#2 is closed \(completed\)"),
        (closed_by_hand, r"#2 is closed \(abandoned\)"),
        (deleted, "issue #2 does not exist"),
        (transferred, "#2 was transferred"),
    ],
)
def test_what_is_not_open_is_not_claimed(server, end, said):
    queued(server, 1)
    before = state(server)
    end(server, 2)
    with pytest.raises(NotClaimable, match=said):
        claimed(server, 2)
    assert state(server) == before


def test_what_was_never_there_and_pull_requests_are_not_claimed(server):
    with pytest.raises(NotClaimable, match="issue #4711 does not exist"):
        claimed(server, 4711)
    pull = server.call(lambda world: world.open_pull("a change", [1]).number)
    with pytest.raises(NotClaimable, match="is a pull request"):
        claimed(server, pull)
    server.call(lambda world: world.merge(pull))
    with pytest.raises(NotClaimable, match=r"is closed \(completed\)"):
        claimed(server, pull)
    assert server.call(lambda world: SERIES in world.documents()) is False


def test_a_pull_request_that_was_made_active_leaves_when_it_is_merged(server):
    pull = server.call(lambda world: world.open_pull("a change", []).number)
    queued(server, pull)
    assert claimed(server, 2)[0].after.active == pull
    server.call(lambda world: world.merge(pull))
    outcome, left = claimed(server, 2)
    assert (outcome.after.active, left) == (2, {pull: Departure.COMPLETED})


def test_who_becomes_active_after_the_look_is_looked_at_too(server):
    """Another claims and its issue is closed, all between our look and our change."""
    queued(server, 1)
    merged(server, 1)

    async def main() -> tuple[Outcome, dict[int, Departure]]:
        register = opened(server)
        claims = IssueClaims(register.client)
        swap, raced = register.swap, []

        async def late(*words: Any) -> str:
            if not raced:
                raced.append(1)
                await asyncio.to_thread(claimed, server, 3)
                await asyncio.to_thread(merged, server, 3)
            return await swap(*words)

        register.swap = late  # type: ignore[method-assign]
        try:
            return await claims.claim(register, SERIES, Claim(2), retry=QUICK), claims.left
        finally:
            await register.close()

    outcome, left = asyncio.run(main())
    assert (outcome.after.active, outcome.after.queue) == (2, ())
    assert left == {3: Departure.COMPLETED}


def test_by_the_register_alone_one_would_wait_behind_a_closed_issue(server):
    """The ablation: what a claim did before it looked."""
    queued(server, 1)
    merged(server, 1)
    queued(server, 2)
    assert (state(server)["active_issue"], state(server)["queue"]) == (1, [2])


def test_many_claims_at_once_behind_a_closed_issue_make_one_active(server):
    queued(server, 1)
    merged(server, 1)

    async def claim_issue(number: int) -> Outcome:
        register = opened(server)
        try:
            return await IssueClaims(register.client).claim(register, SERIES, Claim(number), retry=QUICK)
        finally:
            await register.close()

    async def all_of_them() -> list[Outcome]:
        return await asyncio.gather(*(claim_issue(number) for number in (2, 3, 4, 5, 6)))

    asyncio.run(all_of_them())
    document = state(server)
    assert sorted([document["active_issue"], *document["queue"]]) == [2, 3, 4, 5, 6]
    sync(server)
    assert assigned(server) == [document["active_issue"]]


@pytest.mark.parametrize(
    ("gone", "item", "said"),
    [
        ({1: Departure.COMPLETED}, 2, "completed #1; claim #2 by ann"),
        ({1: Departure.DELETED}, 9, "deleted #1; promote #2; queue #9 by ann"),
        ({1: Departure.DELETED}, 3, "deleted #1; promote #2 by ann"),
        ({7: Departure.DELETED}, 9, "queue #9 by ann"),
        ({}, 9, "queue #9 by ann"),
    ],
)
def test_the_history_says_who_left_and_why(gone, item, said):
    from asterism.core.series.machine import Series

    series = Series("X").claim(1, 1.0).enqueue([(2, 2), (3, 3)], 2.0)
    step = ClaimAfterDepartures(Claim(item, "ann"), gone)
    after = step(series, 3.0)
    assert step.message(series, after) == said
    assert after.revision == series.revision + 1
