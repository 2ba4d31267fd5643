"""The requests of the client: one function for each operation of the API, for both kinds of clients.

A function checks nothing that the server checks. It returns what is sent, and the model of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from asterism.api import documents
from asterism.base.path_names import path_part

Answer = TypeVar("Answer")
API = "/api/v1"


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[Answer]):
    """``model`` reads the answer; None returns its text."""

    method: str
    path: str
    model: type[Answer]
    body: Any = None
    query: Mapping[str, Any] = field(default_factory=dict)
    operation: str = ""

    @property
    def name(self) -> str:
        """What it does, for messages."""
        return self.operation or f"{self.method} {self.path}"


def _get(path: str, model: type[Answer], **query: Any) -> ApiRequest[Answer]:
    given = {name: _text(value) for name, value in query.items() if value is not None}
    return ApiRequest("GET", f"{API}{path}", model, None, given)


def _post(path: str, model: type[Answer], **body: Any) -> ApiRequest[Answer]:
    return ApiRequest("POST", f"{API}{path}", model, {name: value for name, value in body.items() if value is not None})


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _at(*parts: str) -> str:
    """A path with names in it, which may have any letters."""
    return "/" + "/".join(map(path_part, parts))


# -- the server --------------------------------------------------------------------------------------------------------


def health() -> ApiRequest[documents.Health]:
    """Whether the server can reach its store."""
    return _get("/health", documents.Health)


def me() -> ApiRequest[documents.Me]:
    """The credential of this client: its name and scopes."""
    return _get("/me", documents.Me)


def redeem_login(code: str) -> ApiRequest[documents.NewToken]:
    """Exchange a one-time code of ``asterism token login`` for a token."""
    return _post("/login", documents.NewToken, code=code)


def logout() -> ApiRequest[dict[str, Any]]:
    """Revoke the token of this client."""
    return _post("/logout", dict[str, Any])


def metrics() -> ApiRequest[str]:
    """The metrics of the fleet and its plans, as OpenMetrics text."""
    return _get("/metrics", str)
