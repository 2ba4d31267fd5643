"""An issue of another series is not claimed by mistake, leaves if it was, and stays if somebody forced it in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.series.claims import Claim
from asterism.series.claims import claim as claim_in_register
from asterism.series.compare_and_swap import Outcome, update
from asterism.series.github.issue_claims import IssueClaims
from asterism.series.register import NotClaimable
from tests.series.github.github_fixtures import QUICK, SERIES, assigned, opened, state, sync, synced, world_of
from tests.series.github.github_server import GitHubServer

OTHER = "RFC-100"
FOREIGN = 3


@pytest.fixture
def server():
    """#1 and #2 are of RFC-093, and #3 is RFC-100-01."""
    world = world_of(2)
    world.add_issue(f"{OTHER}-01: another matter")
    with GitHubServer(world) as running:
        yield running


def claimed(server: GitHubServer, number: int, **options: Any) -> Outcome:
    async def main() -> Outcome:
        register = opened(server)
        try:
            return await IssueClaims(register.client).claim(
                register, SERIES, Claim(number, "ann", **options), retry=QUICK
            )
        finally:
            await register.close()

    return asyncio.run(main())


def claimed_without_a_look(server: GitHubServer, number: int) -> None:
    """As over a git remote, where titles are not known."""

    async def main() -> None:
        register = opened(server)
        await claim_in_register(register, SERIES, Claim(number), retry=QUICK)
        await register.close()

    asyncio.run(main())


def reports(server: GitHubServer, **more: Any) -> dict[str, Any]:
    return {report.name: report for report in asyncio.run(synced(server, **more)).series}


def renamed(server: GitHubServer, number: int, title: str) -> None:
    server.call(lambda world: setattr(world.issue(number), "title", title))


# -- claims ------------------------------------------------------------------------------------------------------------


def test_an_issue_whose_title_names_another_series_is_not_claimed(server):
    with pytest.raises(NotClaimable, match=r"#3 belongs to RFC-100, not RFC-093.*--force"):
        claimed(server, FOREIGN)
    assert server.call(lambda world: world.documents()) == {}


def test_an_issue_of_another_series_is_not_queued_either(server):
    sync_all = reports(server)
    assert sync_all[SERIES].state.active == 1
    before = state(server)
    with pytest.raises(NotClaimable, match="belongs to RFC-100, not RFC-093"):
        claimed(server, FOREIGN)
    assert state(server) == before


def test_a_label_takes_precedence_over_the_title(server):
    server.call(lambda world: world.add_label(world.issue(FOREIGN), f"series:{SERIES}"))
    assert claimed(server, FOREIGN).after.active == FOREIGN
    server.call(lambda world: world.add_label(world.issue(2), f"series:{OTHER}"))
    with pytest.raises(NotClaimable, match="belongs to RFC-100"):
        claimed(server, 2)


def test_the_stored_rules_decide_and_without_them_only_another_series_is_refused(server):
    question = server.call(lambda world: world.add_issue("a question")).number
    assert claimed(server, question).after.active == question  # nothing tells by which rules RFC-093 is found
    server.call(lambda world: world.delete(question))
    reports(server)
    question = server.call(lambda world: world.add_issue("another question")).number
    with pytest.raises(NotClaimable, match="belongs to no series"):
        claimed(server, question)


def test_rules_with_a_pattern_of_their_own_are_honoured(server):
    renamed(server, 1, "Work 093/1")
    renamed(server, 2, "Work 093/2")
    pattern = r"^Work (?P<series>\d+)/(?P<micro>\d+)"
    asyncio.run(synced(server, pattern=pattern))

    async def main(number: int) -> Outcome:
        register = opened(server)
        try:
            return await IssueClaims(register.client).claim(register, "093", Claim(number), retry=QUICK)
        finally:
            await register.close()

    assert asyncio.run(main(1)).after.active == 1
    with pytest.raises(NotClaimable, match="belongs to no series"):
        asyncio.run(main(FOREIGN))


# -- force -------------------------------------------------------------------------------------------------------------


def test_a_forced_claim_is_recorded_and_stays_through_syncs(server):
    outcome = claimed(server, FOREIGN, force=True)
    assert (outcome.after.active, outcome.after.forced) == (FOREIGN, (FOREIGN,))
    assert state(server)["forced"] == [FOREIGN]
    for _ in range(2):
        report = reports(server)[SERIES]
        assert (report.state.active, report.state.queue, report.left) == (FOREIGN, (1, 2), {})
    assert claimed(server, FOREIGN).changed is False  # it is known by now
    assert server.call(lambda world: [n for n, issue in world.issues.items() if issue.assignees]) == [FOREIGN]


def test_a_forced_issue_is_of_no_series_by_its_title(server):
    """Otherwise one series would assign it, and the other unassign it, in turn."""
    fourth = server.call(lambda world: world.add_issue(f"{OTHER}-02: the next")).number
    reports(server)
    claimed(server, FOREIGN, force=True)
    by_series = reports(server)
    assert (by_series[OTHER].state.active, by_series[OTHER].state.queue) == (fourth, ())
    assert by_series[SERIES].state.queue == (2, FOREIGN)
    for only in (frozenset({OTHER}), frozenset({SERIES}), None):
        assert all(not report.changed and not report.repaired for report in reports(server, only=only).values())


def test_a_forced_issue_that_is_released_is_forced_no_longer(server):
    claimed(server, FOREIGN, force=True)

    async def release() -> None:
        register = opened(server)
        await update(register, SERIES, lambda series, now: series.leave(FOREIGN, now), "release", retry=QUICK)
        await register.close()

    asyncio.run(release())
    assert "forced" not in state(server)
    by_series = reports(server)
    assert (by_series[SERIES].state.active, by_series[OTHER].state.active) == (1, FOREIGN)


def test_an_issue_that_is_queued_can_be_forced_afterwards(server):
    claimed_without_a_look(server, 1)
    claimed_without_a_look(server, FOREIGN)
    assert claimed(server, FOREIGN, force=True).after.forced == (FOREIGN,)
    assert reports(server)[SERIES].state.queue == (FOREIGN, 2)


# -- syncs -------------------------------------------------------------------------------------------------------------


def test_a_foreign_active_issue_that_nobody_forced_is_evicted_and_the_next_promoted(server):
    claimed_without_a_look(server, FOREIGN)
    by_series = reports(server)
    mine = by_series[SERIES]
    assert ({n: str(why) for n, why in mine.left.items()}, mine.state.active) == ({FOREIGN: "evicted"}, 1)
    assert any("#3 evicted: neither its title nor a label puts it into RFC-093" in line for line in mine.lines())
    assert by_series[OTHER].state.active == FOREIGN
    assert (assigned(server), assigned(server, OTHER)) == ([1], [FOREIGN])


def test_a_foreign_issue_in_the_queue_is_evicted_too(server):
    claimed_without_a_look(server, 1)
    claimed_without_a_look(server, FOREIGN)
    assert reports(server)[SERIES].state.queue == (2,)


def test_a_foreign_issue_is_evicted_from_a_series_without_issues_of_its_own(server):
    for number in (1, 2):
        server.call(lambda world, number=number: world.delete(number))
    claimed_without_a_look(server, FOREIGN)
    by_series = reports(server)
    assert (by_series[SERIES].state.active, by_series[OTHER].state.active) == (None, FOREIGN)


def test_an_observer_says_that_it_would_evict(server):
    claimed_without_a_look(server, FOREIGN)
    [line] = [line for line in reports(server, mode="observe")[SERIES].lines() if "evicted" in line]
    assert "#3 would be evicted" in line
    assert state(server)["active_issue"] == FOREIGN


def test_without_the_check_a_foreign_issue_becomes_active():
    """The ablation: what a claim did before it read the title."""
    world = world_of(2)
    world.add_issue(f"{OTHER}-01: another matter")
    with GitHubServer(world) as server:
        claimed_without_a_look(server, FOREIGN)
        assert state(server)["active_issue"] == FOREIGN
        assert sync(server, only=frozenset({SERIES})).state.active == 1
