"""Events counted by key within a window of time."""

from __future__ import annotations

import pytest

from asterism.base import http_limits
from asterism.base.http_limits import RecentEvents


def test_one_more_is_allowed_when_the_oldest_has_left_the_window() -> None:
    clock = [0.0]
    events = RecentEvents(lambda: clock[0], 2, 60.0)
    for clock[0] in (0.0, 10.0):
        assert events.wait("a") is None
        events.add("a")
    assert (events.wait("a"), events.wait("b")) == (50.0, None)
    clock[0] = 60.0
    assert events.wait("a") is None


def test_the_number_of_remembered_keys_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "MAX_REMEMBERED", 3)
    events = RecentEvents(lambda: 0.0, 2, 60.0)
    for number in range(50):
        events.add(str(number))
    assert [number for number in range(50) if events.knows(str(number))] == [47, 48, 49]
