"""Edit cycles, approvals and budgets over HTTP.

Cycles are listed, claimed and answered; edits that wait are listed, approved and refused; the budget of a model that
edits is shown and raised.

A cycle is answered by a caller who may edit the plan, in the name of its credential. An edit that waits for a person is
decided by a caller who may operate: a credential for edits alone does not approve its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import BaseModel, Field

from asterism.api import documents
from asterism.base.http_limits import RequestRefused
from asterism.core.plan.approval import WAITING, WaitingEdit
from asterism.durable.approval_requests import approve_edit, refuse_edit
from asterism.durable.approval_store import list_approvals
from asterism.durable.cycle_requests import LEASE, answer_cycle, claim_cycle, list_cycles
from asterism.durable.editor_budget import (
    Budget,
    InvalidBudget,
    go_on_without_editor,
    raise_budget,
    read_account,
)
from asterism.durable.journal_store import load
from asterism.durable.stored_plans import find_plan
from asterism.server import plan_documents
from asterism.server.endpoint import Call, Endpoint, NoModel
from asterism.server.plan_routes import EDIT, MAX_EDITS, READ, WithReason, batch_of_edits, check_size

LONGEST_LEASE = 86_400.0
"""The longest claim of a cycle, in seconds."""


class Claim(BaseModel, extra="forbid"):
    """``lease`` is how long other editors stay away, in seconds. To claim it again renews the claim."""

    lease: float = Field(LEASE, gt=0, le=LONGEST_LEASE)


class Answer(BaseModel, extra="forbid"):
    """The edits of an answer; without any, the plan goes on as it is."""

    edits: list[dict[str, Any]] = Field([], max_length=MAX_EDITS)
    reason: str = Field("", max_length=10_000)
    base_version: int | None = Field(None, description="Default: the version of the cycle.")


class Approval(BaseModel, extra="forbid"):
    """``edits`` take the place of the edits that wait; without them, these are applied."""

    edits: list[dict[str, Any]] | None = Field(None, min_length=1, max_length=MAX_EDITS)
    reason: str = Field("", max_length=10_000)


class ApprovalsQuery(BaseModel, extra="forbid"):
    all: bool = Field(False, description="Also the newest edits that were decided.")


async def show_cycles(call: Call) -> Any:
    name = call.path["plan"]
    await find_plan(call.fleet, name)
    found = await list_cycles(call.fleet, name)
    return {"items": [one.to_json() for one in found.cycles], "answered_by": found.by, "next": None}


async def claim(call: Call) -> Any:
    name = call.path["plan"]
    await find_plan(call.fleet, name)
    found = await claim_cycle(call.fleet, name, _number(call, "cycle"), lease=call.body.lease)
    return found.to_json()


async def answer(call: Call) -> Any:
    name, given = call.path["plan"], call.body
    await find_plan(call.fleet, name)
    batch = replace(batch_of_edits(given.edits), author=call.by, reason=given.reason, base_version=given.base_version)
    await check_size(call, name, batch)
    done = await answer_cycle(call.fleet, name, _number(call, "cycle"), batch)
    return plan_documents.edit_outcome(name, done, dry_run=False)


async def show_approvals(call: Call) -> Any:
    name = call.path["plan"]
    await find_plan(call.fleet, name)
    found = [one for one in await list_approvals(call.fleet.store, name) if call.query.all or one.state == WAITING]
    return {"items": await shown_approvals(call, name, found), "next": None}


async def shown_approvals(call: Call, name: str, found: list[WaitingEdit]) -> list[dict[str, Any]]:
    """Edits that wait, with secrets masked."""
    if not found:
        return []
    return await plan_documents.approvals_json(call.fleet, await load(call.fleet.store, name), found)


async def approve(call: Call) -> Any:
    name, given = call.path["plan"], call.body
    await find_plan(call.fleet, name)
    batch = None
    if given.edits is not None:
        batch = replace(batch_of_edits(given.edits), author=call.by, reason=given.reason)
        await check_size(call, name, batch)
    done = await approve_edit(call.fleet, name, _number(call, "approval"), batch, given.reason)
    return plan_documents.edit_outcome(name, done, dry_run=False)


async def refuse(call: Call) -> Any:
    name = call.path["plan"]
    await find_plan(call.fleet, name)
    decided = await refuse_edit(call.fleet, name, _number(call, "approval"), call.body.reason)
    return (await shown_approvals(call, name, [decided]))[0]


class BudgetDecision(BaseModel, extra="forbid"):
    """``limits`` as text, such as ``$5 80calls``; or ``without_editor``."""

    limits: str | None = Field(None, max_length=200, description="New limits; the others stay.")
    without_editor: bool = Field(False, description="The plan goes on without its editor.")


async def show_budget(call: Call) -> Any:
    name = call.path["plan"]
    await find_plan(call.fleet, name)
    account = await read_account(call.fleet.store, name)
    if account is None:
        raise RequestRefused(404, f"plan {name!r} has no budget: no model has been asked to edit it")
    return plan_documents.budget_json(account)


async def decide_budget(call: Call) -> Any:
    name, given = call.path["plan"], call.body
    await find_plan(call.fleet, name)
    if (given.limits is None) == (not given.without_editor):
        raise RequestRefused(422, "give either limits or without_editor")
    if given.without_editor:
        return plan_documents.budget_json(await go_on_without_editor(call.fleet, name))
    try:
        return plan_documents.budget_json(await raise_budget(call.fleet, name, Budget.parse(given.limits)))
    except InvalidBudget as error:
        raise RequestRefused(422, str(error)) from None


def _number(call: Call, parameter: str) -> int:
    text = call.path[parameter]
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise RequestRefused(404, f"a number of a {parameter} is a whole number")
    return int(text)


Outcome, Waiting = documents.EditOutcome, documents.WaitingEdit
CYCLES, WAITING_EDITS = "/plans/{plan}/cycles", "/plans/{plan}/approvals"
BUDGET = "/plans/{plan}/budget"
CYCLE, EDIT_PATH = f"{CYCLES}/{{cycle}}", f"{WAITING_EDITS}/{{approval}}"

ENDPOINTS = (
    Endpoint("GET", CYCLES, show_cycles, "The open edit cycles.", READ, answer=documents.Cycles),
    Endpoint("POST", f"{CYCLE}/claim", claim, "Claim a cycle.", EDIT, NoModel, Claim, documents.CycleDetails),
    Endpoint("POST", f"{CYCLE}/answer", answer, "Answer a cycle.", EDIT, NoModel, Answer, Outcome, edits=True),
    Endpoint(
        *("GET", WAITING_EDITS, show_approvals, "Edits that wait for a person.", READ, ApprovalsQuery),
        answer=documents.Page[documents.WaitingEdit],
    ),
    Endpoint("POST", f"{EDIT_PATH}/approve", approve, "Approve it.", "operate", NoModel, Approval, Outcome, edits=True),
    Endpoint("POST", f"{EDIT_PATH}/refuse", refuse, "Refuse it.", "operate", NoModel, WithReason, Waiting),
    Endpoint(
        "GET", BUDGET, show_budget, "What the model that edits it has spent.", READ, answer=documents.EditorBudget
    ),
    Endpoint(
        *("POST", BUDGET, decide_budget, "Raise its budget, or go on without an editor.", "operate", NoModel),
        *(BudgetDecision, documents.EditorBudget),
    ),
)
