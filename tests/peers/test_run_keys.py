"""An idempotency key belongs to the store in which it was created."""

from __future__ import annotations

from asterism.core.run import transitions
from asterism.core.run.work import Workflow
from asterism.store.protocol import Query
from tests.peers.exchange_fixtures import FLOW, Liar, Side, two


async def test_one_key_in_two_stores_belongs_to_two_runs() -> None:
    laptop, kitchen = await two()
    mine, theirs = await kitchen.create(key="nightly"), await laptop.create(key="nightly")
    assert (await kitchen.sync_with(laptop)).refused == 0
    assert [run.id for run in await kitchen.store.find(Query(key="nightly"))] == [mine.id]
    assert (await kitchen.run(theirs.id)).key is None


async def test_a_run_that_returns_from_a_peer_keeps_its_key() -> None:
    laptop, kitchen = await two()
    run = await laptop.create(key="nightly")
    await laptop.sync_with(kitchen)
    await kitchen.take(run.id)
    await kitchen.complete(run.id, "done")
    await laptop.sync_with(kitchen)
    record = await laptop.run(run.id)
    assert (record.key, record.output) == ("nightly", "done")
    assert (await laptop.sync_with(kitchen)).sent == 0


async def test_the_key_of_a_remote_run_does_not_matter_here() -> None:
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    other = Workflow("other", shell="true", version=1)
    now = laptop.store.clock()
    run = transitions.create("r-1", other, {}, by="liar", now=now, key="backup-today")
    await Liar(laptop).says(run)
    await laptop.fleet.workflows.add(FLOW)
    assert (await laptop.fleet.create("transcode", {}, key="backup-today")).workflow == "transcode"


async def test_a_remote_device_has_the_peer_timeout_to_answer() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    await laptop.fleet.workflows.add(Workflow("cook", argv=("true",), device="kitchen", assignment_timeout=30.0))
    run = await laptop.fleet.create("cook", {})
    assert (run.device, run.due_at) == ("kitchen", run.created_at + 3600.0)
