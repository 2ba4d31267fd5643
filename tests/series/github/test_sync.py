"""Syncs against a local GitHub: which issue is assigned, which is next, and what is repaired."""

from __future__ import annotations

import asyncio
import json
from copy import deepcopy

import pytest

from asterism.series.github.discovery import SeriesMatcher
from asterism.series.github.observed_state import IssueObserver
from asterism.series.register import RegisterUnavailable
from tests.series.github.github_fixtures import (
    SERIES,
    assigned,
    merged,
    opened,
    service_of,
    state,
    sync,
    synced,
    view,
)
from tests.series.github.github_server import Faults
from tests.series.github.github_world import World


def test_the_first_sync_assigns_the_first_and_queues_the_others_in_their_order(server):
    report = sync(server)
    assert (report.state.active, report.state.queue, report.assigned) == (1, (2, 3), True)
    assert assigned(server) == [1]
    assert state(server)["active_issue"] == 1
    assert state(server)["queue"] == [2, 3]


def test_a_sync_that_finds_everything_in_step_changes_nothing(server):
    sync(server)
    before = server.call(lambda world: (dict(world.refs), world.counts.copy(), world.clock))
    server.forget()
    report = sync(server)
    assert not report.changed
    assert server.call(lambda world: (dict(world.refs), world.counts.copy(), world.clock)) == before
    assert [method for method, path, _ in server.log if path != "/graphql"] == ["GET", "GET"]


def test_a_merged_issue_makes_way_for_the_next(server):
    sync(server)
    merged(server, 1)
    report = sync(server)
    assert (report.promoted, {n: str(fate) for n, fate in report.left.items()}) == (2, {1: "completed"})
    assert assigned(server) == [2]


def test_an_issue_that_was_closed_without_a_merge_is_abandoned_and_the_next_is_promoted(server):
    sync(server)
    server.call(lambda world: world.close(1, "not_planned"))
    report = sync(server)
    assert str(report.left[1]) == "abandoned"
    assert assigned(server) == [2]


def test_an_issue_closed_by_a_pull_request_that_was_not_merged_is_abandoned(server):
    sync(server)

    def close(world: World) -> None:
        pull = world.open_pull("a try", [1])
        world.close(pull.number)
        world.close(1, closer=pull.number)

    server.call(close)
    assert str(sync(server).left[1]) == "abandoned"


def test_an_issue_closed_by_a_commit_is_completed(server):
    sync(server)
    server.call(lambda world: world.close(1, closer=world.refs["refs/heads/main"]))
    assert str(sync(server).left[1]) == "completed"


def test_a_pull_request_that_is_closed_unmerged_and_reopened_leaves_the_open_issue_active(server):
    sync(server)
    pull = server.call(lambda world: world.open_pull("a try", [1])).number
    server.call(lambda world: world.close(pull))
    assert sync(server).state.active == 1
    server.call(lambda world: world.reopen(pull))
    assert sync(server).state.active == 1
    assert assigned(server) == [1]
    server.call(lambda world: world.merge(pull))
    assert sync(server).promoted == 2


def test_an_issue_that_is_reopened_after_the_next_was_promoted_waits_at_the_end(server):
    sync(server)
    server.call(lambda world: world.close(1, "not_planned"))
    sync(server)
    server.call(lambda world: world.reopen(1))  # it is still assigned, as GitHub leaves it
    assert assigned(server) == [2, 1]
    report = sync(server)
    assert (report.state.active, report.state.queue, report.repaired) == (2, (3, 1), [1])
    assert assigned(server) == [2]


def test_a_transferred_issue_leaves_its_series(server):
    sync(server)
    server.call(lambda world: world.transfer(1))
    report = sync(server)
    assert str(report.left[1]) == "transferred"
    assert assigned(server) == [2]


def test_a_deleted_and_a_renamed_issue_leave_their_series(server):
    sync(server)
    server.call(lambda world: world.delete(1))
    server.call(lambda world: setattr(world.issue(2), "title", "nothing of that kind"))
    report = sync(server)
    assert {n: str(fate) for n, fate in report.left.items()} == {1: "deleted", 2: "evicted"}
    assert assigned(server) == [3]


def test_a_new_issue_is_queued_at_the_end_whatever_its_micro_number(server):
    sync(server)
    number = server.call(lambda world: world.add_issue("RFC-093-00: forgotten")).number
    assert sync(server).state.queue == (2, 3, number)


def test_an_active_issue_that_is_open_but_not_assigned_is_assigned_again(server):
    sync(server)
    server.call(lambda world: world.unassign(1, "robot"))
    report = sync(server)
    assert (report.state.active, report.state.revision) == (1, 1)
    assert assigned(server) == [1]


def test_what_is_assigned_by_hand_beside_the_active_one_is_unassigned_in_enforce(server):
    sync(server)
    server.call(lambda world: world.assign(3, "robot", by_hand=True))
    server.call(lambda world: world.assign(3, "ada", by_hand=True))
    report = sync(server)
    assert (report.repaired, report.duplicates) == ([3], [])
    assert assigned(server) == [1]
    assert [person.login for person in server.call(lambda world: world.issue(3)).assignees] == ["ada"]


def test_what_is_assigned_by_hand_is_reported_and_left_alone_in_observe(server):
    sync(server)
    server.call(lambda world: world.assign(3, "robot", by_hand=True))
    report = sync(server, "observe")
    assert (report.repaired, report.duplicates) == ([], [3])
    assert assigned(server) == [3, 1]


GIT = ("git/trees", "git/commits", "git/refs")


def test_observe_writes_the_view_and_nothing_else(server):
    """The view is an issue, and the ref that says which; to make it takes a turn, which is given back."""
    before = server.call(lambda world: (dict(world.refs), deepcopy(world.issues)))
    report = sync(server, "observe")
    refs, issues = server.call(lambda world: (dict(world.refs), deepcopy(world.issues)))
    new = {ref.removeprefix("refs/asterism/").removesuffix(f"/{SERIES}") for ref in refs.keys() - before[0].keys()}
    assert new == {"tracking", "turns"}
    assert {ref: refs[ref] for ref in before[0]} == before[0]
    turns = server.call(lambda world: world.documents("refs/asterism/turns/"))
    assert json.loads(turns[SERIES])["holder"] is None
    assert issues.keys() - before[1].keys() == {report.tracking}
    assert {number: issues[number] for number in before[1]} == before[1]
    assert (assigned(server), server.world.assigned_log) == ([], [])
    made = {(method, path.removeprefix("/repos/acme/rocket")) for method, path, _ in server.posted}
    assert made <= {("POST", "/graphql"), *(("POST", f"/{allowed}") for allowed in (*GIT, "issues"))}
    shown = view(server, report.tracking)
    assert (shown["active_issue"], shown["queue"]) == (1, [2, 3])
    assert "only observes" in server.call(lambda world: world.issue(report.tracking).body)


def test_a_dry_run_writes_nothing_at_all(server):
    before = server.call(lambda world: (dict(world.refs), dict(world.counts)))
    report = sync(server, dry_run=True)
    assert report.promoted == 1
    assert server.call(lambda world: (dict(world.refs), dict(world.counts))) == before


def test_announce_comments_once_on_each_promotion(server):
    tracking = sync(server, "announce").tracking
    merged(server, 1)
    sync(server, "announce")
    sync(server, "announce")
    comments = [note["body"] for note in server.call(lambda world: world.issue(tracking)).comments]
    assert [comment.splitlines()[0] for comment in comments] == [
        "#1 is now the active issue of RFC-093 (revision 1).",
        "#2 is now the active issue of RFC-093 (revision 2).",
    ]


def test_a_login_that_cannot_be_assigned_is_an_error_and_not_a_success(server):
    for login in ("nobody-of-that-name", "stranger"):
        report = sync(server, assignee=login)
        assert report.status == "unassignable"
        assert login in (report.problem or "")
        assert not report.assigned


def test_an_assignment_whose_replies_all_get_lost_is_found_by_reading_it_back(server):
    server.faults = Faults(lose=1.0, only=lambda method, path: path.endswith("/assignees"))
    assert sync(server).assigned
    assert assigned(server) == [1]


def test_an_assignment_that_never_arrives_is_no_success(server):
    server.faults = Faults(drop=1.0, only=lambda method, path: path.endswith("/assignees"))
    report = sync(server)
    assert (report.status, report.assigned, report.state.active) == ("unavailable", False, 1)
    server.faults = Faults()
    assert sync(server).assigned  # and the next cycle makes good for it


def test_an_issue_that_vanishes_as_it_is_assigned_is_told_and_the_next_cycle_goes_on(server):
    gate = server.hold("POST", "/issues/1/assignees")

    async def scene():
        late = asyncio.create_task(synced(server))
        await gate.reached_by(late)
        await asyncio.to_thread(server.call, lambda world: world.delete(1))
        gate.open()
        return (await late).series[0]

    assert asyncio.run(scene()).status == "unassignable"
    assert sync(server).state.active == 2


def test_a_bot_is_assigned_through_graphql_and_people_stay(server):
    server.call(lambda world: world.assign(1, "grace", by_hand=True))
    report = sync(server, assignee="copilot-swe-agent")
    assert report.assigned
    assert [assignee.login for assignee in server.call(lambda world: world.issue(1)).assignees] == [
        "grace",
        "copilot-swe-agent",
    ]
    merged(server, 1)
    server.call(lambda world: world.assign(3, "copilot-swe-agent", by_hand=True))
    report = sync(server, assignee="Copilot")
    assert (report.state.active, report.repaired) == (2, [3])
    report = sync(server, assignee="no-bot-of-that-name[bot]")
    assert report.status == "unassignable"


def test_what_is_assigned_already_when_a_series_begins_stays_active(server):
    server.call(lambda world: world.assign(2, "robot", by_hand=True))
    report = sync(server)
    assert (report.state.active, report.state.queue) == (2, (1, 3))
    assert assigned(server) == [2]


def test_a_paused_series_promotes_nobody_and_leaves_alone_what_people_assign(server):
    sync(server)

    async def pause() -> None:
        from asterism.series.compare_and_swap import update

        register = opened(server)
        await update(register, SERIES, lambda series, now: series.pause(now, "ada", "a release"), "pause")
        await register.close()

    asyncio.run(pause())
    merged(server, 1)
    report = sync(server)
    assert (report.state.active, report.promoted, assigned(server)) == (None, None, [])
    server.call(lambda world: world.assign(3, "robot", by_hand=True))
    assert sync(server).repaired == []
    assert assigned(server) == [3]


def test_several_series_are_kept_apart_and_labels_may_name_them(server):
    server.call(lambda world: world.add_issue("OPS-7-01: tidy"))
    server.call(lambda world: world.add_issue("fix the lights", labels=["series:house/2"]))
    server.call(lambda world: world.add_issue("fix the door", labels=["series:house/1"]))
    server.call(lambda world: world.open_pull("RFC-093-09: not an issue", []))
    report = asyncio.run(synced(server))
    assert {
        series_report.name: (series_report.state.active, series_report.state.queue) for series_report in report.series
    } == {
        "RFC-093": (1, (2, 3)),
        "OPS-7": (4, ()),
        "house": (6, (5,)),
    }


def test_only_the_named_series_is_brought_in_step(server):
    server.call(lambda world: world.add_issue("OPS-7-01: tidy"))
    report = sync(server, only=frozenset({"OPS-7"}))
    assert report.name == "OPS-7"
    assert server.call(lambda world: list(world.documents())) == ["OPS-7"]


def test_a_label_narrows_the_list_and_the_tracking_issue_is_found_all_the_same(server):
    for number in (1, 2):
        server.call(lambda world, number=number: world.add_label(world.issue(number), "rfc"))
    assert sync(server, label="rfc").state.queue == (2,)
    tracking = server.call(lambda world: world.counts["issues created"])
    sync(server, label="rfc")
    assert server.call(lambda world: world.counts["issues created"]) == tracking


def test_hundreds_of_issues_are_found_page_by_page(server):
    for micro in range(4, 241):
        server.call(lambda world, micro=micro: world.add_issue(f"RFC-093-{micro}: part"))
    report = sync(server)
    assert len(report.state.queue) == 239
    assert report.state.queue == tuple(range(2, 241))


def test_an_issue_that_slips_through_between_two_pages_is_not_overlooked_by_who_assigns(server):
    """Of 150 issues the first is closed after the first page was read: the 101st is on neither page then."""
    for number in range(4, 151):
        server.call(lambda world, number=number: world.add_issue(f"RFC-093-{number}: part"))
    answer, pages = server._answered, []

    def answered(*args):
        done = answer(*args)
        if args[1].startswith("/repos/acme/rocket/issues?"):
            pages.append(args[1])
            if len(pages) == 1:
                server.world.close(3)
        return done

    server._answered = answered

    async def numbers(steady: bool) -> set[int]:
        register = opened(server)
        survey = await IssueObserver(register.client, SeriesMatcher()).survey(steady)
        await register.close()
        return set(survey.series[SERIES])

    everybody = set(range(1, 151)) - {3}
    assert asyncio.run(numbers(steady=False)) == everybody - {101} | {3}
    server.call(lambda world: world.reopen(3))
    pages.clear()
    assert asyncio.run(numbers(steady=True)) == everybody


@pytest.mark.parametrize("first_sync", [True, False])
def test_an_issue_that_others_release_after_the_survey_is_not_queued_again(server, first_sync):
    """One process lists the issues and is delayed; others close the first and the second issue meanwhile."""
    if not first_sync:
        sync(server)
    new = server.call(lambda world: world.add_issue("RFC-093-04: new").number)

    async def delayed():
        register = opened(server)
        service = service_of(register)
        survey = service.observer.survey

        async def survey_then_delay(*args):
            done = await survey(*args)
            service.observer.survey = survey
            await synced(server)
            for number in (1, 2):
                merged(server, number)
                await synced(server)
            return done

        service.observer.survey = survey_then_delay
        try:
            return await service.sync()
        finally:
            await register.close()

    [report] = asyncio.run(delayed()).series
    assert report.status == "in step"
    assert (report.state.active, report.state.queue, report.promoted) == (3, (new,), None)
    assert assigned(server) == [3]


def test_search_is_never_asked_for_it_lags_behind(server):
    sync(server)
    merged(server, 1)
    sync(server)
    assert not [path for _, path, _ in server.log if "search" in path]


def test_an_empty_repository_is_told_in_a_sentence(server):
    server.world.empty = True
    with pytest.raises(RegisterUnavailable, match="push a commit"):
        asyncio.run(synced(server))


def test_the_history_tells_what_each_sync_did(server):
    sync(server)
    merged(server, 1)
    sync(server)

    async def told() -> list[str]:
        register = opened(server)
        try:
            return [change.message for change in await register.history(SERIES, 10)]
        finally:
            await register.close()

    assert asyncio.run(told()) == ["sync: completed #1; promote #2 by cron", "sync: claim #1; queue #2, #3 by cron"]


async def test_the_figures_of_a_sync_are_counted(server):
    register = opened(server)
    service = service_of(register)
    await service.sync()
    await asyncio.to_thread(merged, server, 1)
    await asyncio.to_thread(server.call, lambda world: world.assign(3, "robot", by_hand=True))
    await service.sync()
    await register.close()
    counts = service.metrics.counts
    expected = {
        "promotion_events": 2,
        "duplicate_prevented": 2,
        "assigned": 2,
        "unassigned": 1,
        "duplicates_found": 1,
        "completed": 1,
        "problems": 0,
    }
    assert {key: counts[key] for key in expected} == expected
    assert counts["api_requests"] == server.counted["all"]
    assert json.dumps(counts)
