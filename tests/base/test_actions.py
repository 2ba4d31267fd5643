"""Actions: an orchestrator and a device of a fleet execute each kind with the same function."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.core.plan import task
from asterism.core.run.work import Workflow
from asterism.execution import actions
from asterism.execution.actions import Attempt
from tests.fleet.device.device_scenes import execute

KINDS: dict[str, Any] = {
    "call": "os:getcwd",
    "argv": ("echo", "{name}"),
    "shell": "echo $name",
    "http": {"url": "http://127.0.0.1:9/"},
    "agent": {"description": "a"},
}


def test_every_kind_of_action_has_what_executes_it() -> None:
    assert sorted(actions.ACTIONS.built_in) == sorted({*KINDS, "container"})
    assert sorted(task.ACTIONS) == sorted({*KINDS, "plugin"})


@pytest.mark.parametrize("kind", ["argv", "shell", "http"])
def test_a_kind_of_action_is_changed_in_one_place(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[Attempt] = []

    async def instead(attempt: Attempt) -> Any:
        attempts.append(attempt)
        return {"kind": kind, **attempt.resolved.inputs}

    monkeypatch.setattr(actions.ACTIONS.load(kind), "run", instead)
    plan = Constellation("plan")
    plan.add(Task("a", inputs={"name": "b"}, **{kind: KINDS[kind]}))
    result = asyncio.run(Orchestrator([LocalDevice("device")]).run(plan))
    expected = {"kind": kind, "name": "b"}
    assert result["a"].value == expected
    assert execute(Workflow("work", **{kind: KINDS[kind]}), {"name": "b"}) == expected
    assert len(attempts) == 2
    if kind != "http":
        words = ["echo", "b"] if kind == "argv" else ["/bin/sh", "-c", "echo $name"]
        assert [attempt.words() for attempt in attempts] == [(words, None)] * 2
