"""``asterism plan``, for those who review a plan: its history of edits, and its open edit cycles."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from asterism.cli.cli_context import fleet_options, note, options, print_json, same_store, with_fleet
from asterism.cli.edit_batches import edit_batch, edit_options
from asterism.cli.model_options import budget_limits
from asterism.cli.option_types import duration
from asterism.cli.plan_context import check_drawing_options, draw, drawing_options

if TYPE_CHECKING:
    from asterism.agents.budget import Budget
    from asterism.core.errors import EditRejected
    from asterism.core.plan.approval import WaitingEdit
    from asterism.fleet.fleet import Fleet

REJECTED, WAITS = 1, 3
"""Exit codes: the edit was rejected; the edit waits for the approval of a person."""

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
                screen = Screen()
                screen.say()
                screen.say(past_line(past))
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
    click.option("--as", "who", metavar="NAME", help="The name of the editor; default: your user name."),
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
            print_lines(lambda width: cycle_lines(name, found, now, same_store(fleet)))
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
        from asterism.cli.plan_views import applied_json
        from asterism.core.errors import EditRejected
        from asterism.core.plan.approval import EditWaits
        from asterism.durable.cycle_requests import answer_cycle
        from asterism.durable.stored_plans import find_plan

        await find_plan(fleet, name)
        signed = replace(
            batch, author=batch.author or who or fleet.by, reason=batch.reason if reason is None else reason
        )
        try:
            done = await answer_cycle(fleet, name, cycle, signed, who=who, timeout=timeout)
        except EditWaits as waits:
            return print_waiting(fleet, name, waits.approval, as_json)
        except EditRejected as rejected:
            return _print_rejected(name, rejected, as_json, cycle=cycle)
        if as_json:
            print_json({**applied_json(name, done, False), "cycle": cycle})
        else:
            click.echo("\n".join(answered_lines(name, cycle, done)))
        return 0

    return with_fleet(store, ask)


def _print_rejected(name: str, rejected: EditRejected, as_json: bool, **about: Any) -> int:
    from asterism.cli.plan_views import rejected_json

    for line in str(rejected).splitlines():
        note(line)
    if as_json:
        print_json({**rejected_json(name, rejected, False), **about})
    return REJECTED


# -- approvals ---------------------------------------------------------------------------------------------------------

approval_argument = click.argument("approval", type=click.IntRange(min=1))


def print_waiting(fleet: Fleet, name: str, edit: WaitingEdit, as_json: bool) -> int:
    """Say that an edit waits for a person. Returns the exit code."""
    from asterism.cli.plan_review_views import waiting_lines

    if as_json:
        print_json({"name": name, "accepted": False, "waiting": edit.to_json()})
    else:
        click.echo("\n".join(waiting_lines(name, edit, same_store(fleet))))
    return WAITS


@click.command()
@name_argument
@click.option("--all", "everything", is_flag=True, help="Also list edits that were approved, refused or expired.")
@fleet_options
def approvals(name: str, everything: bool, store: str | None, as_json: bool) -> None:
    """List the edits of a plan that wait for a person.

    Rules say which edits wait: `asterism run PLAN.YAML --store URL --approve destructive`. A waiting edit holds the
    tasks that it would change; all other tasks go on."""

    async def read(fleet: Fleet) -> None:
        from asterism.cli.plan_review_views import approval_lines
        from asterism.cli.screen import print_lines
        from asterism.core.plan.approval import WAITING
        from asterism.durable.approval_store import list_approvals
        from asterism.durable.stored_plans import find_plan, read_plan

        await find_plan(fleet, name)
        found = [one for one in await list_approvals(fleet.store, name) if everything or one.state == WAITING]
        if as_json:
            print_json([one.to_json() for one in found])
        elif found:
            now, plan = fleet.store.clock(), (await read_plan(fleet, name)).record.plan
            print_lines(lambda width: approval_lines(name, found, now, same_store(fleet), plan))
        else:
            note(f"No edit of plan {name!r} waits for a person.")

    with_fleet(store, read)


@click.command()
@name_argument
@approval_argument
@edit_options
@click.option("--reason", default="", metavar="TEXT", help="The reason, for the story.")
@_editor_options
def approve(
    name: str,
    approval: int,
    reason: str,
    who: str | None,
    timeout: float,
    store: str | None,
    as_json: bool,
    **wanted: Any,
) -> int:
    """Approve an edit that waits for a person.

    \b
    asterism plan approve nightly 2
    asterism plan approve nightly 2 --file changed.json

    The edit, or the given edits in its place, is applied with all checks, completely or not at all. Exits with 1 if it
    is rejected, and prints every reason; it then still waits, and can be refused, or approved with other edits."""
    given = edit_batch(**wanted, may_be_empty=True)

    async def ask(fleet: Fleet) -> int:
        from asterism.cli.plan_views import applied_json, applied_lines, resume_command
        from asterism.core.errors import EditRejected
        from asterism.durable.approval_requests import approve_edit
        from asterism.durable.stored_plans import find_plan

        await find_plan(fleet, name)
        batch = replace(given, author=given.author or who or fleet.by) if given.edits else None
        try:
            done = await approve_edit(fleet, name, approval, batch, reason, who=who, timeout=timeout)
        except EditRejected as rejected:
            return _print_rejected(name, rejected, as_json, approval=approval)
        if as_json:
            print_json({**applied_json(name, done, False), "approval": approval})
        else:
            click.echo("\n".join(applied_lines(name, done, False, resume_command(fleet, name))))
        return 0

    return with_fleet(store, ask)


@click.command()
@name_argument
@approval_argument
@click.option("--reason", default="", metavar="TEXT", help="The reason, for its author and the story.")
@_editor_options
def refuse(
    name: str, approval: int, reason: str, who: str | None, timeout: float, store: str | None, as_json: bool
) -> None:
    """Refuse an edit that waits for a person.

    The plan stays as it is, and the tasks that the edit held go on."""

    async def ask(fleet: Fleet) -> None:
        from asterism.durable.approval_requests import refuse_edit
        from asterism.durable.stored_plans import find_plan

        await find_plan(fleet, name)
        decided = await refuse_edit(fleet, name, approval, reason, who=who, timeout=timeout)
        if as_json:
            print_json(decided.to_json())
        else:
            click.echo(f"The edit of approval {approval} is refused; plan {name!r} stays as it is.")

    with_fleet(store, ask)


# -- budgets -----------------------------------------------------------------------------------------------------------


@click.command()
@name_argument
@click.option(
    "--raise",
    "limits",
    type=budget_limits,
    metavar="LIMITS",
    help="New limits, such as '$5' or '80calls'; the others stay. The editor continues.",
)
@click.option("--without-editor", is_flag=True, help="Let the plan go on without its editor.")
@fleet_options
def budget(name: str, limits: Budget | None, without_editor: bool, store: str | None, as_json: bool) -> None:
    """Show or raise the budget of a model that edits a plan.

    \b
    asterism plan budget nightly
    asterism plan budget nightly --raise '$5 80calls'
    asterism plan budget nightly --without-editor

    A spent budget holds the tasks whose start the model would have to review, until somebody decides."""
    if limits is not None and without_editor:
        raise click.UsageError("--raise and --without-editor exclude each other.")

    async def ask(fleet: Fleet) -> None:
        from asterism.cli.plan_review_views import budget_lines
        from asterism.durable.editor_budget import go_on_without_editor, raise_budget, read_account
        from asterism.durable.stored_plans import find_plan

        await find_plan(fleet, name)
        if limits is not None:
            account = await raise_budget(fleet, name, limits)
        elif without_editor:
            account = await go_on_without_editor(fleet, name)
        else:
            found = await read_account(fleet.store, name)
            if found is None:
                note(f"Plan {name!r} has no budget: no model has been asked to edit it.")
                return
            account = found
        if as_json:
            print_json({"name": name, **account.to_json()})
        else:
            click.echo("\n".join(budget_lines(name, account, same_store(fleet))))

    with_fleet(store, ask)


@click.command()
@name_argument
@click.argument("number", required=False, type=click.IntRange(min=1))
@fleet_options
def exchanges(name: str, number: int | None, store: str | None, as_json: bool) -> None:
    """List the exchanges with a model that edits a plan.

    With NUMBER, shows one of them: the last message of the question, and the answer.

    They can be repeated without a model: `asterism run PLAN.YAML --editor model --replay NAME`."""

    async def read(fleet: Fleet) -> None:
        from asterism.agents.cassette import StoreCassette
        from asterism.cli.plan_review_views import exchange_lines, exchange_text
        from asterism.durable.stored_plans import find_plan

        await find_plan(fleet, name)
        found = await StoreCassette(fleet.store).exchanges(name)
        if number is not None:
            found = [one for one in found if one.number == number]
            if not found:
                raise click.ClickException(f"Plan {name!r} has no exchange {number}.")
        if as_json:
            print_json([one.to_json() for one in found] if number is None else found[0].to_json())
        elif number is not None:
            click.echo(exchange_text(found[0]))
        elif found:
            click.echo("\n".join(exchange_lines(found)))
        else:
            note(f"No model has been asked to edit plan {name!r}.")

    with_fleet(store, read)
