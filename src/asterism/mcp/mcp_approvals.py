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
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.elicitation import render_elicitation_schema
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field, ValidationError

from asterism.api import documents
from asterism.api.credentials import Credential
from asterism.api.operation import Operation
from asterism.api.plan_operations import ApprovalNumber, PlanName
from asterism.api.request import Request
from asterism.api.system import LocalSystem
from asterism.base.text import clean, join_names
from asterism.core.plan.edits import ApprovalGone

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


class DecidedEdit(documents.Document):
    """What became of an edit that waits. ``state`` is ``waiting`` if the person has not decided."""

    name: str
    approval: int
    state: str
    why: str
    outcome: documents.EditOutcome | None = None


class AskApproval(Request):
    plan: PlanName
    approval: ApprovalNumber


ask_approval = Operation(
    AskApproval,
    DecidedEdit,
    "Ask the person who uses a client of MCP about an edit that waits.",
    "POST /plans/{plan}/approvals/{approval}/ask",
)
"""Only MCP has it: at the other doors a person decides."""


@dataclass(frozen=True)
class Question:
    """An edit that waits, with secrets masked, about which a person is to be asked."""

    plan: str
    edit: documents.WaitingEdit

    @property
    def message(self) -> str:
        batch = self.edit.batch
        lines = [json.dumps(edit, ensure_ascii=False) for edit in batch["edits"]]
        author, reason = batch.get("author"), batch.get("reason")
        why = f": {clean(reason)}" if reason else ""
        held = [f"It holds: {join_names(self.edit.tasks, MOST_NAMES)}."] if self.edit.tasks else []
        subject = f"Edit by {clean(author or 'somebody')}{why}" if self.edit.task is None else self.edit.reasons[0]
        head = f"Approval {self.edit.id} of plan {self.plan!r}. {clean(subject)}"
        return "\n".join([head, *map(clean, lines), *held])

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
        """Tells the edit that a person has seen from one with the same number in a later plan of the same name."""
        text = json.dumps([self.edit.at, self.edit.batch], sort_keys=True)
        return sha256(text.encode()).hexdigest()[:16]

    @property
    def fits(self) -> bool:
        """Whether a form can show it: a person approves nothing that is not shown."""
        return len(self.message) <= LONGEST_MESSAGE


async def question(system: LocalSystem, plan: str, number: int) -> Question | None:
    """The question about an edit; None if it does not wait any more."""
    waiting = (await system.list_approvals(plan)).items
    return next((Question(plan, edit) for edit in waiting if edit.id == number), None)


async def find_question(system: LocalSystem, request: AskApproval) -> Question:
    """The question that the MCP server puts to the person. Raises ApprovalGone."""
    plan, number = request.plan, request.approval
    asked = await question(system, plan, number)
    if asked is None or not asked.fits:
        words = f"no edit of plan {plan!r} that a form can show waits for approval {number}"
        raise ApprovalGone(f"{words}. A person sees all that wait with: asterism plan approvals {plan}")
    return asked


def can_ask(ctx: Context, caller: Credential) -> bool:
    """Whether the client can show a form to a person, who may decide."""
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        return False
    form, url = capabilities.elicitation.form, capabilities.elicitation.url
    only_links = url is not None and form is None
    return not only_links and caller.allows("operate")


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


async def decide(system: LocalSystem, plan: str, number: int, mark: str, decision: Decision | None) -> DecidedEdit:
    """Carry out a decision about the edit with this mark. Raises ApprovalGone, EditRejected and PlanError."""
    if decision is None:
        return DecidedEdit(name=plan, approval=number, state="waiting", why="nobody has decided yet")
    asked = await question(system, plan, number)
    if asked is None or asked.mark != mark:
        raise ApprovalGone(f"nothing waits for approval {number} of plan {plan!r} any more")
    if decision.decision == "refuse":
        refused = await system.refuse_edit(plan, number, decision.reason)
        return DecidedEdit(name=plan, approval=number, state=refused.state, why=refused.why)
    outcome = await system.approve_edit(plan, number, reason=decision.reason)
    return DecidedEdit(name=plan, approval=number, state="approved", why=decision.reason, outcome=outcome)
