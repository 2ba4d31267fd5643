"""``asterism runs logs`` and ``asterism plan logs``: what runs and tasks printed, as lines and as JSON, also live."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
from rich.text import Text

from asterism.api.documents import LogEntry, RunLog, TaskLogEntry, document_of
from asterism.api.system import System
from asterism.base.status_colours import DIM
from asterism.base.text import clean, echo_data, json_text, short
from asterism.cli.cli_context import ask_again, format_clock, note, refuse_options
from asterism.cli.screen import Screen
from asterism.core.attempt_log import LogLine
from asterism.report.result_summary import log_text

FOLLOW_TIMEOUT = 20.0
"""How long an answer may wait for a line, in seconds."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """``since``: only lines of the last so many seconds. ``attempt``: only this one."""

    follow: bool = False
    since: float | None = None
    attempt: int | None = None
    times: bool = False
    as_json: bool = False


def read_log_options(as_json: bool, chosen: Mapping[str, Any]) -> LogOptions:
    """Those of a command. Raises UsageError."""
    if as_json:
        refuse_options("has no effect with --json: each line has its time and stream.", "times")
    return LogOptions(**chosen, as_json=as_json)


def run_lines(page: RunLog) -> list[TaskLogEntry]:
    """The lines of a run, which is the run of no task here."""
    return [document_of(TaskLogEntry, entry, run=page.run, task="") for entry in page.items]


def line_text(entry: LogEntry) -> Text:
    return log_text(LogLine(entry.at, entry.stream, entry.text))


def _line_json(entry: TaskLogEntry) -> str:
    task = {"task": entry.task} if entry.task else {}
    line = {"attempt": entry.attempt, "at": entry.at, "stream": entry.stream, "text": entry.text}
    return json_text({"run": entry.run, **task, **line}, encoding=sys.stdout.encoding)


class LogPrinter:
    """Prints lines: as JSON, as data for another program, or coloured on a terminal. Those of ``task`` are without its
    name."""

    def __init__(self, options: LogOptions, now: float, *, task: str | None) -> None:
        self._options, self._task = options, task
        self._begin = 0.0 if options.since is None else now - options.since
        self._screen = Screen() if sys.stdout.isatty() else None
        self._attempt: tuple[str, int] | None = None
        self.printed = 0

    def print(self, entries: Sequence[TaskLogEntry]) -> None:
        chosen = [entry for entry in entries if entry.at >= self._begin]
        self.printed += len(chosen)
        if self._options.as_json:
            for entry in chosen:
                click.echo(_line_json(entry))
        elif self._screen is None:
            if chosen:
                parts = [part for entry in chosen for part in (*self._heading(entry), self._prefix(entry) + entry.text)]
                echo_data("\n".join(parts))
        else:
            for entry in chosen:
                for heading in self._heading(entry):
                    self._screen.say(Text(heading, DIM))
                self._screen.say(Text(clean(self._prefix(entry)), DIM).append_text(line_text(entry)))

    def _heading(self, entry: TaskLogEntry) -> list[str]:
        """A line between two attempts at one run."""
        before, self._attempt = self._attempt, (entry.run, entry.attempt)
        if entry.task != self._task or before in (None, self._attempt):
            return []
        return [f"-- attempt {entry.attempt} --"]

    def _prefix(self, entry: TaskLogEntry) -> str:
        time = f"{format_clock(entry.at)} {entry.stream:<6} " if self._options.times else ""
        again = f" ({entry.attempt})" if entry.attempt > 1 else ""
        return time if entry.task == self._task else f"{time}{entry.task}{again} | "


async def print_run_log(system: System, run: str, options: LogOptions) -> None:
    """Print the log of one run; with ``follow`` until the run has ended. Each answer continues after the one before, so
    that a lost connection neither loses nor repeats a line."""
    timeout = FOLLOW_TIMEOUT if options.follow else 0.0
    page = await system.read_run_logs(run, attempt=options.attempt)
    printer = LogPrinter(options, page.now or 0.0, task="")
    while True:
        printer.print(run_lines(page))
        if not page.items and (page.ended or not options.follow):
            break
        ask = partial(system.read_run_logs, page.run, page.next, options.attempt, timeout)
        page = await (ask_again(ask) if options.follow else ask())
    if not printer.printed and page.elsewhere:
        note(f"Run {short(page.run)} is with a peer, and so is what it prints: ask there.")
    elif not printer.printed:
        note(f"Run {short(page.run)} is {page.status} and has printed nothing{_chosen(options)}.")


async def print_plan_log(system: System, name: str, task: str | None, options: LogOptions) -> None:
    """Print the logs of a plan, or of one task or group, in the order of time; with ``follow`` until the plan has
    ended. Each answer continues after the one before, so that a lost connection neither loses nor repeats a line."""
    page = await system.read_plan_logs(name, task, attempt=options.attempt)
    printer = LogPrinter(options, page.now or 0.0, task=task)
    batch: list[TaskLogEntry] = []
    while True:
        batch += page.items
        if not page.more:  # all that there is now, in the order of time
            batch.sort(key=lambda line: line.at)
            printer.print(batch)
            batch = []
            if not options.follow or (page.ended and not page.items):
                break
        timeout = FOLLOW_TIMEOUT if options.follow and not page.more else 0.0
        ask = partial(system.read_plan_logs, name, task, page.next, options.attempt, timeout)
        page = await (ask_again(ask) if options.follow else ask())
    if not printer.printed:
        what = f"Plan {name!r}" if task is None else f"Task {task!r} of plan {name!r}"
        why = "" if page.executed else "; it has not started, or its runs were pruned"
        note(f"{what} has printed nothing{_chosen(options)}{why}.")


def _chosen(options: LogOptions) -> str:
    attempt = "" if options.attempt is None else f" in attempt {options.attempt}"
    return attempt if options.since is None else f"{attempt} in this time"
