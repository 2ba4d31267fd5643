"""Blobs, workflows and texts that a peer sends: what is stored, for how long, and how it is shown."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import Run, Superseded
from asterism.core.run.workflow import Workflow
from asterism.fleet import retention, workflows
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import failure_notice
from asterism.peers import messages
from asterism.peers.messages import encode_record
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister, Register
from tests.peers.exchange_fixtures import FLOW, Liar, Side, two


async def victim() -> tuple[Side, Liar]:
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    return laptop, Liar(laptop)


def blob(number: int) -> dict[str, Any]:
    return {"$blob": hashlib.sha256(str(number).encode()).hexdigest(), "size": 1}


def with_large(run: Run, count: int) -> Run:
    return run.changed(superseded=tuple(Superseded("d", 1, float(at), blob(at)) for at in range(count)))


class Offering:
    """A server with some records to send."""

    def __init__(self, *runs: Run, flows: tuple[Workflow, ...] = (FLOW,)) -> None:
        self._records = [encode_record(number, "liar-store", run) for number, run in enumerate(runs, 1)]
        self._flows = [flow.to_json() for flow in flows]
        self.fetched: list[str] = []

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        known = message["cursor"]["number"] if message["cursor"] else 0
        return {
            "protocol": messages.PROTOCOL, "store": "liar-store", "clock": message["clock"], "feed": "liar-feed",
            "cursor": {"feed": message["feed"], "number": message["upto"]}, "after": known, "upto": len(self._records),
            "more": False, "newest": len(self._records), "records": self._records[known:], "workflows": self._flows,
            "devices": [], "wants": {}, "lacks": [],
        }  # fmt: skip

    async def fetch_blob(self, name: str, run: str) -> bytes:
        self.fetched.append(name)
        return next(str(number).encode() for number in range(200) if blob(number)["$blob"] == name)

    async def send_blob(self, name: str, data: bytes) -> None: ...


# -- blobs -------------------------------------------------------------------------------------------------------------


async def test_no_blob_is_fetched_for_a_refused_record() -> None:
    laptop, _ = await victim()
    mine = await laptop.create()
    forged = transitions.take(mine, laptop.owner, FLOW, 5.0, starts=True)
    without = transitions.create("odd", Workflow("odd", argv=("true",), version=1), {}, by="liar", now=5.0)
    good = transitions.create("good", FLOW, {}, by="liar", now=5.0)
    transport = Offering(with_large(forged, 3), with_large(without, 3), with_large(good, 2))
    result = await laptop.exchange.sync("kitchen", transport)
    assert (result.taken, result.refused) == (1, 2)
    assert sorted(transport.fetched) == sorted(blob(number)["$blob"] for number in range(2))
    assert (await laptop.run("good")).superseded


async def test_no_blob_is_wanted_for_a_refused_record() -> None:
    """The server asks for none."""
    laptop, liar = await victim()
    mine = await laptop.create()
    forged = transitions.take(mine, laptop.owner, FLOW, 5.0, starts=True)
    answer = await liar.says(with_large(forged, 3), workflows=[FLOW.to_json()])
    assert (answer["wants"], answer["refused"]) == ({}, 1)
    good = transitions.create("good", FLOW, {}, by="liar", now=5.0)
    answer = await liar.says(with_large(good, 2), workflows=[FLOW.to_json()])
    assert len(answer["wants"]) == 2


async def test_a_record_with_too_many_blobs_is_refused() -> None:
    laptop, _ = await victim()
    fat = with_large(transitions.create("fat", FLOW, {}, by="liar", now=5.0), messages.MAX_RECORD_BLOBS + 1)
    transport = Offering(fat)
    result = await laptop.exchange.sync("kitchen", transport)
    assert (result.refused, transport.fetched) == (1, [])
    assert "more than 100 blobs" in (await laptop.notices("refused"))[0]


# -- workflows ---------------------------------------------------------------------------------------------------------


def junk(number: int, version: int = 1) -> Workflow:
    return Workflow(f"junk-{number}", shell="x" * 100, version=version)


async def stored_versions(side: Side) -> list[str]:
    return [register.key for register in await side.store.registers("workflow-version/")]


async def test_a_workflow_without_a_run_is_not_stored() -> None:
    laptop, liar = await victim()
    run = transitions.create("good", FLOW, {}, by="liar", now=5.0)
    await liar.says(run, workflows=[FLOW.to_json(), *(junk(number).to_json() for number in range(50))])
    assert await stored_versions(laptop) == ["workflow-version/transcode@1"]


async def test_a_workflow_whose_only_run_is_refused_is_not_stored() -> None:
    laptop, liar = await victim()
    mine = await laptop.create()
    forged = transitions.take(mine, laptop.owner, FLOW, 5.0, starts=True)
    other = transitions.create("old", junk(1), {}, by="liar", now=5.0)
    old = transitions.cancel(other, -1e9, "liar")
    await liar.says(forged, old, workflows=[FLOW.to_json(), junk(1).to_json()])
    assert await stored_versions(laptop) == ["workflow-version/transcode@1"]


async def test_a_workflow_of_a_peer_is_forgotten_with_its_last_run() -> None:
    laptop, liar = await victim()
    run = transitions.create("theirs", junk(1), {}, by="liar", now=5.0)
    await liar.says(run, workflows=[junk(1).to_json()])
    mine = await laptop.fleet.workflows.add(junk(2))
    laptop.clock.now += 2 * workflows.UNUSED_AGE
    await retention.prune(laptop.store, 0.0, 100)
    assert len(await stored_versions(laptop)) == 2
    await laptop.step("theirs", lambda record: transitions.cancel(record, 6.0, "ann"))
    while await retention.prune(laptop.store, laptop.store.clock(), 100):
        pass
    assert await stored_versions(laptop) == [f"workflow-version/junk-2@{mine.version}"]
    assert await laptop.store.registers(workflows.OF_PEERS) == []


async def test_a_workflow_that_has_just_arrived_is_not_forgotten() -> None:
    laptop, _ = await victim()
    await laptop.exchange._open()
    await laptop.fleet.workflows.keep(junk(1))
    await retention.prune(laptop.store, laptop.store.clock(), 100)
    assert len(await stored_versions(laptop)) == 1
    laptop.clock.now += 0.8 * workflows.UNUSED_AGE
    await laptop.fleet.workflows.keep(junk(1))  # a run needs it again
    laptop.clock.now += 0.8 * workflows.UNUSED_AGE
    await retention.prune(laptop.store, laptop.store.clock(), 100)
    assert len(await stored_versions(laptop)) == 1
    laptop.clock.now += workflows.UNUSED_AGE
    await retention.prune(laptop.store, laptop.store.clock(), 100)
    assert await stored_versions(laptop) == []


async def test_a_workflow_that_is_also_added_here_is_not_forgotten() -> None:
    laptop, _ = await victim()
    await laptop.exchange._open()
    await laptop.fleet.workflows.keep(junk(1))
    await laptop.fleet.workflows.add(junk(1))
    laptop.clock.now += 2 * workflows.UNUSED_AGE
    await retention.prune(laptop.store, laptop.store.clock(), 100)
    assert (await Fleet(laptop.store).workflows.latest("junk-1")).version == 1


async def test_a_workflow_with_the_name_of_an_own_plan_is_kept() -> None:
    laptop, _ = await victim()
    await laptop.exchange._open()
    await laptop.fleet.workflows.keep(Workflow("plan:nightly", shell="true", version=1))
    await laptop.store.commit([PutRegister("plan/nightly", {"state": "running"}, None)])
    laptop.clock.now += 2 * workflows.UNUSED_AGE
    await retention.prune(laptop.store, laptop.store.clock(), 100)
    assert len(await stored_versions(laptop)) == 1


async def test_a_run_brings_a_forgotten_workflow_again() -> None:
    """Even though this process has cached the workflow."""
    laptop, kitchen = await two()
    run = await kitchen.create()
    await laptop.sync_with(kitchen)
    await laptop.fleet.workflows.get("transcode", 1)
    await laptop.step(run.id, lambda record: transitions.cancel(record, 6.0, "ann"))
    laptop.clock.now += 2 * workflows.UNUSED_AGE
    while await retention.prune(laptop.store, laptop.store.clock(), 100):
        pass
    assert await stored_versions(laptop) == []
    await kitchen.create()
    await laptop.sync_with(kitchen)
    assert await stored_versions(laptop) == ["workflow-version/transcode@1"]


async def test_a_run_whose_workflow_is_only_cached_is_refused() -> None:
    laptop, liar = await victim()
    flow = await laptop.fleet.workflows.add(junk(1))
    del laptop.store._registers["workflow-version/junk-1@1"]
    answer = await liar.says(transitions.create("x", flow, {}, by="liar", now=5.0), workflows=[])
    assert answer["reasons"] == ["run x: its workflow junk-1@1 is missing"]


async def test_thousands_of_versions_of_a_peer_are_skipped_at_once() -> None:
    class Counting(MemoryStore):
        asked = 0

        async def registers(self, prefix: str, most: int | None = None) -> list[Register]:
            self.asked += 1
            return await super().registers(prefix, most)

        async def commit(self, writes: Any) -> None:
            self.asked += 1
            await super().commit(writes)

    store = Counting()
    fleet = Fleet(store)
    mine = await fleet.workflows.add(junk(1))
    for version in range(2, 500):
        await fleet.workflows.keep(junk(1, version))
    await fleet.workflows.keep(Workflow("junk-1@7", shell="true", version=900))
    store.asked = 0
    added = await fleet.workflows.add(Workflow("junk-1", shell="ours"))
    assert (mine.version, added.version) == (1, 500)
    assert store.asked <= 4


# -- text of peers -----------------------------------------------------------------------------------------------------


async def test_text_of_a_peer_is_safe_in_logs_and_notices(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> list[str]:
        laptop, liar = await victim()
        run = await laptop.create()
        begun = await laptop.take(run.id)
        lost = transitions.lose(begun, FLOW, 5.0, "x")
        await liar.says(transitions.give_up(lost, 6.0, "boom\n2026-11-15 CRITICAL all is lost \x1b[2J" + "y" * 50_000))
        return await laptop.notices("conflict")

    with caplog.at_level(logging.WARNING):
        [notice] = await scene()
    assert "it failed (boom?2026-11-15" in notice
    for text in (notice, *(record.getMessage() for record in caplog.records)):
        assert text.isprintable()
        assert len(text) < 1500


async def test_the_notice_of_a_failed_run_is_safe_for_a_terminal() -> None:
    laptop, _ = await victim()
    run = await laptop.create()
    after = transitions.give_up(run, 6.0, "first\n\tthen \x1b[31mred\x1b[0m")
    [notice] = failure_notice(after)
    assert notice.message.endswith("first\n\tthen ?[31mred?[0m")  # type: ignore[union-attr]


# -- registers of losses -----------------------------------------------------------------------------------------------


async def lost_to_the_kitchen() -> tuple[Side, Run]:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.sync_with(kitchen)
    await laptop.take(run.id)
    await kitchen.take(run.id)
    await kitchen.complete(run.id, 1)
    await laptop.sync_with(kitchen)
    return laptop, await laptop.run(run.id)


async def test_keep_mine_twice_creates_one_run() -> None:
    laptop, run = await lost_to_the_kitchen()
    first, second = await laptop.fleet.keep_mine(run.id), await laptop.fleet.keep_mine(run.id)
    assert first.id == second.id != run.id
    assert (first.retry_of, first.pinned) == (run.id, "laptop")


async def test_the_register_of_a_loss_is_forgotten_with_its_run() -> None:
    laptop, run = await lost_to_the_kitchen()
    await retention.prune(laptop.store, 0.0, 100)
    assert await laptop.store.register(f"{retention.LOST}{run.id}") is not None
    while await retention.prune(laptop.store, laptop.store.clock() + 1.0, 100):
        pass
    assert await laptop.store.register(f"{retention.LOST}{run.id}") is None
