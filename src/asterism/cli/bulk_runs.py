"""``asterism runs create --each``: a run for each line of a file or of standard input.

The lines are read, checked and created batch by batch, each batch in one commit. How far it has come is written in the
same commit, so the same command continues after an interruption and creates no run twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from asterism.base import task_inputs
from asterism.base.text import describe_value, json_text, plural
from asterism.cli.cli_context import note
from asterism.core.run.run import Run
from asterism.core.run.workflow import Workflow
from asterism.fleet.bulk_creation import BATCH, Batch, BulkCreation, BulkProgress, InvalidInput, NotTheSameLines
from asterism.fleet.fleet import Fleet
from asterism.store.store_errors import Conflict

STANDARD_INPUT = "-"
CHUNK = 1 << 18
"""How many bytes are read at a time."""

LONGEST_LINE = 64 << 20
"""The longest line, in bytes: that of the largest input that a fleet accepts by default."""


class InvalidLine(ValueError):
    """No input can be made from a line."""


class Each(NamedTuple):
    """What ``--each`` and the options beside it ask for.

    :param source: a file, or ``-`` for standard input.
    :param plain: the input whose value is the line; None if each line is a JSON object.
    :param given: values for all runs; those of a line take precedence.
    """

    source: str
    plain: str | None
    given: Mapping[str, Any]
    label: str | None
    key: str | None
    terms: Mapping[str, Any]
    restart: bool

    @property
    def name(self) -> str:
        return "standard input" if self.source == STANDARD_INPUT else self.source


async def create_each(fleet: Fleet, *, wanted: str | Workflow, each: Each, as_json: bool) -> int:
    """Create a run for each line. Returns the exit code.

    Prints the ids to standard output, unless that is a terminal; with ``as_json`` a JSON object for each run. The
    totals go to standard error."""
    flow = await fleet.workflows.add(wanted) if isinstance(wanted, Workflow) else await fleet.workflows.find(wanted)
    reader = _LineParser(flow, each)
    creation = BulkCreation(fleet, flow, label=each.label, key=each.key, **each.terms)
    progress: BulkProgress | None = None
    created = 0
    with _opened(each) as file, _progress_bar(file) as advance:
        async for lines in _batches(file, each.name):
            if progress is None:
                progress = BulkProgress(fleet.store, _identity(flow, each), lines)
                await progress.read(restart=each.restart)
            seen = max(0, min(len(lines), progress.resumed_lines - progress.lines))
            if seen:
                _skip(progress, lines[:seen], each)
            if lines[seen:]:
                batch = await _create(creation, progress, reader, lines[seen:])
                created += batch.created
                _print_runs(batch.runs, as_json)
            advance(sum(map(len, lines)) + len(lines), progress.runs)
    if progress is not None and progress.lines < progress.resumed_lines:
        raise click.ClickException(
            f"{each.name} has {progress.lines:,} lines; runs were created of {progress.resumed_lines:,} before the "
            "last command stopped. Restore them to continue, or create runs of all lines with --restart"
        )
    if progress is None or not progress.runs:
        note(f"{each.name} has no lines, so no run was created.")
    else:
        _report(progress, created)
    if progress is not None:
        await progress.finish()
    return 0


def _identity(flow: Workflow, each: Each) -> list[Any]:
    """What makes two commands the same, beside their lines."""
    return [flow.name, each.plain, each.given, each.label, each.key, sorted(each.terms.items())]


def _skip(progress: BulkProgress, lines: Sequence[bytes], each: Each) -> None:
    try:
        progress.skip(lines)
    except NotTheSameLines as error:
        raise click.ClickException(
            f"{each.name}: {error}. Restore them to continue, or create runs of all lines with --restart"
        ) from None


async def _create(creation: BulkCreation, progress: BulkProgress, reader: _LineParser, lines: Sequence[bytes]) -> Batch:
    """Create the runs of a batch of lines. Raises ClickException with the number of a line that cannot be used."""
    name, before, done = reader.each.name, progress.lines, progress.runs
    numbers, inputs = [], []
    try:
        for number, line in enumerate(lines, before + 1):
            if line.strip():
                numbers.append(number)
                inputs.append(reader.parse(line))
        return await creation.add(inputs, progress.advance(lines, len(inputs)))
    except InvalidInput as error:
        number, why = numbers[error.index], error.why
    except InvalidLine as error:
        number, why = numbers[-1], str(error)
    except Conflict as conflict:
        if not conflict.concerns("register", progress.key):
            raise
        raise click.ClickException(
            f"another process creates runs from the same lines of {name} at this moment: wait for its end"
        ) from None
    rest = "Nothing was created"
    if done:
        rest = f"Lines 1 to {before:,} are done. Correct the line and repeat the command to continue after them"
    raise click.ClickException(f"{name}, line {number:,}: {why}. {rest}")


def _print_runs(runs: Sequence[Run], as_json: bool) -> None:
    if as_json:
        documents = ({"id": run.id, "label": run.label, "key": run.key} for run in runs)
        text = "\n".join(json_text(one, encoding=sys.stdout.encoding) for one in documents)
    else:
        text = "" if sys.stdout.isatty() else "\n".join(run.id for run in runs)
    if text:
        click.echo(text)


def _report(progress: BulkProgress, created: int) -> None:
    here = progress.runs - progress.resumed_runs
    note(f"{plural(created, 'run')} created.")
    if created < here:
        note(f"{plural(here - created, 'line')} had the key of a run that exists.")
    if progress.resumed_runs:
        note(f"{plural(progress.resumed_runs, 'run')} had been created before the last command stopped.")
    note("Follow them with: asterism runs watch")


# -- lines -------------------------------------------------------------------------------------------------------------


class _LineParser:
    """Makes inputs from lines."""

    def __init__(self, flow: Workflow, each: Each) -> None:
        self.each = each
        texts = flow.argv or ((str(flow.http["url"]),) if flow.http is not None else ())
        self._needed = sorted(set().union(*map(task_inputs.names_in, texts)))
        self._name = flow.name

    def parse(self, line: bytes) -> dict[str, Any]:
        """The input in a line. Raises InvalidLine."""
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidLine("it is not text in UTF-8") from None
        given = {**self.each.given, **self._values(text)}
        missing = [name for name in self._needed if name not in given]
        if missing:
            raise InvalidLine(f"workflow {self._name!r} needs {' and '.join(missing)}, and the line does not have it")
        return given

    def _values(self, text: str) -> dict[str, Any]:
        if self.each.plain is not None:
            return {self.each.plain: text}
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            hint = "" if error.pos or text.lstrip()[:1] in "{[" else "; for plain lines, name the input with --as"
            raise InvalidLine(f"it is not JSON: {error.msg}, column {error.colno}{hint}") from None
        except RecursionError:
            raise InvalidLine("it is nested too deep") from None
        except InvalidLine:
            raise
        except ValueError:  # Python refuses to convert it
            raise InvalidLine("it has a whole number with too many digits") from None
        if not isinstance(value, dict):
            raise InvalidLine(f'it is {describe_value(value)}, not a JSON object (example: {{"n": 1}})')
        return value


def _refuse_constant(word: str) -> Any:
    raise InvalidLine(f"{word} is not JSON")


@contextmanager
def _opened(each: Each) -> Iterator[BinaryIO]:
    if each.source == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        file = Path(each.source).expanduser().open("rb")
    except OSError as error:
        raise click.ClickException(f"{each.source} cannot be read: {error.strerror}") from None
    with file:
        yield file


async def _batches(file: BinaryIO, name: str) -> AsyncIterator[list[bytes]]:
    """The lines of a file without their ends, BATCH at a time. Raises ClickException for a line that is too long."""
    lines: list[bytes] = []
    begun, size, before, first = list[bytes](), 0, 0, True  # the pieces of a line that has no end yet
    while chunk := await _chunk(file):
        if first:
            chunk, first = chunk.removeprefix(b"\xef\xbb\xbf"), False
        piece, *more = chunk.split(b"\n")
        begun.append(piece)
        size += len(piece)
        if size > LONGEST_LINE:
            number = before + len(lines) + 1
            raise click.ClickException(
                f"{name}, line {number:,}: it is longer than {LONGEST_LINE:,} bytes. "
                f"{f'Lines 1 to {before:,} are done' if before else 'Nothing was created'}"
            )
        if more:
            *whole, rest = [b"".join(begun), *more]
            lines += [line.removesuffix(b"\r") for line in whole]
            begun, size = [rest], len(rest)
        while len(lines) >= BATCH:
            yield lines[:BATCH]
            lines = lines[BATCH:]
            before += BATCH
    lines += [b"".join(begun).removesuffix(b"\r")] if size else []
    if lines:
        yield lines


async def _chunk(file: BinaryIO) -> bytes:
    """The next bytes. The event loop waits for a pipe or a terminal, so that Ctrl-C works meanwhile."""
    try:
        number = file.fileno()
    except OSError:  # not a file of the system
        return file.read(CHUNK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        with suppress(OSError):  # such as /dev/null, which is always ready
            loop.add_reader(number, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(number)
    try:
        return os.read(number, CHUNK)
    except OSError as error:
        raise click.ClickException(f"the lines cannot be read: {error.strerror}") from None


# -- progress bar ------------------------------------------------------------------------------------------------------


@contextmanager
def _progress_bar(file: BinaryIO) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, if that is a terminal: a function to call with the bytes read since the last call and
    the number of runs. The size of a pipe is unknown, and its bar only moves."""
    if not sys.stderr.isatty():
        yield lambda size, runs: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from asterism.cli.screen import Screen

    size = None
    with suppress(OSError):
        status = os.fstat(file.fileno())
        size = status.st_size if stat.S_ISREG(status.st_mode) else None
    columns = (TextColumn("Creating runs"), BarColumn(), TextColumn("{task.fields[runs]:,}"), TimeRemainingColumn())
    # rich's own redirection of the streams would write its escape sequences through the stream that cleans them
    screen = Screen(stderr=True)
    with Progress(*columns, console=screen, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task("", total=size, runs=0)
        yield lambda size, runs: bar.update(task, advance=size, runs=runs)
