"""Broken states, views and tracking issues are found and repaired."""

from __future__ import annotations

import asyncio
import json

import pytest

from asterism.core.series.machine import Series
from asterism.series.github.discovery import TRACKING_LABEL, SeriesIssue
from asterism.series.github.github_client import GitHubClient, RequestRejected
from asterism.series.github.observed_state import ObservedSeries
from asterism.series.github.series_sync import Reconciliation
from asterism.series.register import STATE_FILE
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
from tests.series.github.github_server import GitHubServer
from tests.series.github.github_world import World

REF = f"refs/asterism/series/{SERIES}"
TURN = f"refs/asterism/turns/{SERIES}"
TRACKING = f"refs/asterism/tracking/{SERIES}"


def tracking_issues(server: GitHubServer) -> list[int]:
    """The open ones."""

    def find(world: World) -> list[int]:
        return [issue.number for issue in world.listed() if "asterism-series" in issue.labels and issue.state == "open"]

    numbers: list[int] = server.call(find)
    return numbers


def test_an_active_issue_that_does_not_exist_takes_the_turn_of_no_issue_on_which_the_bot_works(server):
    sync(server)
    document = {**state(server), "active_issue": 999, "queue": [2, 3]}

    def work_on_another(world: World) -> None:
        world.unassign(1, "robot")
        world.assign(3, "robot")
        world.write_document(REF, json.dumps(document), STATE_FILE)

    server.call(work_on_another)
    report = sync(server)
    assert (report.state.active, report.state.queue, assigned(server)) == (3, (2, 1), [3])


# -- the view ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(None, id="none"),
        pytest.param("", id="empty", marks=pytest.mark.long),
        pytest.param("all mine now", id="words", marks=pytest.mark.long),
        pytest.param("```json\n{broken\n```", id="broken json", marks=pytest.mark.long),
        pytest.param(
            '```json\n{"series": "RFC-093", "active_issue": 3, "queue": [], "version": 1, "revision": 999}\n```',
            id="hand-edited json",
        ),
        pytest.param('```json\n{"version": 2}\n```', id="unknown version", marks=pytest.mark.long),
    ],
)
def test_a_body_that_was_edited_is_written_again_and_decides_nothing(server, body):
    number = sync(server).tracking
    server.call(lambda world: setattr(world.issue(number), "body", body))
    report = sync(server)
    assert (report.tracking, report.state.active, assigned(server)) == (number, 1, [1])
    assert view(server, number) == state(server)


def test_a_tracking_issue_that_was_renamed_closed_and_stripped_of_its_label_is_put_right(server):
    number = sync(server).tracking

    def spoil(world: World) -> None:
        issue = world.issue(number)
        issue.title, issue.labels = "nothing to see", []
        world.add_label(issue, "mine")
        world.close(number)

    server.call(spoil)
    assert sync(server).tracking == number
    issue = server.call(lambda world: world.issue(number))
    assert (issue.title, issue.labels, issue.state) == ("RFC-093 Series State", ["mine", "asterism-series"], "open")


def test_a_deleted_tracking_issue_is_made_anew(server):
    number = sync(server).tracking
    server.call(lambda world: world.delete(number))
    again = sync(server).tracking
    assert again != number
    assert view(server, again) == state(server)
    assert sync(server).tracking == again
    assert tracking_issues(server) == [again]


def test_a_tracking_issue_that_was_deleted_is_found_again_by_its_label(server):
    number = sync(server).tracking
    other = server.call(lambda world: world.add_issue("RFC-093 Series State", labels=["asterism-series"])).number
    server.call(lambda world: world.delete(number))
    assert sync(server).tracking == other
    assert view(server, other) == state(server)


def test_a_transferred_tracking_issue_is_made_anew(server):
    number = sync(server).tracking
    server.call(lambda world: world.transfer(number))
    assert sync(server).tracking not in (number, None)


def test_a_second_tracking_issue_is_closed(server):
    number = sync(server).tracking
    server.call(lambda world: world.add_issue("RFC-093 Series State", labels=["asterism-series"]))
    assert sync(server).tracking == number
    assert tracking_issues(server) == [number]


def test_what_the_register_says_of_the_tracking_issue_may_be_rubbish(server):
    number = sync(server).tracking
    for rubbish in ("", "{", "[]", '{"series": "RFC-093", "issue": "4"}', '{"series": "OPS-7", "issue": 1}'):
        server.call(lambda world, rubbish=rubbish: world.write_document(TRACKING, rubbish, STATE_FILE))
        assert sync(server).tracking == number
    assert tracking_issues(server) == [number]


def test_the_tracking_issue_is_created_once_by_many_at_once(server):
    async def many() -> list[int | None]:
        registers = [opened(server) for _ in range(12)]
        services = [service_of(register) for register in registers]
        reports = await asyncio.gather(*(service.sync() for service in services))
        for register in registers:
            await register.close()
        return [report.series[0].tracking for report in reports]

    numbers = set(asyncio.run(many()))
    [number] = tracking_issues(server)
    assert numbers == {number}
    assert server.call(lambda world: world.counts["issues created"]) == 4  # three of the series, and this one
    assert sync(server).tracking == number
    assert tracking_issues(server) == [number]


async def test_who_comes_second_with_a_tracking_issue_closes_its_own(server):
    """One was held up for so long that its turn was over, and another made one meanwhile: the ref decides."""
    gate = server.hold("POST", "/issues$", after=True)
    slow = asyncio.create_task(synced(server))
    await gate.reached_by(slow)
    # the other does not see the first one's issue yet: it looks as it would if GitHub were slow to list it
    hidden = server.call(lambda world: world.listed()[0])
    server.call(lambda world: setattr(hidden, "labels", []))
    server.call(lambda world: world.write_document(TURN, '{"holder": null, "until": 0}', STATE_FILE))
    quick = await synced(server)
    server.call(lambda world: setattr(hidden, "labels", ["asterism-series"]))
    gate.open()
    first, second = quick.series[0].tracking, (await slow).series[0].tracking
    assert first == second
    assert tracking_issues(server) == [first]


def test_a_tracking_issue_whose_creation_got_no_answer_is_not_created_twice(server):
    server.faults.lose, server.faults.only = 1.0, lambda method, path: method == "POST" and path.endswith("/issues")
    number = sync(server).tracking
    assert tracking_issues(server) == [number]


def test_if_it_cannot_be_looked_for_either_only_the_view_is_missing(server, monkeypatch):
    pages = GitHubClient.get_all
    server.faults.lose, server.faults.only = 1.0, lambda method, path: method == "POST" and path.endswith("/issues")

    async def refused(client, path, params):
        if params.get("labels") == TRACKING_LABEL and any(sent[1].endswith("/issues") for sent in server.posted):
            raise RequestRejected(410, "Issues are disabled for this repo")
        return await pages(client, path, params)

    monkeypatch.setattr(GitHubClient, "get_all", refused)
    report = sync(server)
    assert (report.status, report.state.active, assigned(server)) == ("no view", 1, [1])


# -- the state ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty", marks=pytest.mark.long),
        pytest.param("{broken", id="broken"),
        pytest.param("[]", id="a list", marks=pytest.mark.long),
        pytest.param('{"series": "RFC-093"}', id="fields missing", marks=pytest.mark.long),
        pytest.param(
            '{"series": "OPS-7", "active_issue": null, "queue": [], "updated_at": "2026-01-01T00:00:00Z",'
            ' "version": 1, "revision": 3}',
            id="another series",
        ),
        pytest.param(
            '{"series": "RFC-093", "active_issue": 2, "queue": [2], "updated_at": "2026-01-01T00:00:00Z",'
            ' "version": 1, "revision": 3}',
            id="twice",
        ),
    ],
)
def test_a_state_that_cannot_be_read_is_rebuilt_from_the_open_issues_and_keeps_who_is_assigned(server, text):
    sync(server)
    merged(server, 1)
    sync(server)
    server.call(lambda world: world.write_document(REF, text, STATE_FILE))
    report = sync(server)
    assert report.rebuilt
    assert (report.state.active, report.state.queue, assigned(server)) == (2, (3,), [2])
    assert not sync(server).changed


def test_who_is_assigned_goes_before_what_a_broken_state_says(server):
    sync(server)
    server.call(lambda world: world.write_document(REF, '{"active_issue": 3, "queue": "rubbish"}', STATE_FILE))
    assert sync(server, "observe").state.active == 1
    report = sync(server)
    assert (report.rebuilt, report.state.active, report.state.queue) == (True, 1, (2, 3))
    assert ("unassign", 1, "robot") not in server.world.assigned_log


def test_what_a_broken_state_says_holds_if_nobody_is_assigned(server):
    server.call(lambda world: world.write_document(REF, '{"active_issue": 3, "queue": "rubbish"}', STATE_FILE))
    report = sync(server)
    assert (report.rebuilt, report.state.active, report.state.queue) == (True, 3, (1, 2))


def test_a_state_that_another_mended_meanwhile_is_not_rebuilt_a_second_time(server):
    """A person has ordered its queue."""
    sync(server)
    right = state(server)
    observed = ObservedSeries({n: SeriesIssue(n, SERIES, n, n == 3, {}) for n in (1, 2, 3)})
    mended = Series.from_text(json.dumps({**right, "queue": [3, 2]}), SERIES)
    assert Reconciliation(observed, repair=True)(mended, 1.0) is mended


def test_a_state_that_cannot_be_read_is_reported_and_left_in_observe(server):
    sync(server)
    server.call(lambda world: world.write_document(REF, "{broken", STATE_FILE))
    report = sync(server, "observe")
    assert (report.status, report.rebuilt) == ("unreadable", False)
    assert view(server, report.tracking)["active_issue"] == 1
    assert server.call(lambda world: world.documents()[SERIES]) == "{broken"


def test_a_state_of_a_later_version_is_not_ours_to_write_over(server):
    sync(server)
    later = json.dumps({**state(server), "version": 2})
    server.call(lambda world: world.write_document(REF, later, STATE_FILE))
    merged(server, 1)
    report = sync(server)
    assert (report.status, report.promoted) == ("unreadable", None)
    assert "version 2" in (report.problem or "")
    assert server.call(lambda world: world.documents()[SERIES]) == later
    assert assigned(server) == []


def test_a_commit_without_the_file_is_not_free(server):
    sync(server)
    server.call(lambda world: world.write_document(REF, "whatever", "another.txt"))
    report = sync(server)
    assert report.rebuilt
    assert (report.state.active, assigned(server)) == (1, [1])


def test_a_state_that_was_edited_into_another_valid_one_is_brought_in_step(server):
    sync(server)
    edited = json.dumps({**state(server), "active_issue": 3, "queue": [1], "revision": 7})
    server.call(lambda world: world.write_document(REF, edited, STATE_FILE))
    report = sync(server)
    assert (report.state.active, report.state.queue) == (3, (1, 2))
    assert (report.repaired, assigned(server)) == ([1], [3])


def test_a_ref_that_was_deleted_begins_anew_with_who_is_assigned(server):
    sync(server)
    merged(server, 1)
    sync(server)
    server.call(lambda world: world.refs.pop(REF))
    report = sync(server)
    assert (report.state.active, report.state.queue, assigned(server)) == (2, (3,), [2])


def test_trouble_with_one_series_does_not_hold_up_the_others(server):
    server.call(lambda world: world.add_issue("OPS-7-01: tidy"))
    asyncio.run(synced(server))
    server.call(lambda world: world.write_document("refs/asterism/series/OPS-7", '{"version": 9}', STATE_FILE))
    merged(server, 1)
    report = asyncio.run(synced(server))
    assert {
        series_report.name: (series_report.status, series_report.state.active) for series_report in report.series
    } == {
        "OPS-7": ("unreadable", None),
        "RFC-093": ("in step", 2),
    }
