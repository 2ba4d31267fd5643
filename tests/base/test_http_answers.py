"""The one reader of HTTP answers, against a server on the loopback that compresses as it likes."""

from __future__ import annotations

import asyncio
import gc
import gzip
import threading
import tracemalloc
import weakref
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import httpx2
import pytest

from asterism import AsyncClient, Client, Constellation, LocalDevice, Orchestrator, Task
from asterism.base import http_answers
from asterism.base.http_answers import AnswerRefused, bound_answer, bound_hook, read_answer
from asterism.base.secret_mask import Mask
from asterism.core.errors import TooLarge
from asterism.core.json_values import SizeLimit
from asterism.core.run.work import Workflow
from asterism.execution.http_requests import RequestFailed, send_request
from asterism.gateway.gateway_messages import GatewayRefused
from asterism.gateway.gateway_transport import HttpTransport
from tests.fleet.device.device_scenes import execute

MILLION = SizeLimit(1_000_000, "nothing")
ZEROS = 64 << 20


@cache
def bomb() -> bytes:
    """A few hundred bytes that become 64 MiB if they are decompressed twice."""
    return gzip.compress(gzip.compress(bytes(ZEROS)))


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        for name, value in self.server.headers:  # type: ignore[attr-defined]
            self.send_header(name, value)
        self.send_header("content-length", str(len(self.server.body)))  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(self.server.body)  # type: ignore[attr-defined]

    do_GET = do_POST = answer

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.url = f"http://127.0.0.1:{made.server_address[1]}"  # type: ignore[attr-defined]
        made.headers, made.body = [("content-encoding", "gzip, gzip")], bomb()  # type: ignore[attr-defined]
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def run_task(url: str) -> Any:
    """An ``http:`` task of ``asterism run``."""
    plan = Constellation("p")
    plan.add(Task("get", http={"url": url}))
    node = asyncio.run(Orchestrator([LocalDevice("here")]).run(plan))["get"]
    if node.error is not None:
        raise node.error
    return node.value


def run_on_device(url: str) -> Any:
    return execute(Workflow("work", http={"url": url}))


def ask_server(url: str) -> Any:
    with Client(url) as client:
        return client.metrics()


def ask_server_async(url: str) -> Any:
    async def ask() -> Any:
        async with AsyncClient(url) as client:
            return await client.metrics()

    return asyncio.run(ask())


def ask_gateway(url: str) -> Any:
    async def ask() -> Any:
        transport = HttpTransport(url)
        try:
            return await transport.send("fetch", {}, None, timeout=60.0)
        finally:
            await transport.close()

    return asyncio.run(ask())


READERS = [run_task, run_on_device, ask_server, ask_server_async, ask_gateway]


def peak(read: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", READERS)
def test_a_body_that_is_compressed_twice_is_refused(server: Any, read: Callable[[str], Any]) -> None:
    def refused() -> None:
        with pytest.raises((AnswerRefused, GatewayRefused), match="compressed 2 times; once is accepted"):
            read(server.url)

    assert peak(refused) < ZEROS // 4


@pytest.mark.parametrize(
    "headers",
    [[("content-encoding", "gzip"), ("Content-Encoding", "gzip")], [("Content-Encoding", "GZIP,identity,gzip")]],
)
def test_two_encodings_are_two_however_they_are_written(server: Any, headers: list[tuple[str, str]]) -> None:
    server.headers = headers
    with pytest.raises(AnswerRefused, match="compressed 2 times"):
        run_task(server.url)


def test_a_body_is_counted_while_it_is_decompressed(server: Any) -> None:
    server.headers, server.body = [("content-encoding", "gzip")], gzip.compress(bytes(ZEROS))

    def refused() -> None:
        with pytest.raises(
            TooLarge, match=r"what was read of the answer to GET http://.* and the limit is 1,000,000: "
        ):
            asyncio.run(send_request({"url": server.url}, Mask(), MILLION))

    assert peak(refused) < ZEROS // 4


@pytest.mark.long
def test_without_the_count_the_whole_body_is_in_memory(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answers._Count, "add", lambda self, part: None)
    server.headers, server.body = [("content-encoding", "gzip")], gzip.compress(bytes(ZEROS))
    assert peak(lambda: asyncio.run(send_request({"url": server.url}, Mask(), MILLION))) > ZEROS


def test_the_limit_of_a_result_is_that_of_an_answer(server: Any) -> None:
    server.headers, server.body = [], b"x" * 2_000
    made = Constellation("p")
    made.add(Task("a", http={"url": server.url}))
    error = asyncio.run(Orchestrator([LocalDevice("here", result_limit=1_999)]).run(made))["a"].error
    assert isinstance(error, TooLarge)
    assert str(error) == (
        f"the answer to GET {server.url} has 2,000 bytes, and the limit is 1,999: write it to a file and pass on the "
        "name of the file, or raise the limit with: asterism run --result-limit SIZE, or LocalDevice(result_limit=…)"
    )


@pytest.mark.long
def test_a_limit_may_be_larger_than_the_default(server: Any) -> None:
    server.headers, server.body = [("content-encoding", "gzip")], gzip.compress(bytes(http_answers.LARGEST_ANSWER + 1))
    with pytest.raises(AnswerRefused, match=r"answered with more than 67,108,864 bytes"):
        asyncio.run(send_request({"url": server.url}, Mask()))
    assert len(asyncio.run(send_request({"url": server.url}, Mask(), SizeLimit(65 << 20, "nothing")))) == (64 << 20) + 1


def test_an_answer_that_says_what_went_wrong_may_be_larger_than_a_result(server: Any) -> None:
    server.headers, server.body = [], b"no such table"
    with pytest.raises(RequestFailed, match="answered 200: no such table"):
        asyncio.run(send_request({"url": server.url, "expect": [201]}, Mask(), SizeLimit(1, "nothing")))


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


TEXT = b"all of it " * 50_000


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(TEXT)),
        ("x-gzip", gzip.compress(TEXT[:7]) + gzip.compress(TEXT[7:]) + bytes(100)),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", raw_deflate(TEXT)),
        ("identity", TEXT),
        ("", TEXT),
    ],
)
def test_one_encoding_is_read_whole(server: Any, encoding: str, body: bytes) -> None:
    server.headers, server.body = [("content-encoding", encoding)], body
    assert run_task(server.url) == run_on_device(server.url) == TEXT.decode()


@pytest.mark.parametrize(
    ("encoding", "body", "why"),
    [
        ("gzip", gzip.compress(TEXT)[:-20], "compressed body that is cut off"),
        ("gzip", TEXT, "cannot be decompressed"),
        ("deflate", zlib.compress(TEXT) + b"more", "more data follows its end"),
        ("br", TEXT, "the encoding 'br'; accepted are gzip, deflate"),
    ],
)
def test_a_body_that_cannot_be_read_whole_is_refused(server: Any, encoding: str, body: bytes, why: str) -> None:
    server.headers, server.body = [("content-encoding", encoding)], body
    with pytest.raises(AnswerRefused, match=why):
        run_task(server.url)


def test_an_answer_without_a_body_may_name_an_encoding(server: Any) -> None:
    server.headers, server.body = [("content-encoding", "gzip")], b""
    assert run_task(server.url) == ""


@pytest.mark.parametrize("encoding", ["punycode", "idna", "unicode_escape", "zlib", "undefined", "nul\0"])
def test_a_charset_that_is_not_one_of_texts_counts_as_none(encoding: str) -> None:
    from asterism.execution.http_requests import _parsed

    answer = httpx.Response(200, headers={b"content-type": f"text/plain; charset={encoding}".encode()})
    answer.request = httpx.Request("GET", "http://server/")
    assert _parsed(b"a-b\\n", answer) == "a-b\\n"


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_a_client_that_a_library_reads_is_bounded_by_a_hook(server: Any, library: Any) -> None:
    async with library.AsyncClient(event_hooks={"response": [bound_hook(1000)]}) as client:
        with pytest.raises(AnswerRefused, match="compressed 2 times"):
            await client.get(server.url)
        server.headers, server.body = [("content-encoding", "gzip")], gzip.compress(bytes(1001))
        with pytest.raises(AnswerRefused, match="more than 1,000 bytes"):
            await client.get(server.url)
        server.body = gzip.compress(b"short")
        assert (await client.get(server.url)).text == "short"


async def test_an_answer_that_was_read_does_not_wait_for_the_collector(server: Any) -> None:
    """A large file comes in many answers: each is gone when it was read."""
    server.headers, server.body = [], TEXT
    gc.collect()
    gc.disable()
    try:
        async with httpx.AsyncClient(event_hooks={"response": [bound_hook(1 << 20)]}) as client:
            answers = [weakref.ref(await client.get(server.url)) for _ in range(3)]
            async with client.stream("GET", server.url) as answer:
                answers.append(weakref.ref(answer))
                await read_answer(answer)
            del answer
        assert [answer() for answer in answers] == [None] * 4
    finally:
        gc.enable()


def test_a_stream_whose_parts_are_counted_elsewhere_has_no_limit(server: Any) -> None:
    server.headers, server.body = [], TEXT
    with httpx.Client() as client, client.stream("GET", server.url) as answer:
        bound_answer(answer, None)
        assert answer.read() == TEXT


@pytest.mark.parametrize(
    "name", ["openai:gpt-5", "openai-chat:gpt-5", pytest.param("anthropic:claude-sonnet-4-5", marks=pytest.mark.long)]
)
async def test_the_answers_of_models_are_bounded(server: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from asterism.models.model_calls import open_model

    for provider in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{provider}_API_KEY", "k")
        monkeypatch.setenv(f"{provider}_BASE_URL", server.url)
    model: Any = await asyncio.to_thread(open_model, name)  # it imports a large library
    async with model:
        http = model.client._client
        with pytest.raises(AnswerRefused, match="compressed 2 times"):
            await http.get(server.url)
        assert http.headers["accept-encoding"] == "gzip, deflate"
    open_model(model)
    assert len(http.event_hooks["response"]) == 1
