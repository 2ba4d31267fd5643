"""Records that are too large, gone or invalid, and peers that never end: none of them stops a sync or keeps it open."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, CREATED, Run
from asterism.core.run.work import Workflow
from asterism.peers import messages
from asterism.peers.exchange import SyncResult
from asterism.peers.peer_client import MAX_MESSAGE_BYTES
from asterism.peers.peer_service import SyncLoop
from asterism.peers.registry import PeerRefused
from asterism.store import row_codec
from asterism.store.protocol import PutRegister, PutRun
from asterism.store.sqlite import SqliteStore
from tests.peers.exchange_fixtures import FLOW, Direct, Liar, Side, two

# -- invalid text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["\ud800", "a\nb", "run-\udfff"])
async def test_an_id_that_is_not_text_does_not_stop_a_sync(tmp_path: Path, name: str) -> None:
    """SQLite cannot store a lone surrogate."""
    store = await SqliteStore.open(tmp_path / "laptop.db")
    laptop = await Side("laptop", store).joined()
    await laptop.exchange.peers.add("kitchen")
    answer = await Liar(laptop).says([name] + [None] * (len(row_codec.COLUMNS) - 1))
    assert answer["cursor"]["number"] == 1
    assert answer["refused"] == 1
    [notice] = await laptop.notices("refused")
    assert notice.startswith("peer kitchen: it is not a valid record of a run")
    await store.close()


async def test_a_lone_surrogate_in_a_record_does_not_stop_a_sync(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "laptop.db")
    laptop = await Side("laptop", store).joined()
    await laptop.exchange.peers.add("kitchen")
    liar = Liar(laptop)
    run = transitions.create("one", FLOW, {}, by="ann", now=laptop.store.clock())
    row = messages.encode_record(1, "liar-store", run)["run"]
    for place, value in enumerate(row):
        if isinstance(value, str):
            await liar.says([*row[:place], f"{value}\ud800", *row[place + 1 :]])
    good = transitions.create("two", FLOW, {}, by="ann", now=laptop.store.clock())
    await liar.says(good)
    assert await laptop.store.run("two") is not None
    await store.close()


@pytest.mark.virtual_time
async def test_an_internal_error_is_logged_and_backs_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class LoopClock:
        def time(self) -> float:
            return asyncio.get_running_loop().time()

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    tried: list[float] = []
    with caplog.at_level(logging.INFO, "asterism.peers"):
        laptop, kitchen = await two()
        await laptop.exchange.peers.update("kitchen", url="https://kitchen:7420")
        laptop.fleet.clock = LoopClock()

        class Broken(Direct):
            async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
                tried.append(asyncio.get_running_loop().time())
                raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

        task = asyncio.create_task(SyncLoop(laptop.exchange, lambda _: Broken(laptop, kitchen)).run())
        await asyncio.sleep(600.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    gaps = [after - before for before, after in itertools.pairwise(tried)]
    assert gaps[0] < 8.0
    assert all(40.0 < gap <= 73.0 for gap in gaps[5:])
    assert len(gaps) > 8
    errors = [record for record in caplog.records if record.message == "internal error in the sync with peer kitchen"]
    assert len(errors) == len(tried)
    assert errors[0].exc_info is not None


# -- records that are too large, or whose workflow is gone -------------------------------------------------------------


async def _sizes(laptop: Side, kitchen: Side) -> tuple[list[int], SyncResult]:
    transport = Direct(laptop, kitchen)
    result = await laptop.exchange.sync("kitchen", transport)
    return [len(json.dumps(message)) for message in transport.sent], result


async def test_large_workflows_are_split_over_messages() -> None:
    laptop, kitchen = await two()
    for number in range(60):
        flow = await laptop.fleet.workflows.add(Workflow(f"work-{number}", shell="x" * 50_000))
        await laptop.fleet.ledger.add(
            transitions.create(f"run-{number}", flow, {}, by="ann", now=1.0), lambda record: record
        )
    sizes, result = await _sizes(laptop, kitchen)
    assert result.sent == 60
    assert max(sizes) < messages.MAX_BATCH_BYTES + 100_000
    assert messages.MAX_RECORD_BYTES + messages.MAX_BATCH_BYTES < MAX_MESSAGE_BYTES


@pytest.mark.long
async def test_the_size_of_a_record_counts_as_encoded() -> None:
    laptop, kitchen = await two()
    await laptop.fleet.configure(large=32 << 20)
    for _ in range(4):
        await laptop.create(input={"text": "é" * 150_000})
    sizes, result = await _sizes(laptop, kitchen)
    assert result.sent == 4
    assert max(sizes) < messages.MAX_BATCH_BYTES + 100_000


async def test_a_record_that_is_too_large_is_skipped_with_a_notice() -> None:
    laptop, kitchen = await two()
    first = await laptop.create()
    large = await laptop.create(input={"text": "y" * (messages.MAX_RECORD_CHARS + 1)})
    last = await laptop.create()
    sizes, result = await _sizes(laptop, kitchen)
    assert max(sizes) < messages.MAX_BATCH_BYTES
    assert result.sent == 2
    for run in (first, last):
        assert await kitchen.run(run.id) == run
    assert await kitchen.store.run(large.id) is None
    [notice] = await laptop.notices("refused")
    assert notice.startswith(f"run {large.id} was not sent to peer kitchen: it is too large for a message")
    await laptop.take(large.id)
    assert (await laptop.sync_with(kitchen)).sent == 0
    assert len(await laptop.notices("refused")) == 1


# -- peers that never end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", [None, "to and fro"])
async def test_a_peer_that_always_has_more_does_not_keep_a_sync_open(
    cursor: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "asterism.peers"):
        laptop = await Side("laptop").joined()
        await laptop.exchange.peers.add("kitchen")
        for _ in range(3):
            await laptop.create()
        feed = (await laptop.exchange._open())[1]

        class Chatty(Direct):
            async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
                self.sent.append(message)
                assert len(self.sent) < 20, "it never ends"
                place = None if cursor is None else {"feed": feed, "number": len(self.sent) % 2}
                return {
                    "protocol": 2, "store": "liar", "clock": laptop.store.clock(), "feed": "f", "cursor": place,
                    "after": 0, "upto": 0, "more": True, "newest": 1 << 50, "records": [], "workflows": [],
                    "devices": [], "wants": {}, "lacks": [],
                }  # fmt: skip

        await laptop.exchange.sync("kitchen", Chatty(laptop, laptop))
    assert "the sync with peer kitchen makes no progress and ends" in caplog.text


@pytest.mark.parametrize("field", ["protocol", "clock", "store", "feed", "cursor", "records"])
async def test_a_refused_message_is_quoted_only_in_part(field: str) -> None:
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    with pytest.raises(PeerRefused) as refused:
        await Liar(laptop).says(**{field: "x" * 1_000_000})
    assert len(str(refused.value)) < 500


# -- reasons for refusals ----------------------------------------------------------------------------------------------


async def forged(laptop: Side, kitchen: Side) -> Run:
    """A run that the kitchen has claimed, as the laptop says: the kitchen never heard of it."""
    run = await laptop.create()
    taken = transitions.take(run, kitchen.owner, laptop.store.clock())
    await laptop.store.commit([PutRun(taken, run.revision)])
    return taken


async def test_the_client_learns_repeated_refusals() -> None:
    laptop, kitchen = await two()
    run = await forged(laptop, kitchen)
    for _ in range(2):
        result = await laptop.sync_with(kitchen)
        assert (result.sent, result.refused) == (1, 0)
        [why] = result.refused_there
        assert why.startswith(f"run {run.id}: kitchen is a device of this store, which has no report of it")
        if (await laptop.run(run.id)).stop_request is None:
            await laptop.step(run.id, lambda record: transitions.pause(record, 9.0, "ann"))
    assert len(await kitchen.notices("refused")) == 1
    assert (await laptop.sync_with(kitchen)).refused_there == ()


async def test_the_first_reasons_of_many_refusals_are_sent() -> None:
    laptop, kitchen = await two()
    for _ in range(12):
        await forged(laptop, kitchen)
    result = await laptop.sync_with(kitchen)
    assert len(result.refused_there) == messages.MAX_REASONS + 1
    assert result.refused_there[-1] == "7 more, without a reason"
    assert all(len(reason) <= messages.MAX_REASON_CHARS for reason in result.refused_there)


async def test_a_record_that_is_ingested_later_is_not_reported_as_refused() -> None:
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    liar = Liar(laptop)
    run = transitions.create("one", FLOW, {}, by="ann", now=laptop.store.clock())
    answer = await liar.says(run.changed(cancelled=True))
    assert answer["reasons"] == ["run one: it contradicts itself: it is created, with error None, and was cancelled"]
    answer = await liar.says(run, ["two"])
    assert answer["refused"] == 1
    assert answer["reasons"] == ["run two: it is not a valid record of a run: it does not have the columns of a run"]


# -- a store that only syncs -------------------------------------------------------------------------------------------


async def test_a_sync_assigns_waiting_runs_in_a_store_without_devices() -> None:
    laptop, kitchen = Side("laptop"), await Side("kitchen").joined()
    await laptop.knows(kitchen)
    await kitchen.knows(laptop)
    await laptop.sync_with(kitchen)
    for side in (laptop, kitchen):
        side.clock.now += 600
    await laptop.fleet.workflows.add(FLOW)
    run = await laptop.fleet.create("transcode", {})
    assert run.status is CREATED  # the cooker has been silent for long
    await kitchen.beat()
    await laptop.sync_with(kitchen)
    assert (await kitchen.run(run.id)).status is ASSIGNED
    assert (await kitchen.run(run.id)).device == "kitchen"


async def test_a_server_assigns_waiting_runs_as_well() -> None:
    laptop, kitchen = await Side("laptop").joined(), Side("kitchen")
    await laptop.knows(kitchen)
    await kitchen.knows(laptop)
    await kitchen.fleet.workflows.add(FLOW)
    run = await kitchen.fleet.create("transcode", {})
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).device == "laptop"


async def test_a_sync_assigns_nothing_while_a_device_or_coordinator_is_there() -> None:
    laptop, kitchen = await two()
    await laptop.fleet.workflows.add(FLOW)
    run = await laptop.create()
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).status is CREATED
    laptop.clock.now += 3600
    office = {"device": "laptop", "session": "laptop-1", "epoch": 1, "until": laptop.store.clock() + 60, "lease": 60}
    await laptop.store.commit([PutRegister("coordinator", office, None)])
    await kitchen.beat()
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).status is CREATED
    laptop.clock.now += 61
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).status is ASSIGNED
