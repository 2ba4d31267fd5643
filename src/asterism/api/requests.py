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


# -- the fleet ---------------------------------------------------------------------------------------------------------


def devices() -> ApiRequest[documents.Page[documents.Device]]:
    """All devices that are there, or were lately."""
    return _get("/devices", documents.Page[documents.Device])


def device(name: str) -> ApiRequest[documents.DeviceDetails]:
    """A device, the runs that it holds, and its latest ones."""
    return _get(_at("devices", name), documents.DeviceDetails)


def drain(device: str) -> ApiRequest[documents.Device]:
    """Ask a device to finish what it does, and leave."""
    return _post(_at("devices", device, "drain"), documents.Device)


def schedules() -> ApiRequest[documents.Page[documents.Schedule]]:
    """All schedules."""
    return _get("/schedules", documents.Page[documents.Schedule])


def schedule(name: str) -> ApiRequest[documents.Schedule]:
    """A schedule with its next times and its history."""
    return _get(_at("schedules", name), documents.Schedule)


def add_schedule(name: str, **terms: Any) -> ApiRequest[documents.Schedule]:
    """Add a schedule; ``terms`` are ``workflow`` or ``file``, ``cron`` or ``every``, and more (docs/reference)."""
    return _post("/schedules", documents.Schedule, name=name, **terms)


def remove_schedule(name: str) -> ApiRequest[documents.Schedule]:
    """Remove a schedule; what it has created goes on."""
    return ApiRequest("DELETE", f"{API}{_at('schedules', name)}", documents.Schedule)


def pause_schedule(name: str, reason: str = "") -> ApiRequest[documents.Schedule]:
    """Create nothing more until the schedule is resumed."""
    return _post(_at("schedules", name, "pause"), documents.Schedule, reason=reason)


def resume_schedule(name: str) -> ApiRequest[documents.Schedule]:
    """Resume a paused schedule."""
    return _post(_at("schedules", name, "resume"), documents.Schedule)


def run_schedule(name: str) -> ApiRequest[documents.Tick]:
    """Create the work of a schedule now."""
    return _post(_at("schedules", name, "run"), documents.Tick)


def notices(
    *, after: str | None = None, limit: int = 100, run: str | None = None
) -> ApiRequest[documents.Page[documents.Notice]]:
    """Notices, oldest first; ``after`` is the ``next`` of an earlier answer."""
    return _get("/notices", documents.Page[documents.Notice], after=after, limit=limit, run=run)
