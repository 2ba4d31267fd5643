"""Log of a device during a long outage of the store: at its begin, once a minute, and at its end."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator

import pytest

from asterism.base.error_log import REPEAT_INTERVAL, RecurringError
from asterism.store.store_errors import StoreFull
from tests.fleet.fleet_scenes import WORK, Stage, staged

pytestmark = pytest.mark.virtual_time

LOGGER = "asterism.device"


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, LOGGER):
        yield


def log_lines(caplog: pytest.LogCaptureFixture, *begins: str) -> list[tuple[str, str]]:
    """Level and words of every line that begins so."""
    records = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == LOGGER]
    return [(level, words) for level, words in records if words.startswith(begins)]


def ages(lines: list[tuple[str, str]]) -> list[int]:
    """How long it has lasted, in those lines that say it."""
    return [int(match[1]) for _, words in lines if (match := re.search(r", (?:for|after) ([0-9]+) s", words))]


def kinds(lines: list[tuple[str, str]]) -> list[str]:
    return [f"{level} {words.partition(':')[0].partition(',')[0]}" for level, words in lines]


async def test_a_store_out_of_reach_for_minutes_is_a_line_a_minute(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    kitchen = await stage.device("kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
    await asyncio.sleep(10.0)
    before = kitchen.line.asked["heartbeat"]
    kitchen.line.down = True
    await asyncio.sleep(200.0)
    assert kitchen.line.asked["heartbeat"] - before > 100, "it tries all the time"
    beats = log_lines(caplog, "no heartbeat", "heartbeats again")
    assert kinds(beats) == ["WARNING no heartbeat"] * 4
    assert beats[0][1] == "no heartbeat: the line is down"
    assert [age // 60 for age in ages(beats)] == [1, 2, 3]
    assert all(words.endswith(": the line is down") for _, words in beats)
    kitchen.line.down = False
    await stage.until(lambda: log_lines(caplog, "heartbeats again"))
    over = log_lines(caplog, "heartbeats again")
    assert kinds(over) == ["INFO heartbeats again"]
    assert 195 <= ages(over)[0] <= 205
    await asyncio.sleep(300.0)
    assert len(log_lines(caplog, "no heartbeat", "heartbeats again")) == 5, "and then all is quiet"


@pytest.mark.store_only("the server looks for work of such devices")
async def test_looking_for_work_in_vain_is_a_line_a_minute_too(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    kitchen = await stage.device("kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
    await kitchen.fleet.workflows.add(WORK)
    before = kitchen.line.asked["find"]
    kitchen.line.down = True
    await asyncio.sleep(150.0)
    assert kitchen.line.asked["find"] - before > 10
    assert kinds(log_lines(caplog, "cannot look")) == ["WARNING cannot look for work"] * 3
    kitchen.line.down = False
    await stage.until(lambda: log_lines(caplog, "looking for work again"))
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    lines = log_lines(caplog, "cannot look", "looking for work")
    assert kinds(lines) == [*["WARNING cannot look for work"] * 3, "INFO looking for work again"]
    assert [age // 60 for age in ages(lines)] == [1, 2, 2]


async def test_every_trouble_has_its_beginning_and_its_end(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    kitchen = await stage.device("kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
    for _ in range(2):
        kitchen.line.drops["heartbeat"] = 2
        await stage.until(lambda: not kitchen.line.drops["heartbeat"])
        await asyncio.sleep(5.0)
    assert kinds(log_lines(caplog, "no heartbeat", "heartbeats again")) == [
        *("WARNING no heartbeat", "INFO heartbeats again"),
        *("WARNING no heartbeat", "INFO heartbeats again"),
    ]


async def test_a_device_without_trouble_says_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async with staged() as stage:
        kitchen = await stage.device("kitchen", heartbeat=3.0, heartbeat_timeout=10.0)
        run = await stage.person.create(WORK)
        await stage.at_work(kitchen, run)
        kitchen.hands.finish(run)
        await stage.end_of(run)
    assert [words for _, words in log_lines(caplog, "")] == ["joined as kitchen", "left"]


def clocked(*times: float) -> Callable[[], float]:
    at = iter(times)
    return lambda: next(at)


def test_an_internal_error_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    trouble = RecurringError(
        logging.getLogger(LOGGER), "cannot watch", "watches again", clocked(0.0, 1.0, 2.0, REPEAT_INTERVAL + 9)
    )
    for error in (StoreFull("no room left"), KeyError("x"), KeyError("x"), KeyError("x")):
        trouble.occurred(error)
    assert log_lines(caplog, "") == [
        ("WARNING", "cannot watch: no room left"),
        ("ERROR", "cannot watch: a bug in Asterism"),
        ("WARNING", "cannot watch, for 69 s now: 'x'"),
    ]
    assert [record.exc_info is not None for record in caplog.records] == [False, True, False]


def test_a_minute_is_counted_from_the_last_line_not_from_the_beginning(caplog: pytest.LogCaptureFixture) -> None:
    error = StoreFull("no room left")
    times = (
        0.0,
        1.0,
        REPEAT_INTERVAL + 9,
        REPEAT_INTERVAL + 61,
        2 * REPEAT_INTERVAL + 8,
        2 * REPEAT_INTERVAL + 9,
        2 * REPEAT_INTERVAL + 10,
    )
    trouble = RecurringError(logging.getLogger(LOGGER), "no heartbeat", "heartbeats again", clocked(*times))
    for _ in range(6):
        trouble.occurred(error)
    trouble.recovered()
    trouble.recovered()
    assert log_lines(caplog, "") == [
        ("WARNING", "no heartbeat: no room left"),
        ("WARNING", "no heartbeat, for 69 s now: no room left"),
        ("WARNING", "no heartbeat, for 129 s now: no room left"),
        ("INFO", "heartbeats again, after 130 s"),
    ]
