"""``asterism batch``: runs with a common name, which ``asterism runs create --batch`` has given them."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from asterism.api.run_operations import MOST_AT_ONCE
from asterism.base.text import echo_data, json_text, plural, short
from asterism.cli.cli_context import Answer, CommandGroup, ask_again, note, reason_option
from asterism.cli.option_types import option

if TYPE_CHECKING:
    from asterism.api.documents import BatchResult, BulkOutcome
    from asterism.api.system import System

FAILED = 1
REFUSED = 64
RESULT_COLUMNS = ("id", "label", "key", "status", "device", "attempts", "took", "ended_at", "input", "output", "error")
_story_reason = reason_option("for the story of the runs")


@click.group(cls=CommandGroup)
def batch() -> None:
    """Manage runs with a common name: show, wait, cancel, retry, results.

    `asterism runs create --batch NAME` creates runs of a batch. A batch exists while one of its runs does. A run that
    was retried is replaced by its retry: it is neither counted nor listed any more."""


@batch.command("list")
async def list_(system: System) -> Answer:
    """List the batches, the newest last."""
    from asterism.cli.run.batch_views import batches_table

    page = await system.list_batches()
    if not page.items:
        create = "There are no batches. Create one with: asterism runs create WORKFLOW --each FILE --batch NAME"
        return Answer([], notes=[create])
    page.items.reverse()
    return Answer(page.items, lambda width: batches_table(page.items, page.now or 0.0, width))


@batch.command(short_help="Show how far a batch has come.")
async def show(system: System, name: str) -> Answer:
    """Show how far a batch has come: its counts, its rate, the time left, and the runs that failed.

    The rate is that of the last 100 ends; the time left is what the other runs take at this rate."""
    from asterism.cli.run.batch_views import batch_lines

    details = await system.show_batch(name)
    return Answer(details, lambda width: batch_lines(details, width))


@batch.command()
async def wait(system: System, name: str) -> Answer:
    """Wait until all runs of a batch have ended. Exits with 1 if one of them failed or was cancelled."""
    from asterism.cli.run.batch_views import batch_lines

    details = await ask_again(partial(system.wait_batch, name))
    while not details.ended:
        details = await ask_again(partial(system.wait_batch, name))
    code = FAILED if details.failed or details.cancelled else 0
    return Answer(details, lambda width: batch_lines(details, width), code=code)


@batch.command(short_help="Cancel all runs of a batch.")
@_story_reason
async def cancel(system: System, name: str, reason: str) -> Answer:
    """Cancel all runs of a batch: at once, or when their devices have stopped them."""
    return await _act_on_all("cancelled", partial(system.cancel_batch, name, reason=reason))


@batch.command(short_help="Run what failed in a batch again.")
@option("--failed", "Only runs that failed, not those that were cancelled.")
@_story_reason
async def retry(system: System, name: str, failed: bool, reason: str) -> Answer:
    """Run the runs of a batch again that failed or were cancelled, as new runs that replace them."""
    return await _act_on_all("retried", partial(system.retry_batch, name, failed, reason=reason))


async def _act_on_all(what: str, act: Callable[..., Awaitable[BulkOutcome]]) -> Answer:
    """Act on all runs of a batch, some at a time."""
    outcome = await act()
    changed, refused = list(outcome.changed), dict(outcome.refused)
    while outcome.next is not None:
        outcome = await act(after=outcome.next)
        changed += outcome.changed
        refused |= outcome.refused
    notes = [f"Run {short(run)}: {why}." for run, why in refused.items()]
    document = {"changed": changed, "refused": refused}
    return Answer(document, f"{plural(len(changed), 'run')} {what}.", notes, REFUSED if refused else 0)


@batch.command(short_help="Print the results of a batch.")
@option("--csv", "Print a table in CSV instead of JSON lines.", to="as_csv")
async def results(system: System, name: str, as_csv: bool, as_json: bool) -> None:
    """Print a JSON object for each run of a batch that has ended, in the order of their creation.

    In CSV, an input is JSON, and so is an output that is not text."""
    if as_csv and as_json:
        raise click.UsageError("Give either --csv or --json.")
    after: str | None = None
    first = True
    while first or after is not None:
        page = await ask_again(partial(system.read_batch_results, name, after, MOST_AT_ONCE))
        if as_csv:
            text = _csv([*([RESULT_COLUMNS] if first else []), *map(_cells, page.items)])
        else:
            text = "\n".join(json_text(item, encoding=sys.stdout.encoding) for item in page.items)
        if text:
            echo_data(text)
        first, after = False, page.next
    details = await system.show_batch(name)
    if not details.ended:
        note(f"{plural(details.waiting + details.running, 'run')} of the batch have not ended.")


def _cells(result: BatchResult) -> list[Any]:
    texts = {"input": json_text(result.input)}
    if result.output is not None and not isinstance(result.output, str):
        texts["output"] = json_text(result.output)
    return [texts.get(name, getattr(result, name)) for name in RESULT_COLUMNS]


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue().removesuffix("\n")
