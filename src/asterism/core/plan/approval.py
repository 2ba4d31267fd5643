"""Approvals: rules that say which edits wait for a person, and the edits that wait.

A batch waits as a whole if one of its edits matches one of the rules of the plan. A waiting batch changes nothing. It
*holds* the tasks that it would change (``touched_tasks``): they do not start before a person has approved or refused
it, or its time is up. All other tasks go on. An approved batch is applied like any other, with all checks, completely
or not at all.

A rule is data, so that a plan keeps its rules wherever it is stored. Patterns are those of file names: ``deploy-*``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from asterism.core.errors import AsterismError, InvalidTask, PlanError
from asterism.core.plan.edit_trial import ADDED, REPLACED, Trial, trial
from asterism.core.plan.edits import (
    EDITS,
    AddDependency,
    AddTask,
    CancelTask,
    Edit,
    EditBatch,
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)
from asterism.core.plan.graph import Graph
from asterism.core.plan.group_elements import UNBOUNDED, most_elements, work_of
from asterism.core.plan.node import Node
from asterism.core.plan.rule_fields import check_names, check_words, fits, parse_fields
from asterism.core.plan.status import PENDING
from asterism.core.plan.task import ACTIONS, EFFECTS, Task

DESTRUCTIVE = ("remove_task", "cancel_task", "remove_dependency")
"""The edits that ``destructive`` stands for: they take work or an order away."""

DELETE_WORDS = frozenset(
    {
        *("rm", "rmdir", "unlink", "shred", "wipefs", "mkfs", "truncate", "delete", "-delete", "--delete", "destroy"),
        *("drop", "prune", "purge", "uninstall"),
    }
)
"""Words of commands that delete: ``rm``, ``kubectl delete``, ``terraform destroy``, ``find -delete``."""

RUNS_ANOTHER = frozenset(
    {
        *("sh", "bash", "dash", "zsh", "ksh", "busybox", "eval", "exec", "command", "env", "sudo", "doas", "su"),
        *("xargs", "nice", "nohup", "timeout", "time", "setsid", "ssh", "find"),
    }
)
"""Words of commands that execute another program, which one of their words names."""

WAITING, APPROVED, REFUSED, EXPIRED = "waiting", "approved", "refused", "expired"

APPROVAL_TIMEOUT = 86_400.0
"""Seconds that an edit waits for a person, by default."""


class EditWaits(AsterismError):
    """An edit was not applied: it waits until a person approves it. ``approval`` is the WaitingEdit."""

    def __init__(self, approval: WaitingEdit) -> None:
        self.approval = approval
        super().__init__(f"the edit waits for approval {approval.id}: {'; '.join(approval.reasons)}")


class ApprovalGone(AsterismError):
    """No edit waits under this number: it was approved, refused, its time was up, or it never existed."""


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """An edit matches a rule if it matches each of the fields that are given, one of the values each.

    ``edits`` are kinds of edits, ``tasks`` patterns of the ids of the tasks that it changes, ``executors`` what these
    tasks execute (``call``, ``argv``, ``shell``, ``http``, ``agent``), ``devices`` patterns of the devices that they
    name, ``authors`` patterns of the author of the batch, or of the editor that it comes from. ``effects`` are what
    these tasks do: ``spends``, ``deletes`` (``effects_of``). ``cost`` matches if the tasks that the batch adds or
    changes cost more than that together. A rule without fields matches every edit."""

    edits: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    executors: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    cost: float | None = None

    def __post_init__(self) -> None:
        words = {"edits": tuple(EDITS), "executors": ACTIONS, "effects": EFFECTS}
        check_words(self, "an approval rule", words, but=("cost",))
        if self.cost is not None and not (type(self.cost) in (int, float) and 0 <= self.cost < float("inf")):
            raise PlanError(f"cost of an approval rule is a number, 0 or more, not {self.cost!r}")

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

    def to_json(self) -> dict[str, Any]:
        lists = [field.name for field in fields(self) if field.name != "cost"]
        data: dict[str, Any] = {name: list(value) for name in lists if (value := getattr(self, name))}
        return data if self.cost is None else {**data, "cost": self.cost}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ApprovalRule:
        """Raises PlanError."""
        check_names(cls, "an approval rule", data)
        return cls(**data)

    @classmethod
    def parse(cls, text: str) -> ApprovalRule:
        """A rule as a person writes it: ``all``, ``destructive``, or ``edits=remove_task,cancel_task tasks=deploy-*``,
        ``cost=5``, ``effects=spends,deletes``. Raises PlanError."""
        if text == "all":
            return cls()
        if text == "destructive":
            return cls(DESTRUCTIVE)
        examples = "all, destructive, edits=add_task tasks=deploy-*"
        given: dict[str, Any] = dict(parse_fields(text, "an approval rule", examples))
        if "cost" in given:
            try:
                (number,) = given["cost"]
                given["cost"] = float(number)
            except ValueError:
                raise PlanError(f"cost of an approval rule is a number, not {','.join(given['cost'])!r}") from None
        return cls.from_json(given)

    def __str__(self) -> str:
        words = {name: ",".join(v) if isinstance(v, list) else f"{v:g}" for name, v in self.to_json().items()}
        return " ".join(f"{name}={value}" for name, value in words.items()) or "all"


def _fits_device(device: str, patterns: Sequence[str]) -> bool:
    """Whether a task may name such a device. What a placeholder becomes is not known yet, so it may be any."""
    return "{" in device or fits(device, patterns)


@dataclass(frozen=True, slots=True)
class WaitingEdit:
    """A batch that waits for a person, or waited. ``reasons`` say which edits match which rules. It holds ``tasks``.
    ``state`` is ``waiting``, ``approved``, ``refused`` or ``expired``. ``decided_by``, ``decided_at`` and ``why`` are
    those of the decision, ``version`` is that of the plan with the edit. At ``escalated_at`` it had waited too long."""

    id: int
    batch: EditBatch
    at: float
    expires_at: float
    reasons: tuple[str, ...]
    tasks: tuple[str, ...]
    cycle: int | None = None
    state: str = WAITING
    decided_by: str = ""
    decided_at: float | None = None
    why: str = ""
    version: int | None = None
    escalated_at: float | None = None

    def decided(self, state: str, by: str, at: float, why: str = "", version: int | None = None) -> WaitingEdit:
        return replace(self, state=state, decided_by=by, decided_at=at, why=why, version=version)

    def to_json(self) -> dict[str, Any]:
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.escalated_at is None:  # so that an earlier version can read it
            del data["escalated_at"]
        return {**data, "batch": self.batch.to_json(), "reasons": list(self.reasons), "tasks": list(self.tasks)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WaitingEdit:
        lists = {"reasons": tuple(data["reasons"]), "tasks": tuple(data["tasks"])}
        return cls(**{**data, "batch": EditBatch.from_json(data["batch"]), **lists})


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
        tasks = [*_changed_tasks(edit, graph, added), *(task for change in tried.of(index) for task in change.tasks)]
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


def effects_of(task: Task) -> frozenset[str]:
    """What a task does, as it says; and ``deletes`` if its command or its request says so plainly, or leaves open which
    program or method it is. A function, a script or an agent may do anything: only its ``effects`` tell."""
    if "deletes" in task.effects:
        return task.effects
    method = _filled(str(task.http.get("method", "GET")), task) if task.http is not None else ""
    command = _filled(task.shell if task.shell is not None else " ".join(task.argv or ()), task)
    words = frozenset(re.split(r"[\s;&|()`\"'$/=\\]+", command.lower()))
    deletes = method.upper() == "DELETE" or "{" in method or not DELETE_WORDS.isdisjoint(words)
    if deletes or _open_program(command, task.shell is not None, words):
        return task.effects | {"deletes"}
    return task.effects


def _filled(text: str, task: Task) -> str:
    """A text with the inputs (``{name}``) and the variables (``$name``, ``${name}``) that are known. A value may have
    placeholders again, of the elements of a group."""

    def fill(match: re.Match[str]) -> str:
        value = task.inputs.get(match[1]) if match[1] else task.env.get(match[2] or match[3])
        return value if isinstance(value, str) else match[0]

    return _NAMED.sub(fill, text)


def _open_program(command: str, shell: bool, words: frozenset[str]) -> bool:
    """Whether a placeholder or a variable decides which program is executed."""
    wrapped = not RUNS_ANOTHER.isdisjoint(words)
    if wrapped and _OPEN.search(command):
        return True
    parts = re.split(r"[;&|(`\n]+", command) if shell else [command]
    return any(_OPEN.match(_BEFORE_PROGRAM.sub("", part)) for part in parts)


_NAMED = re.compile(r"\{(\w+)\}|\$(\w+)|\$\{(\w+)\}")
_OPEN = re.compile(r"[^\s\"']*(?:\{\w|\$[\w{@*])")
_BEFORE_PROGRAM = re.compile(r"^(?:\s|[\"'\\]|\w+=\S*\s)+")


def _changed_tasks(edit: Edit, graph: Graph, added: Mapping[str, Task]) -> Iterator[Task]:
    if isinstance(edit, AddTask):
        yield edit.task
        return
    for task_id in (*_subjects(edit), *(node.id for node in _implied(edit, graph))):
        for task in (added.get(task_id), graph.nodes[task_id].task if task_id in graph.nodes else None):
            if task is not None:
                yield task
                if isinstance(edit, UpdateTask):
                    try:
                        yield task.changed(edit.changes)
                    except (InvalidTask, TypeError, ValueError):  # it will be rejected
                        continue


def touched_tasks(batch: EditBatch, graph: Graph, tried: Trial | None = None) -> tuple[str, ...]:
    """The pending tasks that a batch would change or cancel, or whose dependencies it would change."""
    tried = trial(graph, batch) if tried is None else tried
    named = [edit for edit in batch.edits if not isinstance(edit, AddTask)]
    ids = [task_id for edit in named for task_id in (*_subjects(edit), *(node.id for node in _implied(edit, graph)))]
    nodes = (graph.nodes.get(task_id) for task_id in dict.fromkeys([*ids, *(one.task_id for one in tried.changes)]))
    return tuple(node.id for node in nodes if node is not None and (node.status is PENDING or node.provisional))


def _subjects(edit: Edit) -> tuple[str, ...]:
    if isinstance(edit, AddDependency | UpdateDependency | RemoveDependency):
        return (edit.target,)
    return (edit.task_id,) if isinstance(edit, RemoveTask | UpdateTask | CancelTask) else ()


def _implied(edit: Edit, graph: Graph) -> list[Node]:
    """The tasks that an edit changes without naming them: those below a task that it removes."""
    node = graph.nodes.get(edit.task_id) if isinstance(edit, RemoveTask) else None
    if node is None:
        return []
    found: dict[Node, None] = dict.fromkeys(node.children.values())
    if isinstance(edit, RemoveTask) and edit.dependents == "remove":
        stack = list(found)
        while stack:
            new = [child for child in stack.pop().children.values() if child not in found]
            found.update(dict.fromkeys(new))
            stack += new
    return list(found)
