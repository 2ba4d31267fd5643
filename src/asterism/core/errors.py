"""Every error that Asterism raises on purpose, and how errors become text.

An error with a file name in this list is defined there::

    AsterismError
    ├── PlanError                 the plan is not valid
    │   ├── UnknownTask           no task has this id
    │   ├── DuplicateTask         a task with this id exists
    │   ├── CycleFound            a dependency would close a cycle; carries the path
    │   └── InvalidTask           a task or dependency contradicts itself
    ├── InvalidWorkflow           a workflow contradicts itself
    ├── RunRefused                the state of a run does not allow a step; carries its story
    │   └── Fenced                the caller does not own the run, or no longer
    ├── PlanFailed                a plan, or a task whose result is wanted, did not complete
    ├── EditRejected              an edit batch was not applied; carries every violation
    ├── InvalidTransition         the state of a task does not allow a step; carries its story
    ├── RecordedError             an error that was read back from a record
    ├── NotJson                   a value that must be stored or sent is not JSON
    ├── TooLarge                  a value exceeds its limit: it is refused, never cut
    ├── DeviceUnavailable         a device left before the work began: the task is assigned again
    ├── DeviceLost                a device vanished during the work
    ├── DeviceTrouble             a device could not do its own part: no descriptors, disk full, …
    │   └── LeaseExpired          (execution/processes.py) the lease of a command ran out while its device was frozen
    ├── NoDevice                  no suitable device became available in time
    ├── AlreadyRunning            another orchestrator runs the plan
    ├── PlanOverlaps              other plans of the file have not ended, and it says that no further one starts
    ├── CycleGone                 (core/plan/assignment_lock.py) the cycle is not open
    ├── CycleClaimed              (core/plan/assignment_lock.py) another editor has claimed the cycle
    ├── UnreadableJournal         (core/plan/journal.py) the steps of a plan cannot be replayed
    ├── NotTheSameRun             (core/run/merge.py) two records with one id differ in fields that never change
    ├── InvalidTick               (core/schedule/tick_values.py) a text is not a day or a time
    ├── UnknownPlaceholder        (execution/placeholders.py) a placeholder names nothing, or what cannot stand there
    ├── NotExpandable             (execution/foreach_expansion.py) the list of a group is not a list, or too long
    ├── ElementsFailed            (orchestrator/execution.py) some tasks of a group failed
    ├── MissingInput              (execution/task_inputs.py) an input has no value
    ├── CommandFailed             (execution/processes.py) a command exited with another code than 0
    ├── RequestFailed             (execution/http_requests.py) the answer has an unexpected status
    ├── PolicyForbids             (fleet/policy/device_policy.py) the device policy does not allow it
    ├── InvalidDevicePolicy       (fleet/policy/policy_file.py) a device policy file is not valid; carries every mistake
    ├── LimitReached              (fleet/device/executor.py) an execution took longer than its workflow allows
    └── RunStopped                (fleet/device/functions.py) tells a function that its run was taken away
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from asterism.core.history import Entry, PlanEntry

SHOWN_REASONS = 5
"""How many tasks the message of PlanFailed names."""


class AsterismError(Exception):
    """The base class of all errors of Asterism."""


class PlanError(AsterismError):
    """The plan is not valid; the message says where, and what to do."""


class UnknownTask(PlanError, KeyError):
    """No task of the plan has this id. ``hint`` may suggest another one: ``; did you mean 'load'?``."""

    def __init__(self, task_id: str, hint: str = "") -> None:
        self.task_id = task_id
        super().__init__(f"there is no task {task_id!r} in the plan{hint}")

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0])


class DuplicateTask(PlanError):
    """A task with this id exists."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(f"task {task_id!r} already exists; choose another id, or update it")


class CycleFound(PlanError):
    """A dependency would close a cycle. ``path`` is that cycle."""

    def __init__(self, path: Sequence[str]) -> None:
        self.path = tuple(path)
        super().__init__(f"this dependency would close a cycle: {' -> '.join(path)}")


class FieldProblem(NamedTuple):
    """A problem of one field, as a sentence. ``field`` is empty if it is about several fields."""

    field: str
    text: str


class InvalidTask(PlanError, ValueError):
    """A task or dependency contradicts itself. ``problems`` has each problem of the fields, if they are the reason."""

    def __init__(self, message: str, problems: Sequence[FieldProblem] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message)


class PlanFailed(AsterismError):
    """A plan, or a task whose result is wanted, did not complete. ``reasons`` says of each task how it ended, by id;
    its first error is the cause of this one."""

    def __init__(self, what: str, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        shown = [f"{task!r} {reason}" for task, reason in list(self.reasons.items())[:SHOWN_REASONS]]
        more = len(self.reasons) - len(shown)
        super().__init__("; ".join([what, *shown, *([f"and {more} more"] if more else [])]))


@dataclass(frozen=True, slots=True)
class Violation:
    """One reason why a batch was not applied.

    ``edit`` is the index of the edit in its batch (None: the batch as a whole). ``rule`` is a fixed word
    (``unknown_task``, ``cycle``, ``immutable``, ``stale``, …). ``message`` is a sentence that a person or a language
    model can act on.
    """

    edit: int | None
    rule: str
    message: str

    def __str__(self) -> str:
        where = "batch" if self.edit is None else f"edit {self.edit}"
        return f"{where}: {self.message} [{self.rule}]"


class InvalidWorkflow(AsterismError, ValueError):
    """A workflow contradicts itself. ``problems`` has each problem of the fields, if they are the reason."""

    def __init__(self, message: str, problems: Sequence[FieldProblem] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message)


class RunRefused(AsterismError):
    """The state of a run does not allow a step. ``story`` is the story of the run."""

    def __init__(self, run_id: str, why: str, story: Sequence[Entry] = ()) -> None:
        self.run_id, self.why, self.story = run_id, why, tuple(story)
        lines = "".join(f"\n  {entry}" for entry in self.story)
        super().__init__(f"run {run_id}: {why}" + (f". Its story:{lines}" if lines else ""))


class Fenced(RunRefused):
    """The caller does not own the run, or no longer. Nothing was changed."""


class EditRejected(AsterismError):
    """A batch was not applied, and nothing of it. ``violations`` lists every reason."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        count = len(self.violations)
        lines = "\n".join(f"  - {violation}" for violation in self.violations)
        super().__init__(f"the edit was rejected for {count} reason{'s' if count != 1 else ''}:\n{lines}")


class InvalidTransition(AsterismError):
    """The state of a task does not allow a step. ``story`` is the story of the task."""

    def __init__(self, task_id: str, status: str, event: str, story: Sequence[PlanEntry]) -> None:
        self.task_id, self.status, self.event, self.story = task_id, status, event, tuple(story)
        lines = "".join(f"\n  {entry}" for entry in self.story) or " (nothing)"
        super().__init__(f"task {task_id!r} is {status}: it cannot {event}. Its story:{lines}")


class RecordedError(AsterismError):
    """An error that was read back from a record: the name of its type, and its message."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind, self.message = kind, message
        super().__init__(message)

    @classmethod
    def of(cls, error: BaseException) -> RecordedError:
        if isinstance(error, RecordedError):
            return error
        try:
            message = str(error)
        except Exception:  # an error that cannot be printed must not stop its recording
            message = "(its message cannot be shown)"
        return cls(type(error).__name__, message)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


SENTENCE_ERRORS = frozenset(
    {
        *("CommandFailed", "RequestFailed", "LimitReached", "MissingInput", "NotJson", "TooLarge"),
        *("NoDevice", "DeviceLost", "NotExpandable", "ElementsFailed", "WaitFailed"),
    }
)
"""Errors of work whose message is a sentence of ours: people see it without the name of the type."""


def safe_repr(value: object) -> str:
    """The repr of a value, cut at 200 characters, for a message. Works for values whose repr raises."""
    try:
        return repr(value)[:200]
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


DESCRIBED_LENGTH = 60
"""The longest text that ``describe_value`` returns."""


def describe_value(value: object) -> str:
    """A value of a file in a few words, for a message about it. A large list or mapping is not written out."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= DESCRIBED_LENGTH else f"{text[: DESCRIBED_LENGTH - 1]}…"


def suggestion(word: str, known: Sequence[str]) -> str:
    """``; did you mean 'retries'?``, or an empty text."""
    from difflib import get_close_matches

    near = get_close_matches(word, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


MAX_TEXT = 10_000
"""The longest text that a record keeps of an error or a reason, in characters."""


def truncate(text: str, most: int = MAX_TEXT) -> str:
    """A text as a record keeps it, or as people see it: all of it, or its beginning and its end. Errors of work and
    lines of output may have any length, and a record contains an error several times."""
    if len(text) <= most:
        return text
    part = most // 2 - 50
    return f"{text[:part]} … ({len(text) - 2 * part:,} characters are left out) … {text[-part:]}"


def error_text(error: BaseException | None) -> str:
    """An error as text for a story: ``ValueError: no``; empty for None."""
    return "" if error is None else str(RecordedError.of(error))


class NotJson(AsterismError, TypeError):
    """A value that must be stored or sent is not JSON."""


class TooLarge(AsterismError):
    """A value is larger than its limit. It is refused, never cut, and the task is not attempted again."""

    final = True


class DeviceUnavailable(AsterismError):
    """A device cannot begin the work. Nothing was started; the task is assigned again."""


class DeviceLost(AsterismError):
    """A device vanished during the work. The outcome of the work is unknown."""

    counts = True
    """Whether it counts against the losses that the task survives."""


class DeviceTrouble(AsterismError):
    """The device could not do its own part, such as starting a process or writing a file. The work counts as lost, not
    as failed, and another device may do it."""


class NoDevice(AsterismError):
    """No suitable device became available in time."""


class AlreadyRunning(AsterismError):
    """Another orchestrator runs this plan. A plan has one orchestrator at a time."""


class PlanOverlaps(AsterismError):
    """Other plans of the same file have not ended, and the file says that no further one is started."""
