"""The benchmarks of runs that need nothing but ourselves: that they run, and that they count what they say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asterism.store.memory import MemoryStore
from bench import __main__ as command
from bench.runs import creation, gateway, half_load, idle_devices, latency, page, queues, scale, sqlite
from bench.runs.counting import counted
from bench.runs.peers import Timing
from tests.laboratory.store_conformance.sample_records import a_run, a_session, completed, held_by, started

TINY = sqlite.Sizes(commits=30, groups=2, alone=5, in_flight=40, created=30, rounds=1)


def test_a_run_in_one_process_costs_two_writes() -> None:
    found = sqlite.measure(TINY)
    assert 2.0 <= found.writes <= 2.02  # of 200 runs; a background write may fall into the measurement
    assert min(found.raw_commits, found.raw_rows, found.raw_records, found.alone, found.in_flight, found.created) > 0


async def test_runs_that_are_executed_once_too_often_or_fail_give_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "tune_gc", lambda: None)  # this process belongs to the tests

    async def two_runs(fleet: sqlite.Fleet, flow: sqlite.Workflow) -> float:
        return await sqlite.one_by_one(fleet, flow, 2)

    assert await sqlite.in_file(tmp_path / "right.db", 1, 2, two_runs) > 0
    with pytest.raises(AssertionError, match="3 executions of 4 runs"):
        await sqlite.in_file(tmp_path / "few.db", 1, 3, two_runs)
    monkeypatch.setattr(sqlite, "NOTHING", "bench.runs.work:no_such_function")
    with pytest.raises(AssertionError, match=r"failed: .*no_such_function"):
        await sqlite.in_file(tmp_path / "failed.db", 1, 2, two_runs)


async def test_runs_that_were_not_all_created_give_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert min(await sqlite.creation(tmp_path / "all.db", 5)) > 0
    create_many = sqlite.Fleet.create_many

    async def one_too_few(fleet: sqlite.Fleet, flow: Any, inputs: list[Any]) -> Any:
        return await create_many(fleet, flow, inputs[1:])

    monkeypatch.setattr(sqlite.Fleet, "create_many", one_too_few)
    with pytest.raises(AssertionError, match="5 runs should wait"):
        await sqlite.creation(tmp_path / "few.db", 5)


def test_devices_that_were_lost_or_silent_give_no_figure() -> None:
    minute = idle_devices.Sizes(devices=3, seconds=60)
    idle_devices.check(3, 3, minute)
    idle_devices.check(3, 0, idle_devices.Sizes(devices=3, seconds=1))
    with pytest.raises(AssertionError, match="1 of 3 devices were lost"):
        idle_devices.check(2, 2, minute)
    with pytest.raises(AssertionError, match="2 of 3 devices sent a heartbeat"):
        idle_devices.check(3, 2, minute)


@pytest.mark.long
def test_devices_on_a_store_and_through_a_gateway_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "DEVICES", 2)
    measured = gateway.measure(gateway.Sizes(runs=20, slots=5, rounds=1))
    assert "| through the gateway | " in gateway.page(measured)
    monkeypatch.setattr(gateway, "NOTHING", "bench.runs.work:no_such_function")
    with pytest.raises(AssertionError, match=r"20 runs should have completed: .*'failed': 20"):
        gateway.measure(gateway.Sizes(runs=20, slots=5, rounds=1))


@pytest.mark.long
def test_devices_without_work_are_measured() -> None:
    measured = idle_devices.measure(idle_devices.Sizes(devices=4, seconds=1))
    assert "4 devices without work" in idle_devices.page(measured)


def test_the_raw_limits_notice_a_row_that_is_not_as_expected(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not as expected"):
        sqlite._rate(sqlite._connected(tmp_path / "raw.db"), [("PRAGMA user_version = 1", (), "")], 1)


def test_both_readings_of_the_bars_are_told() -> None:
    text = page.one_process(sqlite.Measured(10_000.0, 100_000.0, 50_000.0, 2_000.0, 6_000.0, 2.0, 29_000.0, 40_000.0))
    assert "| one after the other | 2,000/s | 20.0% of the raw commits | ≥ 25%: **missed** |" in text
    assert "| 1,000 in flight | 6,000/s |  | ≥ 4,000/s: met |" in text
    assert "| 6.0%, runs of raw rows | ≥ 10%: **missed** |" in text
    assert "| 12.0%, writes of raw rows | ≥ 10%: met |" in text
    assert "24.0%, writes of raw records" in text
    assert "without a device: 29,000/s, or 40,000/s by the processor time" in text
    assert "Bar: ≥ 30,000/s: **missed**." in text


def test_the_creation_of_many_runs_is_compared() -> None:
    ours = creation.Creation("asterism", 100, [1.0, 2.0], [0.1, 0.2], [0.3, 0.1])
    other = creation.Creation("pgqueuer", 100, [2.0], [0.2], [0.4])
    text = page.creations([ours, other])
    assert "At least as quick: met, 2.00 times as fast, with 0.50 times the processor time." in text
    assert "**missed**" in page.creations([other, ours])


async def test_every_write_is_counted_by_kind_and_every_end() -> None:
    ended = 0

    def one_more() -> None:
        nonlocal ended
        ended += 1

    store, counting = counted(MemoryStore())
    counting.ended = one_more

    async def measure(fleet: sqlite.Fleet, flow: sqlite.Workflow) -> float:
        before = counting.writes["create"], counting.writes["change"], ended
        await sqlite.together(fleet, flow, 7, 3)
        after = counting.writes["create"], counting.writes["change"], ended
        assert [now - then for now, then in zip(after, before, strict=True)] == [7, 7, 7]
        return 0.0

    await sqlite.with_device(store, 3, measure)


def test_the_beginning_of_work_in_another_process_is_timed() -> None:
    found = latency.sqlite(samples=4)
    assert found.created.median > 0
    assert max(found.created.worst, found.begun.worst) <= found.known.worst  # the device may be quicker than our answer
    assert "| SQLite | 4 | " in page.latencies([found])


@pytest.mark.long
@pytest.mark.parametrize("place", ["SQLite", "gateway"])
def test_runs_that_arrive_at_half_of_the_full_rate_are_timed(place: str, tmp_path: Path) -> None:
    size = half_load.Size(runs=30, creators=5, seconds=0.5)
    found = asyncio.run(half_load.measure(place, f"sqlite:///{tmp_path / 'load.db'}", tmp_path, size))
    assert found.runs == round(found.full / 2 * 0.5) > 0
    assert len(found.stages) == len(half_load.STAGES)
    assert max(stage.median for stage in found.stages) <= found.begun.worst
    assert all(0.0 < each.used < 3.0 and each.waited >= 0.0 for each in found.processors)
    assert f"| {place} | " in half_load.page([found])


def test_a_run_that_began_twice_or_has_not_ended_gives_no_figure() -> None:
    ended = completed(started(held_by(a_run(1), a_session())))
    half_load.check_once([ended], 1)
    with pytest.raises(AssertionError, match="2 runs should have completed"):
        half_load.check_once([ended], 2)
    begun = next(entry for entry in ended.story if entry.what == "processing")
    with pytest.raises(AssertionError, match="1 runs did not begin once"):
        half_load.check_once([ended.changed(story=(*ended.story, begun))], 1)


def test_a_missed_bar_is_told() -> None:
    quick, slow = latency.Spread(0.004, 0.014), latency.Spread(0.006, 0.031)
    rows = [
        half_load.Measured("SQLite", 100.0, 50, quick, [quick] * 3, [half_load.Processor(0.5, 0.25)] * 2),
        half_load.Measured("gateway", 100.0, 50, slow, [slow] * 3, []),
    ]
    assert half_load._processors(rows[0]) == ("SQLite", *["50%, waiting 25%"] * 2)
    assert [row.bars for row in rows] == [("met", "met"), ("", "**missed**")]


def test_a_device_that_cannot_join_is_told_of(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="ended with 1 and had printed nothing"),
        latency.device(f"sqlite:///{tmp_path}/none/fleet.db"),
    ):
        pass


def test_growth_is_measured_against_that_of_the_fleet() -> None:
    small = scale.Cost(1_000, 10_000, 1.0, 1.0, 1.0, 480, 1.0, 100, 1.0)
    large = scale.Cost(10_000, 100_000, 10.0, 20.0, 5.0, 480, 1.0, 100, 1.0)
    assert scale.growth([small, large], lambda cost: cost.beats) == 1.0
    text = page.large_fleets([small, large])
    assert "| a round of heartbeats | 1.00 s | 10.00 s | 1.00 | met |" in text
    assert "| a pass that finds nothing to do | 1.00 s | 20.00 s | 2.00 | **missed** |" in text


def test_the_page_says_how_many_times_as_quick_we_are() -> None:
    ours = queues.Result("asterism", "1", "as it comes", 10, 100, [Timing(1.0, 0.2, 0.1), Timing(2.0, 0.1, 0.2)])
    other = queues.Result("other", "2", "as told", 10, 100, [Timing(0.5, 0.4, 0.1)])
    pushed = queues.Result("asterism, pushed", "1", "at once", 1000, 100, [Timing(1.0, 2.0, 0.1)])
    text = page.beside_queues(queues.Comparison("18.0", [ours, other], ["third"], pushed))
    assert "| other | 2 | 100 | 250/s (4.0×) | 200/s | 111/s | 1.00 ms |" in text
    assert "met, 4.0 times as fast as the next" in text
    assert "not installed: third" in text
    assert "at 100/s, while" in text
    assert "that is 50/s" in text


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["runs-sqlite", "runs-nothing"]) == 2
    assert "no such part: runs-nothing; the parts are cost" in capsys.readouterr().err
