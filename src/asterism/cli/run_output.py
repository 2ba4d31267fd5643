"""What the commands that run a plan share: the editor they load, what they keep quiet, and how they tell the end.

Importing this is quick: what it takes to run a plan is imported when one is run.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from asterism.base.safe_text import clean
from asterism.cli.option_types import can_be_written

if TYPE_CHECKING:
    from asterism.cli.screen import Screen
    from asterism.orchestrator.result import Result
    from asterism.report.run_recorder import Recording


@dataclass(frozen=True, slots=True)
class Wishes:
    """How the run is to be shown and kept."""

    report: str | None
    as_json: bool
    plain: bool


editor_option = click.option(
    "--editor", metavar="MODULE:FUNCTION", help="A Python function that edits the plan while it runs."
)
concurrency_option = click.option(
    "--concurrency", type=click.IntRange(min=1), help="How many tasks run at once in all."
)
report_option = click.option(
    "--report", callback=can_be_written, metavar="FILE.html", help="Write a report of the run as a web page."
)
plain_option = click.option("--plain", is_flag=True, help="A line for each event instead of the live view.")


def load_editor(path: str | None) -> Any:
    from asterism.base import function_calls
    from asterism.cli.plan_file_commands import Unusable

    if path is None:
        return None
    if ":" not in path:
        raise click.UsageError(f"--editor is package.module:function, not {path!r}.")
    try:
        return function_calls.load_function(path)
    except (Exception, SystemExit) as error:  # importing runs foreign code, which may raise anything
        raise Unusable(
            f"The editor {path!r} cannot be imported: {type(error).__name__}: {clean(str(error))}."
        ) from None


@contextmanager
def quiet_log(*, but: tuple[str, ...] = ()) -> Iterator[None]:
    """What goes wrong is told as an event; a warning in the log would tell it again. The loggers in ``but`` have
    something to say that is no event."""
    levels = {"asterism": logging.ERROR, **dict.fromkeys(but, logging.WARNING)}
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def tell_end(result: Result, recording: Recording | None, wishes: Wishes, screen: Screen) -> None:
    """How it ended: for people, in a report, as JSON, whatever is wished for."""
    from asterism.cli.cli_context import tell_json
    from asterism.cli.plan_file_commands import Unusable
    from asterism.cli.screen import forget_output
    from asterism.orchestrator.plan_mask import PlanMask
    from asterism.report.result_json import result_json
    from asterism.report.result_report import write_report
    from asterism.report.run_figures import lines, reasons

    secrets = PlanMask(result.plan)
    screen.say()
    for reason in reasons(result, secrets):
        screen.say(reason)
    for figure in lines(result):
        screen.say(figure)
    if wishes.report is not None:
        try:
            write_report(wishes.report, result, recording)
        except OSError as error:
            raise Unusable(f"The report {clean(wishes.report)} cannot be written: {error.strerror}.") from None
        screen.say(f"Report: {wishes.report}")
    if wishes.as_json:
        try:
            tell_json(result_json(result))
        except BrokenPipeError:
            forget_output(sys.stdout)
