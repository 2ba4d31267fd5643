"""A line of a story, as people read it."""

from __future__ import annotations

from asterism.core.history import Entry


def test_a_line_names_the_time_the_task_what_happened_and_why() -> None:
    assert str(Entry(1.5, "failed", "build", "ValueError: no")) == "1.500 build failed: ValueError: no"


def test_a_line_without_task_or_reason_leaves_them_out() -> None:
    assert str(Entry(0.0, "began", None)) == "0.000 began"
