"""Heartbeats in PostgreSQL, and the estimate of the server's clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.base.clock import DRIFT, ServerClock
from asterism.core.run.run import Progress
from asterism.store.protocol import ExpectSession, ProgressReport, PutRun
from asterism.store.store_errors import Conflict
from tests.laboratory.store_conformance.sample_records import (
    a_run,
    a_session,
    added,
    held_by,
    joined,
    released,
    session_in,
    started,
)
from tests.store.postgres_fixtures import looking, opened, waits_for_a_lock

ONE_STATEMENT = """
WITH beaten AS (
    UPDATE sessions SET revision = revision + 1 WHERE id = 'kitchen-1' AND state = 'open' RETURNING id
)
SELECT array_agg(runs.id) FROM runs, beaten WHERE runs.session = beaten.id
"""


async def _taken_away_meanwhile(url: str, beat: Any) -> Any:
    """Return the reply of ``beat`` if it arrives while a monitor takes away the session's only run."""
    async with opened(url) as store, looking(url) as monitor:
        kitchen = a_session()
        await joined(store, kitchen)
        run = held_by(a_run(1), kitchen)
        await added(store, run)
        transaction = monitor.transaction()
        await transaction.start()
        # a commit of ExpectSession and PutRun, stopped just before its end
        assert await monitor.fetchval("SELECT commit_others($1) IS NOT NULL", _EXPECTED)
        await monitor.execute("UPDATE runs SET session = NULL, offered = 1, revision = revision + 1")
        beating = asyncio.ensure_future(beat(store, kitchen.id))
        await waits_for_a_lock(monitor)
        await transaction.commit()
        return await beating


_EXPECTED = '{"expected": [{"id": "kitchen-1", "revision": 1}]}'


async def test_a_heartbeat_that_waited_for_a_commit_replies_with_its_outcome(postgres_url: str) -> None:
    answer = await _taken_away_meanwhile(postgres_url, lambda store, session: store.heartbeat(session, {}, ()))
    assert answer.alive
    assert answer.held == []


async def test_within_one_statement_it_would_reply_with_the_state_before(postgres_url: str) -> None:
    """The reason why a heartbeat is a function: a statement sees the state at its beginning, however long it waits."""

    async def in_one_statement(store: Any, session: str) -> Any:
        async with store._quick.borrowed() as connection:
            return await connection.fetchval(ONE_STATEMENT)

    assert await _taken_away_meanwhile(postgres_url, in_one_statement) == ["r0001"]


async def test_a_run_is_not_taken_away_after_a_heartbeat_that_arrived_meanwhile(postgres_url: str) -> None:
    async with opened(postgres_url) as store, opened(postgres_url) as monitor, looking(postgres_url) as other:
        kitchen = a_session()
        await joined(store, kitchen)
        run = held_by(a_run(1), kitchen)
        await added(store, run)
        transaction = other.transaction()
        await transaction.start()
        await other.fetch("SELECT * FROM beat('kitchen-1', '{}', '{}', '{}', '{}', '{}')")
        take = asyncio.ensure_future(
            monitor.commit([ExpectSession(kitchen.id, 1), PutRun(released(run), run.revision)])
        )
        await waits_for_a_lock(other)  # for the heartbeat, which is not committed yet
        await transaction.commit()
        with pytest.raises(Conflict, match="session kitchen-1"):
            await take
        assert await store.run(run.id) == run


async def test_a_heartbeat_has_the_servers_time(postgres_url: str) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await joined(store, a_session())
        before = await other.fetchval("SELECT now_in_seconds()")
        answer = await store.heartbeat("kitchen-1", {}, ())
        after = await other.fetchval("SELECT now_in_seconds()")
        beat_at = (await session_in(store, "kitchen-1")).beat_at
        assert before <= beat_at <= answer.now <= after


async def test_any_output_can_be_reported(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        kitchen = a_session()
        await joined(store, kitchen)
        run = started(held_by(a_run(1), kitchen))
        await added(store, run)
        report = ProgressReport(run.id, run.epoch, Progress(3, None), "a NUL \0, half a \ud83d pair and \x1b[31mred")
        await store.heartbeat(kitchen.id, {}, [report, ProgressReport("no \0 name", 1, None, "")])
        assert await store.reports([run.id, "no \0 name"]) == {run.id: report}


async def test_a_report_is_deleted_with_the_grant(postgres_url: str) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        kitchen = a_session()
        await joined(store, kitchen)
        run = started(held_by(a_run(1), kitchen))
        await added(store, run)
        await store.heartbeat(kitchen.id, {}, [ProgressReport(run.id, run.epoch, None, "half-way")])
        await store.commit([PutRun(released(run), run.revision)])
        assert await store.reports([run.id]) == {}
        assert await other.fetchval("SELECT count(*) FROM reports") == 1  # hidden; the next heartbeat removes it
        await store.heartbeat(kitchen.id, {}, ())
        assert await other.fetchval("SELECT count(*) FROM reports") == 0


# -- the clock ---------------------------------------------------------------------------------------------------------


class Own:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def sample(clock: ServerClock, own: Own, said: float, journey: float) -> None:
    asked = own.now
    own.now += journey
    clock.learn(said, asked)


def test_the_clock_is_the_servers_within_half_the_round_trip() -> None:
    own = Own()
    clock = ServerClock(own)
    sample(clock, own, 5000.0, 0.010)
    assert clock() == pytest.approx(5000.005)
    own.now += 60.0
    assert clock() == pytest.approx(5060.005)


def test_only_a_more_precise_sample_replaces_another() -> None:
    own = Own()
    clock = ServerClock(own)
    sample(clock, own, 5000.0, 2.0)
    sample(clock, own, 5001.5, 0.002)  # consistent with the first: only the reply was slow
    assert clock() == pytest.approx(5001.501)
    sample(clock, own, 5001.6, 1.0)
    assert clock() == pytest.approx(5001.501 + 1.0)


def test_an_old_sample_is_replaced_since_clocks_drift() -> None:
    own = Own()
    clock = ServerClock(own)
    sample(clock, own, 5000.0, 0.002)
    own.now += 1.0 / DRIFT
    sample(clock, own, 5000.3 + 1.0 / DRIFT, 0.1)
    assert clock() == pytest.approx(5000.3 + 1.0 / DRIFT + 0.05)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_if_the_servers_clock_was_set_the_next_sample_shows_it(jump: float) -> None:
    own = Own()
    clock = ServerClock(own)
    sample(clock, own, 5000.0, 0.002)
    sample(clock, own, 5000.0 + jump, 0.5)
    assert clock() == pytest.approx(5000.0 + jump + 0.25)


async def test_setting_our_own_clock_changes_nothing(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(postgres_url) as store:
        before = store.clock()
        monkeypatch.setattr("time.time", lambda: 0.0)
        assert 0.0 <= store.clock() - before < 3600.0


async def test_the_clock_is_right_as_soon_as_the_store_is_open(postgres_url: str) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        doubt = store.clock._error + 0.001
        before = store.clock()
        said = await other.fetchval("SELECT now_in_seconds()")
        assert before - doubt <= said <= store.clock() + doubt
