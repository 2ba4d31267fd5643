"""The planner: a plan file from a request in words, the devices and the workflows that there are.

The model writes the text of a plan file. It is checked like any plan file, and against the devices; with mistakes it
goes back to the model, a bounded number of times. Nothing is executed: a person reads the plan, and runs it or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from asterism.base.text import plural
from asterism.core.errors import error_text
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.task import needs_of
from asterism.models.device_aliases import DeviceAliases, alias_of
from asterism.models.model_calls import ModelCaller, ModelFailed, Unlimited
from asterism.models.model_messages import ModelQuestion, ToolCall, ToolSpec
from asterism.models.plan_prompt import device_list, on_one_line
from asterism.models.plan_prompt import name as shown_name
from asterism.models.untrusted_text import instructions, mark_untrusted

MAX_REQUESTS = 4
"""How often the model is asked for one plan."""

MOST_LISTED = 30
"""How many devices and workflows a prompt lists."""

INSTRUCTIONS = instructions("planner_instructions.md")

PLAN_TOOL = ToolSpec(
    "plan",
    "Answer with a plan file.",
    {
        "type": "object",
        "properties": {
            "file": {"type": "string", "description": "the plan file, in YAML"},
            "explanation": {"type": "string", "description": "what the plan does, in a few sentences"},
        },
        "required": ["file", "explanation"],
    },
    final=True,
)

Profile = tuple[str, Iterable[str], int | None]


class NoPlan(ModelFailed):
    """The model has not written a valid plan. ``file`` is its last text, ``mistakes`` are those in it."""

    def __init__(self, message: str, file: str = "", mistakes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.file, self.mistakes = file, tuple(mistakes)


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """A valid plan file, not executed. ``plan`` is what it contains."""

    file: str
    explanation: str
    plan: Any
    cost: EditorCost


async def draft_plan(
    request: str,
    model: Any,
    *,
    devices: Sequence[Profile] = (),
    workflows: Sequence[tuple[str, str]] = (),
    capabilities: frozenset[str] | None = None,
    fallback: Sequence[Any] = (),
    name: str = "plan",
    max_requests: int = MAX_REQUESTS,
    caller: ModelCaller | None = None,
) -> PlanDraft:
    """A plan file for a request. ``devices`` are ``(id, capabilities, slots)``, ``workflows`` names and what they do.
    ``capabilities`` are those of devices that the model reads; None: all. Raises NoPlan, and ModelFailed."""
    caller = caller or ModelCaller([model, *fallback])
    aliases = DeviceAliases(device for device, _, _ in devices)
    messages: list[dict[str, Any]] = [{"user": planner_prompt(request, devices, workflows, capabilities)}]
    draft, mistakes = "", ["the model did not answer"]
    pay = Unlimited()
    for _ in range(max_requests):
        answer = await caller.ask(ModelQuestion(INSTRUCTIONS, tuple(messages), (PLAN_TOOL,)), pay)
        if answer.refused:
            raise NoPlan(f"{answer.model} refused to plan{f': {answer.text[:300]}' if answer.text else ''}")
        messages.append(answer.message)
        call = next((tool_call for tool_call in answer.calls if tool_call.name == PLAN_TOOL.name), None)
        draft, explanation, mistakes = _read(call, aliases)
        if not mistakes:
            plan, mistakes = await asyncio.to_thread(_checked, draft, name, devices)  # a large file takes its time
            if plan is not None and not mistakes:
                return PlanDraft(draft, explanation, plan, pay.cost)
        words = "This plan cannot be used:\n" + "\n".join(f"- {aliases.text(mistake)}" for mistake in mistakes)
        messages.append({"user": words} if call is None else call.reply(words))
    raise NoPlan(f"no valid plan after {plural(max_requests, 'answer')}", draft, mistakes)


def planner_prompt(
    request: str,
    devices: Sequence[Profile],
    workflows: Sequence[tuple[str, str]],
    capabilities: frozenset[str] | None = None,
) -> str:
    parts = [f"# Request\n{request}"]
    if devices:
        aliased = [(alias_of(device), can, slots) for device, can, slots in devices]
        parts.append(device_list(aliased, MOST_LISTED, capabilities))
    if workflows:
        lines = [
            f"- {shown_name(workflow)}: {on_one_line(what)[:200]}" for workflow, what in list(workflows)[:MOST_LISTED]
        ]
        text = mark_untrusted("workflows of the fleet", "\n".join(lines))
        parts.append(f"# Workflows that exist, as examples of what can be executed\n{text}")
    return "\n\n".join(parts)


def _read(call: ToolCall | None, aliases: DeviceAliases) -> tuple[str, str, list[str]]:
    """The file and the explanation of an answer, and its mistakes."""
    if call is None:
        return "", "", ["answer with the tool `plan`"]
    try:
        arguments = call.read()
    except ValueError as error:
        return "", "", [f"the arguments are not JSON: {error_text(error)}"]
    fields = arguments if isinstance(arguments, dict) else {}
    file, explanation = fields.get("file"), fields.get("explanation")
    if not isinstance(file, str) or not file.strip():
        return "", "", ["'file' is missing: the text of the plan file"]
    try:
        file = aliases.in_file(file)
    except ValueError as error:
        return "", "", [str(error)]
    return file, aliases.named(explanation) if isinstance(explanation, str) else "", []


def _checked(file: str, name: str, devices: Sequence[Profile]) -> tuple[Any, list[str]]:
    """The plan of a file, and its mistakes: those of any plan file, and tasks that no device can run."""
    from asterism.planfile import GivenParameters, examine

    plan_file, mistakes = examine(file, name, params=GivenParameters({}, required=False), texts={})
    lines = [f"line {mistake.line}: {mistake.text}" for mistake in mistakes if not mistake.warning]
    if plan_file is None:
        return None, lines or ["the plan has no tasks"]
    if devices:
        listed = [(device.id, device.can, device.slots) for device in plan_file.devices]
        lines += list(_unplaceable(plan_file.constellation, [*devices, *listed]))
    return plan_file.constellation, lines


def _unplaceable(plan: Any, devices: Sequence[Profile]) -> Iterable[str]:
    known = {device: frozenset(can) for device, can, _ in devices}
    for node in plan.nodes.values():
        task = node.task
        if task.device is not None and task.device not in known:
            yield f"task {task.id!r} names the device {task.device!r}, which is not one of the devices"
        elif (needs := needs_of(task)) and not any(
            needs <= can for device, can in known.items() if task.device in (None, device)
        ):
            where = "no device has that" if task.device is None else f"the device {task.device!r} does not have that"
            yield f"task {task.id!r} needs {', '.join(sorted(needs))}, and {where}"
