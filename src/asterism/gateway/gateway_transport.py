"""Messages of a device to a gateway over HTTPS, and the enrolment with a code (the extra ``gateway``)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from asterism.base.http_answers import LARGEST_SERVER_ANSWER, AnswerRefused
from asterism.base.https_session import (
    CONNECT_TIMEOUT,
    HttpsSession,
    Pin,
    is_loopback,
    is_temporary,
    problem_in,
    shown_text,
)
from asterism.base.text import masked_url
from asterism.core.errors import AsterismError
from asterism.gateway.device_key import DeviceKey, Enrolment, EnrolmentFile
from asterism.gateway.gateway_connection import GatewayAccess
from asterism.gateway.gateway_messages import BYTES_ANSWERED, PREFIX, GatewayRefused, GatewayTransport
from asterism.gateway.outbox import FileOutbox
from asterism.store.store_errors import StoreUnavailable

if TYPE_CHECKING:
    import httpx

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
    if parts.scheme == "http" and not is_loopback(host):
        raise InvalidServer(f"{host} is another machine: its address has to begin with https://")
    return f"{parts.scheme}://{parts.netloc}"


class HttpTransport(HttpsSession):
    """``fingerprint`` is that of the server's certificate, if it is not one that everybody trusts. ``inner`` is the
    transport of httpx, for tests."""

    unreachable, refused = StoreUnavailable, GatewayRefused
    needs = ("devices of a gateway need httpx", "gateway")

    def __init__(
        self, url: str, *, fingerprint: str | None = None, inner: httpx.AsyncBaseTransport | None = None
    ) -> None:
        pin = None if fingerprint is None else Pin(fingerprint, "the one with the given fingerprint")
        super().__init__(
            url,
            pin,
            headers={"content-type": "application/json"},
            transport=inner,
            connections=(CONNECTIONS, KEPT_OPEN),
        )

    async def send(self, operation: str, body: Any, token: str | None, *, timeout: float) -> Any:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        content = body if isinstance(body, bytes) else _encoded(body)
        try:
            status, received = await self.request(
                "POST",
                f"{PREFIX}/{operation}",
                most=LARGEST_SERVER_ANSWER,
                within=timeout,
                headers=headers,
                content=content,
            )
        except AnswerRefused as error:
            raise GatewayRefused(str(error)) from None
        if status == 200:
            return received if operation in BYTES_ANSWERED else self._json(received)
        problem = problem_in(received)
        text = shown_text(problem.get("detail"), 1000)
        if is_temporary(status) or status == 421:  # its names may be set right
            raise StoreUnavailable(f"{self.url} answered {status}: {text}")
        kind = str(problem.get("kind") or ("invalid" if status == 413 else ""))
        raise GatewayRefused(text or f"{self.url} answered {status}", kind)

    def _json(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise GatewayRefused(f"the answer of {self.url} is not JSON: it is another service") from None


def _encoded(body: Any) -> bytes:
    """A message as JSON. A lone surrogate, which UTF-8 cannot express, is replaced, as stores do."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


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
