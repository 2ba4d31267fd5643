"""Operations of editors and of the people who watch them: edits, edit cycles, approvals and budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Limit, Operation, Reason
from asterism.api.quick_dataclass import Request
from asterism.core.json_values import JsonObject

if TYPE_CHECKING:
    from asterism.core.plan.edits import Edit
else:  # a server reads JSON, and a command need not import what edits are made of
    Edit = Mapping[str, Any]

READ = "observe plan {plan}"
EDIT = "edit {plan}"
MAX_EDITS = 5_000
"""How many edits one batch may have."""

LONGEST_LEASE = 86_400.0
"""The longest claim of a cycle, in seconds."""

PlanName = Annotated[str, Limit(min_length=1, max_length=500), Doc("The name of the plan.")]
Author = Annotated[
    str | None, Limit(min_length=1, max_length=500), Doc("Default: the caller. A server refuses another name.")
]
CycleNumber = Annotated[int, Doc("The number of the edit cycle.")]
ApprovalNumber = Annotated[int, Doc("The number of the edit that waits.")]
Timeout = Annotated[
    float, Limit(ge=0, le=3600), Doc("How long to wait for the process that runs the plan, in seconds.")
]


class _JsonEdits:
    """Edits are objects of a program or JSON; a server reads the JSON."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return handler.generate_schema(list[JsonObject])


Edits = Annotated[Sequence[Edit | Mapping[str, Any]], _JsonEdits(), Limit(max_length=MAX_EDITS)]
"""Edits, all or none, as objects or as JSON; docs/reference/edits.md has their forms."""


def edits_json(edits: Iterable[Edit | Mapping[str, Any]]) -> list[JsonObject]:
    return [dict(edit) if isinstance(edit, Mapping) else edit.to_json() for edit in edits]


class EditPlan(Request):
    """A batch of edits, all or none. With ``dry_run`` it is only checked."""

    plan: PlanName
    edits: Edits
    reason: Reason = ""
    base_version: Annotated[int | None, Doc("The version that the author has seen.")] = None
    dry_run: bool = False
    author: Author = None
    timeout: Timeout = 10.0


class UndoEdit(Request):
    plan: PlanName
    reason: Reason = ""
    dry_run: bool = False
    timeout: Timeout = 10.0


class EditorsOf(Request):
    plan: PlanName


class ClaimCycle(Request):
    """``lease`` is how long other editors stay away, in seconds. To claim it again renews the claim."""

    plan: PlanName
    cycle: CycleNumber
    lease: Annotated[float, Limit(gt=0, le=LONGEST_LEASE)] = 60.0
    author: Author = None
    timeout: Timeout = 10.0


class AnswerCycle(Request):
    """The edits of an answer; without any, the plan goes on as it is."""

    plan: PlanName
    cycle: CycleNumber
    edits: Edits = field(default_factory=list)
    reason: Reason = ""
    base_version: Annotated[int | None, Doc("Default: the version of the cycle.")] = None
    author: Author = None
    timeout: Timeout = 10.0


class ListApprovals(Request):
    plan: PlanName
    all: Annotated[bool, Doc("Also the newest edits that were decided.")] = False


class ApproveEdit(Request):
    """``edits`` take the place of the edits that wait; without them, these are applied."""

    plan: PlanName
    approval: ApprovalNumber
    edits: Annotated[Edits | None, Doc("Null: as they are.")] = None
    reason: Reason = ""
    author: Author = None
    timeout: Timeout = 10.0


class RefuseEdit(Request):
    plan: PlanName
    approval: ApprovalNumber
    reason: Reason = ""
    author: Author = None
    timeout: Timeout = 10.0


class ListExchanges(Request):
    plan: PlanName
    number: Annotated[int | None, Limit(ge=1, le=999_999_999), Doc("Only the exchange of this number.")] = None


class DecideBudget(Request):
    """``limits`` as text, such as ``$5 80calls``; or ``without_editor``."""

    plan: PlanName
    limits: Annotated[str | None, Limit(max_length=200), Doc("New limits; the others stay.")] = None
    without_editor: Annotated[bool, Doc("The plan goes on without its editor.")] = False
    reason: Reason = ""


class EditOperations:
    edit_plan = Operation(
        EditPlan,
        documents.EditOutcome,
        "Edit a plan, all or nothing.",
        "POST /plans/{plan}/edits",
        needs=EDIT,
        edits=True,
    )
    undo_edit = Operation(
        UndoEdit,
        documents.EditOutcome,
        "Undo the newest edit of a plan.",
        "POST /plans/{plan}/undo",
        needs=EDIT,
        edits=True,
    )
    list_cycles = Operation(
        EditorsOf, documents.Cycles, "The open edit cycles.", "GET /plans/{plan}/cycles", needs=READ
    )
    claim_cycle = Operation(
        ClaimCycle,
        documents.CycleDetails,
        "Claim an edit cycle while thinking about it.",
        "POST /plans/{plan}/cycles/{cycle}/claim",
        needs=EDIT,
    )
    answer_cycle = Operation(
        AnswerCycle,
        documents.EditOutcome,
        "Answer an edit cycle.",
        "POST /plans/{plan}/cycles/{cycle}/answer",
        needs=EDIT,
        edits=True,
    )
    list_approvals = Operation(
        ListApprovals,
        documents.Page[documents.WaitingEdit],
        "Edits that wait for a person.",
        "GET /plans/{plan}/approvals",
        needs=READ,
    )
    approve_edit = Operation(
        ApproveEdit,
        documents.EditOutcome,
        "Approve an edit that waits, as it is or changed.",
        "POST /plans/{plan}/approvals/{approval}/approve",
        edits=True,
    )
    refuse_edit = Operation(
        RefuseEdit, documents.WaitingEdit, "Drop an edit that waits.", "POST /plans/{plan}/approvals/{approval}/refuse"
    )
    show_budget = Operation(
        EditorsOf,
        documents.EditorBudget,
        "What the model that edits a plan may spend, and has spent.",
        "GET /plans/{plan}/budget",
        needs=READ,
    )
    list_exchanges = Operation(
        ListExchanges,
        documents.Page[documents.Exchange],
        "The exchanges with the model that edits a plan, or one of them.",
        "GET /plans/{plan}/exchanges",
        needs=READ,
    )
    decide_budget = Operation(
        DecideBudget,
        documents.EditorBudget,
        "Raise the budget of its editor, or let the plan go on without it.",
        "POST /plans/{plan}/budget",
    )
