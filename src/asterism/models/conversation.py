"""The conversation with a model about the ends of one cycle: its messages, and what its answers mean.

The tools of a model editor, with their schemas: the answer is a batch of edits, in the form of ``EditBatch``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asterism.base.secret_mask import Mask
from asterism.base.text import shorten
from asterism.core.errors import AsterismError, error_text
from asterism.core.plan.constellation import ConstellationView
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.edits import Edit, EditBatch, edits_from_json
from asterism.core.plan.task import JOINS, OUTCOMES, Priority
from asterism.core.record import replace
from asterism.durable.editor_budget import edits_key
from asterism.models.cassette import Exchange
from asterism.models.device_aliases import DeviceAliases
from asterism.models.model_calls import ModelFailed
from asterism.models.model_messages import ModelAnswer, ModelQuestion, ToolCall, ToolSpec
from asterism.models.plan_prompt import INSTRUCTIONS, task_list
from asterism.orchestrator.edit_cycles import CostedAnswer
from asterism.orchestrator.events import EditEvent, Event, TaskEvent

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
    "plugin": {**_OBJECT, "description": 'work of a plug-in of the devices: {"container": {"image": …, "argv": […]}}'},
    "inputs": {**_OBJECT, "description": 'values by name, or {"from": "task", "select": "result.path"}'},
    "env": _OBJECT,
    "cwd": _TEXT,
    "priority": {"enum": [priority.name.lower() for priority in Priority]},
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


def _edit(op: str, fields: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": {"op": {"const": op}, **fields}, "required": ["op", *required]}


_AFTER = {
    "description": "ids of the tasks before it, or an object: id to outcome, or to {on, when, handled}",
    "anyOf": [_WORDS, {"type": "object", "additionalProperties": {"anyOf": [{"enum": list(OUTCOMES)}, _OBJECT]}}],
}
_TASK = {"type": "object", "properties": {"id": _TEXT, **TASK_FIELDS, "after": _AFTER}, "required": ["id"]}
_CHANGES = {"type": "object", "properties": TASK_FIELDS}
_EDGE = {"source": _TEXT, "target": _TEXT, "on": {"enum": list(OUTCOMES)}, "when": _TEXT, "handled": _HANDLED}

EDIT_SCHEMAS = [
    _edit("add_task", {"task": _TASK}, ["task"]),
    _edit("remove_task", {"task_id": _TEXT, "dependents": {"enum": ["remove", "bridge"]}}, ["task_id"]),
    _edit("update_task", {"task_id": _TEXT, "changes": _CHANGES}, ["task_id", "changes"]),
    _edit("add_dependency", _EDGE, ["source", "target"]),
    _edit("update_dependency", _EDGE, ["source", "target"]),
    _edit("remove_dependency", {"source": _TEXT, "target": _TEXT}, ["source", "target"]),
    _edit("cancel_task", {"task_id": _TEXT, "reason": _TEXT}, ["task_id"]),
]
"""The JSON Schemas of the edits."""

_ANSWER = {
    "type": "object",
    "properties": {
        "edits": {"type": "array", "items": {"anyOf": EDIT_SCHEMAS}},
        "reason": {**_TEXT, "description": "why, in one sentence"},
    },
    "required": ["edits", "reason"],
}


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
    return EditBatch(edits_from_json(arguments["edits"]), reason=text)


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
    edit_fields = edit if isinstance(edit, dict) else {}
    for task_fields, own in ((edit_fields.get("task"), {"id", "after"}), (edit_fields.get("changes"), {"id"})):
        known = TASK_FIELDS.keys() | COPIED_FIELDS | own
        unknown = set(task_fields) - known if isinstance(task_fields, dict) else ()
        if unknown:
            words = f"a task has no field {', '.join(sorted(unknown))} here"
            raise ValueError(f"edit {number}: {words}; the fields are {', '.join(TASK_FIELDS)}")


TOOLS = (
    ToolSpec("answer", "Answer with the edits of the plan; an empty list leaves it as it is.", _ANSWER, True),
    ToolSpec(
        "show_tasks",
        "Read tasks of the plan: those that you name in full, with all their fields; others in short.",
        {
            "type": "object",
            "properties": {
                "tasks": {**_WORDS, "description": "ids of tasks, which are shown in full"},
                "pattern": {**_TEXT, "description": "a pattern of ids, such as test-*"},
                "below": {**_TEXT, "description": "show the tasks that depend on this one"},
                "skip": {"type": "integer", "minimum": 0, "description": "leave out so many: the next page"},
            },
        },
    ),
)


class NoModelAnswer(ModelFailed):
    """A model has not answered the question that it was asked."""


@dataclass(slots=True)
class Conversation:
    """The questions and answers about the ends of one cycle."""

    about: str
    view: ConstellationView
    mask: Mask
    entries: int
    messages: list[Mapping[str, Any]] = field(default_factory=list)
    last: ToolCall | None = None
    """The call that gave the last answer."""
    charged: str = ""
    """The key of the last answer, if its tasks are counted as spent."""
    cost: EditorCost = field(default_factory=EditorCost)
    """Of what was not reported yet."""
    known: list[Exchange] = field(default_factory=list)
    """What an earlier process was answered."""
    steps: int = 0
    mistake: str = ""
    """Why the last answer could not be read."""
    aliases: DeviceAliases = field(default_factory=DeviceAliases)

    @property
    def plan(self) -> str:
        """The name of the plan."""
        return self.view.id

    @property
    def question(self) -> ModelQuestion:
        """What is asked next."""
        return ModelQuestion(INSTRUCTIONS, tuple(self.messages), TOOLS)


def read_answer(conversation: Conversation, answer: ModelAnswer) -> EditBatch | None:
    """The batch of an answer. None if there is none yet: the next message to the model is then in the conversation.
    Raises NoModelAnswer if the model refuses."""
    if answer.refused:
        raise NoModelAnswer(f"{answer.model} refused to answer{f': {answer.text[:300]}' if answer.text else ''}")
    conversation.messages.append(answer.message)
    conversation.last, conversation.mistake = None, ""
    if not answer.calls:
        conversation.mistake = "it has no call of the tool `answer`"
        conversation.messages.append({"user": "Answer with the tool `answer`."})
        return None
    batch: EditBatch | None = None
    for call in answer.calls:
        if batch is not None:
            _tell(conversation, call, "ignored: there was an answer already")
            continue
        try:
            batch = _called(conversation, call)
        except (AsterismError, ValueError, TypeError) as error:
            conversation.mistake = conversation.mask.text(error_text(error))
            _tell(conversation, call, f"this call cannot be read: {error_text(error)}")
    return batch


def no_answer(conversation: Conversation, model: str, requests: int) -> NoModelAnswer:
    """The error of a model that was asked often enough."""
    wrong = f"; the last answer is wrong: {shorten(conversation.mistake, 300)}" if conversation.mistake else ""
    return NoModelAnswer(f"{model} did not answer within {requests} requests{wrong}")


def _called(conversation: Conversation, call: ToolCall) -> EditBatch | None:
    arguments = call.read()
    if call.name == "answer":
        batch = batch_from_answer(conversation.aliases.in_edits(arguments))
        conversation.last = call
        return batch
    if call.name != "show_tasks":
        raise ValueError(f"there is no tool {call.name!r}; the tools are answer and show_tasks")
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are an object")
    ids = arguments.get("tasks") or []
    ids = [task_id for task_id in ids if isinstance(task_id, str)] if isinstance(ids, list) else []
    pattern, below = (arguments.get(name) or "" for name in ("pattern", "below"))
    skip = arguments.get("skip") or 0
    if type(skip) is not int:
        raise ValueError(f"skip is a whole number, not {skip!r}")
    shown = conversation.mask, conversation.aliases, skip
    tasks = task_list(conversation.view, ids, str(pattern), str(below), *shown)
    _tell(conversation, call, tasks)
    return None


def _tell(conversation: Conversation, call: ToolCall, text: str) -> None:
    conversation.messages.append(call.reply(conversation.mask.text(text)))


def return_answer(conversation: Conversation, text: str) -> None:
    if conversation.last is not None:
        _tell(conversation, conversation.last, text)
        conversation.last = None
    else:
        conversation.messages.append({"user": conversation.mask.text(text)})


def masked_events(events: Sequence[Event], mask: Mask) -> list[Event]:
    """The events without what may be a secret whose value is unknown here. Known ones are masked in the whole text."""
    if not mask.absent:
        return list(events)
    return [
        replace(event, value=mask.result(event.value), reason=mask.about_data(event.reason))
        if isinstance(event, TaskEvent)
        else event
        for event in events
    ]


def answer_key(about: str, edits: Sequence[Edit]) -> str:
    """The name of an answer in the account of a plan. It ends with ``edits_key``."""
    return f"{hashlib.sha256(about.encode()).hexdigest()[:12]} {edits_key(edits)}"


def subject_of(events: Sequence[Event]) -> str:
    """What a cycle is about: the same for each call of its editor. A cycle without ends is about the whole plan: no
    task can start, or a person refused an answer."""
    ends = [[event.task_id, event.epoch] for event in events if isinstance(event, TaskEvent)]
    if ends:
        return json.dumps(ends)
    edits = [event for event in events if isinstance(event, EditEvent)]
    return json.dumps(["stuck", next((edit.cycle for edit in edits), None)])


def costed(conversation: Conversation, batch: EditBatch | None) -> CostedAnswer:
    cost, conversation.cost = conversation.cost, EditorCost()
    return CostedAnswer(batch, cost)
