"""Failover: a server is killed during commits, its standby is promoted, and the same store continues. A standby that
lagged behind is noticed, and commits that wait for one do not wait forever."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import Iterator

import pytest

from asterism.store.postgres import PostgresStore, commit_history
from asterism.store.postgres.commit_history import CommitHistory
from asterism.store.postgres.schema import statements
from asterism.store.protocol import PutRun, Query
from asterism.store.store_errors import StoreCorrupt, StoreError, StoreReadOnly, StoreUnavailable
from tests.laboratory.store_conformance.sample_records import a_run, a_session, added, ids, joined, offer, taking
from tests.store.pgbouncer import PgBouncer, needs_pgbouncer
from tests.store.postgres_cluster import Cluster
from tests.store.postgres_fixtures import looking, opened
from tests.store.postgres_server import Server

KITCHEN = a_session()


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """A primary with a synchronous standby. Each test leaves both as it found them."""
    return shared_cluster


async def test_a_store_is_not_opened_on_a_standby(cluster: Cluster) -> None:
    primary, standby = cluster.primary, cluster.standby
    async with opened(primary.url()) as store:
        await added(store, a_run(1))
    with pytest.raises(StoreReadOnly, match="the server is a standby"):
        await PostgresStore.open(standby.url())
    with pytest.raises(StoreReadOnly, match="the server is a standby"):
        await PostgresStore.open(standby.url(target_session_attrs="any"))


@pytest.mark.long
async def test_a_failover_in_the_middle_of_commits_loses_nothing_that_was_acknowledged(cluster: Cluster) -> None:
    async with opened(cluster.url(target_session_attrs="read-write"), schema="failover") as store:
        acknowledged: set[str] = set()
        enough = asyncio.Event()

        async def write(writer: int) -> None:
            for number in itertools.count():
                run = a_run(f"w{writer}-{number}")
                try:
                    await store.commit([PutRun(run, None)])
                except StoreUnavailable:
                    return
                acknowledged.add(run.id)
                if len(acknowledged) == 100:
                    enough.set()

        writers = [asyncio.create_task(write(writer)) for writer in range(4)]
        await enough.wait()
        await asyncio.to_thread(cluster.primary.kill)
        await asyncio.gather(*writers)
        with pytest.raises(StoreUnavailable):  # the standby does not take writes yet
            await store.commit([PutRun(a_run("between"), None)])
        with pytest.raises(StoreUnavailable):
            await PostgresStore.open(cluster.url())
        cluster.primary, cluster.standby = cluster.standby, cluster.primary
        await asyncio.to_thread(cluster.primary.promote)
        await asyncio.to_thread(cluster.come_back)
        await store.commit([PutRun(a_run("after"), None)])
        stored = {run.id for run in await store.find(Query())}
        assert acknowledged <= stored
        assert len(stored - acknowledged) <= 5
        assert await store.check() == []


# -- a standby that lagged behind --------------------------------------------------------------------------------------


@pytest.fixture
def lagging() -> Iterator[Cluster]:
    with Cluster(synchronous=False) as cluster:
        yield cluster


RISK = "a standby is connected, but synchronous_standby_names is empty: a failover may lose acknowledged commits"


async def _risks(url: str, caplog: pytest.LogCaptureFixture, **options: str) -> list[str]:
    """What a process that stays logs when it starts, and then what the check logs."""
    warnings = []
    async with opened(url, **options) as store:
        caplog.clear()
        watch = store.watch(frozenset({"a"}))
        while not store._listener._warned:  # noqa: ASYNC110 - nothing else is awaited at the start
            await asyncio.sleep(0.01)
        watch.close()
        warnings += [caplog.messages]
        caplog.clear()
        assert await store.check() == []
        warnings += [caplog.messages]
    assert warnings[0] == warnings[1]
    return warnings[0]


@pytest.mark.long
async def test_a_configuration_that_may_lose_commits_is_reported(
    lagging: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    [line] = await _risks(lagging.primary.url(), caplog)
    assert line.startswith(lagging.primary.url())
    assert RISK in line
    [line] = await _risks(lagging.url(), caplog)
    assert RISK in line
    await asyncio.to_thread(lagging.fail_over)
    [line] = await _risks(lagging.url(), caplog)
    assert "the address names 2 servers, but synchronous_standby_names is empty" in line
    assert await _risks(lagging.primary.url(), caplog) == []


@pytest.mark.long
async def test_a_subscriber_to_changes_of_tables_is_no_standby(caplog: pytest.LogCaptureFixture) -> None:
    with Server({"wal_level": "logical"}) as server:
        other = server.own_database("other")
        server.sql("CREATE PUBLICATION changes")
        server.sql("SELECT pg_create_logical_replication_slot('changes', 'pgoutput')")
        source = f"host={server.folder} user=postgres dbname=postgres"
        other.sql(f"CREATE SUBSCRIPTION changes CONNECTION '{source}' PUBLICATION changes WITH (create_slot = false)")
        while server.sql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'").strip() != "1":
            pass
        assert await _risks(server.url(), caplog) == []


async def test_a_synchronous_standby_is_no_risk(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    assert await _risks(cluster.url(), caplog, schema="no_risk") == []


async def _write_while_cut(cluster: Cluster, store: PostgresStore, *, cut: bool = True) -> None:
    """A run that the standby gets, one that it does not get if the line is ``cut``, and the claim of both."""
    await joined(store, KITCHEN)
    await added(store, a_run(1))
    _until_replayed(cluster)
    if cut:
        await asyncio.to_thread(cluster.cut)
    await added(store, a_run(2))
    assert len(await store.take(offer(limit=2), taking(KITCHEN))) == 2
    if not cut:
        _until_replayed(cluster)


def _until_replayed(cluster: Cluster) -> None:
    position = cluster.primary.sql("SELECT pg_current_wal_lsn()").strip()
    while cluster.standby.sql(f"SELECT pg_last_wal_replay_lsn() >= '{position}'").strip() != "t":
        pass


@pytest.mark.long
async def test_a_standby_that_lagged_behind_is_noticed_and_not_believed(lagging: Cluster) -> None:
    async with opened(lagging.url()) as store, opened(lagging.url()) as reader:
        await _write_while_cut(lagging, store)
        await asyncio.to_thread(lagging.fail_over)
        async with opened(lagging.url()) as other:  # others go on, and use the same transaction ids again
            for number in range(10, 30):
                await added(other, a_run(number))
        with contextlib.suppress(StoreError):  # it may not know yet that its connection is lost
            await store.run("r0001")
        for attempt in (
            lambda: store.commit([PutRun(a_run(3), None)]),
            lambda: store.take(offer(), taking(KITCHEN)),
            lambda: store.heartbeat(KITCHEN.id, {}, ()),
            lambda: store.run("r0001"),
        ):
            with pytest.raises(StoreCorrupt, match=r"2 of the last 4 commits .* are missing; restore .* or restart"):
                await attempt()
        assert ids(await reader.find(Query(limit=2))) == ["r0001", "r0010"]  # it saw nothing of what is lost
        [(_, notice)] = await reader.notices()
        assert (notice.kind, "older copy" in notice.message) == ("restored", True)
        async with opened(lagging.url()) as again:  # a process that starts anew
            await added(again, a_run(3))


@pytest.mark.long
async def test_without_the_comparison_a_lagging_standby_would_be_believed(
    lagging: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommitHistory, "acknowledged", lambda self, *place: None)
    async with opened(lagging.url()) as store:
        await _write_while_cut(lagging, store)
        await asyncio.to_thread(lagging.fail_over)
        with contextlib.suppress(StoreUnavailable):
            await store.run("r0002")
        assert await store.run("r0002") is None


@pytest.mark.long
async def test_a_standby_that_had_everything_is_believed(lagging: Cluster) -> None:
    async with opened(lagging.url()) as store:
        await joined(store, KITCHEN)
        for number in range(200):
            await added(store, a_run(number))
        await asyncio.to_thread(lagging.primary.stop)  # a clean stop waits for the standby
        lagging.primary, lagging.standby = lagging.standby, lagging.primary
        await asyncio.to_thread(lagging.primary.promote)
        with contextlib.suppress(StoreUnavailable):
            await store.run("r0001")
        assert len(await store.take(offer(limit=200), taking(KITCHEN))) == 200


@pytest.mark.long
@needs_pgbouncer
@pytest.mark.parametrize("lagged", [True, False], ids=["it lagged", "it had everything"])
@pytest.mark.parametrize("interval", [0.0, float("inf")], ids=["reads", "commits"])
async def test_a_failover_behind_a_pooler_is_noticed_on_the_same_connection(
    lagging: Cluster, monkeypatch: pytest.MonkeyPatch, lagged: bool, interval: float
) -> None:
    monkeypatch.setattr(commit_history, "INTERVAL", interval)
    retry = "server_login_retry = 0.1\nserver_check_delay = 0"
    with PgBouncer(lagging.primary, more=retry) as pooler:
        async with opened(pooler.url()) as store:
            await _write_while_cut(lagging, store, cut=lagged)
            await store._sender.close()
            await asyncio.to_thread(lagging.fail_over)
            await asyncio.to_thread(pooler.follow, lagging.primary)
            if interval:
                await store.commit([PutRun(a_run(3), None)])
            if lagged:
                with pytest.raises(StoreCorrupt, match=r"2 of the last \d commits"):
                    await store.run("r0002")
            else:
                await store.commit([PutRun(a_run(4), None)])
                store._quick._close_idle(0.0)
                assert await store.run("r0002") is not None


async def test_a_missing_commit_record_is_noticed_by_its_transaction(cluster: Cluster) -> None:
    """The standby has the rows of a commit, but not its end: it was aborted there."""
    url = cluster.url(schema="aborted")
    async with opened(url) as store, looking(cluster.primary.url(schema="aborted")) as other:
        await added(store, a_run(1))
        transaction = other.transaction()
        await transaction.start()
        await other.execute("INSERT INTO registers VALUES ('one', '1', 1)")
        place = await other.fetchrow(statements()["place"])
        await transaction.rollback()
        store._factory.history.acknowledged(*place)
        await asyncio.to_thread(cluster.primary.stop, "immediate")
        await asyncio.to_thread(cluster.primary.start)
        with contextlib.suppress(StoreError):
            await store.run("r0001")
        with pytest.raises(StoreCorrupt, match="1 of the last 2 commits"):
            await store.run("r0001")
    await asyncio.to_thread(cluster.until_replicated)


# -- the line between the two is cut -----------------------------------------------------------------------------------


async def _given_up(store: PostgresStore) -> None:
    """A commit that waits for the standby, with a short limit for this one alone."""
    usual, store._factory.timeout = store._factory.timeout, 2.0
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        await store.commit([PutRun(a_run(2), None)])
    store._factory.timeout = usual


@pytest.mark.parametrize("fault", ["cut off", pytest.param("frozen", marks=pytest.mark.long)])
async def test_a_commit_that_waits_for_the_standby_is_given_up_and_seen_by_nobody(cluster: Cluster, fault: str) -> None:
    url = cluster.url(schema=fault.replace(" ", "_"))
    async with opened(url) as store, opened(url) as other:
        await added(store, a_run(1))
        receiver = await asyncio.to_thread(cluster.cut if fault == "cut off" else cluster.freeze)
        try:
            await _given_up(store)
            assert ids(await other.find(Query())) == ["r0001"]
            reading = asyncio.ensure_future(store.find(Query()))  # it would find what may get lost
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            while cluster.primary.sql(waiting).strip() != "2":  # noqa: ASYNC110 - the server sends no event
                await asyncio.sleep(0)
            assert not reading.done()
        finally:
            if receiver is None:
                await asyncio.to_thread(cluster.mend)
            else:
                os.kill(receiver, signal.SIGCONT)
        await reading
        assert ids(await store.find(Query())) == ["r0001", "r0002"]
        await added(store, a_run(3))


CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
"""What an operator may do, and a driver whose time is over: the server commits without the standby, with a warning."""


@pytest.mark.parametrize(
    "careful",
    [
        pytest.param(True, id="as it is"),
        pytest.param(False, id="without the empty transaction", marks=pytest.mark.long),
    ],
)
async def test_what_was_committed_without_the_standby_is_not_believed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, careful: bool
) -> None:
    if not careful:
        monkeypatch.setattr(CommitHistory, "in_doubt", False)
    url = cluster.url(schema=f"cancelled_{careful}".lower())
    async with opened(url) as store:
        await added(store, a_run(1))
        await asyncio.to_thread(cluster.cut)
        await _given_up(store)
        cluster.primary.sql(CANCEL)
        assert cluster.primary.sql(f"SELECT count(*) FROM cancelled_{careful}.runs").strip() == "2"
        reading = asyncio.ensure_future(store.find(Query()))
        if careful:
            while "SyncRep" not in cluster.primary.sql("SELECT wait_event FROM pg_stat_activity"):  # noqa: ASYNC110
                await asyncio.sleep(0)
        else:
            assert ids(await reading) == ["r0001", "r0002"]
        await asyncio.to_thread(cluster.fail_over)
        await asyncio.to_thread(cluster.come_back)
        if careful:
            with pytest.raises(StoreUnavailable):
                await reading
        assert ids(await store.find(Query())) == ["r0001"]  # what was read without care is lost


@pytest.mark.long
async def test_a_commit_whose_wait_for_the_standby_is_cancelled_is_not_acknowledged(cluster: Cluster) -> None:
    async with opened(cluster.url(schema="cancelled")) as store:
        await added(store, a_run(1))
        await asyncio.to_thread(cluster.cut)
        committing = asyncio.ensure_future(store.commit([PutRun(a_run(2), None)]))
        while "t" not in cluster.primary.sql(CANCEL):  # noqa: ASYNC110 - the server sends no event
            await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable, match="it may not be on the standby"):
            await committing
        await asyncio.to_thread(cluster.mend)
        assert ids(await store.find(Query())) == ["r0001", "r0002"]


@pytest.mark.long
async def test_a_commit_that_waited_for_the_standby_is_absent_after_a_failover_and_may_be_repeated(
    cluster: Cluster,
) -> None:
    async with opened(cluster.url(schema="repeated")) as store:
        await added(store, a_run(1))
        await asyncio.to_thread(cluster.cut)
        await _given_up(store)
        await asyncio.to_thread(cluster.fail_over)
        await asyncio.to_thread(cluster.come_back)
        assert ids(await store.find(Query())) == ["r0001"]
        await store.commit([PutRun(a_run(2), None)])
        assert ids(await store.find(Query())) == ["r0001", "r0002"]
