"""Blobs, work and texts that a peer sends: what is stored, for how long, and how it is shown."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import Run, Superseded
from asterism.core.run.work import Workflow
from asterism.fleet import retention
from asterism.fleet.ledger import failure_notice
from asterism.peers import messages
from asterism.peers.messages import encode_record
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

    def __init__(self, *runs: Run) -> None:
        self._records = [encode_record(number, "liar-store", run) for number, run in enumerate(runs, 1)]
        self.fetched: list[str] = []

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        known = message["cursor"]["number"] if message["cursor"] else 0
        return {
            "protocol": messages.PROTOCOL, "store": "liar-store", "clock": message["clock"], "feed": "liar-feed",
            "cursor": {"feed": message["feed"], "number": message["upto"]}, "after": known, "upto": len(self._records),
            "more": False, "newest": len(self._records), "records": self._records[known:],
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
    forged = transitions.take(mine, laptop.owner, 5.0, starts=True)
    without = transitions.create("odd", FLOW, {}, by="liar", now=5.0).changed(cancelled=True)
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
    forged = transitions.take(mine, laptop.owner, 5.0, starts=True)
    answer = await liar.says(with_large(forged, 3))
    assert (answer["wants"], answer["refused"]) == ({}, 1)
    good = transitions.create("good", FLOW, {}, by="liar", now=5.0)
    answer = await liar.says(with_large(good, 2))
    assert len(answer["wants"]) == 2


async def test_a_record_with_too_many_blobs_is_refused() -> None:
    laptop, _ = await victim()
    fat = with_large(transitions.create("fat", FLOW, {}, by="liar", now=5.0), messages.MAX_RECORD_BLOBS + 1)
    transport = Offering(fat)
    result = await laptop.exchange.sync("kitchen", transport)
    assert (result.refused, transport.fetched) == (1, [])
    assert "more than 100 blobs" in (await laptop.notices("refused"))[0]


# -- workflows ---------------------------------------------------------------------------------------------------------


async def test_a_run_of_a_peer_brings_its_work_and_no_workflow() -> None:
    laptop, liar = await victim()
    await laptop.fleet.workflows.add(Workflow("transcode", shell="ours"))
    await liar.says(transitions.create("theirs", FLOW, {}, by="liar", now=5.0))
    assert (await laptop.run("theirs")).work == FLOW.work
    assert [flow.shell for flow in await laptop.fleet.workflows.all()] == ["ours"]
    assert len(await laptop.store.registers("workflow-version/")) == 1


async def test_other_work_for_a_run_that_is_known_is_refused() -> None:
    laptop, liar = await victim()
    mine = await laptop.create()
    answer = await liar.says(mine.changed(work=Workflow("transcode", shell="rm -r /").work))
    assert answer["refused"] == 1
    [notice] = await laptop.notices("refused")
    assert notice.endswith(f"run {mine.id} from peer kitchen was refused: it differs from our record in work")
    assert (await laptop.run(mine.id)).work == mine.work


# -- text of peers -----------------------------------------------------------------------------------------------------


async def test_text_of_a_peer_is_safe_in_logs_and_notices(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> list[str]:
        laptop, liar = await victim()
        run = await laptop.create()
        begun = await laptop.take(run.id)
        lost = transitions.lose(begun, 5.0, "x")
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
