"""Patterns of events that create plans."""

from __future__ import annotations

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.core.schedule.schedule import is_named, of_event
from asterism.core.schedule.ticks import without_time


@pytest.mark.parametrize(
    ("pattern", "name", "named"),
    [
        ("paid", "paid", True),
        ("paid", "paid/1", False),
        ("payment/*", "payment/17", True),
        ("payment/*", "payment/17/a", True),
        ("payment/*", "payment/", False),
        ("payment/*", "payment", False),
        ("payment/*", "payments/17", False),
        ("*", "paid", False),
    ],
)
def test_which_events_a_pattern_means(pattern: str, name: str, named: bool) -> None:
    assert is_named(pattern, name) is named


def test_tasks_that_wait_for_the_pattern_wait_for_the_event() -> None:
    plan = Constellation("order")
    plan.add(Task("paid", wait_for={"event": "payment/*", "timeout": 60}))
    plan.add(Task("sent", wait_for={"event": "sent"}))
    plan.add(Task("ship", shell="true"), "paid")
    started = Constellation.from_json(of_event(plan.to_json(), "payment/*", "payment/17"))
    assert [node.task.wait_for for node in started.nodes.values()] == [
        {"event": "payment/17", "timeout": 60},
        {"event": "sent"},
        None,
    ]


def test_plans_of_events_are_counted_together() -> None:
    assert without_time("orders-event-17") == "orders"
