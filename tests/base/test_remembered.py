"""A mapping with a limit."""

from __future__ import annotations

from asterism.base.remembered import Remembered


def test_the_oldest_entries_are_forgotten() -> None:
    past: Remembered[int, str] = Remembered(3)
    for number in range(5):
        past[number] = "before"
    assert list(past) == [2, 3, 4]
    past[2] = "again"
    assert list(past.items()) == [(3, "before"), (4, "before"), (2, "again")]
    past.update({5: "new", 6: "new"})
    assert list(past) == [2, 5, 6]
