"""The data of a report, as plain records. All times are seconds on one clock."""

from __future__ import annotations

from asterism.core.record import Record
from asterism.report.picture import Picture


class ExecutionBar(Record):
    """One attempt at a task. `outcome` is completed, failed, cancelled or revoked."""

    task: str
    device: str
    slot: int
    start: float
    end: float
    outcome: str
    provisional: bool


class CycleBar(Record):
    """One edit cycle, opened by the ends of `triggers`. `outcome` is accepted, rejected, timeout or empty.
    `cost` is what its editor cost, in words."""

    id: int
    opened: float
    closed: float
    triggers: tuple[str, ...]
    outcome: str
    edits: int
    cost: str = ""


class Hold(Record):
    """A time for which a task was not to be assigned; `cycle` is the edit cycle that held it, if known."""

    task: str
    start: float
    end: float
    cycle: int | None


class TaskRow(Record):
    """How one task ended. `reason` says why it failed or never ran; `value` is its result, in short."""

    id: str
    status: str
    device: str
    attempts: int
    start: float | None
    end: float | None
    reason: str
    value: str
    waited: float | None = None
    """How long it waited for a device of a fleet, in seconds."""


class EditRow(Record):
    """One edit batch, in words. `version` is what the plan became, None when the batch was not accepted."""

    version: int | None
    at: float
    author: str
    reason: str
    operations: tuple[str, ...]
    outcome: str
    violations: tuple[str, ...]


class StoryLine(Record):
    """One step of a task's story. ``traceback`` is that of the function that failed."""

    at: float
    what: str
    why: str
    traceback: str = ""


class OutputRow(Record):
    """What one attempt at a task printed: the stream and text of each line. `left_out` says how many came before."""

    task: str
    attempt: int
    lines: tuple[tuple[str, str], ...]
    left_out: int


class EarlierRun(Record):
    """An earlier plan of the same plan file. It has no `ended_at` while it goes on, and no `started_at` before it
    begins."""

    name: str
    state: str
    started_at: float | None
    ended_at: float | None

    @property
    def took(self) -> float | None:
        return None if self.started_at is None or self.ended_at is None else self.ended_at - self.started_at


class Report(Record):
    """A whole run. `figures` are names and values for the summary; `stories` pair task ids with stories. `output` has
    what the tasks printed, as far as the page can hold it; `output_left_out` counts the attempts that it cannot.
    `params` are the names and values of parameters of the plan `file`, `earlier` the last plans of that file with
    such a name, the newest first."""

    title: str
    state: str
    started_at: float
    ended_at: float
    figures: tuple[tuple[str, str], ...]
    picture: Picture
    executions: tuple[ExecutionBar, ...]
    cycles: tuple[CycleBar, ...]
    holds: tuple[Hold, ...]
    tasks: tuple[TaskRow, ...]
    edits: tuple[EditRow, ...]
    stories: tuple[tuple[str, tuple[StoryLine, ...]], ...]
    output: tuple[OutputRow, ...] = ()
    output_left_out: int = 0
    file: str = ""
    params: tuple[tuple[str, str], ...] = ()
    earlier: tuple[EarlierRun, ...] = ()
