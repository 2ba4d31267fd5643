"""A2A agents that answer with whatever harms: a server on the loopback that follows no protocol but HTTP, if any."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asterism.agents import a2a_executor
from asterism.agents.a2a_executor import A2aAgent
from asterism.agents.agent_prompt import AgentFailed
from asterism.core.errors import AsterismError
from asterism.core.run.work import Workflow
from asterism.fleet.device.executor import DeviceExecutor
from asterism.fleet.policy.device_policy import DevicePolicy
from tests.fleet.device.device_scenes import Reports
from tests.process_scenes import PATIENCE

Answer = Any
"""JSON, bytes of a body, or a function that writes what it likes."""

WORKING = {"id": "t1", "contextId": "r1", "status": {"state": "TASK_STATE_WORKING"}}
DONE = {
    "id": "t1",
    "contextId": "r1",
    "status": {"state": "TASK_STATE_COMPLETED"},
    "artifacts": [{"artifactId": "a", "parts": [{"text": "done"}]}],
}


class HostileAgent:
    """``answers`` by method; ``card`` is the answer to any GET."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.card: Answer = None
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                await self.answer(json.loads(body) if body else None, writer)
        writer.close()

    async def answer(self, request: Any, writer: asyncio.StreamWriter) -> None:
        if request is None:
            answer = self.card
        else:
            self.asked.append(request["method"])
            answer = self.answers[request["method"]]
            if isinstance(answer, dict):
                answer = {"jsonrpc": "2.0", "id": request["id"], "result": answer}
        if callable(answer):
            return await answer(writer)
        stream = isinstance(answer, list)
        data = b"".join(answer) if stream else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        kind = "text/event-stream" if stream else "application/json"
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        return None

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[HostileAgent]:
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self.card = self.card if self.card is not None else self.plain_card()
            yield self

    def plain_card(self, **more: Any) -> dict[str, Any]:
        interface = {"url": f"{self.url}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        return {
            "name": "Helper",
            "version": "7",
            "supportedInterfaces": [interface],
            "capabilities": {"streaming": True},
            **more,
        }


def event(**result: Any) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", "id": "1", "result": result}).encode() + b"\n\n"


async def endless(writer: asyncio.StreamWriter) -> None:
    """Interim answers for ever: each of them ends the wait for the next part."""
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
        await writer.drain()


async def run(agent: HostileAgent, **options: Any) -> Any:
    limits = {"poll": 0.01, "lost_timeout": PATIENCE, **options}
    async with agent.listening(), asyncio.timeout(PATIENCE):
        connected = await A2aAgent.connect(agent.url, DevicePolicy.open(), **limits)
        device = DeviceExecutor(DevicePolicy.open(), device="helper", session="s1", agent=connected)
        try:
            return await device.execute(Reports().work(Workflow("w", agent={"description": "work"})))
        finally:
            device.close()


async def test_a_plain_answer_is_the_result() -> None:
    agent = HostileAgent(SendMessage={"task": WORKING}, SubscribeToTask=[event(task=DONE)], GetTask=DONE)
    assert await run(agent) == "done"


# -- values ------------------------------------------------------------------------------------------------------------


def with_parts(number: int) -> dict[str, Any]:
    return {**DONE, "artifacts": [{"artifactId": "a", "parts": [{"text": "x"}, *[{}] * number]}]}


@pytest.mark.parametrize("where", ["SendMessage", "SubscribeToTask", "GetTask"])
async def test_values_are_counted_before_they_are_parsed(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_executor, "MOST_VALUES", 1000)
    answers = {"SendMessage": {"task": WORKING}, "SubscribeToTask": [event(task=WORKING)] * 500, "GetTask": DONE}
    assert await run(HostileAgent(**answers)) == "done"
    many = with_parts(2000)
    answers[where] = {"SendMessage": {"task": many}, "SubscribeToTask": [event(task=many)], "GetTask": many}[where]
    with pytest.raises(AgentFailed, match="the agent answered with more than 1,000 values"):
        await run(HostileAgent(**answers))


async def test_the_lines_of_one_event_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_executor, "MOST_VALUES", 1000)
    lines = json.dumps({"jsonrpc": "2.0", "id": "1", "result": {"task": with_parts(2000)}}, indent=0).split("\n")
    stream = [*(f"data: {line}\n".encode() for line in lines), b"\n"]
    with pytest.raises(AgentFailed, match="the agent answered with more than 1,000 values"):
        await run(HostileAgent(SendMessage={"task": WORKING}, SubscribeToTask=stream, GetTask=DONE))


async def test_an_answer_that_calls_itself_a_stream_is_counted_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_executor, "MOST_VALUES", 1000)
    body = json.dumps({"jsonrpc": "2.0", "id": "1", "result": with_parts(2000)}, indent=0).replace("\n", "\n\n")
    agent = HostileAgent(SendMessage={"task": WORKING}, SubscribeToTask=[], GetTask=[body.encode()])
    with pytest.raises(AgentFailed, match="the agent answered with more than 1,000 values"):
        await run(agent)


async def test_answers_are_parsed_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of the device goes on with its heartbeats while a large answer is parsed."""
    from a2a.client.transports import jsonrpc

    threads = set()
    parse = jsonrpc.parse_lenient

    def parsed(*arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return parse(*arguments)

    monkeypatch.setattr(jsonrpc, "parse_lenient", parsed)
    await run(HostileAgent(SendMessage={"task": WORKING}, SubscribeToTask=[event(task=DONE)], GetTask=DONE))
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    "answer",
    [
        b"[" * 100_000,
        {"task": 7},
        {"task": {"id": ["x"]}},
        {"task": {**WORKING, "status": {"state": "TASK_STATE_NONE_SUCH", "message": {"parts": "all"}}}},
        {"message": {"parts": [{"data": "\ud800"}]}},
        b'{"jsonrpc": "2.0", "id": "1", "error": {"code": -32001, "message": {"a": ["b"]}}}',
        b'{"jsonrpc": "2.0", "id": "1", "error": 5}',
    ],
)
async def test_an_answer_that_cannot_be_read_fails_with_a_sentence(answer: Any) -> None:
    agent = HostileAgent(SendMessage=answer, ListTasks={"tasks": []}, GetTask=DONE)
    with pytest.raises(AsterismError) as failed:
        await run(agent, lost_timeout=0.05)
    assert len(str(failed.value)) < 1000


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["SendMessage", "GetTask"])
async def test_an_exchange_that_never_ends_has_one_deadline(where: str) -> None:
    answers = {"SendMessage": {"task": WORKING}, "GetTask": DONE, "ListTasks": endless, "SubscribeToTask": []}
    agent = HostileAgent(**{**answers, where: endless})
    with pytest.raises(AgentFailed, match=r"unreachable for 0\.1 s: no whole answer within 0\.05 s"):
        await run(agent, request_timeout=0.05, lost_timeout=0.1)


async def test_a_stream_without_events_is_left_after_the_time_of_an_exchange() -> None:
    # as long as card, message and task take on a busy machine
    agent = HostileAgent(SendMessage={"task": WORKING}, SubscribeToTask=endless, GetTask=DONE)
    assert await run(agent, request_timeout=1.0) == "done"


async def test_a_card_that_never_ends_has_one_deadline() -> None:
    agent = HostileAgent()
    agent.card = endless
    async with agent.listening(), asyncio.timeout(PATIENCE):
        with pytest.raises(
            AsterismError, match=r"the card of the agent at .* cannot be read: it did not arrive within 0"
        ):
            await A2aAgent.connect(agent.url, DevicePolicy.open(), request_timeout=0.05)


async def test_a_stream_that_ends_at_once_is_not_opened_again_at_once() -> None:
    """The pauses are 0.05, 0.1, 0.2 and 0.4 s, and the task is given up after 0.5 s without a change."""
    agent = HostileAgent(SendMessage={"task": WORKING}, SubscribeToTask=[], GetTask=WORKING, CancelTask=WORKING)
    with pytest.raises(AgentFailed, match="did not change"):
        await run(agent, poll=0.05, silence=0.5)
    assert agent.asked.count("SubscribeToTask") <= 4


# -- cards -------------------------------------------------------------------------------------------------------------

CARDS: list[Any] = [
    b"7",
    b"null",
    b'"card"',
    b"[" * 100_000,
    b"[]",
    {"skills": [1]},
    {"skills": {"a": 1}},
    {"skills": [{"id": "x", "security": 5}]},
    {"securitySchemes": ["x"]},
    {"securitySchemes": {"x": 5}},
    {"security": 7},
    {"supportedInterfaces": 5},
    {"supportedInterfaces": [{"url": "http://[::1", "protocolBinding": "JSONRPC"}]},
    {"supportedInterfaces": [{"url": "http://a:99999999/", "protocolBinding": "JSONRPC"}]},
    {"supportedInterfaces": [{"url": 5, "protocolBinding": []}]},
    {"supportedInterfaces": []},
    {"supportedInterfaces": [], "url": "http://127.0.0.1:1/", "additionalInterfaces": 5},
    {"description": "x" * (2 << 20)},
]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: str(card)[:40])
async def test_a_hostile_card_is_refused_with_a_sentence(card: Any) -> None:
    agent = HostileAgent()
    async with agent.listening(), asyncio.timeout(PATIENCE):
        agent.card = card if isinstance(card, bytes) else agent.plain_card(**card)
        with pytest.raises(AsterismError, match="agent") as refused:
            await A2aAgent.connect(agent.url, DevicePolicy.open())
    assert len(str(refused.value)) < 1000


# -- other tasks -------------------------------------------------------------------------------------------------------


async def test_an_answer_about_another_task_does_not_count() -> None:
    other = {**DONE, "id": "t2", "artifacts": [{"artifactId": "a", "parts": [{"text": "of another"}]}]}
    agent = HostileAgent(SendMessage={"task": WORKING}, SubscribeToTask=[], GetTask=other)
    with pytest.raises(AgentFailed, match="was asked for its task t1, and answered with task 't2'"):
        await run(agent)


async def test_events_of_another_task_are_not_heard() -> None:
    ended = {"taskId": "t2", "contextId": "r1", "status": {"state": "TASK_STATE_FAILED"}}
    said = {"taskId": "t2", "artifact": {"artifactId": "a", "parts": [{"text": "of another"}]}}
    events = [event(statusUpdate=ended), event(artifactUpdate=said), event(task={**DONE, "id": "t2"})]
    agent = HostileAgent(SendMessage={"task": WORKING}, SubscribeToTask=events, GetTask=DONE)
    async with agent.listening(), asyncio.timeout(PATIENCE):
        connected = await A2aAgent.connect(agent.url, DevicePolicy.open(), poll=0.01)
        device, reports = DeviceExecutor(DevicePolicy.open(), device="helper", session="s1", agent=connected), Reports()
        result = await device.execute(reports.work(Workflow("w", agent={"description": "work"})))
        device.close()
    assert result == "done"
    assert "of another" not in str(reports.output)


@pytest.mark.parametrize("task", ["", "t1"])
async def test_a_task_that_a_message_did_not_begin_does_not_count(task: str) -> None:
    begun = {**DONE, "id": task}
    agent = HostileAgent(SendMessage={"task": begun}, GetTask=begun)
    async with agent.listening(), asyncio.timeout(PATIENCE):
        connected = await A2aAgent.connect(agent.url, DevicePolicy.open(), poll=0.01)
        device = DeviceExecutor(DevicePolicy.open(), device="helper", session="s1", agent=connected)
        schema = {"description": "work", "result": {"type": "integer"}}  # so that it is asked again
        with pytest.raises(AgentFailed, match="a task that the message did not begin"):
            await device.execute(Reports().work(Workflow("w", agent=schema)))
        device.close()
