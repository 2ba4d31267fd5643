"""Results of agents: JSON that fits a schema, checked in a time that no answer can stretch."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from asterism.agents import agent_prompt
from asterism.agents.agent_prompt import (
    AgentAnswer,
    AgentFailed,
    InvalidAgentResult,
    agent_result,
    read_result,
    schema_problems,
)
from asterism.base.secret_mask import Mask
from asterism.fleet.device.agent_work import AgentWork

SLOW = "^(a+)+$"
TEXT = "a" * 50_000 + "!"


class Work:
    """What ``agent_result`` uses of the work of an agent."""

    description, tips, inputs, mask = "x", (), dict[str, Any](), Mask()

    def __init__(self, result: Any) -> None:
        self.result, self.notes = result, list[str]()

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": SLOW}, TEXT),
        ({"patternProperties": {SLOW: False}, "minProperties": 2}, {TEXT: 1}),
        ({"patternProperties": {SLOW: True}, "additionalProperties": False}, {TEXT: 1}),
        ({"propertyNames": {"pattern": SLOW}}, {TEXT: 1}),
    ],
)
async def test_no_answer_keeps_the_loop_busy_with_a_pattern(schema: Any, value: Any) -> None:
    """The watchdog of the tests fails this one if a step of the loop takes long; with ``re`` it takes years."""
    asked = list[str]()

    async def ask(prompt: str) -> AgentAnswer:
        asked.append(prompt)
        return AgentAnswer("", (value,))

    work = Work(schema)
    with pytest.raises(InvalidAgentResult):
        async with asyncio.timeout(300):
            await agent_result(cast(AgentWork, work), ask)
    assert len(asked) == 3


async def test_a_schema_with_a_pattern_that_is_not_supported_is_refused_before_the_agent_is_asked() -> None:
    async def ask(prompt: str) -> AgentAnswer:
        raise AssertionError("it was asked")

    with pytest.raises(AgentFailed, match=r"the schema of the result: the pattern '\(\?=a\)' is not supported"):
        await agent_result(cast(AgentWork, Work({"pattern": "(?=a)"})), ask)


@pytest.mark.parametrize(
    ("schema", "value", "problems"),
    [
        ({"pattern": "^a"}, "ab", []),
        ({"pattern": "^a"}, 7, []),
        ({"pattern": "^a"}, "b", ["$: 'b' does not match '^a'"]),
        ({"patternProperties": {"^n": {"type": "number"}}}, {"n": "x", "m": "x"}, ["$.n: 'x' is not of type 'number'"]),
        ({"patternProperties": {"^n": False}}, [1], []),
        (
            {"properties": {"a": {}}, "patternProperties": {"^n": {}}, "additionalProperties": False},
            {"a": 1, "n": 2, "z": 3},
            ["$: the property 'z' is not allowed"],
        ),
        ({"additionalProperties": {"type": "string"}}, {"z": 3}, ["$.z: 3 is not of type 'string'"]),
        ({"additionalProperties": False}, [1], []),
    ],
)
def test_a_value_is_compared_with_the_patterns_of_its_schema(schema: Any, value: Any, problems: list[str]) -> None:
    assert schema_problems(value, schema) == problems


async def test_a_large_answer_is_read_beside_the_loop() -> None:
    async def ask(prompt: str) -> AgentAnswer:
        return AgentAnswer("[" + "[]," * 200_000)

    with pytest.raises(InvalidAgentResult):
        await agent_result(cast(AgentWork, Work({"type": "object"})), ask)


def test_an_answer_that_is_too_long_for_a_pattern_is_refused() -> None:
    """The engine would take minutes, and hold the interpreter."""
    schema = {"type": "string", "pattern": "(.{1,100}){1,50}x"}
    with pytest.raises(InvalidAgentResult, match="too long for the pattern"):
        read_result(AgentAnswer("a" * 262_134), schema)
    assert "too long for the pattern" in schema_problems(["a" * 1_000] * 100, {"items": schema})[0]


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": "a"}, {"patternProperties": {"a": {}}}])
async def test_a_result_whose_schema_has_patterns_is_read_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, schema: dict[str, Any]
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(agent_prompt, "read_result", lambda answer, schema: threads.append(threading.get_ident()))
    await agent_prompt._read_apart(AgentAnswer("a"), schema)
    await agent_prompt._read_apart(AgentAnswer("a"), {"type": "string"})
    assert threads[0] != threads[1] == threading.get_ident()


async def test_the_prompt_is_written_in_a_thread() -> None:
    """Inputs of some megabytes are masked and marked, which takes a tenth of a second for each."""
    threads: list[int] = []

    class Recorded(Mask):
        def text(self, text: str) -> str:
            threads.append(threading.get_ident())
            return super().text(text)

    async def ask(prompt: str) -> AgentAnswer:
        return AgentAnswer("done")

    work = Work(None)
    work.mask = Recorded()
    await agent_result(cast(AgentWork, work), ask)
    assert threads
    assert threading.get_ident() not in threads
