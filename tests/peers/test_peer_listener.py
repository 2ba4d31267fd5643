"""The listener for peers: TLS only, time limits, and listen addresses."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from asterism.base.http_limits import Limits
from asterism.base.listen_address import CannotServe
from asterism.core.errors import AsterismError
from asterism.peers import peer_server
from asterism.peers.exchange import PeerUnreachable
from asterism.peers.peer_server import open_socket, socket_url
from tests.cli.peer_server_fixtures import connected, serving_peer, trusting

# -- the connection ----------------------------------------------------------------------------------------------------


async def hung_up(reader: asyncio.StreamReader) -> None:
    """Wait until the other side hangs up, and check that it sent nothing."""
    with suppress(ConnectionResetError):
        assert await reader.read() == b""


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def test_a_client_without_tls_is_not_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving_peer(tmp_path) as scene:
        reader, writer = await connected(scene.url)
        writer.write(b"GET /v1/meet HTTP/1.1\r\nhost: x\r\n\r\n")
        with suppress(ConnectionResetError):
            assert not (await reader.read()).startswith(b"HTTP")
        writer.close()
        async with scene.caller(await scene.token()) as caller:  # other clients are answered
            await caller.send({})
        assert scene.hearer.heard == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene:
        context = trusting()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(
            OSError, match=r"TLSV1_ALERT_PROTOCOL_VERSION|reset by peer|^$"
        ):  # an alert, or a closed connection
            await connected(scene.url, context)


async def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    async with serving_peer(tmp_path, Limits(head=0.05)) as scene:
        for request in (b"", b"POST /v1/meet HTTP/1.1\r\nhost: x\r\n"):
            reader, writer = await connected(scene.url, trusting())
            writer.write(request)
            await hung_up(reader)
            await close(writer)


async def test_an_unfinished_tls_handshake_is_closed(tmp_path: Path) -> None:
    async with serving_peer(tmp_path, Limits(handshake=0.05)) as scene:
        reader, writer = await connected(scene.url)
        await hung_up(reader)
        await close(writer)


async def test_the_server_stops_despite_an_open_connection(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as there:
        caller = there.caller(await there.token())
        await caller.send({})
    with pytest.raises(PeerUnreachable):
        await caller.send({})
    await caller.close()


# -- listen addresses --------------------------------------------------------------------------------------------------


def test_a_port_alone_listens_on_loopback(tmp_path: Path) -> None:
    with open_socket("0") as sock:
        assert socket_url(sock).startswith("https://127.0.0.1:")
    with open_socket("[::1]:0") as sock:
        assert socket_url(sock).startswith("https://[::1]:")
    with open_socket("localhost:0") as sock:
        assert sock.getsockname()[1]


@pytest.mark.parametrize(
    "place", ["", "kitchen", "kitchen:", ":7420", "1:2:3", "0.0.0.0:99999", "https://x:1", "::1:7"]
)
def test_an_invalid_listen_address_is_refused(place: str) -> None:
    with pytest.raises(CannotServe, match=r"is not a valid HOST:PORT \(examples: 127\.0\.0\.1:7420"):
        open_socket(place)


def test_a_listen_address_in_use_is_reported() -> None:
    with open_socket("0") as sock:
        port = sock.getsockname()[1]
        with pytest.raises(CannotServe, match=f"cannot listen on 127.0.0.1:{port}: another process listens there"):
            open_socket(f"127.0.0.1:{port}")


def test_a_foreign_listen_address_is_reported() -> None:
    with pytest.raises(CannotServe, match=r"cannot listen on unknown\.invalid:7420: "):
        open_socket("unknown.invalid:7420")


@pytest.mark.parametrize("module", ["starlette.applications", "uvicorn"])
async def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "asterism.base.http_server", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    name = module.partition(".")[0]
    with pytest.raises(AsterismError, match=rf"answering peers needs {name}: install the extra 'peers'"):
        async with serving_peer(tmp_path):
            pass


def test_the_default_listen_address_is_loopback() -> None:
    assert peer_server.DEFAULT_ADDRESS == "127.0.0.1:7420"
