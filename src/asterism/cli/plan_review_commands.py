"""``asterism plan``, for those who review a plan: its history of edits, and its open edit cycles."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from asterism.cli.cli_context import fleet_options, note, options, print_json, with_fleet
from asterism.cli.edit_batches import edit_batch, edit_options
from asterism.cli.option_types import duration
from asterism.cli.plan_context import check_drawing_options, draw, drawing_options

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet

REJECTED = 1

name_argument = click.argument("name")


@click.command()
@name_argument
@click.argument("version", required=False, type=click.IntRange(min=0))
@drawing_options
@fleet_options
def history(
    name: str, version: int | None, svg_path: str | None, as_mermaid: bool, store: str | None, as_json: bool
) -> None:
    """List the versions of a plan, or draw one of them.

    Each version has its author, its reason and its edits. Rejected edits are listed too, the newest 50, with the
    reasons. With VERSION, the plan is drawn as it was when that version was made; version 0 is the plan as it was
    stored."""
    check_drawing_options(svg_path, as_mermaid, as_json)
    if version is None and (svg_path is not None or as_mermaid):
        raise click.UsageError("--svg and --mermaid draw one version: name it after the plan.")

    async def read(fleet: Fleet) -> None:
        from asterism.cli.plan_review_views import history_json, history_lines, past_json, past_line
        from asterism.cli.screen import Screen, print_lines
        from asterism.durable.plan_history import plan_at, versions
        from asterism.durable.rejected_edits import rejected_edits
        from asterism.durable.stored_plans import find_plan

        await find_plan(fleet, name)
        if version is not None:
            past = await plan_at(fleet.store, name, version)
            if as_json:
                print_json(past_json(past))
                return
            draw(past.plan, svg_path, as_mermaid)
            if svg_path is None and not as_mermaid:
                Screen().say(past_line(past))
            return
        found, rejected = await versions(fleet.store, name), await rejected_edits(fleet.store, name)
        if as_json:
            print_json(history_json(found, rejected))
        else:
            print_lines(lambda width: history_lines(found, rejected))
            if len(found) == 1 and not rejected:
                note(f"Plan {name!r} has not been edited.")

    with_fleet(store, read)


# -- edit cycles -------------------------------------------------------------------------------------------------------

cycle_argument = click.argument("cycle", type=click.IntRange(min=1))

_editor_options = options(
    click.option("--as", "who", metavar="NAME", help="The name of the editor; default: the user and this machine."),
    click.option(
        "--timeout",
        type=duration,
        default="10s",
        show_default=True,
        metavar="DURATION",
        help="How long to wait for the process that runs the plan.",
    ),
    fleet_options,
)
"""The options of the commands of an editor."""


@click.command()
@name_argument
@fleet_options
def cycles(name: str, store: str | None, as_json: bool) -> None:
    """List the open edit cycles of a plan.

    A cycle reviews tasks that have ended, and holds the tasks after them until it is answered. People and other
    processes answer the cycles of a plan that runs with `--editor outside`."""

    async def read(fleet: Fleet) -> None:
        from asterism.cli.plan_review_views import cycle_lines
        from asterism.cli.screen import print_lines
        from asterism.durable.cycle_requests import list_cycles
        from asterism.durable.stored_plans import find_plan

        await find_plan(fleet, name)
        found = await list_cycles(fleet, name)
        if as_json:
            print_json([one.to_json() for one in found.cycles])
        elif found.cycles:
            now = fleet.store.clock()
            print_lines(lambda width: cycle_lines(name, found, now))
        else:
            note(f"Plan {name!r} has no open edit cycle.")

    with_fleet(store, read)


@click.command()
@name_argument
@cycle_argument
@click.option(
    "--lease",
    type=duration,
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="How long the cycle is reserved for this editor.",
)
@_editor_options
def claim(
    name: str, cycle: int, lease: float, who: str | None, timeout: float, store: str | None, as_json: bool
) -> None:
    """Claim an open edit cycle, so that no other editor answers it.

    Claim it again to renew the claim. After its --lease other editors may claim it. The plan does not wait for longer
    than its edit timeout, whether the cycle is claimed or not."""

    async def ask(fleet: Fleet) -> None:
        from asterism.cli.plan_review_views import claimed_line
        from asterism.durable.cycle_requests import claim_cycle
        from asterism.durable.stored_plans import find_plan

        await find_plan(fleet, name)
        found = await claim_cycle(fleet, name, cycle, who=who, lease=lease, timeout=timeout)
        if as_json:
            print_json(found.to_json())
        else:
            click.echo(claimed_line(name, found, fleet.store.clock()))

    with_fleet(store, ask)


@click.command()
@name_argument
@cycle_argument
@edit_options
@click.option("--reason", metavar="TEXT", help="The reason, for the story.")
@_editor_options
def answer(
    name: str,
    cycle: int,
    reason: str | None,
    who: str | None,
    timeout: float,
    store: str | None,
    as_json: bool,
    **wanted: Any,
) -> int:
    """Answer an open edit cycle, with edits or without.

    \b
    asterism plan answer nightly 3
    asterism plan answer nightly 3 --remove publish --reason "the tests failed"

    Without edits the plan goes on as it is. The edits are applied all or none. Exits with 1 if they are rejected, and
    prints every reason; the cycle stays open for another answer. A cycle that nobody has claimed needs no claim."""
    batch = edit_batch(**wanted, may_be_empty=True)

    async def ask(fleet: Fleet) -> int:
        from asterism.cli.plan_review_views import answered_lines
        from asterism.cli.plan_views import applied_json, rejected_json
        from asterism.core.errors import EditRejected
        from asterism.durable.cycle_requests import answer_cycle
        from asterism.durable.stored_plans import find_plan

        await find_plan(fleet, name)
        signed = replace(
            batch, author=batch.author or who or fleet.by, reason=batch.reason if reason is None else reason
        )
        try:
            done = await answer_cycle(fleet, name, cycle, signed, who=who, timeout=timeout)
        except EditRejected as rejected:
            for line in str(rejected).splitlines():
                note(line)
            if as_json:
                print_json({**rejected_json(name, rejected, False), "cycle": cycle})
            return REJECTED
        if as_json:
            print_json({**applied_json(name, done, False), "cycle": cycle})
        else:
            click.echo("\n".join(answered_lines(name, cycle, done)))
        return 0

    return with_fleet(store, ask)
