"""Rules of a peer's workflows: the peer evaluates them, this store does not."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.base import expressions
from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.work import Workflow
from asterism.fleet.monitor import Monitor
from tests.base.cel.cel_bombs import CONSTANT, over
from tests.peers.exchange_fixtures import FLOW, Liar, Side, two

RULED = replace(FLOW, requires="has(labels.room)", prefers="labels.room == 'kitchen'")


async def _created(side: Side, flow: Workflow) -> Any:
    await side.fleet.workflows.add(flow)
    run = transitions.create(f"{side.name}-1", flow, {}, by="ann", now=side.store.clock())
    return await side.fleet.ledger.add(run, lambda record: record)


async def test_rules_of_remote_workflows_are_dropped() -> None:
    laptop, kitchen = await two()
    run = await _created(laptop, RULED)
    await laptop.sync_with(kitchen)
    assert (await kitchen.run(run.id)).work == FLOW.work

    await kitchen.take(run.id)
    await kitchen.complete(run.id, "done")
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).output == "done"
    assert (await laptop.run(run.id)).work == RULED.work  # our own record keeps its rules
    assert await laptop.notices("refused") == await kitchen.notices("refused") == []


@pytest.mark.parametrize("bomb", [*CONSTANT.values(), *over("name").values()])
@pytest.mark.parametrize("rule", ["requires", "prefers"])
async def test_a_costly_rule_of_a_peer_is_never_evaluated(
    rule: str, bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    program = expressions._program
    monkeypatch.setattr(expressions, "_program", lambda text: seen.append(text) or program(text))
    victim = await (await Side("laptop").joined()).knows(Side("kitchen"))
    ruled = replace(FLOW, **{rule: bomb})
    run = transitions.create("liar-1", ruled, {}, by="liar", now=victim.store.clock())
    await Liar(victim).says(run)
    assert (await victim.run("liar-1")).work == FLOW.work
    await Monitor(victim.fleet, "laptop").run_pass()
    outlook = await victim.fleet.placer(fresh=True)
    assert outlook.choose(await victim.run("liar-1")).refused == {}
    assert seen == []
