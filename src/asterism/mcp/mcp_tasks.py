"""Work that goes on: the Tasks extension of MCP (``io.modelcontextprotocol/tasks``), a handle that the client polls.

A task is a run or a plan that is followed, and its id names it. The server keeps nothing of its own: ``tasks/get``
reads the store with the rights of its caller. So a task outlives its connection and the server, and to know its id is
of no use without a credential. While edits of a plan wait for a person, its task is ``input_required``: the questions
come with ``tasks/get``, and ``tasks/update`` brings the decisions. ``tasks/cancel`` cancels what the call began; a call
that only follows has nothing to cancel, and is acknowledged.

A client without the extension waits until the end or the timeout, and calls again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from asterism.api import documents
from asterism.api.credentials import Credential
from asterism.api.local.problem_statuses import error_detail
from asterism.api.system import LocalSystem
from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject
from asterism.core.plan.edits import ApprovalGone
from asterism.core.record import Record
from asterism.mcp import mcp_approvals
from asterism.mcp.mcp_approvals import Context, Question
from asterism.mcp.mcp_tools import TOOLS, McpHost, check_call

EXTENSION = "io.modelcontextprotocol/tasks"
POLL_INTERVAL_MS = 1000
APPROVAL = "approval-"
"""The beginning of the name of a question about an edit; its number follows."""


class TaskParams(types.RequestParams):
    task_id: str = Field(max_length=2000)


class UpdateParams(TaskParams):
    input_responses: types.InputResponses


class Work(Record):
    """A run or a plan that goes on. ``begun`` is whether a call began it, so that to cancel the call cancels it."""

    kind: Literal["run", "plan"]
    name: str
    begun: bool


WorkDocument: TypeAlias = documents.Run | documents.Plan


async def read_work(system: LocalSystem, work: Work, timeout: float = 0.0) -> WorkDocument:
    """Work when it has ended, or as it is after a while. Raises UnknownRun and UnknownConstellation."""
    if work.kind == "run":
        return await system.wait_run(work.name, timeout)
    return await system.watch_plan(work.name, timeout)


def name_of(document: WorkDocument) -> str:
    return document.id if isinstance(document, documents.Run) else document.name


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
        required: JsonObject = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        message = f"this needs the extension {EXTENSION} in the capabilities of the request"
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, message, required)


def task_json(work: Work, document: WorkDocument, status: str) -> JsonObject:
    times = (document.created_at, document.started_at, document.ended_at)
    return {
        "taskId": task_id(work),
        "status": status,
        "statusMessage": _state_text(document),
        "createdAt": _iso(document.created_at),
        "lastUpdatedAt": _iso(max(at for at in times if at is not None)),
        "ttlMs": None,
        "pollIntervalMs": POLL_INTERVAL_MS,
    }


def _state_text(document: WorkDocument) -> str:
    if isinstance(document, documents.Run):
        return f"run {document.id} is {document.status}"
    counts = ", ".join(f"{number} {status}" for status, number in document.counts.items())
    return f"plan {document.name!r} is {document.state_text}" + (f" ({counts})" if counts else "")


def created_task(work: Work, document: WorkDocument) -> JsonObject:
    """The result of a call that goes on as a task."""
    return {"resultType": "task", **task_json(work, document, "working")}


async def task_state(
    ctx: Context, host: McpHost, caller: Credential, work: Work, result_of: Callable[[Any], types.CallToolResult]
) -> JsonObject:
    """The answer to ``tasks/get``. ``result_of`` makes the result of a call from the document of ended work."""
    document = await _read(host, caller, work)
    if document.ended:
        shown = result_of(document).model_dump(by_alias=True, mode="json", exclude_none=True)
        return {**task_json(work, document, "completed"), "result": shown}
    if isinstance(document, documents.Plan) and mcp_approvals.can_ask(ctx, caller):
        questions = [Question(work.name, edit) for edit in document.approvals]
        asked = {
            f"{APPROVAL}{question.edit.id}-{question.mark}": question.request.model_dump(
                by_alias=True, mode="json", exclude_none=True
            )
            for question in questions
            if question.fits
        }
        if asked:
            return {**task_json(work, document, "input_required"), "inputRequests": asked}
    return task_json(work, document, "working")


async def update_task(
    ctx: Context, host: McpHost, caller: Credential, work: Work, responses: types.InputResponses
) -> None:
    """Carry out decisions. An answer to a question that is not open any more is ignored."""
    system = reading_system(host, caller, work)
    if work.kind != "plan" or not mcp_approvals.can_ask(ctx, caller):
        return
    for key, answer in responses.items():
        number, _, mark = key.removeprefix(APPROVAL).partition("-")
        decision = mcp_approvals.decision_of(answer)
        if key.startswith(APPROVAL) and number.isdecimal() and len(number) < 10 and decision is not None:
            try:
                await mcp_approvals.decide(system, work.name, int(number), mark, decision)
            except ApprovalGone:
                continue
            except AsterismError as error:
                raise MCPError(types.INVALID_PARAMS, f"approval {number}: {error_detail(error, work.name)}") from None


async def cancel_task(host: McpHost, caller: Credential, work: Work) -> None:
    """Cancel what the call of a task began."""
    if work.begun and not (await _read(host, caller, work)).ended:
        try:
            call = check_call(host, caller, TOOLS[f"cancel_{work.kind}"], {work.kind: work.name})
            await call.tool.call(call.system, call.request)
        except AsterismError as error:
            raise MCPError(types.INVALID_PARAMS, error_detail(error, work.name)) from None


def reading_system(host: McpHost, caller: Credential, work: Work) -> LocalSystem:
    """The system of a caller who may read the work of a task. Raises MCPError."""
    try:
        return host.system(caller, TOOLS[f"follow_{work.kind}"].operation, {work.kind: work.name})
    except AsterismError as error:
        raise MCPError(types.INVALID_PARAMS, error_detail(error, work.name)) from None


async def _read(host: McpHost, caller: Credential, work: Work) -> WorkDocument:
    system = reading_system(host, caller, work)
    try:
        return await read_work(system, work)
    except AsterismError as error:  # it was pruned, or never existed
        raise MCPError(types.INVALID_PARAMS, f"there is no such task: {error_detail(error, work.name)}") from None


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
