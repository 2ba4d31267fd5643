"""The conversation with a model about the ends of one cycle: its messages, and what its answers mean."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from asterism.base.secret_mask import Mask
from asterism.base.text import shorten
from asterism.core.errors import AsterismError, error_text
from asterism.core.plan.constellation import ConstellationView
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.edits import Edit, EditBatch
from asterism.models.cassette import Exchange
from asterism.models.device_aliases import DeviceAliases
from asterism.models.edit_schema import answer_tool, batch_from_answer, show_tasks_tool
from asterism.models.model_calls import ModelFailed
from asterism.models.model_messages import ModelAnswer, ModelQuestion, ToolCall
from asterism.models.plan_prompt import INSTRUCTIONS, task_list
from asterism.orchestrator.edit_cycles import CostedAnswer
from asterism.orchestrator.events import EditEvent, Event, TaskEvent

TOOLS = (answer_tool(), show_tasks_tool())


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
    ids = [one for one in ids if isinstance(one, str)] if isinstance(ids, list) else []
    pattern, below = (arguments.get(name) or "" for name in ("pattern", "below"))
    terms = (str(pattern), str(below), conversation.mask, conversation.aliases)
    _tell(conversation, call, task_list(conversation.view, ids, *terms))
    return None


def _tell(conversation: Conversation, call: ToolCall, text: str) -> None:
    """The result of a call. A call that cannot be read is no call for its provider, and is answered as a message."""
    text = conversation.mask.text(text)
    conversation.messages.append(
        {"tool": call.id, "name": call.name, "text": text} if call.readable else {"user": f"{call.name}: {text}"}
    )


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
        replace(one, value=mask.result(one.value), reason=mask.about_data(one.reason))
        if isinstance(one, TaskEvent)
        else one
        for one in events
    ]


def answer_key(about: str, edits: Sequence[Edit]) -> str:
    """The name of an answer in the account of a plan. It ends with ``edits_key``."""
    return f"{_digest(about)} {edits_key(edits)}"


def edits_key(edits: Sequence[Edit]) -> str:
    return _digest("; ".join(map(str, edits)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def subject_of(events: Sequence[Event]) -> str:
    """What a cycle is about: the same for each call of its editor. A cycle without ends is about the whole plan: no
    task can start, or a person refused an answer."""
    ends = [[event.task_id, event.epoch] for event in events if isinstance(event, TaskEvent)]
    if ends:
        return json.dumps(ends)
    edits = [event for event in events if isinstance(event, EditEvent)]
    return json.dumps(["stuck", next((one.cycle for one in edits), None)])


def costed(conversation: Conversation, batch: EditBatch | None) -> CostedAnswer:
    cost, conversation.cost = conversation.cost, EditorCost()
    return CostedAnswer(batch, cost)
