"""The row codec: records survive the round trip, and the text of a story is encoded once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.core.history import Entry
from asterism.core.record import InvalidRecord
from asterism.core.run import transitions
from asterism.core.run.run import Owner, Progress, Run
from asterism.store import row_codec
from asterism.store.protocol import Notice
from asterism.store.store_errors import StoreCorrupt
from tests.laboratory.store_conformance.sample_records import histories
from tests.store.sqlite_fixtures import KITCHEN, ME, completed, run


def row_of(run: Run) -> tuple[Any, ...]:
    return (*row_codec.fixed(run), *row_codec.moving(run))


def state_of(run: Run) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(row_of(run)[-1])
    return state


def through(run: Run) -> Run:
    return row_codec.run_of(row_of(run))


ENTRIES = st.builds(Entry, st.floats(allow_nan=False, allow_infinity=False), st.text(), st.none(), st.text())


@given(st.lists(st.lists(ENTRIES, max_size=3), max_size=5), st.booleans())
def test_a_growing_story_is_encoded_as_if_it_were_encoded_at_once(steps: list[list[Entry]], read: bool) -> None:
    grown = run(1)
    for step in steps:
        grown = grown.changed(story=grown.story + tuple(step))
        if read:
            grown = through(grown)
        else:
            row_of(grown)
    fresh = run(1).changed(story=grown.story)
    assert row_of(grown) == row_of(fresh)
    assert through(grown).story == grown.story


@given(st.lists(st.tuples(st.sampled_from([1000.0, 2000.0]), st.none() | st.booleans() | st.integers() | st.text())))
def test_runs_that_end_together_are_encoded_as_if_each_were_alone(ends: list[tuple[float, Any]]) -> None:
    """What is remembered of the run before has no effect."""
    alike = [run(number).changed(story=run(1).story) for number in range(len(ends))]
    taken = [through(transitions.take(each_run, ME, 500.0, starts=True)) for each_run in alike]
    done = [
        transitions.complete(each_run, each_run.grant, output, at)  # type: ignore[arg-type]
        for each_run, (at, output) in zip(taken, ends, strict=True)
    ]
    together = [row_codec.moving(each_run) for each_run in done]
    for each_run, moved in zip(done, together, strict=True):
        row_codec.moving(run(99))
        assert row_codec.moving(each_run.changed()) == moved
        assert json.loads(moved[-1]).get("output") == each_run.output
        assert type(json.loads(moved[-1]).get("output")) is type(each_run.output)
        assert through(each_run) == each_run


def test_runs_that_were_created_together_share_nothing_that_changes() -> None:
    made = [run(number).changed(story=run(1).story) for number in (1, 2)]
    first, second = map(through, made)
    row_of(transitions.take(first, ME, 500.0))
    assert [first, second] == made == [*map(through, made)]
    assert first.input is not second.input
    damaged = [*row_of(first)]
    damaged[-1] = damaged[-1].replace('"story"', '"tale"')
    with pytest.raises(StoreCorrupt):
        row_codec.run_of(damaged)
    assert through(made[1]) == second


def test_another_story_is_encoded_anew() -> None:
    first = run(1)
    row_of(first)
    other = first.changed(story=(Entry(5.0, "another", None, 'with "quotes"'),))
    assert state_of(other)["story"] == [[5.0, "another", None, 'with "quotes"']]
    assert through(other.changed(story=())).story == ()


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), lambda inner: st.lists(inner)
    | st.dictionaries(st.sampled_from(["story", "a", '"story":[', "previous"]) | st.text(), inner)))  # fmt: skip
def test_an_output_may_look_like_anything(output: Any) -> None:
    done = completed(run(1)).changed(output=output)
    assert through(through(done)) == done
    again = through(done).changed(story=(*done.story, Entry(1.0, "more", None, "")))
    assert through(again) == again


def test_every_field_of_a_run_is_stored() -> None:
    full = run(1, key="k", priority=3, device="d", retry_of="run-0").changed(
        avoid=("a", "b c"),
        declined={"a": "full"},
        scores={"a": 1.5},
        progress=Progress(1, None),
        previous=completed(run(2)).previous,
        error="x",
        cancelled=True,
        paused="by ann",
        stop_requested_by="bob",
        failures=1,
        losses=2,
        rounds=3,
    )
    assert through(full) == full
    lost = transitions.lose(transitions.take(run(3), ME, 5.0), 6.0, "it was silent")
    assert through(lost) == lost
    assert type(through(lost).previous[0]) is type(lost.previous[0])


@given(
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_characters="|"), min_size=1),
)
def test_the_score_of_an_ended_assignment_is_stored(score: float | None, device: str) -> None:
    owner = Owner(device, "s")
    scores = {} if score is None else {device: score}
    taken = transitions.take(run(3), owner, 5.0, scores=scores)
    assert through(taken).scores == scores
    lost = transitions.lose(taken, 6.0, "it was silent")
    assert (through(lost), lost.previous[0].score) == (lost, score)


def test_default_values_are_not_stored() -> None:
    assert set(state_of(run(1))) == {"created_by", "story"}


def test_the_text_may_have_been_reordered_by_a_database() -> None:
    row = row_of(completed(run(1)))
    ordered = json.dumps(dict(sorted(json.loads(row[-1]).items())))
    read = row_codec.run_of((*row[:-1], ordered))
    assert read == completed(run(1))
    more = read.changed(story=(*read.story, Entry(9.0, "more", None, "")))
    assert through(more) == more


@pytest.mark.parametrize(
    "change",
    [
        {"output": float("nan")},
        {"claimed_at": float("inf")},
        {"story": (Entry(float("nan"), "odd", None),)},
        {"avoid": ("a|b",)},
    ],
)
def test_a_run_that_cannot_be_stored_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"JSON compliant|must not contain '\|'"):
        row_of(run(1).changed(**change))


@pytest.mark.parametrize("change", [{"output": b"bytes"}, {"error": b"bytes"}, {"story": (Entry(1.0, "x", b""),)}])
def test_a_value_that_is_not_json_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        row_of(run(1).changed(**change))


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "{}", '{"story":5}', '{"story":[[1]]}', '{"story":[]} ', None, 5]
)
def test_an_invalid_state_is_corrupt(text: Any) -> None:
    with pytest.raises(StoreCorrupt, match="run run-00001 cannot be read"):
        row_codec.run_of((*row_of(run(1))[:-1], text))


def test_an_invalid_row_is_corrupt() -> None:
    for row in ((), ("run-00001",), row_of(run(1))[:-1]):
        with pytest.raises(StoreCorrupt, match="cannot be read"):
            row_codec.run_of(row)
    with pytest.raises(StoreCorrupt, match="session kitchen-1 cannot be read"):
        row_codec.session_of((*row_codec.session_row(KITCHEN)[:-1], "{}"))


@given(st.lists(histories().map(lambda history: history[-1]), max_size=12), st.integers(1, 8))
def test_runs_are_encoded_together_as_they_are_one_by_one(runs: list[Run], copies: int) -> None:
    several = [each_run.changed(id=f"{each_run.id}{number}") for each_run in runs for number in range(copies)]
    assert row_codec.rows_of(several) == [row_codec.row_of(each_run) for each_run in several]
    groups = row_codec.grouped(several)
    assert sum(len(group.rows) for group in groups) == len(several)
    assert len(groups) <= len(runs)


# -- rows that somebody else has written -------------------------------------------------------------------------------

DEEP = "[" * 100_000
MISTYPED = [b"\xff", 2.5, "x", 7, None, DEEP, "[[1]]", "7", '"x"', "null"]


@pytest.mark.parametrize("column", row_codec.COLUMNS)
@pytest.mark.parametrize("value", MISTYPED, ids=lambda value: repr(value)[:10])
def test_a_mistyped_row_is_refused_or_can_be_written_again(column: str, value: Any) -> None:
    """SQLite stores any type in any column."""
    row = list(row_codec.row_of(run(1)))
    row[row_codec.COLUMNS.index(column)] = value
    try:
        read = row_codec.run_of(row)
    except StoreCorrupt:
        return
    row_codec.row_of(read)
    assert isinstance(-read.priority, int)


@pytest.mark.parametrize("place", range(len(row_codec.SESSION_COLUMNS)))
@pytest.mark.parametrize("value", [b"\xff", DEEP, "[[1]]", None], ids=lambda value: repr(value)[:10])
def test_a_mistyped_session_is_refused(place: int, value: Any) -> None:
    row: list[Any] = ["s", "kitchen", 1, "open", 0, 1.0, "{}", "{}"]
    row[place] = value
    with pytest.raises(StoreCorrupt, match=r"session .* cannot be read"):
        row_codec.session_of(row)


@pytest.mark.parametrize("notice", [{"at": "x", "kind": "a", "message": "b"}, {"at": 1.0, "kind": 5, "message": "b"}])
def test_a_mistyped_notice_is_refused(notice: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord, match=r"at must be a number|kind must be text"):
        Notice.from_json(notice)
