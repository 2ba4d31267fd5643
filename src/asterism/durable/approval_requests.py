"""Approve or refuse a waiting edit of a stored plan, from any process with the store.

The process that runs the plan does it (``plan_requests.py``), with the checks of any edit; if there is none, the asking
process does (``admin.py``). Either way it is one commit, so it happens once or not at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from asterism.core.errors import AlreadyRunning, PlanError
from asterism.core.plan.edits import ApprovalGone, EditBatch, WaitingEdit
from asterism.durable import admin
from asterism.durable.journal_store import read_head
from asterism.durable.plan_requests import (
    ANSWER_TIMEOUT,
    SILENT_FACTOR,
    WITHDRAWAL_TIMEOUT,
    EditAnswer,
    PlanRequest,
    applied_json,
    edit_answer,
)
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.execution import Execution
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import PutRegister, Write
from asterism.store.store_errors import StoreUnavailable


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
    value: dict[str, Any] = {"kind": "approve", "approval": number, "who": by, "reason": reason}
    if batch is not None:
        value["batch"] = batch.to_json()

    async def at_rest(also: list[Write]) -> EditAnswer:
        applied = await admin.change_once(
            fleet, name, lambda waiting, plan: admin.of_rules(waiting, name).approve(number, by, batch, reason), also
        )
        return EditAnswer(applied)

    answer = await _decide(fleet, name, value, at_rest, timeout)
    if isinstance(answer, EditAnswer):
        return answer
    applied_batch = EditBatch.from_json(answer["batch"]) if "batch" in answer else EditBatch(())
    return edit_answer(applied_batch, answer)


async def refuse_edit(
    fleet: Fleet, name: str, number: int, reason: str = "", *, who: str | None = None, timeout: float = ANSWER_TIMEOUT
) -> WaitingEdit:
    """Drop a waiting edit. Durable on return. Raises ApprovalGone, and what ``approve_edit`` raises."""
    by = who or fleet.by
    value = {"kind": "refuse", "approval": number, "who": by, "reason": reason}

    async def at_rest(also: list[Write]) -> WaitingEdit:
        return await admin.change_once(
            fleet, name, lambda waiting, plan: admin.of_rules(waiting, name).refuse(number, by, reason), also
        )

    answer = await _decide(fleet, name, value, at_rest, timeout)
    return answer if isinstance(answer, WaitingEdit) else WaitingEdit.from_json(answer["refused"])


async def _decide(
    fleet: Fleet, name: str, value: Mapping[str, Any], at_rest: Callable[[list[Write]], Awaitable[Any]], timeout: float
) -> Any:
    """What ``at_rest`` returns, if no process runs the plan; otherwise the answer of that process."""
    head, _ = await read_head(fleet.store, name)
    await admin.check_not_cancelled(fleet.store, head, "edited")
    request = PlanRequest(fleet, name, value)

    async def here() -> Any:
        found = await request.read()
        if "answer" in found.value:
            return None
        return await at_rest([PutRegister(request.key, None, found.revision)])

    await request.send()
    try:
        while True:
            answer = await request.wait(timeout, SILENT_FACTOR * timeout)
            if answer is not None:
                return _checked(answer)
            with contextlib.suppress(AlreadyRunning):  # a process has just taken it over
                done = await retry_on_conflict(here)
                if done is not None:
                    return done
    except asyncio.CancelledError:
        with contextlib.suppress(TimeoutError, StoreUnavailable):
            async with asyncio.timeout(WITHDRAWAL_TIMEOUT):
                await request.withdraw()
        raise
    except Exception:
        late = await request.withdraw()
        if late is not None:  # a process answered before that
            return _checked(late)
        raise


def _checked(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if "gone" in answer:
        raise ApprovalGone(str(answer["gone"]))
    if "error" in answer:
        raise PlanError(str(answer["error"]))
    return answer


def approval_answers(execution: Execution) -> dict[str, Callable[..., dict[str, Any]]]:
    """What answers these requests, in the process that runs the plan."""

    def approve(request: Mapping[str, Any]) -> dict[str, Any]:
        batch = EditBatch.from_json(request["batch"]) if "batch" in request else None
        try:
            reason = request.get("reason", "")  # an earlier version sends none
            applied = execution.waiting.approve(request["approval"], request["who"], batch, reason)
        except ApprovalGone as error:
            return {"gone": str(error)}
        return {**applied_json(applied), "batch": applied.batch.to_json()}

    def refuse(request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {
                "refused": execution.waiting.refuse(request["approval"], request["who"], request["reason"]).to_json()
            }
        except ApprovalGone as error:
            return {"gone": str(error)}

    return {"approve": approve, "refuse": refuse}
