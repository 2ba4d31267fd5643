"""A GitHub for tests: HTTP over a world, as GitHub documents it.

- An issue has no ``If-Match``: the header is ignored, and the last who writes wins.
- ``ETag`` and 304 on every read; a 304 does not count against the limit.
- Primary and secondary limits with their headers, lists in pages with ``Link``, 401, 404, 409, 410, 422, GraphQL that
  answers 200 with errors, a search that lags behind.
- Faults, of a seeded chance: replies lost after the effect, connections closed before it, 502.
- A request can be held at a gate, before or after its effect, until a test lets it go.

A test of the service needs no HTTP: what it sends is answered without it, in a fifth of the time. With ``listening``
the server speaks HTTP on loopback, in a thread with an event loop of its own: for other processes, and for the tests of
the transport. One request is answered whole before the next, and tests touch the world through ``call``.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
import re
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from asterism.series.github.github_client import Connection, Response, ResponseLost
from tests.series.github.github_routes import Routes
from tests.series.github.github_world import Refusal, World

TOKEN = "token-of-the-service"


@dataclass
class Faults:
    """Chances per request, from one seed. ``only`` spares requests it does not match."""

    seed: int = 0
    lose: float = 0.0
    drop: float = 0.0
    broken: float = 0.0
    secondary: float = 0.0
    only: Callable[[str, str], bool] = lambda method, path: True

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def draw(self, method: str, path: str) -> str:
        drawn = self.chance.random()
        if not self.only(method, path):
            return ""
        for name in ("lose", "drop", "broken", "secondary"):
            drawn -= getattr(self, name)
            if drawn < 0:
                return name
        return ""


@dataclass
class Limit:
    """The primary limit. ``reset`` is in seconds of the real clock."""

    limit: int = 5000
    remaining: int = 5000
    reset: float = field(default_factory=lambda: time.time() + 3600)


class Gate:
    """Holds one request that matches, before or after its effect."""

    def __init__(self, method: str, path: str, after: bool) -> None:
        self.method, self.path, self.after = method, re.compile(path), after
        self.arrived = threading.Event()
        self.opened = threading.Event()
        self.used = False

    def matches(self, method: str, path: str) -> bool:
        return not self.used and method == self.method and bool(self.path.search(path))

    def open(self) -> None:
        self.opened.set()

    async def reached_by(self, task: asyncio.Task[Any]) -> None:
        """Wait until a request is held here. If the task that was to send it ends before, say so instead of waiting for
        ever."""
        waiting = asyncio.ensure_future(asyncio.to_thread(self.arrived.wait))
        await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            self.arrived.set()
            await waiting
            raise AssertionError(f"no {self.method} came to {self.path.pattern}: {task.result()}")


class Aborted(ConnectionError):
    """The connection broke instead of an answer."""


class GitHubServer:
    """``with GitHubServer(world) as server``: ``server.url`` is for GITHUB_API_URL. With ``listening`` it
    speaks HTTP."""

    def __init__(self, world: World | None = None, faults: Faults | None = None, listening: bool = False) -> None:
        self.world = world or World()
        self.faults = faults or Faults()
        self.limit = Limit()
        self.ahead = 0.0
        """By how many seconds its clock is ahead of ours."""
        self.tokens = {TOKEN: "service"}
        self.app_key: Any = None
        self.secondary_next: int | None = None
        """Seconds for the next request to be told to wait."""
        self.log: list[tuple[str, str, int]] = []
        self.bodies: list[tuple[str, str, int, Any]] = []
        """Everything answered with JSON, for the test against GitHub's description."""
        self.posted: list[tuple[str, str, Any]] = []
        """Everything that was sent."""
        self.mistakes: list[str] = []
        """What this server itself got wrong."""
        self.counted: Counter[str] = Counter()
        self.gates: list[Gate] = []
        self._listening = listening
        self._thread = threading.Thread(target=self._serve, name="github", daemon=True)
        self._ready = threading.Event()
        self._one_at_a_time = threading.Condition()
        """Is notified after each request."""

    # -- for tests -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> GitHubServer:
        if self._listening:
            self._thread.start()
            self._ready.wait()
        else:
            self.url = f"http://{next(_names)}.github.invalid"
            _here[self.url] = self
        self.routes = Routes(self)
        return self

    def __exit__(self, *exc: object) -> None:
        for gate in self.gates:
            gate.open()
        if not self._listening:
            del _here[self.url]
        else:
            self.loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
        assert not self.mistakes, self.mistakes[0]

    def call(self, function: Callable[[World], Any]) -> Any:
        """Between two requests."""
        with self._one_at_a_time:
            return function(self.world)

    def hold(self, method: str, path: str, after: bool = False) -> Gate:
        gate = Gate(method, path, after)
        self.gates.append(gate)
        return gate

    def wait_for(self, true: Callable[[World], Any], seconds: float = 300.0) -> bool:
        """Whether it became true after some request. It is asked between two of them."""
        with self._one_at_a_time:
            return bool(self._one_at_a_time.wait_for(lambda: true(self.world), seconds))

    def forget(self) -> None:
        """Count from here."""
        self.log.clear()
        self.counted.clear()

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = await reader.readline()
        if not line:
            return False
        method, target, _ = line.decode().split()
        headers = {}
        while (line := await reader.readline()) not in (b"\r\n", b""):
            key, _, value = line.decode().partition(":")
            headers[key.strip().lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        try:
            status, extra, content = await self.exchange(method, target, headers, body)
        except Aborted:
            writer.transport.abort()
            return False
        head = f"HTTP/1.1 {status} X\r\n" + "".join(f"{key}: {value}\r\n" for key, value in extra.items())
        writer.write(head.encode() + b"\r\n" + content)
        await writer.drain()
        return True

    # -- one request ---------------------------------------------------------------------------------------------------

    async def exchange(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content of the answer. Raises Aborted."""
        path = urlsplit(target).path
        gate = next((gate for gate in self.gates if gate.matches(method, path)), None)
        if gate:
            gate.used = True
            if not gate.after:
                await self._at(gate)
        with self._one_at_a_time:
            fault = self.faults.draw(method, path)
            if fault == "drop":
                self.counted["dropped"] += 1
            else:
                status, extra, content = self._answered(method, target, headers, body, fault)
            self._one_at_a_time.notify_all()
        if gate and gate.after and fault != "drop":
            await self._at(gate)
        if fault == "lose":
            self.counted["lost"] += 1
        if fault in ("drop", "lose"):
            raise Aborted(fault)
        whole = {
            "Date": formatdate(time.time() + self.ahead, usegmt=True),
            "Content-Type": "application/json; charset=utf-8",
            **extra,
        }
        if status in (204, 304):
            return status, whole, b""
        return status, {**whole, "Content-Length": str(len(content))}, content

    async def _at(self, gate: Gate) -> None:
        gate.arrived.set()
        await asyncio.to_thread(gate.opened.wait)

    def _answered(
        self, method: str, target: str, headers: dict[str, str], body: bytes, fault: str
    ) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(target)
        path, query = unquote(parts.path), {key: values[-1] for key, values in parse_qs(parts.query).items()}
        extra: dict[str, str] = {}
        try:
            self._let_in(method, path, headers, fault)
            status, form, extra = self.routes.answer(method, path, query, headers, body)
        except Refusal as refusal:
            form = {"message": refusal.message, "documentation_url": "https://docs.github.example", "status": "0"}
            form["status"] = str(refusal.status)
            status = refusal.status
            details = ("resource", "field", "code")
            extra = {key.replace("_", "-"): str(value) for key, value in refusal.more.items() if key not in details}
            if status == 301:
                form = {"message": refusal.message, "url": self.url + refusal.more["location"]}
                form["documentation_url"] = "https://docs.github.example"
                extra = {"location": self.url + refusal.more["location"]}
            if status == 422:
                usual = {"resource": "Issue", "field": "x", "code": "invalid", "message": refusal.message}
                form["errors"] = [{**usual, **{key: refusal.more[key] for key in details if key in refusal.more}}]
        except Exception:
            self.mistakes.append(traceback.format_exc())
            status, form = 500, {"message": "a mistake of the local server"}
        content = b"" if form is None else json.dumps(form).encode()
        if method == "GET" and status == 200:
            extra["ETag"] = f'W/"{hashlib.sha256(content).hexdigest()}"'
            if headers.get("if-none-match") == extra["ETag"]:
                status = 304
        self.bodies.append((method, path, status, form))
        if body:
            self.posted.append((method, path, json.loads(body)))
        self._count(method, path, status)
        return status, {**extra, **self._limit_headers()}, content

    def _let_in(self, method: str, path: str, headers: dict[str, str], fault: str) -> None:
        if fault == "broken":
            raise Refusal(502, "Server Error")
        if fault == "secondary" or self.secondary_next is not None:
            wait, self.secondary_next = self.secondary_next or 0, None
            self.counted["secondary"] += 1
            raise Refusal(403, "You have exceeded a secondary rate limit. Please wait.", retry_after=wait)
        if self.limit.remaining <= 0 and path != "/graphql":
            if time.time() < self.limit.reset:
                raise Refusal(403, "API rate limit exceeded for user ID 1.")
            self.limit = Limit(self.limit.limit, self.limit.limit)
        if headers.get("authorization", "") == "" or not self.routes.known(path, headers):
            raise Refusal(401, "Bad credentials")

    def _count(self, method: str, path: str, status: int) -> None:
        self.log.append((method, path, status))
        self.counted["all"] += 1
        self.counted["304"] += status == 304
        if status != 304:
            self.counted["charged"] += 1
            self.limit.remaining -= 1

    def _limit_headers(self) -> dict[str, str]:
        return {
            "x-ratelimit-limit": str(self.limit.limit),
            "x-ratelimit-remaining": str(max(0, self.limit.remaining)),
            "x-ratelimit-reset": str(int(self.limit.reset)),
            "x-ratelimit-resource": "core",
        }


# -- requests of this process ------------------------------------------------------------------------------------------

_names = itertools.count(1)
_here: dict[str, GitHubServer] = {}
"""The servers of this process that do not listen, by their addresses."""

_send_over_http = Connection.send


async def _send(
    connection: Connection,
    method: str,
    url: str,
    params: Mapping[str, str] | None,
    body: Any,
    headers: Mapping[str, str],
) -> Response:
    """What ``Connection.send`` does, without githubkit, HTTP and a socket."""
    server = _here.get(connection.base_url)
    if server is None:
        return await _send_over_http(connection, method, url, params, body, headers)
    target = url.removeprefix(server.url) + (f"?{urlencode(params)}" if params else "")
    sent = {key.lower(): value for key, value in headers.items()}
    sent["authorization"] = f"token {connection._credentials.token}"
    await asyncio.sleep(0)  # others send, too
    try:
        answer = server.exchange(method, target, sent, b"" if body is None else json.dumps(body).encode())
        status, received, content = await answer
    except Aborted:
        raise ResponseLost("the connection broke") from None
    await asyncio.sleep(0)
    names = {key.lower(): value for key, value in received.items()}
    return Response(server.url + target, status, names, json.loads(content) if content else None)


Connection.send = _send  # type: ignore[assignment, method-assign]
