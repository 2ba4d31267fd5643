"""`asterism fleet metrics`, and the server of `asterism monitor --listen`."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
import pytest

from asterism.base.openmetrics import CONTENT_TYPE
from asterism.cli.fleet import fleet_metrics
from asterism.cli.fleet.fleet_metrics import MAX_AGE, serve_text
from asterism.store.store_errors import StoreUnavailable
from tests.base.openmetrics_grammar import read
from tests.cli.cli_scenes import heard
from tests.cli.command_scenes import Scene
from tests.cli.stored_plan_scenes import keeping


def test_metrics_are_printed_as_text_and_as_json(tmp_path: Path) -> None:
    scene = keeping(Scene(tmp_path).made())
    scene.workflow()
    scene.create()
    families = read(scene.ok("fleet", "metrics"))
    assert families["asterism_window_runs"].samples["", ()] == 1
    assert families["asterism_plan_edits"].samples["", (("plan", "nightly"), ("answer", "accepted"))] == 0
    names = {family["name"]: family["samples"] for family in scene.json("fleet", "metrics", "--window", "1m")}
    assert names["asterism_window_seconds"] == [{"labels": {}, "value": 60.0}]


@pytest.mark.parametrize("words", [["--window", "0s"], ["--limit", "0"], ["--window", "soon"]])
def test_a_window_without_runs_is_refused(tmp_path: Path, words: list[str]) -> None:
    result = Scene(tmp_path).made().run("fleet", "metrics", *words)
    assert (result.exit_code, result.stdout) == (64, "")


def test_a_monitor_serves_metrics(tmp_path: Path) -> None:
    scene = Scene(tmp_path).made()
    with scene.process("monitor", "hub", "--listen", "127.0.0.1:0") as process:
        [line] = [line for line in heard(process, "metrics at ") if "metrics at" in line]
        [(host, port)] = re.findall(r"http://(127\.0\.0\.1):(\d+)/metrics", line)
        status, text = asyncio.run(asked(host, int(port), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert (status, read(text)["asterism_window_runs"].samples) == ("HTTP/1.1 200 OK", {("", ()): 0})


# -- the server --------------------------------------------------------------------------------------------------------

GET = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"


async def asked(host: str, port: int, request: str) -> tuple[str, str]:
    """The status line and the body of the answer."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request.encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return head.decode().partition("\r\n")[0], body.decode()
    finally:
        writer.close()


async def with_server(
    produce: Callable[[], Awaitable[str]], use: Callable[[int], Awaitable[None]], now: Callable[[], float] = lambda: 0.0
) -> None:
    async with serve_text(produce, "127.0.0.1", 0, now) as address:
        await use(int(address.rsplit(":", 1)[1].partition("/")[0]))


@pytest.mark.parametrize(
    ("request_text", "status", "body"),
    [
        (GET, "200 OK", "text"),
        ("GET /metrics?x=1 HTTP/1.0\n\n", "200 OK", "text"),
        ("HEAD /metrics HTTP/1.1\r\n\r\n", "200 OK", ""),
        ("GET / HTTP/1.1\r\n\r\n", "404 Not Found", "The metrics are at /metrics.\n"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed", "Use GET.\n"),
    ],
)
async def test_requests_and_their_answers(request_text: str, status: str, body: str) -> None:
    async def produce() -> str:
        return "text"

    async def use(port: int) -> None:
        assert await asked("127.0.0.1", port, request_text) == (f"HTTP/1.1 {status}", body)

    await with_server(produce, use)


@pytest.mark.parametrize(
    "nonsense", ["\x16\x03\x01\n", "GET /metrics\n\n", "GET /metrics SPDY/3\n\n", f"GET /{'x' * 100_000} HTTP/1.1\n\n"]
)
async def test_what_is_not_http_gets_no_answer(nonsense: str) -> None:
    async def produce() -> str:
        return "text"

    async def use(port: int) -> None:
        with contextlib.suppress(ConnectionError):
            assert await asked("127.0.0.1", port, nonsense) == ("", "")
        assert (await asked("127.0.0.1", port, GET))[1] == "text"

    await with_server(produce, use)


async def test_a_store_that_cannot_be_reached_is_a_503() -> None:
    async def produce() -> str:
        raise StoreUnavailable("the server does not answer")

    async def use(port: int) -> None:
        assert await asked("127.0.0.1", port, GET) == (
            "HTTP/1.1 503 Service Unavailable",
            "the server does not answer\n",
        )

    await with_server(produce, use)


async def test_many_clients_share_one_computation() -> None:
    made, now = [], [0.0]

    async def produce() -> str:
        made.append(now[0])
        return f"text {len(made)}"

    async def use(port: int) -> None:
        answers = await asyncio.gather(*(asked("127.0.0.1", port, GET) for _ in range(10)))
        assert {body for _, body in answers} == {"text 1"}
        now[0] = MAX_AGE + 1.0
        assert (await asked("127.0.0.1", port, GET))[1] == "text 2"

    await with_server(produce, use, lambda: now[0])


async def test_idle_connections_do_not_lock_out_and_are_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_metrics, "MAX_CONNECTIONS", 2)
    idle = []

    async def produce() -> str:
        return "text"

    async def use(port: int) -> None:
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            idle.append((reader, writer))
        with pytest.raises((ConnectionError, AssertionError)):
            assert await asked("127.0.0.1", port, GET) == ("HTTP/1.1 200 OK", "text"), "all places are taken"
        idle[0][1].close()
        await idle[0][1].wait_closed()
        answer = ("", "")
        while answer == ("", ""):  # the server has yet to notice that the place is free
            answer = await asked("127.0.0.1", port, GET)
        assert answer == ("HTTP/1.1 200 OK", "text")

    await with_server(produce, use)
    assert await idle[1][0].read() == b"", "it was closed with the server"
    idle[1][1].close()


async def test_a_port_that_is_taken_is_an_error_with_advice() -> None:
    async def produce() -> str:
        return ""

    async def use(port: int) -> None:
        with pytest.raises(click.ClickException, match=f"cannot be served on 127.0.0.1 port {port}.*--listen"):
            async with serve_text(produce, "127.0.0.1", port, lambda: 0.0):
                pass

    await with_server(produce, use)


def test_the_content_type_is_that_of_openmetrics() -> None:
    assert CONTENT_TYPE == "application/openmetrics-text; version=1.0.0; charset=utf-8"
