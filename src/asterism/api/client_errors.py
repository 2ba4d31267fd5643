"""Errors of the client: problem documents of the server as exceptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asterism.core.errors import AsterismError, EditRejected, Violation
from asterism.store.store_errors import StoreUnavailable

PREFIX = "urn:asterism:problem:"


class ServerUnreachable(AsterismError):
    """No answer came. The message says if it is unknown whether the server has done what was asked."""


class ApiError(AsterismError):
    """The server refused a request. ``status`` is the HTTP status, ``problem`` the name of the problem, such as
    ``plan-exists``; ``violations`` has each reason, ``retry_after`` is in seconds. ``approval`` is the number of an
    edit that waits for a person."""

    def __init__(
        self,
        status: int,
        problem: str,
        detail: str,
        violations: Sequence[Violation] = (),
        retry_after: float | None = None,
        approval: int | None = None,
    ) -> None:
        self.status, self.problem, self.retry_after, self.approval = status, problem, retry_after, approval
        self.violations = tuple(violations)
        lines = "".join(f"\n  - {violation.message}" for violation in self.violations)
        super().__init__(f"{detail}{lines}")


class NotFound(ApiError):
    """What was asked for does not exist."""


class NotAllowed(ApiError):
    """The token is missing, unknown or revoked, or its scopes do not allow this."""


class TryLater(ApiError):
    """Too many requests, or the store does not answer now."""


OUT_OF_REACH = (StoreUnavailable, ServerUnreachable, TryLater)
"""A system that cannot be reached now: what is asked may be asked again later."""

_KINDS = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 429: TryLater, 502: TryLater, 503: TryLater}


def error_of(status: int, document: Any, retry_after: str | None) -> AsterismError:
    """The exception for a problem document; for anything else, one with its status."""
    if not isinstance(document, dict):
        return ApiError(status, "", "the answer is not one of an Asterism server")
    problem = str(document.get("type", "")).removeprefix(PREFIX)
    listed = document.get("violations")
    violations = [
        Violation(violation.get("edit"), str(violation.get("rule")), str(violation.get("message")))
        for violation in (listed if isinstance(listed, list) else ())
        if isinstance(violation, dict)
    ]
    if problem == "edit-rejected":
        return EditRejected(violations)
    wait = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    kind = _KINDS.get(status, ApiError)
    approval = document.get("approval")
    waiting = approval if isinstance(approval, int) else None
    return kind(status, problem, str(document.get("detail", "")), violations, wait, waiting)
