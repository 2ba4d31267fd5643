"""The workloads of job queues: every job is done by every queue that is installed, work that is lost or done twice is
found out, and the page shows the figures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.runs import workloads
from bench.runs.latency import Spread
from bench.runs.load import DEAD_AFTER, QUEUES, Begun, job, load, read_records, record_in
from bench.runs.workloads import Outcome, Size
from tests.store.postgres_server import Server

SMALL = Size(backlog=40, rate=40.0, seconds=1.0, bursts=2, burst=30, pause=0.0, kills=1, work=0.2)


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with workloads._server() as server:
        yield server


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "workload"), [*((name, "held") for name in QUEUES), ("asterism", "bursts"), ("asterism", "killed")]
)
def test_a_queue_does_every_job_of_a_workload(name: str, workload: str, running: Server) -> None:
    if find_spec(QUEUES[name]) is None:
        pytest.skip(f"queue {name} is not installed: make bench-env")
    outcome = workloads.measure(running, name, workload, SMALL)
    assert outcome.jobs > (60 if workload == "bursts" else 40)
    assert 0 < outcome.pickup.median <= outcome.pickup.worst
    assert outcome.rate > 0
    if workload == "killed":
        assert outcome.again == 0 or outcome.recovery > 0
    else:
        assert (outcome.again, outcome.recovery) == (0, 0.0)
    assert load(name).SETTINGS


@pytest.mark.long
def test_jobs_that_the_tables_do_not_have_give_no_figure(running: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(workloads._all_done(running.url(), "SELECT 2, 0", 2))
    monkeypatch.setattr(workloads, "PATIENCE", 0.0)
    for counts in ("1, 0", "3, 0", "2, 1"):
        with pytest.raises(AssertionError, match=rf"of 2 jobs the tables say \(done, anything else\): \({counts}\)"):
            asyncio.run(workloads._all_done(running.url(), f"SELECT {counts}", 2))


def test_a_job_that_never_began_is_noticed() -> None:
    with pytest.raises(AssertionError, match="2 jobs were created, and 1 have begun"):
        workloads.check([Begun(0, 1, 0.0)], 2, {})


def test_a_job_that_began_twice_is_noticed_unless_its_worker_was_killed() -> None:
    records = [Begun(0, 7, 9.0), Begun(1, 8, 1.0), Begun(0, 8, 1.5)]  # in the order of the file
    assert workloads.check(records, 2, {8: 2.0}) == (1, 7.0)
    with pytest.raises(AssertionError, match="job 0 began twice, and its first worker lived"):
        workloads.check(records, 2, {7: 2.0})
    assert workloads.check(records[:2], 2, {}) == (0, 0.0)


async def test_a_job_leaves_a_record(tmp_path: Path) -> None:
    assert read_records(tmp_path / "begun") == []
    record_in(tmp_path / "begun")
    await job(3, 0.0)
    await job(4, 0.0)
    assert [record.number for record in read_records(tmp_path / "begun")] == [3, 4]


async def test_jobs_arrive_even_if_those_before_are_not_created_yet(tmp_path: Path) -> None:
    calls: list[list[int]] = []
    last = asyncio.Event()

    async def put(numbers: range, seconds: float) -> None:
        calls.append(list(numbers))
        if len(calls) == 5:
            last.set()
        await last.wait()

    jobs = workloads.Load(put, tmp_path / "begun")
    assert await jobs.arrive(rate=1000.0, seconds=0.005) == range(5)
    assert calls == [[0], [1], [2], [3], [4]]


def _outcome(rate: float, median: float, worst: float, again: int = 0, recovery: float = 0.0) -> Outcome:
    return Outcome(100, rate, Spread(median, worst), again, recovery, 7)


def test_the_page_has_the_better_round_and_says_who_is_ahead() -> None:
    outcomes = {
        (workload, name): [_outcome(100 * factor, 0.02 / factor, 0.1), _outcome(10, 0.5, 0.05, 3, 6.0)]
        for workload in workloads.WORKLOADS
        for name, factor in (("asterism", 2.0), ("pgqueuer", 4.0))
        if find_spec(name) is not None
    }
    text = workloads.page(outcomes)
    assert "| asterism | 100 | 200/s | 10.00 ms | 50.00 ms | 7 |" in text
    assert "| asterism | 100 | 200/s | 10.00 ms | 50.00 ms | 0 and 3 | 6.00 s |" in text
    assert f"counts a worker as dead after {DEAD_AFTER:g} s of silence" in text
    if find_spec("pgqueuer") is None:
        assert "not installed: pgqueuer, procrastinate" in text
        return
    assert "| pgqueuer | 100 | 400/s (0.5×) | 5.00 ms (0.5×) | 50.00 ms (1.0×) | 7 |" in text
    assert "rate **missed**, 0.5 times as good as the next; p50 **missed**, 0.5" in text
    assert "p99 met, 1.0 times as good as the next" in text


def test_the_workloads_are_a_part_of_the_page_of_runs() -> None:
    assert "runs-workloads" in command.PAGES["runs"][0]
