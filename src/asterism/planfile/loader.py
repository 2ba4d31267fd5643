"""Reads a plan file: its text becomes a constellation, or the list of all its mistakes, each with its line.

The models check the shape of the file, ``checks`` the rest. After a mistake in the shape, the valid remainder is
checked too, so that one pass reports everything.
"""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError

from asterism.base.yaml_lines import Mistake, YamlMapping, line_of, parse_yaml, read_text
from asterism.core.errors import PlanError
from asterism.core.json_values import plain_json
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.planfile import models
from asterism.planfile.branches import always_skipped
from asterism.planfile.checks import PlanContext, TaskChecks
from asterism.planfile.models import Part
from asterism.planfile.validation_messages import AnyShape, error_path, error_text, valid_part

Sources = dict[str, tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """A device in a plan file."""

    id: str
    slots: int
    can: frozenset[str]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The content of a plan file. ``policy`` is the lock policy, if the file has one."""

    constellation: Constellation
    devices: tuple[DeviceLine, ...]
    policy: str | None
    warnings: tuple[Mistake, ...]


class BadPlan(PlanError):
    """A plan file that cannot be run. ``mistakes`` are all of them, in the order of their lines."""

    def __init__(self, name: str, mistakes: Sequence[Mistake]) -> None:
        self.name, self.mistakes = name, tuple(mistakes)
        super().__init__("\n".join(mistake.format(name) for mistake in self.mistakes))


def load(path: str) -> PlanFile:
    """The plan in a file. Raises BadPlan with every mistake, and OSError if the file cannot be read."""
    found, mistakes = check(path)
    if found is None:
        raise BadPlan(path, mistakes)
    return found


def check(path: str, *, imports: bool = False) -> tuple[PlanFile | None, list[Mistake]]:
    """The plan in a file, or None, and all mistakes and warnings in the order of their lines.

    With ``imports``, imports the functions of ``call`` tasks and compares their parameters with the inputs."""
    text, mistakes = read_text(path)
    if mistakes:
        return None, mistakes
    places = (str(Path.cwd()), str(Path(path).resolve().parent))  # a run imports modules from there
    return examine(text, PurePath(path).stem, imports=imports, places=places)


def examine(
    text: str, name: str, *, imports: bool = False, places: tuple[str, ...] = ()
) -> tuple[PlanFile | None, list[Mistake]]:
    """``check`` for a text. ``name`` is the id of a plan without one; ``places`` are more folders with modules."""
    with _no_collection():
        return _examine(text, name, imports, places)


def _examine(text: str, name: str, imports: bool, places: tuple[str, ...]) -> tuple[PlanFile | None, list[Mistake]]:
    data, mistakes = parse_yaml(text)
    if data is None:
        return None, mistakes or [Mistake(1, "the file is empty; a plan has 'asterism: 1' and 'tasks'")]
    if not isinstance(data, YamlMapping):
        return None, [*mistakes, Mistake(1, "a plan must be a mapping with the keys asterism and tasks")]
    reader = _PlanReader(data, mistakes)
    found = reader.plan_file(name, imports, places)
    return found, sorted(reader.mistakes)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Turn the garbage collector off: a large plan is a million objects without garbage, and collecting takes a third
    of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _PlanReader:
    def __init__(self, data: YamlMapping, mistakes: list[Mistake]) -> None:
        self.data, self.mistakes = data, mistakes

    def blame(self, path: tuple[Part, ...], text: str, warning: bool = False) -> None:
        self.mistakes.append(Mistake(line_of(self.data, path), text, warning))

    def plan_file(self, name: str, imports: bool, places: tuple[str, ...]) -> PlanFile | None:
        head, faulty = self._head()
        devices = _devices(head)
        raw = self._raw_tasks()
        known = None if "devices" in faulty else {device.id: device.can for device in devices}
        context = PlanContext(raw.keys(), known, imports, places)
        tasks: dict[str, models.Task] = {}
        parents: dict[str, Sources] = {}
        for task_id, value in raw.items():
            tasks[task_id], parents[task_id] = self._task(task_id, value, context)
        order = self._order(parents)
        if order is None or not all(mistake.warning for mistake in self.mistakes):
            return None
        joins = frozenset(task_id for task_id, task in tasks.items() if task.join == "any")
        for task_id, text in always_skipped(order, parents, joins):
            self.blame(("tasks", task_id, "after"), f"task {task_id!r}: {text}", True)
        plan = Constellation(head.id or name)
        for task_id in order:
            self._add(plan, task_id, tasks[task_id], raw[task_id], parents[task_id])
        if not all(mistake.warning for mistake in self.mistakes):
            return None
        return PlanFile(plan, devices, head.policy, tuple(sorted(self.mistakes)))

    def _head(self) -> tuple[models.Head, set[str]]:
        rest = {key: value for key, value in self.data.items() if key != "tasks"}
        return self._validate(models.Head, rest, (), "", {"asterism": 1})

    def _raw_tasks(self) -> Mapping[str, Any]:
        raw = self.data.get("tasks")
        if not isinstance(raw, YamlMapping):
            absent = "tasks" not in self.data
            self.blame(
                ("tasks",), "the key 'tasks' is missing" if absent else "tasks must be a mapping of ids to tasks"
            )
            return {}
        if not raw:
            self.blame(("tasks",), "the plan has no tasks")
        return raw

    def _validate(
        self, model: type[AnyShape], value: Any, path: tuple[Part, ...], about: str, least: dict[str, Any]
    ) -> tuple[AnyShape, set[str]]:
        """The value as a model, without its faulty parts, and the keys that have some."""
        try:
            return model.model_validate(value), set()
        except ValidationError as error:
            problems = error.errors(include_url=False)
        for problem in problems:
            self.blame((*path, *error_path(problem)), about + error_text(problem, model))
        faulty = {str(problem["loc"][0]) for problem in problems if problem["loc"]}
        return valid_part(model, value, problems, least), faulty

    def _task(self, task_id: str, value: Any, context: PlanContext) -> tuple[models.Task, Sources]:
        """A task without its faulty parts, and its dependencies."""
        about = f"task {task_id!r}: "
        task, faulty = self._validate(models.Task, value, ("tasks", task_id), about, {})
        if not isinstance(value, dict):
            return task, {}
        checks = TaskChecks(task_id, task, faulty, context)
        for path, text, warning in checks.findings():
            self.blame(("tasks", task_id, *path), about + text, warning)
        return task, checks.sources

    def _order(self, parents: Mapping[str, Sources]) -> list[str] | None:
        order = task_order(parents)
        if order is None:
            for source, target, path in cycles(parents):
                task = self.data["tasks"][target]
                after = task.get("after")
                entry = ("after", list(after).index(source)) if isinstance(after, list) else ("after", source)
                self.blame(
                    ("tasks", target, *(entry if source in (after or ()) else ("handles",))),
                    f"task {target!r}: comes after {source!r}, which closes a cycle: {' -> '.join(path)}",
                )
        return order

    def _add(self, plan: Constellation, task_id: str, task: models.Task, raw: Any, sources: Sources) -> None:
        after: dict[str, dict[str, Any]] = {}
        for source, terms in sources.items():
            after[source] = dict(zip(("on", "when"), terms, strict=True))
            if task.handles_failure_of(source):
                after[source]["handled"] = True
        try:
            plan.add(_core_task(task_id, task, raw), after or None)
        except PlanError as error:  # a rule of the core that the checks do not know
            self.blame(("tasks", task_id), str(error))


def _core_task(task_id: str, task: models.Task, raw: Any) -> Task:
    wanted = task.wanted
    given = {key: plain_json(raw[key]) for key in ("http", "inputs", "env") if raw.get(key)}
    return Task(
        task_id,
        call=task.call,
        argv=None if task.argv is None else tuple(task.argv),
        shell=task.shell,
        cwd=task.cwd,
        description=task.description,
        priority=task.priority,  # type: ignore[arg-type] # a task takes the name too
        retries=task.retries,
        backoff=task.backoff,
        timeout=task.timeout,
        device=wanted.id,
        needs=frozenset(wanted.needs or ()),
        estimate=task.estimate,
        revocable=task.revocable,
        join=task.join,
        **given,
    )


def _devices(head: models.Head) -> tuple[DeviceLine, ...]:
    """The devices of a plan; this machine if it lists none."""
    processors = os.cpu_count() or 1
    if head.devices is None:
        return (DeviceLine(platform.node() or "localhost", processors, frozenset()),)
    return tuple(
        DeviceLine(name, device.slots or processors, frozenset(device.can or ()))
        for name, device in head.devices.items()
    )


Parents = Mapping[str, Collection[str]]
"""The parents of each task, in the order of the file."""

MOST_SHOWN = 12
"""How many tasks of a cycle a message names."""


def task_order(parents: Parents) -> list[str] | None:
    """All tasks, parents first and otherwise in the order of the file; None if there is a cycle."""
    names = list(parents)
    position = {name: number for number, name in enumerate(names)}
    children: dict[str, list[str]] = {}
    open_parents = [len(above) for above in parents.values()]
    for name, above in parents.items():
        for source in above:
            children.setdefault(source, []).append(name)
    free = [number for number, count in enumerate(open_parents) if not count]
    heapify(free)
    found = []
    while free:
        name = names[heappop(free)]
        found.append(name)
        for child in children.get(name, ()):
            number = position[child]
            open_parents[number] -= 1
            if not open_parents[number]:
                heappush(free, number)
    return found if len(found) == len(names) else None


def cycles(parents: Parents) -> Iterator[tuple[str, str, list[str]]]:
    """Every dependency that closes a cycle, as (source, target, tasks of the cycle). Long cycles are cut in the middle.

    Walks from tasks to their parents, depth first, without recursion."""
    depth: dict[str, int] = {}  # of the tasks on the path that is being walked
    done: set[str] = set()
    for start in parents:
        if start in done:
            continue
        path, open_above = [start], [iter(parents[start])]
        depth[start] = 0
        while path:
            source = next(open_above[-1], None)
            if source is None:
                name = path.pop()
                open_above.pop()
                del depth[name]
                done.add(name)
            elif source in depth:
                yield source, path[-1], _cycle(path, depth[source])
            elif source not in done:
                depth[source] = len(path)
                path.append(source)
                open_above.append(iter(parents[source]))


def _cycle(path: list[str], first: int) -> list[str]:
    """The tasks of the cycle, sources first; ``path`` goes from targets to sources."""
    length = len(path) - first
    if length <= MOST_SHOWN:
        return [path[-1 - step] for step in range(length)] + [path[-1]]
    half = MOST_SHOWN // 2
    head, tail = [path[-1 - step] for step in range(half)], [path[first + half - 1 - step] for step in range(half)]
    return [*head, f"({length - MOST_SHOWN} more)", *tail, path[-1]]
