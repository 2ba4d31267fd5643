"""Messages of a device to a gateway over HTTPS, and the enrolment with a code (the extra ``gateway``)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import json
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from asterism.base.http_answers import LARGEST_SERVER_ANSWER, AnswerRefused, read_answer
from asterism.base.text import masked_url
from asterism.core.errors import AsterismError
from asterism.execution.http_requests import load_httpx
from asterism.gateway.device_key import DeviceKey, Enrolment, EnrolmentFile
from asterism.gateway.gateway_connection import GatewayAccess, GatewayRefused
from asterism.gateway.gateway_messages import PREFIX, GatewayTransport
from asterism.gateway.outbox import FileOutbox
from asterism.store.store_errors import StoreUnavailable

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT = 10.0
"""How long a connection may take to be made, in seconds."""

CONNECTIONS = 4
"""How many connections a device has at most: one waits for work, one sends heartbeats, the others steps and values."""


KEPT_OPEN = 60.0
"""How long a connection is kept open between two messages, in seconds: longer than between two heartbeats, and not as
long as the server keeps it."""


class InvalidServer(AsterismError, ValueError):
    """An address that is not valid for a server."""


class NotEnrolled(AsterismError):
    """The server does not know the key of this device."""


def server_url(text: str) -> str:
    """An address as people write it. Raises InvalidServer; plain HTTP is possible on this machine only."""
    try:
        parts = urlsplit(text.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidServer(f"{masked_url(text)!r} is not a valid address: {error}") from None
    if parts.scheme not in ("http", "https") or not host or parts.path.strip("/") or parts.query or parts.username:
        raise InvalidServer(f"{masked_url(text)!r} is not the address of a server (example: https://host:7400)")
    if parts.scheme == "http" and not _is_loopback(host):
        raise InvalidServer(f"{host} is another machine: its address has to begin with https://")
    return f"{parts.scheme}://{parts.netloc}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class HttpTransport:
    """``fingerprint`` is the SHA-256 of the server's certificate, if it is not one that everybody trusts. ``inner`` is
    the transport of httpx, for tests."""

    def __init__(
        self, url: str, *, fingerprint: str | None = None, inner: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.url = url
        self._fingerprint, self._inner = fingerprint, inner
        self._client: httpx.AsyncClient | None = None
        self._connecting = asyncio.Lock()

    async def send(self, operation: str, body: Any, token: str | None, *, timeout: float) -> Any:
        client = await self._connected()
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        content = body if isinstance(body, bytes) else _encoded(body)
        with translated_errors(self.url):
            async with asyncio.timeout(timeout):
                asked = client.build_request("POST", f"{PREFIX}/{operation}", content=content, headers=headers)
                answer = await client.send(asked, stream=True)
                try:
                    received = await read_answer(answer, LARGEST_SERVER_ANSWER)
                finally:
                    await answer.aclose()
        if answer.status_code == 200:
            return received if operation == "fetch" else _json(received, self.url)
        raise _refusal(answer.status_code, received, self.url)

    async def _connected(self) -> httpx.AsyncClient:
        if self._client is not None:
            return self._client
        async with self._connecting:
            if self._client is None:
                library = await load_httpx("devices of a gateway need httpx", "gateway")
                verify: Any = True
                if self._fingerprint is not None:
                    with translated_errors(self.url):
                        async with asyncio.timeout(CONNECT_TIMEOUT):
                            verify = await _pinned(self.url, self._fingerprint)
                self._client = library.AsyncClient(
                    base_url=self.url,
                    headers={"accept-encoding": "identity", "content-type": "application/json"},
                    verify=verify,
                    timeout=library.Timeout(None, connect=CONNECT_TIMEOUT),
                    limits=library.Limits(
                        max_connections=CONNECTIONS,
                        max_keepalive_connections=CONNECTIONS,
                        keepalive_expiry=KEPT_OPEN,
                    ),
                    transport=self._inner,
                    trust_env=self._fingerprint is None,
                )
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


@contextlib.contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Errors of the connection as StoreUnavailable: it is unknown whether the message arrived."""
    import httpx  # installed: load_httpx was called before

    try:
        yield
    except AnswerRefused as error:
        raise GatewayRefused(str(error)) from None
    except (TimeoutError, httpx.TimeoutException):
        raise StoreUnavailable(f"{url} does not answer") from None
    except (httpx.HTTPError, OSError) as error:
        cause: BaseException = error
        while (inner := cause.__cause__ or cause.__context__) is not None:
            cause = inner
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise GatewayRefused(f"the certificate of {url} is not trusted: {cause.verify_message}") from None
        raise StoreUnavailable(f"{url} is unreachable: {cause or type(cause).__name__}") from None


def _encoded(body: Any) -> bytes:
    """A message as JSON. A lone surrogate, which UTF-8 cannot express, is replaced, as stores do."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _json(content: bytes, url: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise GatewayRefused(f"the answer of {url} is not JSON: it is another service") from None


def _refusal(status: int, content: bytes, url: str) -> Exception:
    try:
        document = json.loads(content)
        kind, detail = str(document.get("kind", "")), str(document.get("detail", ""))
    except (ValueError, AttributeError, RecursionError):
        kind = detail = ""
    shown = "".join(letter if letter.isprintable() else " " for letter in detail[:1000])
    if status in (408, 421, 425, 429) or status >= 500:
        return StoreUnavailable(f"{url} answered {status}: {shown}")
    return GatewayRefused(shown or f"{url} answered {status}", kind or ("invalid" if status == 413 else ""))


async def _pinned(url: str, fingerprint: str) -> ssl.SSLContext:
    """A TLS context that trusts the certificate with this fingerprint, and no other. Only the handshake is sent before
    it is compared."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(parts.hostname, parts.port or 443, ssl=context)
    try:
        certificate = bytes(writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b"")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if hashlib.sha256(certificate).hexdigest() != fingerprint:
        raise GatewayRefused(f"the certificate of {url} is not the one with the given fingerprint")
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.check_hostname = False
    trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusted.load_verify_locations(cadata=certificate)
    return trusted


# -- enrolment ---------------------------------------------------------------------------------------------------------


async def enrol(transport: GatewayTransport, key: DeviceKey, name: str, code: str) -> None:
    """Show a code and the public half of the key. Raises GatewayRefused and StoreUnavailable. May be repeated."""
    body = {"device": name, "code": code, "key": key.public, "signature": key.sign("enrol", code, name)}
    await transport.send("enrol", body, None, timeout=CONNECT_TIMEOUT)


async def enrolled_access(url: str, name: str, code: str | None, fingerprint: str | None = None) -> GatewayAccess:
    """The access of a device to a server. With a ``code`` the device is enrolled first, if it is not. Raises
    NotEnrolled, GatewayRefused and StoreUnavailable."""
    file = EnrolmentFile(url, name)
    known = file.read()
    if known is None or (code is not None and not known.enrolled):
        if code is None:
            raise NotEnrolled(
                f"device {name!r} is not enrolled at {url}: make a code on the server with `asterism device invite`, "
                "and give it with --code"
            )
        known = Enrolment(known.key if known is not None else DeviceKey.new(), False, fingerprint)
        file.write(known)  # before it is sent: if the answer is lost, the same key asks again
    transport = HttpTransport(url, fingerprint=fingerprint or known.fingerprint)
    if code is not None:
        try:
            await enrol(transport, known.key, name, code)
        except GatewayRefused:
            if not known.enrolled:  # else the code may be the one that was used long ago
                raise
    if not known.enrolled:
        known = Enrolment(known.key, True, fingerprint or known.fingerprint)
        file.write(known)
    return GatewayAccess(transport, known.key, FileOutbox(file.outbox))
