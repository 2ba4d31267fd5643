"""Edits that wait for a person, asked through elicitation: the client shows the edit, and its person decides.

No tool takes a decision as an argument, so a model cannot approve its own edits: the decision comes with the answer to
an elicitation, which the client gets from a person. Only a credential that may operate is asked, as in the HTTP API.

A client of the revision 2026-07-28 gets the question as the result of its call, and repeats the call with the answer.
What the call was about travels along as a sealed state. An older client is asked with a request of the server during
the call. Either way the edit is kept in the store meanwhile: if nobody answers, it goes on waiting.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.elicitation import render_elicitation_schema
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_jsonable_python

from asterism.api import documents
from asterism.api.local import plan_documents
from asterism.api.local.edit_handlers import shown_approvals
from asterism.base.text import clean, join_names
from asterism.core.plan.approval import WAITING, ApprovalGone, WaitingEdit
from asterism.durable.approval_requests import approve_edit, refuse_edit
from asterism.durable.approval_store import list_approvals
from asterism.durable.stored_plans import find_plan
from asterism.fleet.fleet import Fleet
from asterism.server.endpoint import Call, Endpoint, NoModel
from asterism.server.request_guard import Caller

Context: TypeAlias = ServerRequestContext[Any, Any]

ANSWER_TIMEOUT = 600.0
"""How long a call waits until the person of an older client has decided, in seconds."""

KEY = "decision"
"""The name of the question in the result of a call."""

MOST_NAMES = 20
"""How many tasks that an edit holds are named."""

LONGEST_MESSAGE = 20_000
"""How many characters a form shows."""


class Decision(BaseModel):
    """What a person is asked."""

    decision: Literal["approve", "refuse"] = Field(description="Approve the edit, or refuse it.")
    reason: str = Field("", max_length=1000, description="Why; the author of the edit reads it.")


@dataclass(frozen=True, kw_only=True)
class DecidedEdit(documents.Document):
    """What became of an edit that waits. ``state`` is ``waiting`` if the person has not decided."""

    name: str
    approval: int
    state: str
    why: str
    outcome: documents.EditOutcome | None = None


@dataclass(frozen=True)
class Question:
    """An edit that waits, and about which a person is to be asked. ``shown`` is the edit with secrets masked."""

    plan: str
    edit: WaitingEdit
    shown: Mapping[str, Any]

    @property
    def message(self) -> str:
        batch, edits = self.edit.batch, self.shown["batch"]["edits"]
        lines = [json.dumps(one, ensure_ascii=False) for one in edits]
        author, why = clean(batch.author or "somebody"), f": {clean(batch.reason)}" if batch.reason else ""
        held = f"It holds: {join_names(list(self.edit.tasks), MOST_NAMES)}." if self.edit.tasks else ""
        return "\n".join(
            [
                f"Approval {self.edit.id} of plan {self.plan!r}. Edit by {author}{why}",
                *map(clean, lines),
                *([held] if held else []),
            ]
        )

    @property
    def request(self) -> types.ElicitRequest:
        schema = render_elicitation_schema(Decision)
        return types.ElicitRequest(params=types.ElicitRequestFormParams(message=self.message, requested_schema=schema))

    @property
    def state(self) -> str:
        """What a client sends back with its answer; it is sealed on the way."""
        return json.dumps({"plan": self.plan, "approval": self.edit.id, "mark": self.mark})

    @property
    def mark(self) -> str:
        return _mark(self.edit)


def _mark(edit: WaitingEdit) -> str:
    """Tells the edit that a person has seen from one with the same number in a later plan of the same name."""
    return sha256(json.dumps([edit.at, edit.batch.to_json()], sort_keys=True).encode()).hexdigest()[:16]


async def question(call: Call, plan: str, number: int) -> Question | None:
    """The question about an edit; None if it does not wait any more, or is too long for a form: a person approves
    nothing that is not shown."""
    for edit in await list_approvals(call.fleet.store, plan):
        if edit.id == number and edit.state == WAITING:
            [shown] = await shown_approvals(call.fleet, plan, [edit])
            asked = Question(plan, edit, to_jsonable_python(shown))
            return asked if len(asked.message) <= LONGEST_MESSAGE else None
    return None


def can_ask(ctx: Context, caller: Caller) -> bool:
    """Whether the client can show a form to a person, who may decide."""
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        return False
    form, url = capabilities.elicitation.form, capabilities.elicitation.url
    only_links = url is not None and form is None
    return not only_links and caller.credential.allows("operate")


async def ask(ctx: Context, asked: Question) -> types.InputRequiredResult | Decision | None:
    """The decision of the person; None if there is none; or the question as the result of the call."""
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return types.InputRequiredResult(input_requests={KEY: asked.request}, request_state=asked.state)
    schema = render_elicitation_schema(Decision)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            answer = await ctx.session.elicit_form(asked.message, schema, related_request_id=ctx.request_id)
    except (TimeoutError, MCPError):
        return None
    return decision_of(answer)


def decision_of(answer: object) -> Decision | None:
    """What a person has decided, from the answer to an elicitation; None if nothing."""
    if not isinstance(answer, types.ElicitResult) or answer.action != "accept":
        return None
    try:
        return Decision.model_validate(answer.content or {})
    except ValidationError:
        return None


async def decide(fleet: Fleet, plan: str, number: int, mark: str, decision: Decision | None) -> dict[str, Any]:
    """Carry out a decision about the edit with this mark, and return it as a ``DecidedEdit``. Raises ApprovalGone,
    EditRejected and PlanError."""
    found = {"name": plan, "approval": number, "state": "waiting", "why": "nobody has decided yet", "outcome": None}
    if decision is None:
        return found
    edits = await list_approvals(fleet.store, plan)
    if not any(one.id == number and one.state == WAITING and _mark(one) == mark for one in edits):
        raise ApprovalGone(f"no edit waits for approval {number} of plan {plan!r} any more")
    if decision.decision == "refuse":
        refused = await refuse_edit(fleet, plan, number, decision.reason)
        return {**found, "state": refused.state, "why": refused.why}
    done = await approve_edit(fleet, plan, number, reason=decision.reason)
    outcome = to_jsonable_python(plan_documents.edit_outcome(plan, done, dry_run=False))
    return {**found, "state": "approved", "why": decision.reason, "outcome": outcome}


async def ask_approval(call: Call) -> Any:
    """The question, which the MCP server puts to the person."""
    plan, text = call.path["plan"], call.path["approval"]
    await find_plan(call.fleet, plan)
    asked = await question(call, plan, int(text)) if text.isdecimal() else None
    if asked is None:
        words = f"no edit of plan {plan!r} that a form can show waits for approval {text}"
        raise ApprovalGone(f"{words}. A person sees all that wait with: asterism plan approvals {plan}")
    return asked


ENDPOINTS = (
    Endpoint(
        *("POST", "/plans/{plan}/approvals/{approval}/ask", ask_approval, "Ask a person.", "operate", NoModel, NoModel),
        answer=DecidedEdit,
    ),
)
