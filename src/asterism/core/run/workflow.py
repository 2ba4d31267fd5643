"""A workflow: what a run executes, what it needs, and how long each step of its assignment may take.

A workflow is immutable. Adding another one under the same name makes a new version, and a run keeps to the version it
was created with, so that nobody changes what is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from asterism.core.errors import InvalidTask, InvalidWorkflow, safe_repr
from asterism.core.json_values import plain_json
from asterism.core.plan.task import ACTIONS, NOTHING, Task, capabilities, import_path
from asterism.core.run.placement import STRATEGIES


@dataclass(frozen=True)
class Workflow:
    """One of ``call`` (a function, or ``"package.module:function"``), ``argv``, ``shell`` and ``http`` says what is
    executed; ``{name}`` in a word of ``argv`` or in a URL stands for an input of the run.

    ``needs`` lists the capabilities that a device must have, ``wants`` those that raise its score. ``device`` fixes one
    device, ``requires`` and ``prefers`` are expressions over a device's profile: it must satisfy the first, and if any
    satisfies the second only those are considered.

    Times are in seconds. ``heartbeat`` is how often the owner renews, ``timeout`` when an owner that did not is taken
    for lost; an assignment lasts ``assignment_timeout`` unless it is claimed, a claim ``claim_timeout`` unless work
    begins. ``limit`` bounds one execution.

    ``retries`` is how often failed work is tried again, ``losses`` how often a vanished device is forgiven, and
    ``rounds`` how often all devices may decline. ``preemptible`` allows more urgent work to stop an execution.
    ``orchestration`` prefers the coordinator."""

    name: str
    call: Callable[..., Any] | str | None = None
    argv: tuple[str, ...] | None = None
    shell: str | None = None
    http: Mapping[str, Any] | None = None
    env: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    cwd: str | None = None
    description: str = ""
    needs: frozenset[str] = frozenset()
    wants: frozenset[str] = frozenset()
    device: str | None = None
    requires: str | None = None
    prefers: str | None = None
    strategy: str = "score"
    orchestration: bool = False
    priority: int = 0
    preemptible: bool = False
    heartbeat: float = 30.0
    timeout: float = 90.0
    assignment_timeout: float = 30.0
    claim_timeout: float = 60.0
    no_device_timeout: float = 300.0
    limit: float | None = None
    retries: int = 0
    losses: int = 5
    rounds: int = 3
    backoff: float = 1.0
    backoff_most: float = 300.0
    version: int = 0

    def __post_init__(self) -> None:
        problems = _problems(self)
        wants = capabilities(self.wants)
        if wants is None:
            problems.append(f"wants is a list of strings, not {safe_repr(self.wants)}")
        else:
            object.__setattr__(self, "wants", wants)
        try:  # a workflow acts as a task does, so the same rules hold for what it executes
            action = Task("it", **{name: getattr(self, name) for name in _ACTION})
        except InvalidTask as error:
            problems.append(str(error).removeprefix("task 'it': "))
        else:
            for name in _ACTION:
                object.__setattr__(self, name, getattr(action, name))
        if problems:
            raise InvalidWorkflow(f"workflow {safe_repr(self.name)}: {'; '.join(problems)}", problems)

    def delay(self, tries: int) -> float:
        """How long to wait before the next try, after ``tries`` of them: it doubles."""
        return min(self.backoff * 2.0 ** min(tries - 1, 62), self.backoff_most) if tries else 0.0

    def task(self, run_id: str, given: Mapping[str, Any]) -> Task:
        """What a device executes for one run."""
        return Task(
            run_id,
            call=self.call,
            argv=self.argv,
            shell=self.shell,
            http=self.http,
            inputs=given,
            env=self.env,
            cwd=self.cwd,
        )

    def to_json(self) -> dict[str, Any]:
        """Only what differs from the defaults. Raises NotJson for a callable that has no import path, and for anything
        in ``http`` or ``env`` that is not JSON."""
        out: dict[str, Any] = {"name": self.name}
        for name, default in DEFAULTS.items():
            value = getattr(self, name)
            if value is None or value == default:
                continue
            if name == "call":
                value = import_path(value, self.name)
            elif name in ("needs", "wants"):
                value = sorted(value)
            out[name] = plain_json(value, f"{name} of workflow {self.name!r}")
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workflow:
        """The workflow that ``to_json`` wrote; ``call`` stays a path until it is executed. Raises InvalidWorkflow with
        everything that is wrong."""
        if not isinstance(data, Mapping) or "name" not in data:
            raise InvalidWorkflow(f"a workflow is an object with a 'name', not {safe_repr(data)}")
        known = {name: data[name] for name in ("name", *DEFAULTS) if name in data}
        unknown = ", ".join(sorted(str(name) for name in set(data) - set(known)))
        try:
            flow = cls(**known)
        except InvalidWorkflow as error:
            if not unknown:
                raise
            raise InvalidWorkflow(f"{error}; no such field: {unknown}", error.problems) from None
        if unknown:
            raise InvalidWorkflow(f"workflow {safe_repr(flow.name)}: no such field: {unknown}")
        return flow

    def at_version(self, version: int) -> Workflow:
        return replace(self, version=version)


_ACTION = ("call", "argv", "shell", "http", "env", "cwd", "description", "needs", "device")
DEFAULTS = {f.name: f.default if f.name != "env" else NOTHING for f in fields(Workflow) if f.name != "name"}
"""The optional fields with their defaults."""


_SECONDS = ("heartbeat", "timeout", "assignment_timeout", "claim_timeout", "no_device_timeout", "limit")
_COUNTS = ("retries", "losses", "rounds", "version")
MAX_NUMBER = 1_000_000_000
"""No number of a workflow is greater: in seconds it is thirty years, and it fits into every column and every timer."""

LONGEST_NAME = 500
"""In characters. Names are found by an index, and no index takes names of any length."""

SHORTEST_HEARTBEAT = 0.1
"""In seconds. A device keeps up the pace of the most demanding work it meets, and the store has to hear all of it."""


def _problems(flow: Workflow) -> list[str]:
    """Everything that is wrong with what is particular to a workflow."""
    problems = []
    if not isinstance(flow.name, str) or not 0 < len(flow.name) <= LONGEST_NAME or not flow.name.isprintable():
        problems.append(
            f"the name is a text without control characters, and not empty, of {LONGEST_NAME} characters at most"
        )
    if all(getattr(flow, name) is None for name in ACTIONS):
        problems.append(f"it executes nothing: give one of {', '.join(ACTIONS)}")
    for name in _SECONDS:
        if not _is_seconds(getattr(flow, name)) and not (name == "limit" and flow.limit is None):
            problems.append(f"{name} is a number of seconds above 0, {MAX_NUMBER:,} at most")
    for name in ("backoff", "backoff_most"):
        if not _is_seconds(getattr(flow, name), or_none=True):
            problems.append(f"{name} is a number of seconds, 0 or more, {MAX_NUMBER:,} at most")
    for name in _COUNTS:
        value = getattr(flow, name)
        if type(value) is not int or not 0 <= value <= MAX_NUMBER:
            problems.append(f"{name} is a whole number, 0 or more, {MAX_NUMBER:,} at most")
    if type(flow.priority) is not int or abs(flow.priority) > 1_000_000:
        problems.append("priority is a whole number between -1,000,000 and 1,000,000")
    for name in ("requires", "prefers"):
        text = getattr(flow, name)
        if text is not None and (not isinstance(text, str) or not text.strip()):
            problems.append(f"{name} is an expression over a device's profile, not {safe_repr(text)}")
    if not isinstance(flow.strategy, str) or flow.strategy not in STRATEGIES:
        problems.append(f"strategy is one of {', '.join(STRATEGIES)}, not {safe_repr(flow.strategy)}")
    for name in ("orchestration", "preemptible"):
        if not isinstance(getattr(flow, name), bool):
            problems.append(f"{name} is true or false")
    if _is_seconds(flow.heartbeat) and flow.heartbeat < SHORTEST_HEARTBEAT:
        problems.append(f"heartbeat is {SHORTEST_HEARTBEAT:g} s at least, or devices would do nothing else")
    if _is_seconds(flow.timeout) and _is_seconds(flow.heartbeat) and flow.timeout < 2 * flow.heartbeat:
        problems.append(
            f"timeout ({flow.timeout:g} s) must be at least twice heartbeat ({flow.heartbeat:g} s), "
            "or one late heartbeat would cost a device its work"
        )
    return problems


def _is_seconds(value: object, or_none: bool = False) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value <= MAX_NUMBER or (or_none and value == 0)
