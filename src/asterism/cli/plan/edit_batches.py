"""Batches of edits from the options and files of ``asterism plan edit`` and ``asterism plan retry``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asterism.cli.cli_context import options
from asterism.cli.option_types import json_object

if TYPE_CHECKING:
    from asterism.core.plan.edits import EditBatch

edit_options = options(
    click.option(
        "--add",
        "added",
        type=json_object,
        multiple=True,
        metavar="JSON",
        help="Add a task: an object with its id, its action, and the tasks that it comes after, handles or tears down.",
    ),
    click.option("--remove", "removed", multiple=True, metavar="ID", help="Remove a task that has not started."),
    click.option(
        "--dependents",
        type=click.Choice(["remove", "bridge"]),
        help="With --remove: remove the tasks after it too, or attach them to the tasks before it.",
    ),
    click.option(
        "--edits", "file", metavar="BATCH.JSON", help="Apply the batch of edits in a file; - for standard input."
    ),
)
"""The edits of a batch."""


def edit_batch(
    added: tuple[dict[str, Any], ...],
    removed: tuple[str, ...],
    dependents: str | None,
    file: str | None,
    *,
    may_be_empty: bool = False,
) -> EditBatch:
    """The batch that ``edit_options`` describe. Raises UsageError and BadParameter."""
    if file is not None and (added or removed):
        raise click.UsageError("--edits excludes --add and --remove.")
    if file is None and not added and not removed and not may_be_empty:
        raise click.UsageError("No edit is given: use --add, --remove or --edits.")
    if dependents is not None and not removed:
        raise click.UsageError("--dependents needs --remove.")
    return read_batch(file) if file is not None else _batch_of(added, removed, dependents)


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


def _batch_of(added: Sequence[Mapping[str, Any]], removed: Sequence[str], dependents: str | None) -> EditBatch:
    """The batch for ``--add`` and ``--remove``. Raises BadParameter.

    Removals come first, so that a new task can reuse a name. Dependencies come last, so that new tasks can depend on
    each other in any order."""
    from asterism.core.errors import InvalidTask
    from asterism.core.plan.edits import AddTask, Edit, EditBatch, RemoveTask, addition_of
    from asterism.core.plan.task import Task, dependencies_of, handler_dependencies, teardown_dependencies

    edits: list[Edit] = [RemoveTask(task_id, dependents) for task_id in removed]
    edges: list[Edit] = []
    for one in added:
        fields = dict(one)
        after, handles, setup = (fields.pop(name, None) for name in ("after", "handles", "teardown"))
        try:
            task = Task.from_json(fields)
            dependencies = [*dependencies_of(task.id, after), *handler_dependencies(task.id, handles)]
            dependencies += teardown_dependencies(task.id, setup)
        except (InvalidTask, TypeError) as error:
            raise click.BadParameter(f"{error}.", param_hint="--add") from None
        edits.append(AddTask(task))
        edges += map(addition_of, dependencies)
    return EditBatch((*edits, *edges))
