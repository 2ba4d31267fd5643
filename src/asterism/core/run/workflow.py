"""Workflows: what a run executes, what that requires, and its timeouts and limits.

A workflow is immutable. To add another one with the same name creates a new version. A run keeps the version with which
it was created.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from asterism.core.backoff import retry_delay
from asterism.core.errors import FieldProblem, InvalidTask, InvalidWorkflow, safe_repr
from asterism.core.json_values import NOTHING, JsonObject, plain_json
from asterism.core.plan.task import ACTIONS, Task, action_needs, capabilities, import_path, kind_of
from asterism.core.record import Record, defaults_of, replace, set_field
from asterism.core.run.placement import STRATEGIES
from asterism.core.run.run import KEEP_RULES


class Workflow(Record):
    """One of ``call`` (a function, or ``"package.module:function"``), ``argv``, ``shell``, ``http``, ``agent`` (work
    for an agent) and ``plugin`` (work of a plug-in), as in a ``Task``, is executed. ``{name}`` in a word of ``argv`` or
    in a URL stands for an input of the run.

    ``needs`` lists the capabilities that a device must have, ``wants`` those that raise its score. ``device`` is the
    only device that may execute it. ``requires`` and ``prefers`` are expressions over the profile of a device: it must
    satisfy the first; if any device satisfies the second, only those are considered.

    Times are in seconds. ``heartbeat`` is the heartbeat interval of the owner; without a heartbeat for
    ``heartbeat_timeout`` the run counts as lost. An assignment expires after ``assignment_timeout`` unless it is
    claimed, a claim after ``claim_timeout`` unless the work starts. ``timeout`` bounds one execution.

    ``retries`` is how often failed work is retried, ``losses`` how many vanished devices are allowed, ``rounds`` how
    often all devices are asked: the run fails when all have declined as often. ``preemptible`` allows more urgent work
    to stop an execution. ``keep``, one of KEEP_RULES, decides conflicts between peers for runs that do not say it
    themselves. ``orchestration`` prefers the coordinator. ``uses`` names the limits that each run holds
    while a device owns it, with the amounts; ``{name}`` in the name of a limit stands for an input of the run.

    ``outputs`` are files that the work leaves in its working folder, by name, as in a ``Task``. A run of a workflow
    that has them, even none, has a working folder of its own, with the files of its input."""

    name: str
    call: Callable[..., Any] | str | None = None
    argv: tuple[str, ...] | None = None
    shell: str | None = None
    http: Mapping[str, Any] | None = None
    env: Mapping[str, Any] = NOTHING
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
    keep: str = "epoch"
    heartbeat: float = 30.0
    heartbeat_timeout: float = 90.0
    assignment_timeout: float = 30.0
    claim_timeout: float = 60.0
    no_device_timeout: float = 300.0
    timeout: float | None = None
    retries: int = 0
    losses: int = 5
    rounds: int = 3
    backoff: float = 1.0
    backoff_most: float = 300.0
    version: int = 0
    agent: Mapping[str, Any] | None = None
    uses: Mapping[str, int] = NOTHING
    outputs: Mapping[str, str] | None = None
    plugin: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        problems = _problems(self)
        wants = capabilities(self.wants)
        if wants is None:
            problems.append(FieldProblem("wants", f"wants is a list of strings, not {safe_repr(self.wants)}"))
        else:
            set_field(self, "wants", wants)
        try:  # what a workflow executes obeys the rules of a task
            outputs = NOTHING if self.outputs is None else self.outputs
            action = Task("it", outputs=outputs, **{name: getattr(self, name) for name in _ACTION})
        except InvalidTask as error:
            problems += error.problems
        else:
            for name in _ACTION:
                set_field(self, name, getattr(action, name))
            set_field(self, "needs", self.needs | action_needs(self))
        if problems:
            texts = "; ".join(problem.text for problem in problems)
            raise InvalidWorkflow(f"workflow {safe_repr(self.name)}: {texts}", problems)

    def delay(self, tries: int) -> float:
        """The delay before the next attempt, after ``tries`` attempts: it doubles."""
        return retry_delay(tries, self.backoff, self.backoff_most) if tries else 0.0

    def task(self, run_id: str, inputs: Mapping[str, Any]) -> Task:
        """The task that a device executes for one run."""
        return Task(run_id, inputs=inputs, **{name: getattr(self, name) for name in (*ACTIONS, "env", "cwd")})

    def to_json(self) -> JsonObject:
        """The fields that differ from their defaults. Raises NotJson for a callable without an import path, and for
        values in ``http`` or ``env`` that are not JSON."""
        out: JsonObject = {"name": self.name}
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
        """The workflow that ``to_json`` wrote. ``call`` stays an import path until it is executed. Raises
        InvalidWorkflow with all problems."""
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


_ACTION = (*ACTIONS, "env", "cwd", "description", "needs", "device", "uses")
DEFAULTS = defaults_of(Workflow)
"""The optional fields with their defaults."""


def ambiguous_timeout(fields: Container[str]) -> str | None:
    """What is wrong with fields that a person gives together, and that meant something else once: ``timeout`` was the
    time without a heartbeat. None if they are clear."""
    if "timeout" in fields and "heartbeat" in fields and "heartbeat_timeout" not in fields:
        return (
            "timeout beside heartbeat was the time without a heartbeat after which a run is lost, which is "
            "heartbeat_timeout now; timeout limits one execution. Give heartbeat_timeout, too"
        )
    return None


SECONDS = ("heartbeat", "heartbeat_timeout", "assignment_timeout", "claim_timeout", "no_device_timeout", "timeout")
_COUNTS = ("retries", "losses", "rounds", "version")
MAX_NUMBER = 1_000_000_000
"""The greatest number in a workflow. In seconds it is thirty years; it fits into every column and every timer."""

LONGEST_NAME = 500
"""The longest name, in characters: an index has a limit."""

SHORTEST_HEARTBEAT = 0.1
"""The shortest heartbeat interval, in seconds: the store receives the heartbeats of all devices."""


def _problems(flow: Workflow) -> list[FieldProblem]:
    """The problems of the fields that only a workflow has."""
    problems: list[FieldProblem] = []
    if not isinstance(flow.name, str) or not 0 < len(flow.name) <= LONGEST_NAME or not flow.name.isprintable():
        problem = f"the name is a non-empty string of at most {LONGEST_NAME} characters, without control characters"
        problems.append(FieldProblem("name", problem))
    if kind_of(flow) is None:
        problems.append(FieldProblem("", f"it executes nothing: give one of {', '.join(ACTIONS)}"))
    for name in SECONDS:
        if not _is_seconds(getattr(flow, name)) and not (name == "timeout" and flow.timeout is None):
            problems.append(FieldProblem(name, f"{name} is a number of seconds above 0, at most {MAX_NUMBER:,}"))
    for name in ("backoff", "backoff_most"):
        if not _is_seconds(getattr(flow, name), or_none=True):
            problems.append(FieldProblem(name, f"{name} is a number of seconds, 0 or more, at most {MAX_NUMBER:,}"))
    for name in _COUNTS:
        value = getattr(flow, name)
        least = 1 if name == "rounds" else 0
        if type(value) is not int or not least <= value <= MAX_NUMBER:
            problems.append(FieldProblem(name, f"{name} is a whole number, {least} or more, at most {MAX_NUMBER:,}"))
    if type(flow.priority) is not int or abs(flow.priority) > 1_000_000:
        problems.append(FieldProblem("priority", "priority is a whole number between -1,000,000 and 1,000,000"))
    for name in ("requires", "prefers"):
        text = getattr(flow, name)
        if text is not None and (not isinstance(text, str) or not text.strip()):
            problems.append(
                FieldProblem(name, f"{name} is an expression over a device's profile, not {safe_repr(text)}")
            )
    if not isinstance(flow.strategy, str) or flow.strategy not in STRATEGIES:
        problems.append(
            FieldProblem("strategy", f"strategy is one of {', '.join(STRATEGIES)}, not {safe_repr(flow.strategy)}")
        )
    if flow.keep not in KEEP_RULES:
        problems.append(FieldProblem("keep", f"keep is one of {', '.join(KEEP_RULES)}, not {safe_repr(flow.keep)}"))
    for name in ("orchestration", "preemptible"):
        if not isinstance(getattr(flow, name), bool):
            problems.append(FieldProblem(name, f"{name} is true or false"))
    if _is_seconds(flow.heartbeat) and flow.heartbeat < SHORTEST_HEARTBEAT:
        problems.append(FieldProblem("heartbeat", f"heartbeat is at least {SHORTEST_HEARTBEAT:g} s"))
    patience = flow.heartbeat_timeout
    if _is_seconds(patience) and _is_seconds(flow.heartbeat) and patience < 2 * flow.heartbeat:
        limits = f"heartbeat_timeout ({patience:g} s) must be at least twice heartbeat ({flow.heartbeat:g} s)"
        problems.append(FieldProblem("heartbeat_timeout", f"{limits}, because one heartbeat may be late"))
    return problems


def _is_seconds(value: object, or_none: bool = False) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value <= MAX_NUMBER or (or_none and value == 0)
