"""Scopes of editors: which tasks, edits, executors, work, secrets and devices an editor may touch, and how many tasks.

An *editor* answers edit cycles, or edits a plan through MCP or with a credential for edits alone. It may be a language
model that obeys whatever it reads. A plan may have scopes. Then each edit of an editor must lie within one of the
scopes for that editor, or the whole batch is rejected, with every reason, before anything changes. Edits of people are
not limited.

A scope judges what an edit *does* (edit_trial.py): every task that it adds, changes, removes or cancels, and every task
whose dependencies it changes, whether it names them or not. The name of an editor comes from the process that asks it
or from its credential, never from the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from asterism.core.errors import PlanError, Violation
from asterism.core.plan.edit_trial import ADDED, LINKED, REPLACED, UNLINKED, Change, Trial
from asterism.core.plan.edits import EDITS, EditBatch
from asterism.core.plan.graph import Graph
from asterism.core.plan.group_elements import most_tasks, work_of
from asterism.core.plan.rule_fields import check_names, check_words, fits, parse_fields
from asterism.core.plan.status import PENDING
from asterism.core.plan.task import ACTIONS, Priority, Task
from asterism.core.plan.work_patterns import work_fits, work_name

_NUMBERS = ("adds", "size", "retries")
_PRIORITIES = {one.name.lower(): one for one in Priority}
_NAMELESS = {"shell": "a shell line", "agent": "work for an agent"}
_WORK_FIELDS = (*ACTIONS, "inputs", "env", "cwd", "data", "device", "needs", "foreach", "skip_if_unchanged")
"""The fields that decide what is executed, where, and with what."""


@dataclass(frozen=True, slots=True)
class EditScope:
    """What some editors may do. A field that is not given allows everything, except ``secrets`` and ``files``, which
    allow none.

    ``editors``    patterns of the names of the editors; a scope without them is for every editor
    ``edits``      the kinds of edits
    ``tasks``      patterns of the ids of the tasks that are added, changed, removed or cancelled
    ``executors``  what a task that is added or changed may execute: ``call``, ``argv``, ``shell``, ``http``,
                   ``agent``
    ``work``       patterns of the function of ``call``, of the first word of ``argv``, of the URL of ``http``
                   (work_patterns.py); a shell line and work for an agent have no name, so they fit none. The
                   environment and the directory of a command stay as they are.
    ``devices``    patterns of the device that a task that is added or changed must name
    ``secrets``    patterns of the secrets that such a task may use; a task whose work stays as it is keeps its own
    ``files``      patterns of the files that ``skip_if_unchanged`` of such a task may name, with its directory: the
                   process that runs the plan reads them
    ``priority``   the highest priority that such a task may have, and so lend to the tasks that it waits for; a task
                   may keep the one that it has. It is also the highest that work of the editor may get from tasks
                   that wait for it, through a dependency that the editor adds.
    ``adds``       how many tasks one batch may add
    ``size``       how many tasks the plan may have with those that it adds
    ``retries``    how many retries a task that is added or changed may have; a task may keep those that it has

    A group whose list is not known yet counts with as many elements as it may have, in ``adds`` and in ``size``.
    """

    editors: tuple[str, ...] = ()
    edits: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    executors: tuple[str, ...] = ()
    work: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    adds: int | None = None
    size: int | None = None
    retries: int | None = None
    priority: str | None = None

    def __post_init__(self) -> None:
        check_words(self, "a scope", {"edits": tuple(EDITS), "executors": ACTIONS}, but=(*_NUMBERS, "priority"))
        if self.priority is not None and self.priority not in _PRIORITIES:
            raise PlanError(f"priority of a scope is one of {', '.join(_PRIORITIES)}, not {self.priority!r}")
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise PlanError(f"{name} of a scope is a whole number, 0 or more, not {value!r}")

    def is_for(self, editor: str) -> bool:
        return not self.editors or fits(editor, self.editors)

    def to_json(self) -> dict[str, Any]:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(v) if type(v) is tuple else v for name, v in given.items() if v not in ((), None)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EditScope:
        """Raises PlanError."""
        check_names(cls, "a scope", data)
        return cls(**data)

    @classmethod
    def parse(cls, text: str) -> EditScope:
        """A scope as a person writes it: ``edits=add_task,cancel_task tasks=fix-* executors=argv adds=3``. ``any``
        allows everything but secrets. Raises PlanError."""
        if text == "any":
            return cls()
        given: dict[str, Any] = dict(
            parse_fields(text, "a scope", "any, edits=cancel_task, tasks=fix-* executors=argv work=make adds=3")
        )
        for name in _NUMBERS:
            if name in given:
                words = given[name]
                number = words[0] if len(words) == 1 else ""
                if not (number.isascii() and number.isdecimal()):
                    raise PlanError(f"{name} of a scope is a whole number, not {','.join(words)!r}")
                given[name] = int(number)
        if "priority" in given:
            given["priority"] = ",".join(given["priority"])
        return cls.from_json(given)

    def __str__(self) -> str:
        words = {name: ",".join(v) if isinstance(v, list) else str(v) for name, v in self.to_json().items()}
        return " ".join(f"{name}={value}" for name, value in words.items()) or "any"


def scope_violations(
    scopes: Sequence[EditScope], editor: str, batch: EditBatch, tried: Trial, graph: Graph
) -> list[Violation]:
    """Why the edits of an editor are outside its scopes; empty if they are within, or the plan has none."""
    if not scopes or not batch.edits:
        return []
    own = [scope for scope in scopes if scope.is_for(editor)]
    if not own:
        return [Violation(None, "scope", f"no scope of the plan is for the editor {editor!r}: it may change nothing")]
    added = sum(map(_growth, tried.changes))
    size = _planned_size(graph) if added and any(scope.size is not None for scope in own) else 0
    found = []
    written = _written(editor, tried, graph)
    for index, edit in enumerate(batch.edits):
        if type(edit) not in EDITS.values():
            continue  # it is rejected as malformed
        changes = tried.of(index)
        problems = [next(_problems(scope, edit.op, changes, added, size, written), None) for scope in own]
        if None not in problems:
            why = "; or ".join(dict.fromkeys(str(problem) for problem in problems))
            found.append(Violation(index, "scope", f"{edit} is outside the scope of the editor {editor!r}: {why}"))
    return found


def _problems(
    scope: EditScope, op: str, changes: Sequence[Change], added: int, size: int, written: Mapping[str, Priority]
) -> Iterator[str]:
    """Why an edit is outside a scope; nothing if it is within. ``written`` see _written."""
    if scope.edits and op not in scope.edits:
        yield f"its edits are {', '.join(scope.edits)}"
    if scope.tasks:
        outside = next((name for change in changes for name in _names(change) if not fits(name, scope.tasks)), None)
        if outside is not None:
            yield f"it changes the task {outside!r}, and its tasks are {', '.join(scope.tasks)}"
    for change in changes:
        yield from _lending_problems(scope, change, written)
        if change.kind in (ADDED, REPLACED):
            for task in work_of(change.after or change.tasks[0]):
                yield from _priority_problems(scope, change, task)
                yield from _work_problems(scope, change, task)
        if _growth(change) and scope.adds is not None and added > scope.adds:
            yield f"the batch adds {added:,} tasks, and {scope.adds:,} are allowed"
        if _growth(change) and scope.size is not None and size + added > scope.size:
            yield f"the plan would have {size + added:,} tasks, and {scope.size:,} are allowed"


def _growth(change: Change) -> int:
    """How many tasks a change adds, elements of groups among them."""
    if change.after is None or change.kind not in (ADDED, REPLACED):
        return 0
    return max(0, most_tasks(change.after) - (0 if change.before is None else most_tasks(change.before)))


def _planned_size(graph: Graph) -> int:
    """How many tasks a plan has, with the elements that its groups may still get."""
    groups = (node for node in graph.nodes.values() if node.task.foreach is not None and node.status is PENDING)
    return len(graph.nodes) + sum(most_tasks(node.task) - 1 for node in groups)


def _names(change: Change) -> Iterator[str]:
    """The tasks that a change is about: of a dependency the target, and the source if it handles its failure or tears
    it down, since that changes how the plan ends, and what may still be added below the source."""
    yield change.task_id
    edge = change.dependency
    if change.kind in (LINKED, UNLINKED) and edge is not None and (edge.handled or edge.on == "teardown"):
        yield edge.source


def _work_problems(scope: EditScope, change: Change, task: Task) -> Iterator[str]:
    """Why the work of a task, or of the elements of a group, is outside a scope."""
    if task.foreach is not None:  # no device executes a group; its elements are judged by themselves
        return
    before, same = change.before, _same_work(change)
    action = next((name for name in ACTIONS if getattr(task, name) is not None), None)
    if scope.executors and action not in scope.executors:
        what = "nothing that has a name" if action is None else action
        yield f"{task.id!r} executes {what}, and its executors are {', '.join(scope.executors)}"
    if scope.work:
        if not work_fits(task, scope.work):
            what = _NAMELESS.get(action or "", repr(work_name(task)))
            yield f"{task.id!r} executes {what}, and its work is {', '.join(scope.work)}"
        if (task.env, task.cwd) != ((before.env, before.cwd) if before is not None else ({}, None)) and not same:
            yield f"the environment and the directory of {task.id!r} may not be set"
    if scope.devices and (task.device is None or "{" in task.device or not fits(task.device, scope.devices)):
        where = "any device" if task.device is None else repr(task.device)
        yield f"{task.id!r} runs on {where}, and its devices are {', '.join(scope.devices)}"
    if scope.retries is not None and task.retries > max(scope.retries, _retries_before(change)):
        yield f"{task.id!r} has {task.retries:,} retries, and {scope.retries:,} are allowed"
    for secret in () if same else secrets_of(task):
        if not fits(secret, scope.secrets):
            allowed = ", ".join(scope.secrets) or "none"
            yield f"{task.id!r} uses the secret {secret!r}, and its secrets are {allowed}"
    for path in () if same else _files_of(task):
        if ".." in path.split("/") or "{" in path or not fits(path, scope.files):
            allowed = ", ".join(scope.files) or "none"
            yield f"{task.id!r} compares the file {path!r}, and its files are {allowed}"


def _priority_problems(scope: EditScope, change: Change, task: Task) -> Iterator[str]:
    """Why the priority of a task, which it lends to the tasks that it waits for, is outside a scope."""
    had = Priority.LOW if change.before is None else max(work.priority for work in work_of(change.before))
    if scope.priority is not None and task.priority > max(_PRIORITIES[scope.priority], had):
        words = f"{task.id!r} has the priority {task.priority.name.lower()}"
        yield f"{words}, and {scope.priority} is the highest that is allowed"


def _written(editor: str, tried: Trial, graph: Graph) -> dict[str, Priority]:
    """The tasks whose work is the editor's, and the priority with which each counts before the batch."""
    names = [name for name, by in graph.edited.items() if by == editor]
    names += [change.task_id for change in tried.changes if change.kind in (ADDED, REPLACED)]
    return {name: graph.nodes[name].urgency if name in graph.nodes else Priority.LOW for name in names}


def _lending_problems(scope: EditScope, change: Change, written: Mapping[str, Priority]) -> Iterator[str]:
    """Why the priority that a dependency lends to work of the editor is outside a scope."""
    for name, priority in change.raises:
        if scope.priority is None or name not in written:
            continue
        if priority > max(_PRIORITIES[scope.priority], written[name]):
            words = f"{name!r} would get the priority {priority.name.lower()} from tasks that wait for it"
            yield f"{words}, and {scope.priority} is the highest that is allowed"


def _same_work(change: Change) -> bool:
    """Whether a task executes the same as before, in the same place and with the same values, secrets among them."""
    before, after = change.before, change.after
    return (
        before is not None
        and after is not None
        and all(getattr(before, name) == getattr(after, name) for name in _WORK_FIELDS)
    )


def _retries_before(change: Change) -> int:
    return 0 if change.before is None else max(work.retries for work in work_of(change.before))


def _files_of(task: Task) -> Iterator[str]:
    """The files that decide whether a task is skipped, as far as its directory is known."""
    named = task.skip_if_unchanged or {}
    for path in (*named.get("inputs", ()), *named.get("outputs", ())):
        yield path if task.cwd is None or path.startswith("/") else f"{task.cwd.rstrip('/')}/{path}"


def secrets_of(task: Task) -> Iterator[str]:
    """The secrets that a task refers to, wherever they stand."""
    stack: list[Any] = [task.inputs, task.env, task.http, task.data]
    while stack:
        value = stack.pop()
        if isinstance(value, Mapping):
            if isinstance(value.get("secret"), str):
                yield value["secret"]
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(value)
