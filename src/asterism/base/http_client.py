"""httpx, prepared off the event loop.

Importing httpx takes half a second or more, and each client reads all certificates of the system anew unless it is
given a context that has them. Done in a step of the loop, either would make other tasks miss their timeouts and
heartbeats. So both happen in a thread, once, and all clients share the context.
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
"""What httpx would import within the first request; if these are not their names any more, it does so again."""

_preparing = threading.Lock()
_contexts: dict[tuple[str | None, str | None], SSLContext] = {}


async def load_httpx(what: str = "HTTP tasks need httpx", extra: str = "http") -> Any:
    """The module httpx. Raises AsterismError if it is not installed, with what needs it."""
    trust = _trust()
    try:
        if trust not in _contexts:
            await asyncio.to_thread(_prepare, trust)
        return import_module("httpx")
    except ImportError:
        raise AsterismError(f"{what}: {install_hint(extra)}") from None


async def http_client(**options: Any) -> AsyncClient:
    """A client that trusts whom the system trusts; to be used in ``async with``."""
    httpx = await load_httpx()
    client: AsyncClient = httpx.AsyncClient(verify=_contexts[_trust()], **options)
    return client


def _trust() -> tuple[str | None, str | None]:
    """Where httpx looks for certificates beside those it has."""
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
        httpx.AsyncClient(verify=context)  # the first one imports the rest
        _contexts[trust] = context
