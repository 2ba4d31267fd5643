"""The Tasks extension of MCP (``io.modelcontextprotocol/tasks``): long work as a handle that the client polls.

A task is a run or a plan that is followed, and its id names it. The server keeps nothing of its own: ``tasks/get``
reads the store with the rights of its caller. So a task outlives its connection and the server, and to know its id is
of no use without a credential. While edits of a plan wait for a person, its task is ``input_required``: the questions
come with ``tasks/get``, and ``tasks/update`` brings the decisions. ``tasks/cancel`` cancels what the call began; a call
that only follows has nothing to cancel, and is acknowledged.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from asterism.core.errors import AsterismError
from asterism.core.plan.approval import ApprovalGone
from asterism.mcp import mcp_approvals
from asterism.mcp.mcp_approvals import Context
from asterism.mcp.mcp_tools import TOOLS, call_of, call_tool
from asterism.mcp.mcp_waits import Work, WorkState, read_work
from asterism.server.endpoint import Call, ServerState
from asterism.server.problems import error_detail
from asterism.server.request_guard import Caller

EXTENSION = "io.modelcontextprotocol/tasks"
POLL_INTERVAL_MS = 1000
APPROVAL = "approval-"
"""The beginning of the name of a question about an edit; its number follows."""


class TaskParams(types.RequestParams):
    task_id: str = Field(max_length=2000)


class UpdateParams(TaskParams):
    input_responses: types.InputResponses


# -- ids ---------------------------------------------------------------------------------------------------------------


def task_id(work: Work) -> str:
    """An id that is safe in a header, whatever the name of a plan is."""
    text = json.dumps([work.kind, work.begun, work.name], ensure_ascii=True)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def work_of(identity: str) -> Work:
    """Raises MCPError for what is not an id."""
    try:
        text = base64.b64decode(identity + "=" * (-len(identity) % 4), altchars=b"-_", validate=True)
        kind, begun, name = json.loads(text)
        if kind not in ("run", "plan") or type(begun) is not bool or not isinstance(name, str):
            raise ValueError
    except (ValueError, TypeError):
        raise MCPError(types.INVALID_PARAMS, "there is no such task") from None
    return Work(kind, name, begun)


# -- tasks -------------------------------------------------------------------------------------------------------------


def has_tasks(ctx: Context) -> bool:
    """Whether the client has declared the extension with this request."""
    capabilities = ctx.session.client_capabilities
    declared = capabilities is not None and EXTENSION in (capabilities.extensions or {})
    return declared and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def check_declared(ctx: Context) -> None:
    """Raises MCPError."""
    if not has_tasks(ctx):
        required: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        message = f"this needs the extension {EXTENSION} in the capabilities of the request"
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, message, required)


def task_json(work: Work, state: WorkState, status: str) -> dict[str, Any]:
    return {
        "taskId": task_id(work),
        "status": status,
        "statusMessage": state.text,
        "createdAt": _iso(state.created_at),
        "lastUpdatedAt": _iso(state.updated_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_INTERVAL_MS,
    }


def created_task(work: Work, state: WorkState) -> dict[str, Any]:
    """The result of a call that goes on as a task."""
    return {"resultType": "task", **task_json(work, state, "working")}


async def task_state(
    ctx: Context, call: Call, work: Work, result_of: Callable[[Any], types.CallToolResult]
) -> dict[str, Any]:
    """The answer to ``tasks/get``. ``result_of`` makes the result of a call from the document of ended work."""
    state = await _read(call, work)
    if state.ended:
        shown = result_of(state.document).model_dump(by_alias=True, mode="json", exclude_none=True)
        return {**task_json(work, state, "completed"), "result": shown}
    if state.waiting and call.caller is not None and mcp_approvals.can_ask(ctx, call.caller):
        found = [await mcp_approvals.question(call, work.name, edit.id) for edit in state.waiting]
        asked = {
            f"{APPROVAL}{one.edit.id}-{one.mark}": one.request.model_dump(by_alias=True, mode="json", exclude_none=True)
            for one in found
            if one is not None
        }
        if asked:
            return {**task_json(work, state, "input_required"), "inputRequests": asked}
    return task_json(work, state, "working")


async def update_task(ctx: Context, call: Call, work: Work, responses: types.InputResponses) -> None:
    """Carry out decisions. An answer to a question that is not open any more is ignored."""
    if work.kind != "plan" or call.caller is None or not mcp_approvals.can_ask(ctx, call.caller):
        return
    for key, answer in responses.items():
        number, _, mark = key.removeprefix(APPROVAL).partition("-")
        decision = mcp_approvals.decision_of(answer)
        if key.startswith(APPROVAL) and number.isdecimal() and len(number) < 10 and decision is not None:
            try:
                await mcp_approvals.decide(call.fleet, work.name, int(number), mark, decision)
            except ApprovalGone:
                continue
            except AsterismError as error:
                raise MCPError(types.INVALID_PARAMS, f"approval {number}: {error_detail(error, work.name)}") from None


async def cancel_task(server: ServerState, caller: Caller, call: Call, work: Work) -> None:
    """Cancel what the call of a task began."""
    if work.begun and not (await _read(call, work)).ended:
        try:
            await call_tool(server, caller, TOOLS[f"cancel_{work.kind}"], {work.kind: work.name})
        except AsterismError as error:
            raise MCPError(types.INVALID_PARAMS, error_detail(error, work.name)) from None


def reading_call(server: ServerState, caller: Caller, work: Work) -> Call:
    """A call that may read the work of a task. Raises MCPError."""
    try:
        return call_of(server, caller, TOOLS[f"follow_{work.kind}"].endpoint, {work.kind: work.name})
    except AsterismError as error:
        raise MCPError(types.INVALID_PARAMS, error_detail(error, work.name)) from None


async def _read(call: Call, work: Work) -> WorkState:
    try:
        return await read_work(call, work)
    except AsterismError as error:  # it was pruned, or never existed
        raise MCPError(types.INVALID_PARAMS, f"there is no such task: {error_detail(error, work.name)}") from None


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
