"""One server for all: the API, the series webhook and the peers of a store, in one process on one port."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from cryptography.hazmat.primitives import serialization  # noqa: F401 - loading it takes too long for an event loop

from asterism.api.credentials import Credentials
from asterism.base.http_limits import Limits
from asterism.base.https_session import fingerprint
from asterism.base.listen_address import CannotServe, ListenAddress
from asterism.cli.fleet import server_process
from asterism.cli.fleet.server_process import ServerPolicy
from asterism.cli.series.series_sync_commands import WebhookSettings
from asterism.core.errors import AsterismError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.core.record import encode
from asterism.core.run.work import Workflow
from asterism.durable import plan_actor, plan_runner
from asterism.durable.plan_submissions import submit_plan
from asterism.fleet.device import agent as device_agent
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.device_policy import DevicePolicy
from asterism.peers.exchange import Exchange
from asterism.peers.invitations import invite
from asterism.peers.peer_client import accept_invitation, client_for
from asterism.peers.private_files import tls_identity
from asterism.peers.registry import PeerRefused
from asterism.series.github.discovery import SeriesMatcher
from asterism.series.github.sync import SyncWorker
from asterism.series.github.webhook import LIMITS, MAX_BODY, WebhookEndpoint
from asterism.server import endpoint
from asterism.server import http_service as service_module
from asterism.server.http_service import HttpService, http_service
from asterism.server.request_guard import SERVER_LIMITS
from asterism.store.memory import MemoryStore
from asterism.store.sqlite import SqliteStore
from tests.cli.local_github import GitHubServer, scenes
from tests.server.server_scenes import server_scene

SECRET = b"a secret of some length"
LOOPBACK = ListenAddress("127.0.0.1", 0)


class Noted:
    """A service that notes which series it has to sync."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[frozenset[str] | None] = asyncio.Queue()

    async def sync(self, only: frozenset[str] | None = None) -> Any:
        self.asked.put_nowait(only)
        return SimpleNamespace(series=[])


def webhook(service: Noted, **options: Any) -> WebhookEndpoint:
    worker = SyncWorker(cast(Any, service), 3600.0)
    return WebhookEndpoint(worker, "acme/rocket", SeriesMatcher(), SECRET, LOOPBACK.limits(LIMITS), **options)


def payload(number: int = 1) -> bytes:
    issue = {"number": number, "title": f"RFC-093-0{number}: part", "state": "closed", "labels": []}
    return json.dumps({"action": "closed", "issue": issue, "repository": {"full_name": "acme/rocket"}}).encode()


def signed(body: bytes, delivery: str = "1", **more: str) -> dict[str, str]:
    signature = hmac.new(SECRET, body, hashlib.sha256).hexdigest()
    told = {"x-hub-signature-256": f"sha256={signature}", "x-github-event": "issues", "x-github-delivery": delivery}
    return {**told, **more}


def client_of(url: str) -> httpx.AsyncClient:
    """A client without TLS: loading the usual certificates takes too long for an event loop."""
    return httpx.AsyncClient(base_url=url, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), trust_env=False)


async def declared(url: str, size: int) -> bytes:
    """The answer to a signed delivery whose body of this size never comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    headers = signed(b"") | {"host": "127.0.0.1", "content-length": str(size)}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST /webhook HTTP/1.1\r\n{head}\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


@asynccontextmanager
async def stores(folder: Path) -> AsyncIterator[tuple[Fleet, Fleet]]:
    kitchen, laptop = [await SqliteStore.open(folder / name) for name in ("kitchen.db", "laptop.db")]
    async with Fleet(kitchen, by="server") as server, Fleet(laptop, by="ann") as guest:
        yield server, guest


def url_for_peers(service: HttpService) -> str:
    return f"https://127.0.0.1:{service.url.rpartition(':')[2]}"


async def exchanged(server: Fleet, guest: Fleet, url: str) -> list[str]:
    """A guest accepts an invitation and sends a run. Returns the workflows of the runs that the server then has."""
    exchange = Exchange(guest)
    await accept_invitation(exchange, await invite(server.store, "laptop", url=url, own_name="kitchen"))
    await guest.create(Workflow("cook", shell="echo soup"))
    async with client_for(guest.store, await exchange.peers.get("kitchen")) as client:
        await exchange.sync("kitchen", client)
    return [run.workflow for run in await server.runs()]


async def test_one_port_answers_the_api_deliveries_and_peers_and_leaves_nothing_behind(tmp_path: Path) -> None:
    service = Noted()
    hook = webhook(service)
    async with stores(tmp_path) as (fleet, guest):
        before = asyncio.all_tasks()
        async with (
            http_service(fleet, LOOPBACK, more=lambda _: [hook.route], peers=True) as server,
            hook.syncing(lambda: None),
            client_of(server.url) as client,
            client_of(server.url) as github,
        ):
            token = (await Credentials(fleet.store).create("ci", ["observe"], by="test")).token
            bearer = {"authorization": f"Bearer {token}"}
            assert (await client.get("/api/v1/me", headers=bearer)).json()["name"] == "ci"
            assert await service.asked.get() is None  # everything, at the beginning
            answer = await github.post("/webhook", content=payload(), headers=signed(payload()))
            assert (answer.status_code, answer.text) == (202, "issue closed: RFC-093\n")
            assert await service.asked.get() == {"RFC-093"}
            assert await exchanged(fleet, guest, url_for_peers(server)) == ["cook"]
            runs = await client.get("/api/v1/runs", headers=bearer)
            assert [run["workflow"] for run in runs.json()["items"]] == ["cook"]
        assert asyncio.all_tasks() <= before
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))


async def test_a_delivery_needs_its_signature_our_host_and_a_small_body(caplog: pytest.LogCaptureFixture) -> None:
    service = Noted()
    hook = webhook(service)
    fleet = Fleet(MemoryStore(), by="server")
    async with (
        fleet,
        http_service(fleet, LOOPBACK, more=lambda _: [hook.route]) as server,
        client_of(server.url) as client,
    ):

        async def delivered(body: bytes = payload(), **headers: str) -> tuple[int, str]:
            answer = await client.post("/webhook", content=body, headers=signed(body) | headers)
            return answer.status_code, answer.text.strip()

        for _ in range(3):
            assert await delivered(**{"x-hub-signature-256": "sha256=" + "0" * 64}) == (401, "the signature is wrong")
        assert caplog.messages.count("refused a delivery with a wrong signature") == 1  # nobody fills the log
        assert (await client.post("/webhook", content=payload())).text == "the signature is missing\n"
        for host in ("evil.example", "127.0.0.1.evil.example"):
            status, text = await delivered(host=host)
            assert (status, "host unknown" in text) == (421, True)
        assert (await delivered(origin="https://evil.example"))[0] == 403  # a page; GitHub sends no origin
        assert b" 413 " in await declared(server.url, MAX_BODY + 1)  # before any of it is read
        assert await delivered() == (202, "issue closed: RFC-093")
        assert await delivered() == (200, "ignored: delivered before")
        assert await delivered(**{"x-github-delivery": "another"}) == (200, "ignored: delivered before")
        assert (await client.get("/webhook")).status_code == 405
    assert service.asked.empty()  # nothing is synced without the worker, and its memory has one request
    assert hook._worker._pending == {"RFC-093"}


@pytest.mark.parametrize("shared", [True, False])
async def test_a_proxy_sends_deliveries_and_other_requests_through_one_connection(shared: bool) -> None:
    """The ablation is a webhook that does not know of the proxy."""
    hook, fleet = webhook(Noted(), shared=shared), Fleet(MemoryStore(), by="server")
    address = LOOPBACK._replace(behind_proxy=True)
    async with fleet, http_service(fleet, address, ["host.example"], more=lambda _: [hook.route]) as service:
        port = service.server.listeners[0]._sock.getsockname()[1]
        token = (await Credentials(fleet.store).create("ci", ["observe"], by="test")).token
        headers = {"authorization": f"Bearer {token}", "host": "host.example"}
        async with client_of(f"http://127.0.0.1:{port}") as client:
            assert (await client.get("/api/v1/me", headers=headers)).status_code == 200
            answer = await client.post("/webhook", content=payload(), headers=signed(payload(), host="host.example"))
            assert answer.status_code == (202 if shared else 400)


async def test_all_clients_of_a_proxy_together_have_more_connections_than_one_client() -> None:
    fleet, limits = Fleet(MemoryStore(), by="server"), Limits(**{**encode(SERVER_LIMITS), "per_client": 2})
    address = LOOPBACK._replace(behind_proxy=True)
    async with fleet, http_service(fleet, address, ["host.example"], limits=limits) as service:
        port = service.server.listeners[0]._sock.getsockname()[1]
        token = (await Credentials(fleet.store).create("ci", ["observe"], by="test")).token
        head = f"GET /api/v1/events HTTP/1.1\r\nHost: host.example\r\nAuthorization: Bearer {token}\r\n\r\n"
        answers, writers = [], []
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head.encode())
            answers.append(await reader.readline())
            writers.append(writer)
        assert set(answers) == {b"HTTP/1.1 200 OK\r\n"}
        for writer in writers:
            writer.close()


async def test_without_options_there_is_neither() -> None:
    async with server_scene() as scene, scene.stranger() as client:
        for path in ("/webhook", "/v1/accept", "/v1/meet"):
            assert (await client.post(path, content=b"{}")).status_code == 404


# -- peers beside others -----------------------------------------------------------------------------------------------


async def certificate_of(url: str, name: str) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = url.removeprefix("https://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=name)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return bytes(certificate)


@pytest.mark.parametrize("peers", [True, False])
async def test_a_server_with_its_own_certificate_shows_peers_that_of_the_store(tmp_path: Path, peers: bool) -> None:
    """Without --peers, a peer sees another certificate than the one in its invitation, and sends nothing."""
    async with stores(tmp_path) as (fleet, guest):
        own = tls_identity(guest.store)  # any certificate but that of the server's store
        address = ListenAddress("127.0.0.1", 0, str(own.path), str(own.path))
        async with http_service(fleet, address, peers=peers) as service:
            url = url_for_peers(service)
            for name in ("127.0.0.1", "host.example"):
                assert fingerprint(await certificate_of(url, name)) == own.fingerprint
            if peers:
                assert await exchanged(fleet, guest, url) == ["cook"]
            else:
                with pytest.raises(PeerRefused, match="not the one in the invitation"):
                    await exchanged(fleet, guest, url)


async def test_a_peer_is_told_that_the_server_does_not_know_its_host(tmp_path: Path) -> None:
    everywhere = ListenAddress("0.0.0.0", 0)
    async with (
        stores(tmp_path) as (fleet, guest),
        http_service(fleet, everywhere, ["kitchen-pc"], peers=True) as service,
    ):
        with pytest.raises(PeerRefused, match=r"answered 421: host unknown: .* --name HOST"):
            await exchanged(fleet, guest, url_for_peers(service))


async def test_what_says_nothing_or_hangs_up_before_it_is_known_keeps_no_place(tmp_path: Path) -> None:
    limits = Limits(**{**encode(SERVER_LIMITS), "head": 1.0})
    async with stores(tmp_path) as (fleet, _), http_service(fleet, LOOPBACK, limits=limits, peers=True) as service:
        port = int(service.url.rpartition(":")[2])
        reader, silent = await asyncio.open_connection("127.0.0.1", port)
        _, gone = await asyncio.open_connection("127.0.0.1", port)
        gone.close()
        assert await reader.read() == b""
        silent.close()
        [listener] = service.server.listeners
        await listener.wait_closed()
        assert not listener.connections.strangers
        async with client_of(service.url) as client:
            assert (await client.get("/api/v1/health")).status_code == 200


async def test_peers_need_a_store_with_a_certificate_that_they_can_see(tmp_path: Path) -> None:
    fleet = Fleet(MemoryStore(), by="server")
    async with fleet:
        with pytest.raises(AsterismError, match="only a SQLite file"):
            await http_service(fleet, LOOPBACK, peers=True).__aenter__()
        with pytest.raises(CannotServe, match="asterism peer serve"):
            await http_service(fleet, LOOPBACK._replace(behind_proxy=True), peers=True).__aenter__()


# -- the command -------------------------------------------------------------------------------------------------------


class Announced:
    """Takes the place of what the command prints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(server_process, "announce", self)

    async def __call__(self, fleet: Fleet, url: str, *, also: dict[str, str], **_: Any) -> None:
        self.addresses.set_result({"url": url, **also})


SERVICE = {
    **{"repository": "acme/rocket", "assignee": "robot", "mode": "enforce", "series_names": (), "by": "cron"},
    **{"pattern": None, "label_pattern": None, "label": None, "assign_with": "auto", "tries": 5, "deadline": None},
    **{"active_label": None, "queued_label": None, "respect_unassign": False, "no_view": True},
    **{"metrics": None, "prometheus": None, "cache": None},
}


def settings() -> WebhookSettings:
    return WebhookSettings(dict(SERVICE), 3600.0, SECRET)


async def test_the_command_syncs_after_a_delivery_and_stops_on_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GitHubServer(scenes.world_of(2)) as github:
        for name, value in scenes.environ(github).items():
            monkeypatch.setenv(name, value)

        async def assigned(number: int) -> bool:
            return await asyncio.to_thread(
                github.wait_for, lambda world: world.assigned_by_series().get("RFC-093") == [number]
            )

        async with stores(tmp_path) as (fleet, guest):
            before, announced = asyncio.all_tasks(), Announced(monkeypatch)
            options: dict[str, Any] = {"local": 0, "policy": ServerPolicy.find(None), "as_json": False}
            options |= {"webhook": settings(), "peers": True}
            serving = asyncio.create_task(server_process.serve_until_signal(fleet, LOOPBACK, [], **options))
            addresses = await announced.addresses
            assert await assigned(1)
            scenes.merged(github, 1)
            async with client_of(addresses["url"]) as client:
                answer = await client.post(addresses["webhook"], content=payload(), headers=signed(payload()))
            assert answer.status_code == 202
            assert await assigned(2)
            assert await exchanged(fleet, guest, addresses["peers"]) == ["cook"]
            signal.raise_signal(signal.SIGTERM)
            assert await serving == 0
            assert asyncio.all_tasks() <= before


async def test_a_worker_that_fails_ends_the_server_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: SyncWorker) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(SyncWorker, "run", fail)
    monkeypatch.setenv("GITHUB_TOKEN", "x")
    async with stores(tmp_path) as (fleet, _):
        before, _announced = asyncio.all_tasks(), Announced(monkeypatch)
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await server_process.serve_until_signal(
                fleet, LOOPBACK, [], local=0, policy=ServerPolicy.find(None), webhook=settings(), as_json=False
            )
        assert asyncio.all_tasks() <= before


@pytest.mark.parametrize("file", [False, True])
async def test_every_device_of_a_server_delivers_notices_under_its_device_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: bool
) -> None:
    """The server itself and the processes of its plans stand for election, and the coordinator delivers."""
    judging: dict[str, DevicePolicy] = {}
    both = asyncio.Event()

    class Recorded(device_agent.Coordinator):
        def __init__(self, fleet: Fleet, name: str, session: str, policy: DevicePolicy, **options: Any) -> None:
            judging[name.partition("@")[0].partition("-")[0]] = policy
            super().__init__(fleet, name, session, policy, **options)
            if len(judging) == 2:
                both.set()

    monkeypatch.setattr(device_agent, "Coordinator", Recorded)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    if file:
        (tmp_path / "asterism").mkdir()
        (tmp_path / "asterism" / "policy.yaml").write_text("commands: [echo]\n")
    policy = ServerPolicy.find(None)
    assert policy.work.everything is not file
    async with stores(tmp_path) as (fleet, _):
        plan = Constellation("p")
        plan.add(Task("a", argv=["true"]))
        await submit_plan(fleet, plan)
        announced = Announced(monkeypatch)
        serving = asyncio.create_task(
            server_process.serve_until_signal(fleet, LOOPBACK, [], local=1, policy=policy, as_json=False)
        )
        await announced.addresses
        await both.wait()
        signal.raise_signal(signal.SIGTERM)
        assert await serving == 0
    assert judging.keys() == {"server", "p"}
    assert all(
        notices_policy is policy.notices and notices_policy.only_public is not file
        for notices_policy in judging.values()
    )


# -- stopping ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "status", "name"), [("POST", 504, "answer-lost"), ("GET", 503, "server-stops")])
async def test_a_request_that_is_not_done_when_the_server_stops_gets_a_problem_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, status: int, name: str
) -> None:
    begun = asyncio.Event()

    async def never(*args: Any, **named: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(endpoint, "STOP_GRACE", 0.1)
    monkeypatch.setattr(plan_actor, "edit_plan", never)
    monkeypatch.setattr(Fleet, "coordinator", never)
    async with stores(tmp_path) as (fleet, _):
        plan = Constellation("p")
        plan.add(Task("a", argv=["true"]))
        await submit_plan(fleet, plan)
        token = (await Credentials(fleet.store).create("ann", ["admin"], by="test")).token

        async def ask(url: str) -> httpx.Response:
            async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60.0) as client:
                if method == "GET":
                    return await client.get(f"{url}/api/v1/devices")
                edits = [{"op": "remove_task", "task_id": "a"}]
                return await client.post(f"{url}/api/v1/plans/p/edits", json={"edits": edits})

        async with http_service(fleet, LOOPBACK) as service:
            asking = asyncio.create_task(ask(service.url))
            waiting = asyncio.create_task(begun.wait())
            await asyncio.wait([waiting, asking], return_when=asyncio.FIRST_COMPLETED)
            assert not asking.done()
        answer = await asking
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert answer.json()["type"] == f"urn:asterism:problem:{name}"


async def test_requests_are_answered_before_the_plans_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []

    def recorded(name: str, inner: Any) -> Any:
        @asynccontextmanager
        async def recording(*args: Any, **named: Any) -> AsyncIterator[Any]:
            async with inner(*args, **named) as value:
                yield value
            stopped.append(name)

        return recording

    monkeypatch.setattr(service_module, "http_service", recorded("requests", http_service))
    monkeypatch.setattr(plan_runner, "runs_plans", recorded("plans", plan_runner.runs_plans))
    async with stores(tmp_path) as (fleet, _):
        announced = Announced(monkeypatch)
        serving = asyncio.create_task(
            server_process.serve_until_signal(
                fleet, LOOPBACK, [], local=0, policy=ServerPolicy.find(None), as_json=False
            )
        )
        await announced.addresses
        signal.raise_signal(signal.SIGTERM)
        assert await serving == 0
    assert stopped == ["requests", "plans"]
