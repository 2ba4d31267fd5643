"""``asterism run``: run a plan, watch it, and say how it ended. With ``--store`` it outlives this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from asterism.cli.cli_context import with_fleet
from asterism.cli.interrupts import run_until_interrupted
from asterism.cli.live_view import watched
from asterism.cli.local_execution import LocalCommand, here_of, local_options
from asterism.cli.option_types import duration
from asterism.cli.plan_file_commands import plan_argument, usable
from asterism.cli.run_output import (
    Wishes,
    concurrency_option,
    editor_option,
    load_editor,
    plain_option,
    quiet_log,
    report_option,
    tell_end,
)
from asterism.cli.screen import Screen
from asterism.cli.user_modules import allow_imports
from asterism.core.plan.lock import POLICIES
from asterism.core.run.placement import STRATEGIES
from asterism.orchestrator.devices import LocalDevice
from asterism.orchestrator.orchestrator import Orchestrator
from asterism.planfile import PlanFile
from asterism.report.run_recorder import Recording

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet

OF_A_STORE = ("name", "local", "no_local", "takeover_after")


@click.command(cls=LocalCommand)
@plan_argument
@click.option("--policy", type=click.Choice(POLICIES), help="What is held while an editor thinks.")
@editor_option
@concurrency_option
@click.option("--strategy", type=click.Choice(list(STRATEGIES)), default="score", help="How a device is chosen.")
@click.option(
    "--no-device-timeout",
    type=duration,
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="How long a task that no device can take waits for one.",
)
@click.option("--store", metavar="URL", help="Keep it there and run it on the devices of that fleet; resume goes on.")
@click.option("--id", "name", metavar="NAME", help="With --store: its name there; that of the plan if left out.")
@local_options
@report_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; all else goes to standard error.")
@plain_option
@click.pass_context
def run(
    context: click.Context,
    /,
    plan: str,
    policy: str | None,
    editor: str | None,
    report: str | None,
    as_json: bool,
    plain: bool,
    store: str | None,
    **terms: Any,
) -> int:
    """Run the plan in a plan file.

    Exits with 0 if it completed, 1 if it failed, 2 if it failed in part, 130 if it was cancelled or left, 64 if it
    could not be run at all. Ctrl-C cancels: what runs is asked to stop. A second Ctrl-C stops waiting for it.

    With --store the plan is kept, and its tasks are runs of a fleet. Ctrl-C then leaves it: what runs on other devices
    goes on, what runs here is handed back, and `asterism resume` goes on with it, as after a crash."""
    _check_options(context, store)
    allow_imports(plan)
    found = usable(plan)
    kept = {name: terms.pop(name) for name in OF_A_STORE}
    terms |= {"policy": policy or found.policy or "scoped", "editor": load_editor(editor)}
    terms["rank"] = any(node.task.estimate is not None for node in found.constellation.nodes.values())
    wishes = Wishes(report, as_json, plain)
    if store is not None:
        return _run_in_store(store, found, {**terms, **kept}, wishes)
    with quiet_log():
        return asyncio.run(_run(found, terms, wishes))


def _check_options(context: click.Context, store: str | None) -> None:
    """An option that would do nothing is a misunderstanding."""
    for name in OF_A_STORE if store is None else ():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(one.opts[-1] for one in context.command.params if one.name == name and one.opts)
            raise click.UsageError(
                f"{option} has no meaning without --store: the plan lives in this process, and ends with it."
            )


async def _run(found: PlanFile, terms: dict[str, Any], wishes: Wishes) -> int:
    plan = found.constellation
    devices = [LocalDevice(line.id, line.slots, line.can, json_results=True) for line in found.devices]
    orchestrator = Orchestrator(devices, **terms)
    recording = Recording(plan, orchestrator.events)
    screen = Screen(stderr=wishes.as_json)
    async with watched(orchestrator, plan, screen, plain=wishes.plain):
        result = await run_until_interrupted(orchestrator, plan)
    recording.close()
    tell_end(result, recording, wishes, screen)
    return result.exit_code


def _run_in_store(store: str, found: PlanFile, terms: dict[str, Any], wishes: Wishes) -> int:
    from asterism.cli.plan_follower import Followed, follow
    from asterism.cli.plan_start import begin

    plan = found.constellation
    plan.id = terms.pop("name") or plan.id
    can = frozenset(word for line in found.devices for word in line.can)
    here = here_of(terms.pop("local"), terms.pop("no_local"), can)

    async def work(fleet: Fleet) -> int:
        orchestrator = Followed(fleet, here, wishes, **terms)
        return await follow(orchestrator, plan.id, lambda: begin(orchestrator, plan))

    with quiet_log(but=("asterism.journal", "asterism.device")):
        return with_fleet(store, work, create=True)
