"""Requests of tasks and notifications cannot be turned against the network of a device: addresses, names, redirects."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpcore
import pytest

from asterism.base.secret_mask import Mask
from asterism.execution.http_requests import NoAnswer
from asterism.fleet.policy import judged_requests
from asterism.fleet.policy.device_policy import DevicePolicy, PolicyForbids, Rules
from asterism.fleet.policy.judged_requests import request

METADATA = "169.254.169.254"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        target = self.path.partition("?to=")[2]
        self.send_response(302 if target else 200)
        if target:
            self.send_header("location", target)
        self.end_headers()
        self.wfile.write(b"inside")

    do_POST = do_GET

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def inside() -> Iterator[Any]:
    """A server on the loopback that no work may reach."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.asked, made.port = [], made.server_address[1]  # type: ignore[attr-defined]
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def resolving(monkeypatch: pytest.MonkeyPatch, **answers: list[list[str]]) -> None:
    """How the device resolves names: ``evil_example_org`` stands for evil.example.org. Each answer is given once, the
    last one from then on."""
    left = {name.replace("_", "."): list(several) for name, several in answers.items()}

    async def resolve(loop: Any, host: Any, port: Any, **options: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        several = left.get(name, [[name]])
        addresses = several.pop(0) if len(several) > 1 else several[0]
        families = [(socket.AF_INET6 if ":" in address else socket.AF_INET, address) for address in addresses]
        return [(family, socket.SOCK_STREAM, 6, "", (address, port)) for family, address in families]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)


def policy(*hosts: str) -> DevicePolicy:
    return DevicePolicy(Rules(hosts=hosts), "policy.yaml")


async def get(url: str, *hosts: str) -> Any:
    return await request({"url": url}, {}, policy(*hosts), Mask())


@pytest.mark.parametrize(
    "url",
    [
        *(f"http://{METADATA}/latest/meta-data", "http://127.0.0.1/", "http://[::1]/", "http://0.0.0.0/"),
        *("http://127.1/", "http://0x7f000001/", "http://2130706433/", "http://[::ffff:127.0.0.1]/"),
        *("http://localhost/", "http://metadata.google.internal/", "file:///etc/passwd", "gopher://api.example.org/"),
        *("http://api.example.org@127.0.0.1/", "http://api.example.org.evil.test/", "http://api.example.org:22/"),
    ],
)
async def test_only_listed_hosts_are_asked(url: str) -> None:
    with pytest.raises((PolicyForbids, NoAnswer)):
        await get(url, "api.example.org", "*.example.org")


@pytest.mark.parametrize("host", ["notices.example.org", None])
@pytest.mark.parametrize("address", ["127.0.0.1", METADATA, "10.0.0.7", "::1", "fd00::1", "::ffff:127.0.0.1"])
async def test_a_server_without_a_policy_file_reaches_no_private_address(
    host: str | None, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a name nor by the address itself, nor through a proxy, which would resolve the name itself."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    if host is not None:
        resolving(monkeypatch, notices_example_org=[["93.184.216.34", address]])
    url = f"http://{host or (f'[{address}]' if ':' in address else address)}/"
    with pytest.raises(PolicyForbids, match="is not public"):
        await request({"url": url}, {}, DevicePolicy.without_file(), Mask())


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", METADATA, "10.0.0.7", "192.168.1.1", "172.16.0.1", "100.64.0.1", "0.0.0.0", "224.0.0.1"),
        *("::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
        *("::127.0.0.1", "64:ff9b:1::a00:7", "::ffff:0:127.0.0.1", "5f00::1"),
    ],
)
async def test_a_name_that_a_pattern_allows_reaches_no_private_address(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, evil_example_org=[[address]])
    with pytest.raises(PolicyForbids, match="is not public") as refused:
        await get("http://evil.example.org/", "*.example.org")
    assert not refused.value.begun


async def test_one_private_address_among_public_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, evil_example_org=[["93.184.216.34", "127.0.0.1"]])
    with pytest.raises(PolicyForbids, match=r"127\.0\.0\.1"):
        await get("http://evil.example.org/", "*.example.org")


async def test_a_name_that_changes_its_address_gets_the_connection_that_was_judged(
    inside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, evil_example_org=[["93.184.216.34"], ["127.0.0.1"]])
    connected = []

    async def connect(self: Any, host: str, port: int, **options: Any) -> Any:
        connected.append(host)
        raise httpcore.ConnectError("no network here")

    monkeypatch.setattr(httpcore._backends.auto.AutoBackend, "connect_tcp", connect)
    with pytest.raises(NoAnswer):
        await get(f"http://evil.example.org:{inside.port}/", "*.example.org:*")
    assert connected == ["93.184.216.34"]
    assert inside.asked == []


async def test_a_redirect_to_a_name_with_a_private_address_is_not_followed(
    inside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, first_example_org=[["127.0.0.1"]], evil_example_org=[["127.0.0.1"]])
    target = f"http://evil.example.org:{inside.port}/secret"
    with pytest.raises(PolicyForbids, match=r"evil\.example\.org") as refused:
        await get(f"http://first.example.org:{inside.port}/?to={target}", "first.example.org:*", "*.example.org:*")
    assert refused.value.begun
    assert inside.asked == [f"/?to={target}"]


@pytest.mark.parametrize("entry", ["host.example.org:*", "127.0.0.0/8:*", "*:*"])
async def test_a_listed_name_or_network_may_be_private(
    inside: Any, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, host_example_org=[["127.0.0.1"]])
    assert await get(f"http://host.example.org:{inside.port}/", entry, "*.example.org:*") == "inside"


async def test_without_the_judged_connections_a_name_reaches_the_loopback(
    inside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ablation: the name alone is allowed, so only the address can refuse."""
    resolving(monkeypatch, evil_example_org=[["127.0.0.1"]])
    monkeypatch.setattr(judged_requests, "judge_connections", lambda *_: None)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *more, **named: [(2, 1, 6, "", ("127.0.0.1", port))])
    assert await get(f"http://evil.example.org:{inside.port}/", "*.example.org:*") == "inside"


def test_a_policy_without_patterns_resolves_nothing() -> None:
    assert not policy("api.example.org", "10.0.0.0/8", "*").judges_addresses
    assert not DevicePolicy.open().judges_addresses
    assert policy("*.example.org").judges_addresses
