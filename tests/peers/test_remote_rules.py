"""Rules of a peer's workflows: the peer evaluates them, this store does not."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.base import expressions
from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.workflow import Workflow
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
    stored = await kitchen.fleet.workflows.get(FLOW.name, FLOW.version)
    assert (stored.requires, stored.prefers) == (None, None)
    assert stored.argv == FLOW.argv

    await kitchen.take(run.id)
    await kitchen.complete(run.id, "done")
    await laptop.sync_with(kitchen)
    assert (await laptop.run(run.id)).output == "done"
    assert await laptop.fleet.workflows.get(FLOW.name, FLOW.version) == RULED  # our own workflow keeps its rules
    assert await laptop.notices("refused") == await kitchen.notices("refused") == []


async def test_a_workflow_that_differs_in_more_than_its_rules_is_refused() -> None:
    laptop, kitchen = await two()
    await kitchen.fleet.workflows.add(replace(FLOW, argv=("false",)))
    await _created(laptop, RULED)
    await laptop.sync_with(kitchen)
    [notice] = await kitchen.notices("refused")
    assert "they differ in argv" in notice


@pytest.mark.parametrize("bomb", [*CONSTANT.values(), *over("name").values()])
@pytest.mark.parametrize("rule", ["requires", "prefers"])
async def test_a_costly_rule_of_a_peer_is_never_evaluated(
    rule: str, bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    program = expressions._program
    monkeypatch.setattr(expressions, "_program", lambda text: seen.append(text) or program(text))
    victim = await (await Side("laptop").joined()).knows(Side("kitchen"))
    run = transitions.create("liar-1", FLOW, {}, by="liar", now=victim.store.clock())
    await Liar(victim).says(run, workflows=[replace(FLOW, **{rule: bomb}).to_json()])
    assert (await victim.run("liar-1")).kind == "transcode@1"
    await Monitor(victim.fleet, "laptop").run_pass()
    outlook = await victim.fleet.placer(fresh=True)
    flow = await victim.fleet.workflows.get(FLOW.name, FLOW.version)
    assert outlook.choose(await victim.run("liar-1"), flow).refused == {}
    assert seen == []
