"""Operations that change something, with their entries in the audit log (``fleet/audit_log.py``).

Reads and dry runs are not recorded, and pay nothing. A request without a valid credential has no name: it is counted by
its address and refused (``server/request_guard.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from asterism.api.operation import Operation, path_fields
from asterism.api.system import ENTRY, LocalSystem
from asterism.core.errors import AsterismError
from asterism.core.record import encode, replace
from asterism.fleet.audit_log import DONE, FAILED, REFUSED, AuditEntry, PendingEntry

Request = TypeVar("Request")
Answer = TypeVar("Answer")

TOLD = ("action", "status", "workflow", "scopes", "limits", "without_editor", "from_tasks", "device", "issue", "for")
"""The fields of requests that entries tell: none of them has a text that a person wrote, or a value of the work."""

NAMES = ("name", "id", "key", "run", "plan", "file")
"""Where a request or an answer has the name of what was changed, if the path has none."""


async def do_and_record(
    system: LocalSystem,
    operation: Operation[Any, Request, Answer],
    request: Request,
    do: Callable[[LocalSystem, Request], Awaitable[Answer]],
) -> Answer:
    """Do an operation, and append its entry, unless it was written with the change. Raises what it raises."""
    target = "/".join(str(getattr(request, name)) for name in path_fields(operation.path))
    entry = _entry(system, operation, DONE, target, ", ".join(_told(request)), _text(request, "reason"))
    pending = PendingEntry(entry)
    under_way = ENTRY.set(pending)
    try:
        answer = await do(system, request)
    except BaseException as error:
        if isinstance(error, Exception | asyncio.CancelledError) and not await pending.is_written(system.fleet.store):
            outcome, detail = _outcome_of(error)
            named = target or _named(request)
            await system.audit_log.append(replace(entry, outcome=outcome, detail=detail, target=named))
        raise
    finally:
        ENTRY.reset(under_way)
    if not pending.written:
        await system.audit_log.append(replace(entry, target=target or _named(answer) or _named(request)))
    return answer


def _outcome_of(error: BaseException) -> tuple[str, str]:
    """The outcome of an operation that has raised an error, and the detail of its entry."""
    if isinstance(error, asyncio.CancelledError):
        return FAILED, "it was broken off"
    # A command that does what it was asked for does not import these.
    from asterism.api.local.problem_statuses import error_detail
    from asterism.core.plan.edits import EditWaits
    from asterism.durable.plan_actor import AnswerLost, NotAnswered
    from asterism.series.register import OutcomeUnknown
    from asterism.store.store_errors import StoreError

    if isinstance(error, EditWaits):
        return DONE, str(error)
    if not isinstance(error, AsterismError):
        return FAILED, "internal error"
    unknown = isinstance(error, StoreError | OutcomeUnknown | NotAnswered | AnswerLost)
    return FAILED if unknown else REFUSED, error_detail(error)


async def record_refusal(
    system: LocalSystem, operation: Operation[Any, Any, Any], in_path: Mapping[str, object], error: Exception
) -> None:
    """Append the entry of an operation that its caller may not do."""
    if operation.changes:
        target = "/".join(map(str, in_path.values()))
        await system.audit_log.append(_entry(system, operation, REFUSED, target, str(error)))


def _entry(
    system: LocalSystem, operation: Operation[Any, Any, Any], outcome: str, target: str, detail: str, reason: str = ""
) -> AuditEntry:
    about = {"outcome": outcome, "target": target, "detail": detail, "reason": reason}
    return AuditEntry(system.fleet.store.clock(), operation=operation.name, **about, **encode(system.actor))


def _named(document: object) -> str:
    return next((text for name in NAMES if (text := _text(document, name))), "")


def _text(document: object, name: str) -> str:
    value = getattr(document, name, "")
    return value if isinstance(value, str) else ""


def _told(request: object) -> Iterator[str]:
    for name in TOLD:
        value = getattr(request, name, None)
        if value:
            shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
            yield name if value is True else f"{name} {shown}"
