"""Names of plans that are made anew at every start."""

from __future__ import annotations

from datetime import datetime
from itertools import islice

import pytest

from asterism.core.errors import PlanError
from asterism.core.plan.plan_name import EACH_START, EACH_TICK, plan_name, plan_names
from asterism.core.schedule.ticks import tick_text, without_time

NIGHT = datetime(2026, 11, 17, 3, 0, 9)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (EACH_START, "nightly-20261117-0300"),
        ("{name}-{date}", "nightly-20261117"),
        ("at-{time}{seconds}", "at-030009"),
        ("weekly", "weekly"),
        ("a{b", "a{b"),
    ],
)
def test_placeholders_are_filled(pattern: str, name: str) -> None:
    assert plan_name(pattern, "nightly", NIGHT) == name


def test_an_unknown_placeholder_is_refused_with_the_list() -> None:
    with pytest.raises(
        PlanError, match=r"no placeholder '{day}'; the placeholders are {name}, {date}, {time}, {seconds}"
    ):
        plan_name("nightly-{day}", "nightly", NIGHT)


def test_starts_within_a_minute_get_numbers() -> None:
    names = list(islice(plan_names(EACH_START, "nightly", NIGHT), 3))
    assert names == ["nightly-20261117-0300", "nightly-20261117-0300-2", "nightly-20261117-0300-3"]
    assert {without_time(name) for name in names} == {"nightly"}  # metrics count them together


@pytest.mark.parametrize("pattern", ["nightly", "{name}"])
def test_a_pattern_without_a_time_has_one_name(pattern: str) -> None:
    assert list(plan_names(pattern, "nightly", NIGHT)) == ["nightly"]


def test_a_tick_has_the_same_text_in_names_and_keys() -> None:
    assert plan_name(EACH_TICK, "nightly", datetime(1970, 1, 1)) == f"nightly-{tick_text(0)}"
