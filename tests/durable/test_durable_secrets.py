"""Secrets of stored plans: results are unchanged data; no text in the store or in a view contains a secret."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from asterism import Constellation, DurableOrchestrator, Fleet, LocalDevice, Orchestrator, Task
from asterism.api.documents import PlanContent
from asterism.api.local.plan_documents import content
from asterism.base import expressions
from asterism.durable.journal_store import load
from asterism.orchestrator.plan_mask import PlanMask
from asterism.report.result_summary import result_json
from tests.process_scenes import PATIENCE

VALUE = "s3cr3t-välue/1"
SECRET = {"secret": "MY_VALUE"}
EXPRESSIONS = ["{'a': 1}[result]", "duration(result)", "result.matches('(' + result)", "int(result)"]


def failing(expression: str) -> Constellation:
    """A plan that prints the secret, and passes the output to expressions that fail."""
    plan = Constellation("nightly")
    plan.add(Task("says", shell='echo "$T"', env={"T": SECRET}))
    select = {"from": "says", "select": expression}
    plan.add(Task("by-input", argv=["true"], inputs={"x": select}), "says")
    plan.add(Task("by-env", argv=["true"], env={"X": select}), "says")
    plan.add(Task("by-http", http={"url": "http://127.0.0.1:1/", "headers": {"X": select}}), "says")
    plan.add(Task("by-when", argv=["true"]), after={"says": {"when": f"{expression} == 1"}})
    plan.add(Task("by-verdict", argv=["true"]), after={"says": {"when": "result"}})  # neither true nor false
    return plan


async def run(plan: Constellation, store: str) -> Any:
    async with asyncio.timeout(PATIENCE), await Fleet.open(store) as fleet:
        return await DurableOrchestrator(fleet, local=2).run(plan)


async def records(store: str) -> list[Any]:
    """The journal and all runs, as data."""
    async with await Fleet.open(store) as fleet:
        registers = [register.value for register in await fleet.store.registers("")]
        return [
            *registers,
            *((run.input, run.output, run.error, run.story, run.previous) for run in await fleet.runs()),
        ]


def texts(value: Any) -> list[str]:
    """All strings in some data."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in texts(part)]
    return [text for item in value for text in texts(item)] if isinstance(value, list | tuple) else []


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_failed_expression_writes_no_secret_to_the_store(
    expression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_VALUE", VALUE)
    store = f"sqlite:///{tmp_path}/plan.db"
    result = asyncio.run(run(failing(expression), store))
    assert result["says"].value == VALUE
    assert {name: str(result[name].status) for name in ("by-input", "by-env", "by-http", "by-when", "by-verdict")} == {
        **dict.fromkeys(("by-input", "by-env", "by-http"), "failed"),
        **dict.fromkeys(("by-when", "by-verdict"), "cancelled"),
    }
    with_secret = [text for text in texts(asyncio.run(records(store))) if "s3cr3t" in text]
    assert set(with_secret) <= {VALUE}  # only the result itself, as data
    assert "s3cr3t" not in json.dumps(result_json(result))


def test_an_orchestrator_without_the_secret_withholds_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device knows the secret; the process that evaluates expressions knows only its name."""
    plan = failing(EXPRESSIONS[0])
    mask = PlanMask(plan)
    plan.evaluate = mask.over(expressions.evaluate)
    said = plan.evaluate(f"{EXPRESSIONS[0]} == 1", plan.nodes["says"].status, VALUE)
    assert said == "[withheld: what was wrong may show a secret whose value is unknown here: MY_VALUE]"
    monkeypatch.setenv("MY_VALUE", VALUE)
    told = PlanMask(plan).over(expressions.evaluate)(f"{EXPRESSIONS[0]} == 1", plan.nodes["says"].status, VALUE)
    assert "could not be evaluated" in str(told)
    assert VALUE not in str(told)


async def test_results_reach_tasks_unmasked_and_are_withheld_from_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_VALUE", VALUE)
    store, seen = f"sqlite:///{tmp_path}/plan.db", tmp_path / "seen"
    plan = Constellation("nightly")
    plan.add(Task("says", shell='echo "v1.1 $T"', env={"T": SECRET}))
    plan.add(
        Task("takes", shell=f'printf %s "$said" > {seen}; echo "$said"', inputs={"said": {"from": "says"}}), "says"
    )
    plan.add(Task("apart", shell="echo nothing"))
    result = await run(plan, store)
    assert seen.read_text() == f"v1.1 {VALUE}"
    values = {name: task["value"] for name, task in result_json(result)["tasks"].items()}
    assert values == {"says": "v1.1 [secret]", "takes": "v1.1 [secret]", "apart": "nothing"}

    async def elsewhere() -> PlanContent:
        async with await Fleet.open(store) as fleet:
            return content((await load(fleet.store, "nightly", expressions)).plan, results=True)

    monkeypatch.delenv("MY_VALUE")
    withheld = "[withheld: it may show a secret whose value is unknown here: MY_VALUE]"
    values = {task.id: task.result for task in (await elsewhere()).tasks}
    assert values == {"says": withheld, "takes": withheld, "apart": "nothing"}


def test_a_plan_has_the_same_result_with_and_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_VALUE", "1")

    def plan() -> Constellation:
        made = Constellation("nightly")
        made.add(Task("says", shell='echo "v1.1 $T"', env={"T": SECRET}))
        made.add(Task("takes", shell='echo "$said $COUNT"', inputs={"said": {"from": "says"}, "COUNT": 2}), "says")
        return made

    kept = asyncio.run(run(plan(), f"sqlite:///{tmp_path}/plan.db"))
    other = asyncio.run(Orchestrator([LocalDevice("here")]).run(plan()))
    assert kept.values == other.values == {"says": "v1.1 1", "takes": "v1.1 1 2"}
