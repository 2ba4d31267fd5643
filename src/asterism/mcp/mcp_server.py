"""The MCP server over a store: tools, resources and prompts, for any transport.

``mcp_server`` makes a server of the official SDK. Over stdio its one client is local: it acts under a name and with
scopes that the user gave it. Over HTTP each request carries the credential of its caller (``mcp_http``). Either way the
client is an editor and not a person (``api/local/edit_handlers.py``).

An error of a tool is a result with ``isError``; its text is the problem document of the HTTP API, so that a model can
read the violations and correct itself. Every answer has aliases in place of the names of devices, and arguments may
have either (``device_aliases``).
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError

from asterism import __version__
from asterism.api.credentials import Credential, ScopeMissing
from asterism.api.local.audited import record_refusal
from asterism.api.local.problem_statuses import InvalidRequest, error_detail, error_json, problem_json
from asterism.api.operation import path_fields
from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject
from asterism.core.plan.edits import EditWaits
from asterism.core.record import encode_json, replace
from asterism.mcp import mcp_approvals, mcp_resources, mcp_tasks
from asterism.mcp.mcp_approvals import Context, Decision, Question
from asterism.mcp.mcp_resources import PROMPTS
from asterism.mcp.mcp_tasks import Work, read_work
from asterism.mcp.mcp_tools import TOOLS, McpHost, McpTool, ToolCall, check_call, input_schema, may_use, output_schema
from asterism.models.device_aliases import DeviceAliases, fleet_aliases

CALLER = "asterism.caller"
"""The key of the credential of a request in its ASGI scope."""

STATE_LIFETIME = 3600.0
"""How long the answer of a person to a question is accepted, in seconds."""


def mcp_server(host: McpHost, local: Credential | None = None) -> Server[Any]:
    """A server of the SDK. ``local`` is its one client over stdio; without it, each request has a caller."""
    handlers = _Handlers(host, local)
    server: Server[Any] = Server(
        "asterism",
        version=__version__,
        title="Asterism",
        description="Plans that change while they run.",
        instructions=files(__package__).joinpath("instructions.md").read_text("utf-8").rstrip("\n"),
        get_tool_input_schema=lambda name: input_schema(TOOLS[name]) if name in TOOLS else None,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
        on_list_prompts=handlers.list_prompts,
        on_get_prompt=handlers.get_prompt,
        on_completion=handlers.complete,
    )
    server.extensions = {mcp_tasks.EXTENSION: {}}
    server.add_request_handler("tasks/get", mcp_tasks.TaskParams, handlers.get_task)
    server.add_request_handler("tasks/update", mcp_tasks.UpdateParams, handlers.update_task)
    server.add_request_handler("tasks/cancel", mcp_tasks.TaskParams, handlers.cancel_task)
    security = RequestStateSecurity(
        keys=[os.urandom(32)], ttl=STATE_LIFETIME, bind_principal=lambda ctx: handlers.caller(ctx).id
    )
    server.middleware.append(RequestStateBoundary(security, default_audience="asterism"))
    return server


class _Handlers:
    def __init__(self, host: McpHost, local: Credential | None) -> None:
        self._host, self._local = host, local

    def caller(self, ctx: Context) -> Credential:
        """Who makes a request. Raises MCPError if a transport does not say it."""
        caller = self._local or (ctx.request.scope.get(CALLER) if ctx.request is not None else None)
        if not isinstance(caller, Credential):
            raise MCPError(types.INVALID_REQUEST, "a credential is needed")
        return caller

    # -- tools -------------------------------------------------------------------------------------------------------

    async def list_tools(self, ctx: Context, params: Any) -> types.ListToolsResult:
        scopes = self.caller(ctx).scopes
        return types.ListToolsResult(
            tools=[tool_json(tool) for tool in TOOLS.values() if self._host.offers(tool) and may_use(scopes, tool)]
        )

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        tool, caller = TOOLS.get(params.name), self.caller(ctx)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}")
        aliases = await fleet_aliases(self._host.fleet)
        try:
            arguments = aliases.in_arguments(params.arguments or {})
        except ValueError as error:
            return _failed(problem_json(422, str(error), "unknown-device"))
        result = await self._call(ctx, caller, tool, params, arguments)
        return shown(result, aliases) if isinstance(result, types.CallToolResult) else result

    async def _call(
        self,
        ctx: Context,
        caller: Credential,
        tool: McpTool,
        params: types.CallToolRequestParams,
        arguments: Mapping[str, Any],
    ) -> Any:
        plan = arguments.get("plan")
        try:
            if params.request_state is not None:
                return await self._decided(caller, tool, params)
            call = await self._checked(caller, tool, arguments)
            if tool.begins or tool.follows:
                return await self._worked(ctx, call)
            answer = await self._answer(call)
            if isinstance(answer, Question):
                return await self._asked(ctx, caller, tool, answer)
            return result_of(answer)
        except EditWaits as waits:
            return await self._waits(ctx, caller, tool, str(plan), waits)
        except Exception as error:
            return failure(error, tool.name, plan)

    async def _checked(self, caller: Credential, tool: McpTool, arguments: Mapping[str, Any]) -> ToolCall:
        """Raises what ``check_call`` raises; that the scopes of a caller do not suffice is recorded."""
        try:
            return check_call(self._host, caller, tool, arguments)
        except ScopeMissing as error:
            self._host.count_refusal(caller)
            names = {name: arguments[name] for name in path_fields(tool.operation.path) if name in arguments}
            await record_refusal(self._host.system_of(caller), tool.operation, names, error)
            raise

    async def _answer(self, call: ToolCall) -> Any:
        """What a tool answers; one that waits does so until its timeout, or until the server stops."""
        timeout = 0.0 if call.tool.operation.changes else getattr(call.request, "timeout", 0.0)
        if not timeout:
            return await call.tool.call(call.system, call.request)
        return await self._host.until_stop(
            lambda timeout: call.tool.call(call.system, replace(call.request, timeout=timeout)), timeout
        )

    async def _worked(self, ctx: Context, call: ToolCall) -> Any:
        """Work that a call begins or follows: its end, or a handle for a client that polls handles."""
        tool, request = call.tool, call.request
        if tool.begins:
            document = await tool.call(call.system, request)
            work = Work(tool.begins, mcp_tasks.name_of(document), begun=True)
        else:
            assert tool.follows is not None
            followed = Work(tool.follows, getattr(request, tool.follows), begun=False)
            document = await read_work(call.system, followed)
            work = replace(followed, name=mcp_tasks.name_of(document))
        if not call.follow or document.ended:
            return result_of(document)
        if mcp_tasks.has_tasks(ctx):
            return mcp_tasks.created_task(work, document)
        return result_of(
            await self._host.until_stop(lambda timeout: read_work(call.system, work, timeout), call.follow)
        )

    # -- edits that wait for a person --------------------------------------------------------------------------------

    async def _waits(self, ctx: Context, caller: Credential, tool: McpTool, plan: str, waits: EditWaits) -> Any:
        """An edit of this call waits: ask the person of the client, if that person may decide."""
        asked = None
        if mcp_approvals.can_ask(ctx, caller):
            asked = await mcp_approvals.question(self._host.system_of(caller), plan, waits.approval.id)
        if asked is None or not asked.fits:
            return _waiting(plan, waits.approval.id, str(waits))
        return await self._asked(ctx, caller, tool, asked)

    async def _asked(self, ctx: Context, caller: Credential, tool: McpTool, asked: Question) -> Any:
        if not mcp_approvals.can_ask(ctx, caller):
            text = f"this client cannot ask a person. {how_to_decide(asked.plan, asked.edit.id)}"
            return _failed(problem_json(409, text, "cannot-ask"))
        answer = await mcp_approvals.ask(ctx, asked)
        if isinstance(answer, types.InputRequiredResult):
            return answer
        return await self._carried_out(caller, tool, asked.plan, asked.edit.id, asked.mark, answer)

    async def _decided(self, caller: Credential, tool: McpTool, params: types.CallToolRequestParams) -> Any:
        """A call that is repeated with the decision of a person. Its state was sealed by this server for this caller
        and these arguments."""
        about = json.loads(params.request_state or "")
        answer = (params.input_responses or {}).get(mcp_approvals.KEY)
        decision = mcp_approvals.decision_of(answer)
        return await self._carried_out(caller, tool, about["plan"], about["approval"], about["mark"], decision)

    async def _carried_out(
        self, caller: Credential, tool: McpTool, plan: str, number: int, mark: str, decision: Decision | None
    ) -> types.CallToolResult:
        try:
            system = self._host.system(caller, mcp_approvals.ask_approval, {})
            done = await mcp_approvals.decide(system, plan, number, mark, decision)
        except Exception as error:
            return failure(error, tool.name, plan)
        if tool.name == "ask_approval":
            return result_of(done)
        if done.outcome is not None:
            return result_of(done.outcome)
        if done.state == "waiting":
            return _waiting(plan, number, f"the edit waits for approval {number}")
        why = f": {done.why}" if done.why else ""
        return _failed(problem_json(409, f"the person refused the edit{why}", "edit-refused", approval=number))

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _task(self, ctx: Context, params: mcp_tasks.TaskParams) -> tuple[Work, Credential]:
        """The work of a task, and who asks for it. Raises MCPError."""
        mcp_tasks.check_declared(ctx)
        return mcp_tasks.work_of(params.task_id), self.caller(ctx)

    async def get_task(self, ctx: Context, params: mcp_tasks.TaskParams) -> JsonObject:
        work, caller = self._task(ctx, params)
        aliases = await fleet_aliases(self._host.fleet)
        return await mcp_tasks.task_state(
            ctx, self._host, caller, work, lambda document: shown(result_of(document), aliases)
        )

    async def update_task(self, ctx: Context, params: mcp_tasks.UpdateParams) -> JsonObject:
        work, caller = self._task(ctx, params)
        await mcp_tasks.update_task(ctx, self._host, caller, work, params.input_responses)
        return {}

    async def cancel_task(self, ctx: Context, params: mcp_tasks.TaskParams) -> JsonObject:
        work, caller = self._task(ctx, params)
        await mcp_tasks.cancel_task(self._host, caller, work)
        return {}

    # -- resources and prompts ---------------------------------------------------------------------------------------

    async def list_resources(self, ctx: Context, params: Any) -> types.ListResourcesResult:
        names = (await mcp_resources.plan_names(self._host, self.caller(ctx)))[: mcp_resources.MOST_LISTED]
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=mcp_resources.address(name, resource),
                    name=f"{resource.name} of {name}",
                    mime_type=resource.media,
                    description=resource.description,
                )
                for name in names
                for resource in mcp_resources.RESOURCES
            ]
        )

    async def list_templates(self, ctx: Context, params: Any) -> types.ListResourceTemplatesResult:
        templates = [
            types.ResourceTemplate(
                name=kind.name, uri_template=kind.template, mime_type=kind.media, description=kind.description
            )
            for kind in mcp_resources.RESOURCES
        ]
        return types.ListResourceTemplatesResult(resource_templates=templates)

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        try:
            media, text = await mcp_resources.read_resource(self._host, self.caller(ctx), params.uri)
        except (AsterismError, mcp_resources.UnknownResource) as error:
            detail = error_detail(error, mcp_resources.plan_of(params.uri))
            raise MCPError(types.INVALID_PARAMS, detail, {"uri": params.uri[:2000]}) from None
        content = types.TextResourceContents(uri=params.uri, mime_type=media, text=text)
        return types.ReadResourceResult(contents=[content])

    async def list_prompts(self, ctx: Context, params: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(
                    name=prompt.name,
                    description=prompt.description,
                    arguments=[types.PromptArgument(name=prompt.argument, description=prompt.about, required=True)],
                )
                for prompt in PROMPTS.values()
            ]
        )

    async def get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        prompt = PROMPTS.get(params.name)
        if prompt is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name!r}")
        value = (params.arguments or {}).get(prompt.argument)
        if value is None:
            raise MCPError(types.INVALID_PARAMS, f"the prompt {prompt.name} needs the argument {prompt.argument!r}")
        message = types.PromptMessage(role="user", content=types.TextContent(text=prompt.filled(value)))
        return types.GetPromptResult(description=prompt.description, messages=[message])

    async def complete(self, ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        """The names of plans that begin with what the person has typed."""
        matching: list[str] = []
        if params.argument.name == "plan":
            names = await mcp_resources.plan_names(self._host, self.caller(ctx))
            matching = [name for name in names if name.startswith(params.argument.value)]
        shown = types.Completion(values=matching[:100], total=len(matching), has_more=len(matching) > 100)
        return types.CompleteResult(completion=shown)


# -- results -----------------------------------------------------------------------------------------------------------


def tool_json(tool: McpTool) -> types.Tool:
    """A tool as clients see it."""
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=input_schema(tool),
        output_schema=output_schema(tool),
        annotations=types.ToolAnnotations(
            read_only_hint=tool.read_only,
            destructive_hint=None if tool.read_only else tool.destructive,
            open_world_hint=False,
        ),
    )


def result_of(answer: Any) -> types.CallToolResult:
    """The answer of an operation as the result of a tool."""
    text = encode_json(answer).decode()
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=json.loads(text))


def shown(result: types.CallToolResult, aliases: DeviceAliases) -> types.CallToolResult:
    """A result as a model reads it, with aliases in place of the names of devices."""
    if not aliases:
        return result
    if not result.is_error:
        return result_of(aliases.document(result.structured_content))
    [problem_text] = result.content
    assert isinstance(problem_text, types.TextContent)
    return _failed(aliases.document(json.loads(problem_text.text)))


def failure(error: Exception, name: str, plan: str | None = None) -> types.CallToolResult:
    """An error as the result of a tool. ``plan`` is the plan of the call."""
    if isinstance(error, MCPError):
        raise error
    if isinstance(error, InvalidRequest):
        document = error_json(error, f"tool {name}", plan)
        detail = f"the arguments of {name} are not valid: {document['violations'][0]['message']}"
        return _failed({**document, "detail": detail})
    return _failed(error_json(error, f"tool {name}", plan))


def how_to_decide(plan: str, number: int) -> str:
    """How a person decides about an edit without this client."""
    name = shlex.quote(plan)
    commands = f"asterism plan approve {name} {number}, or: asterism plan refuse {name} {number}"
    return f"A person decides, on the page or with: {commands}"


def _waiting(plan: str, number: int, text: str) -> types.CallToolResult:
    detail = f"{text}. {how_to_decide(plan, number)}"
    return _failed(problem_json(409, detail, "edit-waits", approval=number))


def _failed(document: Mapping[str, Any]) -> types.CallToolResult:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
