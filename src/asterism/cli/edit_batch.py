"""For ``asterism plan edit``: builds the batch from the options and formats the outcome."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from asterism.base.text import clean
from asterism.core.errors import EditRejected, InvalidTask, PlanError
from asterism.core.plan.apply import Applied
from asterism.core.plan.edits import AddDependency, AddTask, Edit, EditBatch, RemoveTask
from asterism.core.plan.task import Task, dependencies_of


def read_batch(path: str) -> EditBatch:
    """The batch in a file, or on standard input for ``-``. Raises BadParameter."""
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}.", param_hint="--file") from None
    source = "standard input" if path == "-" else path
    try:
        return EditBatch.from_json(json.loads(content.decode("utf-8-sig")))
    except json.JSONDecodeError as error:
        words = f"{source} is not JSON: {error.msg}, line {error.lineno}, column {error.colno}."
        raise click.BadParameter(words, param_hint="--file") from None
    except (UnicodeDecodeError, RecursionError):
        raise click.BadParameter(f"{source} is not JSON in UTF-8.", param_hint="--file") from None
    except PlanError as error:
        raise click.BadParameter(f"{source} is not a batch of edits: {error}.", param_hint="--file") from None


def batch_of(added: Sequence[Mapping[str, Any]], removed: Sequence[str], dependents: str | None) -> EditBatch:
    """The batch for ``--add`` and ``--remove``. Raises BadParameter.

    Removals come first, so that a new task can reuse a name. Dependencies come last, so that new tasks can depend on
    each other in any order."""
    edits: list[Edit] = [RemoveTask(task_id, dependents) for task_id in removed]
    edges: list[Edit] = []
    for one in added:
        fields = dict(one)
        after = fields.pop("after", None)
        try:
            task = Task.from_json(fields)
            dependencies = dependencies_of(task.id, after)
        except (InvalidTask, TypeError) as error:
            raise click.BadParameter(f"{error}.", param_hint="--add") from None
        edits.append(AddTask(task))
        edges += [AddDependency(edge.source, edge.target, edge.on, edge.when) for edge in dependencies]
    return EditBatch((*edits, *edges))


def signed(batch: EditBatch, author: str, reason: str | None) -> EditBatch:
    """The batch with its author, unless it names one, and with the reason, if one is given."""
    return replace(batch, author=batch.author or author, reason=reason if reason is not None else batch.reason)


def applied_lines(name: str, applied: Applied, dry_run: bool) -> list[str]:
    edits = applied.batch.edits
    changes = [clean(str(edit)) for edit in edits]
    stopped = [f"stop task {task!r}" for task in dict.fromkeys(task for task, _ in applied.stopped)]
    if not edits:
        return [f"Plan {name!r} stays at version {applied.version}: the batch changes nothing."]
    version = f"version {applied.version - 1} -> {applied.version}"
    outcome = f"Plan {name!r} would change: {version}." if dry_run else f"Plan {name!r} changed: {version}."
    return [*changes, *stopped, outcome]


def applied_json(name: str, applied: Applied, dry_run: bool) -> dict[str, Any]:
    return {
        "name": name,
        "accepted": True,
        "dry_run": dry_run,
        "version_before": applied.version - bool(applied.batch.edits),
        "version": applied.version,
        "edits": [edit.to_json() for edit in applied.batch.edits],
        "inverse": None if applied.inverse is None else applied.inverse.to_json(),
    }


def rejected_json(name: str, rejected: EditRejected, dry_run: bool) -> dict[str, Any]:
    violations = [{"edit": one.edit, "rule": one.rule, "message": one.message} for one in rejected.violations]
    return {"name": name, "accepted": False, "dry_run": dry_run, "violations": violations}
