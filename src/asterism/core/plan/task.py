"""Tasks (what to execute, and its requirements) and dependencies (what must happen before)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from operator import attrgetter
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal

from asterism.core.errors import FieldProblem, InvalidTask, NotJson
from asterism.core.json_values import NOTHING, JsonObject
from asterism.core.limits import uses_problems
from asterism.core.plan import task_files
from asterism.core.plan.awaited import WaitFor, excluded_problem, wait_text
from asterism.core.plan.task_approval import EXCLUDED, Approval, approval_text
from asterism.core.record import (
    END,
    Meta,
    Name,
    Pause,
    Record,
    Seconds,
    defaults_of,
    expected,
    field_mistakes,
    mistakes,
    replace,
    set_field,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # that of the standard library has defaults from Python 3.13 on

    Value_co = TypeVar("Value_co", covariant=True, default=Any)
    Call = Callable[..., Any] | str
else:
    from typing import TypeVar

    Value_co = TypeVar("Value_co", covariant=True)
    Call = Any


class Priority(IntEnum):
    """The priority of a task: of two ready tasks, the higher starts first."""

    LOW = 1
    NORMAL = 2
    HIGH = 3
    CRITICAL = 4


OUTCOMES = ("success", "failure", "completion", "always", "teardown")
"""How the source of a dependency may have to end. ``completion`` is success or failure; ``always`` is any end, also
that of a task that was cancelled or never ran. The target of ``teardown`` tears the source down (teardowns.py)."""

Join = Literal["all", "any"]
JOINS: tuple[Join, ...] = ("all", "any")
"""When a task with several dependencies starts: when all of them hold, or when one holds and the others are decided."""

_OUTCOME_VERBS = {
    "success": "succeed",
    "failure": "fail",
    "completion": "end",
    "always": "be over",
    "teardown": "be over",
}
ACTIONS = ("call", "argv", "shell", "http", "agent", "plugin")

MAPPINGS = (
    *("http", "inputs", "env", "data", "foreach", "skip_if_unchanged", "agent", "outputs", "uses", "wait_for"),
    *("plugin", "approval"),
)
"""The fields of a task that are mappings, which may contain any values."""

mappings_of, _actions_of = attrgetter(*MAPPINGS), attrgetter(*ACTIONS)

NO_NEEDS: frozenset[str] = frozenset()
AGENT_NEEDS = frozenset({"agent"})
"""What a task for an agent needs of its device, beside its own ``needs``."""

PLUGIN_NEED = "plugin:"
"""A device that has the plug-in ``container`` has the capability ``plugin:container``."""

LONGEST_DESCRIPTION = 64 * 1024
"""How many characters the description of a task may have in a plan file or in an edit that comes from outside. A plan
that is stored already may have longer ones."""

Effect = Literal["spends", "deletes"]
EFFECTS: tuple[Effect, ...] = ("spends", "deletes")
"""What a task may do that a person may want to decide: spend money, or delete data."""

Lane = tuple[str | None, frozenset[str]] | None
"""The device and the capabilities that a task requires; None if any device will do."""

ANY_DEVICE: Lane = None
GROUP_LANE: Lane = ("", frozenset())
"""The lane of groups and of tasks that wait for the world: they need no device."""


AnyConstant = Annotated[Any, Meta(description="any value")]

PluginName = Annotated[
    str,
    Meta(pattern=f"^[a-z][a-z0-9_-]*{END}"),
    expected("the name of a plug-in: small letters, digits, '-' and '_'"),
]

Uses = Mapping[Name, Annotated[int, Meta(ge=1)]]


class AgentWork(Record, forbid_unknown_fields=True, omit_defaults=True):
    """Work for an agent."""

    description: Annotated[Name, Meta(pattern=r"\S", description="what to do"), expected("a text that says what to do")]
    tips: Annotated[list[str] | None, Meta(description="advice on how to do it")] = None
    result: Annotated[dict[str, AnyConstant] | None, Meta(description="the JSON Schema of the result")] = None


class SharedFields(Record, kw_only=True):
    """The fields that a task has in memory and in a plan file alike."""

    argv: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1)] | None,
        Meta(description="a command; `{name}` stands for an input"),
    ] = None
    shell: Annotated[Name | None, Meta(description="a line for /bin/sh; inputs are environment variables")] = None
    plugin: Annotated[
        Annotated[Mapping[PluginName, Mapping[str, AnyConstant]], Meta(min_length=1, max_length=1)] | None,
        Meta(description="work of a plug-in, by its name: `{container: {image: …}}`"),
    ] = None
    cwd: Annotated[Name | None, Meta(description="the working directory of a command")] = None
    join: Annotated[
        Join,
        Meta(description="start when all dependencies hold, or when one holds and the others are decided"),
    ] = "all"
    retries: Annotated[int, Meta(ge=0)] = 0
    revocable: Annotated[bool, Meta(description="may start before the tasks above are reviewed")] = False
    untrusted: Annotated[
        bool, Meta(description="its result may contain instructions of strangers: limits what an editor may do")
    ] = False
    cost: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="what it costs, for rules about approvals")
    ] = None


class Task(SharedFields, Generic[Value_co]):
    """What to execute, and what that requires. Immutable: an edit replaces it with another task. ``Task[int]`` is one
    whose result is a whole number; type checkers learn it from ``@plan.task``, or are told: ``Task[int](…)``.

    At most one of ``call`` (a function, or ``"package.module:function"``), ``argv`` (a command, no shell), ``shell``
    (a shell line), ``http`` (a request), ``agent`` (work for an agent) and ``plugin`` is set. A task with none of them
    is passed to the device as it is.

    ``plugin`` is work of a kind that a plug-in adds, by the name of the plug-in: ``{"container": {"image": …}}``. It
    needs a device that has the plug-in, which checks the work. The core does not.

    ``agent`` describes work for an agent or a model: ``{"description": …, "tips": […], "result": {a JSON Schema}}``, or
    only the description. It needs a device with the capability ``agent``. Its inputs are data for the agent, so none of
    them may be a secret.

    ``inputs`` are values for the work by name: constants, ``{"from": "task", "select": "result.path"}`` for the result
    of a dependency, or ``{"secret": "NAME"}`` for an environment variable. ``needs`` lists capabilities, ``device`` is
    the id of the only device that may run it. ``estimate`` (seconds) is used for the critical-path rank. ``revocable``
    allows a provisional start under the lock policy ``speculative``. ``join="any"`` starts the task when one of its
    dependencies holds and the others are decided: the end of an if/else.

    With ``foreach`` the task is a group, which no device executes: ``{"of": [ids]}`` completes with the results of
    these tasks, in this order, and ``outputs`` names the files that they make; ``{"from": task, "template": {…}}``
    first becomes tasks, one for each element of the result of that task (``execution/foreach_expansion``).

    ``skip_if_unchanged`` names files: ``{"inputs": [paths], "outputs": [paths]}``; it is ``{}`` for a task with
    ``outputs`` or ``files_from``, whose files are known. If their content and the work are as
    after the last execution, an orchestrator that keeps records completes the task with its recorded result. With
    ``shared``, a name, plans that give the same name use each other's records.

    The result of an ``untrusted`` task, and everything derived from it, may contain instructions of strangers: an
    editor that has seen it may do little without a person (taint.py). ``cost`` is what one execution costs, in a unit
    of your choice, and ``effects`` are among ``spends`` and ``deletes``: rules for approvals refer to both
    (edit_rules.py).

    ``uses`` names the limits that the task holds while it runs, with the amounts: ``{"warehouse": 1}``
    (core/limits.py).

    ``outputs`` are files that the task leaves in its working folder, by name: paths or patterns such as ``out/*.png``.
    ``{"files_from": "render.frames"}`` as an input takes them (task_files.py).

    ``heartbeat_timeout``: without a heartbeat of its device for so many seconds, the task is executed elsewhere. The
    device may have a shorter one.

    ``wait_for`` makes a task that waits for an event, a time or a task of another plan, and takes no slot (awaited.py).
    Its result is the data of the event, or the result of that task. Strangers may have written the data of an event, so
    a task that waits for one is ``untrusted``.

    A task with ``approval`` does not start before a person has approved that (task_approval.py): ``{"by": the names of
    people or groups, or patterns of them, "timeout": seconds, "else": "fail" or "skip"}``.
    """

    id: Annotated[Name, expected("a text")]
    call: Call | None = None
    http: Mapping[str, Any] | None = None
    inputs: Mapping[str, Any] = NOTHING
    env: Mapping[str, Any] = NOTHING
    description: str = ""
    priority: Annotated[Priority, expected("low, normal, high or critical")] = Priority.NORMAL
    backoff: Pause = 0.5
    timeout: Seconds | None = None
    device: Name | None = None
    needs: frozenset[str] = frozenset()
    estimate: Seconds | None = None
    data: Mapping[str, Any] = NOTHING
    foreach: Mapping[str, Any] | None = None
    skip_if_unchanged: Mapping[str, Any] | None = None
    effects: frozenset[Effect] = frozenset()
    agent: Mapping[str, Any] | None = None
    outputs: Mapping[str, str] = NOTHING
    uses: Mapping[str, int] = NOTHING
    wait_for: Mapping[str, Any] | None = None
    heartbeat_timeout: Annotated[float, Meta(ge=1, le=10**15)] | None = None
    approval: Mapping[str, Any] | None = None

    if not TYPE_CHECKING:  # pragma: no branch

        def __class_getitem__(cls, value: Any) -> type[Task]:
            """``Task[int]`` is for type checkers: a frozen class with slots cannot be called through an alias."""
            return cls

    def __post_init__(self) -> None:
        if isinstance(self.agent, str):
            set_field(self, "agent", {"description": self.agent})
        for name, value in zip(MAPPINGS, mappings_of(self), strict=True):
            if value is not None and type(value) is not MappingProxyType and isinstance(value, Mapping):
                set_field(self, name, MappingProxyType(dict(value)))
        if isinstance(self.wait_for, Mapping) and "event" in self.wait_for:
            set_field(self, "untrusted", True)
        for name, kind, convert in _FORMS:
            if type(value := getattr(self, name)) is not kind:
                set_field(self, name, convert(value))
        if problems := [*_problems(self)]:
            raise InvalidTask(f"task {self.id!r}: {'; '.join(problem.text for problem in problems)}", problems)

    def changed(self, changes: Mapping[str, Any]) -> Task:
        """A copy with some fields replaced. The id cannot change."""
        unknown = sorted(set(changes) - TASK_FIELDS)
        if unknown:
            allowed = ", ".join(sorted(TASK_FIELDS))
            raise InvalidTask(f"task {self.id!r}: no such field: {', '.join(unknown)}; the fields are {allowed}")
        if not changes:
            raise InvalidTask(f"task {self.id!r}: the update changes nothing; name at least one field")
        return replace(self, **changes)

    @property
    def wait_text(self) -> str:
        """What it waits for before it starts, such as ``for event 'payment/17'`` or ``for approval by ann``."""
        return approval_text(self.approval) if self.approval is not None else wait_text(self.wait_for or {})

    def to_json(self) -> JsonObject:
        """The fields that differ from their defaults. Raises NotJson for a callable without an import path."""
        out: JsonObject = {"id": self.id}
        for name, default in TASK_DEFAULTS.items():
            value = getattr(self, name)
            if value != default:
                out[name] = self.field_to_json(name)
        if self.call is not None:
            out["call"] = self.field_to_json("call")
        return out

    def field_to_json(self, name: str) -> Any:
        """One field in its JSON form."""
        value = getattr(self, name)
        if value is None:
            return None
        return import_path(value, self.id) if name == "call" else _TO_JSON.get(name, _same)(value)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        """The task that ``to_json`` wrote. ``call`` stays an import path until it is executed."""
        if not isinstance(data, Mapping) or "id" not in data:
            raise InvalidTask(f"a task is an object with an 'id', not {data!r}")
        unknown = sorted(set(data) - TASK_FIELDS - {"id"})
        if unknown:
            raise InvalidTask(f"task {data['id']!r}: no such field: {', '.join(unknown)}")
        return cls(**data)


TASK_FIELDS = frozenset(Task.__struct_fields__) - {"id"}


def differences(old: Task, new: Task) -> dict[str, Any]:
    """The fields in which two tasks differ, with the values of the new one."""
    names = (name for name in Task.__struct_fields__ if name != "id")
    return {name: getattr(new, name) for name in names if getattr(new, name) != getattr(old, name)}


def _same(value: Any) -> Any:
    return value


_TO_JSON: dict[str, Callable[[Any], Any]] = {
    "priority": lambda value: value.name.lower(),
    "needs": sorted,
    "effects": sorted,
    "argv": list,
    **dict.fromkeys(MAPPINGS, dict),
}


def _as_priority(value: Any) -> Any:
    try:
        return Priority[value.upper()] if isinstance(value, str) else Priority(value)
    except (KeyError, ValueError):
        return value


def _as_set(value: Any) -> Any:
    try:
        return frozenset([value] if isinstance(value, str) else value)
    except TypeError:
        return value


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


_FORMS: tuple[tuple[str, type, Callable[[Any], Any]], ...] = (
    ("priority", Priority, _as_priority),
    ("needs", frozenset, _as_set),
    ("effects", frozenset, _as_set),
    ("argv", tuple, _as_tuple),
)
"""The fields that may be given in other forms than their own. A value without one stays as it is."""


def lane_of(task: Task) -> Lane:
    """The lane of a task."""
    if task.foreach is not None or task.wait_for is not None:
        return GROUP_LANE
    needs = needs_of(task)
    if task.device is None and not needs:
        return ANY_DEVICE
    return (task.device, needs)


def needs_of(task: Task) -> frozenset[str]:
    """The capabilities that the device of a task must have."""
    return task.needs | action_needs(task)


def action_needs(action: Any) -> frozenset[str]:
    """The capabilities that the action of a task or a workflow needs, beside what its author names."""
    if action.agent is not None:
        return AGENT_NEEDS
    return NO_NEEDS if action.plugin is None else frozenset({PLUGIN_NEED + plugin_name(action.plugin)})


def plugin_name(plugin: Mapping[str, Any]) -> str:
    """The name of the plug-in that does the work in a field ``plugin``."""
    return next(iter(plugin))


def plugin_text(plugin: Mapping[str, Any]) -> str:
    """The work of a plug-in on one line: ``container: image=alpine, argv=echo hello``."""
    name = plugin_name(plugin)
    words = (
        (key, " ".join(map(str, value)) if isinstance(value, list | tuple) else value)
        for key, value in plugin[name].items()
    )
    return f"{name}: {', '.join(f'{key}={value}' for key, value in words)}"


def kind_of(action: Any) -> str | None:
    """The kind of action of a task or a workflow; None if it has none."""
    return next((kind for kind in ACTIONS if getattr(action, kind) is not None), None)


def plugins_in(needs: Iterable[str]) -> list[str]:
    """The plug-ins among capabilities, in order."""
    return sorted(need.removeprefix(PLUGIN_NEED) for need in needs if need.startswith(PLUGIN_NEED))


def absent_plugin(needs: Iterable[str], devices: Iterable[frozenset[str]]) -> str | None:
    """That no device has a plug-in among ``needs``, as a clause; None if each has one. ``devices`` are capabilities."""
    everywhere: frozenset[str] = frozenset().union(*devices)
    for name in plugins_in(needs):
        if PLUGIN_NEED + name not in everywhere:
            return f"it needs the plug-in {name!r}, which no device has"
    return None


def needs_text(needs: Iterable[str]) -> str:
    """Capabilities as a person reads them: ``'gpu', the plug-in 'container'``."""
    needs = sorted(needs)
    plain = [repr(need) for need in needs if not need.startswith(PLUGIN_NEED)]
    return ", ".join([*plain, *(f"the plug-in {name!r}" for name in plugins_in(needs))])


def capabilities(value: Any) -> frozenset[str] | None:
    """A list of capabilities, or one capability, as a set; None for anything else."""
    if isinstance(value, str):
        value = [value]
    words: list[Any] = list(value) if isinstance(value, Iterable) else [None]
    return frozenset(words) if all(isinstance(word, str) for word in words) else None


_SHAPES: dict[str, type[Record]] = {
    "agent": AgentWork,
    "wait_for": WaitFor,
    "approval": Approval,
    "skip_if_unchanged": task_files.Unchanged,
}
"""The fields that are mappings with certain keys."""


def _problems(task: Task) -> list[FieldProblem]:
    """All problems of a task, so that one message can name them."""
    found = field_mistakes(task)
    for name, shape in _SHAPES.items():
        if isinstance(value := getattr(task, name), Mapping):
            found += mistakes(shape, value, (name,))
    problems = [FieldProblem(str(mistake.place[0]), mistake.text) for mistake in found]
    if isinstance(task.id, str) and not task.id.isprintable():
        problems.append(FieldProblem("id", "the id must not contain control characters"))
    if _actions_of(task).count(None) < len(ACTIONS) - 1:
        problems.append(FieldProblem("", f"only one of {', '.join(ACTIONS)} may be set"))
    if task.call is not None and not callable(task.call) and not (isinstance(task.call, str) and ":" in task.call):
        problems.append(FieldProblem("call", "call must be a function or 'package.module:function'"))
    return problems if found else [*problems, *_contradictions(task)]


def _contradictions(task: Task) -> Iterator[FieldProblem]:
    """The problems of fields that have the right types."""
    if task.untrusted and task.revocable:  # its result would be seen, and then be gone
        yield FieldProblem("revocable", "an untrusted task cannot be revocable")
    if task.http is not None and not isinstance(task.http.get("url"), str):
        yield FieldProblem("http", "http needs a url")
    if task.foreach is not None and not _is_group(task.foreach):
        yield FieldProblem("foreach", "foreach has 'of', a list of ids, or 'from' and 'template'")
    if (unchanged := task.skip_if_unchanged) is not None:
        problem = task_files.unchanged_problem(task, unchanged)
        yield from () if problem is None else [FieldProblem("skip_if_unchanged", problem)]
    if task.agent is not None:
        for name in [
            name for name, value in task.inputs.items() if isinstance(value, Mapping) and {*value} == {"secret"}
        ]:
            text = f"the input {name!r} is a secret, which an agent must not read; give it to the agent's own process"
            yield FieldProblem("inputs", text)
    if task.uses:
        yield from (FieldProblem("uses", text) for text in uses_problems(task.uses))
    if task.outputs or task.inputs:
        yield from (FieldProblem(name, text) for name, text in task_files.field_problems(task))
    if task.wait_for is not None and (excluded := excluded_problem(task)) is not None:
        yield FieldProblem("wait_for", excluded)
    if task.approval is not None:
        for name in [name for name in EXCLUDED if getattr(task, name)]:
            yield FieldProblem("approval", f"a task with approval cannot have {name}")


def _is_group(foreach: Mapping[str, Any]) -> bool:
    if "of" in foreach:
        return isinstance(foreach["of"], list | tuple) and all(isinstance(task_id, str) for task_id in foreach["of"])
    return isinstance(foreach.get("from"), str) and isinstance(foreach.get("template"), Mapping)


_DEFAULTS = defaults_of(Task)
TASK_DEFAULTS = {name: _DEFAULTS[name] for name in dict.fromkeys((*ACTIONS, *_DEFAULTS)) if name != "call"}
"""The optional fields with their defaults, the work first."""


def import_path(call: Callable[..., Any] | str, task_id: str) -> str:
    """``package.module:function`` of a callable that another process can import. Raises NotJson for any other."""
    if isinstance(call, str):
        return call
    module, name = getattr(call, "__module__", None), getattr(call, "__qualname__", None)
    owner = getattr(call, "__self__", None)  # the import path of a bound method would lose its object
    bound = owner is not None and not isinstance(owner, type | ModuleType)
    if not module or not name or module == "__main__" or "<" in name or bound:
        raise NotJson(
            f"task {task_id!r}: {call!r} has no import path, so it cannot be stored or sent; "
            "define it at the top level of an importable module"
        )
    return f"{module}:{name}"


class Dependency(Record, forbid_unknown_fields=True):
    """``target`` may start after ``source`` ended as ``on`` requires, if the condition ``when`` holds for its result.

    ``when`` is an expression over ``result`` and ``status``. The core keeps it as text; the orchestrator evaluates it
    once, when the source ends. A condition that cannot be evaluated counts as false.

    With ``on="teardown"`` the source is a set-up, and the target tears it down: see teardowns.py.

    With ``handled``, which needs ``on="failure"``, the target handles the failure: once it has completed, the failure
    of the source no longer makes the plan fail.
    """

    source: str
    target: str
    on: str = "success"
    when: str | None = None
    handled: bool = False

    def __post_init__(self) -> None:
        if self.on not in OUTCOMES:
            raise InvalidTask(
                f"{self.source!r} -> {self.target!r}: on is one of {', '.join(OUTCOMES)}, not {self.on!r}"
            )
        if self.when is not None and (not isinstance(self.when, str) or not self.when.strip()):
            raise InvalidTask(f"{self.source!r} -> {self.target!r}: when is an expression, not {self.when!r}")
        if type(self.handled) is not bool:
            raise InvalidTask(f"{self.source!r} -> {self.target!r}: handled is true or false, not {self.handled!r}")
        if self.handled and self.on != "failure":
            raise InvalidTask(f"{self.source!r} -> {self.target!r}: handled needs on: failure, not on: {self.on}")
        if self.on == "teardown" and self.when is not None:
            raise InvalidTask(f"{self.source!r} -> {self.target!r}: a teardown takes no condition")
        if self.source == self.target:
            raise InvalidTask(f"task {self.source!r} cannot depend on itself")

    def to_json(self) -> JsonObject:
        """``when`` and ``handled`` only if they say something."""
        out: JsonObject = {"source": self.source, "target": self.target, "on": self.on}
        more = {"when": self.when, "handled": self.handled or None}
        return {**out, **{name: value for name, value in more.items() if value is not None}}

    @property
    def requirement(self) -> str:
        """What the target needs, as a clause: ``it needs 'build' to succeed``."""
        return f"it needs {self.source!r} to {_OUTCOME_VERBS[self.on]}"


After = str | Iterable[str] | Mapping[str, Any] | None


def dependencies_of(target: str, after: After) -> list[Dependency]:
    """The dependencies in an ``after=``: an id, several ids, or a mapping of ids to an outcome or to
    ``{"on": …, "when": …, "handled": …}``."""
    if after is None:
        return []
    if isinstance(after, str):
        return [Dependency(after, target)]
    if not isinstance(after, Mapping):
        sources = list(after) if isinstance(after, Iterable) else [after]
        if not all(isinstance(source, str) for source in sources):
            raise InvalidTask(f"after= takes ids of tasks, not {after!r}")
        return [Dependency(source, target) for source in dict.fromkeys(sources)]
    dependencies = []
    for source, condition in after.items():
        if isinstance(condition, str):
            dependencies.append(Dependency(source, target, condition))
        elif isinstance(condition, Mapping) and set(condition) <= {"on", "when", "handled"}:
            on, handled = condition.get("on", "success"), condition.get("handled", False)
            dependencies.append(Dependency(source, target, on, condition.get("when"), handled))
        else:
            raise InvalidTask(
                f"after={{{source!r}: …}} takes an outcome or {{'on': …, 'when': …, 'handled': …}}, not {condition!r}"
            )
    return dependencies


def teardown_dependencies(target: str, teardown: str | None) -> list[Dependency]:
    """The dependency in a ``teardown=``: the id of the set-up that ``target`` tears down."""
    if teardown is None:
        return []
    if not isinstance(teardown, str):
        raise InvalidTask(f"teardown= takes the id of a task, not {teardown!r}")
    return [Dependency(teardown, target, "teardown")]


def handler_dependencies(target: str, handles: str | Iterable[str] | None) -> list[Dependency]:
    """The dependencies in a ``handles=``: one id, or several, of tasks whose failure ``target`` handles."""
    return [Dependency(edge.source, target, "failure", None, True) for edge in dependencies_of(target, handles)]
