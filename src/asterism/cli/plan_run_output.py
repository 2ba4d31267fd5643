"""The output of commands that run a plan: result, report and JSON; and which log is suppressed.

Importing this module is cheap: rich and the report are imported when a plan has ended.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from asterism.base.text import clean
from asterism.cli.cli_context import print_json
from asterism.cli.plan_run_options import OutputOptions

if TYPE_CHECKING:
    from asterism.cli.screen import Screen
    from asterism.orchestrator.result import Result
    from asterism.report.result_report import Recording


@contextmanager
def quiet_log(*, but: tuple[str, ...] = ()) -> Iterator[None]:
    """Suppress warnings in the log: events report the same. The loggers in ``but`` report things that are no events."""
    levels = {"asterism": logging.ERROR, **dict.fromkeys(but, logging.WARNING)}
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def print_result(result: Result, recording: Recording | None, output: OutputOptions, screen: Screen) -> None:
    """Print the result of a plan for people, and write the report and the JSON that the options ask for."""
    from asterism.cli.screen import forget_output
    from asterism.report.result_report import write_report
    from asterism.report.result_summary import failure_reasons, result_json, summary_lines

    screen.say()
    for reason in failure_reasons(result):
        screen.say(reason)
    for figure in summary_lines(result):
        screen.say(figure)
    if output.report is not None:
        try:
            write_report(output.report, result, recording)
        except OSError as error:
            raise click.ClickException(
                f"The report {clean(output.report)} cannot be written: {error.strerror}."
            ) from None
        screen.say(f"Report: {output.report}")
    if output.as_json:
        try:
            print_json(result_json(result))
        except BrokenPipeError:
            forget_output(sys.stdout)
