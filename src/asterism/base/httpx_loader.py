"""Loads httpx and the TLS certificates once, in a thread, not on the event loop.

The import of httpx takes half a second or more, and each client reads all certificates of the system unless it gets a
context that has them. In the event loop either would make other tasks miss their timeouts and heartbeats.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from asterism.base.extras import install_hint
from asterism.core.errors import AsterismError

if TYPE_CHECKING:
    from ssl import SSLContext

    from httpx import AsyncClient

LAZY_IMPORTS = ("httpcore._backends.anyio", "anyio._backends._asyncio")
"""Modules that httpx would import during the first request. If they are renamed, it does so again."""

_preparing = threading.Lock()
_contexts: dict[tuple[str | None, str | None], SSLContext] = {}


async def load_httpx(what: str = "HTTP tasks need httpx", extra: str = "http") -> Any:
    """The module httpx. Raises AsterismError if it is not installed; ``what`` says what needs it."""
    trust = _trust()
    try:
        if trust not in _contexts:
            await asyncio.to_thread(_prepare, trust)
        return import_module("httpx")
    except ImportError:
        raise AsterismError(f"{what}: {install_hint(extra)}") from None


async def http_client(**options: Any) -> AsyncClient:
    """A client with the certificates of the system, for ``async with``."""
    httpx = await load_httpx()
    client: AsyncClient = httpx.AsyncClient(verify=_contexts[_trust()], **options)
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
            with suppress(ImportError):
                import_module(name)
        context = httpx.create_ssl_context()
        httpx.AsyncClient(verify=context)  # the first client imports the rest
        _contexts[trust] = context
