"""Work: what a run executes, what that requires, and its timeouts and limits; workflows, which are its templates.

A run carries its work, which never changes. A workflow is a named template, which is immutable, too: to add another one
with the same name creates a new version. It is read when a run is created, and never after.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self

from asterism.core.backoff import retry_delay
from asterism.core.errors import FieldProblem, InvalidTask, InvalidWorkflow, safe_repr
from asterism.core.json_values import NOTHING, JsonObject, plain_json
from asterism.core.plan.task import ACTIONS, Task, action_needs, capabilities, import_path, kind_of
from asterism.core.record import Record, defaults_of, replace, set_field

if TYPE_CHECKING:
    Call = Callable[..., Any] | str | None
else:
    Call = Any  # the codec has no type for functions

KEEP_RULES = ("epoch", "original")
"""The rules that decide which of two records wins when the records of two stores are merged: see merge.py."""

STRATEGY_NAMES = ("score", "round_robin", "capability_match", "load_balance")
"""How a device is chosen: see ``STRATEGIES`` in placement.py."""


class Work(Record, kw_only=True, dict=True):
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

    ``outputs`` are files that the work leaves in its working folder, by name, as in a ``Task``. A run that has them,
    even none, has a working folder of its own, with the files of its input."""

    call: Call = None
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
    agent: Mapping[str, Any] | None = None
    uses: Mapping[str, int] = NOTHING
    outputs: Mapping[str, str] | None = None
    plugin: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        problems = [*self._own_problems(), *_problems(self)]
        wants = capabilities(self.wants)
        if wants is None:
            problems.append(FieldProblem("wants", f"wants is a list of strings, not {safe_repr(self.wants)}"))
        else:
            set_field(self, "wants", wants)
        try:  # what a run executes obeys the rules of a task
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
            raise InvalidWorkflow(f"{self._title}: {texts}", problems)

    def _own_problems(self) -> list[FieldProblem]:
        """The problems of the fields that only a subclass has."""
        return []

    @property
    def _title(self) -> str:
        return "the work of a run"

    def delay(self, tries: int) -> float:
        """The delay before the next attempt, after ``tries`` attempts: it doubles."""
        return retry_delay(tries, self.backoff, self.backoff_most) if tries else 0.0

    def task(self, run_id: str, inputs: Mapping[str, Any]) -> Task:
        """The task that a device executes for one run."""
        return Task(run_id, inputs=inputs, **{name: getattr(self, name) for name in (*ACTIONS, "env", "cwd")})

    def to_json(self) -> JsonObject:
        """The fields that differ from their defaults. Raises NotJson for a callable without an import path, and for
        values in ``http`` or ``env`` that are not JSON."""
        out: JsonObject = {}
        for name, default in _DEFAULTS[type(self)].items():
            value = getattr(self, name)
            if value is None or value == default:
                continue
            if name == "call":
                value = import_path(value, getattr(self, "name", "it"))
            elif name in ("needs", "wants"):
                value = sorted(value)
            out[name] = plain_json(value, f"{name} of {self._title}")
        return out

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """What ``to_json`` wrote. ``call`` stays an import path until it is executed. Raises InvalidWorkflow with all
        problems."""
        if not isinstance(data, Mapping):
            raise InvalidWorkflow(f"the work of a run is an object, not {safe_repr(data)}")
        known = {name: data[name] for name in cls.__struct_fields__ if name in data}
        unknown = ", ".join(sorted(str(name) for name in set(data) - set(known)))
        try:
            work = cls(**known)
        except InvalidWorkflow as error:
            if not unknown:
                raise
            raise InvalidWorkflow(f"{error}; no such field: {unknown}", error.problems) from None
        if unknown:
            raise InvalidWorkflow(f"{work._title}: no such field: {unknown}")
        return work

    @cached_property
    def text(self) -> str:
        """Its JSON form as text."""
        return json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False)

    @cached_property
    def digest(self) -> str:
        """The same for equal work."""
        return blake2b(self.text.encode(), digest_size=8).hexdigest()

    @property
    def without_rules(self) -> Work:
        """The work as it is taken from a peer. The peer, which knows our devices, evaluates its rules; this store
        evaluates neither them nor the rules of the peer's devices."""
        if self.requires is None and self.prefers is None:
            return self
        return replace(self, requires=None, prefers=None)


def work_of(text: str) -> Work:
    """The work in a text that ``Work.text`` wrote. Of equal texts that are short it is the same. Raises
    InvalidWorkflow, and ValueError for what is not JSON."""
    return _remembered_work(text) if len(text) <= LONGEST_REMEMBERED else _decoded_work(text)


def _decoded_work(text: str) -> Work:
    try:
        return Work.from_json(json.loads(text))
    except RecursionError:
        raise InvalidWorkflow("the work of a run is nested too deep") from None


_remembered_work = lru_cache(5_000)(_decoded_work)
LONGEST_REMEMBERED = 10_000
"""The longest text, in characters, whose work is remembered: a peer may send long ones."""


class Workflow(Work):
    """A template of work with a name. The store numbers the versions of a name; 0 is one that is not stored."""

    name: str
    version: int = 0

    def _own_problems(self) -> list[FieldProblem]:
        problems = []
        if not isinstance(self.name, str) or not 0 < len(self.name) <= LONGEST_NAME or not self.name.isprintable():
            text = f"the name is a non-empty string of at most {LONGEST_NAME} characters, without control characters"
            problems.append(FieldProblem("name", text))
        return [*problems, *_count_problems(self, "version")]

    @property
    def _title(self) -> str:
        return f"workflow {safe_repr(self.name)}"

    @cached_property
    def work(self) -> Work:
        """The work of its runs. Raises NotJson for a callable without an import path."""
        fields = {name: getattr(self, name) for name in Work.__struct_fields__}
        return Work(**{**fields, "call": None if self.call is None else import_path(self.call, self.name)})

    def to_json(self) -> JsonObject:
        return {"name": self.name, **super().to_json()}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        if not isinstance(data, Mapping) or "name" not in data:
            raise InvalidWorkflow(f"a workflow is an object with a 'name', not {safe_repr(data)}")
        return super().from_json(data)

    def at_version(self, version: int) -> Workflow:
        return replace(self, version=version)


_ACTION = (*ACTIONS, "env", "cwd", "description", "needs", "device", "uses")
_DEFAULTS = {Work: defaults_of(Work), Workflow: defaults_of(Workflow)}
DEFAULTS = _DEFAULTS[Workflow]
"""The optional fields of a workflow with their defaults."""


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
MAX_NUMBER = 1_000_000_000
"""The greatest number in a workflow. In seconds it is thirty years; it fits into every column and every timer."""

LONGEST_NAME = 500
"""The longest name, in characters: an index has a limit."""

SHORTEST_HEARTBEAT = 0.1
"""The shortest heartbeat interval, in seconds: the store receives the heartbeats of all devices."""


def _problems(work: Work) -> list[FieldProblem]:
    """The problems of the fields that a task does not have."""
    problems: list[FieldProblem] = []
    if kind_of(work) is None:
        problems.append(FieldProblem("", f"it executes nothing: give one of {', '.join(ACTIONS)}"))
    for name in SECONDS:
        if not _is_seconds(getattr(work, name)) and not (name == "timeout" and work.timeout is None):
            problems.append(FieldProblem(name, f"{name} is a number of seconds above 0, at most {MAX_NUMBER:,}"))
    for name in ("backoff", "backoff_most"):
        if not _is_seconds(getattr(work, name), or_none=True):
            problems.append(FieldProblem(name, f"{name} is a number of seconds, 0 or more, at most {MAX_NUMBER:,}"))
    problems += _count_problems(work, "retries", "losses", "rounds")
    if type(work.priority) is not int or abs(work.priority) > 1_000_000:
        problems.append(FieldProblem("priority", "priority is a whole number between -1,000,000 and 1,000,000"))
    for name in ("requires", "prefers"):
        text = getattr(work, name)
        if text is not None and (not isinstance(text, str) or not text.strip()):
            problems.append(
                FieldProblem(name, f"{name} is an expression over a device's profile, not {safe_repr(text)}")
            )
    if not isinstance(work.strategy, str) or work.strategy not in STRATEGY_NAMES:
        problems.append(
            FieldProblem("strategy", f"strategy is one of {', '.join(STRATEGY_NAMES)}, not {safe_repr(work.strategy)}")
        )
    if work.keep not in KEEP_RULES:
        problems.append(FieldProblem("keep", f"keep is one of {', '.join(KEEP_RULES)}, not {safe_repr(work.keep)}"))
    for name in ("orchestration", "preemptible"):
        if not isinstance(getattr(work, name), bool):
            problems.append(FieldProblem(name, f"{name} is true or false"))
    if _is_seconds(work.heartbeat) and work.heartbeat < SHORTEST_HEARTBEAT:
        problems.append(FieldProblem("heartbeat", f"heartbeat is at least {SHORTEST_HEARTBEAT:g} s"))
    patience = work.heartbeat_timeout
    if _is_seconds(patience) and _is_seconds(work.heartbeat) and patience < 2 * work.heartbeat:
        limits = f"heartbeat_timeout ({patience:g} s) must be at least twice heartbeat ({work.heartbeat:g} s)"
        problems.append(FieldProblem("heartbeat_timeout", f"{limits}, because one heartbeat may be late"))
    return problems


def _count_problems(work: Work, *names: str) -> list[FieldProblem]:
    problems = []
    for name in names:
        value, least = getattr(work, name), 1 if name == "rounds" else 0
        if type(value) is not int or not least <= value <= MAX_NUMBER:
            problems.append(FieldProblem(name, f"{name} is a whole number, {least} or more, at most {MAX_NUMBER:,}"))
    return problems


def _is_seconds(value: object, or_none: bool = False) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value <= MAX_NUMBER or (or_none and value == 0)
