"""Errors as problem documents (RFC 9457): one table from errors of the library to HTTP statuses, for every door.

The type of a problem is ``urn:asterism:problem:NAME``; programs compare it, people read the detail. An edit that was
rejected carries all its violations, a plan file all its mistakes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from asterism.api.credentials import InvalidScope, LoginRefused, ScopeMissing, UnknownCredential
from asterism.api.local.edit_handlers import InvalidEdits
from asterism.api.operation import KeyReused, NoProposal, NotKept, OutcomeLost
from asterism.base.http_limits import RequestRefused
from asterism.base.text import clean
from asterism.core.errors import (
    AsterismError,
    EditRejected,
    InvalidTask,
    InvalidWorkflow,
    NotJson,
    PlanOverlaps,
    RunRefused,
    UnknownTask,
)
from asterism.core.json_values import JsonObject
from asterism.core.limits import InvalidLimit, UnknownLimit
from asterism.core.plan.assignment_lock import CycleClaimed, CycleGone
from asterism.core.plan.edits import ApprovalForbidden, ApprovalGone, EditWaits
from asterism.core.record import InvalidRecord, Mistake, decode, mistakes
from asterism.core.run.run_label import InvalidTemplate
from asterism.core.schedule.schedule import InvalidSchedule
from asterism.core.schedule.tick_values import InvalidTick
from asterism.core.series.machine import UnreadableSeries
from asterism.durable.journal_store import ConstellationExists, UnknownConstellation
from asterism.durable.plan_actor import AnswerLost, NotAnswered
from asterism.durable.plan_history import VersionUnknown
from asterism.execution.artifacts import ArtifactProblem
from asterism.fleet.bulk_creation import InvalidInput
from asterism.fleet.fleet import InvalidTerms, UnknownDevice
from asterism.fleet.ledger import UnknownRun
from asterism.fleet.run_queries import AmbiguousRun, NoSuchRun, UnknownBatch
from asterism.fleet.schedules import BackfillRuns, ScheduleExists, UnknownBackfill, UnknownSchedule
from asterism.fleet.sent_events import InvalidEvent
from asterism.fleet.settings import InvalidSettings
from asterism.fleet.stored_limits import LimitNotSet
from asterism.fleet.workflows import MissingInput, UnknownWorkflow, WorkflowInUse
from asterism.gateway.enrolment import ReservedName, UnknownEnrolment
from asterism.planfile.loader import BadPlan
from asterism.series.compare_and_swap import Contended
from asterism.series.register import BadSeriesName, NotClaimable, OutcomeUnknown, RegisterUnavailable, UnknownSeries
from asterism.store.store_errors import StoreCorrupt, StoreError, StoreUnavailable

log = logging.getLogger("asterism.api")

PREFIX = "urn:asterism:problem:"

Kind = TypeVar("Kind")


class InvalidRequest(AsterismError):
    """A request whose fields are not valid; ``mistakes`` are all that is wrong with them."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = mistakes
        super().__init__("the request is not valid")


STATUSES: tuple[tuple[type[AsterismError], int, str], ...] = (
    (InvalidRequest, 422, "invalid-request"),
    (EditRejected, 422, "edit-rejected"),
    (EditWaits, 409, "edit-waits"),
    (NoProposal, 422, "no-proposal"),
    (ApprovalGone, 404, "unknown-approval"),
    (ApprovalForbidden, 403, "approval-forbidden"),
    (CycleGone, 404, "unknown-cycle"),
    (CycleClaimed, 409, "cycle-claimed"),
    (UnknownConstellation, 404, "unknown-plan"),
    (UnknownTask, 404, "unknown-task"),
    (VersionUnknown, 404, "unknown-version"),
    (ArtifactProblem, 404, "unknown-file"),
    (UnknownRun, 404, "unknown-run"),
    (UnknownBatch, 404, "unknown-batch"),
    (UnknownDevice, 404, "unknown-device"),
    (LimitNotSet, 404, "unknown-limit"),
    (UnknownLimit, 422, "limit-not-set"),
    (InvalidLimit, 422, "invalid-limit"),
    (UnknownSchedule, 404, "unknown-schedule"),
    (UnknownWorkflow, 404, "unknown-workflow"),
    (WorkflowInUse, 409, "workflow-in-use"),
    (UnknownCredential, 404, "unknown-token"),
    (UnknownEnrolment, 404, "unknown-device"),
    (ReservedName, 422, "invalid-name"),
    (BadPlan, 422, "invalid-plan"),
    (InvalidSchedule, 422, "invalid-schedule"),
    (InvalidTick, 422, "invalid-tick"),
    (InvalidWorkflow, 422, "invalid-workflow"),
    (InvalidSettings, 422, "invalid-settings"),
    (InvalidEvent, 422, "invalid-event"),
    (ScopeMissing, 403, "scope-missing"),
    (InvalidScope, 422, "invalid-scope"),
    (BadSeriesName, 422, "invalid-series"),
    (InvalidEdits, 422, "invalid-edits"),
    (InvalidTask, 422, "invalid-task"),
    (NotJson, 422, "invalid-value"),
    (UnknownSeries, 404, "unknown-series"),
    (UnreadableSeries, 409, "series-unreadable"),
    (NotClaimable, 409, "series-refused"),
    (Contended, 409, "series-contended"),
    (OutcomeUnknown, 504, "answer-lost"),
    (RegisterUnavailable, 503, "store-unavailable"),
    (ConstellationExists, 409, "plan-exists"),
    (PlanOverlaps, 409, "plan-overlaps"),
    (NoSuchRun, 404, "unknown-run"),
    (AmbiguousRun, 409, "ambiguous-run"),
    (MissingInput, 422, "missing-input"),
    (InvalidInput, 422, "invalid-input"),
    (InvalidTerms, 422, "invalid-run"),
    (InvalidTemplate, 422, "invalid-template"),
    (ScheduleExists, 409, "schedule-exists"),
    (BackfillRuns, 409, "backfill-runs"),
    (UnknownBackfill, 404, "unknown-backfill"),
    (RunRefused, 409, "run-refused"),
    (NotAnswered, 504, "not-answered"),
    (AnswerLost, 504, "answer-lost"),
    (KeyReused, 422, "key-reused"),
    (NotKept, 409, "answer-not-kept"),
    (OutcomeLost, 504, "answer-lost"),
    (LoginRefused, 403, "login-refused"),
    (StoreUnavailable, 503, "store-unavailable"),
    (StoreError, 503, "store-unavailable"),
    (AsterismError, 409, "refused"),
)
"""The status and the name of each error. The first class that matches counts."""


def problem_json(status: int, detail: str, name: str | None = None, **more: Any) -> JsonObject:
    """A problem document."""
    return {
        "type": f"{PREFIX}{name}" if name is not None else "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": clean(detail),
        **more,
    }


def error_json(error: Exception, where: str, plan: str | None = None) -> JsonObject:
    """The problem document of an error. ``where`` is for the log; ``plan`` is the plan of the request."""
    if isinstance(error, RequestRefused):
        return problem_json(error.status, str(error))
    for kind, status, name in STATUSES:
        if isinstance(error, kind):
            if status >= 500:
                log.warning("%s: %s", where, error)
            return problem_json(status, error_detail(error, plan), name, **_more(error))
    log.exception("internal error: %s", where, exc_info=error)
    return problem_json(500, "internal error; see the log of the server", "internal-error")


def error_detail(error: Exception, plan: str | None = None) -> str:
    """What a caller learns of an error about a plan."""
    if isinstance(error, RunRefused):  # its story is not part of the sentence
        return f"run {error.run_id}: {error.why}"
    if isinstance(error, EditRejected):
        return "the edit was rejected, and nothing has changed"
    if isinstance(error, BadPlan):
        return "the plan file has mistakes"
    if isinstance(error, UnknownConstellation):  # its message names the store, and plans that are not the caller's
        return "there is no such plan" if plan is None else f"there is no plan {plan!r}"
    if isinstance(error, ConstellationExists):
        return "there is a plan of this name already: give this one another name"
    if isinstance(error, StoreCorrupt):  # its message names the store
        return "the store is damaged; the log of the server and 'asterism store check' say where"
    if isinstance(error, StoreError):
        return "the store is unavailable: try again later"  # its message may name a file or a host
    return str(error)


def _more(error: Exception) -> Mapping[str, Any]:
    if isinstance(error, InvalidRequest):
        return {"violations": [violation_json(None, mistake.kind, mistake.text) for mistake in error.mistakes]}
    if isinstance(error, EditRejected):
        return {
            "violations": [
                violation_json(violation.edit, violation.rule, violation.message) for violation in error.violations
            ]
        }
    if isinstance(error, InvalidEdits):
        return {"violations": [violation_json(edit, "invalid_edit", why) for edit, why in error.reasons.items()]}
    if isinstance(error, InvalidInput):
        return {"violations": [violation_json(error.index, "invalid_input", error.why)]}
    if isinstance(error, EditWaits):
        return {"approval": error.approval.id}
    if isinstance(error, BadPlan):
        return {
            "violations": [violation_json(None, "plan_file", mistake.format(error.name)) for mistake in error.mistakes]
        }
    return {}


def violation_json(edit: int | None, rule: str, message: str) -> JsonObject:
    return {"edit": edit, "rule": rule, "message": clean(message)}


# -- requests of operations as they come from outside ------------------------------------------------------------------


WITH_SLASH = frozenset({"task", "device", "series", "batch", "limit"})
"""Names in paths that may have a ``/``. In the keys of a store it separates the others."""


def read_request(kind: type[Kind], fields: Any) -> Kind:
    """A request with these fields. A number may be a text, as it is in an address. Raises InvalidRequest."""
    try:
        return decode(kind, fields, strict=False)
    except InvalidRecord:
        raise InvalidRequest(mistakes(kind, fields, strict=False)) from None


def checked_name(kind: str, value: str) -> str:
    """A name in a path. Names are keys in the store and never paths of files, but what cannot be a name is refused
    before anything looks for it. Raises RequestRefused."""
    printable = bool(value) and len(value) <= 500 and value.isprintable()
    if not printable or ("/" in value and kind not in WITH_SLASH):
        raise RequestRefused(404, f"no {kind} has such a name")
    return value
