"""A series has one active item and a queue, and a document that cannot be read is never taken for a free one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asterism.core.series import SCHEMA, Item, Series, UnreadableSeries

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
    assert series == Series("RFC-093", 123, (124, 125), 3.0, 3)


def test_the_next_is_active_when_the_active_one_leaves() -> None:
    series = Series("films").claim("r1", 1.0).claim("r2", 2.0).leave("r1", 3.0)
    assert (series.active, series.queue) == ("r2", ())
    assert series.leave("r2", 4.0) == Series("films", None, (), 4.0, 4)


def test_one_who_waits_may_leave_and_the_others_close_up() -> None:
    series = Series("films").claim("r1", 1.0).claim("r2", 2.0).claim("r3", 3.0).leave("r2", 4.0)
    assert (series.active, series.queue) == ("r1", ("r3",))


def test_the_document_can_be_read_by_people() -> None:
    series = Series("RFC-093", 123, (124, 125), 5.5, 7)
    assert series.to_json() == {
        "series": "RFC-093",
        "active": 123,
        "queue": [124, 125],
        "updated_at": 5.5,
        "version": 1,
        "revision": 7,
    }


def test_a_series_that_nobody_has_used_can_be_written_and_read() -> None:
    assert Series.from_json(Series("films").to_json()) == Series("films")


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
    with pytest.raises(UnreadableSeries, match=f"this is version {SCHEMA + 1} of a series; {SCHEMA} is known here"):
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
