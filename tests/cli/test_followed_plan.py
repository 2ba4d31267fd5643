"""A plan that is followed says what it says where it runs, in the same order and words, and has the same result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from asterism.api.local import plan_handlers  # noqa: F401 - an event loop would load it for long
from asterism.api.system import LocalSystem
from asterism.cli.plan.plan_watch import FollowedPlan
from asterism.core.errors import PlanError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddDependency, AddTask, CancelTask
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import head_key, insert_plan, read_heads
from asterism.orchestrator.events import EventBus
from asterism.orchestrator.plan_mask import PlanMask
from asterism.report.event_text import sentence
from asterism.report.result_summary import result_json
from asterism.store.protocol import PutRegister
from tests.async_tests import async_fixture
from tests.durable.durable_scenes import Stage, chain, staged, task

pytestmark = pytest.mark.virtual_time


@async_fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


async def add_mail(view: Any, events: Any) -> Any:
    await asyncio.sleep(1.0)  # until it is followed
    return [AddTask(task("mail")), AddDependency("b", "mail")] if "mail" not in view else None


async def break_a_rule(view: Any, events: Any) -> Any:
    return [CancelTask("nothing")]


async def give_up(view: Any, events: Any) -> Any:
    raise ValueError("out of ideas")


def forked(call: str) -> Constellation:
    """``b`` handles the end of ``a``, whatever it is; ``c`` needs its success."""
    plan = Constellation("nightly")
    plan.add(task("a", call))
    plan.add(task("b"))
    plan.connect("a", "b", on="completion")
    plan.add(task("c"), "a")
    return plan


CASES: dict[str, tuple[Callable[[], Constellation], dict[str, Any], set[str]]] = {
    "completed": (lambda: chain("a", "b"), {}, set()),
    "failed": (lambda: chain("a", "b", call="fail"), {}, set()),
    "handled": (lambda: forked("fail"), {}, set()),
    "edited": (lambda: chain("a", "b"), {"editor": add_mail}, set()),
    "speculative": (lambda: chain("a", "b"), {"editor": add_mail, "policy": "speculative"}, set()),
    "rejected": (lambda: chain("a", "b"), {"editor": break_a_rule}, {"rejected"}),
    "editor failed": (lambda: chain("a", "b"), {"editor": give_up}, {"the editor failed"}),
}
"""Plans, options, and words of lines that the journal does not tell."""


def said(events: EventBus, plan: Constellation, lines: list[str]) -> None:
    mask = PlanMask(plan)
    events.subscribe(lambda event: lines.append(mask.shown(sentence(event, plan))))


class Speaking(DurableOrchestrator):
    """Keeps what the live view would print."""

    lines: list[str]

    def watch(self, stored: Any) -> Any:
        said(self.events, stored.plan, self.lines)
        return super().watch(stored)


@pytest.mark.parametrize("case", CASES)
async def test_the_lines_are_those_of_the_process_that_runs_it(case: str, stage: Stage) -> None:
    make, options, untold = CASES[case]
    await stage.device("box")
    orchestrator = Speaking(stage.fleet(), host="here", make_agent=stage.orchestrator()._make_agent, **options)
    orchestrator.lines = []
    running = stage.spawn(orchestrator.run(make()))
    system = LocalSystem(stage.fleet())
    heads = []
    while not heads:
        await stage.fleet().clock.sleep(0.01)
        heads = await read_heads(stage.store)
    followed = await FollowedPlan.open(system, "nightly")
    lines: list[str] = []
    said(followed.events, followed.plan, lines)
    result = await followed.until_ended(str(heads[0].first))
    own = await running
    told, expected = (
        [line for line in all_lines if not any(words in line for words in untold)]
        for all_lines in (lines, orchestrator.lines)
    )
    assert told == expected
    assert result_json(result) == result_json(own)
    assert result.exit_code == own.exit_code


async def test_a_plan_that_is_removed_is_not_followed_for_ever(stage: Stage) -> None:
    stored = await insert_plan(stage.store, chain("a"))
    followed = await FollowedPlan.open(LocalSystem(stage.fleet()), "nightly")

    async def remove() -> None:
        await stage.fleet().clock.sleep(5.0)
        await stage.store.commit([PutRegister(head_key("nightly"), None, stored.revision)])

    stage.spawn(remove())
    with pytest.raises(PlanError, match="was removed"):
        await followed.until_ended()
