"""A local model server that speaks the wire formats of OpenAI and Anthropic, and misbehaves on demand.

::

    async with ModelServer([Reply.edits(edit), Failure(429, retry_after=0), Reply.edits()]) as server:
        server.environment         # base URLs and keys for openai:…, openai-chat:… and anthropic:…
        server.questions[0].text   # everything that the model was shown with the first request

The script is a list of replies, one per request; the last one is repeated. Or it is a function from the question to a
reply, so that a model may obey what it reads. Every reply is answered as a stream if the request asks for one.

Formats: ``/v1/chat/completions``, ``/v1/responses`` (OpenAI) and ``/v1/messages`` (Anthropic).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@dataclass(frozen=True)
class Question:
    """One request. ``number`` counts from 0. ``text`` is all text in it: system prompt, messages and tool results."""

    number: int
    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def model(self) -> str:
        return str(self.body["model"])

    @property
    def tools(self) -> list[str]:
        """The names of the tools that the model may call."""
        return [str(tool.get("name") or tool["function"]["name"]) for tool in self.body.get("tools", ())]

    @property
    def text(self) -> str:
        parts = (self.body.get(name) for name in ("system", "instructions", "input", "messages"))
        return "\n".join(text for part in parts for text in _texts(part))

    @property
    def last(self) -> str:
        """The text of the last message only."""
        messages = self.body.get("messages") or self.body.get("input")
        return "\n".join(_texts(messages[-1] if isinstance(messages, list) else messages))


def _texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, Mapping):
        for name in ("content", "text", "output", "arguments", "input", "function", "tool_calls"):
            yield from _texts(part.get(name))
    elif isinstance(part, list):
        for item in part:
            yield from _texts(item)


@dataclass(frozen=True)
class Reply:
    """What the model says: ``calls`` are tool calls as ``(name, arguments)``, where None stands for the last tool that
    the request offers, and arguments may be a text that is not JSON.

    ``usage`` are the tokens that the reply claims, in and out; None for a plausible count, () for no figures at all.
    ``gap`` are seconds before each piece of a stream. ``cut`` and ``hang``: after so many pieces the connection is cut,
    or nothing more is sent until the client leaves. ``refused``: the model declines to answer."""

    text: str = ""
    calls: tuple[tuple[str | None, Any], ...] = ()
    usage: tuple[Any, ...] | None = None
    gap: float = 0.0
    cut: int | None = None
    hang: int | None = None
    refused: bool = False
    delay: Callable[[], Awaitable[Any]] | None = None

    @classmethod
    def edits(cls, *edits: Mapping[str, Any], reason: str = "scripted", **fields: Any) -> Reply:
        """A batch of edits through the last tool."""
        return cls.call({"edits": list(edits), "reason": reason}, **fields)

    @classmethod
    def call(cls, arguments: Any, tool: str | None = None, **fields: Any) -> Reply:
        return cls(calls=((tool, arguments),), **fields)

    @classmethod
    def refusal(cls, text: str = "I cannot help with that.") -> Reply:
        return cls(text, refused=True)

    def but(self, **changes: Any) -> Reply:
        return replace(self, **changes)


@dataclass(frozen=True)
class Failure:
    """An HTTP error: 429 and 529 with ``retry_after`` seconds. Status 0 cuts the connection before any answer."""

    status: int
    retry_after: float | None = None
    message: str = "scripted failure"


Script = Sequence[Reply | Failure] | Callable[[Question], Reply | Failure]


@dataclass
class ModelServer:
    script: Script
    host: str = "127.0.0.1"
    port: int = 0
    questions: list[Question] = field(default_factory=list)
    abandoned: int = 0
    """How many requests the client has left before their end."""

    async def __aenter__(self) -> Self:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": "local-key",
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "local-key",
        }

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has left, or the test has ended
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Returns whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split()[1].partition("?")[0]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
        if path not in _FORMATS:
            _send(writer, 404, {"error": {"message": f"no such path: {path}"}})
            return True
        question = Question(len(self.questions), path, body, headers)
        self.questions.append(question)
        reply = self.script(question) if callable(self.script) else self.script[: question.number + 1][-1]
        if isinstance(reply, Failure):
            return await self._fail(writer, path, reply)
        if reply.delay is not None:
            await reply.delay()
        return await self._answer(reader, writer, question, reply)

    async def _fail(self, writer: asyncio.StreamWriter, path: str, failure: Failure) -> bool:
        if not failure.status:
            return False
        kind = {429: "rate_limit_error", 529: "overloaded_error"}.get(failure.status, "api_error")
        error = {"type": kind, "message": failure.message}
        body = {"type": "error", "error": error} if path == MESSAGES else {"error": {**error, "code": kind}}
        after = {} if failure.retry_after is None else {"retry-after": f"{failure.retry_after:g}"}
        _send(writer, failure.status, body, after)
        await writer.drain()
        return True

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: Question, reply: Reply
    ) -> bool:
        whole, pieces = _FORMATS[question.path](question, reply, _usage(question, reply))
        if not question.body.get("stream"):
            if reply.hang is not None or reply.cut is not None:
                return await self._stop(reader, reply)
            _send(writer, 200, whole)
            await writer.drain()
            return True
        _send_head(writer, 200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        for number, (event, data) in enumerate(pieces):
            if number in (reply.cut, reply.hang):
                await writer.drain()
                return await self._stop(reader, reply)
            if reply.gap:
                await asyncio.sleep(reply.gap)
            text = data if isinstance(data, str) else json.dumps(data)
            line = (f"event: {event}\n" if event else "") + f"data: {text}\n\n"
            writer.write(f"{len(line.encode()):x}\r\n{line}\r\n".encode())
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _stop(self, reader: asyncio.StreamReader, reply: Reply) -> bool:
        if reply.hang is not None:
            await reader.read()  # until the client leaves
            self.abandoned += 1
        return False


def _send_head(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str]) -> None:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())


def _send(writer: asyncio.StreamWriter, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
    content = json.dumps(body).encode()
    about = {"content-type": "application/json", "content-length": str(len(content)), **(headers or {})}
    _send_head(writer, status, about)
    writer.write(content)


# -- wire formats ------------------------------------------------------------------------------------------------------

Pieces = list[tuple[str, Any]]


def _usage(question: Question, reply: Reply) -> tuple[int, ...]:
    """Tokens in and out: about four characters each, as real models count."""
    if reply.usage is not None:
        return reply.usage
    shown = len(question.text) + len(json.dumps(question.body.get("tools", ())))
    said = len(reply.text) + sum(len(json.dumps(arguments)) for _, arguments in reply.calls)
    return (max(1, shown // 4), max(1, said // 4))


def _calls(question: Question, reply: Reply) -> list[tuple[str, str, str]]:
    """Id, name and arguments of each tool call."""
    return [
        (f"call_{question.number}_{number}", name or question.tools[-1], _arguments(arguments))
        for number, (name, arguments) in enumerate(reply.calls)
    ]


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _split(text: str) -> list[str]:
    """The pieces of a stream: small ones, but not many, since each costs a client a millisecond."""
    size = max(40, len(text) // 8)
    return [text[start : start + size] for start in range(0, len(text), size)]


def _total(usage: tuple[Any, ...]) -> int:
    return sum(part for part in usage if isinstance(part, int))


def _chat(question: Question, reply: Reply, usage: tuple[int, ...]) -> tuple[Any, Pieces]:
    about = {"id": f"chat-{question.number}", "created": 1_700_000_000, "model": question.model}
    calls = _calls(question, reply)
    tool_calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id, name, arguments in calls
    ]
    said = {"refusal": reply.text} if reply.refused else {"content": reply.text or None}
    message = {"role": "assistant", **said, **({"tool_calls": tool_calls} if calls else {})}
    finish = "content_filter" if reply.refused else "tool_calls" if calls else "stop"
    counted = dict(zip(("prompt_tokens", "completion_tokens"), usage, strict=False))
    tokens = {"usage": {**counted, "total_tokens": _total(usage)}} if usage else {}
    whole = {
        **about,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        **tokens,
    }

    def chunk(delta: Any, finish: str | None = None) -> tuple[str, Any]:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return "", {**about, "object": "chat.completion.chunk", "choices": choices}

    pieces = [chunk({"role": "assistant"})]
    pieces += [chunk({"refusal" if reply.refused else "content": text}) for text in _split(reply.text)]
    for index, (id, name, arguments) in enumerate(calls):
        function = {"name": name, "arguments": ""}
        pieces.append(chunk({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}))
        pieces += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]}) for text in _split(arguments)
        ]
    pieces.append(chunk({}, finish))
    if usage:
        pieces.append(("", {**about, "object": "chat.completion.chunk", "choices": [], **tokens}))
    return whole, [*pieces, ("", "[DONE]")]


def _responses(question: Question, reply: Reply, usage: tuple[int, ...]) -> tuple[Any, Pieces]:
    items: list[dict[str, Any]] = []
    if reply.text:
        part = (
            {"type": "refusal", "refusal": reply.text}
            if reply.refused
            else {"type": "output_text", "text": reply.text, "annotations": []}
        )
        items.append(
            {
                "type": "message",
                "id": f"msg_{question.number}",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    for id, name, arguments in _calls(question, reply):
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{id}",
                "call_id": id,
                "name": name,
                "arguments": arguments,
                "status": "completed",
            }
        )
    counted = dict(zip(("input_tokens", "output_tokens"), usage, strict=False))
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    whole = {
        "id": f"resp_{question.number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": question.model,
        "status": "completed",
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {**counted, **details, "total_tokens": _total(usage)} if usage else None,
    }
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[tuple[str, dict[str, Any]]] = [("response.created", {"response": begun})]
    for index, item in enumerate(items):
        place = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            kind = "refusal" if reply.refused else "output_text"
            empty = {**item, "content": [], "status": "in_progress"}
            events.append(("response.output_item.added", {"output_index": index, "item": empty}))
            events += [
                (f"response.{kind}.delta", {**place, "content_index": 0, "delta": text, "logprobs": []})
                for text in _split(reply.text)
            ]
        else:
            empty = {**item, "arguments": "", "status": "in_progress"}
            events.append(("response.output_item.added", {"output_index": index, "item": empty}))
            events += [
                ("response.function_call_arguments.delta", {**place, "delta": text})
                for text in _split(item["arguments"])
            ]
        events.append(("response.output_item.done", {"output_index": index, "item": item}))
    events.append(("response.completed", {"response": whole}))
    return whole, [
        (kind, {"type": kind, "sequence_number": number, **data}) for number, (kind, data) in enumerate(events)
    ]


def _messages(question: Question, reply: Reply, usage: tuple[int, ...]) -> tuple[Any, Pieces]:
    blocks: list[tuple[dict[str, Any], str]] = [({"type": "text", "text": ""}, reply.text)] if reply.text else []
    blocks += [
        ({"type": "tool_use", "id": id, "name": name, "input": {}}, arguments)
        for id, name, arguments in _calls(question, reply)
    ]
    reads, writes = (*usage, 0, 0)[:2]
    stop = "refusal" if reply.refused else "tool_use" if reply.calls else "end_turn"
    message = {
        "id": f"msg_{question.number}",
        "type": "message",
        "role": "assistant",
        "model": question.model,
        "stop_sequence": None,
    }
    content = [
        {**block, "text": text} if block["type"] == "text" else {**block, "input": _object(text)}
        for block, text in blocks
    ]
    whole = {
        **message,
        "content": content,
        "stop_reason": stop,
        "usage": {"input_tokens": reads, "output_tokens": writes},
    }
    start: dict[str, Any] = {
        **message,
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": reads, "output_tokens": 0},
    }
    pieces: Pieces = [("message_start", {"type": "message_start", "message": start})]
    for index, (block, text) in enumerate(blocks):
        about = {"index": index}
        pieces.append(("content_block_start", {"type": "content_block_start", **about, "content_block": block}))
        for part in _split(text):
            delta = (
                {"type": "text_delta", "text": part}
                if block["type"] == "text"
                else {"type": "input_json_delta", "partial_json": part}
            )
            pieces.append(("content_block_delta", {"type": "content_block_delta", **about, "delta": delta}))
        pieces.append(("content_block_stop", {"type": "content_block_stop", **about}))
    ended = {"stop_reason": stop, "stop_sequence": None}
    pieces.append(("message_delta", {"type": "message_delta", "delta": ended, "usage": {"output_tokens": writes}}))
    return whole, [*pieces, ("message_stop", {"type": "message_stop"})]


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # what is no JSON goes over the wire as it is


_FORMATS: dict[str, Callable[[Question, Reply, tuple[int, ...]], tuple[Any, Pieces]]] = {
    CHAT: _chat,
    RESPONSES: _responses,
    MESSAGES: _messages,
}
