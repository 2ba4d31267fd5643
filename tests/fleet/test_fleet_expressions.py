"""A rule or a selection that costs too much is a refusal with a reason, and holds up no device."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.base import expressions
from asterism.core.errors import AsterismError, InvalidWorkflow
from asterism.core.record import replace
from asterism.core.run.work import Workflow
from asterism.execution.task_inputs import MissingInput
from asterism.fleet.policy.device_policy import DevicePolicy, PolicyForbids, Rules
from asterism.fleet.run_explanation import explain_run
from asterism.store.protocol import PutRegister, PutSession
from tests.base.cel.cel_bombs import CONSTANT, over
from tests.fleet.device.device_scenes import Reports, a_run, check, command, execute, executors
from tests.fleet.fleet_scenes import WORK, Stage

pytestmark = pytest.mark.virtual_time

RULES = over("name")  # passes every check: it costs too much once there is a device
OWN_RULES = over("run.workflow")


# -- rules are checked where they come in ------------------------------------------------------------------------------


@pytest.mark.parametrize("bomb", CONSTANT.values(), ids=CONSTANT)
@pytest.mark.parametrize("rule", ["requires", "prefers"])
async def test_a_workflow_with_a_rule_that_always_costs_too_much_is_refused(stage: Stage, rule: str, bomb: str) -> None:
    with pytest.raises(InvalidWorkflow, match=f"{rule} is not valid: .* steps"):
        await stage.person.workflows.add(Workflow("heavy", call="work:do", **{rule: bomb}))


@pytest.mark.parametrize("bomb", CONSTANT.values(), ids=CONSTANT)
@pytest.mark.parametrize("rule", ["accepts", "hands_back"])
async def test_a_device_with_a_rule_that_always_costs_too_much_does_not_start(
    stage: Stage, rule: str, bomb: str
) -> None:
    with pytest.raises(AsterismError, match=f"{rule} is not valid: .* steps"):
        await stage.device("kitchen", **{rule: bomb})


# -- and bounded where they are evaluated ------------------------------------------------------------------------------


@pytest.mark.parametrize("bomb", [*CONSTANT.values(), *RULES.values()])
async def test_a_bad_requires_that_is_in_the_store_is_an_objection_and_others_work(stage: Stage, bomb: str) -> None:
    """Written past every check, as by an older version or another program."""
    bad = Workflow("heavy", call="work:do", requires=bomb, version=1)
    await stage.store.commit([PutRegister("workflow/heavy", bad.to_json(), None)])
    kitchen = await stage.device("kitchen")
    heavy = await stage.person.create("heavy")
    assert heavy.status == "created"
    placer = await stage.person.placer(fresh=True)
    assert "could not be evaluated" in placer.choose(heavy).refused["kitchen"]
    assert "steps" in placer.choose(heavy).refused["kitchen"]
    await stage.monitor().run_pass()  # a pass of the coordinator goes past it
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    assert (await stage.read(heavy)).status == "created"
    reports = await explain_run(stage.person, heavy.id)
    assert "steps" in str(reports)


@pytest.mark.parametrize("bomb", RULES.values(), ids=RULES)
async def test_an_invalid_prefers_is_ignored(stage: Stage, bomb: str) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(Workflow("work", call="work:do", prefers=bomb))
    await stage.at_work(kitchen, run)


@pytest.mark.parametrize("bomb", [*CONSTANT.values(), *OWN_RULES.values()])
async def test_a_bad_accepts_that_is_in_the_store_is_an_objection_and_others_work(stage: Stage, bomb: str) -> None:
    kitchen = await stage.device("kitchen")
    garage = await stage.device("garage", accepts="true")
    [session] = [candidate for candidate in await stage.store.sessions() if candidate.device == "garage"]
    await stage.store.commit([PutSession(session.changed(accepts=bomb), session.revision)])
    await garage.crash()
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    placer = await stage.person.placer(fresh=True)
    said = placer.choose(replace(run, avoid=frozenset())).refused["garage"]
    assert said.startswith("its own rule: ")
    assert "steps" in said


@pytest.mark.parametrize("bomb", RULES.values(), ids=RULES)
async def test_a_bad_hands_back_hands_nothing_back(stage: Stage, bomb: str) -> None:
    kitchen = await stage.device("kitchen", hands_back=bomb)
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    kitchen.hands.finish(run, "done")
    assert (await stage.end_of(run)).status == "completed"


def test_without_the_limit_of_rules_many_devices_would_cost_many_times_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule is evaluated for each pair of a run and a device, so that it has fewer steps than a condition."""
    spent: list[int] = []
    select = expressions.select
    monkeypatch.setattr(
        expressions, "select", lambda text, names, steps: spent.append(steps) or select(text, names, steps)
    )
    expressions.holds(RULES["nested macros"], {"name": "kitchen"})
    assert spent == [expressions.RULE_STEPS]
    assert expressions.RULE_STEPS * 20 <= expressions.STEPS


# -- selections, on a device -------------------------------------------------------------------------------------------


def asking(bomb: str, **http: Any) -> Workflow:
    reference = {"from": "name", "select": bomb}
    return Workflow("ask", http={"url": "http://{host}:9/", "headers": {"x": reference}, **http})


@pytest.mark.parametrize("bomb", [*CONSTANT.values(), *over("result").values()])
def test_a_bad_select_fails_the_work_with_words(bomb: str) -> None:
    inputs = {"name": "kitchen", "host": "127.0.0.1"}
    with pytest.raises(ValueError, match=r"could not be evaluated: .* steps"):
        execute(asking(bomb), inputs)
    with pytest.raises(ValueError, match=r"could not be evaluated: .* steps"):
        execute(command("true", env={"X": {"from": "name", "select": bomb}}), inputs)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The expressions that a device evaluated."""
    seen: list[str] = []
    monkeypatch.setattr(expressions.Selections, "__call__", lambda self, text, names: seen.append(text) or "x")
    return seen


NOTHING = DevicePolicy(Rules())
CLOSED = [
    (asking("result"), {"name": "a", "host": "127.0.0.1"}),
    (command("{program}", env={"X": {"from": "name", "select": "result"}}), {"name": "a", "program": "true"}),
    (command("true", env={"X": {"from": "name", "select": "result"}}), {"name": "a"}),
]
MANY = 1500


@pytest.mark.parametrize(("workflow", "run_input"), CLOSED, ids=["request", "command of the input", "command"])
def test_a_policy_is_asked_before_anything_of_the_work_is_evaluated(
    workflow: Workflow, run_input: dict[str, Any], evaluated: list[str]
) -> None:
    assert "does not allow" in str(check(workflow, run_input, NOTHING))
    with pytest.raises(PolicyForbids):
        execute(workflow, run_input, NOTHING)
    assert evaluated == []


def test_an_address_that_cannot_be_filled_in_is_no_way_around_the_policy(evaluated: list[str]) -> None:
    policy = DevicePolicy(Rules(hosts=("http://127.0.0.1:9",)))
    flow = asking("result")
    assert check(flow, {"name": "a"}, policy) is None  # a failure of the work is for its execution to tell
    with pytest.raises(MissingInput, match="there is no such input"):
        execute(flow, {"name": "a"}, policy)
    assert evaluated == []


def test_many_selections_of_one_run_share_their_steps() -> None:
    """Each of them is cheap enough; all of them would stop the loop for a minute."""
    costly = {"from": "rows", "select": "result.all(x, result.all(y, y >= 0))"}
    inputs = {"name": "a", "host": "127.0.0.1", "rows": list(range(120))}
    with pytest.raises(ValueError, match=r"could not be evaluated: .* steps"):
        execute(asking("result", json={f"k{number}": costly for number in range(MANY)}), inputs)
    with pytest.raises(ValueError, match=r"could not be evaluated: .* steps"):
        execute(command("true", env={f"K{number}": costly for number in range(MANY)}), inputs)


def test_allowed_work_is_evaluated(evaluated: list[str]) -> None:
    policy = DevicePolicy(Rules(hosts=("http://127.0.0.1:9",)))
    assert check(asking("result"), {"name": "a", "host": "127.0.0.1"}, policy) is None
    assert evaluated == ["result"]


def test_a_secret_in_an_address_is_judged_after_filling(evaluated: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the address is not known, and no other one is judged in its place."""
    monkeypatch.setenv("PLACE", "127.0.0.1")
    allowed = DevicePolicy(Rules(hosts=("http://127.0.0.1:9",), secrets=("PLACE",)))
    assert check(asking("result"), {"name": "a", "host": {"secret": "PLACE"}}, allowed) is None
    refused = DevicePolicy(Rules(hosts=("http://10.0.0.1",), secrets=("PLACE",)))
    assert "does not allow" in str(check(asking("result"), {"name": "a", "host": {"secret": "PLACE"}}, refused))


@pytest.mark.parametrize(("workflow", "run_input"), CLOSED[:2], ids=["request", "command of the input"])
def test_without_asking_first_the_work_is_evaluated(
    workflow: Workflow, run_input: dict[str, Any], evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The safeguard switched off."""
    made = executors(NOTHING)
    monkeypatch.setattr(made, "_judge_early", lambda *_: None)
    made.check(a_run(workflow, run_input))
    with pytest.raises(PolicyForbids):
        asyncio.run(made.execute(Reports().work(workflow, run_input)))
    assert evaluated != []
