"""``asterism runs create --each``: a run for each line of a file or of standard input.

The lines are read and parsed here, and their runs are created batch by batch, each batch in one commit of the store.
With a key for each line, the same command can be repeated after an interruption: it creates only what is missing.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click

from asterism.api.client_errors import ApiError, ServerUnreachable
from asterism.api.documents import CreatedRun, CreatedRuns
from asterism.api.run_operations import BATCH
from asterism.api.system import System
from asterism.base.text import json_text, plural
from asterism.cli.cli_context import note
from asterism.core.errors import AsterismError, describe_value
from asterism.core.json_values import JsonObject
from asterism.core.run.run_label import TextTemplate, key_template
from asterism.core.run.work import Workflow
from asterism.fleet.bulk_creation import InvalidInput
from asterism.store.store_errors import StoreError

STANDARD_INPUT = "-"
CHUNK = 1 << 18
"""How many bytes are read at a time."""

LARGEST_PART = 1 << 20
"""How many bytes of lines are sent at a time, unless one line is longer: servers refuse a large request."""

TOO_LARGE = 413

NOT_KEPT = "answer-not-kept"
"""The problem of a request that was done, whose answer is lost."""

LONGEST_LINE = 64 << 20
"""The longest line, in bytes: that of the largest input that a fleet accepts by default."""


class InvalidLine(ValueError):
    """No input can be made from a line."""


@dataclass(frozen=True, kw_only=True)
class NewRuns:
    """What ``--each`` and the options beside it ask for.

    :param workflow: the workflow, or its name.
    :param source: a file, or ``-`` for standard input.
    :param plain: the input whose value is the line; None if each line is a JSON object.
    :param values: inputs of all runs; those of a line take precedence.
    :param options: ``series``, ``priority``, ``device``, ``keep`` and ``batch``, if they are given.
    """

    workflow: str | Workflow
    source: str
    plain: str | None
    values: Mapping[str, Any]
    label: str | None
    key: str | None
    options: Mapping[str, Any]
    as_json: bool

    @property
    def name(self) -> str:
        """What messages call the source."""
        return "standard input" if self.source == STANDARD_INPUT else self.source

    def check_templates(self) -> None:
        """Raises InvalidTemplate."""
        if self.label is not None:
            TextTemplate(self.label)
        if self.key is not None:
            key_template(self.key)


async def create_each(system: System, *, new: NewRuns) -> int:
    """Create a run for each line. Returns the exit code.

    Prints the ids to standard output, unless that is a terminal; with ``as_json`` a JSON object for each run. The
    totals go to standard error."""
    new.check_templates()
    if isinstance(new.workflow, Workflow):
        name = (await system.add_workflow(new.workflow.to_json())).name
    else:
        name = (await system.show_workflow(new.workflow)).name
    creation = _Creation(system, new, name)
    try:
        with _opened(new) as file, _progress_bar(file) as advance:
            async for lines in _batches(file, new.name):
                await creation.add(lines)
                advance(sum(map(len, lines)) + len(lines), creation.runs)
    except BaseException:  # also Ctrl-C
        creation.report_stop()
        raise
    creation.report()
    return 0


class _Creation:
    """``lines`` and ``runs`` count what was read and what was made of it, ``created`` the runs that are new. ``sent``
    is how many lines after these are under way: it is unknown whether their runs exist."""

    def __init__(self, system: System, new: NewRuns, workflow: str) -> None:
        self._system, self._new, self._workflow = system, new, workflow
        self.lines = self.runs = self.created = self.sent = 0

    async def add(self, lines: Sequence[bytes]) -> None:
        """Create the runs of lines."""
        for part in self._parts(lines):
            await self._create(part)

    def _parts(self, lines: Sequence[bytes]) -> Iterator[list[bytes]]:
        """The lines in parts that a server accepts."""
        more = len(json.dumps(self._new.values))
        part: list[bytes] = []
        size = 0
        for line in lines:
            if part and size + len(line) + more > LARGEST_PART:
                yield part
                part, size = [], 0
            part.append(line)
            size += len(line) + more
        if part:
            yield part

    async def _create(self, lines: Sequence[bytes]) -> None:
        """Create the runs of a part, and print them. Raises ClickException with the number of a line that cannot be
        used."""
        numbers: list[int] = []
        inputs: list[JsonObject] = []
        try:
            for number, line in enumerate(lines, self.lines + 1):
                if line.strip():
                    numbers.append(number)
                    inputs.append(parse_line(line, self._new))
            self.sent = len(lines)
            batch = await self._send(inputs)
        except InvalidLine as error:
            raise self._bad_line(numbers[-1], str(error)) from None
        except InvalidInput as error:
            raise self._bad_line(numbers[error.index], error.why) from None
        except ApiError as error:
            if error.status == TOO_LARGE and len(inputs) == 1:
                raise self._bad_line(numbers[0], str(error)) from None
            if error.problem != "invalid-input":
                raise
            raise self._bad_line(numbers[error.violations[0].edit or 0], error.violations[0].message) from None
        self.lines, self.sent = self.lines + len(lines), 0
        self.runs += len(inputs)
        self.created += batch.created
        _print_runs(batch.runs, self._new.as_json)

    async def _send(self, inputs: list[JsonObject]) -> CreatedRuns:
        """The runs of inputs. If a connection breaks, the client asks again with the same ``Idempotency-Key``; but a
        server keeps no long answer for that. With keys of the runs, one more request gets the same runs."""
        new = self._new
        create = partial(self._system.create_runs, self._workflow, inputs, label=new.label, key=new.key, **new.options)
        try:
            return await create()
        except AsterismError as error:
            if not isinstance(error, ApiError) or error.problem != NOT_KEPT:
                self.sent = self.sent if _may_be_done(error) else 0
                raise
            if new.key is not None:
                return await create()
            first, last = self.lines + 1, self.lines + self.sent
            note(f"The answer about lines {first:,} to {last:,} was lost. Their runs exist.")
            return CreatedRuns(runs=[], created=len(inputs))

    def _bad_line(self, number: int, why: str) -> click.ClickException:
        rest = "" if self.lines else ". Nothing was created"
        return click.ClickException(f"{self._new.name}, line {number:,}: {why}{rest}")

    def report_stop(self) -> None:
        """Print how far it has come, and how to go on."""
        words = []
        if self.lines:
            words.append(f"{plural(self.created, 'run')} created, of lines 1 to {self.lines:,}.")
        if self.sent:
            words.append(
                f"It is unknown whether lines {self.lines + 1:,} to {self.lines + self.sent:,} have their runs."
            )
        if not words:
            return
        if self._new.key is not None:
            words.append("Repeat the command to create only the runs that are missing.")
        else:
            repeat = "Look for them, and repeat" if self.sent else "Repeat"
            words.append(f"{repeat} the command with the lines after them. (With --key it could be repeated as it is.)")
        note(" ".join(words))

    def report(self) -> None:
        """Print the totals."""
        if not self.runs:
            note(f"{self._new.name} has no lines, so no run was created.")
            return
        note(f"{plural(self.created, 'run')} created.")
        if self.created < self.runs:
            note(f"{plural(self.runs - self.created, 'line')} had the key of a run that exists.")
        batch = self._new.options.get("batch")
        command = "asterism runs watch" if batch is None else f"asterism batch wait {shlex.quote(batch)}"
        note(f"Follow them with: {command}")


def _may_be_done(error: AsterismError) -> bool:
    """Whether what failed with this error may have been done. All others say that nothing was done."""
    if isinstance(error, ApiError):
        return error.status >= 500
    return isinstance(error, ServerUnreachable | StoreError)


def _print_runs(runs: Sequence[CreatedRun], as_json: bool) -> None:
    if as_json:
        text = "\n".join(json_text(run, encoding=sys.stdout.encoding) for run in runs)
    else:
        text = "" if sys.stdout.isatty() else "\n".join(run.id for run in runs)
    if text:
        click.echo(text)


# -- lines -------------------------------------------------------------------------------------------------------------


def parse_line(line: bytes, new: NewRuns) -> JsonObject:
    """The input in a line. Raises InvalidLine."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidLine("it is not text in UTF-8") from None
    return {**new.values, **(_json_object(text) if new.plain is None else {new.plain: text})}


def _json_object(text: str) -> JsonObject:
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
def _opened(new: NewRuns) -> Iterator[BinaryIO]:
    if new.source == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        file = Path(new.source).expanduser().open("rb")
    except OSError as error:
        raise click.ClickException(f"{new.source} cannot be read: {error.strerror}") from None
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
                f"{name}, line {number:,}: it is longer than {LONGEST_LINE:,} bytes"
                f"{'' if before else '. Nothing was created'}"
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
