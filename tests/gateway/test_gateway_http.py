"""The gateway over HTTP and TLS: messages, large values, refusals, limits, and what a device trusts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette

from asterism.api.credentials import Credentials
from asterism.base.http_limits import Bodies, Limits
from asterism.base.listen_address import ListenAddress
from asterism.core.attempt_log import LogChunk
from asterism.core.json_values import MAX_DEPTH
from asterism.core.record import encode
from asterism.core.run.work import Workflow
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.device_policy import DevicePolicy
from asterism.gateway import enrolment, gateway_messages
from asterism.gateway.device_key import DeviceKey, EnrolmentFile
from asterism.gateway.enrolment import invite
from asterism.gateway.gateway_connection import GatewayAccess
from asterism.gateway.gateway_messages import GatewayRefused, log_parts
from asterism.gateway.gateway_transport import (
    HttpTransport,
    InvalidServer,
    NotEnrolled,
    enrol,
    enrolled_access,
    server_url,
)
from asterism.peers.private_files import _new_identity
from asterism.server import gateway_routes
from asterism.server.gateway_routes import MAX_FAILURES, MONITOR_RETRY, GatewayRoutes, monitor_beside
from asterism.server.http_service import endpoints, http_service
from asterism.server.request_guard import SERVER_LIMITS
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutLog, StoredChunk
from asterism.store.sqlite import SqliteStore
from asterism.store.store_errors import StoreUnavailable
from tests.execution.plugin_packages import greetings
from tests.gateway.memory_outbox import MemoryOutbox
from tests.process_scenes import PATIENCE

LARGE = "x" * 200_000

endpoints()  # the first time is slow, since it makes the schemas


async def echo(text: str) -> dict[str, Any]:
    print("heard", len(text))
    return {"text": text}


async def value(kind: str) -> Any:
    if kind == "digits":
        return 10**4000
    deep: Any = 1
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    return deep


async def talk(lines: int) -> int:
    print("\n".join(f"line {number} \x01é" for number in range(lines)))
    return lines


async def divide() -> float:
    return 1 / 0


__all__ = ["greetings"]

ECHO = Workflow("echo", call="tests.gateway.test_gateway_http:echo")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Fleet, httpx.ASGITransport]]:
    """A fleet, and its gateway as an application."""
    async with Fleet(MemoryStore()) as fleet:
        routes = GatewayRoutes(fleet, Bodies(Limits()))
        yield fleet, httpx.ASGITransport(Starlette(routes=routes.routes))
        await routes.close()


@asynccontextmanager
async def working(agent: DeviceAgent) -> AsyncIterator[None]:
    task = asyncio.create_task(agent.run())
    await agent.joined.wait()
    yield
    agent.drain()
    await task


async def test_a_device_over_http_does_the_work_of_its_plug_ins(
    greetings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code that names capabilities leaves out the plug-ins that it does not name."""
    flow = Workflow("greet", plugin={"greet": {"name": "{who}"}})
    async with asyncio.timeout(PATIENCE), served() as (fleet, app):
        transport = HttpTransport("http://server", inner=app)
        keys = DeviceKey.new(), DeviceKey.new()
        await enrol(transport, keys[0], "lab-1", await invite(fleet.store, name="*", can=["gpu"]))
        await enrol(transport, keys[1], "lab-2", await invite(fleet.store, name="*"))
        async with (
            working(DeviceAgent(GatewayAccess(transport, keys[0], MemoryOutbox()), "lab-1", can=["gpu"])),
            working(DeviceAgent(GatewayAccess(transport, keys[1], MemoryOutbox()), "lab-2")),
        ):
            can = {session.device: session.can for session in await fleet.devices()}
            assert can == {"lab-1": {"gpu"}, "lab-2": {"plugin:greet", "plugin:wait"}}
            run = await fleet.wait((await fleet.create(flow, {"who": "Ann"})).id)
            assert (run.device, run.output) == ("lab-2", "top-secret-hello Ann")
        await transport.close()


async def test_a_device_executes_runs_over_http_with_large_values_and_its_output() -> None:
    async with served() as (fleet, app):
        transport, key = HttpTransport("http://server", inner=app), DeviceKey.new()
        await enrol(transport, key, "lab-1", await invite(fleet.store, name="*"))
        async with working(DeviceAgent(GatewayAccess(transport, key, MemoryOutbox()), "lab-1", slots=3)):
            small = await fleet.create(ECHO, {"text": "hello"})
            large = await fleet.create(ECHO, {"text": LARGE})
            assert set(large.input) == {"$blob", "size"}
            ended = [await fleet.wait(run.id) for run in (small, large)]
            assert [await fleet.output(run) for run in ended] == [{"text": "hello"}, {"text": LARGE}]
            assert set(ended[1].output) == {"$blob", "size"}
            [log] = await fleet.logs(small.id)
            assert log.text == "heard 5\n"
        assert [session.state for session in await fleet.devices()] == ["ended"]
        await transport.close()


@asynccontextmanager
async def device(fleet: Fleet, app: httpx.ASGITransport, **options: Any) -> AsyncIterator[DeviceAgent]:
    """A device that has joined over HTTP."""
    transport, key = HttpTransport("http://server", inner=app), DeviceKey.new()
    await enrol(transport, key, "lab-1", await invite(fleet.store, name="*"))
    agent = DeviceAgent(GatewayAccess(transport, key, MemoryOutbox()), "lab-1", **options)
    async with working(agent):
        yield agent
    await transport.close()


async def test_the_traceback_of_a_function_comes_through_the_gateway() -> None:
    async with served() as (fleet, app), device(fleet, app):
        run = await fleet.create(Workflow("divide", call="tests.gateway.test_gateway_http:divide"))
        assert (await fleet.wait(run.id)).error == "ZeroDivisionError: division by zero"
        [log] = await fleet.logs(run.id)
        assert [line.stream for line in log.lines] == ["traceback"] * len(log.lines)
        assert "in divide\n" in log.text


async def test_a_device_learns_of_a_raised_limit_with_its_next_heartbeat() -> None:
    async with served() as (fleet, app):
        await fleet.configure(most=1000)
        transport, key = HttpTransport("http://server", inner=app), DeviceKey.new()
        await enrol(transport, key, "lab-1", await invite(fleet.store, name="lab-1"))
        agent = DeviceAgent(GatewayAccess(transport, key, MemoryOutbox()), "lab-1")
        async with working(agent):
            assert (await agent.connection.value_limit()).size == 1000
            await fleet.configure(most=2000)
            await agent.connection.beat({}, [])
            assert (await agent.connection.value_limit()).size == 2000
        await transport.close()


@pytest.mark.parametrize("kind", ["digits", "deep"])
async def test_what_a_store_accepts_as_a_result_passes_the_gateway(kind: str) -> None:
    async with served() as (fleet, app), device(fleet, app):
        run = await fleet.create(Workflow("value", call="tests.gateway.test_gateway_http:value"), {"kind": kind})
        assert await fleet.output(await fleet.wait(run.id)) == await value(kind)


async def test_a_message_that_is_refused_does_not_take_the_results_of_others_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_routes, "MAX_BODY", 20_000)
    async with served() as (fleet, app), device(fleet, app, slots=8):
        runs = [await fleet.create(ECHO, {"text": "x" * size}) for size in (*[8_000] * 5, 30_000)]
        ended = [await fleet.wait(run.id) for run in runs]
        assert [len(run.output["text"]) for run in ended[:5]] == [8_000] * 5
        assert (ended[5].status, ended[5].error) == ("failed", "its result cannot be stored")


async def test_a_long_log_is_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_messages, "LARGEST_LOG_PART", 6_000)
    monkeypatch.setattr(gateway_routes, "MAX_BODY", 20_000)
    async with served() as (fleet, app), device(fleet, app):
        run = await fleet.create(Workflow("talk", call="tests.gateway.test_gateway_http:talk"), {"lines": 2_000})
        assert (await fleet.wait(run.id)).output == 2_000
        [log] = await fleet.logs(run.id)
        assert log.text == "".join(f"line {number} \x01é\n" for number in range(2_000))


@given(st.lists(st.lists(st.text("ab\né", max_size=60), min_size=1, max_size=4), min_size=1, max_size=6), st.data())
def test_parts_of_a_log_are_its_lines_and_lines_are_cut_at_the_same_places_again(
    texts: list[list[str]], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway_messages, "LARGEST_LOG_PART", 600)
        chunks, first = [], 1
        for several in texts:
            chunk = LogChunk.from_json(first, [(1.0, "stdout", text) for text in several])
            chunks.append(StoredChunk(1, first, chunk.line_count, chunk.to_json()))
            first += chunk.line_count
        parts = log_parts(PutLog("r", 1, chunks, (3, 5)))
        pieces = [piece for part in parts for piece in part.chunks]
        assert [line for piece in pieces for line in _lines(piece)] == [
            line for chunk in chunks for line in _lines(chunk)
        ]
        assert all(piece.lines == len(_lines(piece)) for piece in pieces)
        assert [piece.first + piece.lines for piece in pieces] == [*(piece.first for piece in pieces[1:]), first]
        assert [part.drop for part in parts] == [*[None] * (len(parts) - 1), (3, 5)]
        longer = [*chunks[0].value, [2.0, "stdout", data.draw(st.text("ab\n", max_size=200))]]
        once, again = (
            log_parts(PutLog("r", 1, [StoredChunk(1, 1, 0, content)])) for content in (chunks[0].value, longer)
        )
        assert _firsts(once) <= _firsts(again), "what was written before is replaced"


def _firsts(parts: list[PutLog]) -> set[int]:
    return {chunk.first for part in parts for chunk in part.chunks}


def _lines(chunk: StoredChunk) -> list[str]:
    return [line for _, _, text in chunk.value for line in text.split("\n")]


async def test_a_device_with_many_slots_takes_runs() -> None:
    async with served() as (fleet, app), device(fleet, app, slots=1_500):
        run = await fleet.create(ECHO, {"text": "hello"})
        assert (await fleet.wait(run.id)).output == {"text": "hello"}


async def post(app: httpx.ASGITransport, operation: str, content: bytes, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=app, base_url="http://server") as client:
        return await client.post(f"/gateway/v1/{operation}", content=content, headers=headers)


async def test_refusals_are_problem_documents() -> None:
    async with served() as (_, app):
        answer = await post(app, "own", b"{}")
        assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
        assert answer.json()["kind"] == "expired"
        assert (await post(app, "own", b"{}", authorization="Bearer astd_x.y")).status_code == 401
        assert (await post(app, "enrol", b"{")).status_code == 400
        assert (await post(app, "enrol", b"[]")).status_code == 400
        assert (await post(app, "enrol", b"[" * 1500 + b"]" * 1500)).status_code == 400
        assert (await post(app, "enrol", b"{" + b" " * 5000 + b"}")).status_code == 413
        assert (await post(app, "token", b'{"device": 1}')).json()["kind"] == "invalid"


async def test_an_address_with_many_wrong_codes_has_to_wait_and_a_right_one_counts_at_once() -> None:
    async with served() as (fleet, app):
        key = DeviceKey.new()
        transport = HttpTransport("http://server", inner=app)
        for _ in range(MAX_FAILURES):
            with pytest.raises(GatewayRefused, match="this code is unknown"):
                await enrol(transport, key, "lab-1", "astc_guess")
        with pytest.raises(StoreUnavailable, match="too many wrong credentials"):
            await enrol(transport, key, "lab-1", "astc_guess")
        await enrol(transport, key, "lab-1", await invite(fleet.store, name="*"))
        await transport.close()


async def log_in(app: httpx.AsyncBaseTransport, key: DeviceKey, name: str, session: str) -> httpx.Response:
    challenge = (await post(app, "challenge", b"{}")).json()["challenge"]
    body = {
        "device": name,
        "session": session,
        "challenge": challenge,
        "signature": key.sign("token", challenge, session),
    }
    return await post(app, "token", json.dumps(body).encode())


async def test_wrong_credentials_of_others_behind_the_same_address_keep_no_device_out() -> None:
    async with served() as (fleet, app):
        transport, key = HttpTransport("http://server", inner=app), DeviceKey.new()
        await enrol(transport, key, "lab-1", await invite(fleet.store, name="*"))
        statuses = set()
        for _ in range(MAX_FAILURES + 2):
            statuses.add((await post(app, "beat", b"{}", authorization="Bearer astd_x.y")).json()["kind"])
            answer = await log_in(app, DeviceKey.new(), "unknown", "s")  # such as one of a restored store
        assert (statuses, answer.status_code) == ({"expired"}, 429), "a token that is over is answered at once"
        answer = await log_in(app, key, "lab-1", "s1")
        assert answer.status_code == 200
        hello = await post(app, "hello", b"{}", authorization=f"Bearer {answer.json()['token']}")
        assert hello.status_code == 200
        await transport.close()


async def test_challenges_of_strangers_push_out_none_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "_SHOWN", 3)
    async with served() as (fleet, app):
        transport, key = HttpTransport("http://server", inner=app), DeviceKey.new()
        await enrol(transport, key, "lab-1", await invite(fleet.store, name="*"))
        challenge = (await post(app, "challenge", b"{}")).json()["challenge"]
        for _ in range(5):
            assert (await log_in(app, DeviceKey.new(), "unknown", "s")).status_code == 401
        signature = key.sign("token", challenge, "s1")
        body = {"device": "lab-1", "session": "s1", "challenge": challenge, "signature": signature}
        assert [(await post(app, "token", json.dumps(body).encode())).status_code for _ in range(2)] == [200, 401]
        await transport.close()


JOIN = {"host": "h", "can": [], "slots": 1, "backlog": 0, "timeout": 90.0, "profile": {}}


async def test_devices_that_wait_behind_a_proxy_keep_nobody_out() -> None:
    limits = Limits(**{**encode(SERVER_LIMITS), "per_client": 2})
    address = ListenAddress("127.0.0.1", 0, behind_proxy=True)
    fleet = Fleet(MemoryStore())
    async with fleet, http_service(fleet, address, ["host.example"], limits=limits) as service:
        port = service.server.listeners[0]._sock.getsockname()[1]
        heads = {"Host": "host.example"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=heads, timeout=30.0) as client:

            async def ask(device: str, operation: str, body: Any) -> httpx.Response:
                heads = {"Authorization": f"Bearer {tokens[device]}"}
                return await client.post(f"/gateway/v1/{operation}", json=body, headers=heads)

            tokens = {}
            for name in ("d1", "d2", "d3", "d4", "d5"):
                key = DeviceKey.new()
                await enrolment.enrol(fleet.store, await invite(fleet.store, name="*"), name, key.public)
                challenge = (await client.post("/gateway/v1/challenge", json={})).json()["challenge"]
                body = {"device": name, "session": name, "challenge": challenge}
                body["signature"] = key.sign("token", challenge, name)
                tokens[name] = (await client.post("/gateway/v1/token", json=body)).json()["token"]
                assert (await ask(name, "join", JOIN)).status_code == 200
                assert (await ask(name, "wait", {"seconds": 0})).json() == {"woken": True}
            waits = [asyncio.create_task(ask(name, "wait", {"seconds": 40})) for name in tokens]
            places = service.server.listeners[0].connections.admitted
            while sum(place.busy for place in places.values()) < len(waits):
                await asyncio.sleep(0.01)
                assert not any(wait.done() for wait in waits), "it was refused"
            assert (await ask("d1", "beat", {"profile": {}, "reports": []})).json()["alive"]
            person = (await Credentials(fleet.store).create("ci", ["observe"], by="test")).token
            me = await client.get("/api/v1/me", headers={"Authorization": f"Bearer {person}"})
            assert me.status_code == 200
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


async def test_a_device_has_a_limit_of_requests_at_once() -> None:
    async with Fleet(MemoryStore()) as fleet:
        routes = GatewayRoutes(fleet, Bodies(Limits()), shared=True, requests_at_once=1)
        app = httpx.ASGITransport(Starlette(routes=routes.routes))
        transport = HttpTransport("http://server", inner=app)
        tokens = {}
        for name in ("lab-1", "lab-2"):
            key = DeviceKey.new()
            await enrol(transport, key, name, await invite(fleet.store, name="*"))
            tokens[name] = f"Bearer {(await log_in(app, key, name, name)).json()['token']}"
            await post(app, "join", json.dumps(JOIN).encode(), authorization=tokens[name])
            await post(app, "wait", b'{"seconds": 0}', authorization=tokens[name])
        waiting = asyncio.create_task(post(app, "wait", b'{"seconds": 40}', authorization=tokens["lab-1"]))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        refused = await post(app, "hello", b"{}", authorization=tokens["lab-1"])
        assert (refused.status_code, "1 requests of device lab-1" in refused.json()["detail"]) == (429, True)
        assert (await post(app, "hello", b"{}", authorization=tokens["lab-2"])).status_code == 200
        routes.stop_waiting()
        assert (await waiting).status_code == 200
        assert (await post(app, "hello", b"{}", authorization=tokens["lab-1"])).status_code == 200
        await transport.close()
        await routes.close()


@pytest.mark.parametrize(
    ("text", "url"),
    [("https://host:7400/", "https://host:7400"), ("http://127.0.0.1:7400", "http://127.0.0.1:7400")],
)
def test_addresses_of_servers(text: str, url: str) -> None:
    assert server_url(text) == url


@pytest.mark.parametrize(
    "text", ["host:7400", "ftp://host", "http://host:7400", "https://", "https://host/path", "https://me:word@host"]
)
def test_an_address_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(InvalidServer) as refused:
        server_url(text)
    assert "word" not in str(refused.value)


async def test_a_device_trusts_the_certificate_with_the_given_fingerprint_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "identity.pem"
    file.write_bytes(_new_identity())
    begin = file.read_text().index("-----BEGIN CERTIFICATE-----")
    right = hashlib.sha256(ssl.PEM_cert_to_DER_cert(file.read_text()[begin:])).hexdigest()
    address = ListenAddress("127.0.0.1", 0, str(file), str(file))
    async with Fleet(MemoryStore()) as fleet, http_service(fleet, address) as service:
        code = await invite(fleet.store, name="*")
        assert service.url.startswith("https://")
        for wrong in (None, "0" * 64):
            with pytest.raises(GatewayRefused, match="certificate"):
                await enrolled_access(service.url, "lab-1", code, wrong)
        access = await enrolled_access(service.url, "lab-1", code, right)
        async with working(DeviceAgent(access, "lab-1")):
            run = await fleet.create(ECHO, {"text": "over TLS"})
            assert (await fleet.wait(run.id)).output == {"text": "over TLS"}
        await access.transport.close()
        again = await enrolled_access(service.url, "lab-1", None)  # neither code nor fingerprint
        await again.transport.send("challenge", {}, None, timeout=5.0)
        await again.transport.close()


async def test_a_device_without_a_code_is_told_how_to_get_one() -> None:
    with pytest.raises(NotEnrolled, match="asterism device invite"):
        await enrolled_access("http://127.0.0.1:1", "lab-1", None)


async def test_a_key_is_on_disk_before_the_code_is_sent() -> None:
    """If the answer to the enrolment is lost, the same key asks again."""
    with pytest.raises(StoreUnavailable):
        await enrolled_access("http://127.0.0.1:1", "lab-1", "astc_x")
    first = EnrolmentFile("http://127.0.0.1:1", "lab-1").read()
    with pytest.raises(StoreUnavailable):
        await enrolled_access("http://127.0.0.1:1", "lab-1", "astc_x")
    second = EnrolmentFile("http://127.0.0.1:1", "lab-1").read()
    assert first is not None
    assert second is not None
    assert (first.enrolled, first.key.public) == (False, second.key.public)


async def test_a_server_that_stops_answers_the_devices_that_wait() -> None:
    async with Fleet(MemoryStore()) as fleet:
        async with http_service(fleet, ListenAddress("127.0.0.1", 0)) as service:
            access = await enrolled_access(service.url, "lab-1", await invite(fleet.store, name="*"))
            agent = DeviceAgent(access, "lab-1")
            task = asyncio.create_task(agent.run())
            await agent.joined.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await access.transport.close()


def test_a_key_does_not_show_in_text() -> None:
    key = DeviceKey.new()
    assert key.to_text() not in repr(key)
    assert json.loads(json.dumps(key.public)) == key.public


# -- odd messages ------------------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0, -1, 1, True, 1.5, 2**53, 2**63, 10**18, 10**30, 10**400, -(10**400), 1e308])
ODD = st.one_of(NUMBERS, st.none(), st.text(max_size=3), st.sampled_from(["\0", "\ud800", "", "x" * 300]))
VALUES = st.recursive(ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner))
LINES = st.lists(st.tuples(ODD, st.just("stdout"), st.just("x")) | VALUES, max_size=2)
LOGS = st.fixed_dictionaries(
    {"chunks": st.lists(st.tuples(ODD, LINES), max_size=2) | VALUES, "drop": st.none() | st.tuples(ODD, ODD) | VALUES}
)
KIND = f"echo@{ECHO.work.digest}"
FIELDS = {
    "host": "h",
    "can": [],
    "slots": 1,
    "backlog": 0,
    "timeout": 90.0,
    "profile": {"a": 1},
    "limit": 1,
    "free": 1,
    "kinds": {KIND: 1.0},
    "name": "echo",
    "version": 1,
    "workflow": "echo",
    "why": "rest",
    "device": "lab-1",
    "session": "s1",
    "challenge": "c",
    "signature": "s",
    "code": "c",
    "key": "k",
}
OPERATIONS = (
    *("enrol", "challenge", "token", "hello", "join", "output", "beat", "wait", "own", "take", "steps", "fetch"),
    *("standing", "completions", "health", "blob", "drain"),
)


def odd_messages(grant: str) -> st.SearchStrategy[dict[str, Any]]:
    """Messages with the usual fields, some of them with odd values, and with reports and steps on a granted run."""
    changes = st.dictionaries(
        st.sampled_from([*FIELDS, "run", "above", "held", "stale", "replace"]), VALUES, max_size=2
    )
    kinds = st.dictionaries(st.just(KIND), ODD, min_size=1)
    about = {"grant": st.just(grant), "log": LOGS, "tail": st.just(""), "progress": st.none() | st.tuples(ODD, ODD)}
    step = {**about, "do": st.sampled_from(["claim", "start", "complete", "fail", "disown"]), "output": VALUES}
    more = st.fixed_dictionaries(
        {"kinds": kinds, "reports": st.lists(st.fixed_dictionaries(about), max_size=2)},
        optional={"steps": st.lists(st.fixed_dictionaries(step), max_size=2)},
    )
    return st.builds(lambda change, two: {**FIELDS, "seconds": 0, **two, **change}, changes, more)


@pytest.mark.parametrize("examples", [20, pytest.param(400, marks=pytest.mark.long)])
async def test_odd_messages_of_devices_are_no_errors_of_the_server(tmp_path: Path, examples: int) -> None:
    """As many as are found quickly, over a store with limits of its own."""
    store = await SqliteStore.open(tmp_path / "fleet.db")
    async with Fleet(store) as fleet:
        routes = GatewayRoutes(fleet, Bodies(Limits()))
        app = httpx.ASGITransport(Starlette(routes=routes.routes))
        transport, key = HttpTransport("http://server", inner=app), DeviceKey.new()
        await enrol(transport, key, "lab-1", await invite(store, name="*"))
        bearer = f"Bearer {(await log_in(app, key, 'lab-1', 's1')).json()['token']}"
        await post(app, "join", json.dumps(JOIN).encode(), authorization=bearer)
        for _ in range(3):
            await fleet.create(ECHO, {"text": "hello"})
        order = json.dumps({"limit": 1, "free": 1, "kinds": {KIND: 10**400}}).encode()
        answer = await post(app, "take", order, authorization=bearer)
        assert answer.status_code == 200, answer.text
        taken = answer.json()["runs"]
        messages = odd_messages(taken[0][1])
        drawn: list[tuple[str, dict[str, Any]]] = []
        rows = st.tuples(st.sampled_from(OPERATIONS), messages)

        @settings(max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(rows)
        def collect(row: tuple[str, dict[str, Any]]) -> None:
            drawn.append(row)

        log = {"chunks": [[10**30, [[1.0, "stdout", "x"]]]], "drop": None}
        known = [
            ("beat", {"reports": [{"grant": taken[0][1], "tail": "", "log": log}]}),
            ("steps", {"steps": [{"do": "start", "grant": taken[0][1], "log": log}]}),
        ]
        await asyncio.to_thread(collect)  # drawing takes long
        for operation, message in [*known, *drawn]:
            answer = await post(app, operation, json.dumps(message).encode(), authorization=bearer)
            assert answer.status_code < 500, (operation, message, answer.text)
        await transport.close()
        await routes.close()
    await store.close()


# -- the monitor of a server -------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_second_server_monitors_when_the_first_stops() -> None:
    store = MemoryStore()
    name = f"server-{socket.gethostname()}"
    async with Fleet(store) as first, Fleet(store) as second:
        agent = DeviceAgent(first, name, slots=0)
        task = asyncio.create_task(agent.run())
        await agent.joined.wait()
        before = [session.id for session in await second.devices() if session.state == "open"]
        async with monitor_beside(second, DevicePolicy.open()):
            await asyncio.sleep(3 * MONITOR_RETRY)
            assert [session.id for session in await second.devices() if session.state == "open"] == before
            agent.drain()
            await task
            await asyncio.sleep(3 * MONITOR_RETRY)
            [after] = [session.id for session in await second.devices() if session.state == "open"]
            assert after not in before
