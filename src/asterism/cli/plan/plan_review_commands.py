"""``asterism plan``, for those who review a plan: its history of edits, and its open edit cycles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from asterism.cli.cli_context import (
    Answer,
    name_argument,
    note,
    on_system,
    options,
    print_json,
    reason_option,
    same_system,
    story_reason_option,
)
from asterism.cli.model_options import budget_limits
from asterism.cli.option_types import duration_option
from asterism.cli.plan.plan_context import check_drawing_options, draw_stored, drawing_options, edit_batch, edit_options

if TYPE_CHECKING:
    from asterism.api.documents import EditOutcome
    from asterism.api.system import System

REJECTED, WAITS = 1, 3
"""Exit codes: the edit was rejected; the edit waits for the approval of a person."""

answer_wait_option = duration_option(
    "--wait timeout", "10s", help="How long to wait for the process that runs the plan."
)


@click.command()
@name_argument
@click.argument("version", required=False, type=click.IntRange(min=0))
@drawing_options
@on_system()
def history(name: str, version: int | None, svg_path: str | None, as_mermaid: bool, as_json: bool) -> Any:
    """List the versions of a plan, or draw one of them.

    Each version has its author, its reason and its edits. Rejected edits are listed too, the newest 50, with the
    reasons. With VERSION, the plan is drawn as it was when that version was made; version 0 is the plan as it was
    stored."""
    check_drawing_options(svg_path, as_mermaid, as_json)
    if version is None and (svg_path is not None or as_mermaid):
        raise click.UsageError("--svg and --mermaid draw one version: name it after the plan.")

    async def read(system: System) -> Answer | None:
        from asterism.cli.plan.plan_views import history_lines, past_line
        from asterism.cli.screen import Screen

        if version is None:
            versions = await system.list_versions(name)
            unedited = len(versions.items) == 1 and not versions.rejected
            notes = [f"Plan {name!r} has not been edited."] if unedited else []
            return Answer(versions, lambda width: history_lines(versions), notes)
        past = await system.show_version(name, version)
        if as_json:
            print_json(past)
            return None
        await draw_stored(system, name, svg_path, as_mermaid, version)
        if svg_path is None and not as_mermaid:
            screen = Screen()
            screen.say()
            screen.say(past_line(past))
        return None

    return read


# -- edits -------------------------------------------------------------------------------------------------------------


async def attempt_edit(
    system: System,
    name: str,
    edit: Awaitable[EditOutcome],
    lines: Callable[[EditOutcome], list[str]] | None = None,
    *,
    dry_run: bool = False,
) -> Answer:
    """Edit a plan. The answer has ``lines``, by default the changes; or that the edit waits, or why it was rejected."""
    from asterism.api.client_errors import ApiError
    from asterism.cli.plan.plan_views import applied_lines, resume_command
    from asterism.core.errors import EditRejected
    from asterism.core.plan.edits import EditWaits

    try:
        outcome = await edit
    except EditWaits as waits:
        return await _waiting(system, name, waits.approval.id)
    except ApiError as error:
        if error.approval is None:
            raise
        return await _waiting(system, name, error.approval)
    except EditRejected as rejected:
        for line in str(rejected).splitlines():
            note(line)
        violations = [{"edit": why.edit, "rule": why.rule, "message": why.message} for why in rejected.violations]
        document = {"name": name, "accepted": False, "dry_run": dry_run, "violations": violations}
        return Answer(document, code=REJECTED)
    shown = applied_lines(outcome, resume_command(system.url, name)) if lines is None else lines(outcome)
    return Answer(outcome, "\n".join(shown))


async def _waiting(system: System, name: str, approval: int) -> Answer:
    """That an edit waits for a person."""
    from asterism.cli.plan.plan_views import waiting_lines

    edits = (await system.list_approvals(name, all=True)).items
    waiting = next(edit for edit in edits if edit.id == approval)
    lines = waiting_lines(name, waiting, same_system(system.url))
    return Answer({"name": name, "accepted": False, "waiting": waiting}, "\n".join(lines), code=WAITS)


# -- edit cycles -------------------------------------------------------------------------------------------------------

cycle_argument = click.argument("cycle", type=click.IntRange(min=1))

_editor_options = options(
    click.option("--by", "who", metavar="NAME", help="The name of the editor; default: your user name."),
    answer_wait_option,
)
"""The options of the commands of an editor."""


@click.command()
@name_argument
@on_system()
async def cycles(system: System, name: str) -> Answer:
    """List the open edit cycles of a plan.

    A cycle reviews tasks that have ended, and holds the tasks after them until it is answered. People and other
    processes answer the cycles of a plan that runs with `--editor outside`."""
    from asterism.cli.plan.plan_views import cycle_lines

    cycles = await system.list_cycles(name)
    if not cycles.items:
        return Answer(cycles.items, notes=[f"Plan {name!r} has no open edit cycle."])
    return Answer(cycles.items, lambda width: cycle_lines(name, cycles, same_system(system.url)))


@click.command()
@name_argument
@cycle_argument
@duration_option("--lease", "10m", help="How long the cycle is reserved for this editor.")
@_editor_options
@on_system()
async def claim(system: System, name: str, cycle: int, lease: float, who: str | None, timeout: float) -> Answer:
    """Claim an open edit cycle, so that no other editor answers it.

    Claim it again to renew the claim. After its --lease other editors may claim it. The plan does not wait for longer
    than its edit timeout, whether the cycle is claimed or not."""
    from asterism.cli.plan.plan_views import claimed_line

    claimed = await system.claim_cycle(name, cycle, lease, who, timeout)
    return Answer(claimed, claimed_line(name, claimed, lease))


@click.command()
@name_argument
@cycle_argument
@edit_options
@click.option("--reason", metavar="TEXT", help="The reason, for the story.")
@_editor_options
@on_system()
def answer(name: str, cycle: int, reason: str | None, who: str | None, timeout: float, **wanted: Any) -> Any:
    """Answer an open edit cycle, with edits or without.

    \b
    asterism plan answer nightly 3
    asterism plan answer nightly 3 --remove publish --reason "the tests failed"

    Without edits the plan goes on as it is. The edits are applied all or none. Exits with 1 if they are rejected, and
    prints every reason; the cycle stays open for another answer. A cycle that nobody has claimed needs no claim."""
    batch = edit_batch(**wanted, may_be_empty=True)
    why = batch.reason if reason is None else reason
    author = who or batch.author or None

    async def ask(system: System) -> Answer:
        from asterism.cli.plan.plan_views import answered_lines

        edit = system.answer_cycle(name, cycle, batch.edits, why, batch.base_version, author, timeout)
        return await attempt_edit(system, name, edit, lambda outcome: answered_lines(cycle, outcome))

    return ask


# -- approvals ---------------------------------------------------------------------------------------------------------

approval_argument = click.argument("approval", type=click.IntRange(min=1))


@click.command()
@name_argument
@click.option("--all", "everything", is_flag=True, help="Also list edits that were approved, refused or expired.")
@on_system()
async def approvals(system: System, name: str, everything: bool) -> Answer:
    """List the edits of a plan that wait for a person.

    Rules say which edits wait: `asterism run PLAN.YAML --store URL --approve destructive`. A waiting edit holds the
    tasks that it would change; all other tasks go on."""
    from asterism.cli.plan.plan_views import approval_lines

    page = await system.list_approvals(name, everything)
    if not page.items:
        return Answer(page.items, notes=[f"No edit of plan {name!r} waits for a person."])
    store = same_system(system.url)
    return Answer(page.items, lambda width: approval_lines(name, page.items, page.now or 0.0, store))


@click.command()
@name_argument
@approval_argument
@edit_options
@story_reason_option
@_editor_options
@on_system()
def approve(name: str, approval: int, reason: str, who: str | None, timeout: float, **wanted: Any) -> Any:
    """Approve an edit that waits for a person.

    \b
    asterism plan approve nightly 2
    asterism plan approve nightly 2 --edits changed.json

    The edit, or the given edits in its place, is applied with all checks, completely or not at all. Exits with 1 if it
    is rejected, and prints every reason; it then still waits, and can be refused, or approved with other edits."""
    batch = edit_batch(**wanted, may_be_empty=True)
    author = who or batch.author or None

    async def ask(system: System) -> Answer:
        edit = system.approve_edit(name, approval, batch.edits or None, reason, author, timeout)
        return await attempt_edit(system, name, edit)

    return ask


@click.command()
@name_argument
@approval_argument
@reason_option("for its author and the story")
@_editor_options
@on_system()
async def refuse(system: System, name: str, approval: int, reason: str, who: str | None, timeout: float) -> Answer:
    """Refuse an edit that waits for a person.

    The plan stays as it is, and the tasks that the edit held go on."""
    decided = await system.refuse_edit(name, approval, reason, who, timeout)
    return Answer(decided, f"The edit of approval {approval} is refused; plan {name!r} stays as it is.")


# -- budgets -----------------------------------------------------------------------------------------------------------


def _limits(text: str) -> str:
    budget_limits(text)
    return text


@click.command()
@name_argument
@click.option(
    "--raise",
    "limits",
    type=_limits,
    metavar="LIMITS",
    help="New limits, such as '$5' or '80calls'; the others stay. The editor continues.",
)
@click.option("--without-editor", is_flag=True, help="Let the plan go on without its editor.")
@on_system()
def budget(name: str, limits: str | None, without_editor: bool) -> Any:
    """Show or raise the budget of a model that edits a plan.

    \b
    asterism plan budget nightly
    asterism plan budget nightly --raise '$5 80calls'
    asterism plan budget nightly --without-editor

    A spent budget holds the tasks whose start the model would have to review, until somebody decides."""
    if limits is not None and without_editor:
        raise click.UsageError("--raise and --without-editor exclude each other.")

    async def ask(system: System) -> Answer | None:
        from asterism.cli.plan.plan_views import budget_lines

        if limits is not None or without_editor:
            shown = await system.decide_budget(name, limits, without_editor)
        else:
            plan = await system.show_plan(name, tasks=False)
            if plan.budget is None:
                note(f"Plan {name!r} has no budget: no model has been asked to edit it.")
                return None
            shown = plan.budget
        return Answer({"name": name, **vars(shown)}, "\n".join(budget_lines(name, shown, same_system(system.url))))

    return ask


@click.command()
@name_argument
@click.argument("number", required=False, type=click.IntRange(min=1))
@on_system()
async def exchanges(system: System, name: str, number: int | None) -> Answer:
    """List the exchanges with a model that edits a plan.

    With NUMBER, shows one of them: the last message of the question, and the answer.

    They can be repeated without a model: `asterism run PLAN.YAML --editor model --replay NAME`."""
    from asterism.cli.plan.plan_views import exchange_lines, exchange_text

    exchanges = (await system.list_exchanges(name, number)).items
    if number is not None:
        return Answer(exchanges[0], exchange_text(exchanges[0]))
    if not exchanges:
        return Answer(exchanges, notes=[f"No model has been asked to edit plan {name!r}."])
    return Answer(exchanges, "\n".join(exchange_lines(exchanges)))
