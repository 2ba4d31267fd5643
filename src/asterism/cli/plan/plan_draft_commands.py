"""``asterism plan new``: a plan file from a request in words, written by a model and checked before it is shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean, clean_lines, masked_urls
from asterism.cli.cli_context import note, with_fleet
from asterism.cli.model_options import MODEL_VARIABLE

if TYPE_CHECKING:
    from asterism.core.run.workflow import Workflow
    from asterism.fleet.fleet import Fleet
    from asterism.models.planner import PlanDraft

UNUSABLE = 1
"""The exit code if the model wrote no valid plan."""


@click.command("new")
@click.argument("request")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help=f"The model; repeatable: the next is asked if one fails. Default: ${MODEL_VARIABLE}.",
)
@click.option("--id", "name", default="plan", show_default=True, metavar="NAME", help="The id of a plan without one.")
@click.option("--store", metavar="URL", help="Plan for the devices and with the workflows of this store's fleet.")
@click.option("--quiet", is_flag=True, help="Print no explanation and no drawing to standard error.")
def new(request: str, models: tuple[str, ...], name: str, store: str | None, quiet: bool) -> int:
    """Write a plan file for a REQUEST in words.

    \b
    asterism plan new "Compare the three build logs and write a summary" --model anthropic:… > plan.yaml
    asterism run plan.yaml

    The plan file goes to standard output; its explanation and a drawing go to standard error. Nothing is executed. A
    plan with mistakes goes back to the model, at most three times; if it has none then, the command exits with 1."""
    chosen = models or tuple(filter(None, [os.environ.get(MODEL_VARIABLE)]))
    if not chosen:
        raise click.UsageError(f"Name a model: --model openai:gpt-5, or ${MODEL_VARIABLE}.")

    if not request.strip():
        raise click.UsageError("The request is empty: say in words what the plan is for.")

    async def draft(fleet: Fleet | None) -> int:
        from asterism.core.errors import AsterismError
        from asterism.models.planner import NoPlan, draft_plan

        around: dict[str, Any] = {} if fleet is None else await _surroundings(fleet)
        try:
            plan_draft = await draft_plan(request, chosen[0], fallback=chosen[1:], name=name, **around)
        except NoPlan as error:
            note(f"The model wrote no valid plan: {error}.")
            for mistake in error.mistakes:
                note(f"  - {mistake}")
            return UNUSABLE
        except AsterismError as error:
            raise click.ClickException(f"{error}.") from None
        _print(request, plan_draft, quiet)
        return 0

    if store is not None:
        return with_fleet(store, draft)
    import asyncio

    return asyncio.run(draft(None))


async def _surroundings(fleet: Fleet) -> dict[str, Any]:
    from asterism.models.fleet_surroundings import fleet_devices, known_capabilities

    workflows = [(flow.name, flow.description or _command(flow)) for flow in await fleet.workflows.all()]
    known = await known_capabilities(fleet)
    return {"devices": await fleet_devices(fleet), "workflows": workflows, "capabilities": known}


def _command(workflow: Workflow) -> str:
    """What a workflow executes, for the provider of a model: without secrets, and without logins in addresses."""
    from asterism.base.secret_mask import environment_mask, secret_names

    mask = environment_mask(secret_names([workflow.env, workflow.http]))
    return masked_urls(mask.text(str(workflow.shell or workflow.argv or workflow.call or "")))


def _print(request: str, draft: PlanDraft, quiet: bool) -> None:
    click.echo("\n".join(f"# {clean(line)}" for line in [request, *draft.explanation.splitlines()]))
    click.echo(clean_lines(draft.file), nl=not draft.file.endswith("\n"))
    if quiet:
        return
    from asterism.cli.screen import Screen
    from asterism.orchestrator.plan_mask import PlanMask
    from asterism.report import terminal
    from asterism.report.picture import LONGEST_LABEL, picture, work_text

    screen, mask = Screen(stderr=True), PlanMask(draft.plan)
    # the work, not its description: both are the model's words, and only one of them is executed
    screen.say(terminal(picture(draft.plan, mask, work=True), screen.width))
    for node in draft.plan.nodes.values():
        if len(work := work_text(node.task, mask)) > LONGEST_LABEL:  # the drawing has cut it
            screen.say(f"{clean(node.id)}: {work}")
    for line in draft.explanation.splitlines():
        screen.say(clean(line))
    screen.say(clean(f"{draft.cost}. Nothing was executed."))
