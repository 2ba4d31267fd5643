"""What a peer can burden us with: large things, workflows, and words that a terminal would act upon."""

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
from asterism.peers import messages
from asterism.peers.messages import encode_record
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister, Register
from tests.peers.exchange_scenes import FLOW, Liar, Side, two


async def victim() -> tuple[Side, Liar]:
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    return laptop, Liar(laptop)


def blob(number: int) -> dict[str, Any]:
    return {"$blob": hashlib.sha256(str(number).encode()).hexdigest(), "size": 1}


def with_large(run: Run, count: int) -> Run:
    return run.changed(superseded=tuple(Superseded("d", 1, float(one), blob(one)) for one in range(count)))


class Offering:
    """A peer that is called, and has some records to tell."""

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
        return next(str(one).encode() for one in range(200) if blob(one)["$blob"] == name)

    async def send_blob(self, name: str, data: bytes) -> None: ...


# -- large things ------------------------------------------------------------------------------------------------------


async def test_nothing_is_fetched_for_a_record_that_is_refused() -> None:
    laptop, _ = await victim()
    mine = await laptop.create()
    forged = transitions.take(mine, laptop.owner, FLOW, 5.0, starts=True)
    without = transitions.create("odd", Workflow("odd", argv=("true",), version=1), {}, by="liar", now=5.0)
    good = transitions.create("good", FLOW, {}, by="liar", now=5.0)
    transport = Offering(with_large(forged, 3), with_large(without, 3), with_large(good, 2))
    met = await laptop.exchange.sync("kitchen", transport)
    assert (met.taken, met.refused) == (1, 2)
    assert sorted(transport.fetched) == sorted(blob(one)["$blob"] for one in range(2))
    assert (await laptop.run("good")).superseded


async def test_nothing_is_wanted_for_a_record_that_is_refused() -> None:
    """The side that is called."""
    laptop, liar = await victim()
    mine = await laptop.create()
    forged = transitions.take(mine, laptop.owner, FLOW, 5.0, starts=True)
    answer = await liar.says(with_large(forged, 3), workflows=[FLOW.to_json()])
    assert (answer["wants"], answer["refused"]) == ({}, 1)
    good = transitions.create("good", FLOW, {}, by="liar", now=5.0)
    answer = await liar.says(with_large(good, 2), workflows=[FLOW.to_json()])
    assert len(answer["wants"]) == 2


async def test_a_record_that_refers_to_a_great_many_large_things_is_refused() -> None:
    laptop, _ = await victim()
    fat = with_large(transitions.create("fat", FLOW, {}, by="liar", now=5.0), messages.MAX_RECORD_BLOBS + 1)
    transport = Offering(fat)
    met = await laptop.exchange.sync("kitchen", transport)
    assert (met.refused, transport.fetched) == (1, [])
    assert "more than 100 blobs" in (await laptop.notices("refused"))[0]


# -- workflows ---------------------------------------------------------------------------------------------------------


def junk(number: int, version: int = 1) -> Workflow:
    return Workflow(f"junk-{number}", shell="x" * 100, version=version)


async def kept(side: Side) -> list[str]:
    return [one.key for one in await side.store.registers("workflow-version/")]


async def test_a_workflow_that_no_run_needs_is_not_kept() -> None:
    laptop, liar = await victim()
    run = transitions.create("good", FLOW, {}, by="liar", now=5.0)
    await liar.says(run, workflows=[FLOW.to_json(), *(junk(one).to_json() for one in range(50))])
    assert await kept(laptop) == ["workflow-version/transcode@1"]


async def test_a_workflow_whose_only_run_is_refused_is_not_kept() -> None:
    laptop, liar = await victim()
    mine = await laptop.create()
    forged = transitions.take(mine, laptop.owner, FLOW, 5.0, starts=True)
    other = transitions.create("old", junk(1), {}, by="liar", now=5.0)
    old = transitions.cancel(other, -1e9, "liar")
    await liar.says(forged, old, workflows=[FLOW.to_json(), junk(1).to_json()])
    assert await kept(laptop) == ["workflow-version/transcode@1"]


async def test_what_a_peer_sent_is_forgotten_with_the_last_run_that_needs_it() -> None:
    laptop, liar = await victim()
    run = transitions.create("theirs", junk(1), {}, by="liar", now=5.0)
    await liar.says(run, workflows=[junk(1).to_json()])
    mine = await laptop.fleet.workflows.add(junk(2))
    laptop.clock.now += 2 * workflows.UNUSED_AGE
    await retention.prune(laptop.store, 0.0, 100)
    assert len(await kept(laptop)) == 2
    await laptop.step("theirs", lambda one: transitions.cancel(one, 6.0, "ann"))
    while await retention.prune(laptop.store, laptop.store.clock(), 100):
        pass
    assert await kept(laptop) == [f"workflow-version/junk-2@{mine.version}"]
    assert await laptop.store.registers(workflows.OF_PEERS) == []


async def test_what_came_a_moment_ago_is_not_forgotten_since_its_run_is_on_its_way() -> None:
    laptop, _ = await victim()
    await laptop.exchange._open()
    await laptop.fleet.workflows.keep(junk(1))
    await retention.prune(laptop.store, laptop.store.clock(), 100)
    assert len(await kept(laptop)) == 1
    laptop.clock.now += 0.8 * workflows.UNUSED_AGE
    await laptop.fleet.workflows.keep(junk(1))  # it is needed again
    laptop.clock.now += 0.8 * workflows.UNUSED_AGE
    await retention.prune(laptop.store, laptop.store.clock(), 100)
    assert len(await kept(laptop)) == 1
    laptop.clock.now += workflows.UNUSED_AGE
    await retention.prune(laptop.store, laptop.store.clock(), 100)
    assert await kept(laptop) == []


async def test_what_somebody_here_adds_too_is_ours_and_not_forgotten() -> None:
    laptop, _ = await victim()
    await laptop.exchange._open()
    await laptop.fleet.workflows.keep(junk(1))
    await laptop.fleet.workflows.add(junk(1))
    laptop.clock.now += 2 * workflows.UNUSED_AGE
    await retention.prune(laptop.store, laptop.store.clock(), 100)
    assert (await Fleet(laptop.store).workflows.latest("junk-1")).version == 1


async def test_a_workflow_with_the_name_of_a_constellation_of_ours_is_left_to_that() -> None:
    laptop, _ = await victim()
    await laptop.exchange._open()
    await laptop.fleet.workflows.keep(Workflow("plan:nightly", shell="true", version=1))
    await laptop.store.commit([PutRegister("plan/nightly", {"state": "running"}, None)])
    laptop.clock.now += 2 * workflows.UNUSED_AGE
    await retention.prune(laptop.store, laptop.store.clock(), 100)
    assert len(await kept(laptop)) == 1


async def test_a_run_whose_workflow_was_forgotten_meanwhile_brings_it_again() -> None:
    """Though this process remembers it."""
    laptop, kitchen = await two()
    run = await kitchen.create()
    await laptop.meet(kitchen)
    await laptop.fleet.workflows.get("transcode", 1)
    await laptop.step(run.id, lambda one: transitions.cancel(one, 6.0, "ann"))
    laptop.clock.now += 2 * workflows.UNUSED_AGE
    while await retention.prune(laptop.store, laptop.store.clock(), 100):
        pass
    assert await kept(laptop) == []
    await kitchen.create()
    await laptop.meet(kitchen)
    assert await kept(laptop) == ["workflow-version/transcode@1"]


async def test_a_run_whose_workflow_is_only_remembered_is_not_taken() -> None:
    laptop, liar = await victim()
    flow = await laptop.fleet.workflows.add(junk(1))
    del laptop.store._registers["workflow-version/junk-1@1"]
    answer = await liar.says(transitions.create("x", flow, {}, by="liar", now=5.0), workflows=[])
    assert answer["reasons"] == ["run x: its workflow junk-1@1 is missing"]


async def test_thousands_of_versions_that_a_peer_has_taken_are_passed_over_at_once() -> None:
    class Counting(MemoryStore):
        asked = 0

        async def registers(self, prefix: str) -> list[Register]:
            self.asked += 1
            return await super().registers(prefix)

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


# -- words -------------------------------------------------------------------------------------------------------------


async def test_what_a_peer_says_does_nothing_to_a_log_or_a_notice(caplog: pytest.LogCaptureFixture) -> None:
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
    for text in (notice, *(one.getMessage() for one in caplog.records)):
        assert text.isprintable()
        assert len(text) < 1500


async def test_why_a_run_failed_is_a_notice_that_does_nothing_to_a_terminal() -> None:
    laptop, _ = await victim()
    run = await laptop.create()
    after = transitions.give_up(run, 6.0, "first\n\tthen \x1b[31mred\x1b[0m")
    [notice] = await laptop.fleet.ledger.consequences(after)
    assert notice.message.endswith("first\n\tthen ?[31mred?[0m")  # type: ignore[union-attr]


# -- what was lost -----------------------------------------------------------------------------------------------------


async def lost_to_the_kitchen() -> tuple[Side, Run]:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.meet(kitchen)
    await laptop.take(run.id)
    await kitchen.take(run.id)
    await kitchen.complete(run.id, 1)
    await laptop.meet(kitchen)
    return laptop, await laptop.run(run.id)


async def test_who_insists_twice_gets_one_run() -> None:
    laptop, run = await lost_to_the_kitchen()
    first, second = await laptop.fleet.keep_mine(run.id), await laptop.fleet.keep_mine(run.id)
    assert first.id == second.id != run.id
    assert (first.retry_of, first.pinned) == (run.id, "laptop")


async def test_what_was_lost_is_forgotten_with_its_run() -> None:
    laptop, run = await lost_to_the_kitchen()
    await retention.prune(laptop.store, 0.0, 100)
    assert await laptop.store.register(f"{retention.LOST}{run.id}") is not None
    while await retention.prune(laptop.store, laptop.store.clock() + 1.0, 100):
        pass
    assert await laptop.store.register(f"{retention.LOST}{run.id}") is None
