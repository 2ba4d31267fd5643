"""A sync with other patterns or labels than those stored with a series leaves the series alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from asterism.series.github.discovery import EARLIER_PATTERNS
from asterism.series.register import STATE_FILE
from tests.series.github.github_fixtures import SERIES, assigned, merged, state, sync, synced, view, world_of
from tests.series.github.github_server import GitHubServer
from tests.series.github.github_world import World

OTHER = r"^(?P<series>RFC_\d+)-(?P<micro>\d+)"
WIDER = r"^(?P<series>[A-Za-z]+-\d+)-(?P<micro>\d+)\b"


def rules(server: GitHubServer, series: str = SERIES) -> Any:
    kept = server.call(lambda world: world.documents("refs/asterism/tracking/"))
    return json.loads(kept[series]).get("found_by") if series in kept else None


@pytest.mark.parametrize("with_view", [True, False], ids=["with a view", "without"])
@pytest.mark.parametrize("slip", [{"pattern": OTHER}, {"label": "typo"}], ids=["pattern", "label"])
def test_a_sync_that_finds_nothing_empties_no_series_of_others(server, slip, with_view):
    sync(server, view=with_view)
    merged(server, 1)
    sync(server, view=with_view)
    before = server.call(lambda world: dict(world.refs))
    report = sync(server, view=with_view, **slip)
    assert (report.status, report.state.active, report.left) == ("unmatched", 2, {})
    assert "by these patterns and labels" in (report.problem or "")
    assert server.call(lambda world: dict(world.refs)) == before
    assert assigned(server) == [2]
    assert sync(server, view=with_view).status == "in step"


def test_what_another_pattern_would_leave_alone_is_observed_so_too(server):
    sync(server)
    for dry in (True, False):
        assert sync(server, "observe", pattern=OTHER, dry_run=dry).status == "unmatched"
    assert rules(server)["pattern"] != OTHER


def two_teams(world: World) -> None:
    for number in (1, 2, 3):
        world.add_label(world.issue(number), "team-a")
    for micro in (1, 2):
        world.add_issue(f"OPS-7-{micro}: tidy", labels=["team-b"])


def test_two_teams_with_labels_of_their_own_do_not_undo_each_other(server):
    server.call(two_teams)
    asyncio.run(synced(server, label="team-a"))
    asyncio.run(synced(server, label="team-b"))
    before = server.call(lambda world: dict(world.refs))
    for label, other in (("team-a", "OPS-7"), ("team-b", SERIES)) * 2:
        report = asyncio.run(synced(server, label=label))
        assert {
            series_report.name: series_report.status for series_report in report.series if series_report.name == other
        } == {other: "left alone"}
        assert [series_report.problem for series_report in report.series] == [None, None]
    assert server.call(lambda world: dict(world.refs)) == before
    assert (assigned(server), assigned(server, "OPS-7")) == ([1], [4])


def test_a_team_whose_series_are_all_done_made_no_slip(server):
    server.call(two_teams)
    asyncio.run(synced(server, label="team-a"))
    asyncio.run(synced(server, label="team-b"))
    for number in (4, 5):
        merged(server, number)
    for _ in range(2):
        report = asyncio.run(synced(server, label="team-b"))
        assert {series_report.name: series_report.status for series_report in report.series} == {
            "OPS-7": "in step",
            SERIES: "left alone",
        }
    assert state(server, "OPS-7")["active_issue"] is None


def test_who_looks_without_a_label_takes_a_series_over_and_is_not_undone(server):
    """All that the one with the label holds is found without it too. The other way round it is not."""
    server.call(lambda world: [world.add_label(world.issue(number), "team-a") for number in (1, 3)])
    assert sync(server, label="team-a").state.queue == (3,)
    assert sync(server).state.queue == (3, 2)
    assert rules(server)["label"] is None
    for _ in range(2):
        report = sync(server, label="team-a")
        assert (report.status, "#2 would not belong to it" in (report.left_alone or "")) == ("left alone", True)
        assert sync(server).changed is False
    assert state(server)["queue"] == [3, 2]


def test_a_pattern_that_finds_all_that_another_did_takes_its_place(server):
    sync(server)
    assert sync(server, pattern=WIDER).status == "in step"
    assert rules(server)["pattern"] == WIDER
    refs = server.call(lambda world: dict(world.refs))
    assert sync(server, pattern=WIDER).changed is False
    assert server.call(lambda world: dict(world.refs)) == refs  # it is written once


def test_an_issue_that_is_renamed_leaves_although_it_was_the_only_one():
    with GitHubServer(world_of(1)) as server:
        sync(server)
        server.call(lambda world: setattr(world.issue(1), "title", "something else"))
        report = sync(server)
        assert ({n: str(fate) for n, fate in report.left.items()}, report.state.active) == ({1: "evicted"}, None)


def test_a_series_of_which_nobody_said_by_what_it_is_found_is_left_alone_if_nothing_of_it_is(server):
    """As an earlier version of this program, and ``series claim``, leave it."""
    sync(server)
    number = json.loads(server.call(lambda world: world.documents("refs/asterism/tracking/"))[SERIES])["issue"]
    text = json.dumps({"series": SERIES, "issue": number})
    server.call(lambda world: world.write_document(f"refs/asterism/tracking/{SERIES}", text, STATE_FILE))
    assert sync(server, pattern=OTHER).status == "unmatched"
    assert assigned(server) == [1]
    report = sync(server)
    assert (report.status, report.tracking, view(server, number)["active_issue"]) == ("in step", number, 1)
    assert rules(server)["label"] is None


def test_a_series_that_the_default_pattern_of_an_earlier_version_found_is_not_left_alone(server):
    sync(server)
    ref = f"refs/asterism/tracking/{SERIES}"
    kept = json.loads(server.call(lambda world: world.documents("refs/asterism/tracking/"))[SERIES])
    kept["found_by"]["pattern"] = next(iter(EARLIER_PATTERNS))
    for number in (2, 3, 1):
        merged(server, number)
    server.call(lambda world: world.write_document(ref, json.dumps(kept), STATE_FILE))
    report = sync(server)
    assert (report.status, report.state.active, sorted(report.left)) == ("in step", None, [1, 2, 3])
