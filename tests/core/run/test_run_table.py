"""Every situation × every event × the right grant and every wrong one: what happens is in the table, or it is refused.

The table is written by hand, from what the design says, and not made from the code.
"""

from __future__ import annotations

import pytest

from asterism.core.errors import Fenced, RunRefused
from asterism.core.run.run import TERMINAL, Run, RunStatus
from tests.core.run.run_scenes import (
    EVENTS,
    NAMES,
    OWNERS,
    SITUATIONS,
    check,
    check_step,
    grant_of,
    situation,
    wrong_grants,
)

SHORT = {
    "cr": "created",
    "cp": "created paused",
    "as": "assigned",
    "cl": "claimed",
    "cl/p": "claimed pause",
    "cl/c": "claimed cancel",
    "pr": "processing",
    "pr/p": "processing pause",
    "pr/c": "processing cancel",
    "re": "reassigning",
    "rp": "reassigning paused",
    "CO": "completed",
    "FA": "failed",
}
REFUSED, FENCED, SAME = "-", "x", "="

TABLE = """
               cr   cp   as   cl   cl/p cl/c pr   pr/p pr/c re   rp   CO   FA
assign         as   -    -    -    -    -    -    -    -    as   -    -    -
take           cl   -    -    -    -    -    -    -    -    cl   -    -    -
take, start    pr   -    -    -    -    -    -    -    -    pr   -    -    -
claim          x    x    cl   -    -    -    -    -    -    x    x    x    x
start          x    x    -    pr   pr/p pr/c -    -    -    x    x    x    x
complete       x    x    -    -    -    -    CO   CO   CO   x    x    x    x
fail           x    x    re   re   rp   FA   re   rp   FA   x    x    x    x
fail, last     x    x    FA   FA   FA   FA   FA   FA   FA   x    x    x    x
fail, final    x    x    FA   FA   FA   FA   FA   FA   FA   x    x    x    x
decline        x    x    re   re   rp   FA   re   rp   FA   x    x    x    x
decline, full  x    x    re   re   rp   FA   re   rp   FA   x    x    x    x
release        x    x    re   re   rp   FA   re   rp   FA   x    x    x    x
lose           -    -    re   re   rp   FA   re   rp   FA   -    -    -    -
lose, last     -    -    FA   FA   FA   FA   FA   FA   FA   -    -    -    -
refuse         cr   -    -    -    -    -    -    -    -    re   -    -    -
next_round     -    -    -    -    -    -    -    -    -    re   -    -    -
give_up        FA   -    -    -    -    -    -    -    -    FA   -    -    -
take_back      -    -    re   -    -    -    -    -    -    -    -    -    -
withdraw       -    -    rp   rp   rp   FA   -    -    -    -    -    -    -
forgotten      FA   FA   FA   FA   FA   FA   FA   FA   FA   FA   FA   -    -
adopt          cr   cp   -    -    -    -    -    -    -    re   rp   -    -
cancel         FA   FA   FA   cl/c cl/c =    pr/c pr/c =    FA   FA   -    -
pause          cp   =    rp   cl/p =    -    pr/p =    -    rp   =    -    -
resume         -    cr   -    -    cl   -    -    pr   -    -    re   -    -
"""


def _cells() -> list[tuple[str, str, str]]:
    """(event, situation before, what happens) for every cell."""
    head, *rows = [line for line in TABLE.splitlines() if line.strip()]
    table = []
    for row in rows:
        event, cells = row[:15].strip(), row[15:].split()
        table += [(event, SHORT[old], cell) for old, cell in zip(head.split(), cells, strict=True)]
    return table


CELLS = _cells()


def test_the_table_has_a_cell_for_every_situation_and_every_event() -> None:
    assert {(event, old) for event, old, _ in CELLS} == {(event, old) for event in EVENTS for old in SITUATIONS}
    assert len(CELLS) == len(EVENTS) * len(SITUATIONS)


def test_the_situations_are_those_they_are_called_and_every_status_is_among_them() -> None:
    assert {name: situation(make()) for name, make in SITUATIONS.items()} == {name: name for name in SITUATIONS}
    assert {make().status for make in SITUATIONS.values()} == set(RunStatus)


def test_no_other_situation_can_be_reached() -> None:
    """Whatever is said to a run of a known situation, it is in a known situation afterwards."""
    reached = {name: make() for name, make in SITUATIONS.items() if name.startswith("created")}
    fresh = list(reached.values())
    while fresh:
        run = fresh.pop()
        for event in EVENTS.values():
            try:
                after = event(run, grant_of(run), 9.0)
            except RunRefused:
                continue
            if situation(after) not in reached:
                reached[situation(after)] = after
                fresh.append(after)
    assert reached.keys() == SITUATIONS.keys()


@pytest.mark.parametrize(("event", "old", "cell"), CELLS, ids=[f"{old} - {event}" for event, old, _ in CELLS])
def test_what_happens_is_what_the_table_says(event: str, old: str, cell: str) -> None:
    before = SITUATIONS[old]()
    if cell in (REFUSED, FENCED):
        refused(before, event, cell == FENCED)
        return
    after = EVENTS[event](before, grant_of(before), 9.0)
    assert situation(after) == (old if cell == SAME else SHORT[cell])
    assert (after is before) == (cell == SAME)
    check(after)
    check_step(before, after)


@pytest.mark.parametrize("event", OWNERS)
@pytest.mark.parametrize("old", SITUATIONS)
def test_the_word_of_anybody_but_the_owner_is_refused(old: str, event: str) -> None:
    before = SITUATIONS[old]()
    for whose, grant in wrong_grants(before).items():
        untouched = [getattr(before, name) for name in NAMES]
        with pytest.raises(Fenced) as caught:
            EVENTS[event](before, grant, 9.0)
        assert [getattr(before, name) for name in NAMES] == untouched, whose
        assert f"at epoch {before.epoch}" in str(caught.value), whose


def refused(before: Run, event: str, fenced: bool) -> None:
    """The refusal tells the story, and nothing has changed."""
    untouched = {name: getattr(before, name) for name in NAMES}
    with pytest.raises(RunRefused) as caught:
        EVENTS[event](before, grant_of(before), 9.0)
    error = caught.value
    assert (type(error) is Fenced) == fenced
    assert {name: getattr(before, name) for name in NAMES} == untouched
    assert error.run_id == before.id
    assert error.story == before.story
    assert str(error).startswith(f"run {before.id}: {error.why}. Its story:\n  {before.story[0]}")
    assert str(before.story[-1]) in str(error)
    if before.status in TERMINAL:
        assert ("which is final" in error.why) != fenced
