"""The shape of plan files as pydantic models, the source of the published JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from asterism.base.durations import DURATION_PATTERN, parse_duration
from asterism.core.json_values import JsonObject
from asterism.core.plan.assignment_lock import LockPolicy
from asterism.core.plan.group_elements import DEFAULT_ELEMENTS
from asterism.core.plan.task import ACTIONS as CORE_KINDS
from asterism.core.plan.task import LONGEST_DESCRIPTION
from asterism.core.schedule.schedule import MOST_PARALLEL
from asterism.execution.foreach_expansion import MAX_ELEMENTS

UNTAGGED = "\0"
"""Marks the names of alternatives in the paths of errors; no key of a file begins with it."""


class Shape(BaseModel):
    """Base of the models. A missing key is None, or the default of the core. The validator of a model is built when it
    is first used: a check needs two of them."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


def _duration_schema(minimum: str) -> WithJsonSchema:
    return WithJsonSchema(
        {"anyOf": [{"type": "number", minimum: 0}, {"type": "string", "pattern": f"^{DURATION_PATTERN}$"}]}
    )


_seconds = BeforeValidator(partial(parse_duration, unit_required=True))

Name = Annotated[str, Field(min_length=1)]
Duration = Annotated[float, _seconds, Field(gt=0), _duration_schema("exclusiveMinimum")]
Pause = Annotated[float, _seconds, Field(ge=0), _duration_schema("minimum")]


def _kind(value: Any) -> str | None:
    """The alternative that a value stands for. Only its type decides, so that there is one clear error."""
    if isinstance(value, str):
        return f"{UNTAGGED}text"
    if isinstance(value, list):
        return f"{UNTAGGED}list"
    if isinstance(value, dict):
        return f"{UNTAGGED}mapping"
    if isinstance(value, bool | int | float):
        return f"{UNTAGGED}scalar"
    return None


_text, _list, _mapping, _scalar = (Tag(f"{UNTAGGED}{kind}") for kind in ("text", "list", "mapping", "scalar"))


def _one_of(expected: str) -> Discriminator:
    return Discriminator(_kind, custom_error_type="alternatives", custom_error_message=expected)


class Device(Shape):
    """A local device: its slots and its capabilities."""

    slots: Annotated[int | None, Field(ge=1, description="how many tasks at once; default: one per processor")] = None
    can: Annotated[list[Name] | None, Field(description="capabilities that tasks may need")] = None


class Terms(Shape):
    """The condition of a dependency."""

    on: Annotated[
        Literal["success", "failure", "completion", "always"], Field(description="how the other task must end")
    ] = "success"
    when: Annotated[Name | None, Field(description="a condition in CEL over `result` and `status`")] = None
    handled: Annotated[bool, Field(description="with `on: failure`: this task handles the failure of the other")] = (
        False
    )


class Wanted(Shape):
    """What a task needs of its device."""

    id: Annotated[Name | None, Field(description="only this device")] = None
    needs: Annotated[list[Name] | None, Field(description="capabilities that the device must have")] = None


ANY_DEVICE = Wanted.model_construct()

WantedDevice = Annotated[
    Annotated[Name, _text] | Annotated[Wanted, _mapping],
    _one_of("must be the id of a device, or {id: …, needs: […]}"),
]


class Secret(Shape):
    """A secret from the environment, which is never written down."""

    secret: Name


class From(Shape):
    """The result of a task in ``after``, or a part of it."""

    source: Annotated[Name, Field(alias="from")]
    select: Annotated[Name | None, Field(description="a CEL expression over `result`")] = None
    failed: Annotated[
        Literal["skip", "null", "fail"] | None,
        Field(description="in `inputs`: what elements of a group that failed are in its result"),
    ] = None


def _reference_kind(value: Any) -> str | None:
    if isinstance(value, dict):
        return f"{UNTAGGED}secret" if "secret" in value else f"{UNTAGGED}from"
    return None if isinstance(value, list) or value is None else f"{UNTAGGED}scalar"


Value = Annotated[
    Annotated[Secret, Tag(f"{UNTAGGED}secret")]
    | Annotated[From, Tag(f"{UNTAGGED}from")]
    | Annotated[str | int | float | bool, _scalar],
    Discriminator(
        _reference_kind,
        custom_error_type="alternatives",
        custom_error_message="must be text, a number, true or false, {secret: NAME} or {from: task, select: …}",
    ),
]
"""A constant that becomes text, or a reference."""

AnyValue = Annotated[
    Any, WithJsonSchema({"description": "any value, {from: task, select: …, failed: …} or {secret: NAME}, also nested"})
]


AnyConstant = Annotated[Any, WithJsonSchema({"description": "any value"})]


class Request(Shape):
    """An HTTP request. ``{name}`` in the URL stands for an input."""

    method: Annotated[str, Field(pattern="^[A-Z]+$")] = "GET"
    url: Name
    headers: dict[Name, Value] | None = None
    params: dict[Name, Value] | None = None
    content: Annotated[AnyValue, Field(alias="json", description="the body, sent as JSON")] = None
    body: Annotated[str | None, Field(description="the body, sent as text")] = None
    expect: Annotated[
        list[Annotated[int, Field(ge=100, le=599)]] | None,
        Field(description="the statuses that count as success; default: any 2xx"),
    ] = None


After = Annotated[
    Annotated[Name, _text]
    | Annotated[list[Name], _list]
    | Annotated[
        dict[
            Name,
            Annotated[
                Annotated[Literal["success", "failure", "completion", "always"], _text] | Annotated[Terms, _mapping],
                _one_of("must be success, failure, completion, always or {on: …, when: …}"),
            ],
        ],
        _mapping,
    ],
    _one_of(
        "must be an id, a list of ids, or a mapping of ids to success, failure, completion, always or {on: …, when: …}"
    ),
]


class AgentWork(Shape):
    """Work for an agent."""

    description: Annotated[Name, Field(description="what to do")]
    tips: Annotated[list[Name] | None, Field(description="advice on how to do it")] = None
    result: Annotated[dict[str, AnyConstant] | None, Field(description="the JSON Schema of the result")] = None


class Unchanged(Shape):
    """The files of a task, which is skipped if their content has not changed since its last execution."""

    inputs: Annotated[list[Name] | None, Field(description="files that it reads; `*`, `?`, `**` as in a shell")] = None
    outputs: Annotated[
        list[Name] | None, Field(min_length=1, description="files that it writes; none if it has a working folder")
    ] = None
    shared: Annotated[Name | None, Field(description="plans that give the same name may use each other's records")] = (
        None
    )

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class Over(Shape):
    """Where the elements come from, one of: the result of a task, which must be a list; the files that match a pattern;
    the lines of a file; the numbers of a range."""

    source: Annotated[Name | None, Field(alias="from")] = None
    files: Annotated[Name | None, Field(description="a pattern, such as `in/*.mp4`; `**` is any folders")] = None
    lines: Annotated[Name | None, Field(description="a text file; each line that is not empty is an element")] = None
    range: Annotated[list[int] | None, Field(description="the first and the last number, and the step")] = None
    select: Annotated[Name | None, Field(description="a CEL expression over `result` that selects the list")] = None
    max: Annotated[int, Field(ge=1, le=MAX_ELEMENTS, description="how many elements it may have")] = DEFAULT_ELEMENTS


Foreach = Annotated[
    Annotated[Name, _text] | Annotated[list[AnyConstant], _list] | Annotated[Over, _mapping],
    _one_of('must be a list, "{params.NAME}", {from: task, select: …}, {files: …}, {lines: …} or {range: [1, 9]}'),
]

Axis = Annotated[
    Annotated[Name, _text] | Annotated[list[AnyConstant], _list],
    _one_of('must be a list or "{params.NAME}"'),
]


class WaitFor(Shape):
    """What a task waits for, one of: an event, a time, or a task of another plan. It uses no slot."""

    event: Annotated[Name | None, Field(description="the name of an event; its data are the result")] = None
    until: Annotated[Name | None, Field(description="a time, in the time zone of the tick, else in UTC")] = None
    plan: Annotated[Name | None, Field(description="the name of a stored plan, or with `tick` of a schedule")] = None
    task: Annotated[Name | None, Field(description="the task of that plan; its result is the result")] = None
    tick: Annotated[Name | None, Field(description="`same`, or a time such as `{tick.previous}`")] = None
    timeout: Annotated[Duration | None, Field(description="the task fails after so long; default: never")] = None


class Approval(Shape):
    """A person decides whether the task starts."""

    by: (
        Annotated[
            Annotated[Name, _text] | Annotated[list[Name], _list],
            _one_of("must be a name or a list of names"),
            Field(description="the people or groups who may decide, or patterns of them; default: everybody"),
        ]
        | None
    ) = None
    timeout: Annotated[Duration | None, Field(description="it is not approved after so long; default: 1d")] = None
    otherwise: Annotated[
        Literal["fail", "skip"] | None,
        Field(alias="else", description="what a task does that is not approved; default: fail"),
    ] = None


Part = str | int
"""A part of a path: a key or an index."""


class Task(Shape):
    """A task: one of argv, shell, call, http, agent and the name of a plug-in, and its conditions."""

    argv: Annotated[list[str] | None, Field(min_length=1, description="a command; `{name}` stands for an input")] = None
    shell: Annotated[Name | None, Field(description="a line for /bin/sh; inputs are environment variables")] = None
    call: Annotated[
        str | None, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$", description="package.module:function")
    ] = None
    http: Request | None = None
    agent: (
        Annotated[
            Annotated[Name, _text] | Annotated[AgentWork, _mapping],
            _one_of("must be a description, or {description: …, tips: […], result: {…}}"),
            Field(description="work for an agent, on a device that has one"),
        ]
        | None
    ) = None
    plugin: Annotated[
        dict[Name, dict[Name, AnyConstant]] | None,
        Field(min_length=1, max_length=1, description="work of a plug-in, by its name: `{container: {image: …}}`"),
    ] = None
    inputs: dict[Name, AnyValue] | None = None
    env: dict[Name, Value] | None = None
    cwd: Annotated[Name | None, Field(description="the working directory of a command")] = None
    outputs: Annotated[
        dict[Name, Name] | None,
        Field(min_length=1, description="files that it leaves in its working folder, by name; `*`, `?`, `**`"),
    ] = None
    uses: Annotated[
        dict[Name, Annotated[int, Field(ge=1)]] | None,
        Field(description="the limits that it holds while it runs, with the amounts, such as `{warehouse: 1}`"),
    ] = None
    after: After | None = None
    handles: (
        Annotated[
            Annotated[Name, _text] | Annotated[list[Name], _list],
            _one_of("must be the id of a task, or a list of ids"),
            Field(description="run if this task fails; when that completes, the failure is repaired"),
        ]
        | None
    ) = None
    teardown: Annotated[
        Name | None,
        Field(description="tear this task down: run once it has started and everything between is over, in any case"),
    ] = None
    join: Annotated[
        Literal["all", "any"],
        Field(description="start when all dependencies hold, or when one holds and the others are decided"),
    ] = "all"
    retries: Annotated[int, Field(ge=0)] = 0
    backoff: Annotated[Pause, Field(description="delay before the first retry; it doubles each time")] = 0.5
    timeout: Annotated[Duration | None, Field(description="time limit of each attempt")] = None
    heartbeat_timeout: Annotated[
        Duration | None, Field(description="executed elsewhere after so long without a heartbeat of its device")
    ] = None
    priority: Literal["low", "normal", "high", "critical"] = "normal"
    device: WantedDevice | None = None
    estimate: Annotated[Duration | None, Field(description="expected duration, for the critical path")] = None
    revocable: Annotated[bool, Field(description="may start before the tasks above are reviewed")] = False
    untrusted: Annotated[
        bool, Field(description="its result may contain instructions of strangers: limits what an editor may do")
    ] = False
    cost: Annotated[float | None, Field(ge=0, description="what it costs, for rules about approvals")] = None
    effects: Annotated[
        list[Literal["spends", "deletes"]] | None, Field(description="what it does, for rules about approvals")
    ] = None
    description: Annotated[str, Field(max_length=LONGEST_DESCRIPTION)] = ""
    foreach: Annotated[Foreach | None, Field(description="one task for each element; `{item}` stands for it")] = None
    matrix: Annotated[
        dict[Name, Axis] | None, Field(min_length=1, description="one task for each combination; `{matrix.NAME}`")
    ] = None

    wait_for: Annotated[
        WaitFor | None, Field(description="wait for an event, a time or a task of another plan, and execute nothing")
    ] = None
    approval: Annotated[Approval | None, Field(description="wait for a person before it starts")] = None
    skip_if_unchanged: Annotated[
        Unchanged | None, Field(description="skip it if these files are as after its last execution")
    ] = None

    @property
    def wanted(self) -> Wanted:
        """``device`` as a model."""
        if isinstance(self.device, str):
            return Wanted(id=self.device)
        return self.device or ANY_DEVICE

    def dependencies(self) -> Iterator[tuple[str, str, str | None, tuple[Part, ...]]]:
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


def _parameter_kind(value: Any) -> str | None:
    kind = _kind(value)
    return kind if kind in (f"{UNTAGGED}mapping", f"{UNTAGGED}list", None) else f"{UNTAGGED}scalar"


class Parameter(Shape):
    """A parameter of the plan. Without a default, a value must be given."""

    type: Annotated[
        Literal["text", "integer", "number", "boolean", "list", "mapping"] | None,
        Field(description="default: the type of the default, or text"),
    ] = None
    default: Annotated[AnyConstant, Field(description="the value if none is given")] = None
    description: str = ""
    choices: Annotated[list[AnyConstant] | None, Field(min_length=1, description="the values that are allowed")] = None


class Defaults(Shape):
    """What the tasks of this file have unless they say otherwise. ``env`` is merged variable by variable."""

    env: dict[Name, Value] | None = None
    cwd: Name | None = None
    retries: Annotated[int | None, Field(ge=0)] = None
    backoff: Pause | None = None
    timeout: Duration | None = None
    heartbeat_timeout: Duration | None = None
    priority: Literal["low", "normal", "high", "critical"] | None = None
    device: WantedDevice | None = None
    estimate: Duration | None = None
    revocable: bool | None = None


OverlapPolicy = Literal["skip", "queue", "replace"]


class Overlap(Shape):
    """What happens while other plans with a key have not ended."""

    key: Annotated[Name, Field(description="plans with this key count, of whatever file, such as `ci-{params.ref}`")]
    policy: OverlapPolicy


class Head(Shape):
    """Everything except the tasks."""

    asterism: Annotated[Literal[1], Field(description="the version of the file format")]
    id: Annotated[Name | None, Field(description="the name of the plan; default: the name of the file")] = None
    tags: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]] | None,
        Field(max_length=20, description="words by which plans are found in a list"),
    ] = None
    overlap: Annotated[
        Annotated[
            Annotated[OverlapPolicy, _text] | Annotated[Overlap, _mapping],
            _one_of("must be skip, queue or replace, or {key: …, policy: …}"),
        ]
        | None,
        Field(description="what happens while another plan of this file has not ended; default: both run"),
    ] = None
    parallel: Annotated[
        int, Field(ge=1, le=MOST_PARALLEL, description="how many plans of this file may run before `overlap` counts")
    ] = 1
    devices: Annotated[dict[Name, Device] | None, Field(min_length=1, description="default: this machine")] = None
    policy: Annotated[
        LockPolicy | None,
        Field(description="lock policy: what is held while an editor decides"),
    ] = None
    params: Annotated[
        dict[
            Name,
            Annotated[
                Annotated[Parameter, _mapping]
                | Annotated[list[AnyConstant], _list]
                | Annotated[str | int | float | bool, _scalar],
                Discriminator(
                    _parameter_kind,
                    custom_error_type="alternatives",
                    custom_error_message="must be {type: …, default: …}, or a default value",
                ),
            ],
        ]
        | None,
        Field(description="parameters: {type: …, default: …, description: …, choices: […]}, or only a default"),
    ] = None
    defaults: Annotated[Defaults | None, Field(description="for all tasks of this file")] = None
    include: Annotated[
        Annotated[Annotated[Name, _text] | Annotated[list[Name], _list], _one_of("must be a file or a list of files")]
        | None,
        Field(description="other plan files, relative to this one, whose tasks belong to this plan"),
    ] = None


class Plan(Head):
    """A plan for Asterism: tasks, their dependencies, and the devices that execute them."""

    model_config = ConfigDict(defer_build=True)  # only the schema needs it: files are validated task by task

    tasks: Annotated[
        dict[Name, Task], Field(min_length=1, description="required, unless included files have some")
    ] = {}


class _Untitled(GenerateJsonSchema):
    """Generates the schema without titles, which only repeat the names of keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> JsonObject:
    """The JSON Schema of plan files, generated from the models, with the plug-ins that this package has as keys."""
    from asterism.execution.actions import ACTIONS
    from asterism.execution.plugin_actions import action_class

    schema = Plan.model_json_schema(by_alias=True, schema_generator=_Untitled)
    keys = schema["$defs"]["Task"]["properties"]
    keys |= {name: action_class(name).schema() for name in ACTIONS.built_in if name not in CORE_KINDS}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Asterism plan file"}
