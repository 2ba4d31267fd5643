"""Rules about edits: which edits wait for a person (``ApprovalRule``), and what an editor may do (``EditScope``).

A rule is a record: the same rule is data in a store, one line in a terminal (``edits=add_task tasks=fix-*``), and
fields in Python (``EditRule``). Patterns are those of file names: ``deploy-*``.

*Approval.* A batch waits as a whole if one of its edits matches one of the rules of the plan. A waiting batch changes
nothing. It *holds* the tasks that it would change (``touched_tasks``): they do not start before a person has approved
or refused it, or its time is up. All other tasks go on. An approved batch is applied like any other, with all checks,
completely or not at all.

*Scope.* An *editor* answers edit cycles, or edits a plan through MCP or with a credential for edits alone. It may be a
language model that obeys whatever it reads. A plan may have scopes. Then each edit of an editor must lie within one of
the scopes for that editor, or the whole batch is rejected, with every reason, before anything changes. Edits of people
are not limited. The name of an editor comes from the process that asks it or from its credential, never from the
answer.

Both judge what an edit *does* (edit_trial.py): every task that it adds, changes, removes or cancels, and every task
whose dependencies it changes, whether it names them or not.

*Devices.* An edit may name the devices that there are or were, and those that may still join (``KnownDevices``). A plan
file may name devices to come. An edit is made while the plan runs, by somebody who sees the devices: an unknown name is
a mistake, and its task would wait in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Annotated, Any, ClassVar, Self, get_origin

from asterism.core.errors import PlanError, Violation
from asterism.core.json_values import mappings_in
from asterism.core.plan.edit_trial import ADDED, LINKED, REPLACED, UNLINKED, Change, Trial, named_tasks, trial
from asterism.core.plan.edits import EDITS, AddTask, Edit, EditBatch, UpdateTask
from asterism.core.plan.graph import Graph
from asterism.core.plan.group_elements import UNBOUNDED, most_elements, most_tasks, work_of
from asterism.core.plan.status import PENDING
from asterism.core.plan.task import ACTIONS, EFFECTS, Priority, Task, differences, kind_of
from asterism.core.plan.work_patterns import effects_of, work_fits, work_name
from asterism.core.record import (
    Meta,
    Mistake,
    Name,
    Record,
    decode,
    field_mistakes,
    fields_of,
    mistakes,
    one_of,
    set_field,
)

DESTRUCTIVE = ("remove_task", "cancel_task", "remove_dependency")
"""The edits that ``destructive`` stands for: they take work or an order away."""

_PRIORITIES = {priority.name.lower(): priority for priority in Priority}
_NAMELESS = {"shell": "a shell line", "agent": "work for an agent"}
OTHER_FIELDS = (
    *("env", "cwd", "priority", "retries", "backoff", "timeout", "device", "needs", "estimate", "revocable", "join"),
    *("data", "foreach", "untrusted", "cost", "effects", "outputs", "heartbeat_timeout", "approval"),
)
"""The fields of a task that ``fields`` of a scope may name. Every other has a name of its own in a scope, or is refused
whatever a scope says."""

_NAMED_BY: Mapping[str, str] = {
    **dict.fromkeys((*ACTIONS, "inputs", "description"), "executors"),
    "retries": "retries",
    "priority": "priority",
    "device": "devices",
    "skip_if_unchanged": "files",
    "wait_for": "waits",
    "uses": "uses",
}
"""What a scope calls that which limits a field of a task."""

ALL = "*"

_WORK_FIELDS = (*ACTIONS, "inputs", "env", "cwd", "data", "device", "needs", "foreach", "skip_if_unchanged", "wait_for")
"""The fields that decide what is executed, where, and with what."""


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class EditRule(Record, omit_defaults=True, forbid_unknown_fields=True):
    """A rule about edits. Raises PlanError if a field is not of its type."""

    what: ClassVar[str]
    """What the rule is called in messages."""
    shorthands: ClassVar[Mapping[str, Mapping[str, Any]]]
    """The fields that a word stands for."""
    examples: ClassVar[str]

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if isinstance(value := getattr(self, name), list):
                set_field(self, name, tuple(value))
        self._refuse(field_mistakes(self))

    @classmethod
    def _refuse(cls, found: Sequence[Mistake]) -> None:
        if found:
            raise PlanError(f"{cls.what}: {'; '.join(mistake.text for mistake in found)}")

    @classmethod
    def from_json(cls, data: Any, *, strict: bool = True) -> Self:
        """Raises PlanError with every mistake. Unless it is ``strict``, a number may be a text."""
        cls._refuse(mistakes(cls, data, strict=strict))
        return decode(cls, data, strict=strict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The rule as a person writes it. A text without fixed words goes to the end of the line. Raises PlanError."""
        if text in cls.shorthands:
            return cls(**cls.shorthands[text])
        kinds, data, rest = {own.name: own.type for own in fields_of(cls)}, dict[str, Any](), text.strip()
        while rest or not data:
            name, _, rest = rest.partition("=")
            kind = kinds.get(name)
            value, rest = (rest.strip(), "") if kind == str | None else [*rest.split(None, 1), "", ""][:2]
            if not name.isidentifier() or not value:
                raise PlanError(f"{text!r} is not {cls.what} (examples: {cls.examples})")
            data[name] = tuple(filter(None, value.split(","))) if get_origin(kind) is tuple else value
        return cls.from_json(data, strict=False)

    def __str__(self) -> str:
        parts = [f"{name}={_text(value)}" for name, value in self.to_json().items()]
        return " ".join(parts) or next((word for word, stands_for in self.shorthands.items() if not stands_for), "")


Words = tuple[Name, ...]
Number = Annotated[float, Meta(ge=0, le=10**15)]
Count = Annotated[int, Meta(ge=0)]


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- approval ----------------------------------------------------------------------------------------------------------


class ApprovalRule(EditRule):
    """An edit matches a rule if it matches each of the fields that are given, one of the values each.

    ``edits`` are kinds of edits, ``tasks`` patterns of the ids of the tasks that it changes, ``executors`` what
    these tasks execute (``call``, ``argv``, ``shell``, ``http``, ``agent``, ``plugin``), ``devices`` patterns of
    the devices that they name, ``authors`` patterns of the author of the batch, or of the editor that it comes
    from. ``effects`` are what these tasks do: ``spends``, ``deletes`` (``effects_of``). ``cost`` matches if the
    tasks that the batch adds or changes cost more than that together. A rule without fields matches every edit."""

    what = "an approval rule"
    shorthands: ClassVar = {"all": {}, "destructive": {"edits": DESTRUCTIVE}}
    examples = "all, destructive, edits=add_task tasks=deploy-*, effects=spends,deletes, cost=5"
    edits: tuple[Annotated[str, one_of(EDITS)], ...] = ()
    tasks: Words = ()
    executors: tuple[Annotated[str, one_of(ACTIONS)], ...] = ()
    devices: Words = ()
    authors: Words = ()
    effects: tuple[Annotated[str, one_of(EFFECTS)], ...] = ()
    cost: Number | None = None

    def matches(self, edit: Edit, authors: Iterable[str], tasks: Sequence[Task], cost: float = 0.0) -> bool:
        """``authors`` are who the batch is from, ``tasks`` the tasks that the edit changes, as they are and as they
        will be, ``cost`` is what the batch costs."""
        if self.edits and edit.op not in self.edits:
            return False
        if self.authors and not any(fits(author, self.authors) for author in authors):
            return False
        if self.cost is not None and not (cost > self.cost and edit.op in ("add_task", "update_task")):
            return False
        by_task = self.tasks or self.executors or self.devices or self.effects
        return not by_task or any(self._matches_task(work, task) for task in tasks for work in work_of(task))

    def _matches_task(self, work: Task, task: Task) -> bool:
        return (
            (not self.tasks or fits(task.id, self.tasks))
            and (not self.executors or any(getattr(work, name) is not None for name in self.executors))
            and (not self.devices or (work.device is not None and _fits_device(work.device, self.devices)))
            and (not self.effects or not effects_of(work).isdisjoint(self.effects))
        )


def _fits_device(device: str, patterns: Sequence[str]) -> bool:
    """Whether a task may name such a device. What a placeholder becomes is not known yet, so it may be any."""
    return "{" in device or fits(device, patterns)


def approval_reasons(
    rules: Sequence[ApprovalRule], batch: EditBatch, graph: Graph, tried: Trial | None = None, editor: str | None = None
) -> tuple[str, ...]:
    """Which edits of a batch match which rules; empty if none waits for a person. ``editor`` is who it comes from,
    whatever author it names."""
    if not rules:
        return ()
    tried = trial(graph, batch) if tried is None else tried
    added = {edit.task.id: edit.task for edit in batch.edits if isinstance(edit, AddTask)}
    cost, authors = batch_cost(tried), [batch.author, *([editor] if editor is not None else [])]
    reasons = []
    for index, edit in enumerate(batch.edits):
        if type(edit) not in EDITS.values():
            continue  # apply rejects it
        tasks = [*named_tasks(edit, graph, added), *(task for change in tried.of(index) for task in change.tasks)]
        reasons += [f"{edit} ({rule})" for rule in rules if rule.matches(edit, authors, tasks, cost)][:1]
    return tuple(reasons)


def batch_cost(tried: Trial) -> float:
    """What one execution of each task that a batch adds or changes costs in all, as far as the tasks say. A group whose
    list is not known yet counts with as many elements as it may have. A task that is made cheaper counts with its cost
    before: the edit may change its work as well."""
    costs = {change.task_id: 0.0 for change in tried.changes if change.kind in (ADDED, REPLACED)}
    for change in tried.changes:
        if change.task_id in costs:
            costs[change.task_id] = max(costs[change.task_id], *map(_cost, change.tasks))
    return sum(costs.values())


def _cost(task: Task) -> float:
    total, each = 0.0, 1
    for work in work_of(task):
        total += each * (work.cost or 0.0)
        each = min(each * most_elements(work.foreach or {}), UNBOUNDED)
    return total


# -- scope -------------------------------------------------------------------------------------------------------------


class EditScope(EditRule):
    """What some editors may do: nothing but what it names. A change of a field of a task that no name of the scope
    allows is refused, also of a field that this module does not know. A task may keep what it has.

    ``editors``    patterns of the names of the editors; a scope without them is for every editor
    ``edits``      the kinds of edits
    ``tasks``      patterns of the ids of the tasks that are added, changed, removed or cancelled
    ``executors``  what a task that is added or changed may execute, with its ``inputs`` and ``description``: ``call``,
                   ``argv``, ``shell``, ``http``, ``agent``, ``plugin``
    ``work``       patterns of the function of ``call``, of the first word of ``argv``, of the URL of ``http``
                   (work_patterns.py); a shell line and work for an agent have no name, so they fit none. The
                   environment and the directory of a command stay as they are. Without it, any work of an executor.
    ``fields``     other fields of a task that may be set: ``timeout``, ``env``, ``foreach`` … (OTHER_FIELDS)
    ``devices``    patterns of the device that a task that is added or changed must name; ``*`` also allows none
    ``secrets``    patterns of the secrets that such a task may use; a task whose work stays as it is keeps its own
    ``files``      patterns of the files that ``skip_if_unchanged`` of such a task may name, with its directory: the
                   process that runs the plan reads them
    ``waits``      patterns of what such a task may wait for: ``plan:NAME/TASK``, ``event:NAME``, ``time``
    ``uses``       the limits that such a task may use, with the highest amount: ``warehouse:2``; 1 without it
    ``priority``   the highest priority that such a task may have, and so lend to the tasks that it waits for; a task
                   may keep the one that it has. It is also the highest that work of the editor may get from tasks
                   that wait for it, through a dependency that the editor adds.
    ``retries``    how many retries a task that is added or changed may have
    ``adds``       how many tasks one batch may add; without it, any number
    ``size``       how many tasks the plan may have with those that it adds; without it, any number

    A ``*`` stands for all edits, tasks, executors and fields. A group whose list is not known yet counts with as many
    elements as it may have, in ``adds`` and in ``size``.
    """

    what = "a scope"
    shorthands: ClassVar = {"any": dict.fromkeys(("edits", "tasks", "executors", "fields"), (ALL,)), "none": {}}
    examples = "any, edits=cancel_task tasks=*, edits=add_task tasks=fix-* executors=argv work=make adds=3"
    editors: Words = ()
    edits: tuple[Annotated[str, one_of((*EDITS, ALL))], ...] = ()
    tasks: Words = ()
    executors: tuple[Annotated[str, one_of((*ACTIONS, ALL))], ...] = ()
    work: Words = ()
    devices: Words = ()
    secrets: Words = ()
    files: Words = ()
    adds: Count | None = None
    size: Count | None = None
    retries: Count | None = None
    priority: Annotated[str, one_of(_PRIORITIES)] | None = None
    fields: tuple[Annotated[str, one_of((*OTHER_FIELDS, ALL))], ...] = ()
    waits: Words = ()
    uses: Words = ()

    def is_for(self, editor: str) -> bool:
        return not self.editors or fits(editor, self.editors)

    def allows_edit(self, op: str) -> bool:
        return op in self.edits or ALL in self.edits

    def allows_field(self, name: str) -> bool:
        """Whether it names a field of a task, other than its work."""
        return name in OTHER_FIELDS and (name in self.fields or ALL in self.fields)

    @property
    def highest_priority(self) -> Priority:
        """The highest priority that a task may have, unless it has a higher one."""
        if self.priority is None:
            return Priority.CRITICAL if self.allows_field("priority") else Priority.NORMAL
        return _PRIORITIES[self.priority]


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
    violations = []
    written = _written(editor, tried, graph)
    for index, edit in enumerate(batch.edits):
        if type(edit) not in EDITS.values():
            continue  # it is rejected as malformed
        changes = tried.of(index)
        problems = [next(_problems(scope, edit.op, changes, added, size, written), None) for scope in own]
        if None not in problems:
            why = "; or ".join(dict.fromkeys(str(problem) for problem in problems))
            violations.append(Violation(index, "scope", f"{edit} is outside the scope of the editor {editor!r}: {why}"))
    return violations


def _problems(
    scope: EditScope, op: str, changes: Sequence[Change], added: int, size: int, written: Mapping[str, Priority]
) -> Iterator[str]:
    """Why an edit is outside a scope; nothing if it is within. ``written`` see _written."""
    if not scope.allows_edit(op):
        yield f"its edits are {_listed(scope.edits)}"
    outside = next((name for change in changes for name in _names(change) if not fits(name, scope.tasks)), None)
    if outside is not None:
        yield f"it changes the task {outside!r}, and its tasks are {_listed(scope.tasks)}"
    for change in changes:
        yield from _lending_problems(scope, change, written)
        if change.kind in (ADDED, REPLACED):
            works = work_of(change.after or change.tasks[0])
            for task, before in zip_longest(works, () if change.before is None else work_of(change.before)):
                if task is not None:
                    yield from _field_problems(scope, before, task)
                    yield from _priority_problems(scope, change, task)
                    yield from _work_problems(scope, change, task)
        if _growth(change) and scope.adds is not None and added > scope.adds:
            yield f"the batch adds {added:,} tasks, and {scope.adds:,} are allowed"
        if _growth(change) and scope.size is not None and size + added > scope.size:
            yield f"the plan would have {size + added:,} tasks, and {scope.size:,} are allowed"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words) or "none"


def _field_problems(scope: EditScope, before: Task | None, task: Task) -> Iterator[str]:
    """Why fields of a task that it gets or that change are outside a scope."""
    changed = differences(Task(task.id) if before is None else before, task)
    if "event" in (task.wait_for or {}):
        changed.pop("untrusted", None)  # it is so by itself
    for name in changed:
        key = _NAMED_BY.get(name)
        if scope.allows_field(name) or (key is not None and getattr(scope, key) not in ((), None)):
            continue
        yield f"it sets {name} of {task.id!r}, and the scope names no {key or f'such field (fields={name})'}"
    if "wait_for" in changed and task.wait_for is not None:
        what = _awaited(task.wait_for)
        if "{" in what or not fits(what, scope.waits):
            yield f"{task.id!r} waits for {what}, and its waits are {_listed(scope.waits)}"
    for limit, amount in task.uses.items() if "uses" in changed else ():
        if not any(_allows_use(words, limit, amount) for words in scope.uses):
            yield f"{task.id!r} uses {amount} of the limit {limit!r}, and its uses are {_listed(scope.uses)}"


def _awaited(wait: Mapping[str, Any]) -> str:
    """What a task waits for, as ``waits`` of a scope names it."""
    if "event" in wait:
        return f"event:{wait['event']}"
    return f"plan:{wait['plan']}/{wait['task']}" if "plan" in wait else "time"


def _allows_use(words: str, limit: str, amount: int) -> bool:
    pattern, colon, most = words.rpartition(":")
    if not colon or not (most.isascii() and most.isdecimal()):
        pattern, most = words, "1"
    return fnmatchcase(limit, pattern) and amount <= int(most)


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
    if task.foreach is not None or task.wait_for is not None:  # no device executes it; elements are judged themselves
        return
    before, same = change.before, _same_work(change)
    action = kind_of(task)
    if action not in scope.executors and ALL not in scope.executors:
        what = "nothing that has a name" if action is None else action
        yield f"{task.id!r} executes {what}, and its executors are {_listed(scope.executors)}"
    if scope.work:
        if not work_fits(task, scope.work):
            what = _NAMELESS.get(action or "", repr(work_name(task)))
            yield f"{task.id!r} executes {what}, and its work is {', '.join(scope.work)}"
        if (task.env, task.cwd) != ((before.env, before.cwd) if before is not None else ({}, None)) and not same:
            yield f"the environment and the directory of {task.id!r} may not be set"
    device = task.device or ""
    if scope.devices and ALL not in scope.devices and ("{" in device or not device or not fits(device, scope.devices)):
        where = "any device" if task.device is None else repr(task.device)
        yield f"{task.id!r} runs on {where}, and its devices are {', '.join(scope.devices)}"
    if scope.retries is not None and task.retries > max(scope.retries, _retries_before(change)):
        yield f"{task.id!r} has {task.retries:,} retries, and {scope.retries:,} are allowed"
    for secret in () if same else secrets_of(task):
        if not fits(secret, scope.secrets):
            yield f"{task.id!r} uses the secret {secret!r}, and its secrets are {_listed(scope.secrets)}"
    for path in () if same else _files_of(task):
        if ".." in path.split("/") or "{" in path or not fits(path, scope.files):
            yield f"{task.id!r} compares the file {path!r}, and its files are {_listed(scope.files)}"


def _priority_problems(scope: EditScope, change: Change, task: Task) -> Iterator[str]:
    """Why the priority of a task, which it lends to the tasks that it waits for, is outside a scope."""
    had = Priority.LOW if change.before is None else max(work.priority for work in work_of(change.before))
    highest = scope.highest_priority
    if task.priority > max(highest, had):
        words = f"{task.id!r} has the priority {task.priority.name.lower()}"
        yield f"{words}, and {highest.name.lower()} is the highest that is allowed"


def _written(editor: str, tried: Trial, graph: Graph) -> dict[str, Priority]:
    """The tasks whose work is the editor's, and the priority with which each counts before the batch."""
    names = [name for name, by in graph.edited.items() if by == editor]
    names += [change.task_id for change in tried.changes if change.kind in (ADDED, REPLACED)]
    return {name: graph.nodes[name].urgency if name in graph.nodes else Priority.LOW for name in names}


def _lending_problems(scope: EditScope, change: Change, written: Mapping[str, Priority]) -> Iterator[str]:
    """Why the priority that a dependency lends to work of the editor is outside a scope."""
    highest = scope.highest_priority
    for name, priority in change.raises:
        if name in written and priority > max(highest, written[name]):
            words = f"{name!r} would get the priority {priority.name.lower()} from tasks that wait for it"
            yield f"{words}, and {highest.name.lower()} is the highest that is allowed"


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
    for part in mappings_in([task.inputs, task.env, task.http, task.data]):
        if isinstance(part.get("secret"), str):
            yield part["secret"]


# -- devices that an edit may name -------------------------------------------------------------------------------------


MOST_NAMES = 20
"""How many names a message lists."""


class KnownDevices(Record):
    """``may_join`` says whether a device of a name may still join, such as one that was invited."""

    names: frozenset[str]
    may_join: Callable[[str], bool] = lambda name: False


def device_violations(batch: EditBatch, plan: Graph, known: KnownDevices) -> list[Violation]:
    """The edits that name a device which was never seen, which cannot join, and which no task of the plan names."""
    unknown = [(index, name) for index, name in _named(batch) if name not in known.names and not known.may_join(name)]
    if not unknown:
        return []
    planned = {node.task.device for node in plan.nodes.values()}
    rejected = [(index, _message(name, known.names)) for index, name in unknown if name not in planned]
    return [Violation(index, "unknown_device", message) for index, message in rejected]


def names_devices(batch: EditBatch) -> bool:
    """Whether an edit of the batch names a device: only then the devices have to be known."""
    return any(True for _ in _named(batch))


def _named(batch: EditBatch) -> Iterator[tuple[int, str]]:
    """The devices that edits name, each with the index of its edit. A placeholder is no name yet."""
    for index, edit in enumerate(batch.edits):
        name = None
        if isinstance(edit, AddTask) and isinstance(edit.task, Task):  # ``apply`` rejects any other
            name = edit.task.device
        elif isinstance(edit, UpdateTask):
            name = edit.changes.get("device")
        if isinstance(name, str) and "{" not in name:
            yield index, name


def _message(name: str, known: frozenset[str]) -> str:
    shown = ", ".join(sorted(known)[:MOST_NAMES]) or "none"
    more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    return f"no device {name!r} has joined, and none was invited; the devices are: {shown}{more}"
