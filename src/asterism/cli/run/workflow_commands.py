"""``asterism workflow``: add, list, show and remove workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import (
    Answer,
    CommandGroup,
    listed,
    on_system,
    options,
    reason_option,
    refuse_options,
    view,
)
from asterism.cli.option_types import (
    capability_option,
    duration_option,
    json_value,
    limit_use,
    number_option,
    option,
    pair_option,
    words,
)
from asterism.core.json_values import JsonObject
from asterism.core.run.work import KEEP_RULES, STRATEGY_NAMES

if TYPE_CHECKING:
    from asterism.api.system import System
    from asterism.core.run.work import Workflow


@click.group(cls=CommandGroup)
def workflow() -> None:
    """Define what runs execute: add, list, show, remove."""


_workflow_options = options(
    option("--argv WORDS", "A command, run without a shell; {name} stands for an input of the run.", type=words),
    option("--shell LINE", "A line for /bin/sh; inputs are environment variables."),
    option("--call MODULE:FUNCTION", "A Python function that the devices can import."),
    option("--http URL", "An HTTP request; {name} in the URL stands for an input.", to="url"),
    option("--method WORD", "HTTP method; default: GET."),
    pair_option("--header headers", "HTTP header."),
    pair_option("--param params", "Query parameter of the HTTP request."),
    option("--body TEXT", "Body of the HTTP request, as text."),
    option("--body-json JSON|@FILE", "Body of the HTTP request, as JSON.", type=json_value),
    option("--expect STATUS", "HTTP status that counts as success; default: any 2xx.", type=int, multiple=True),
    option("--agent TEXT", "Work for an agent: what to do; its inputs are those of the run."),
    option("--tip TEXT", "Advice for the agent.", to="tips", multiple=True),
    option("--result JSON|@FILE", "JSON Schema of the agent's result.", type=json_value),
    pair_option("--env", "Environment variable of the command."),
    option("--cwd DIRECTORY", "Working directory of the command, on the device."),
    option("--description TEXT", "What it is for."),
    capability_option("--needs", "A capability that a device must have; separate several with commas."),
    capability_option("--wants", "A capability that raises a device's score; separate several with commas."),
    option("--device NAME", "Run it on this device only."),
    option("--requires EXPR", "Condition on a device's profile, in CEL."),
    option("--prefers EXPR", "Which devices to prefer, in CEL."),
    option("--strategy", "How to choose a device; default: score.", type=click.Choice(STRATEGY_NAMES)),
    option("--orchestration", "Prefer the coordinator."),
    number_option("--priority", help="Priority of its runs; higher goes first; default: 0."),
    option(
        "--keep",
        "Which result of its runs counts if peers that were apart both ran one; default: epoch.",
        type=click.Choice(KEEP_RULES),
    ),
    option("--preemptible", "Runs of higher priority may stop its runs; their progress is kept."),
    duration_option("--heartbeat", help="Heartbeat interval of its device; default: 30 s."),
    duration_option("--heartbeat-timeout", help="A run is lost after this time without a heartbeat; default: 90 s."),
    duration_option("--assignment-timeout", help="How long a device has to claim a run; default: 30 s."),
    duration_option("--claim-timeout", help="How long a device has to start a claimed run; default: 60 s."),
    duration_option("--no-device-timeout", help="How long a run waits for a capable device; default: 300 s."),
    duration_option("--timeout", help="How long one execution may take; default: no limit."),
    number_option("--retries", least=0, help="How often a failed run is retried; default: 0."),
    number_option("--losses", least=0, help="How often a run may lose its device; default: 5."),
    number_option(
        "--rounds", least=0, help="How often all devices are asked before a run that they decline fails; default: 3."
    ),
    duration_option("--backoff", help="Delay before the first retry; it doubles each time; default: 1 s."),
    duration_option("--backoff-most", help="The longest delay before a retry; default: 300 s."),
    option(
        "--uses LIMIT[=N]",
        "A limit that each run holds, and how much of it; {name} stands for an input.",
        type=limit_use,
        multiple=True,
    ),
    option("--file FILE.YAML", "Add the workflows in a file; excludes all other options.", to="files", multiple=True),
)


@workflow.command()
@_workflow_options
@reason_option()
@on_system(create=True)
def add(name: str | None, files: tuple[str, ...], reason: str, **option_values: Any) -> Any:
    """Add a workflow, or a new version of one.

    A workflow says what to execute, what it needs of a device, and how long each step may take. Existing runs keep the
    version that they were created with. Adding the same workflow again changes nothing. A DURATION is a number of
    seconds, or text such as 90s, 15m or 36h.

    \b
    asterism workflow add transcode --argv 'ffmpeg -i {file} {out}' --needs gpu
    asterism workflow add --file workflows.yaml"""
    fields = {
        key: value for key, value in option_values.items() if value is not None and value is not False and value != ()
    }
    if files and (fields or name is not None):
        raise click.UsageError("--file excludes NAME and all other options.")
    if not files and name is None:
        raise click.UsageError("Give the NAME of the workflow, or --file.")
    flows = _from_files(files) if files else [_made(name or "", fields)]

    async def keep(system: System) -> Answer:
        added = [await system.add_workflow(flow.to_json(), reason) for flow in flows]
        lines = [f"{flow.name}@{flow.version} {'added' if flow.added else 'exists already'}" for flow in added]
        return Answer(added if files else added[0], "\n".join(lines))

    return keep


def _from_files(paths: tuple[str, ...]) -> list[Workflow]:
    from asterism.planfile.workflow_file import load_workflows

    try:
        return [flow for path in paths for flow in load_workflows(path)]
    except OSError as error:
        raise click.ClickException(f"{error.filename} cannot be read: {error.strerror}.") from None


def _made(name: str, fields: dict[str, Any]) -> Workflow:
    from asterism.base import expressions
    from asterism.base.text import request_url_problem
    from asterism.core.run.work import Workflow, ambiguous_timeout

    ambiguous = ambiguous_timeout(fields)
    if ambiguous is not None:
        raise click.BadParameter(f"{ambiguous}.", param_hint="--timeout")
    for rule in ("requires", "prefers"):
        problem = expressions.check(fields[rule]) if rule in fields else None
        if problem is not None:
            raise click.BadParameter(f"the expression is not valid: {problem}", param_hint=f"--{rule}")
    problem = request_url_problem(fields["url"]) if "url" in fields else None
    if problem is not None:
        raise click.BadParameter(problem, param_hint="--http")
    http: JsonObject = {
        key: fields.pop(key) for key in ("method", "body", "headers", "params", "expect") if key in fields
    }
    if "body" in http and "body_json" in fields:
        raise click.UsageError("--body and --body-json exclude each other.")
    if "url" in fields or "call" in fields:
        refuse_options("has no effect here: only commands (--argv, --shell) and agents have it.", "env", "cwd")
    if "body_json" in fields:
        http["json"] = fields.pop("body_json")
    if "url" in fields:
        fields["http"] = {
            "url": fields.pop("url"),
            **{key: dict(value) if key in ("headers", "params") else value for key, value in http.items()},
        }
    elif http:
        option = {"headers": "header", "params": "param", "json": "body-json"}.get(next(iter(http)), next(iter(http)))
        raise click.UsageError(f"--{option} needs --http.")
    work = {key: fields.pop(key) for key in ("tips", "result") if key in fields}
    if "agent" in fields:
        fields["agent"] = {"description": fields["agent"], **work}
    elif work:
        raise click.UsageError(f"--{'tip' if 'tips' in work else 'result'} needs --agent.")
    fields |= {key: dict(fields[key]) for key in ("env", "uses") if key in fields}
    return Workflow(name, **fields)


@workflow.command()
async def list_(system: System) -> Answer:
    """List the workflows, each in its latest version."""
    empty = "There are no workflows. Add one with: asterism workflow add NAME --argv 'command {input}'"
    return listed(await system.list_workflows(), "fleet.fleet_views:WORKFLOW_TABLE", empty)


@workflow.command()
@click.argument("name", metavar="NAME[@VERSION]")
async def show(system: System, name: str) -> Answer:
    """Show everything about a workflow."""
    flow = await system.show_workflow(name)
    return Answer(flow, view("fleet.fleet_views:workflow_lines", flow))


@workflow.command()
@reason_option()
async def remove(system: System, name: str, reason: str) -> Answer:
    """Remove a workflow with all its versions.

    It is refused while a run of it has not ended, or a schedule creates its runs. Runs that ended keep their version
    until they are deleted, too."""
    removed = await system.remove_workflow(name, reason)
    return Answer(removed, clean(f"Workflow {removed.name!r} is removed."))
