"""HTTPS sessions between machines of Asterism, and how httpx is loaded.

``HttpsSession`` is a session with one server, and the one place where a certificate is pinned: devices trust a gateway
by it, and peers each other. Before the first request the certificate of the server is read, with nothing but the TLS
handshake, and compared with the pin; from then on the connections trust only this certificate. So no secret is ever
sent to another server. The host name of the certificate does not matter: the pin is the identity, and machines get new
addresses. With a pin, proxies of the environment are ignored. Redirects are never followed.

``load_httpx`` loads httpx and the TLS certificates once, in a thread. The import takes half a second or more, and each
client reads all certificates of the system unless it gets a context that has them. In the event loop either would make
other tasks miss their timeouts and heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self
from urllib.parse import urlsplit

from asterism.base.http_answers import ACCEPTED, read_answer
from asterism.base.startup import install_hint
from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT = 10.0
"""How long a connection may take to be made, in seconds."""

NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python does not name."""

LAZY_IMPORTS = ("httpcore._backends.anyio", "anyio._backends._asyncio")
"""Modules that httpx would import during the first request. If they are renamed, it does so again."""

_CONNECTION_ENDED = (
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
)
"""Errors of OpenSSL about a connection that ended or is not open yet, not about the protocol."""


def is_loopback(host: str) -> bool:
    """Whether it is an address or the name of this machine that no other machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# -- certificates ------------------------------------------------------------------------------------------------------


def fingerprint(certificate: bytes) -> str:
    """The fingerprint of a certificate in DER: its SHA-256 in hexadecimal."""
    return hashlib.sha256(certificate).hexdigest()


def pem_fingerprint(text: str) -> str:
    """The fingerprint of the first certificate in a PEM file. Raises ValueError."""
    end = "-----END CERTIFICATE-----"
    begins = text.index("-----BEGIN CERTIFICATE-----")
    return fingerprint(ssl.PEM_cert_to_DER_cert(text[begins : text.index(end, begins) + len(end)]))


class Pin(NamedTuple):
    """The certificate that a server has to have. ``wrong`` is the advice if it has another one.

    ``party`` names who made the certificate for its pin alone: then TLS 1.3 is required, the dates of the certificate
    do not count, since clocks may be days apart, and a server without such TLS is another service. ``server_name`` is
    the name by which a server that has another certificate for other clients is asked for this one."""

    fingerprint: str
    wrong: str
    party: str | None = None
    server_name: str | None = None

    def context(self, certificate: bytes) -> ssl.SSLContext:
        """A TLS context that trusts this certificate and no other."""
        context = self._unchecked()
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it may be one of an authority
        if self.party is not None:
            context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
        context.load_verify_locations(cadata=certificate)
        return context

    def _unchecked(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.party is not None:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    async def certificate_of(self, url: str, name: str) -> bytes:
        """The certificate of the server for this name; nothing but the TLS handshake is sent."""
        parts = urlsplit(url)
        _, writer = await asyncio.open_connection(
            parts.hostname, parts.port or 443, ssl=self._unchecked(), server_hostname=name
        )
        try:
            return bytes(writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b"")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


# -- sessions ----------------------------------------------------------------------------------------------------------


class HttpsSession:
    """A session with the server at ``url``, which connects with its first request. ``headers`` are sent with each
    request. ``silence`` is how long the server may send nothing in the middle of an answer, in seconds.
    ``connections`` is how many there are at most, and how many seconds one is kept open. ``transport`` is that of
    httpx, for tests. A subclass names its errors, and what needs httpx with the extra that installs it."""

    unreachable: ClassVar[type[AsterismError]]
    refused: ClassVar[type[AsterismError]]
    needs: ClassVar[tuple[str, str]]

    def __init__(
        self,
        url: str,
        pin: Pin | None = None,
        *,
        headers: Mapping[str, str],
        silence: float | None = None,
        connections: tuple[int | None, float] = (None, 5.0),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url, self._pin, self._headers, self._transport = url, pin, headers, transport
        self._silence, self._connections = silence, connections
        self._client: httpx.AsyncClient | None = None
        self._extensions: dict[str, str] = {}
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def request(
        self, method: str, path: str, *, most: int, within: float, headers: Mapping[str, str], content: bytes = b""
    ) -> tuple[int, bytes]:
        """The status and the body of the answer, which has ``most`` bytes and takes ``within`` seconds at most. Raises
        ``unreachable`` without an answer, ``refused`` if the server is another one, and AnswerRefused."""
        client = await self._connected()
        with self._translated_errors():
            async with (
                asyncio.timeout(within),
                client.stream(
                    method, path, headers=dict(headers), content=content, extensions=self._extensions
                ) as answer,
            ):
                return answer.status_code, await read_answer(answer, most)

    async def _connected(self) -> httpx.AsyncClient:
        async with self._connecting:
            if self._client is None:
                library = await load_httpx(*self.needs)
                trusted = {} if self._pin is None else {"verify": await self._pinned(self._pin), "trust_env": False}
                most, kept_open = self._connections
                self._client = await http_client(
                    base_url=self.url,
                    headers={"accept-encoding": "identity", **self._headers},
                    timeout=library.Timeout(self._silence, connect=CONNECT_TIMEOUT),
                    limits=library.Limits(
                        max_connections=most, max_keepalive_connections=most, keepalive_expiry=kept_open
                    ),
                    transport=self._transport,
                    **trusted,
                )
            return self._client

    async def _pinned(self, pin: Pin) -> ssl.SSLContext:
        """Raises ``refused`` if the server does not have the certificate."""
        for name in filter(None, (urlsplit(self.url).hostname, pin.server_name)):
            with self._translated_errors():
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    certificate = await pin.certificate_of(self.url, name)
            if fingerprint(certificate) == pin.fingerprint:
                self._extensions = {"sni_hostname": name}
                return pin.context(certificate)
        raise self.refused(self._wrong_certificate(pin))

    def _wrong_certificate(self, pin: Pin) -> str:
        return f"the certificate of {self.url} is not {pin.wrong}"

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        import httpx  # installed: load_httpx was called before

        try:
            yield
        except (TimeoutError, httpx.TimeoutException):
            raise self.unreachable(f"{self.url} does not answer") from None
        except (httpx.HTTPError, OSError) as error:
            cause, pin = _cause(error), self._pin
            if isinstance(cause, ssl.SSLCertVerificationError):
                untrusted = f"the certificate of {self.url} is not trusted: {cause.verify_message}"
                raise self.refused(untrusted if pin is None else self._wrong_certificate(pin)) from None
            tls = isinstance(cause, ssl.SSLError) and not isinstance(cause, _CONNECTION_ENDED)
            if tls and pin is not None and pin.party is not None:
                reason = getattr(cause, "reason", None) or str(cause)
                raise self.refused(
                    f"{self.url} does not use TLS as {pin.party} does ({reason}): is it another service?"
                ) from None
            raise self.unreachable(f"{self.url} is unreachable: {_system_error(cause)}") from None


def is_temporary(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status in (408, 425, 429) or status >= 500


def problem_in(body: bytes) -> JsonObject:
    """The document of a refusal; empty if the body is not a JSON object."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def shown_text(text: object, most: int) -> str:
    """A text of the other side, cut and without control characters; empty if it is not a text."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:most]) if isinstance(text, str) else ""


def _cause(error: BaseException) -> BaseException:
    """The root cause of an error that is not just the end of the connection."""
    cause, inner = error, error.__cause__ or error.__context__
    while inner is not None:
        if not isinstance(inner, _CONNECTION_ENDED):
            cause = inner
        inner = inner.__cause__ or inner.__context__
    return cause


def _system_error(error: BaseException) -> str:
    """The message of the system; that of asyncio would repeat the address."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        return os.strerror(error.errno)
    if isinstance(error, OSError) and not error.strerror:
        return "none of its addresses answers"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


# -- loading of httpx --------------------------------------------------------------------------------------------------

_preparing = threading.Lock()
_contexts: dict[tuple[str | None, str | None], ssl.SSLContext] = {}


async def load_httpx(what: str = "HTTP tasks need httpx", extra: str = "http") -> Any:
    """The module httpx. Raises AsterismError if it is not installed; ``what`` says what needs it."""
    trust = _trust()
    try:
        if trust not in _contexts:
            await asyncio.to_thread(_prepare, trust)
        return import_module("httpx")
    except ImportError:
        raise AsterismError(f"{what}: {install_hint(extra)}") from None


async def http_client(**options: Any) -> httpx.AsyncClient:
    """A client with the certificates of the system unless ``verify`` is given, for ``async with``."""
    loaded = await load_httpx()
    headers = {"accept-encoding": ACCEPTED, **(options.pop("headers", None) or {})}
    client: httpx.AsyncClient = loaded.AsyncClient(**{"verify": _contexts[_trust()], **options}, headers=headers)
    return client


def _trust() -> tuple[str | None, str | None]:
    """Where httpx looks for more certificates."""
    return os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")


def _prepare(trust: tuple[str | None, str | None]) -> None:
    with _preparing:
        if trust in _contexts:
            return
        import httpx

        for name in LAZY_IMPORTS:
            with contextlib.suppress(ImportError):
                import_module(name)
        context = httpx.create_ssl_context()
        httpx.AsyncClient(verify=context)  # the first client imports the rest
        _contexts[trust] = context
