"""Requests of the clients that are no operations on a system: about the server itself and the login."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from asterism.api import documents
from asterism.api.http_form import API

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[Answer]):
    """``model`` reads the answer; None returns its text."""

    method: str
    path: str
    model: type[Answer]
    body: Any = None
    query: Mapping[str, Any] = field(default_factory=dict)
    operation: str = ""
    once: bool = False
    """Whether it is never repeated: a one-time code is used up by the first."""

    @property
    def name(self) -> str:
        """What it does, for messages."""
        return self.operation or f"{self.method} {self.path}"


def _get(path: str, model: type[Answer]) -> ApiRequest[Answer]:
    return ApiRequest("GET", f"{API}{path}", model)


def _post(path: str, model: type[Answer], **body: Any) -> ApiRequest[Answer]:
    return ApiRequest("POST", f"{API}{path}", model, body)


def health() -> ApiRequest[documents.Health]:
    """Whether the server can reach its store."""
    return _get("/health", documents.Health)


def me() -> ApiRequest[documents.Me]:
    """The credential of this client: its name and scopes."""
    return _get("/me", documents.Me)


def redeem_login(code: str) -> ApiRequest[documents.NewToken]:
    """Exchange a one-time code of ``asterism token login`` for a token."""
    return ApiRequest("POST", f"{API}/login", documents.NewToken, {"code": code}, operation="the login", once=True)


def logout() -> ApiRequest[dict[str, Any]]:
    """Revoke the token of this client."""
    return _post("/logout", dict[str, Any])


def metrics() -> ApiRequest[str]:
    """The metrics of the fleet and its plans, as OpenMetrics text."""
    return _get("/metrics", str)
