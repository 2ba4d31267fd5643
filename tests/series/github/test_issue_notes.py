"""Labels for the places of issues, and comments after a person unassigned the active one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from asterism.series.compare_and_swap import update
from asterism.series.github.github_register import open_github
from asterism.series.github.series_sync import SyncSettings
from asterism.series.github.sync import SyncService
from asterism.series.github.tracking_issue import MAX_CHANGES, BadLabel
from asterism.series.register import STATE_FILE
from tests.series.github.github_fixtures import (
    QUICK,
    SERIES,
    assigned,
    environ,
    merged,
    opened,
    service_of,
    state,
    sync,
    synced,
    world_of,
)
from tests.series.github.github_server import GitHubServer

LABELS = {"active_label": "series-active", "queued_label": "series-queued"}
RESPECT = {"respect_unassign": True}


@pytest.fixture
def server():
    with GitHubServer(world_of()) as running:
        yield running
        assert running.mistakes == []
        assert running.world.doubles == []


def labelled(server: GitHubServer) -> dict[int, list[str]]:
    """Of all issues but the tracking issue, closed ones too."""
    labels_of: dict[int, list[str]] = server.call(
        lambda world: {issue.number: issue.labels for issue in world.listed() if "Series State" not in issue.title}
    )
    return {number: sorted(labels) for number, labels in sorted(labels_of.items())}


def comments(server: GitHubServer, number: int = 1) -> list[str]:
    bodies: list[str] = server.call(lambda world: [note["body"] for note in world.issue(number).comments])
    return bodies


def changed(server: GitHubServer, step: Any) -> None:
    async def main() -> None:
        register = opened(server)
        await update(register, SERIES, step, "by hand", retry=QUICK)
        await register.close()

    asyncio.run(main())


# -- labels ------------------------------------------------------------------------------------------------------------


def test_issues_show_their_places_and_lose_the_labels_when_it_is_over(server):
    sync(server, **LABELS)
    assert labelled(server) == {1: ["series-active"], 2: ["series-queued"], 3: ["series-queued"]}
    merged(server, 1)
    sync(server, **LABELS)
    shown = labelled(server)
    assert (shown[1], shown[2], shown[3]) == ([], ["series-active"], ["series-queued"])
    server.call(lambda world: world.close(3, "not_planned"))
    server.call(lambda world: setattr(world.issue(2), "title", "of no series any more"))
    sync(server, **LABELS)
    assert not any(labelled(server).values())


def test_a_label_of_each_series_has_its_name(server):
    other = server.call(lambda world: world.add_issue("OPS-7-01: another series").number)
    for active in (1, 2):
        asyncio.run(synced(server, active_label="rfc-series-active:{series}"))
        shown = {number: labels for number, labels in labelled(server).items() if labels}
        assert shown == {active: ["rfc-series-active:RFC-093"], other: ["rfc-series-active:OPS-7"]}
        merged(server, active)


def test_labels_are_made_once_with_a_colour_and_a_description(server):
    for _ in range(2):
        sync(server, **LABELS)
    assert server.world.counts["labels made"] == 2
    assert server.world.label_forms["series-active"]["color"] == "0e8a16"


def test_labels_that_are_there_in_other_letters_are_used(server):
    server.call(lambda world: world.make_label("Series-ACTIVE", {}))
    sync(server, **LABELS)
    assert labelled(server)[1] == ["Series-ACTIVE"]
    sync(server, **LABELS)
    assert labelled(server)[1] == ["Series-ACTIVE"]


def test_only_the_label_that_is_wanted_is_set_and_others_stay(server):
    server.call(lambda world: world.add_label(world.issue(1), "bug"))
    sync(server, active_label="in work")
    assert labelled(server) == {1: ["bug", "in work"], 2: [], 3: []}
    merged(server, 1)
    sync(server, active_label="in work")
    assert (labelled(server)[1], labelled(server)[2]) == (["bug"], ["in work"])


def test_what_people_do_to_the_labels_is_written_over(server):
    sync(server, **LABELS)
    server.call(lambda world: world.remove_label(world.issue(1), "series-active"))
    server.call(lambda world: world.add_label(world.issue(3), "series-active"))
    sync(server, **LABELS)
    assert labelled(server) == {1: ["series-active"], 2: ["series-queued"], 3: ["series-queued"]}


def test_without_the_options_no_label_is_touched(server):
    server.call(lambda world: world.add_label(world.issue(3), "series-active"))
    sync(server)
    sync(server, "observe", **LABELS)
    sync(server, dry_run=True, **LABELS)
    assert labelled(server) == {1: [], 2: [], 3: ["series-active"]}


async def test_where_all_is_right_the_labels_cost_no_request(server):
    register = open_github("acme/rocket", environ=environ(server))
    service = service_of(register, **LABELS, **RESPECT)
    for _ in range(2):
        await service.sync()
    server.forget()
    await service.sync()
    await register.close()
    assert (server.counted["all"], server.counted["charged"]) == (2, 0)


def test_who_dies_between_label_and_state_leaves_nothing_behind(server):
    """The label goes first; the state still knows the issue then, and the next sync does both again."""
    sync(server, **LABELS)
    merged(server, 1)

    async def dies() -> None:
        register = opened(server)

        async def swap(*words: Any) -> str:
            raise MemoryError

        register.swap = swap  # type: ignore[method-assign]
        try:
            await service_of(register, **LABELS).sync()
        finally:
            await register.close()

    with pytest.raises(MemoryError):
        asyncio.run(dies())
    assert (labelled(server)[1], state(server)["active_issue"]) == ([], 1)
    sync(server, **LABELS)
    assert (labelled(server)[1], labelled(server)[2]) == ([], ["series-active"])


def test_labels_that_may_not_be_set_hold_up_nothing(server):
    def refuse(*words: Any, **more: Any) -> Any:
        from tests.series.github.github_world import Refusal

        raise Refusal(403, "Resource not accessible by integration")

    server.world.add_label = server.world.make_label = refuse  # type: ignore[method-assign, assignment]
    sync(server, view=False, **LABELS)
    assert assigned(server) == [1]


def test_of_a_long_queue_a_part_is_labelled_at_a_time():
    with GitHubServer(world_of(MAX_CHANGES + 10)) as server:
        sync(server, **LABELS)
        assert sum(bool(labels) for labels in labelled(server).values()) == MAX_CHANGES
        sync(server, **LABELS)
        assert all(labelled(server).values())


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"active_label": "series:RFC-093"}, "names a series"),
        ({"queued_label": "asterism-series"}, "used to find issues"),
        ({"active_label": "Bot", "label": "bot"}, "used to find issues"),
        ({"active_label": "x", "queued_label": "X"}, "cannot be both"),
        ({"active_label": " "}, "not a valid label"),
        ({"active_label": "a,b"}, "not a valid label"),
        ({"active_label": "active:{serie}"}, "not a valid label"),
        ({"active_label": "series:{series}"}, "names a series"),
    ],
)
def test_labels_that_say_something_else_are_refused(server, names, said):
    with pytest.raises(BadLabel, match=said):
        SyncService(opened(server), SyncSettings("robot", **names))


# -- a person unassigns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"assign_with": "graphql"}, {"view": False}], ids=["rest", "graphql", "no view"]
)
def test_who_is_assigned_again_after_a_person_unassigned_it_is_told_so_once(server, options):
    sync(server, **options)
    server.call(lambda world: world.unassign(1, "robot", by="ada"))
    report = sync(server, **options)
    assert (report.unassigned.by, report.to_json()["unassigned_by"]) == ("ada", "ada")
    assert "  ada unassigned #1: it was assigned again" in report.lines()
    assert assigned(server) == [1]
    [note] = comments(server)
    assert note.startswith("ada unassigned robot, but this is the active issue of the series RFC-093")
    assert "@" not in note
    for _ in range(3):
        sync(server, **options)
    assert len(comments(server)) == 1
    server.call(lambda world: world.unassign(1, "robot", by="grace"))
    sync(server, **options)
    assert [note.split()[0] for note in comments(server)] == ["ada", "grace"]


def test_many_who_assign_again_comment_once(server):
    sync(server)
    server.call(lambda world: world.unassign(1, "robot", by="ada"))

    async def many() -> None:
        await asyncio.gather(*(synced(server) for _ in range(6)))

    asyncio.run(many())
    assert (assigned(server), len(comments(server))) == ([1], 1)


@pytest.mark.parametrize("who", ["service", "copilot-swe-agent"], ids=["the service itself", "a bot"])
@pytest.mark.parametrize("options", [{}, RESPECT], ids=["", "respect"])
def test_what_no_person_did_is_mended_without_a_word(server, who, options):
    sync(server, **options)
    server.call(lambda world: world.unassign(1, "robot", by=who))
    sync(server, **options)
    assert (assigned(server), comments(server), state(server).get("paused")) == ([1], [], None)


@pytest.mark.parametrize("options", [{}, RESPECT], ids=["", "respect"])
def test_who_was_unassigned_before_its_turn_came_is_assigned_without_a_word(server, options):
    sync(server, **options)
    server.call(lambda world: world.assign(2, "robot", by_hand=True))
    server.call(lambda world: world.unassign(2, "robot", by="ada"))

    def long_ago(world: Any) -> None:
        from datetime import timedelta

        issue = world.issue(2)
        issue.unassigned = [(who, by, at - timedelta(minutes=5)) for who, by, at in issue.unassigned]

    server.call(long_ago)
    changed(server, lambda series, now: series.leave(1, now))
    server.call(lambda world: world.unassign(1, "robot"))
    sync(server, **options)
    assert (assigned(server), comments(server, 2), state(server).get("paused")) == ([2], [], None)


def test_the_mark_of_an_answer_stays_beside_the_others(server):
    sync(server, "announce")
    server.call(lambda world: world.unassign(1, "robot", by="ada"))
    sync(server, "announce")
    merged(server, 1)
    sync(server, "announce")
    kept = json.loads(server.call(lambda world: world.documents("refs/asterism/tracking/")[SERIES]))
    assert kept["answered"] == ["UE_1_0"]
    assert (kept["announced"]["issue"], kept["found_by"]["label"]) == (2, None)


@pytest.mark.parametrize(
    "text",
    [
        *(pytest.param(text, marks=pytest.mark.long) for text in ("{", '{"series": "RFC-093", "answered": 7}')),
        '{"series": "RFC-093", "answered": [7]}',
    ],
)
def test_a_mark_that_cannot_be_read_is_none(server, text):
    sync(server)
    server.call(lambda world: world.write_document(f"refs/asterism/tracking/{SERIES}", text, STATE_FILE))
    server.call(lambda world: world.unassign(1, "robot", by="ada"))
    for _ in range(2):
        sync(server)
    assert len(comments(server)) == 1


# -- and is respected --------------------------------------------------------------------------------------------------


def test_a_person_who_unassigns_pauses_the_series(server):
    sync(server, **RESPECT)
    server.call(lambda world: world.unassign(1, "robot", by="ada"))
    report = sync(server, **RESPECT)
    assert (assigned(server), report.state.active, report.assigned) == ([], 1, False)
    assert state(server)["paused"] == "by ada: unassigned robot from #1"
    assert "  ada unassigned #1: the series is paused" in report.lines()
    [note] = comments(server)
    assert "so the series RFC-093 is paused. Resume it with `asterism series resume RFC-093`" in note
    for _ in range(3):
        sync(server, **RESPECT)
    assert (assigned(server), len(comments(server)), state(server)["revision"]) == ([], 1, 2)


async def test_a_series_that_rests_costs_two_free_requests(server):
    register = open_github("acme/rocket", environ=environ(server))
    service = service_of(register, **RESPECT)
    await service.sync()
    await asyncio.to_thread(server.call, lambda world: world.unassign(1, "robot", by="ada"))
    for _ in range(2):
        await service.sync()
    server.forget()
    await service.sync()
    await register.close()
    assert (server.counted["all"], server.counted["charged"]) == (2, 0)


def test_who_is_resumed_is_assigned_again_and_not_paused_for_the_same_reason(server):
    sync(server, **RESPECT)
    server.call(lambda world: world.unassign(1, "robot", by="ada"))
    sync(server, **RESPECT)
    changed(server, lambda series, now: series.resume(now))
    for _ in range(2):
        sync(server, **RESPECT)
        assert (assigned(server), state(server).get("paused"), len(comments(server))) == ([1], None, 1)
    server.call(lambda world: world.unassign(1, "robot", by="ada"))
    sync(server, **RESPECT)
    assert (assigned(server), len(comments(server))) == ([], 2)


def test_while_it_rests_the_one_that_people_assign_is_left_alone_and_a_second_is_not(server):
    sync(server, **RESPECT)
    server.call(lambda world: world.unassign(1, "robot", by="ada"))
    sync(server, **RESPECT)
    server.call(lambda world: world.assign(3, "robot", by_hand=True))
    sync(server, **RESPECT)
    assert assigned(server) == [3]
    server.call(lambda world: world.assign(2, "robot", by_hand=True))
    sync(server, **RESPECT)
    assert assigned(server) == [2]


def test_if_it_cannot_be_told_who_unassigned_nothing_is_assigned_by_who_respects_it(server, monkeypatch):
    from asterism.series.github import series_sync
    from asterism.series.register import RegisterUnavailable

    async def unknown(*words: Any) -> None:
        raise RegisterUnavailable("who unassigned #1 is not known")

    sync(server)
    server.call(lambda world: world.unassign(1, "robot", by="ada"))
    monkeypatch.setattr(series_sync, "find_unassignment", unknown)
    report = sync(server, **RESPECT)
    assert (report.status, assigned(server)) == ("unavailable", [])
    sync(server)
    assert (assigned(server), comments(server)) == ([1], [])
