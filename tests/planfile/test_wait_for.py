"""``wait_for`` in plan files: what it becomes, placeholders and ticks in it, and its mistakes."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.schedule.tick_values import tick_values
from asterism.execution.plan_tick import with_tick
from asterism.planfile import examine


def read(text: str, **options: Any) -> Constellation:
    plan_file, mistakes = examine("asterism: 1\n" + dedent(text), "plan", **options)
    assert plan_file is not None, mistakes
    return plan_file.constellation


def complaints(task: str) -> list[str]:
    _, mistakes = examine(f"asterism: 1\ntasks:\n  a: {task}\n", "plan")
    return [mistake.text for mistake in mistakes]


def waits_of(plan: Constellation) -> dict[str, Any]:
    return {node.id: dict(node.task.wait_for) for node in plan.nodes.values() if node.task.wait_for is not None}


def test_waits_are_read_with_their_parameters_and_without_the_defaults_of_the_file() -> None:
    plan = read(
        """\
        params: {order: 17}
        defaults: {retries: 2, timeout: 1m, cwd: /tmp, device: box, priority: high}
        devices: {box: {}}
        tasks:
          paid: {wait_for: {event: "payment/{params.order}", timeout: 6h}}
          each: {wait_for: {event: "part/{item}"}, foreach: [x, y]}
          load: {wait_for: {plan: nightly, task: load}, after: paid}
          nine: {wait_for: {until: 2026-11-18T09:00}}
        """
    )
    assert waits_of(plan) == {
        "paid": {"event": "payment/17", "timeout": 21600.0},
        "each[x]": {"event": "part/x"},
        "each[y]": {"event": "part/y"},
        "load": {"plan": "nightly", "task": "load"},
        "nine": {"until": "2026-11-18T09:00"},
    }
    task = plan.node("paid").task
    assert (task.retries, task.timeout, task.device, str(task.priority.name), task.untrusted) == (
        0,
        None,
        None,
        "HIGH",
        True,
    )


def test_a_tick_gives_times_their_zone_on_both_sides_of_a_change_of_clocks() -> None:
    from asterism.base.cron import cron_ticks, time_zone

    plan = read(
        """\
        tasks:
          nine: {wait_for: {until: "{tick.date}T09:00"}}
          fixed: {wait_for: {until: 2026-03-29T09:00Z}}
          load: {wait_for: {plan: nightly, task: load, tick: same}}
          last: {wait_for: {plan: nightly, task: load, tick: "{tick.previous}"}}
        """,
        scheduled=True,
    )
    next_tick, zone = cron_ticks("0 0 * * *", "Europe/Berlin"), time_zone("Europe/Berlin")
    midnight = next_tick(1_774_700_000.0)  # the 29th of March 2026, on which clocks go forward at 2
    assert midnight is not None
    ticked = waits_of(with_tick(plan, tick_values(midnight, next_tick, zone)))
    assert ticked["nine"] == {"until": "2026-03-29T09:00:00+02:00"}
    assert ticked["fixed"] == {"until": "2026-03-29T09:00:00+00:00"}
    assert ticked["load"]["tick"] == "2026-03-29T00:00:00+01:00"
    assert ticked["last"]["tick"] == "2026-03-28T00:00:00+01:00"


def test_a_plan_that_names_a_tick_asks_for_one_and_one_that_names_a_time_does_not() -> None:
    _, mistakes = examine('asterism: 1\ntasks:\n  a: {wait_for: {until: "{tick.date}T09:00"}}\n', "plan")
    assert "uses the tick of a schedule" in mistakes[0].text
    assert waits_of(read("tasks:\n  a: {wait_for: {until: 2026-11-18T09:00}}\n")) == {
        "a": {"until": "2026-11-18T09:00"}
    }


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (
            "{wait_for: {event: x}, shell: 'true'}",
            "is executed by no device, so it cannot have shell",
        ),
        ("{wait_for: {}}", "wait_for: it has one of event, until, plan"),
        ("{wait_for: {event: x, until: 2026-11-18}}", "wait_for: it has one of event, until, plan"),
        ("{wait_for: {plan: x}}", "wait_for: it needs task"),
        ("{wait_for: {until: noon}}", "until: 'noon' is not a time"),
        ("{wait_for: {event: x, timeout: soon}}", "'soon' is not a valid duration"),
        ("{wait_for: {event: '{params.x}'}, retries: 1}", "cannot have retries"),
        ("{}", "has no action; give it one of call, argv, shell, http, agent, plugin, or wait_for"),
    ],
)
def test_mistakes_are_sentences(task: str, text: str) -> None:
    assert any(text in complaint for complaint in complaints(task)), complaints(task)
