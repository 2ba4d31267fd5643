"""The shape of plan files, the source of the published JSON Schema; and all mistakes of a value in its shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, TypeVar

from asterism.base.durations import DURATION_PATTERN, InvalidDuration, parse_duration
from asterism.core.json_values import JsonObject
from asterism.core.plan import awaited, task_approval
from asterism.core.plan.group_elements import DEFAULT_ELEMENTS
from asterism.core.plan.plan_options import LockPolicy
from asterism.core.plan.task import ACTIONS as CORE_KINDS
from asterism.core.plan.task import LONGEST_DESCRIPTION, AgentWork, AnyConstant, Effect, SharedFields, Uses
from asterism.core.plan.task_files import Unchanged
from asterism.core.record import (
    END,
    UNSET,
    InvalidRecord,
    Meta,
    Mistake,
    Name,
    Place,
    Record,
    decode,
    expected,
    field,
    fields_of,
    mistakes,
    schemas,
    set_field,
)
from asterism.core.schedule.schedule import MOST_PARALLEL
from asterism.execution.foreach_expansion import MAX_ELEMENTS


class Shape(Record, forbid_unknown_fields=True, omit_defaults=True):
    """The shape of a mapping. A missing key is None, or the default of the core."""


def _about_duration(value: Any) -> str | None:
    try:
        parse_duration(value, unit_required=True)
    except InvalidDuration as error:
        return str(error)
    return None


_duration = expected("above 0", _about_duration)

Duration = Annotated[
    Annotated[float, Meta(gt=0)]
    | Annotated[str, Meta(pattern=f"^(?=[0-9.]*[1-9]){DURATION_PATTERN}{END}", max_length=300), _duration],
    _duration,
]
"""Seconds, or text with a unit. A shape that has durations turns them into seconds."""

LongPause = Annotated[
    Annotated[float, Meta(ge=0)] | Annotated[str, Meta(pattern=f"^{DURATION_PATTERN}{END}", max_length=300), _duration],
    _duration,
]


def _convert_durations(shape: Record, *names: str) -> None:
    """Turn texts such as ``5m`` into seconds."""
    for name in names:
        if isinstance(value := getattr(shape, name), str):
            set_field(shape, name, parse_duration(value))


class Device(Shape):
    """A local device: its slots and its capabilities."""

    slots: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="how many tasks at once; default: one per processor")
    ] = None
    can: Annotated[list[Name] | None, Meta(description="capabilities that tasks may need")] = None


Outcome = Literal["success", "failure", "completion", "always"]


class Terms(Shape):
    """The condition of a dependency."""

    on: Annotated[Outcome, Meta(description="how the other task must end")] = "success"
    when: Annotated[Name | None, Meta(description="a condition in CEL over `result` and `status`")] = None
    handled: Annotated[bool, Meta(description="with `on: failure`: this task handles the failure of the other")] = False


class Wanted(Shape):
    """What a task needs of its device."""

    id: Annotated[Name | None, Meta(description="only this device")] = None
    needs: Annotated[list[Name] | None, Meta(description="capabilities that the device must have")] = None


ANY_DEVICE = Wanted()

WantedDevice = Annotated[Name | Wanted, expected("the id of a device, or {id: …, needs: […]}")]


class Reference(Shape):
    """The result of a task in ``after``, or a part of it; or a secret from the environment, which is never written
    down."""

    secret: Name | None = None
    source: Name | None = field(default=None, name="from")
    select: Annotated[Name | None, Meta(description="a CEL expression over `result`")] = None
    failed: Annotated[
        Literal["skip", "null", "fail"] | None,
        Meta(description="in `inputs`: what elements of a group that failed are in its result"),
    ] = None

    def __post_init__(self) -> None:
        if self.secret is None and self.source is None:
            raise ValueError("a reference needs 'from', the id of a task, or 'secret', a name")
        if self.secret is not None and (self.source or self.select or self.failed):
            raise ValueError("a secret has no key beside 'secret'")


Value = Annotated[
    str | int | float | bool | Reference,
    expected("text, a number, true or false, {secret: NAME} or {from: task, select: …}"),
    Meta(
        extra_json_schema={  # of a reference
            "minProperties": 1,
            "dependentRequired": {"select": ["from"], "failed": ["from"]},
            "dependentSchemas": {"secret": {"maxProperties": 1}},
        }
    ),
]
"""A constant that becomes text, or a reference."""

AnyValue = Annotated[
    Any, Meta(description="any value, {from: task, select: …, failed: …} or {secret: NAME}, also nested")
]


class Request(Shape):
    """An HTTP request. ``{name}`` in the URL stands for an input."""

    url: Name
    method: Annotated[str, Meta(pattern=f"^[A-Z]+{END}"), expected("a word in capitals, such as POST")] = "GET"
    headers: dict[Name, Value] | None = None
    params: dict[Name, Value] | None = None
    content: Annotated[AnyValue, Meta(description="the body, sent as JSON")] = field(default=None, name="json")
    body: Annotated[str | None, Meta(description="the body, sent as text")] = None
    expect: Annotated[
        list[Annotated[int, Meta(ge=100, le=599)]] | None,
        Meta(description="the statuses that count as success; default: any 2xx"),
    ] = None


After = Annotated[
    Name
    | list[Name]
    | dict[Name, Annotated[Outcome | Terms, expected("success, failure, completion, always or {on: …, when: …}")]],
    expected("an id, a list of ids, or a mapping of ids to success, failure, completion, always or {on: …, when: …}"),
]


class Over(Shape):
    """Where the elements come from, one of: the result of a task, which must be a list; the files that match a pattern;
    the lines of a file; the numbers of a range."""

    source: Name | None = field(default=None, name="from")
    files: Annotated[Name | None, Meta(description="a pattern, such as `in/*.mp4`; `**` is any folders")] = None
    lines: Annotated[Name | None, Meta(description="a text file; each line that is not empty is an element")] = None
    range: Annotated[list[int] | None, Meta(description="the first and the last number, and the step")] = None
    select: Annotated[Name | None, Meta(description="a CEL expression over `result` that selects the list")] = None
    max: Annotated[int, Meta(ge=1, le=MAX_ELEMENTS, description="how many elements it may have")] = DEFAULT_ELEMENTS


Foreach = Annotated[
    Name | list[AnyConstant] | Over,
    expected('a list, "{params.NAME}", {from: task, select: …}, {files: …}, {lines: …} or {range: [1, 9]}'),
]

Axis = Annotated[Name | list[AnyConstant], expected('a list or "{params.NAME}"')]


class WaitFor(awaited.WaitFor):
    __doc__ = awaited.WaitFor.__doc__
    timeout: Annotated[Duration | None, Meta(description="the task fails after so long; default: never")] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        _convert_durations(self, "timeout")
        super().__post_init__()


class Approval(task_approval.Approval):
    __doc__ = task_approval.Approval.__doc__
    timeout: Annotated[Duration | None, Meta(description="it is not approved after so long; default: 1d")] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        _convert_durations(self, "timeout")


PriorityName = Literal["low", "normal", "high", "critical"]


class Task(SharedFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A task: one of argv, shell, call, http, agent and the name of a plug-in, and its conditions."""

    call: Annotated[
        Annotated[str, Meta(pattern=rf"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*{END}"), expected("package.module:function")]
        | None,
        Meta(description="package.module:function"),
    ] = None
    http: Request | None = None
    agent: Annotated[
        Annotated[Name | AgentWork, expected("a description, or {description: …, tips: […], result: {…}}")] | None,
        Meta(description="work for an agent, on a device that has one"),
    ] = None
    inputs: dict[Name, AnyValue] | None = None
    env: dict[Name, Value] | None = None
    outputs: Annotated[
        Annotated[dict[Name, Name], Meta(min_length=1)] | None,
        Meta(description="files that it leaves in its working folder, by name; `*`, `?`, `**`"),
    ] = None
    uses: Annotated[
        Uses | None,
        Meta(description="the limits that it holds while it runs, with the amounts, such as `{warehouse: 1}`"),
    ] = None
    after: After | None = None
    handles: Annotated[
        Annotated[Name | list[Name], expected("the id of a task, or a list of ids")] | None,
        Meta(description="run if this task fails; when that completes, the failure is repaired"),
    ] = None
    teardown: Annotated[
        Name | None,
        Meta(description="tear this task down: run once it has started and everything between is over, in any case"),
    ] = None
    backoff: Annotated[LongPause, Meta(description="delay before the first retry; it doubles each time")] = 0.5
    timeout: Annotated[Duration | None, Meta(description="time limit of each attempt")] = None
    heartbeat_timeout: Annotated[
        Duration | None, Meta(description="executed elsewhere after so long without a heartbeat of its device")
    ] = None
    priority: PriorityName = "normal"
    device: WantedDevice | None = None
    estimate: Annotated[Duration | None, Meta(description="expected duration, for the critical path")] = None
    effects: Annotated[tuple[Effect, ...] | None, Meta(description="what it does, for rules about approvals")] = None
    description: Annotated[str, Meta(max_length=LONGEST_DESCRIPTION)] = ""
    foreach: Annotated[Foreach | None, Meta(description="one task for each element; `{item}` stands for it")] = None
    matrix: Annotated[
        Annotated[dict[Name, Axis], Meta(min_length=1)] | None,
        Meta(description="one task for each combination; `{matrix.NAME}`"),
    ] = None
    wait_for: Annotated[
        WaitFor | None, Meta(description="wait for an event, a time or a task of another plan, and execute nothing")
    ] = None
    approval: Annotated[Approval | None, Meta(description="wait for a person before it starts")] = None
    skip_if_unchanged: Annotated[
        Unchanged | None, Meta(description="skip it if these files are as after its last execution")
    ] = None

    def __post_init__(self) -> None:
        _convert_durations(self, "backoff", "timeout", "heartbeat_timeout", "estimate")

    @property
    def wanted(self) -> Wanted:
        """``device`` as a mapping."""
        if isinstance(self.device, str):
            return Wanted(id=self.device)
        return self.device or ANY_DEVICE

    def dependencies(self) -> Iterator[tuple[str, str, str | None, Place]]:
        """The dependencies in ``teardown``, ``after`` and ``handles``: (source, on, when, path)."""
        if self.teardown is not None:
            yield self.teardown, "teardown", None, ("teardown",)
        if isinstance(self.after, str):
            yield self.after, "success", None, ("after",)
        elif isinstance(self.after, list):
            for index, source in enumerate(self.after):
                yield source, "success", None, ("after", index)
        elif self.after is not None:
            for source, condition in self.after.items():
                on, when = (condition, None) if isinstance(condition, str) else (condition.on, condition.when)
                yield source, on, when, ("after", source)
        for source in self.handled_tasks():
            yield source, "failure", None, ("handles",)

    def handled_tasks(self) -> list[str]:
        """The tasks in ``handles``."""
        return [self.handles] if isinstance(self.handles, str) else list(self.handles or ())

    def handles_failure_of(self, source: str) -> bool:
        """Whether ``handles`` or ``handled`` says so."""
        condition = self.after.get(source) if isinstance(self.after, dict) else None
        return source in self.handled_tasks() or (isinstance(condition, Terms) and condition.handled)


TASK_KEYS = tuple(key.encode_name for key in fields_of(Task))


class Parameter(Shape):
    """A parameter of the plan. Without a default, a value must be given."""

    type: Annotated[
        Literal["text", "integer", "number", "boolean", "list", "mapping"] | None,
        Meta(description="default: the type of the default, or text"),
    ] = None
    default: Annotated[Any, Meta(description="the value if none is given")] = UNSET
    description: str = ""
    choices: Annotated[
        Annotated[list[AnyConstant], Meta(min_length=1)] | None, Meta(description="the values that are allowed")
    ] = None


class Defaults(Shape):
    """What the tasks of this file have unless they say otherwise. ``env`` is merged variable by variable."""

    env: dict[Name, Value] | None = None
    cwd: Name | None = None
    retries: Annotated[int, Meta(ge=0)] | None = None
    backoff: LongPause | None = None
    timeout: Duration | None = None
    heartbeat_timeout: Duration | None = None
    priority: PriorityName | None = None
    device: WantedDevice | None = None
    estimate: Duration | None = None
    revocable: bool | None = None


OverlapPolicy = Literal["skip", "queue", "replace"]


class Overlap(Shape):
    """What happens while other plans with a key have not ended."""

    key: Annotated[Name, Meta(description="plans with this key count, of whatever file, such as `ci-{params.ref}`")]
    policy: OverlapPolicy


class Head(Shape):
    """Everything except the tasks."""

    asterism: Annotated[Literal[1], Meta(description="the version of the file format")]
    id: Annotated[Name | None, Meta(description="the name of the plan; default: the name of the file")] = None
    tags: Annotated[
        Annotated[
            list[
                Annotated[
                    str,
                    Meta(min_length=1, max_length=100, pattern=rf"^[^\x00-\x1f\x7f]+{END}"),
                    expected("a text without control characters"),
                ]
            ],
            Meta(max_length=20),
        ]
        | None,
        Meta(description="words by which plans are found in a list"),
    ] = None
    overlap: Annotated[
        Annotated[OverlapPolicy | Overlap, expected("skip, queue or replace, or {key: …, policy: …}")] | None,
        Meta(description="what happens while another plan of this file has not ended; default: both run"),
    ] = None
    parallel: Annotated[
        int, Meta(ge=1, le=MOST_PARALLEL, description="how many plans of this file may run before `overlap` counts")
    ] = 1
    devices: Annotated[
        Annotated[dict[Name, Device], Meta(min_length=1)] | None, Meta(description="default: this machine")
    ] = None
    policy: Annotated[LockPolicy, Meta(description="lock policy: what is held while an editor decides")] | None = None
    params: Annotated[
        dict[
            Name,
            Annotated[
                Parameter | list[AnyConstant] | str | int | float | bool,
                expected("{type: …, default: …}, or a default value"),
            ],
        ]
        | None,
        Meta(description="parameters: {type: …, default: …, description: …, choices: […]}, or only a default"),
    ] = None
    defaults: Annotated[Defaults | None, Meta(description="for all tasks of this file")] = None
    include: Annotated[
        Annotated[Name | list[Name], expected("a file or a list of files")] | None,
        Meta(description="other plan files, relative to this one, whose tasks belong to this plan"),
    ] = None
    tasks: Any = None
    """They are read one by one, so that the mistakes of each are its own."""


class Plan(Head):
    """A plan for Asterism: tasks, their dependencies, and the devices that execute them."""

    tasks: Annotated[dict[Name, Task], Meta(min_length=1, description="required, unless included files have some")] = (
        field(default_factory=dict)
    )


def json_schema() -> JsonObject:
    """The JSON Schema of plan files, generated from the shapes, with the plug-ins that this package has as keys."""
    from asterism.execution.actions import ACTIONS
    from asterism.execution.plugin_actions import action_class

    _, definitions = schemas([Plan], "#/$defs/{name}")
    plan = definitions.pop("Plan")
    keys = definitions["Task"]["properties"]
    keys |= {name: action_class(name).schema() for name in ACTIONS.built_in if name not in CORE_KINDS}
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "$defs": definitions, **plan, "title": "Asterism plan file"}


# -- values as shapes --------------------------------------------------------------------------------------------------

MEANT = {
    "needs": "'after' (the tasks before it), or 'device: {needs: [gpu]}' (what its device can)",
    **dict.fromkeys(("depends_on", "dependencies", "requires"), "'after'"),
    **dict.fromkeys(("run", "script", "command", "cmd"), "'shell'"),
}
"""What the keys of other systems are called here."""

AnyShape = TypeVar("AnyShape", bound=Record)
ROUNDS = 4
"""The levels of the shapes: each round may leave the level above incomplete."""


def validate(
    shape: type[AnyShape], value: Any, blame: Callable[[Place, str], None], least: JsonObject
) -> tuple[AnyShape, set[str]]:
    """The value as a shape, without its faulty parts, and the keys that have some. ``least`` has the keys that the
    shape requires."""
    try:
        return decode(shape, value), set()
    except InvalidRecord:
        found = mistakes(shape, value)
    for mistake in found:
        blame(mistake.place, _sentence(mistake, shape))
    faulty = {str(mistake.place[0]) for mistake in found if mistake.place}
    return _valid_part(shape, value, found, least), faulty


def _sentence(mistake: Mistake, shape: type[Record]) -> str:
    if mistake.text == "the key 'asterism' is missing":
        return f"{mistake.text}; a plan begins with 'asterism: 1'"
    if shape is Task and len(mistake.place) == 1 and mistake.place[0] in MEANT:
        return f"unknown key {mistake.place[0]!r}; did you mean {MEANT[str(mistake.place[0])]}?"
    if shape is Task and mistake.place == ("description",) and "at most" in mistake.text:
        return f"{mistake.text}: shorten it, or keep the text in a file and name the file"
    return mistake.text


def _valid_part(shape: type[AnyShape], value: Any, found: list[Mistake], least: JsonObject) -> AnyShape:
    for _ in range(ROUNDS):
        if not isinstance(value, dict) or not all(mistake.place for mistake in found):
            break
        value = _without(value, (mistake.place for mistake in found)) | least
        found = mistakes(shape, value)
        if not found:  # else a removed part was required: remove what contains it
            return decode(shape, value)
    return decode(shape, least)


def _without(value: JsonObject, places: Iterable[Place]) -> JsonObject:
    """A mapping without the values at these places. A list is removed as a whole, because positions count, and so is a
    mapping that lacks a key."""
    value = dict(value)
    for key, *rest in places:
        inner = value.get(str(key))
        if isinstance(inner, dict) and rest and rest[0] in inner:
            value[str(key)] = _without(inner, [tuple(rest)])
        else:
            value.pop(str(key), None)
    return value
