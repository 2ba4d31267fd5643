"""The prompt of a model editor: a compact view of a plan, whose size follows the change and not the plan.

It shows the ends under review with the reason of a failure and the last lines of its output; the tasks below them,
which an edit can still change; what else has happened since the last prompt; and what devices can do. All other tasks
are a count: the model may ask for them (``task_list``). A list shows tasks in short; a task that the model names, or a
person in a request, is shown in full. Every list is bounded, and says what it leaves out.

The same change gives the same text: it contains no time, no id of the plan and no number of a cycle. Names that devices
chose for themselves are aliases (``device_aliases``). What devices say is marked as untrusted: results, reasons,
output, profiles, and the work of the elements of a group, which may be made of a result. Secrets are masked in each
text before it is cut or escaped: of a part of a secret, or of an escaped one, nobody could tell that it is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from asterism.base.secret_mask import Mask
from asterism.base.text import plural
from asterism.core.errors import Violation
from asterism.core.history import PlanEntry
from asterism.core.plan.constellation import ConstellationView, TaskView
from asterism.core.plan.edits import addition_of
from asterism.core.plan.status import FAILED, PENDING, RUNNING, TERMINAL
from asterism.core.plan.task import ACTIONS, Task
from asterism.core.record import replace
from asterism.models.device_aliases import DeviceAliases, shown_capabilities
from asterism.models.untrusted_text import instructions, mark_untrusted, visible_text
from asterism.orchestrator.events import EditEvent, Event, TaskEvent

MOST_ENDS = 12
MOST_TASKS = 24
MOST_NAMES = 12
MOST_DEVICES = 16
MOST_CHANGES = 12
"""How many entries each list has."""

DEPTH = 2
"""How many levels below an end are shown."""

TEXT_LENGTH = 240
"""How many characters of a description or an action are shown."""

MOST_FULL = 12
FULL_LENGTH = 16_000
"""How many tasks are shown in full at once, and how many characters of their fields all of them have."""

RESULT_LENGTH = 1_200
OUTPUT_LENGTH = 2_400
"""How many characters of a result, and of the end of an output, are shown."""

OUTPUT_TAIL = 4_000
"""How many characters of the output of a failed task are read."""

INSTRUCTIONS = instructions("editor_instructions.md")


@dataclass(slots=True)
class PromptMemory:
    """What the editor of one plan has been shown: how much of the story. ``names`` are those under which it edits."""

    entries: int = 0
    names: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a prompt shows besides the plan: the devices as ``(id, capabilities, slots)``, the end of the output of
    tasks, by id, and what the plan is for. ``mask`` hides the secrets of the plan, ``aliases`` the names that devices
    have chosen themselves. ``capabilities`` are those of devices that are shown; None: all."""

    devices: Sequence[tuple[str, Iterable[str], int | None]] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    goal: str = ""
    mask: Mask = field(default_factory=Mask)
    aliases: DeviceAliases = field(default_factory=DeviceAliases)
    capabilities: frozenset[str] | None = None


def plan_prompt(view: ConstellationView, events: Sequence[Event], memory: PromptMemory, around: Surroundings) -> str:
    """The text of one call. ``memory`` then knows what was shown."""
    ends = [event for event in events if isinstance(event, TaskEvent)]
    below = _below(view, ends)
    parts = [
        f"# Goal of the plan\n{around.goal}" if around.goal else "",
        "# What happened\n" + "\n".join(_happened(view, events, around)),
        _since(view, ends, memory, around),
        _tasks("# Tasks below, which you may change", view, below, around) if below else "",
        _counts(view),
        _devices(view.id, around),
    ]
    return "\n\n".join(part for part in parts if part)


def request_prompt(
    view: ConstellationView, request: str, ends: Sequence[TaskEvent], around: Surroundings, later: Sequence[str] = ()
) -> str:
    """The first text of a conversation with a person, who asks for a change. ``ends`` are those to show, the most
    important first. ``later`` are the requests since: the tasks that they name are shown in full, too."""
    left = [task.id for task in view if task.status not in TERMINAL]
    named = _named(view, "\n".join([*reversed(later), request]))
    parts = [
        f"# What a person asks for\n{request}\n\n{_ANSWER_A_REQUEST}",
        f"# Tasks that the person names, in full\n{_full_tasks(view, named, around)}" if named else "",
        "# Tasks that have ended\n" + "\n".join(_happened(view, ends, around)) if ends else "",
        _tasks("# Tasks that have not ended", view, left, around) if left else "",
        _counts(view),
        _devices(view.id, around),
    ]
    return "\n\n".join(part for part in parts if part)


_ANSWER_A_REQUEST = (
    "Answer with the edits that do this, and no others. The person sees them before they are applied, and may ask for "
    "something else. If no edits can do it, or the plan does it already, answer with no edits, and say why in `reason`."
)


# -- what happened -----------------------------------------------------------------------------------------------------


def _happened(view: ConstellationView, events: Sequence[Event], around: Surroundings) -> Iterator[str]:
    shown = [event for event in events if isinstance(event, TaskEvent)]
    for event in shown[:MOST_ENDS]:
        yield from _end(view, event, around)
    if len(shown) > MOST_ENDS:
        yield f"- and {len(shown) - MOST_ENDS:,} more tasks have ended; read them with `show_tasks`"
    for other in events:
        if isinstance(other, EditEvent):
            yield from _edit_event(other, len(view) == 0, around)


def _end(view: ConstellationView, event: TaskEvent, around: Surroundings) -> Iterator[str]:
    mask, task = around.mask, around.mask.text(event.task_id)
    tries = event.attempt - (view[event.task_id].losses if event.task_id in view else 0)
    attempts = f" after {tries} attempts" if tries > 1 else ""  # without those whose process died
    where = f" on {device_name(view.id, event.device, around.aliases)}" if event.device else ""
    yield f"- task {name(task)} {event.status}{attempts}{where}"
    if event.task_id in view:
        yield f"  {_task_line(view[event.task_id], around)}"
    if event.reason:
        reason = around.aliases.text(mask.text(event.reason))
        yield mark_untrusted(f"reason of the end of {task}", _tail(reason, RESULT_LENGTH))
    elif event.value is not None:
        text = mask.text(_json(mask.data(event.value)))
        yield mark_untrusted(f"result of {task}", _head(text, RESULT_LENGTH))
    output = around.outputs.get(event.task_id, "")
    if output and event.status == FAILED:
        yield mark_untrusted(f"end of the output of {task}", _tail(mask.text(output), OUTPUT_LENGTH))


def _edit_event(event: EditEvent, empty: bool, around: Surroundings) -> Iterator[str]:
    mask = around.mask
    if event.kind == "stuck" and empty:
        yield "- the plan is empty: add the tasks that reach its goal"
    elif event.kind == "stuck":
        yield "- no task can start, and some have not run: repair the plan, or answer with no edits to let it end"
    elif event.violations:
        yield "- your answer was rejected, and nothing was changed:\n" + violation_lines(
            event.violations, mask, around.aliases
        )
    elif event.kind == "edit_refused":
        yield f"- your edit was refused, and nothing was changed: {_line(', '.join(event.edits), mask)}"
        if event.reason:
            yield f"  the reason: {_head(visible_text(mask.text(event.reason)), RESULT_LENGTH)}"
    elif event.reason:
        yield f"- {event.kind.replace('_', ' ')}: {_head(visible_text(mask.text(event.reason)), RESULT_LENGTH)}"


def violation_lines(violations: Sequence[Violation], mask: Mask, aliases: DeviceAliases) -> str:
    """Each violation in a line, with the number of the edit that caused it."""
    return "\n".join(
        f"  - {f'edit {violation.edit}: ' if violation.edit is not None else ''}"
        f"{visible_text(aliases.text(mask.text(violation.message)))} ({violation.rule})"
        for violation in violations[:MOST_TASKS]
    )


def _since(view: ConstellationView, ends: Sequence[TaskEvent], memory: PromptMemory, around: Surroundings) -> str:
    """What else has happened since the last prompt."""
    first, reviewed = memory.entries, {event.task_id for event in ends}
    entries = view.story_after(first)
    memory.entries = first + len(entries)
    if not first:
        return ""  # at the first call, everything is new
    done = [entry for entry in entries if entry.task not in reviewed and entry.what in _WORTH_TELLING]
    if not done:
        return ""
    lines = [
        f"- {name(entry.task, around.mask)} {entry.what}" if entry.task else _plan_change(entry, memory, around)
        for entry in done
    ]
    more = [f"- and {len(lines) - MOST_CHANGES:,} more changes"] if len(lines) > MOST_CHANGES else []
    return "\n".join(["# Since your last call", *lines[-MOST_CHANGES:], *more])


def _plan_change(entry: PlanEntry, memory: PromptMemory, around: Surroundings) -> str:
    """A change of the plan, or a decision about one. The reason of an edit is data: its editor may have obeyed
    untrusted text, and may sign with any name."""
    if entry.what != "edited":
        return f"- {entry.what}: {_line(around.aliases.text(entry.why), around.mask)}"
    version, author, reason, edits = (entry.facts[name] for name in ("version", "author", "reason", "edits"))
    by = "you" if author in memory.names else author  # its name is another one when another model continues
    why = around.aliases.text(f"version {version} by {by}{f': {reason}' if reason else ''} ({edits})")
    return f"- edited\n{mark_untrusted('reason of the edit', _line(why, around.mask))}"


_WORTH_TELLING = frozenset(
    {"completed", "failed", "cancelled", "edited", "edit refused", "edit approved", "edit expired"}
)


# -- tasks -------------------------------------------------------------------------------------------------------------


def _below(view: ConstellationView, ends: Sequence[TaskEvent]) -> list[str]:
    """The tasks that have not started below the ends, level by level, the nearest first."""
    level = [event.task_id for event in ends if event.task_id in view]
    below: dict[str, None] = {}
    for _ in range(DEPTH):
        level = [child for task in level for child in view[task].dependents if child not in below]
        for child in level:
            if view[child].status == PENDING:
                below[child] = None
        if len(below) > MOST_TASKS:
            break
    return list(below)


def _tasks(title: str, view: ConstellationView, tasks: Sequence[str], around: Surroundings, skip: int = 0) -> str:
    shown = tasks[skip : skip + MOST_TASKS]
    more = len(tasks) - skip - len(shown)
    lines = [f"- {_task_line(view[task], around)}" for task in shown]
    if more > 0:
        after = f' and "skip": {skip + len(shown)}' if not title else ""
        lines.append(f"- and {more:,} more; read them with `show_tasks`{after}")
    return "\n".join(filter(None, [title, *lines]))


def _named(view: ConstellationView, text: str) -> list[str]:
    """The tasks whose ids are words of a text, in the order of the text."""
    found = {}
    for task in view:
        if task.id in text:  # before the pattern, which takes longer
            word = re.search(rf"(?<![\w-]){re.escape(task.id)}(?![\w-])", text)
            if word is not None:
                found[task.id] = word.start()
    return sorted(found, key=lambda task: (found[task], -len(task)))


def _full_tasks(view: ConstellationView, tasks: Sequence[str], around: Surroundings) -> str:
    """Tasks with all their fields and dependencies. What has no more room is named."""
    lines, left = [], FULL_LENGTH
    for task in tasks[:MOST_FULL]:
        fields = _json(around.mask.data(_full_task(view[task], around)))
        if len(fields) > left < FULL_LENGTH:  # the first one has all the room
            break
        text = _head(fields, left)
        left = max(0, left - len(text))
        if "[" in task:  # its texts may be made of a result
            text = mark_untrusted(f"work of {around.mask.text(task)}", text)
        lines.append(f"- {name(task, around.mask)} {_status(view[task])}\n  {visible_text(text)}")
    if len(lines) < len(tasks):
        lines.append(f"- read these with another `show_tasks`: {_names(tasks[len(lines) :], around.mask)}")
    return "\n".join(lines)


def _full_task(task: TaskView, around: Surroundings) -> dict[str, Any]:
    """What an edit can say of a task, without its id."""
    work = task.task
    call = {} if work.call is None else {"call": work.call if isinstance(work.call, str) else _call(work.call)}
    fields = {**replace(work, call=None).to_json(), **call}
    if work.device is not None:
        fields["device"] = around.aliases.shown(work.device)
    if task.dependencies:
        edges = [addition_of(edge).dependency.to_json() for edge in task.dependencies]
        fields["after"] = {
            edge["source"]: {term: value for term, value in edge.items() if term not in ("source", "target")}
            for edge in edges
        }
    return {field: value for field, value in fields.items() if field != "id"}


def _status(task: TaskView) -> str:
    return "waiting" if task.waiting else str(task.status)


def task_list(
    view: ConstellationView,
    ids: Sequence[str],
    pattern: str = "",
    below: str = "",
    mask: Mask | None = None,
    aliases: DeviceAliases | None = None,
    skip: int = 0,
) -> str:
    """What ``show_tasks`` returns: tasks by id, in full; and those with a pattern of ids, or that depend on one, in
    short, without the first ``skip``."""
    named = list(dict.fromkeys(task for task in ids if task in view))
    wanted: dict[str, None] = {}
    if pattern:
        wanted |= dict.fromkeys(task.id for task in view if fnmatchcase(task.id, pattern))
    if below and below in view:
        wanted |= dict.fromkeys(view[below].dependents)
    unknown = [task for task in ids if task not in view]
    around = Surroundings(mask=mask or Mask(), aliases=aliases or DeviceAliases())
    parts = [
        _full_tasks(view, named, around),
        _tasks("", view, list(wanted), around, max(skip, 0)),
        f"not in the plan: {_names(unknown)}" if unknown else "",
    ]
    return "\n".join(filter(None, parts)) or ("no more tasks" if wanted else "no such task")


def _task_line(task: TaskView, around: Surroundings) -> str:
    """``'test' pending: run the tests (shell: make test), needs gpu; after 'build' on success``"""
    work, mask = task.task, around.mask
    parts = [f"{name(task.id, mask)} {_status(task)}"]
    description, action = _line(work.description, mask), _action(work, mask)
    placed = _placement(work, around)
    element = "[" in task.id and bool(description or action or placed)  # an element of a group, or a copy of one
    if description and not element:
        parts.append(f": {description}")
    if action and not element:
        parts.append(f" ({action})")
    if placed and not element:
        parts.append(f", {placed}")
    if task.dependencies:
        edges = [f"{name(edge.source, mask)} on {edge.on}" for edge in task.dependencies[:MOST_NAMES]]
        more = len(task.dependencies) - MOST_NAMES
        parts.append(f"; after {', '.join(edges)}" + (f" and {more:,} more" if more > 0 else ""))
    if element:  # its texts may be made of a result
        label = f"work of {mask.text(task.id)}"
        parts.append("\n" + mark_untrusted(label, "\n".join(filter(None, (description, action, placed)))))
    return "".join(parts)


def _placement(task: Task, around: Surroundings) -> str:
    """Where a task may run: ``needs gpu, on device 'desk'``"""
    needs = [f"needs {_line(', '.join(sorted(task.needs)), around.mask)}"] if task.needs else []
    device = [f"on device {_line(repr(around.aliases.shown(task.device)), around.mask)}"] if task.device else []
    return ", ".join([*needs, *device])


def _action(task: Task, mask: Mask) -> str:
    for kind in ACTIONS:
        value = getattr(task, kind)
        if value is not None:
            text = value
            if not isinstance(value, str):
                text = _call(value) if kind == "call" else task.field_to_json(kind)
            return f"{kind}: {_line(text if isinstance(text, str) else _json(mask.data(text)), mask)}"
    return "" if task.wait_for is None else f"wait_for: {_line(_json(mask.data(dict(task.wait_for))), mask)}"


def _call(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', repr(function))}"


def _counts(view: ConstellationView) -> str:
    counts = view.status_counts()
    words = [f"{counts[status]:,} {status}" for status in (PENDING, RUNNING, *sorted(TERMINAL)) if counts[status]]
    return f"# All tasks\n{plural(len(view), 'task')}: {', '.join(words)}" if words else ""


# -- devices -----------------------------------------------------------------------------------------------------------


def device_name(plan: str, device: str, aliases: DeviceAliases) -> str:
    """A device as it is shown. The process that runs a stored plan is a device that is named after the plan: its name
    would make the same plan under another name another question."""
    return "this process" if device.startswith(f"{plan}@") else name(aliases.shown(device))


def _devices(plan: str, around: Surroundings) -> str:
    return device_list(
        [(device_name(plan, device, around.aliases), can, slots) for device, can, slots in around.devices],
        MOST_DEVICES,
        around.capabilities,
        MOST_NAMES,
    )


def device_list(
    devices: Sequence[tuple[str, Iterable[str], int | None]],
    most: int,
    capabilities: frozenset[str] | None,
    most_words: int | None = None,
) -> str:
    """Devices with their slots and capabilities, at most ``most``; empty if there are none. A device says itself what
    it is called and can do; an agent elsewhere says it in its card."""
    lines = []
    for device, can, slots in devices[:most]:
        words = shown_capabilities(can, capabilities, most_words)
        room = "no limit" if slots is None else plural(slots, "slot")
        lines.append(f"- {device}: {room}" + (f", can {words}" if words else ""))
    if len(devices) > most:
        lines.append(f"- and {len(devices) - most:,} more")
    return "# Devices\n" + mark_untrusted("profiles of devices", "\n".join(lines)) if devices else ""


# -- texts -------------------------------------------------------------------------------------------------------------


def name(task_id: str, mask: Mask | None = None) -> str:
    """An id as it is shown: on one line, with every character visible."""
    return repr(visible_text(task_id if mask is None else mask.text(task_id)))


def _names(tasks: Sequence[str], mask: Mask | None = None) -> str:
    more = f" and {len(tasks) - MOST_NAMES:,} more" if len(tasks) > MOST_NAMES else ""
    return ", ".join(name(task, mask) for task in tasks[:MOST_NAMES]) + more


def on_one_line(text: str) -> str:
    return " ".join(visible_text(text).split())


def _line(text: str, mask: Mask) -> str:
    return _head(on_one_line(mask.text(text)), TEXT_LENGTH)


def _head(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]} … ({len(text) - length:,} more characters)"


def _tail(text: str, length: int) -> str:
    return text if len(text) <= length else f"({len(text) - length:,} characters before this) … {text[-length:]}"


def _json(value: Any) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError):
        return f"a value of type {type(value).__name__}"


def output_end(output: str, mask: Mask) -> str:
    """The end of an output, without the part of a secret with which it may begin."""
    return output if len(output) <= OUTPUT_TAIL else mask.tail(output[-OUTPUT_TAIL:], cut=True)
