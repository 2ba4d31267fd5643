"""The tools of a model editor, with their schemas: the answer is a batch of edits, in the form of ``EditBatch``."""

from __future__ import annotations

import json
from typing import Any

from asterism.core.plan.edits import EditBatch, edit_from_json
from asterism.core.plan.task import JOINS, OUTCOMES, Priority
from asterism.models.model_messages import ToolSpec

_TEXT = {"type": "string"}
_WORDS = {"type": "array", "items": _TEXT}
_OBJECT = {"type": "object"}
_NUMBER = {"type": "number"}
_HANDLED = {"type": "boolean", "description": "with on=failure: the target repairs the failure of the source"}

TASK_FIELDS: dict[str, dict[str, Any]] = {
    "description": {**_TEXT, "description": "what the task is for"},
    "call": {**_TEXT, "description": "package.module:function"},
    "argv": {**_WORDS, "description": "a command, without a shell"},
    "shell": {**_TEXT, "description": "a shell line"},
    "http": {**_OBJECT, "description": "a request: method, url, headers, body"},
    "agent": {**_OBJECT, "description": "work for an agent: description, tips (texts), result (a JSON Schema)"},
    "inputs": {**_OBJECT, "description": 'values by name, or {"from": "task", "select": "result.path"}'},
    "env": _OBJECT,
    "cwd": _TEXT,
    "priority": {"enum": [one.name.lower() for one in Priority]},
    "retries": {"type": "integer", "minimum": 0},
    "timeout": {**_NUMBER, "description": "seconds"},
    "device": {**_TEXT, "description": "the only device that may run it"},
    "needs": {**_WORDS, "description": "capabilities that a device must have"},
    "join": {"enum": list(JOINS)},
    "data": _OBJECT,
}
"""The fields of a task in the schema of an answer."""

COPIED_FIELDS = frozenset(("backoff", "estimate", "revocable", "skip_if_unchanged", "untrusted", "cost", "effects"))
"""Fields that a model may write, too, for the copy of a task. A model adds no groups (``foreach``): how much work they
are is known only when they run."""


def edit_schema() -> dict[str, Any]:
    """The JSON Schema of an answer."""
    fields = TASK_FIELDS
    task = {"type": "object", "properties": {"id": _TEXT, **fields}, "required": ["id"]}
    terms = {"source": _TEXT, "target": _TEXT, "on": {"enum": list(OUTCOMES)}, "when": _TEXT, "handled": _HANDLED}
    edits = [
        _edit("add_task", {"task": task}, ["task"]),
        _edit("remove_task", {"task_id": _TEXT, "dependents": {"enum": ["remove", "bridge"]}}, ["task_id"]),
        _edit(
            "update_task",
            {"task_id": _TEXT, "changes": {"type": "object", "properties": fields}},
            ["task_id", "changes"],
        ),
        _edit("add_dependency", terms, ["source", "target"]),
        _edit("update_dependency", terms, ["source", "target"]),
        _edit("remove_dependency", {"source": _TEXT, "target": _TEXT}, ["source", "target"]),
        _edit("cancel_task", {"task_id": _TEXT, "reason": _TEXT}, ["task_id"]),
    ]
    return {
        "type": "object",
        "properties": {
            "edits": {"type": "array", "items": {"anyOf": edits}},
            "reason": {**_TEXT, "description": "why, in one sentence"},
        },
        "required": ["edits", "reason"],
    }


def _edit(op: str, fields: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": {"op": {"const": op}, **fields}, "required": ["op", *required]}


def answer_tool() -> ToolSpec:
    return ToolSpec(
        "answer", "Answer with the edits of the plan; an empty list leaves it as it is.", edit_schema(), True
    )


def show_tasks_tool() -> ToolSpec:
    schema = {
        "type": "object",
        "properties": {
            "tasks": {**_WORDS, "description": "ids of tasks"},
            "pattern": {**_TEXT, "description": "a pattern of ids, such as test-*"},
            "below": {**_TEXT, "description": "show the tasks that depend on this one"},
        },
    }
    return ToolSpec("show_tasks", "Read tasks of the plan that are not shown.", schema)


def batch_from_answer(arguments: Any) -> EditBatch:
    """The batch that a model has written. Author, version and triggers are not its to choose. Raises InvalidTask and
    ValueError."""
    if not isinstance(arguments, dict) or not isinstance(arguments.get("edits"), list):
        raise ValueError("the answer is an object with a list 'edits' and a text 'reason'")
    for number, edit in enumerate(arguments["edits"]):
        _check_fields(number, edit)
        _check_characters(number, edit)
    reason = arguments.get("reason", "")
    text = reason.encode(errors="replace").decode() if isinstance(reason, str) else ""
    return EditBatch(tuple(map(edit_from_json, arguments["edits"])), reason=text)


def _check_characters(number: int, edit: Any) -> None:
    """Raises ValueError if an edit has half of a surrogate pair: no command and no store can take it."""
    try:
        json.dumps(edit, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):x}"
        raise ValueError(f"edit {number}: {half} is half of a surrogate pair, which is no character") from None
    except RecursionError:
        raise ValueError(f"edit {number} is nested too deeply") from None


def _check_fields(number: int, edit: Any) -> None:
    """Raises ValueError if an edit has fields of a task that are not for a model."""
    terms = edit if isinstance(edit, dict) else {}
    for given in (terms.get("task"), terms.get("changes")):
        unknown = set(given) - TASK_FIELDS.keys() - COPIED_FIELDS - {"id"} if isinstance(given, dict) else ()
        if unknown:
            words = f"a task has no field {', '.join(sorted(unknown))} here"
            raise ValueError(f"edit {number}: {words}; the fields are {', '.join(TASK_FIELDS)}")
