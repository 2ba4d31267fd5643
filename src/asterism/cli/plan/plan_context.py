"""What commands on plans share: options, the output of a run, drawings, and batches of edits.

``run``, ``plan resume`` and ``plan standby`` run a plan; ``show`` and ``plan show`` draw one. Importing this module is
cheap: rich and the report are imported when there is something to print.

``--local`` takes its number with ``=`` only, so that the next word is never read as the number.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import note, options, print_json
from asterism.cli.editor_options import model_options
from asterism.cli.option_types import duration, edit_filter, json_object, number_option, option, writable_file
from asterism.core.json_values import JsonObject
from asterism.core.record import Record

if TYPE_CHECKING:
    from asterism.api.system import System
    from asterism.cli.screen import Screen
    from asterism.core.plan.constellation import Constellation
    from asterism.core.plan.edits import EditBatch
    from asterism.orchestrator.result import Result
    from asterism.report.result_report import PlanOrigin, Recording
    from asterism.report.result_summary import LogsOf


ALL_PROCESSORS = "one per processor"
TAKEOVER_AFTER = 15.0

NO_RESULT = 1
"""The exit code if the plan completed, but not the task of ``--result``."""


class OutputOptions(Record):
    """How a command shows the plan while it runs, and its result."""

    report: str | None
    as_json: bool
    plain: bool
    stats: bool = False
    result: str | None = None
    """The task whose result alone goes to standard output."""

    @classmethod
    def take(cls, option_values: dict[str, Any], as_json: bool) -> OutputOptions:
        """Take the options of the output out of those of a command. Raises UsageError if two claim standard output."""
        chosen = {name: option_values.pop(name) for name in ("report", "plain", "stats", "result")}
        if chosen["result"] is not None and as_json:
            raise click.UsageError("--result and --json exclude each other: --json prints the results of all tasks.")
        return cls(as_json=as_json, **chosen)

    @property
    def to_stderr(self) -> bool:
        """Whether standard output belongs to data, and all else goes to standard error."""
        return self.as_json or self.result is not None


class LocalWork(Record):
    """The tasks that this process executes itself.

    ``slots`` is how many at once; None for one per processor, if no other device is joined. ``can`` is this process's
    capabilities; None for all that the tasks need."""

    slots: int | None = None
    can: frozenset[str] | None = None


class LocalCommand(click.Command):
    """A command with ``--local[=SLOTS]``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"--local={ALL_PROCESSORS}" if word == "--local" else word for word in args])


def _slots(text: str) -> int:
    if text == ALL_PROCESSORS:
        return os.cpu_count() or 1
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise click.BadParameter(f"{text!r} is not a number of slots (examples: --local, --local=4).")
    return int(text)


local_options = options(
    option(
        "--local [=SLOTS]",
        "Also execute tasks in this process; the default if no device is joined at the start.",
        type=_slots,
    ),
    option("--no-local", "Execute no tasks in this process, even if no device is joined."),
    option(
        "--takeover-after DURATION",
        "Another process may take over after this time without a heartbeat of this one.",
        type=duration,
        default=f"{TAKEOVER_AFTER:g}s",
    ),
)

editor_options = options(
    option(
        "--editor MODULE:FUNCTION",
        "A Python function that edits the plan while it runs; 'outside': people and other processes do, "
        "with `asterism plan cycles`; 'model': a language model does.",
    ),
    option(
        "--edit-on FILTER",
        "With --editor: which ends of tasks the editor reviews: 'all', 'failure', 'tasks=deploy-*' or "
        "'when=CONDITION'; repeatable. Default: all; failure for a model.",
        multiple=True,
        callback=edit_filter,
    ),
    model_options,
)
NO_EDITOR = "needs --editor: without an editor, the plan is not edited while it runs."
"""Why an option of ``editor_options`` is refused."""

concurrency_option = number_option(
    "--concurrency",
    least=1,
    help="Maximum number of tasks that run at once, also the slots of this process if it alone executes tasks.",
)


def default_slots(concurrency: int | None) -> int:
    """How many tasks this process executes at once, unless that is said elsewhere."""
    return concurrency or os.cpu_count() or 1


def warn_of_slots(concurrency: int | None, slots: int, whose: str) -> None:
    """Say what limits the tasks at once if that is not ``concurrency``."""
    if concurrency is not None and slots < concurrency:
        note(f"At most {slots} tasks run at once, not {concurrency}: {whose} {slots} slots in all.")


report_option = option("--report FILE.html", "Write a report of the run as a web page.", callback=writable_file)
plain_option = option("--plain", "Print a line for each event instead of the live view.")


@contextmanager
def prints_beside(output: OutputOptions) -> Iterator[None]:
    """While the block runs, what functions print goes to standard error if standard output belongs to data."""
    if not output.to_stderr or sys.stderr is None:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


result_options = options(
    option(
        "--result TASK",
        "Print the result of this task: text as it is, anything else as JSON; all else goes to standard error.",
    ),
    option("--stats", "Print the figures of the run at its end: makespan, bound, parallelism."),
)


def local_work(local: int | None, no_local: bool, can: frozenset[str] | None) -> LocalWork:
    """Raises UsageError if both ``--local`` and ``--no-local`` are given."""
    if local is not None and no_local:
        raise click.UsageError("--local and --no-local exclude each other.")
    return LocalWork(0 if no_local else local, can)


# -- the output of a run -----------------------------------------------------------------------------------------------


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


def print_result(
    result: Result,
    recording: Recording | None,
    output: OutputOptions,
    screen: Screen,
    logs_of: LogsOf | None = None,
    origin: PlanOrigin | None = None,
) -> int:
    """Print the result of a plan for people, and write the report and the data that the options ask for. ``logs_of``
    reads the logs of tasks, by default those that this process has kept; ``origin`` is for the report. Returns the exit
    code."""
    from asterism.cli.screen import forget_output
    from asterism.report.result_report import NO_ORIGIN, write_report
    from asterism.report.result_summary import (
        failure_logs,
        failure_reasons,
        produced_lines,
        result_json,
        state_lines,
        summary_lines,
    )

    screen.say()
    for reason in failure_reasons(result):
        screen.say(reason)
    logged = list(failure_logs(result, logs_of or result.logs))
    for line in logged:
        screen.say(line)
    if logged:
        screen.say()
    for line in summary_lines(result) if output.stats else state_lines(result):
        screen.say(line)
    for line in produced_lines(result, screen.width):
        screen.say(line)
    if output.report is not None:
        try:
            write_report(output.report, result, recording, logs_of, origin or NO_ORIGIN)
        except OSError as error:
            raise click.ClickException(
                f"The report {clean(output.report)} cannot be written: {error.strerror}."
            ) from None
        screen.say(f"Report: {output.report}")
    try:
        if output.as_json:
            print_json(result_json(result))
        elif output.result is not None:
            return _print_task_result(result, output.result)
    except BrokenPipeError:
        forget_output(sys.stdout)
    return result.exit_code


def _print_task_result(result: Result, task: str) -> int:
    """Print the result of one task as data. Returns the exit code."""
    from asterism.base.text import echo_data
    from asterism.orchestrator.plan_mask import PlanMask

    values = PlanMask(result.plan).results()
    if task not in values:
        state = f"is {result[task].status}" if task in result.plan else "is not in the plan"
        note(f"Task {task!r} has no result: it {state}.")
        return result.exit_code or NO_RESULT
    if isinstance(values[task], str):
        echo_data(values[task])
    else:
        print_json(values[task])
    return result.exit_code


# -- drawings ----------------------------------------------------------------------------------------------------------

drawing_options = options(option("--mermaid", "Print a Mermaid flowchart instead.", to="as_mermaid"))


def check_drawing_options(as_mermaid: bool, as_json: bool) -> None:
    """Raise UsageError if more than one format is asked for."""
    if as_mermaid and as_json:
        raise click.UsageError("--mermaid and --json exclude each other; give one of them.")


def draw(plan: Constellation, as_mermaid: bool) -> None:
    """Print a plan as a list, or as a flowchart."""
    from asterism.cli.screen import Screen
    from asterism.report import mermaid, picture, terminal

    screen = Screen()
    if as_mermaid:
        click.echo(mermaid(picture(plan)), nl=False)
    else:
        screen.say(terminal(picture(plan), screen.width))


async def draw_stored(
    system: System, name: str, as_mermaid: bool, version: int | None = None, opened: Sequence[str] = ()
) -> None:
    """The same for a plan in a store or at a server, as it is now or at a version. The elements of the large groups
    ``opened`` are listed."""
    from asterism.cli.plan.plan_views import drawing_text
    from asterism.cli.screen import Screen

    screen = Screen()
    width = max(1, min(screen.width, 10_000))
    drawing = await system.draw_plan(name, "mermaid" if as_mermaid else "text", width, version, "|".join(opened))
    if as_mermaid:
        click.echo(drawing.text, nl=False)
    else:
        screen.say(drawing_text(drawing))


# -- batches of edits --------------------------------------------------------------------------------------------------


EDIT_OPTIONS = ("added", "removed", "dependents", "values", "files", "file")
edit_options = options(
    option(
        "--add JSON",
        "Add a task: an object with its id, its action, and the tasks that it comes after, handles or tears down.",
        to="added",
        type=json_object,
        multiple=True,
    ),
    option("--remove ID", "Remove a task that has not started.", to="removed", multiple=True),
    option(
        "--dependents",
        "With --remove: remove the tasks after it too, or attach them to the tasks before it.",
        type=click.Choice(["remove", "bridge"]),
    ),
    option(
        "--set TASK.FIELD=VALUE",
        "Change a task that has not started: a text, a duration, or JSON, by the field.",
        to="values",
        multiple=True,
    ),
    option("--set-file TASK.FIELD=FILE", "As --set, with the content of a file.", to="files", multiple=True),
    option("--edits BATCH.JSON", "Apply the batch of edits in a file; - for standard input.", to="file"),
)
"""The edits of a batch."""


def edit_batch(
    added: tuple[JsonObject, ...],
    removed: tuple[str, ...],
    dependents: str | None,
    values: tuple[str, ...],
    files: tuple[str, ...],
    file: str | None,
    *,
    may_be_empty: bool = False,
) -> EditBatch:
    """The batch that ``edit_options`` describe. Raises UsageError and BadParameter."""
    some = added or removed or values or files
    if file is not None and some:
        raise click.UsageError("--edits excludes --add, --remove, --set and --set-file.")
    if file is None and not some and not may_be_empty:
        raise click.UsageError("No edit is given: use --add, --remove, --set, --set-file or --edits.")
    if dependents is not None and not removed:
        raise click.UsageError("--dependents needs --remove.")
    return read_batch(file) if file is not None else _batch_of(added, removed, dependents, _changes(values, files))


def read_batch(path: str) -> EditBatch:
    """The batch in a file, or on standard input for ``-``. Raises BadParameter."""
    import json

    from asterism.core.errors import PlanError
    from asterism.core.plan.edits import EditBatch

    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}.", param_hint="--edits") from None
    source = "standard input" if path == "-" else path
    try:
        return EditBatch.from_json(json.loads(content.decode("utf-8-sig")))
    except json.JSONDecodeError as error:
        words = f"{source} is not JSON: {error.msg}, line {error.lineno}, column {error.colno}."
        raise click.BadParameter(words, param_hint="--edits") from None
    except (UnicodeDecodeError, RecursionError):
        raise click.BadParameter(f"{source} is not JSON in UTF-8.", param_hint="--edits") from None
    except PlanError as error:
        raise click.BadParameter(f"{source} is not a batch of edits: {error}.", param_hint="--edits") from None


def _batch_of(
    added: Sequence[Mapping[str, Any]],
    removed: Sequence[str],
    dependents: str | None,
    changed: Mapping[str, Mapping[str, Any]],
) -> EditBatch:
    """The batch for ``--add``, ``--remove``, ``--set`` and ``--set-file``. Raises BadParameter.

    Removals come first, so that a new task can reuse a name."""
    from asterism.core.errors import InvalidTask
    from asterism.core.plan.edits import AddTask, EditBatch, RemoveTask, UpdateTask, edits_from_json

    try:
        additions = edits_from_json([{"op": AddTask.op, "task": task} for task in added])
    except (InvalidTask, TypeError) as error:
        raise click.BadParameter(f"{error}.", param_hint="--add") from None
    updates = [UpdateTask(task_id, **fields) for task_id, fields in changed.items()]
    return EditBatch((*(RemoveTask(task_id, dependents) for task_id in removed), *updates, *additions))


def _changes(values: Sequence[str], files: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The changes of tasks that ``--set`` and ``--set-file`` describe, by task. Raises BadParameter."""
    from asterism.core.plan.task import TASK_FIELDS

    changes: dict[str, dict[str, Any]] = {}
    for hint, texts in (("--set", values), ("--set-file", files)):
        for text in texts:
            path, equals, value = text.partition("=")
            task_id, _, name = path.rpartition(".")
            if not equals or not task_id or name not in TASK_FIELDS:
                fields = ", ".join(sorted(TASK_FIELDS))
                words = f"{text!r} is not TASK.FIELD=VALUE (example: build.shell='make all'); the fields are {fields}."
                raise click.BadParameter(words, param_hint=hint)
            if hint == "--set-file":
                try:
                    value = Path(value).read_text("utf-8")
                except (OSError, UnicodeDecodeError) as error:
                    raise click.BadParameter(f"{value} cannot be read: {error}.", param_hint=hint) from None
            changes.setdefault(task_id, {})[name] = _field_value(name, value, hint)
    return changes


_TEXTS = ("shell", "call", "cwd", "description", "device", "join", "priority", "agent")
_DURATIONS = ("timeout", "heartbeat_timeout", "backoff", "estimate")


def _field_value(name: str, text: str, hint: str) -> Any:
    """The value of a field of a task: a text, a duration such as 5m, or JSON. An empty text is the default."""
    import json

    from asterism.core.plan.task import TASK_DEFAULTS

    if name in _TEXTS:
        return text or TASK_DEFAULTS.get(name)
    if name in _DURATIONS and text != "null":
        return duration(text)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{name} is JSON, and {text!r} is not: {error}.", param_hint=hint) from None
    if name in ("approval", "wait_for") and isinstance(value, dict) and isinstance(value.get("timeout"), str):
        value["timeout"] = duration(value["timeout"])
    return value
