"""The benchmarks of runs on a real PostgreSQL server: every queue that is installed does every job, and the large fleet
is what it is said to be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from bench.runs import creation, full_store, latency, page, queues, scale
from bench.runs.peers import PEERS, load
from bench.runs.server import database, server, version
from tests.store.postgres_server import Server

pytestmark = pytest.mark.long  # it has a server of its own


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server() as one:
        yield one


@pytest.mark.parametrize("name", [*PEERS, "asterism_pushed"])
def test_a_queue_does_every_job(name: str, running: Server) -> None:
    if name in PEERS and find_spec(PEERS[name]) is None:
        pytest.skip(f"queue {name} is not installed: make bench-env")
    timing = queues.measure(running, name, jobs=25, batch=3, workers=2)
    assert min(timing) > 0
    peer = load(name)
    assert peer.VERSION()[0].isdigit()
    assert peer.SETTINGS


@pytest.mark.parametrize("name", creation.QUEUES)
def test_creation_is_measured_in_this_process_and_on_the_server(name: str, running: Server) -> None:
    if find_spec(name) is None:
        pytest.skip(f"queue {name} is not installed: make bench-env")
    found = creation.Creation(name, 150)
    creation.measure(running, found)
    assert min(found.rate, found.cost) > 0
    assert found.name in page.creations([found])


def test_jobs_that_the_tables_do_not_have_give_no_figure(running: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load("asterism"), "DONE", "SELECT 24, 1")
    with pytest.raises(AssertionError, match=r"of 25 jobs its tables say .*: 24\|1"):
        queues.measure(running, "asterism", jobs=25, batch=3, workers=2)
    monkeypatch.setitem(creation.WAITING, "asterism", "SELECT 9")
    with pytest.raises(AssertionError, match="9 of 10 jobs of asterism are in the queue"):
        creation.measure(running, creation.Creation("asterism", 10))


def test_what_a_queue_complains_about_is_told(running: Server) -> None:
    with pytest.raises(RuntimeError, match=r"No module named 'bench\.runs\.peers\.unheard_of_queue'"):
        queues.measure(running, "unheard_of", jobs=1, batch=1)


def test_the_database_of_a_measurement_goes_with_it(running: Server) -> None:
    before = running.sql("SELECT count(*) FROM pg_database")
    with database(running):
        assert running.sql("SELECT count(*) FROM pg_database") != before
    assert running.sql("SELECT count(*) FROM pg_database") == before
    assert int(version(running).partition(".")[0]) >= 15


def test_a_fleet_is_filled_and_what_befalls_it_is_measured(running: Server) -> None:
    with database(running) as url:
        cost = asyncio.run(scale.at_size(url, devices=40, repeats=1))
    assert (cost.devices, cost.runs) == (40, 400)
    assert cost.lost == 4 * scale.UNDER_WAY  # one device in ten is gone
    assert cost.given == scale.WAITING
    assert all(what(cost) > 0 for what in scale.WHAT.values())


def test_the_beginning_of_work_in_another_process_is_timed(running: Server) -> None:
    with database(running) as url:
        found = latency.on_postgres(url, samples=4)
    assert found.created.median > 0
    assert max(found.created.worst, found.begun.worst) <= found.known.worst  # the device may be quicker than our answer


def test_a_store_at_size_is_beside_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_store, "ROUNDS", 2)
    monkeypatch.setattr(full_store, "PRUNED_PER_PASS", 500)
    engines = full_store.measure(runs=1_500, plans=110, pruned=500)
    assert [engine.name for engine in engines] == ["SQLite", "PostgreSQL"]
    assert {len(times) for engine in engines for times in engine.large.times.values()} == {2}
    text = full_store.page(engines)
    assert "1,500 ended runs and 110 plans" in text
    assert all(operation in text for operation in ("create a run", "claim it", "the next page"))
