"""The client of a peer: it sends data only to the pinned certificate, and explains every failure."""

from __future__ import annotations

import asyncio
import datetime
import gzip
import json
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from asterism.base.https_session import Pin, fingerprint
from asterism.core.errors import AsterismError
from asterism.core.record import replace
from asterism.peers import peer_client
from asterism.peers.exchange import PeerUnreachable
from asterism.peers.peer_client import ClientPool, PeerClient
from asterism.peers.private_files import Token, TokenFile
from asterism.peers.registry import Peer, PeerRefused
from asterism.store.sqlite import SqliteStore

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
TOKEN = "the-token"
BLOB = "ab" * 32


def certificate(folder: Path, name: str = "kitchen", *, days: tuple[int, int] = (-1, 100)) -> tuple[Path, str]:
    """A file with a key and a certificate that is valid between two days counted from now, and its fingerprint."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    begin, end = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=number) for number in days)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + made.public_bytes(pem))
    return path, fingerprint(made.public_bytes(serialization.Encoding.DER))


class FixedServer:
    """A server that gives the same answer to every request, and records the requests."""

    def __init__(self, answer: bytes | Answer, pem: Path | None) -> None:
        self._answer, self.asked, self._tasks = answer, [], set[asyncio.Task[Any]]()  # type: ignore[var-annotated]
        self.context = None
        if pem is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(pem)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b""
                self.asked.append((head.decode(), body))
                if callable(self._answer):
                    await self._answer(reader, writer)
                else:
                    writer.write(self._answer)
                    await writer.drain()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
            pass  # asyncio logs every cancelled handler
        finally:
            writer.close()

    async def over(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def serving(answer: bytes | Answer, pem: Path | None) -> AsyncIterator[tuple[str, FixedServer]]:
    there = FixedServer(answer, pem)
    server = await asyncio.start_server(there.serve, "127.0.0.1", 0, ssl=there.context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", there
    finally:
        server.close()
        await there.over()
        await server.wait_closed()


def http(body: bytes | str, status: str = "200 OK", *more: str) -> bytes:
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(data)}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + data


def called(answer: bytes | Answer, pem: Path | None, pin: str, ask: Callable[[PeerClient], Awaitable[Any]]) -> Any:
    """The result of a request to a server that answers ``answer``, and the number of requests."""

    async def main() -> Any:
        async with serving(answer, pem) as (url, there), PeerClient(url, pin, Token(TOKEN)) as caller:
            return await ask(caller), there.asked

    return asyncio.run(main())


def refusal(answer: bytes | Answer, pem: Path | None, pin: str, kind: type[Exception] = PeerRefused) -> str:
    with pytest.raises(kind) as error:
        called(answer, pem, pin, lambda caller: caller.send({}))
    assert TOKEN not in str(error.value)
    return str(error.value)


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return certificate(tmp_path_factory.mktemp("kitchen"))


# -- successful requests -----------------------------------------------------------------------------------------------


def test_a_message_is_sent_with_the_token_and_answered(kitchen: tuple[Path, str]) -> None:
    async def twice(caller: PeerClient) -> Any:
        return [await caller.send({"n": 1}), await caller.send({"n": 2})]

    answer, asked = called(http('{"n": 3}'), *kitchen, twice)
    assert answer == [{"n": 3}, {"n": 3}]
    assert [json.loads(body) for _, body in asked] == [{"n": 1}, {"n": 2}]
    assert all(head.startswith("POST /v1/meet HTTP/1.1\r\n") for head, _ in asked)
    assert all(
        f"authorization: Bearer {TOKEN}\r\n" in head.replace("Authorization", "authorization") for head, _ in asked
    )


def test_blobs_are_fetched_and_sent(kitchen: tuple[Path, str]) -> None:
    async def both(caller: PeerClient) -> Any:
        await caller.send_blob(BLOB, b"\x00\x01")
        return await caller.fetch_blob(BLOB, "r1")

    answer, asked = called(http(b"\xff\x00"), *kitchen, both)
    assert answer == b"\xff\x00"
    assert [head.split(" HTTP")[0] for head, _ in asked] == [f"PUT /v1/blobs/{BLOB}", f"GET /v1/blobs/{BLOB}?run=r1"]
    assert asked[0][1] == b"\x00\x01"


@pytest.mark.parametrize("days", [(100, 200), (-200, -100)])
def test_the_dates_of_a_certificate_do_not_matter(tmp_path: Path, days: tuple[int, int]) -> None:
    answer, _ = called(http("{}"), *certificate(tmp_path, days=days), lambda caller: caller.send({}))
    assert answer == {}


# -- servers that receive no secret ------------------------------------------------------------------------------------


async def test_a_server_with_another_certificate_receives_nothing(tmp_path: Path, kitchen: tuple[Path, str]) -> None:
    async def main() -> list[Any]:
        async with serving(http("{}"), certificate(tmp_path, "impostor")[0]) as (url, there):
            async with PeerClient(url, kitchen[1], Token(TOKEN)) as caller:
                with pytest.raises(PeerRefused, match="is not the one in the invitation"):
                    await caller.send({"secret": 1})
            return there.asked

    assert await main() == []


async def test_a_server_that_changes_its_certificate_receives_nothing(
    tmp_path: Path, kitchen: tuple[Path, str]
) -> None:
    """The certificate check and the request are two connections: the pin applies to the second as well."""

    async def main() -> list[Any]:
        pem, pin = kitchen
        async with serving(http("{}", "200 OK", "connection: close"), pem) as (url, there):
            async with PeerClient(url, pin, Token(TOKEN)) as caller:
                await caller.send({})
                assert there.context is not None
                there.context.load_cert_chain(certificate(tmp_path, "impostor")[0])
                with pytest.raises(PeerRefused, match="is not the one in the invitation"):
                    await caller.send({"secret": 1})
            return there.asked

    assert len(await main()) == 1


async def test_without_the_pin_the_token_would_go_to_any_server(
    tmp_path: Path, kitchen: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ablation: with a context that trusts every certificate, a changed one is not noticed."""
    open_to_all = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    open_to_all.check_hostname, open_to_all.verify_mode = False, ssl.CERT_NONE
    monkeypatch.setattr(Pin, "context", lambda pin, certificate: open_to_all)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await test_a_server_that_changes_its_certificate_receives_nothing(tmp_path, kitchen)


def test_a_redirect_is_not_followed(kitchen: tuple[Path, str]) -> None:
    text = refusal(http("", "307 Elsewhere", "location: https://127.0.0.1:1/"), *kitchen)
    assert "answered 307" in text


def test_proxies_of_the_environment_are_ignored(kitchen: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    answer, _ = called(http("{}"), *kitchen, lambda caller: caller.send({}))
    assert answer == {}


# -- other services and failures ---------------------------------------------------------------------------------------


def test_a_closed_port_is_unreachable(kitchen: tuple[Path, str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{closed.getsockname()[1]}"

        async def main() -> None:
            async with PeerClient(url, kitchen[1], Token(TOKEN)) as caller:
                await caller.send({})

        with pytest.raises(PeerUnreachable, match=f"^{url} is unreachable: Connection refused$"):
            asyncio.run(main())


async def test_an_unknown_host_is_unreachable(kitchen: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)

    async def main() -> None:
        async with PeerClient("https://unknown.invalid:7420", kitchen[1], Token(TOKEN)) as caller:
            await caller.send({})

    with pytest.raises(PeerUnreachable, match=r"^https://unknown\.invalid:7420 is unreachable: \w+"):
        await main()


def test_a_host_with_several_closed_addresses_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nowhere(*_: object, **__: object) -> Any:
        raise OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), [Errno 111] …")

    monkeypatch.setattr(asyncio, "open_connection", nowhere)
    with pytest.raises(PeerUnreachable, match="is unreachable: none of its addresses answers"):
        asyncio.run(PeerClient("https://localhost:1", "ab" * 32, Token(TOKEN)).send({}))


async def test_a_server_without_tls_is_reported(kitchen: tuple[Path, str]) -> None:
    async def answers_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http("hello", "400 Bad Request"))
        await writer.drain()
        writer.close()

    async def main() -> str:
        server = await asyncio.start_server(answers_at_once, "127.0.0.1", 0)
        async with (
            server,
            PeerClient(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", kitchen[1], Token(TOKEN)) as caller,
        ):
            with pytest.raises(PeerRefused) as error:
                await caller.send({})
            return str(error.value)

    assert "does not use TLS as a peer does" in await main()


@pytest.mark.parametrize(
    "body",
    ["<html>", "", "[1]", '"text"', "[" * 100_000, "\x00"],
    ids=["html", "nothing", "list", "text", "deep", "nul"],
)
def test_an_invalid_answer_is_refused(kitchen: tuple[Path, str], body: str) -> None:
    assert "it is not a peer" in refusal(http(body), *kitchen)


def test_an_answer_that_is_too_long_is_not_read_to_its_end(
    kitchen: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_client, "MAX_MESSAGE_BYTES", 1000)
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        while True:
            writer.write(b" " * 10_000)
            sent += 10_000
            await writer.drain()

    assert "answered with more than 1,000 bytes" in refusal(endless, *kitchen)
    assert sent < 100_000_000


def test_an_answer_that_is_compressed_twice_is_refused(kitchen: tuple[Path, str]) -> None:
    bomb = gzip.compress(gzip.compress(bytes(1 << 20)))
    assert "compressed 2 times" in refusal(http(bomb, "200 OK", "content-encoding: gzip, gzip"), *kitchen)


async def test_a_blob_is_read_up_to_the_limit_of_the_fleet(kitchen: tuple[Path, str]) -> None:
    async def main() -> None:
        async with (
            serving(http(b"x" * 101), kitchen[0]) as (url, _),
            PeerClient(url, kitchen[1], Token(TOKEN), most=100) as caller,
        ):
            await caller.fetch_blob(BLOB, "r1")

    with pytest.raises(PeerRefused, match="answered with more than 100 bytes"):
        await main()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("401 Unauthorized", PeerRefused),
        ("403 Forbidden", PeerRefused),
        ("404 Not Found", PeerRefused),
        ("409 Conflict", PeerRefused),
        ("413 Too Large", PeerRefused),
        ("408 Timeout", PeerUnreachable),
        ("429 Too Many", PeerUnreachable),
        ("500 Broken", PeerUnreachable),
        ("503 Busy", PeerUnreachable),
    ],
)
def test_the_message_of_a_refusal_is_quoted(kitchen: tuple[Path, str], status: str, kind: type[Exception]) -> None:
    text = refusal(http(json.dumps({"error": "not\x1b[31m today\n"}), status), *kitchen, kind)
    assert text.endswith(f"answered {status[:3]}: not [31m today ")


@pytest.mark.parametrize("body", ["no", "[]", '{"error": 5}', '{"error": ""}', "{}"])
def test_a_refusal_without_a_message_shows_its_status(kitchen: tuple[Path, str], body: str) -> None:
    assert refusal(http(body, "403 Forbidden"), *kitchen).endswith("answered 403")


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{"], ids=["at once", "half-way"]
)
def test_a_server_that_hangs_up_is_unreachable(kitchen: tuple[Path, str], answer: bytes) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    assert "is unreachable" in refusal(hang_up, *kitchen, PeerUnreachable)


def test_a_silent_server_times_out(kitchen: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_client, "READ_TIMEOUT", 0.05)

    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    assert "does not answer" in refusal(silence, *kitchen, PeerUnreachable)


def test_a_very_slow_server_times_out(kitchen: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_client, "MESSAGE_TIMEOUT", 0.2)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0)

    assert "does not answer" in refusal(drip, *kitchen, PeerUnreachable)


# -- reused clients ----------------------------------------------------------------------------------------------------


async def test_a_client_is_reused_until_the_peer_changes(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "laptop.db")
    TokenFile(store).put("kitchen", Token(TOKEN))
    peer = Peer("kitchen", url="https://127.0.0.1:1", pin="ab" * 32)
    async with ClientPool(store) as clients:
        way = clients.client(peer)
        assert clients.client(replace(peer, heard_at=5.0)) is way
        moved = clients.client(replace(peer, url="https://127.0.0.1:2"))
        assert moved is not way
        TokenFile(store).put("kitchen", Token("another"))
        assert clients.client(replace(peer, url="https://127.0.0.1:2")) is not moved
        with pytest.raises(AsterismError, match="cannot call attic, which has no address here"):
            clients.client(Peer("attic"))
        with pytest.raises(AsterismError, match="the secret for cellar is missing"):
            clients.client(replace(peer, name="cellar"))
    await store.close()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)

    def ask() -> Coroutine[Any, Any, Any]:
        return PeerClient("https://127.0.0.1:1", "ab" * 32, Token(TOKEN)).send({})

    with pytest.raises(AsterismError, match=r"syncing with peers needs httpx: install the extra 'peers'"):
        asyncio.run(ask())
