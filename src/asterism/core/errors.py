"""Every error Asterism raises on purpose. Those that are not in this module live beside what raises them.

::

    AsterismError
    ├── PlanError                 the plan is wrong as it stands
    │   ├── UnknownTask           a name that is not in the plan
    │   ├── DuplicateTask         a name that is there already
    │   ├── CycleFound            an edge that would close a circle; carries the path
    │   └── InvalidTask           a task or dependency that contradicts itself
    ├── InvalidWorkflow           a workflow that contradicts itself
    ├── RunRefused                something happened to a run that its state does not allow; carries its story
    │   └── Fenced                the word of somebody who does not own the run, or not any more
    ├── EditRejected              an edit batch that was not applied; carries every violation
    ├── InvalidTransition         something happened to a task that its state does not allow; carries its story
    ├── RecordedError             an error as it was read back from a record
    ├── NotJson                   a value that has to be stored or sent and is not JSON
    ├── DeviceUnavailable         a device that left before the work began: the task is assigned anew
    ├── DeviceLost                a device that vanished in the middle of the work
    ├── DeviceTrouble             a device that could not do its own part: no descriptors, no room on its disk, …
    │   └── LeaseExpired          (base/processes.py) a command whose lease ran out while its device was frozen
    ├── NoDevice                  no device could take the task for the stated time
    ├── AlreadyRunning            a constellation that another orchestrator is running
    ├── CycleGone                 (core/plan/lock.py) no such open cycle
    ├── CycleClaimed              (core/plan/lock.py) somebody else works on the cycle
    ├── UnreadableJournal         (core/plan/journal.py) the steps of a plan cannot be taken again
    ├── NotTheSameRun             (core/run/merge.py) two records of one id that differ in what is fixed at creation
    ├── MissingInput              (base/task_inputs.py) an input that cannot be filled
    ├── CommandFailed             (base/processes.py) a command that did not exit with 0
    ├── RequestFailed             (base/http_requests.py) an answer that was not expected
    ├── PolicyForbids             (fleet/policy/policy.py) a device's own policy does not allow it
    ├── BadPolicy                 (fleet/policy/policy_file.py) a policy file that cannot be used; every mistake
    ├── LimitReached              (fleet/device/executor.py) an execution that took longer than its workflow allows
    └── RunStopped                (fleet/device/functions.py) tells a function that its run was taken away
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asterism.core.history import Entry


class AsterismError(Exception):
    """The root of the tree."""


class PlanError(AsterismError):
    """The plan is wrong as it stands; the message says where and what to do."""


class UnknownTask(PlanError, KeyError):
    """A name that is not in the plan."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(f"there is no task {task_id!r} in the plan")

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0])


class DuplicateTask(PlanError):
    """A name that is there already."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(f"there is a task {task_id!r} already; choose another id or update the one that exists")


class CycleFound(PlanError):
    """An edge that would close a circle."""

    def __init__(self, path: Sequence[str]) -> None:
        self.path = tuple(path)
        super().__init__(f"that would close a cycle: {' -> '.join(path)}")


class InvalidTask(PlanError, ValueError):
    """A task or dependency that contradicts itself."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One reason why a batch was not applied.

    ``edit`` is the index of the edit in its batch (None: the batch as a whole), ``rule`` a short fixed word
    (``unknown_task``, ``cycle``, ``immutable``, ``stale``, …), ``message`` a sentence a person or a language model
    can act on.
    """

    edit: int | None
    rule: str
    message: str

    def __str__(self) -> str:
        where = "batch" if self.edit is None else f"edit {self.edit}"
        return f"{where}: {self.message} [{self.rule}]"


class InvalidWorkflow(AsterismError, ValueError):
    """A workflow that contradicts itself. ``problems`` has a sentence for each contradiction, if there are several."""

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message)


class RunRefused(AsterismError):
    """Something happened to a run that its state does not allow. ``story`` tells how it got there."""

    def __init__(self, run_id: str, why: str, story: Sequence[Entry] = ()) -> None:
        self.run_id, self.why, self.story = run_id, why, tuple(story)
        told = "".join(f"\n  {entry}" for entry in self.story)
        super().__init__(f"run {run_id}: {why}" + (f". Its story:{told}" if told else ""))


class Fenced(RunRefused):
    """The word of somebody who does not own the run, or not any more. It changes nothing."""


class EditRejected(AsterismError):
    """A batch that was not applied; nothing of it happened. ``violations`` lists every reason."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        count = len(self.violations)
        lines = "\n".join(f"  - {violation}" for violation in self.violations)
        super().__init__(f"the edit was rejected for {count} reason{'s' if count != 1 else ''}:\n{lines}")


class InvalidTransition(AsterismError):
    """Something happened to a task that its state does not allow. ``story`` tells how it got there."""

    def __init__(self, task_id: str, status: str, event: str, story: Sequence[Entry]) -> None:
        self.task_id, self.status, self.event, self.story = task_id, status, event, tuple(story)
        told = "".join(f"\n  {entry}" for entry in self.story) or " (nothing)"
        super().__init__(f"task {task_id!r} is {status}: it cannot {event}. Its story:{told}")


class RecordedError(AsterismError):
    """An error of a task as it was read back from a record: its type is a name, its message text."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind, self.message = kind, message
        super().__init__(message)

    @classmethod
    def of(cls, error: BaseException) -> RecordedError:
        if isinstance(error, RecordedError):
            return error
        try:
            message = str(error)
        except Exception:  # an error that cannot be printed must not stop the one who records it
            message = "(its message cannot be shown)"
        return cls(type(error).__name__, message)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


def safe_repr(value: object) -> str:
    """A value as it is shown in a message, even if it does not want to be."""
    try:
        return repr(value)[:200]
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


MAX_TEXT = 10_000
"""How many characters of what somebody said are kept in a record."""


def truncate(text: str) -> str:
    """A text as a record keeps it: all of it, or its beginning and its end. Whatever work raises may be of any length,
    and stands in the record several times."""
    if len(text) <= MAX_TEXT:
        return text
    part = MAX_TEXT // 2 - 50
    return f"{text[:part]} … ({len(text) - 2 * part:,} characters are left out) … {text[-part:]}"


def error_text(error: BaseException | None) -> str:
    """An error as a line of a story."""
    return "" if error is None else str(RecordedError.of(error))


class NotJson(AsterismError, TypeError):
    """A value that has to be stored or sent and is not JSON."""


class DeviceUnavailable(AsterismError):
    """Raised by a device that cannot begin: nothing was started, the task is assigned anew."""


class DeviceLost(AsterismError):
    """Raised by a device that vanished in the middle of the work, whose outcome is unknown."""


class DeviceTrouble(AsterismError):
    """The device could not do its own part, such as starting a process or writing a file. Nothing is wrong with the
    work: it counts as lost, not as failed, and another device may do it."""


class NoDevice(AsterismError):
    """No device could take the task for the stated time."""


class AlreadyRunning(AsterismError):
    """One constellation has one orchestrator at a time."""
