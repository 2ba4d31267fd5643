"""``asterism workflow``: add, list, show and remove workflows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import (
    CommandGroup,
    Function,
    fleet_options,
    options,
    print_json,
    reason_option,
    refuse_options,
    with_system,
)
from asterism.cli.option_types import capabilities, duration, json_value, pair, words
from asterism.core.run.placement import STRATEGIES

if TYPE_CHECKING:
    from asterism.api.system import System
    from asterism.core.run.workflow import Workflow


@click.group(cls=CommandGroup)
def workflow() -> None:
    """Define what runs execute: add, list, show, remove."""


def _time(name: str, meaning: str) -> Callable[[Function], Function]:
    return click.option(name, type=duration, metavar="DURATION", help=meaning)


def _count(name: str, meaning: str) -> Callable[[Function], Function]:
    return click.option(name, type=click.IntRange(min=0), metavar="N", help=meaning)


_terms = options(
    click.option(
        "--argv",
        type=words,
        metavar="WORDS",
        help="A command, run without a shell; {name} stands for an input of the run.",
    ),
    click.option("--shell", metavar="LINE", help="A line for /bin/sh; inputs are environment variables."),
    click.option("--call", metavar="MODULE:FUNCTION", help="A Python function that the devices can import."),
    click.option("--http", "url", metavar="URL", help="An HTTP request; {name} in the URL stands for an input."),
    click.option("--method", metavar="WORD", help="HTTP method; default: GET."),
    click.option("--header", "headers", type=pair, multiple=True, metavar="NAME=VALUE", help="HTTP header."),
    click.option(
        "--param", "params", type=pair, multiple=True, metavar="NAME=VALUE", help="Query parameter of the HTTP request."
    ),
    click.option("--body", metavar="TEXT", help="Body of the HTTP request, as text."),
    click.option("--body-json", type=json_value, metavar="JSON|@FILE", help="Body of the HTTP request, as JSON."),
    click.option(
        "--expect",
        type=int,
        multiple=True,
        metavar="STATUS",
        help="HTTP status that counts as success; default: any 2xx.",
    ),
    click.option("--agent", metavar="TEXT", help="Work for an agent: what to do; its inputs are those of the run."),
    click.option("--tip", "tips", multiple=True, metavar="TEXT", help="Advice for the agent."),
    click.option("--result", type=json_value, metavar="JSON|@FILE", help="JSON Schema of the agent's result."),
    click.option("--env", type=pair, multiple=True, metavar="NAME=VALUE", help="Environment variable of the command."),
    click.option("--cwd", metavar="DIRECTORY", help="Working directory of the command, on the device."),
    click.option("--description", metavar="TEXT", help="What it is for."),
    click.option(
        "--needs",
        multiple=True,
        callback=capabilities,
        metavar="WORD",
        help="A capability that a device must have; separate several with commas.",
    ),
    click.option(
        "--wants",
        multiple=True,
        callback=capabilities,
        metavar="WORD",
        help="A capability that raises a device's score; separate several with commas.",
    ),
    click.option("--device", metavar="NAME", help="Run it on this device only."),
    click.option("--requires", metavar="EXPR", help="Condition on a device's profile, in CEL."),
    click.option("--prefers", metavar="EXPR", help="Which devices to prefer, in CEL."),
    click.option("--strategy", type=click.Choice(list(STRATEGIES)), help="How to choose a device; default: score."),
    click.option("--orchestration", is_flag=True, help="Prefer the coordinator."),
    click.option("--priority", type=int, metavar="N", help="Priority of its runs; higher goes first; default: 0."),
    click.option(
        "--preemptible", is_flag=True, help="Runs of higher priority may stop its runs; their progress is kept."
    ),
    _time("--heartbeat", "Heartbeat interval of its device; default: 30 s."),
    _time("--heartbeat-timeout", "A run is lost after this time without a heartbeat; default: 90 s."),
    _time("--assignment-timeout", "How long a device has to claim a run; default: 30 s."),
    _time("--claim-timeout", "How long a device has to start a claimed run; default: 60 s."),
    _time("--no-device-timeout", "How long a run waits for a capable device; default: 300 s."),
    _time("--timeout", "How long one execution may take; default: no limit."),
    _count("--retries", "How often a failed run is retried; default: 0."),
    _count("--losses", "How often a run may lose its device; default: 5."),
    _count("--rounds", "How often all devices are asked before a run that they decline fails; default: 3."),
    _time("--backoff", "Delay before the first retry; it doubles each time; default: 1 s."),
    _time("--backoff-most", "The longest delay before a retry; default: 300 s."),
    click.option(
        "--file",
        "files",
        multiple=True,
        metavar="FILE.YAML",
        help="Add the workflows in a file; excludes all other options.",
    ),
)


@workflow.command()
@click.argument("name", required=False)
@_terms
@reason_option
@fleet_options
def add(name: str | None, files: tuple[str, ...], reason: str, store: str | None, as_json: bool, **terms: Any) -> None:
    """Add a workflow, or a new version of one.

    A workflow says what to execute, what it needs of a device, and how long each step may take. Existing runs keep the
    version that they were created with. Adding the same workflow again changes nothing. A DURATION is a number of
    seconds, or text such as 90s, 15m or 36h.

    \b
    asterism workflow add transcode --argv 'ffmpeg -i {file} {out}' --needs gpu
    asterism workflow add --file workflows.yaml"""
    given = {key: value for key, value in terms.items() if value is not None and value is not False and value != ()}
    if files and (given or name is not None):
        raise click.UsageError("--file excludes NAME and all other options.")
    if not files and name is None:
        raise click.UsageError("Give the NAME of the workflow, or --file.")
    flows = _from_files(files) if files else [_made(name or "", given)]

    async def keep(system: System) -> None:
        added = [await system.add_workflow(flow.to_json(), reason) for flow in flows]
        if as_json:
            print_json(added if files else added[0])
            return
        for flow in added:
            click.echo(f"{flow.name}@{flow.version} {'added' if flow.added else 'exists already'}")

    with_system(store, keep, create=True)


def _from_files(paths: tuple[str, ...]) -> list[Workflow]:
    from asterism.planfile.workflow_file import load_workflows

    try:
        return [flow for path in paths for flow in load_workflows(path)]
    except OSError as error:
        raise click.ClickException(f"{error.filename} cannot be read: {error.strerror}.") from None


def _made(name: str, given: dict[str, Any]) -> Workflow:
    from asterism.base import expressions
    from asterism.base.text import request_url_problem
    from asterism.core.run.workflow import Workflow

    for option in ("requires", "prefers"):
        problem = expressions.check(given[option]) if option in given else None
        if problem is not None:
            raise click.BadParameter(f"the expression is not valid: {problem}", param_hint=f"--{option}")
    problem = request_url_problem(given["url"]) if "url" in given else None
    if problem is not None:
        raise click.BadParameter(problem, param_hint="--http")
    http: dict[str, Any] = {
        key: given.pop(key) for key in ("method", "body", "headers", "params", "expect") if key in given
    }
    if "body" in http and "body_json" in given:
        raise click.UsageError("--body and --body-json exclude each other.")
    if "url" in given or "call" in given:
        refuse_options("has no effect here: only commands (--argv, --shell) and agents have it.", "env", "cwd")
    if "body_json" in given:
        http["json"] = given.pop("body_json")
    if "url" in given:
        given["http"] = {
            "url": given.pop("url"),
            **{key: dict(value) if key in ("headers", "params") else value for key, value in http.items()},
        }
    elif http:
        option = {"headers": "header", "params": "param", "json": "body-json"}.get(next(iter(http)), next(iter(http)))
        raise click.UsageError(f"--{option} needs --http.")
    work = {key: given.pop(key) for key in ("tips", "result") if key in given}
    if "agent" in given:
        given["agent"] = {"description": given["agent"], **work}
    elif work:
        raise click.UsageError(f"--{'tip' if 'tips' in work else 'result'} needs --agent.")
    if "env" in given:
        given["env"] = dict(given["env"])
    return Workflow(name, **given)


@workflow.command("list")
@fleet_options
def list_(store: str | None, as_json: bool) -> None:
    """List the workflows, each in its latest version."""

    async def read(system: System) -> None:
        from asterism.cli.fleet.fleet_views import workflows_table
        from asterism.cli.screen import print_lines

        flows = (await system.list_workflows()).items
        if as_json:
            print_json(flows)
        elif flows:
            print_lines(lambda width: workflows_table(flows, width))
        else:
            click.echo("There are no workflows. Add one with: asterism workflow add NAME --argv 'command {input}'")

    with_system(store, read)


@workflow.command()
@click.argument("name", metavar="NAME[@VERSION]")
@fleet_options
def show(name: str, store: str | None, as_json: bool) -> None:
    """Show everything about a workflow."""

    async def read(system: System) -> None:
        from asterism.cli.fleet.fleet_views import workflow_lines
        from asterism.cli.screen import print_lines

        flow = await system.show_workflow(name)
        if as_json:
            print_json(flow)
        else:
            print_lines(lambda width: workflow_lines(flow))

    with_system(store, read)


@workflow.command()
@click.argument("name")
@reason_option
@fleet_options
def remove(name: str, reason: str, store: str | None, as_json: bool) -> None:
    """Remove a workflow with all its versions.

    It is refused while a run of it has not ended, or a schedule creates its runs. Runs that ended keep their version
    until they are deleted, too."""

    async def ask(system: System) -> None:
        removed = await system.remove_workflow(name, reason)
        if as_json:
            print_json(removed)
        else:
            click.echo(clean(f"Workflow {removed.name!r} is removed."))

    with_system(store, ask)
