"""What a client of MCP may not do, although its credential may: a model may act through any of them.

A client is an editor (``Call.editor``): its edits, answers and undos have a scope, wait once untrusted data may have
been read, and wait for the rules of the plan. What reaches around edits is limited here:

* To **cancel a plan** is to cancel every task, now and later: a scope for the editor must allow that without naming
  tasks, and no rule may let a person decide about it.
* To **retry a plan** executes again what has ended. A plan with scopes, rules or untrusted tasks is retried by a
  person. Edits together with a retry are for people: they would pass the checks of edits.
* To **cancel the run** of a task of a plan is to cancel the task, which is an edit.
* The **list of devices** has no text that a machine wrote freely: such a text steers a model. Of its capabilities
  only those are listed that people of the fleet have written; in place of its name, every answer has its alias.

Nothing here depends on what the plan is at a moment, so no edit that comes between makes a check void. To pause and to
resume a plan change nothing in it, and need the scope of the credential alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field

from asterism.api import documents
from asterism.api.edit_operations import MAX_EDITS
from asterism.api.local.device_handlers import device_documents
from asterism.base.http_limits import RequestRefused
from asterism.core.plan.approval import ApprovalRule
from asterism.core.plan.edit_scope import EditScope
from asterism.core.plan.edits import CancelTask
from asterism.core.plan.rule_fields import fits
from asterism.core.run.run_label import PLAN_PREFIX
from asterism.durable.approval_store import rules_of, scopes_of
from asterism.durable.stored_plans import find_plan, read_plan
from asterism.models.device_aliases import plain_capabilities
from asterism.models.fleet_surroundings import fleet_aliases, known_capabilities
from asterism.server.endpoint import Call, Endpoint, NoModel
from asterism.server.operation_endpoint import system_of

CANCEL = CancelTask.op


class WithReason(BaseModel, extra="forbid"):
    reason: str = Field("", max_length=10_000)


class RetryByEditor(BaseModel, extra="forbid"):
    """As ``RetryPlan``, without edits."""

    from_tasks: list[str] = Field([], max_length=MAX_EDITS)
    reason: str = Field("", max_length=10_000)


def cancel_obstacle(scopes: Sequence[EditScope], rules: Sequence[ApprovalRule], editor: str) -> str | None:
    """Why an editor may not cancel a whole plan; None if it may."""
    own = [scope for scope in scopes if scope.is_for(editor)]
    if scopes and not any(not scope.tasks and (not scope.edits or CANCEL in scope.edits) for scope in own):
        return f"no scope of the editor {editor!r} allows {CANCEL} for every task"
    waits = next((rule for rule in rules if _may_match(rule, editor)), None)
    return None if waits is None else f"a person decides about it by the rule {str(waits)!r}"


def _may_match(rule: ApprovalRule, editor: str) -> bool:
    """Whether a rule may match a cancellation by an editor: the tasks that it names may be added at any time, and a
    cost is one of tasks that are added or changed."""
    cancels = rule.cost is None and (not rule.edits or CANCEL in rule.edits)
    return cancels and (not rule.authors or fits(editor, rule.authors))


async def cancel_plan(call: Call) -> Any:
    name = call.path["plan"]
    head = await find_plan(call.fleet, name)
    obstacle = cancel_obstacle(scopes_of(head), rules_of(head)[0], call.editor or call.by)
    if obstacle is not None:
        raise RequestRefused(403, f"{obstacle}. A person cancels it with: asterism plan cancel {name}")
    return await system_of(call).cancel_plan(name, call.body.reason)


async def retry_plan(call: Call) -> Any:
    name = call.path["plan"]
    await find_plan(call.fleet, name)
    stored = (await read_plan(call.fleet, name)).record
    limited = {
        "scopes": bool(scopes_of(stored.head)),
        "rules for approvals": bool(rules_of(stored.head)[0]),
        "untrusted tasks": bool(stored.plan.untrusted),
    }
    found = [what for what, there in limited.items() if there]
    if found:
        words = f"plan {name!r} has {' and '.join(found)}, so an editor does not retry it"
        raise RequestRefused(403, f"{words}. A person does with: asterism plan retry {name}")
    return await system_of(call).retry_plan(name, call.body.from_tasks, reason=call.body.reason)


async def cancel_run(call: Call) -> Any:
    run = await call.fleet.run(call.path["run"])
    if run.workflow.startswith(PLAN_PREFIX):
        plan = run.workflow.removeprefix(PLAN_PREFIX)
        raise RequestRefused(403, f"run {run.id} is a task of plan {plan!r}: cancel it with edit_plan and {CANCEL}")
    return await system_of(call).cancel_run(run.id)


@dataclass(frozen=True, kw_only=True)
class ShownDevice(documents.Document):
    """A device as a model reads it: ``name`` is its alias, and of its capabilities ``can`` has those that people of the
    fleet have written. Its host, what it accepts, its labels and its profile are texts that the machine wrote, so they
    are left out."""

    name: str
    state: str
    coordinator: bool
    can: list[str]
    other_capabilities: Annotated[int, documents.Doc("How many other capabilities the machine claims.")]
    slots: int | None
    used: int
    load: float | None
    battery: float | None
    draining: bool
    joined_at: float
    last_heartbeat_at: float


async def list_devices(call: Call) -> documents.Page[ShownDevice]:
    aliases, known = await fleet_aliases(call.fleet), await known_capabilities(call.fleet)
    devices = await device_documents(call.fleet)
    return documents.Page(items=[_shown_device(device, aliases.shown(device.name), known) for device in devices])


def _shown_device(device: documents.Device, alias: str, known: Collection[str]) -> ShownDevice:
    can = [word for word in plain_capabilities(device.can) if word in known]
    return ShownDevice(
        name=alias,
        state=device.state,
        coordinator=device.coordinator,
        can=can,
        other_capabilities=len(device.can) - len(can),
        slots=device.slots,
        used=device.used,
        load=device.load,
        battery=device.battery,
        draining=device.draining,
        joined_at=device.joined_at,
        last_heartbeat_at=device.last_heartbeat_at,
    )


PLAN, STATE = "/plans/{plan}", documents.PlanState

ENDPOINTS = (
    Endpoint(*("POST", f"{PLAN}/cancel-as-editor", cancel_plan, "Cancel.", "operate", NoModel, WithReason, STATE)),
    Endpoint(
        *("POST", f"{PLAN}/retry-as-editor", retry_plan, "Retry.", "operate", NoModel, RetryByEditor, STATE),
        edits=True,
    ),
    Endpoint(
        *("POST", "/runs/{run}/cancel-as-editor", cancel_run, "Cancel a run.", "operate", NoModel, NoModel),
        answer=documents.Run,
    ),
    Endpoint("GET", "/devices-for-editors", list_devices, "List devices.", answer=documents.Page[ShownDevice]),
)
"""Endpoints of tools only: in the HTTP API, who may operate is a person."""
