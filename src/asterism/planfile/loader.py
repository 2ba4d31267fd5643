"""Reads a plan file: its text becomes a constellation, or the list of all its mistakes, each with its line.

The models check the shape of the file, ``checks`` the rest. After a mistake in the shape, the valid remainder is
checked too, so that one pass reports everything.

The order of the tasks of a plan file, and the cycles among them.
"""

from __future__ import annotations

import gc
import os
import platform
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypedDict, Unpack

from asterism.base.cel.cel_values import InvalidExpression
from asterism.base.expressions import with_constants
from asterism.base.text import clean
from asterism.base.yaml_lines import Mistake, YamlMapping, line_of, parse_yaml, read_text
from asterism.core.errors import PlanError, safe_repr, suggestion
from asterism.core.json_values import NOTHING, JsonObject, plain_json
from asterism.core.plan.awaited import EXCLUDED
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.graph import Overlap
from asterism.core.plan.plan_name import EACH_START, plan_names
from asterism.core.plan.task import Task
from asterism.core.plan.task_files import is_files_reference
from asterism.core.record import Place, Record, field
from asterism.core.schedule.tick_values import TICK_PATHS, TickValues, tick_on_request
from asterism.execution.foreach_expansion import NotExpandable
from asterism.execution.placeholders import TICK_FOLLOWS, UnknownPlaceholder, fill_task, fill_text, placeholders
from asterism.execution.plan_tick import tasks_with_tick, with_tick
from asterism.planfile import models
from asterism.planfile.checks import PlanContext, TaskChecks, missing_outputs
from asterism.planfile.foreach import add_group
from asterism.planfile.include import PlanSource, read_sources
from asterism.planfile.parameters import Declaration, GivenParameters, declarations, resolve
from asterism.planfile.plugin_keys import with_plugin
from asterism.planfile.python_plan import is_python_plan, python_plan_text

Sources = dict[str, tuple[str, str | None]]

LONGEST_NAME = 200
"""How many characters an id or key may have, with the values of its parameters."""


class DeviceLine(Record):
    """A device in a plan file. ``sized`` says whether the file gives its slots: else they are the processors."""

    id: str
    slots: int
    can: frozenset[str]
    sized: bool = True


class PlanFile(Record):
    """The content of a plan file. ``policy`` is the lock policy, if the file has one; ``params`` are the values of its
    parameters; ``named`` says whether it has an id of its own."""

    constellation: Constellation
    devices: tuple[DeviceLine, ...]
    policy: str | None
    warnings: tuple[Mistake, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    named: bool = False

    def names(self, pattern: str | None) -> Iterator[str]:
        """The names to try for a plan that starts now, until one is free. Without a pattern it has the id of the file,
        or a name for each start if the file has none. Raises PlanError for an unknown placeholder."""
        if pattern is None and self.named:
            return iter([self.constellation.id])
        return plan_names(pattern or EACH_START, self.constellation.id, datetime.now())


class BadPlan(PlanError):
    """A plan file that cannot be run. ``mistakes`` are all of them, in the order of their lines."""

    def __init__(self, name: str, mistakes: Sequence[Mistake]) -> None:
        self.name, self.mistakes = name, tuple(mistakes)
        super().__init__("\n".join(mistake.format(name) for mistake in self.mistakes))


Params = Mapping[str, Any] | GivenParameters
"""The values of parameters, by name; or where to find them."""


class ReadOptions(TypedDict, total=False):
    """How a plan is read."""

    params: Params
    only: Collection[str]
    """The plan has these tasks and what they need."""

    fleet: bool
    """Whether a task may need a device that the file does not list."""

    tick: str | None
    """A day or time, which ``{tick}`` stands for."""

    scheduled: bool
    """Whether a schedule gives the tick later."""

    imports: bool
    """Whether to import the functions of ``call`` tasks, and compare their parameters with the inputs."""

    places: tuple[str, ...]
    """More folders with modules."""


def load(path: str | os.PathLike[str], **options: Unpack[ReadOptions]) -> PlanFile:
    """The plan in a file. Raises BadPlan with every mistake, InvalidTick, and OSError if the file cannot be read."""
    path = os.fspath(path)
    plan_file, mistakes = check(path, **options)
    if plan_file is None:
        raise BadPlan(path, mistakes)
    return plan_file


def check(path: str, **options: Unpack[ReadOptions]) -> tuple[PlanFile | None, list[Mistake]]:
    """The plan in a file, or None, and all mistakes and warnings in the order of their lines."""
    text, mistakes = read_plan(path)
    if mistakes:
        return None, mistakes
    places = (str(Path.cwd()), str(Path(path).resolve().parent))  # a run imports modules from there
    options.setdefault("places", places)
    return examine(text, PurePath(path).stem, path=path, **options)


def read_plan(path: str) -> tuple[str, list[Mistake]]:
    """The text of a plan file, or of the plan at ``module:plan``. Empty, with a mistake, if it cannot be used. Raises
    OSError."""
    if not is_python_plan(path):
        return read_text(path)
    try:
        return python_plan_text(path), []
    except PlanError as error:
        return "", [Mistake(1, clean(str(error)))]


def examine(
    text: str, name: str, *, path: str = "", texts: Mapping[str, str] | None = None, **options: Unpack[ReadOptions]
) -> tuple[PlanFile | None, list[Mistake]]:
    """``check`` for a text. ``name`` is the id of a plan without one; ``include`` is relative to the folder of
    ``path``; with ``texts`` it names one of these, and no file is read."""
    with _no_collection():
        data, mistakes = parse_yaml(text)
        if data is None:
            return None, mistakes or [Mistake(1, "the file is empty; a plan has 'asterism: 1' and 'tasks'")]
        if not isinstance(data, YamlMapping):
            return None, [*mistakes, Mistake(1, "a plan must be a mapping with the keys asterism and tasks")]
        params = options.get("params", NOTHING)
        parameters = params if isinstance(params, GivenParameters) else GivenParameters(params)
        reader = _PlanReader(path or name, read_sources(data, path, mistakes, texts=texts), parameters, mistakes)
        if path and texts is None:
            reader.folder = os.path.dirname(path)
        reader.environment = os.environ if texts is None else None
        tick = options.get("tick")
        values = None if tick is None else tick_on_request(tick)  # a wrong one is refused before all else
        plan_file = reader.plan_file(name, options, values, _may_name_tick(text, reader.sources, parameters))
        return plan_file, in_order(reader.mistakes)


def _may_name_tick(text: str, sources: Sequence[PlanSource], parameters: GivenParameters) -> bool:
    """Whether a tick may be named anywhere. Only then is it searched for, which takes long in a large plan."""
    given = (*parameters.texts.values(), *parameters.values.values())
    return len(sources) > 1 or parameters.file is not None or "tick" in f"{text}{given}".lower()


def in_order(mistakes: Iterable[Mistake]) -> list[Mistake]:
    """By file, the plan file first, and by line."""
    return sorted(mistakes, key=lambda mistake: (mistake.file, mistake))


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


class RawTask(NamedTuple):
    """A task as it is written, with the defaults of its file."""

    value: Any
    line: int
    file: str


class _PlanReader:
    def __init__(
        self, path: str, sources: Sequence[PlanSource], parameters: GivenParameters, mistakes: list[Mistake]
    ) -> None:
        self.path, self.sources, self.parameters, self.mistakes = path, sources, parameters, mistakes
        self.folder: str | None = None
        self.environment: Mapping[str, str] | None = None
        self.raw: dict[str, RawTask] = {}

    def blame(self, task_id: str, path: Place, text: str, warning: bool = False) -> None:
        """A mistake in a task."""
        raw = self.raw[task_id]
        line = line_of(raw.value, path) if path and path[0] in getattr(raw.value, "lines", ()) else raw.line
        self.mistakes.append(Mistake(line, f"task {task_id!r}: {text}", warning, raw.file))

    def plan_file(self, name: str, options: ReadOptions, tick: TickValues | None, ticks: bool) -> PlanFile | None:
        """``ticks`` says whether the texts may name a tick; ``tick`` has its values, if they are known."""
        heads = [self._head(source) for source in self.sources]
        declared: dict[str, Declaration] = {}
        for (head, _), source in zip(heads, self.sources, strict=True):  # the declaration of the including file counts
            declared = declarations(head, source.data, source.file, self.mistakes) | declared
            self._add_raw_tasks(source, head.defaults)
        if not self.raw and not self.mistakes:
            self.mistakes.append(Mistake(1, "the plan has no tasks"))
        mentioned = dict.fromkeys(name for source in self.sources for name in _keys(source.data.get("params")))
        line = line_of(self.sources[0].data, ("params",))
        params = resolve(declared, self.parameters, line, self.mistakes, named=mentioned.keys())
        devices = _devices([head for head, _ in heads])
        unknown = options.get("fleet") or any("devices" in faulty for _, faulty in heads)
        known = None if unknown else {device.id: device.can for device in devices}
        names = tuple({**declared, **mentioned})
        imports, places = options.get("imports", False), options.get("places", ())
        groups = {task_id for task_id, raw in self.raw.items() if {"foreach", "matrix"} & {*_keys(raw.value)}}
        context = PlanContext(self.raw.keys(), known, imports, places, names, ticks, self.environment, groups)
        scope = {"params": params, **({TICK_FOLLOWS: True} if ticks else {})}
        head = heads[0][0]
        if head.overlap is None and head.parallel > 1:
            line = line_of(self.sources[0].data, ("parallel",))
            text = "parallel is how many plans run before overlap counts: add overlap: skip, queue or replace"
            self.mistakes.append(Mistake(line, text))
        overlap = self._overlap(head, params, ticks)
        plan_id = self._filled(("id",), head.id, params) if head.id else name
        plan = self._plan(plan_id, context, scope, tuple(options.get("only", ())))
        if plan is not None:
            plan.overlap = overlap
        if plan is not None and tick is not None:
            plan = with_tick(plan, tick)
        elif plan is not None and ticks and self.parameters.required and not options.get("scheduled"):
            self._require_tick(plan)
        if plan is None or not all(mistake.warning for mistake in self.mistakes):
            return None
        plan.tags = tuple(dict.fromkeys(head.tags or ()))
        named = head.id is not None
        return PlanFile(plan, devices, head.policy, tuple(in_order(self.mistakes)), params, named)

    def _overlap(self, head: models.Head, params: JsonObject, ticks: bool) -> Overlap | None:
        if head.overlap is None or isinstance(head.overlap, str):
            return None if head.overlap is None else (head.overlap, head.parallel)
        key = self._filled(("overlap", "key"), head.overlap.key, params, TICK_PATHS if ticks else ())
        return head.overlap.policy, head.parallel, key

    def _filled(self, path: Place, text: str, params: JsonObject, others: Collection[str] = ()) -> str:
        """A name in the head of the file, with the values of parameters in place of their placeholders. ``others`` are
        filled later."""
        problem, data = None, self.sources[0].data
        for placeholder in re.findall(r"\{([^{}]*)\}", text):
            if not placeholder.startswith("params.") and placeholder not in others:
                may = "may name parameters, such as {params.ref}, and nothing else"
                problem = (
                    f"has no placeholder {{{placeholder}}}: it {'may name parameters and ticks' if others else may}"
                )
        try:
            filled = fill_text(text, {"params": params})
        except UnknownPlaceholder as error:
            filled, problem = text, str(error)
        if problem is None and not (len(filled) <= LONGEST_NAME and filled.isprintable()):
            problem = f"must have at most {LONGEST_NAME} printable characters, not {safe_repr(filled)}"
        if problem is not None:
            where = ".".join(map(str, path))
            self.mistakes.append(Mistake(line_of(data, path), f"{where} {problem}", file=self.sources[0].file))
        return filled

    def _plan(
        self, name: str, context: PlanContext, scope: Mapping[str, Any], only: tuple[str, ...]
    ) -> Constellation | None:
        tasks: dict[str, models.Task] = {}
        parents: dict[str, Sources] = {}
        for task_id, raw in self.raw.items():
            tasks[task_id], parents[task_id] = self._task(task_id, raw, context)
        for task_id, name, text in missing_outputs(tasks):
            self.blame(task_id, ("inputs", name), text)
        order = self._order(parents)
        if order is None or not all(mistake.warning for mistake in self.mistakes):
            return None
        for task_id, text in (*_groups_as_setups(tasks), *_skipped_cleanups(parents)):
            warning = tasks[task_id].teardown is None
            self.blame(task_id, ("after" if warning else "teardown",), text, warning)
        if not all(mistake.warning for mistake in self.mistakes):
            return None
        needed = self._needed(only, parents)
        if needed is not None:  # a set-up brings its teardowns along
            needed |= {task_id for task_id, task in tasks.items() if task.teardown in needed}
        plan = Constellation(name)
        plan.source = name
        for task_id in order if needed is None else filter(needed.__contains__, order):
            sources = parents[task_id]
            if needed is not None:
                sources = {source: condition for source, condition in sources.items() if source in needed}
            elements = () if task_id in only else [name for name in only if name != task_id == _group_of(name)]
            self._add(plan, task_id, tasks[task_id], sources, scope, elements)
        return plan

    def _require_tick(self, plan: Constellation) -> None:
        """That a tick is missing is one mistake, however many tasks need it."""
        if plan.overlap is not None and any(map(TICK_PATHS.__contains__, placeholders("".join(plan.overlap[2:])))):
            line = line_of(self.sources[0].data, ("overlap", "key"))
            text = "overlap.key uses the tick of a schedule; give one to run it now: --tick 2026-11-17"
            self.mistakes.append(Mistake(line, text))
        for task_id in islice(tasks_with_tick(plan), 1):
            group = task_id if task_id in self.raw else task_id.partition("[")[0]
            self.blame(group, (), "uses the tick of a schedule; give one to run it now: --tick 2026-11-17")

    def _head(self, source: PlanSource) -> tuple[models.Head, set[str]]:
        """Everything except the tasks, without its faulty parts, and the keys that have some."""

        def blame(path: Place, text: str) -> None:
            self.mistakes.append(Mistake(line_of(source.data, path), text, file=source.file))

        return models.validate(models.Head, source.data, blame, {"asterism": 1})

    def _add_raw_tasks(self, source: PlanSource, defaults: models.Defaults | None) -> None:
        raw = source.data.get("tasks")
        if not isinstance(raw, YamlMapping):
            absent = "tasks" not in source.data
            if not absent or (len(self.sources) == 1 and not source.data.get("include")):
                text = "the key 'tasks' is missing" if absent else "tasks must be a mapping of ids to tasks"
                self.mistakes.append(Mistake(line_of(source.data, ("tasks",)), text, file=source.file))
            return
        if not raw:
            self.mistakes.append(Mistake(line_of(source.data, ("tasks",)), "the plan has no tasks", file=source.file))
        for task_id, value in raw.items():
            line, known = raw.lines[task_id], self.raw.get(task_id)
            if known is not None:
                where = f"{known.file}:{known.line}" if known.file else f"line {known.line} of the plan file"
                text = f"task {task_id!r} is in {where} too; give one of them another id"
                self.mistakes.append(Mistake(line, text, file=source.file))
                continue
            if isinstance(value, YamlMapping):
                value = with_plugin(value, models.TASK_KEYS)
                if defaults is not None:
                    value = with_defaults(value, source.data["defaults"], defaults)
            self.raw[task_id] = RawTask(value, line, source.file)

    def _task(self, task_id: str, raw: RawTask, context: PlanContext) -> tuple[models.Task, Sources]:
        """A task without its faulty parts, and its dependencies."""
        task, faulty = models.validate(models.Task, raw.value, partial(self.blame, task_id), {})
        if not isinstance(raw.value, dict):
            return task, {}
        checks = TaskChecks(task_id, task, faulty, context)
        for path, text, warning in checks.findings():
            self.blame(task_id, path, text, warning)
        return task, checks.sources

    def _order(self, parents: Mapping[str, Sources]) -> list[str] | None:
        order = task_order(parents)
        if order is None:
            for source, target, path in cycles(parents):
                after = self.raw[target].value.get("after")
                entry: Place = ("handles",) if parents[target][source][0] != "teardown" else ("teardown",)
                if source in ([after] if isinstance(after, str) else after or ()):
                    entry = ("after", list(after).index(source)) if isinstance(after, list) else ("after", source)
                self.blame(target, entry, f"comes after {source!r}, which closes a cycle: {' -> '.join(path)}")
        return order

    def _needed(self, only: tuple[str, ...], parents: Mapping[str, Sources]) -> set[str] | None:
        """The tasks in ``only`` and all above them; None for all tasks. Of an element such as ``load[eu]`` it is the
        group."""
        if not only:
            return None
        for name in only:
            if _group_of(name) not in self.raw:
                text = f"there is no task {name!r} to run{suggestion(name, list(self.raw))}"
                self.mistakes.append(Mistake(line_of(self.sources[0].data, ("tasks",)), text))
        needed = {_group_of(name) for name in only} & self.raw.keys()
        open_tasks = list(needed)
        while open_tasks:
            for source in parents[open_tasks.pop()]:
                if source not in needed:
                    needed.add(source)
                    open_tasks.append(source)
        return needed

    def _add(
        self,
        plan: Constellation,
        task_id: str,
        task: models.Task,
        sources: Sources,
        scope: Mapping[str, Any],
        only: Collection[str],
    ) -> None:
        """Add a task. Of a group, only the elements that ``only`` names, or all."""
        raw = self.raw[task_id]
        template = _core_task(task_id, task, raw.value)
        try:
            after: dict[str, JsonObject] = {
                source: {"on": on, "when": None if when is None else with_constants(when, scope)}
                for source, (on, when) in sources.items()
            }
            for source in filter(task.handles_failure_of, sources):
                after[source]["handled"] = True
            if task.foreach is not None or task.matrix is not None:
                at = f"{raw.file or self.path}:{line_of(raw.value, ('foreach',))}"
                add_group(plan, template, task, after, scope, at, self.folder, only)
            elif only:
                raise NotExpandable("is a single task, which has no elements")
            else:
                plan.add(fill_task(template, scope) if scope["params"] else template, after or None)
        except NotExpandable as error:
            self.blame(task_id, ("foreach" if task.matrix is None else "matrix",), str(error))
        except (PlanError, UnknownPlaceholder, InvalidExpression) as error:  # a rule that the checks do not know
            self.blame(task_id, (), str(error).removeprefix(f"task {task_id!r}: "))


def _group_of(name: str) -> str:
    """The task of a plan file that a name means: that of a group for one of its elements."""
    return name.partition("[")[0] if name.endswith("]") else name


def _groups_as_setups(tasks: Mapping[str, models.Task]) -> Iterator[tuple[str, str]]:
    for task_id, task in tasks.items():
        setup = tasks.get(task.teardown or "")
        if setup is not None and (setup.foreach is not None or setup.matrix is not None):
            yield task_id, f"tears down {task.teardown!r}, which is a group; a set-up is a single task"


def _skipped_cleanups(edges: Mapping[str, Mapping[str, tuple[str, str | None]]]) -> Iterator[tuple[str, str]]:
    """The tasks that are to run however others end, but not if these never start, each with the remedy."""
    for task, sources in edges.items():
        if any(on not in ("completion", "always") for on, _ in sources.values()):
            continue  # it is to be skipped if that does not hold
        for source, condition in sources.items():
            above = next(
                (parent for parent, (on, _) in edges[source].items() if on not in ("always", "teardown")), None
            )
            if condition == ("completion", None) and above is not None:
                yield (
                    task,
                    f"runs when {source!r} has completed or failed, but not if {source!r} never starts, for example "
                    f"because {above!r} does not succeed; to run it in any case, write after: {{{source}: always}}",
                )
                break


def _keys(value: Any) -> Iterable[str]:
    return map(str, value) if isinstance(value, Mapping) else ()


def with_defaults(value: YamlMapping, raw_defaults: YamlMapping, defaults: models.Defaults) -> YamlMapping:
    """A task with the defaults of its file, as the file has them, for the keys that it does not have. ``env`` is
    merged variable by variable. Every key keeps its line."""
    merged = YamlMapping(value.line)
    own_folder = "outputs" in value or _takes_files(value.get("inputs"))
    unused = (EXCLUDED if "wait_for" in value else ()) + (("cwd",) if own_folder else ())
    for key in (key for key in raw_defaults if getattr(defaults, key, None) is not None and key not in unused):
        merged[key], merged.lines[key] = raw_defaults[key], raw_defaults.lines[key]
    for key, own in value.items():
        if key == "env" and isinstance(own, YamlMapping) and isinstance(merged.get("env"), YamlMapping):
            variables = YamlMapping(own.line)
            variables.update(merged["env"] | own)
            variables.lines = merged["env"].lines | own.lines
            own = variables
        merged[key], merged.lines[key] = own, value.lines[key]
    return merged


def _takes_files(inputs: Any) -> bool:
    return isinstance(inputs, Mapping) and any(map(is_files_reference, inputs.values()))


_RAW = ("http", "inputs", "env", "agent", "plugin")
_CONVERTED = (*_RAW, "device", "foreach", "skip_if_unchanged", "wait_for", "approval")
"""The fields of a task that have another form in a plan file."""

_SAME = tuple(name for name in models.TASK_KEYS if name in Task.__struct_fields__ and name not in _CONVERTED)


def _core_task(task_id: str, task: models.Task, raw: Any) -> Task:
    values = {name: value for name in _SAME if (value := getattr(task, name)) is not None}
    values |= {key: plain_json(raw[key]) for key in _RAW if raw.get(key)}
    if task.skip_if_unchanged is not None:
        values["skip_if_unchanged"] = task.skip_if_unchanged.to_json()
    if task.wait_for is not None:
        same = {"tick": "{tick}"} if task.wait_for.tick == "same" else {}
        values["wait_for"] = task.wait_for.to_json() | same
    if task.approval is not None:
        values["approval"] = task.approval.to_json()
    return Task(task_id, device=task.wanted.id, needs=frozenset(task.wanted.needs or ()), **values)


def _devices(heads: Sequence[models.Head]) -> tuple[DeviceLine, ...]:
    """The devices of a plan; this machine if it lists none. A device of the plan file replaces an included one."""
    processors = os.cpu_count() or 1
    listed = {name: device for head in reversed(heads) for name, device in (head.devices or {}).items()}
    if not listed:
        return (DeviceLine(platform.node() or "localhost", processors, frozenset(), sized=False),)
    return tuple(
        DeviceLine(name, device.slots or processors, frozenset(device.can or ()), device.slots is not None)
        for name, device in listed.items()
    )


# -- task order --------------------------------------------------------------------------------------------------------


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
    order = []
    while free:
        name = names[heappop(free)]
        order.append(name)
        for child in children.get(name, ()):
            number = position[child]
            open_parents[number] -= 1
            if not open_parents[number]:
                heappush(free, number)
    return order if len(order) == len(names) else None


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
