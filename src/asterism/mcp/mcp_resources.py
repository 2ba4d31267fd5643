"""Resources of the MCP server: a plan as JSON, its story as text, its report as an HTML page.

Their addresses are ``asterism://plans/NAME``, ``…/story`` and ``…/report``. Who may read a plan may read all three. As
in answers of tools, devices have aliases.

Prompts teach a client to edit a plan, to review ends of tasks, and to write a plan.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from urllib.parse import quote, unquote

from asterism.api.credentials import Credential
from asterism.api.local.problem_statuses import checked_name
from asterism.api.system import LocalSystem
from asterism.base.text import clean
from asterism.core.json_values import JsonObject
from asterism.core.record import encode_json
from asterism.durable.stored_plans import logs_of_tasks, read_plan
from asterism.mcp.mcp_tools import TOOLS, McpHost
from asterism.models.device_aliases import DeviceAliases, fleet_aliases
from asterism.orchestrator.result import Result
from asterism.report.html_report import report
from asterism.report.result_report import BY_TASK, PlanOrigin, report_of
from asterism.report.result_summary import failed_tasks
from asterism.store.protocol import PLANS

PREFIX = "asterism://plans/"
_URI = re.compile(r"asterism://plans/([^/?#]+)(?:/(story|report))?")

MOST_LISTED = 200
"""How many plans are listed as resources; the others can be read by their address."""


@dataclass(frozen=True)
class PlanResource:
    """A kind of resource that every plan has."""

    name: str
    suffix: str
    media: str
    description: str
    read: Callable[[LocalSystem, str, DeviceAliases], Awaitable[str]]

    @property
    def template(self) -> str:
        return f"{PREFIX}{{plan}}{self.suffix}"


async def _plan(system: LocalSystem, plan: str, aliases: DeviceAliases) -> str:
    document = json.loads(encode_json(await system.show_plan(plan)))
    return json.dumps(aliases.document(document), ensure_ascii=False, indent=1)


async def _story(system: LocalSystem, plan: str, aliases: DeviceAliases) -> str:
    lines = [f"# Story of plan {plan}", ""]
    for entry in (await system.read_story(plan)).items:
        at = datetime.fromtimestamp(entry.at, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
        task, why = (f" {entry.task}" if entry.task else "", f": {aliases.text(entry.why)}" if entry.why else "")
        lines.append(clean(f"- {at}{task} {entry.what}{why}"))
        lines += [clean(f"      {line}") for line in (entry.traceback or "").splitlines()]
    return "\n".join(lines) + "\n"


async def _report(system: LocalSystem, name: str, aliases: DeviceAliases) -> str:
    stored = await read_plan(system.fleet, name, for_thread=True)
    plan, lock = stored.record.plan, stored.record.lock
    if plan.ended_at is None:  # this copy of a plan that goes on ends now
        plan.ended_at = system.fleet.store.clock()
    result = Result(plan, list(lock.cycles.values()), None, lock.policy)
    logs = await logs_of_tasks(system.fleet, plan.id, failed_tasks(result))
    origin = PlanOrigin(
        stored.record.head.file, stored.record.head.params
    )  # who may read this plan may not list others
    return await asyncio.to_thread(
        lambda: report(_with_aliases(report_of(result, None, lambda task: logs.get(task, ()), origin), aliases))
    )


def _with_aliases(documents: JsonObject, aliases: DeviceAliases) -> JsonObject:
    """The documents of a report; those by task have names of tasks as keys, which are no fields."""
    by_task = {name: {task: aliases.document(item) for task, item in documents[name].items()} for name in BY_TASK}
    return {**{name: aliases.document(part) for name, part in documents.items() if name not in BY_TASK}, **by_task}


RESOURCES = (
    PlanResource("plan", "", "application/json", "A plan as it is now: tasks, dependencies, cycles, approvals.", _plan),
    PlanResource("story", "/story", "text/markdown", "What happened to a plan, step by step.", _story),
    PlanResource("report", "/report", "text/html", "Graph, timeline, tasks and edits of a plan on one page.", _report),
)


class UnknownResource(LookupError):
    """No resource has this address."""


def address(plan: str, resource: PlanResource) -> str:
    return f"{PREFIX}{quote(plan, safe='')}{resource.suffix}"


async def read_resource(host: McpHost, caller: Credential, uri: str) -> tuple[str, str]:
    """The media type and the text of a resource. Raises UnknownResource, ScopeMissing, UnknownConstellation."""
    match = _URI.fullmatch(uri)
    if match is None:
        raise UnknownResource(f"there is no resource {uri[:200]!r}")
    plan = checked_name("plan", unquote(match[1]))
    resource = next(candidate for candidate in RESOURCES if candidate.suffix == (f"/{match[2]}" if match[2] else ""))
    system = host.system(caller, TOOLS["read_plan"].operation, {"plan": plan})
    return resource.media, await resource.read(system, plan, await fleet_aliases(host.fleet))


def plan_of(uri: str) -> str | None:
    """The plan of an address; None if it is not one of a resource."""
    match = _URI.fullmatch(uri)
    return None if match is None else unquote(match[1])


async def plan_names(host: McpHost, caller: Credential) -> list[str]:
    """The plans that a caller may read, by name."""
    names = sorted(register.key.removeprefix(PLANS) for register in await host.fleet.store.registers(PLANS))
    return [name for name in names if caller.allows(f"observe plan {name}")]


@dataclass(frozen=True)
class McpPrompt:
    """``argument`` is its one argument, and ``about`` describes it. Its text is in the file of its name."""

    name: str
    description: str
    argument: str
    about: str

    def filled(self, value: str) -> str:
        shown = repr(value) if self.argument == "plan" else value
        return files(__package__).joinpath(f"{self.name}.md").read_text("utf-8").replace(f"{{{self.argument}}}", shown)


PROMPTS: Mapping[str, McpPrompt] = {
    prompt.name: prompt
    for prompt in (
        McpPrompt("edit_plan", "How to change a plan while it runs.", "plan", "The name of the plan."),
        McpPrompt("review_plan", "How to be the editor of a plan.", "plan", "The name of the plan."),
        McpPrompt("write_plan", "How to write a plan and run it.", "request", "What the plan should do."),
    )
}
