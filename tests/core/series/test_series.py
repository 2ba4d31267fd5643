"""A series has one active item and a queue, and a document that cannot be read is never taken for a free one."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asterism.core.series.machine import LONGEST_LEASE, SCHEMA, Item, Live, Series, UnreadableSeries

unhurried = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
items = st.one_of(st.sampled_from(["r1", "r2", "r3", "r4"]), st.integers(1, 3))
steps = st.lists(st.tuples(st.sampled_from(["claim", "leave"]), items), max_size=30)


def told(steps: list[tuple[str, Item]]) -> Series:
    series = Series("films")
    for now, (what, item) in enumerate(steps):
        series = getattr(series, what)(item, float(now))
    return series


def everybody(series: Series) -> list[Item]:
    """The active item first, then the queue."""
    return [*([] if series.active is None else [series.active]), *series.queue]


# -- properties --------------------------------------------------------------------------------------------------------


@unhurried
@given(steps)
def test_those_who_claim_are_served_in_their_order_and_nobody_is_lost_or_served_twice(steps: Any) -> None:
    """Against the plainest model there is: a line of people, the first of whom is active."""
    series, line = Series("films"), []
    for now, (what, item) in enumerate(steps):
        series = getattr(series, what)(item, float(now))
        if what == "leave":
            line = [other for other in line if other != item]
        elif item not in line:
            line.append(item)
        assert everybody(series) == line
        assert (series.active is None) == (not line)
        assert len(set(line)) == len(line)


@unhurried
@given(steps, st.tuples(st.sampled_from(["claim", "leave"]), items))
def test_saying_the_same_again_changes_nothing(steps: Any, last: tuple[str, Item]) -> None:
    what, item = last
    once = told([*steps, last])
    assert getattr(once, what)(item, 99.0) is once


@unhurried
@given(steps, st.tuples(st.sampled_from(["claim", "leave"]), items))
def test_a_change_has_a_revision_and_a_time_and_what_is_none_has_not(steps: Any, last: tuple[str, Item]) -> None:
    before = told(steps)
    after = getattr(before, last[0])(last[1], 99.0)
    if after is before:
        assert everybody(after) == everybody(before)
    else:
        assert everybody(after) != everybody(before)
        assert (after.revision, after.updated_at, after.name) == (before.revision + 1, 99.0, before.name)


@unhurried
@given(steps, items)
def test_a_newcomer_overtakes_nobody(steps: Any, item: Item) -> None:
    before = told(steps)
    after = before.claim(item, 99.0)
    assert everybody(after)[: len(everybody(before))] == everybody(before)


@unhurried
@given(steps)
def test_the_position_is_the_place_in_the_line(steps: Any) -> None:
    series = told(steps)
    assert [series.position(item) for item in everybody(series)] == list(range(len(everybody(series))))
    assert series.position("nobody") is None


@unhurried
@given(steps)
def test_a_series_survives_json(steps: Any) -> None:
    series = told(steps)
    data = json.loads(json.dumps(series.to_json(), allow_nan=False))
    assert Series.from_json(data) == series
    assert Series.from_json(data).to_json() == data


# -- examples ----------------------------------------------------------------------------------------------------------


def test_the_first_is_active_and_the_others_wait() -> None:
    series = Series("RFC-093").claim(123, 1.0).claim(124, 2.0).claim(125, 3.0)
    assert series == Series("RFC-093", 123, (124, 125), 3.0, 3, since=1.0)


def test_the_next_is_active_when_the_active_one_leaves() -> None:
    series = Series("films").claim("r1", 1.0).claim("r2", 2.0).leave("r1", 3.0)
    assert (series.active, series.queue) == ("r2", ())
    assert series.leave("r2", 4.0) == Series("films", None, (), 4.0, 4)


def test_one_who_waits_may_leave_and_the_others_close_up() -> None:
    series = Series("films").claim("r1", 1.0).claim("r2", 2.0).claim("r3", 3.0).leave("r2", 4.0)
    assert (series.active, series.queue) == ("r1", ("r3",))


def test_the_document_can_be_read_by_people() -> None:
    series = Series("RFC-093", 123, (124, 125), 1758251722.0, 7)
    assert series.to_document() == {
        "series": "RFC-093",
        "active_issue": 123,
        "queue": [124, 125],
        "updated_at": "2025-09-19T03:15:22Z",
        "version": 1,
        "revision": 7,
    }
    assert list(series.to_document()) == ["series", "active_issue", "queue", "updated_at", "version", "revision"]


def test_what_is_set_stands_in_the_document_too() -> None:
    series = Series("RFC-093").claim(123, 0.25, "c1", 3600.0, "ann").pause(1.0, "bob", "holiday")
    assert series.to_document() == {
        "series": "RFC-093",
        "active_issue": 123,
        "queue": [],
        "since": "1970-01-01T00:00:00.250Z",
        "claim": "c1",
        "by": "ann",
        "lease": 3600.0,
        "lease_until": "1970-01-01T01:00:00.250Z",
        "paused": "by bob: holiday",
        "updated_at": "1970-01-01T00:00:01Z",
        "version": 1,
        "revision": 2,
    }


def test_the_document_of_runs_is_as_it_was_before_there_were_issues() -> None:
    series = Series("films", "r1", ("r2",), 5.5, 7)
    assert series.to_json() == {
        "series": "films",
        "active": "r1",
        "queue": ["r2"],
        "updated_at": 5.5,
        "version": 1,
        "revision": 7,
    }


def test_a_series_that_nobody_has_used_can_be_written_and_read() -> None:
    assert Series.from_json(Series("films").to_json()) == Series("films")


def test_who_leaves_during_a_pause_is_followed_by_nobody() -> None:
    series = Series("films").claim("r1", 1.0).claim("r2", 2.0).pause(3.0, "ann").leave("r1", 4.0)
    assert (series.active, series.queue, series.paused) == (None, ("r2",), "by ann")
    assert series.claim("r2", 5.0) is series
    assert series.resume(6.0).claim("r2", 7.0).active == "r2"


@pytest.mark.parametrize("first", [None, 60.0])
def test_who_asked_for_no_lease_has_none_whatever_others_asked_for(first: float | None) -> None:
    series = Series("RFC-093").claim(1, 10.0, lease=first).claim(2, 11.0).claim(3, 12.0, lease=60.0).leave(1, 20.0)
    assert (series.active, series.lease, series.lease_until) == (2, None, None)
    assert series.expire(1e9) is series
    assert series.leave(2, 30.0).lease_until == 90.0


def test_who_waits_may_ask_for_a_lease_later_and_for_another_one() -> None:
    series = Series("RFC-093").claim(1, 10.0).claim(2, 11.0).claim(3, 12.0)
    asked = series.claim(3, 13.0, lease=60.0).claim(2, 14.0, lease=50.0)
    assert (asked.queue, asked.leases) == ((2, 3), ((2, 50.0), (3, 60.0)))
    assert asked.claim(3, 15.0, lease=60.0) is asked
    assert asked.claim(3, 15.0) is asked
    assert asked.claim(3, 15.0, lease=70.0).leases == ((2, 50.0), (3, 70.0))
    assert asked.front(3, 15.0).leases == ((3, 60.0), (2, 50.0))
    assert asked.release(2, 15.0).leases == ((3, 60.0),)


def test_who_is_active_without_a_lease_may_ask_for_one() -> None:
    series = Series("RFC-093").claim(1, 10.0, "c1")
    leased = series.claim(1, 20.0, "c2", lease=60.0)
    assert (leased.lease_until, leased.since, leased.claim_id, leased.revision) == (80.0, 10.0, "c1", 2)
    assert leased.claim(1, 30.0, "c3", lease=60.0) is leased, "to claim is not to renew"


def test_only_the_active_claim_renews_and_a_lease_is_never_shortened() -> None:
    series = Series("RFC-093").claim(1, 10.0, "c1", lease=60.0).claim(2, 11.0, "c2")
    renewed = series.renew(1, 40.0, 100.0, "c1")
    assert (renewed.lease_until, renewed.lease, renewed.revision) == (100.0, 60.0, series.revision + 1)
    assert renewed.renew(1, 50.0, 90.0, "c1") is renewed
    assert renewed.renew(1, 50.0, 200.0, "c2") is renewed
    assert renewed.renew(2, 50.0, 200.0, "c2") is renewed


@pytest.mark.parametrize("lease", [0.0, -1.0, 0.0001, LONGEST_LEASE * 2, float("nan"), float("inf")])
def test_a_lease_that_could_not_be_written_down_is_refused(lease: float) -> None:
    for series in (Series("s"), Series("s").claim(1, 1.0), Series("s").claim(2, 1.0)):
        with pytest.raises(ValueError, match="a lease is"):
            series.claim(1, 2.0, lease=lease)


def test_a_rebuild_during_a_pause_makes_nobody_active() -> None:
    live = [Live(1, 1, True), Live(2, 2)]
    paused = Series("RFC-093").pause(1.0, "ann")
    assert (paused.rebuild(live, 2.0).active, paused.rebuild(live, 2.0).queue) == (None, (1, 2))
    assert Series("RFC-093").claim(2, 0.5).pause(1.0, "ann").rebuild(live, 2.0).active == 2, "it stays active"


def test_who_waits_and_asks_for_a_lease_gets_it_when_it_is_promoted() -> None:
    series = Series("RFC-093").claim(1, 10.0).claim(2, 11.0, lease=60.0).leave(1, 100.0)
    assert (series.active, series.lease_until) == (2, 160.0)


def test_several_operations_may_be_one_change() -> None:
    before = Series("RFC-093").claim(1, 10.0, lease=60.0).claim(2, 11.0)
    after = before.expire(70.0).promote(70.0).as_one_change_of(before)
    assert after.revision == before.revision + 1
    assert before.pause(71.0, "ann").resume(72.0).as_one_change_of(before) is before
    assert before.as_one_change_of(before) is before


def test_a_rebuild_gives_the_turn_to_the_first_that_is_assigned() -> None:
    live = [Live(7, 3), Live(9, 1, True), Live(8, 2, True)]
    series = Series("RFC-093").rebuild(live, 5.0)
    assert (series.active, series.queue, series.since) == (9, (8, 7), 5.0)
    assert series.rebuild(live, 6.0) is series
    assert series.rebuild([Live(7, 3)], 6.0) == Series("RFC-093", None, (7,), 6.0, 2)


# -- texts -------------------------------------------------------------------------------------------------------------


def test_nothing_yet_is_a_series_that_nobody_has_used() -> None:
    assert Series.from_text(None, "RFC-093") == Series("RFC-093") == Series.salvaged(None, "RFC-093")


def test_a_key_that_is_there_twice_makes_it_unreadable() -> None:
    text = Series("RFC-093").claim(1, 5.0).to_text().replace('"queue"', '"active_issue": null, "queue"')
    text = text.replace('  "since": "1970-01-01T00:00:05Z",\n', "")
    with pytest.raises(UnreadableSeries):
        Series.from_text(text, "RFC-093")
    assert Series.salvaged(text, "RFC-093").active == 1


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "NaN", "[" * 100_000])
def test_a_text_that_is_no_document_is_unreadable(text: str) -> None:
    with pytest.raises(UnreadableSeries):
        Series.from_text(text, "RFC-093")


def test_the_state_of_another_series_is_not_ours() -> None:
    text = Series("RFC-094").claim(1, 1.0).to_text()
    with pytest.raises(UnreadableSeries, match="the state of series RFC-093 is that of series RFC-094"):
        Series.from_text(text, "RFC-093")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", Series("s", revision=1)),
        ("[" * 100_000, Series("s", revision=1)),
        ("[1]", Series("s", revision=1)),
        ('{"active_issue": 7, "revision": 41, "version": 9}', Series("s", 7, revision=41)),
        ('{"active_issue": "7", "revision": -3, "paused": ""}', Series("s", revision=1)),
        ('{"active_issue": null, "paused": "by ann"}', Series("s", revision=1, paused="by ann")),
        ('{"active_issue": 7, "forced": [9, 7]}', Series("s", 7, revision=1, forced=(7,))),
        ('{"active_issue": 7, "forced": [9]}', Series("s", 7, revision=1)),
        ('{"active_issue": 7, "forced": 7}', Series("s", 7, revision=1)),
    ],
)
def test_what_can_be_told_of_an_unreadable_state_is_salvaged(text: str, expected: Series) -> None:
    assert Series.salvaged(text, "s") == expected


def test_a_readable_state_is_salvaged_whole() -> None:
    series = Series("RFC-093").claim(1, 1.0).claim(2, 2.0)
    assert Series.salvaged(series.to_text(), "RFC-093") == series


ISSUES = Series("RFC-093", 1, (2, 3), 5.5, 7, 4.5, "c1", "ann", 60.0, 64.5, "by bob", ((3, 9.0),), (1, 3)).to_document()
BAD_TIMES = [None, 5.5, "now", "1970-01-01T00:00:05.500+00:00", "1970-01-01T00:00:05", "1970-01-01T00:00:05.000Z"]
BAD_TIMES += ["1970-13-01T00:00:05Z", "1970-01-01t00:00:05Z", "1970-01-01T00:00:05.5Z", "1970-01-01 00:00:05Z"]
BAD_TEXTS = [None, "", 7, ["x"]]
ISSUE_DAMAGE: dict[str, list[Any]] = {
    "series": [None, 7],
    "active_issue": [None, "1", 0, -1, True, 1.0, 2],
    "queue": [None, [1], [2, 2], ["2"], [0], [None], {}],
    "since": BAD_TIMES,
    "claim": BAD_TEXTS,
    "by": BAD_TEXTS,
    "lease": [None, 0, -1, True, "60", float("inf"), float("nan")],
    "leases": [None, [], {}, [3], [[3]], [[3, 9.0, 1]], [[1, 9.0]], [[4, 9.0]], [["3", 9.0]], [[3, 9.0], [2, 9.0]]]
    + [[[3, 9.0], [3, 9.0]], [[[3], 9.0]]]
    + [[[3, value]] for value in (0, -1.0, True, "9", None, 1e12, float("nan"), [])],
    "forced": [None, [], {}, 3, [3, 1], [3, 3], [4], ["3"], [True], [[3]], [None]],
    "lease_until": BAD_TIMES,
    "paused": BAD_TEXTS,
    "updated_at": BAD_TIMES,
    "version": [None, 0, 2, "1", True],
    "revision": [None, 0, -1, 1.0, "7"],
}


def test_an_item_is_forced_as_long_as_it_is_in_the_series() -> None:
    series = Series("RFC-093").claim(1, 1.0).claim(2, 2.0).claim(3, 3.0)
    assert series.force(9, 4.0) is series
    forced = series.force(3, 4.0).force(1, 5.0)
    assert (forced.forced, forced.revision) == ((1, 3), 5)
    assert forced.force(3, 6.0) is forced
    assert Series.from_text(forced.to_text(), "RFC-093") == forced
    assert forced.front(3, 6.0).forced == (1, 3)
    assert forced.leave(1, 6.0).forced == (3,)
    assert forced.rebuild([Live(2, 1)], 6.0).forced == ()


@pytest.mark.parametrize("name", ISSUES)
def test_a_damaged_field_of_an_issue_series_makes_it_unreadable(name: str) -> None:
    assert Series.from_document(ISSUES).to_document() == ISSUES
    for value in ISSUE_DAMAGE[name]:
        with pytest.raises(UnreadableSeries):
            Series.from_document({**ISSUES, name: value})


def test_what_belongs_to_an_active_issue_does_not_stay_without_one() -> None:
    free = {"series": "s", "active_issue": None, "queue": [2], "updated_at": "1970-01-01T00:00:00Z"}
    free |= {"version": 1, "revision": 3}
    assert Series.from_document(free).queue == (2,)
    for extra in ({"since": free["updated_at"]}, {"claim": "c"}, {"by": "a"}, {"lease_until": free["updated_at"]}):
        with pytest.raises(UnreadableSeries, match="contradicts itself"):
            Series.from_document({**free, **extra})
    for extra in ({"queue": [2], "revision": 0}, {"paused": "by a", "queue": [], "revision": 0}):
        with pytest.raises(UnreadableSeries, match="contradicts itself"):
            Series.from_document({**free, **extra})


def test_runs_that_wait_for_nobody_do_so_only_during_a_pause() -> None:
    waiting = {**Series("films").to_json(), "queue": ["r2"], "revision": 3}
    with pytest.raises(UnreadableSeries):
        Series.from_json(waiting)
    assert Series.from_json({**waiting, "paused": "by ann"}).queue == ("r2",)


# -- documents that are none -------------------------------------------------------------------------------------------

GOOD = Series("films", "r1", ("r2", "r3"), 5.5, 7).to_json()
DAMAGE: dict[str, list[Any]] = {
    "series": [None, 7, ["films"], {}],
    "active": [None, True, 1.5, ["r1"], {}, "r2"],
    "queue": [None, "r2", {}, ["r1"], ["r2", "r2"], [None], [True], [1.5], [["r2"]], 7],
    "updated_at": [None, "now", True, float("nan"), float("inf"), -float("inf"), []],
    "version": [None, 0, 2, "1", True, 1.0, [], {}],
    "revision": [None, -1, 0, 1.0, True, "7", []],
}
"""Field -> values that contradict the rest."""


def test_the_undamaged_document_can_be_read() -> None:
    assert Series.from_json(GOOD) == Series("films", "r1", ("r2", "r3"), 5.5, 7)
    assert set(DAMAGE) == set(GOOD)


@pytest.mark.parametrize("name", GOOD)
def test_a_damaged_field_makes_it_unreadable(name: str) -> None:
    for value in DAMAGE[name]:
        with pytest.raises(UnreadableSeries):
            Series.from_json({**GOOD, name: value})


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_field_is_not_read_as_an_empty_one(name: str) -> None:
    with pytest.raises(UnreadableSeries):
        Series.from_json({key: value for key, value in GOOD.items() if key != name})


def test_a_field_too_many_makes_it_unreadable() -> None:
    with pytest.raises(UnreadableSeries, match="the state of a series has active, queue, revision, series, updated_at"):
        Series.from_json({**GOOD, "note": "do not touch"})


def test_a_queue_without_anybody_active_is_a_contradiction() -> None:
    with pytest.raises(UnreadableSeries, match="the state of series 'films' contradicts itself"):
        Series.from_json({**GOOD, "active": None})


def test_a_later_version_is_named() -> None:
    with pytest.raises(
        UnreadableSeries,
        match=f"the state has version {SCHEMA + 1}, and this version of Asterism reads version {SCHEMA}",
    ):
        Series.from_json({**GOOD, "version": SCHEMA + 1})


@pytest.mark.parametrize("data", [None, 7, "films", [], [GOOD], "x" * 1000])
def test_what_is_no_object_is_refused_in_few_words(data: Any) -> None:
    with pytest.raises(UnreadableSeries, match="the state of a series is an object, not ") as caught:
        Series.from_json(data)
    assert len(str(caught.value)) < 300


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@unhurried
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), json_values))
def test_whatever_is_read_is_what_would_be_written(damage: dict[str, Any]) -> None:
    data = {**GOOD, **damage}
    try:
        series = Series.from_json(data)
    except UnreadableSeries:
        return
    assert series.to_json() == data
    assert everybody(series) == [item for item in [data["active"], *data["queue"]] if item is not None]


def test_what_is_written_anew_is_a_change_although_nothing_in_it_is_new() -> None:
    before = Series("RFC-093").claim(1, 10.0)
    after = before.stamped(20.0)
    assert (after.active, after.updated_at, after.revision) == (1, 20.0, before.revision + 1)


def test_a_long_queue_with_leases_is_read_in_a_time_that_grows_with_its_length() -> None:
    def seconds(length: int) -> float:
        leases = tuple((item, 60.0) for item in range(2, length))
        document = Series("RFC-093", 1, tuple(range(2, length)), 1.0, 7, leases=leases).to_document()
        times = []
        for _ in range(3):
            began = process_time()
            assert Series.from_document(document).leases == leases
            times.append(process_time() - began)
        return min(times)

    assert seconds(32_000) < 100 * seconds(2_000), "sixteen times as long is right, 256 times is not"


def test_what_is_salvaged_goes_on_where_the_history_ends() -> None:
    before = Series("X").claim(1, 100.0).enqueue([(2, 2)], 101.0)
    salvaged = Series.salvaged('{"active_issue": 1}', "X", ["{", before.to_text()])
    assert (salvaged.active, salvaged.since, salvaged.revision) == (1, 100.0, before.revision + 1)
    other = Series.salvaged('{"active_issue": 2}', "X", [before.to_text()])
    assert (other.active, other.since, other.revision) == (2, None, before.revision)
    assert Series.salvaged("{", "X", ["]", "7"]) == Series("X", revision=1)
    assert Series.salvaged(before.to_text(), "X", ["{"]) == before
    assert Series.salvaged(None, "X", [before.to_text()]) == Series("X", revision=before.revision)
    assert Series("X").active_since(None, 1.0) == Series("X")
    assert before.active_since(1, None) is before
    assert before.counted_from(1) is before


# -- holders -----------------------------------------------------------------------------------------------------------


def test_the_first_name_that_claims_the_active_item_holds_it() -> None:
    held = Series("films").claim("r1", 100.0, lease=60.0, holder="ann")
    assert (held.holder, held.held_since, held.revision) == ("ann", 100.0, 1)
    assert held.claim("r1", 110.0, lease=900.0, holder="bob") is held
    assert held.claim("r1", 110.0) is held
    assert [held.is_held_from(name) for name in (None, "ann", "bob")] == [False, False, True]
    promoted = held.claim("r2", 120.0, lease=10.0, holder="bob").leave("r1", 130.0)
    assert (promoted.active, promoted.holder, promoted.lease_until) == ("r2", None, 140.0)
    taken = promoted.claim("r2", 135.0, lease=100.0, holder="carl")
    assert (taken.holder, taken.held_since, taken.since, taken.lease_until) == ("carl", 135.0, 130.0, 235.0)
    assert taken.expire(300.0).holder is None


def test_a_holder_is_read_back_and_salvaged_and_one_of_nothing_is_unreadable() -> None:
    held = Series("films").claim(1, 100.0, holder="ann")
    assert Series.from_text(held.to_text(), "films") == held
    remains = Series.salvaged(held.to_text().replace('"queue": []', '"queue": 0'), "films")
    assert (remains.holder, remains.held_since) == ("ann", 100.0)
    document = held.to_document()
    without_time = {key: value for key, value in document.items() if key != "held_since"}
    for wrong in (without_time, {**document, "active_issue": None}, {**document, "holder": ""}):
        with pytest.raises(UnreadableSeries):
            Series.from_document(wrong)
