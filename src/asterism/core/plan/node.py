"""A task inside a constellation: what was asked for, its place in the graph and how far it has come.

Two counters decide everything about dispatch, so that nothing has to be searched:

``open``  incoming dependencies that are not satisfied (their source has not ended, or ended the wrong way).
``held``  sources whose end is not settled: the editor has not reviewed it, or it is itself only provisional.
"""

from __future__ import annotations

from typing import Any

from asterism.core.plan.status import PENDING, TaskStatus
from asterism.core.plan.task import Dependency, Task


class Node:
    __slots__ = (
        "attempts",
        "begun_at",
        "children",
        "device",
        "ended_at",
        "entry",
        "epoch",
        "error",
        "held",
        "id",
        "label",
        "losses",
        "needless",
        "number",
        "open",
        "parents",
        "provisional",
        "rank",
        "reason",
        "reviewed",
        "started_at",
        "status",
        "task",
        "tentative",
        "unsettled",
        "value",
        "verdicts",
        "worked",
    )

    def __init__(self, task: Task, label: int) -> None:
        self.task = task
        self.id = task.id
        self.label = label  # position in the topological order, see order.py
        self.number = 0  # how many tasks came into the plan before it: an order that no edit can disturb
        self.parents: dict[str, Dependency] = {}
        self.children: dict[str, Node] = {}
        self.open = 0
        self.held = 0
        self.verdicts: dict[str, bool | str] | None = None  # what each condition said; a text is the error it raised
        self.entry: tuple[Any, ...] | None = None  # its place in the ready queue, see ready.py
        self.rank = 0.0
        self.status: TaskStatus = PENDING
        self.provisional = False
        self.tentative: TaskStatus | None = None  # how a provisional task ended, until that is confirmed
        self.reviewed = True
        self.unsettled = False  # ended, but not yet reviewed or confirmed: its children are held
        self.needless = False  # cancelled because a condition or an outcome made it unnecessary
        self.epoch = 0
        self.device: str | None = None
        self.attempts = 0
        self.losses = 0
        self.value: Any = None
        self.error: BaseException | None = None
        self.reason = ""  # why it was cancelled
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.begun_at = 0.0  # when the present attempt began
        self.worked = 0.0  # seconds that its attempts took, without the waits between them

    def satisfies(self, dependency: Dependency, child: Node) -> bool:
        """Whether this task's end, if it has one, satisfies ``dependency`` of ``child``."""
        status = self.tentative or self.status
        if not outcome_fits(dependency.on, status):
            return False
        return dependency.when is None or (child.verdicts is not None and child.verdicts.get(self.id) is True)


def outcome_fits(on: str, status: TaskStatus) -> bool:
    """Whether an end with ``status`` is what ``on`` waits for. Cancelled satisfies nothing."""
    if on == "success":
        return status is TaskStatus.COMPLETED
    if on == "failure":
        return status is TaskStatus.FAILED
    return status is TaskStatus.COMPLETED or status is TaskStatus.FAILED
