"""Approve or refuse a waiting edit of a stored plan, from any process with the store.

The process that runs the plan does it (``plan_requests.py``), with the checks of any edit; if there is none, the asking
process does (``admin.py``). Either way it is one commit, so it happens once or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.core.plan.apply import Applied
from asterism.core.plan.edits import EditBatch, WaitingEdit
from asterism.durable import admin
from asterism.durable.journal_store import read_head
from asterism.durable.plan_requests import (
    ANSWER_TIMEOUT,
    EditAnswer,
    RequestKind,
    RunningPlan,
    applied_json,
    ask,
    batch_of,
    read_applied,
)
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Write


async def approve_edit(
    fleet: Fleet,
    name: str,
    number: int,
    batch: EditBatch | None = None,
    reason: str = "",
    *,
    who: str | None = None,
    timeout: float = ANSWER_TIMEOUT,
) -> EditAnswer:
    """Apply a waiting edit, or ``batch`` in its place; ``reason`` is kept with it. Durable on return. Raises
    ApprovalGone; EditRejected, with the edit still waiting; PlanError if the plan is being cancelled; NotAnswered and
    AnswerLost."""
    by = who or fleet.by
    request: dict[str, Any] = {"approval": number, "who": by, "reason": reason}
    if batch is not None:
        request["batch"] = batch

    async def at_rest(also: list[Write]) -> Applied:
        return await admin.change_once(
            fleet, name, lambda waiting, plan: admin.of_rules(waiting, name).approve(number, by, batch, reason), also
        )

    head, _ = await read_head(fleet.store, name)
    await admin.check_not_cancelled(fleet.store, head, "edited")
    return EditAnswer(*await ask(fleet, name, APPROVE, request, timeout=timeout, at_rest=at_rest))


async def refuse_edit(
    fleet: Fleet, name: str, number: int, reason: str = "", *, who: str | None = None, timeout: float = ANSWER_TIMEOUT
) -> WaitingEdit:
    """Drop a waiting edit. Durable on return. Raises ApprovalGone, and what ``approve_edit`` raises."""
    by = who or fleet.by
    request = {"approval": number, "who": by, "reason": reason}

    async def at_rest(also: list[Write]) -> WaitingEdit:
        return await admin.change_once(
            fleet, name, lambda waiting, plan: admin.of_rules(waiting, name).refuse(number, by, reason), also
        )

    head, _ = await read_head(fleet.store, name)
    await admin.check_not_cancelled(fleet.store, head, "edited")
    return (await ask(fleet, name, REFUSE, request, timeout=timeout, at_rest=at_rest))[0]


def _approve(owner: RunningPlan, request: Mapping[str, Any]) -> Applied:
    return owner.execution.waiting.approve(request["approval"], request["who"], batch_of(request), request["reason"])


def _refuse(owner: RunningPlan, request: Mapping[str, Any]) -> WaitingEdit:
    return owner.execution.waiting.refuse(request["approval"], request["who"], request["reason"])


APPROVE = RequestKind(
    "approve",
    _approve,
    lambda applied: {**applied_json(applied), "batch": applied.batch.to_json()},
    read_applied,
)
REFUSE = RequestKind(
    "refuse",
    _refuse,
    lambda edit: {"refused": edit.to_json()},
    lambda request, answer: WaitingEdit.from_json(answer["refused"]),
)
