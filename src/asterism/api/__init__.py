"""The client of the HTTP API, and the documents that it exchanges with a server.

``http_client``       ``Client`` and ``AsyncClient``
``api_requests``      each operation, written once for both
``documents``         models of the answers; the server publishes their schemas
``editor_documents``  those about edit cycles, costs, budgets and edits that wait
``document_base``     what all of them have in common
``event_lines``       server-sent events from lines
``api_errors``        problem documents as exceptions
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.api.client import AsyncClient, Client
    from asterism.api.client_errors import ApiError, NotAllowed, NotFound, ServerUnreachable, TryLater

__all__ = ["ApiError", "AsyncClient", "Client", "NotAllowed", "NotFound", "ServerUnreachable", "TryLater"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "asterism.api.client_errors": ["ApiError", "NotAllowed", "NotFound", "ServerUnreachable", "TryLater"],
        "asterism.api.client": ["AsyncClient", "Client"],
    },
)
