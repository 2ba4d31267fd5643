"""A language model with tools as the agent of a device, with a model that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from asterism.agents import model_worker
from asterism.agents.agent_prompt import AgentFailed
from asterism.agents.model_worker import ModelAgent
from asterism.core.run.work import Workflow
from asterism.fleet.device.executor import DeviceExecutor
from asterism.fleet.policy.device_policy import DevicePolicy, Rules
from tests.fleet.device.device_scenes import Reports
from tests.process_scenes import PATIENCE

FunctionModel(lambda messages, info: ModelResponse(parts=[]))  # the first one loads prices, for a third of a second
SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


class Script:
    """A model that makes one step per request: a text is its answer, a pair is a call of a tool."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.tools: list[str] = []
        self.told: list[str] = []

    def __call__(self, messages: list[Any], info: AgentInfo) -> ModelResponse:
        self.tools = [tool.name for tool in info.function_tools]
        self.told += [str(getattr(part, "content", "")) for part in messages[-1].parts]
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        part = TextPart(step) if isinstance(step, str) else ToolCallPart(*step)
        return ModelResponse(parts=[part])


async def run(
    script: Callable[..., ModelResponse],
    policy: DevicePolicy | None = None,
    reports: Reports | None = None,
    **options: Any,
) -> Any:
    policy, reports = policy or DevicePolicy.open(), reports or Reports()
    agent = ModelAgent(FunctionModel(script), most_requests=options.pop("most_requests", 20))
    device = DeviceExecutor(policy, device="thinker", session="s1", grace=0.2, agent=agent)
    run_input = options.pop("run_input", {})
    flow = Workflow("w", agent={"description": "Do it", **options.pop("work", {})}, **options)
    try:
        async with asyncio.timeout(PATIENCE):
            return await device.execute(reports.work(flow, run_input))
    finally:
        device.close()


async def test_without_a_device_policy_a_model_has_no_tools_and_answers() -> None:
    script = Script("forty-two")
    assert await run(script) == "forty-two"
    assert script.tools == []


async def test_tools_go_through_the_device_policy(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
    (outside / "key").write_text("private")
    rules = Rules(permissions=("read", "edit", "execute"), directories=(str(inside),), commands=("echo",))
    script = Script(
        ("write_file", {"path": "a.txt", "text": "hello"}),
        ("list_directory", {}),
        ("read_file", {"path": "a.txt"}),
        ("read_file", {"path": str(outside / "key")}),
        ("run_command", {"words": ["echo", "hi"]}),
        ("run_command", {"words": ["rm", "a.txt"]}),
        "done",
    )
    reports = Reports()
    assert await run(script, DevicePolicy(rules), reports, cwd=str(inside)) == "done"
    assert script.tools == ["read_file", "list_directory", "write_file", "run_command"]
    answers = script.told[1:]
    assert answers[0] == "written"
    assert "\na.txt\n" in answers[1]
    assert "\nhello\n" in answers[2]
    assert answers[3].startswith("refused: ")
    assert "private" not in answers[3]
    assert answers[4].startswith("exit code 0\n")
    assert "\nhi\n" in answers[4]
    assert "does not allow the command 'rm'" in answers[5]
    assert (inside / "a.txt").read_text() == "hello"
    assert "allowed: execute echo hi" in reports.output[-1]
    assert "refused: execute rm a.txt" in reports.output[-1]


async def test_a_result_that_does_not_fit_is_asked_for_again() -> None:
    script = Script('{"n": "x"}', '{"n": 7}')
    assert await run(script, work={"result": SCHEMA}) == {"n": 7}
    assert "does not fit the schema" in script.told[-1]


async def test_endless_calls_of_tools_end(tmp_path: Path) -> None:
    rules = Rules(permissions=("read",), directories=(str(tmp_path),))
    with pytest.raises(AgentFailed, match="the model needs too many requests"):
        await run(Script(("list_directory", {})), DevicePolicy(rules), cwd=str(tmp_path), most_requests=3)


async def test_a_model_that_fails_fails_the_run() -> None:
    from pydantic_ai.exceptions import ModelHTTPError

    def broken(messages: list[Any], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(status_code=500, model_name="m", body="overloaded")

    with pytest.raises(AgentFailed, match="the model did not answer"):
        await run(broken)


async def test_the_limit_of_requests_counts_for_all_questions_of_a_run() -> None:
    script = Script("no JSON")
    with pytest.raises(AgentFailed, match="the model needs too many requests"):
        await run(script, work={"result": SCHEMA}, most_requests=2)
    assert len(script.told) == 2  # the work, and one repair


async def test_a_request_that_never_ends_fails_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_worker, "REQUEST_TIMEOUT", 0.05)

    async def hangs(messages: list[Any], info: AgentInfo) -> ModelResponse:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(AgentFailed, match="the model did not answer"):
        await run(hangs)


async def test_secrets_of_the_device_are_not_in_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = 'tok-"1234567890\nabcdef'
    monkeypatch.setenv("API_TOKEN", secret)
    work = {"description": f"Use {secret}", "tips": [f"or {secret}"]}
    script = Script("done")
    await run(script, work=work, run_input={"log": f"auth with {secret}", "deep": [{"a": secret}]})
    [prompt] = script.told
    assert "auth with" in prompt
    assert "1234567890" not in prompt
    assert "abcdef" not in prompt


async def test_a_secret_at_the_cut_of_a_long_result_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "tok-1234567890abcdef")
    monkeypatch.setattr(model_worker, "_LONGEST_RESULT", 12)
    (tmp_path / "log").write_text("auth tok-1234567890abcdef")
    rules = Rules(permissions=("read",), directories=(str(tmp_path),))
    script = Script(("read_file", {"path": "log"}), "done")
    await run(script, DevicePolicy(rules), cwd=str(tmp_path))
    assert "tok-" not in script.told[1]
