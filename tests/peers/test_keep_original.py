"""``--keep original``: the first owner keeps a run against a takeover while it really works on it."""

from __future__ import annotations

import pytest

from asterism.core.errors import InvalidWorkflow
from asterism.core.run import transitions
from asterism.core.run.merge import KEPT
from asterism.core.run.run import PROCESSING, Run
from asterism.core.run.session import ENDED
from asterism.core.run.work import Workflow
from asterism.peers import record_decisions
from asterism.peers.messages import PROTOCOL, encode_record
from asterism.peers.takeover import Takeover
from asterism.store.protocol import PutSession
from tests.peers.exchange_fixtures import Liar, Side, three, two

HOUR = 3600.0


async def takes_over(side: Side, run_id: str) -> Run:
    """Take over the run after a long silence of its peers, with its own device."""
    takeover = Takeover(side.fleet)
    await takeover.run_pass(await side.store.sessions())
    side.clock.now += HOUR + 10.0
    await takeover.run_pass(await side.store.sessions())
    await side.step(run_id, lambda record: record.changed(not_before=0.0, revision=record.revision + 1))
    return await side.take(run_id)


async def taken_over(keep: str = "original") -> tuple[Side, Side, Run]:
    """The laptop works on a run and is unreachable, and the kitchen starts it as well."""
    laptop, kitchen = await two()
    run = await laptop.create(keep=keep)
    await laptop.take(run.id)
    await laptop.sync_with(kitchen)
    assert (await takes_over(kitchen, run.id)).epoch == 2
    laptop.clock.now += HOUR
    return laptop, kitchen, run


async def owners(run_id: str, *sides: Side) -> set[tuple[str, int]]:
    return {(f"{run.device}", run.epoch) for run in [await side.run(run_id) for side in sides]}


async def test_an_owner_that_was_only_unreachable_keeps_its_run() -> None:
    laptop, kitchen, run = await taken_over()
    await laptop.sync_with(kitchen)
    await laptop.sync_with(kitchen)
    assert await owners(run.id, laptop, kitchen) == {("laptop", 1)}
    assert (await laptop.run(run.id)).status is PROCESSING
    assert await laptop.notices("conflict") == []
    [notice] = await kitchen.notices("conflict")
    assert "laptop had it first and was only unreachable, not lost, and the original owner wins" in notice
    assert (await laptop.complete(run.id, "soup")).output == "soup"
    await laptop.sync_with(kitchen)
    assert (await kitchen.run(run.id)).output == "soup"


async def test_the_rule_of_a_workflow_decides_about_its_runs_unless_they_say_it() -> None:
    laptop = await Side("laptop").joined()
    flow = Workflow("cook", argv=("true",), needs=frozenset({"stove"}), keep="original")
    run = await laptop.fleet.create(flow)
    many = await laptop.fleet.create_many(flow, [{}, {}])
    assert [each.keep for each in (run, *many)] == ["original"] * 3
    assert (await laptop.fleet.create("cook", keep="epoch")).keep == "epoch"
    with pytest.raises(InvalidWorkflow, match="keep is one of epoch, original, not 'last'"):
        Workflow("cook", argv=("true",), keep="last")


async def test_with_keep_epoch_the_replacement_keeps_the_run() -> None:
    """The other rule, for comparison."""
    laptop, kitchen, run = await taken_over("epoch")
    await laptop.sync_with(kitchen)
    assert await owners(run.id, laptop, kitchen) == {("kitchen", 2)}


async def test_without_a_statement_of_the_owner_its_replacement_wins() -> None:
    """Ablation of the ``kept`` step."""
    most, record_decisions.MAX_OWNER_KEEPS = record_decisions.MAX_OWNER_KEEPS, 0
    try:
        laptop, kitchen, run = await taken_over()
        await laptop.sync_with(kitchen)
        assert await owners(run.id, laptop, kitchen) == {("kitchen", 2)}
    finally:
        record_decisions.MAX_OWNER_KEEPS = most


async def test_the_record_of_a_dead_owner_does_not_win() -> None:
    laptop, kitchen, garage = await three()
    run = await laptop.create(keep="original")
    await laptop.take(run.id)
    for side in (kitchen, garage):
        await laptop.sync_with(side)
    await takes_over(kitchen, run.id)
    garage.clock.now += HOUR + 20.0
    await Takeover(garage.fleet).run_pass(await garage.store.sessions())
    await kitchen.sync_with(garage)
    await kitchen.sync_with(garage)
    assert (await kitchen.run(run.id)).device == "kitchen"


async def test_an_owner_whose_device_is_gone_does_not_keep_the_run() -> None:
    laptop, kitchen, run = await taken_over()
    [session] = [session for session in await laptop.store.sessions() if session.id == laptop.session.id]
    await laptop.store.commit([PutSession(session.changed(state=ENDED), session.revision)])
    await laptop.sync_with(kitchen)
    await laptop.sync_with(kitchen)
    assert await owners(run.id, laptop, kitchen) == {("kitchen", 2)}


async def test_an_owner_that_kept_a_run_and_died_is_replaced() -> None:
    laptop, kitchen, run = await taken_over()
    await laptop.sync_with(kitchen)
    await laptop.sync_with(kitchen)
    assert (await kitchen.run(run.id)).device == "laptop"
    again = await takes_over(kitchen, run.id)
    assert (again.device, again.epoch) == ("kitchen", 2)
    stale = await laptop.run(run.id)  # it never learned of the takeover
    answer = await kitchen.exchange.answer("laptop", await _told(laptop, stale))
    assert answer["refused"] == 0
    assert (await kitchen.run(run.id)).device == "kitchen"


async def _told(side: Side, run: Run) -> dict[str, object]:
    return {
        "protocol": PROTOCOL, "store": await side.id(), "clock": side.store.clock(), "feed": "again", "cursor": None,
        "after": 0, "upto": 1, "more": False, "newest": 1, "records": [encode_record(1, await side.id(), run)],
        "devices": None, "wants": {}, "lacks": [],
    }  # fmt: skip


async def test_a_result_outranks_the_original_owner() -> None:
    laptop, kitchen, run = await taken_over()
    await kitchen.complete(run.id, "stew")
    await laptop.sync_with(kitchen)
    assert await owners(run.id, laptop, kitchen) == {("kitchen", 2)}
    assert (await laptop.run(run.id)).output == "stew"


async def test_a_peer_cannot_claim_that_our_device_kept_a_run() -> None:
    laptop = await Side("laptop").joined()
    await laptop.knows(Side("kitchen"))
    run = await laptop.create(keep="original")
    mine = await laptop.take(run.id)
    grant = mine.grant
    assert grant is not None
    answer = await Liar(laptop).says(transitions.confirm_ownership(mine, grant, "a lie", 5.0))
    assert answer["refused"] == 1
    assert await laptop.run(run.id) == mine


async def test_repeated_loss_claims_do_not_grow_the_story_without_limit() -> None:
    laptop = await Side("laptop").joined()
    await laptop.knows(Side("kitchen"))
    run = await laptop.create(keep="original")
    await laptop.take(run.id)
    liar = Liar(laptop)
    for number in range(record_decisions.MAX_OWNER_KEEPS + 5):
        mine = await laptop.run(run.id)
        if mine.device != "laptop":
            break
        lost = transitions.lose(mine, 5.0 + number, "a lie")
        await liar.says(lost)
    record = await laptop.run(run.id)
    assert sum(entry.what == KEPT for entry in record.story) == record_decisions.MAX_OWNER_KEEPS
