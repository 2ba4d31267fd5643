"""The record of a schedule: its fields, its JSON form, and what is not valid."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.schedule.schedule import InvalidSchedule, Schedule, interval_text

NIGHTLY = Schedule("nightly", workflow="etl", cron="0 3 * * *", timezone="Europe/Berlin")


def test_json_has_only_what_differs_from_the_defaults() -> None:
    expected = {"name": "nightly", "workflow": "etl", "cron": "0 3 * * *", "timezone": "Europe/Berlin"}
    assert NIGHTLY.to_json() == expected
    assert Schedule.from_json(expected) == NIGHTLY


EVENT = {"workflow": None, "plan": "order", "cron": None, "timezone": "UTC", "on_event": "paid"}


def test_json_keeps_every_field() -> None:
    full = Schedule(
        "all",
        workflow="etl",
        input={"day": [1, {"a": None}]},
        priority=3,
        device="desk",
        every=300,
        timezone="Asia/Tokyo",
        catch_up="all",
        overlap="replace",
        jitter=1.5,
        start=1000,
        created_by="ann",
        paused="by ann",
        after=1300.0,
        next=1600,
        due=1600.7,
        open=("r1", "r2"),
        replaced=("r1",),
        made=7,
        seen=9,
        parallel=1,
    )
    fields = Schedule.__struct_fields__
    of_plans = {"after_previous", "late_after", "late"}
    assert set(full.to_json()) >= {*fields} - {"plan", "cron", "on_event", "parallel"} - of_plans
    assert Schedule.from_json(full.to_json()) == full
    plan = Schedule("p", plan="etl", cron="@daily", after_previous="success", late_after=60.0, late=("p-1",))
    assert of_plans < set(plan.to_json())
    assert Schedule.from_json(plan.to_json()) == plan
    events = Schedule("e", plan="order", on_event="payment/*", overlap="queue", seen=7, parallel=3)
    assert Schedule.from_json(events.to_json()) == events


def test_words() -> None:
    assert Schedule("e", plan="order", on_event="payment/*").times == "on event payment/*"
    assert (NIGHTLY.target, NIGHTLY.times) == ("workflow etl", "0 3 * * * (Europe/Berlin)")
    plan = Schedule("p", plan="etl.yaml", every=300)
    assert (plan.target, plan.times) == ("plan etl.yaml", "every 5m")
    texts = [interval_text(seconds) for seconds in (90, 60, 7200, 86_400, 3601, 0)]
    assert texts == ["90s", "1m", "2h", "1d", "3601s", "0s"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "the name must have 1 to 80 printable characters"),
        ({"name": "a/b"}, "without '/', '@' and '|'"),
        ({"name": " a"}, "the name must have"),
        ({"name": "x" * 81}, "the name must have"),
        ({"name": "a\nb"}, "the name must have"),
        ({"name": 5}, "the name must have"),
        ({"workflow": None}, "give one of workflow, plan"),
        ({"plan": "etl.yaml"}, "give one of workflow, plan, not workflow and plan"),
        ({"workflow": " "}, "workflow must be a text of printable characters"),
        ({"workflow": 3}, "workflow must be a text of printable characters, not 3"),
        ({"cron": None}, "give one of cron, every, on_event"),
        ({"every": 5}, "give one of cron, every, on_event, not cron and every"),
        ({"cron": None, "every": 0}, "every must be a whole number of seconds from 1 to 316,224,000, not 0"),
        ({"cron": None, "every": 0.5}, "every must be a whole number of seconds"),
        ({"cron": None, "every": True}, "every must be a whole number of seconds"),
        ({"jitter": -1.0}, "jitter must be a number of seconds from 0"),
        ({"jitter": float("nan")}, "jitter must be a number of seconds from 0"),
        ({"catch_up": "some"}, "catch_up must be one of none, last, all, not 'some'"),
        ({"overlap": "both"}, "overlap must be one of skip, queue, replace, allow, not 'both'"),
        ({"input": [1]}, "input must be an object of named values"),
        ({"priority": 2_000_000}, "priority must be a whole number between"),
        ({"priority": True}, "priority must be a whole number between"),
        ({"after_previous": "end"}, "after_previous must be one of success, not 'end'"),
        ({"late_after": 60.0}, "after_previous and late_after are for plans"),
        ({"after_previous": "success"}, "after_previous and late_after are for plans"),
        ({"workflow": None, "plan": "etl.yaml", "late_after": 0}, "late_after must be a number of seconds from 1"),
        ({"workflow": None, "plan": "etl.yaml", "priority": 1}, "are for the runs of a workflow, not for a plan"),
        ({"cron": None, "on_event": "paid"}, "events create plans, not runs of a workflow"),
        ({**EVENT, "on_event": " paid"}, "the name of an event has 1 to 200 printable characters"),
        ({**EVENT, "jitter": 1.0}, "jitter, after_previous and late_after are for times, not for events"),
        ({"parallel": 0}, "parallel must be a whole number from 1 to 100, not 0"),
        ({"parallel": 2, "overlap": "queue"}, "with overlap queue have no parallel above 1: let them use a limit"),
    ],
)
def test_values_that_cannot_be_used(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        NIGHTLY.changed(**changes)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "schedule None: "),
        ({"plan": "p"}, "schedule None: "),
        ({"name": "a", "plan": "p", "every": 5, "color": "red"}, "color"),
        ({"name": "a"}, "give one of workflow, plan"),
        ({"name": "a", "plan": "p", "every": [5]}, "schedule 'a': "),
    ],
)
def test_records_that_cannot_be_read(data: object, words: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        Schedule.from_json(data)
    assert words in str(caught.value)
