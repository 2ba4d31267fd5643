"""The assignment lock: edit cycles, holds, and the lock policies global, scoped, speculative.

It prevents this race: task A ends, its editor starts to work on the plan, and a dependent of A is dispatched from the
plan that the editor is about to change. So one step (``finish``) both records the end of A and holds its dependents.
They stay held until the cycle that reviews the end is closed (``close``).

Ends wait in ``waiting`` until a cycle takes all of them. At most ``max_cycles`` cycles are open. The hold begins with
the end, not with the cycle.

The lock policy decides what is held while an end is not reviewed::

    global       every new assignment
    scoped       tasks below an unreviewed end (the counter ``held`` of their nodes)
    speculative  as scoped, but revocable tasks may start provisionally
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.graph import Graph
from asterism.core.plan.node import Node
from asterism.core.plan.plan_options import LockPolicy
from asterism.core.plan.status import FAILED, TERMINAL, ConstellationState, TaskStatus
from asterism.core.record import Struct, encode, field

POLICIES: tuple[LockPolicy, ...] = get_args(LockPolicy)

EditOn = Callable[[Node, TaskStatus, Any, BaseException | None], bool]
"""(task, status, result, error) -> whether this end opens a cycle."""


class CycleGone(AsterismError):
    """The cycle is not open: it was answered, it timed out, or it never existed."""


class CycleClaimed(AsterismError):
    """Another editor has claimed the cycle, and its lease has not expired."""


class EditCycle(Struct, forbid_unknown_fields=True, eq=False):
    """An edit cycle: from the end of some tasks until their editor has answered. Its record has no deadlines, and not
    the claim of an editor."""

    id: int
    version: int  # of the plan when the cycle opened: the base version of its answer
    opened_at: float
    ends: tuple[tuple[str, int], ...]  # (task, epoch)
    stuck: bool = False  # no task can move: the last chance for the editor
    expires_at: float = float("inf")
    claim_by: float = float("inf")
    claimed_by: str | None = None
    rejections: int = 0
    edits: int = 0
    closed_at: float | None = None
    outcome: str = "open"
    cost: EditorCost | None = None  # of the calls of its editor, if the editor tells
    on_hold: str = ""  # why its editor waits for a person; the cycle then has no timeout

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(task_id for task_id, _ in self.ends)

    def to_json(self) -> JsonObject:
        data: JsonObject = encode(self)
        return {name: value for name, value in data.items() if name not in _LIVE and _OPEN.get(name, data) != value}


_LIVE = ("expires_at", "claim_by", "claimed_by", "on_hold")
"""The fields of an open cycle that are no part of its record."""
_OPEN = {"closed_at": None, "outcome": "open", "cost": None}
"""What an open cycle has in fields that its record leaves out."""


_UNANSWERED = {
    "unclaimed": "no editor claimed it in time",
    "timeout": "its editor did not answer in time",
    "released": "a person released it",
}
"""How a cycle was closed whose editor may still want to answer."""


class AssignmentLock(Struct, eq=False):
    """See the module. Without ``edit_on`` there is no editor: no cycle, no hold."""

    graph: Graph
    policy: str = "scoped"
    max_cycles: int = 4
    edit_on: EditOn | None = None
    edit_timeout: float = 600.0
    claim_timeout: float | None = None  # None: the editor runs in this process and needs no claim
    waiting: list[tuple[str, int]] = field(default_factory=list)
    cycles: dict[int, EditCycle] = field(default_factory=dict)
    history: list[EditCycle] = field(default_factory=list)
    opened: int = 0  # counts cycles; the count is the id of a cycle
    progress_at_stuck: int = -1

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"the lock policy is one of {', '.join(POLICIES)}, not {self.policy!r}")
        if self.max_cycles < 1:
            raise ValueError(f"max_cycles is 1 or more, not {self.max_cycles}")
        self.graph.speculative = self.policy == "speculative"

    # -- ends and holds ------------------------------------------------------------------------------------------------

    def finish(
        self,
        node: Node,
        status: TaskStatus,
        now: float,
        value: Any = None,
        error: BaseException | None = None,
    ) -> None:
        """Record an end and, in the same step, hold the tasks below it until it is reviewed."""
        if self.edit_on is None or self.graph.state is ConstellationState.CANCELLING:  # nothing to edit follows
            self.graph.finish(node, status, now, value, error)
            return
        try:
            review = self.edit_on(node, status, value, error)
        except Exception:  # a predicate that raises must not lose the end: the editor reviews it
            review = True
        self.graph.finish(node, status, now, value, error, review)
        if review:
            self.waiting.append((node.id, node.epoch))

    @property
    def holds_everything(self) -> bool:
        """Whether no task may be assigned: under ``global``, while an end is not reviewed."""
        return self.policy == "global" and not self.idle

    @property
    def idle(self) -> bool:
        """Whether no cycle is open and no end waits for one."""
        return not self.waiting and not self.cycles

    # -- cycles --------------------------------------------------------------------------------------------------------

    def open(self, now: float, *, limited: bool = True) -> EditCycle | None:
        """Open a cycle for all waiting ends. None if none waits or, when ``limited``, ``max_cycles`` are open."""
        if limited and len(self.cycles) >= self.max_cycles:
            return None
        nodes = self.graph.nodes
        current = [end for end in self.waiting if end[0] in nodes and nodes[end[0]].epoch == end[1]]
        self.waiting = []
        if not current:
            return None  # a revoked end needs no review
        return self.add_cycle(EditCycle(self.opened + 1, self.graph.version, now, tuple(current)))

    def open_stuck(self, now: float, *, always: bool = False) -> EditCycle | None:
        """Open one last cycle because no task can move. None if none has ended since the last such cycle, unless
        ``always``."""
        progress = sum(count for status, count in self.graph.counts.items() if status in TERMINAL)
        if not always and (self.edit_on is None or progress == self.progress_at_stuck):
            return None
        self.progress_at_stuck = progress
        return self.add_cycle(EditCycle(self.opened + 1, self.graph.version, now, (), stuck=True))

    def reopened(self) -> None:
        """The plan was reopened: if it gets stuck again, its editor is asked again."""
        self.progress_at_stuck = -1

    def add_cycle(self, cycle: EditCycle) -> EditCycle:
        """Add an open cycle, new or from a record, unclaimed. Its deadlines count from when it was opened."""
        self.opened = max(self.opened, cycle.id)
        self.reset_deadlines(cycle, cycle.opened_at)
        self.cycles[cycle.id] = cycle
        self.history.append(cycle)
        return cycle

    def reset_deadlines(self, cycle: EditCycle, now: float) -> None:
        """Count the deadlines of a cycle from now and drop its claim."""
        cycle.expires_at = now + self.edit_timeout
        cycle.claimed_by, cycle.claim_by = None, float("inf")
        if self.claim_timeout is not None:
            cycle.claim_by = now + self.claim_timeout

    def close(self, cycle: EditCycle, now: float, outcome: str) -> list[Node]:
        """Close a cycle: its ends are reviewed. Returns the provisional tasks that this confirms."""
        del self.cycles[cycle.id]
        cycle.closed_at, cycle.outcome = now, outcome
        return self.graph.settle(cycle.ends, now)

    def hold(self, cycle: EditCycle, reason: str) -> None:
        """The editor of a cycle waits for a person, and says why. The cycle has no timeout until ``release``."""
        cycle.on_hold, cycle.expires_at = reason, float("inf")

    def release(self, cycle: EditCycle, now: float) -> None:
        """The editor of a cycle continues, with all its time."""
        cycle.on_hold, cycle.expires_at = "", now + self.edit_timeout

    def record_rejection(self, cycle: EditCycle) -> None:
        """Count a rejected answer. The next answer is based on the current version of the plan."""
        cycle.rejections += 1
        cycle.version = self.graph.version

    # -- editors outside the process -----------------------------------------------------------------------------------

    def get(self, cycle_id: int) -> EditCycle:
        try:
            return self.cycles[cycle_id]
        except KeyError:
            why = "it was answered, timed out, or never existed"
            closed = next((cycle for cycle in self.history if cycle.id == cycle_id), None)
            if closed is not None and closed.outcome in _UNANSWERED:
                why = f"{_UNANSWERED[closed.outcome]}, and the plan went on without an answer; change it with an edit"
            raise CycleGone(f"cycle {cycle_id} is not open: {why}") from None

    def claim(self, cycle_id: int, who: str, now: float, lease: float) -> EditCycle:
        """Claim a cycle for ``lease`` seconds, or renew the claim. Raises CycleGone or CycleClaimed."""
        cycle = self.get(cycle_id)
        if self.claim_timeout is None:
            raise CycleClaimed(f"cycle {cycle_id} belongs to {cycle.claimed_by!r}, the editor of this process")
        if cycle.claimed_by not in (None, who) and now < cycle.claim_by:
            raise CycleClaimed(
                f"cycle {cycle_id} is claimed by {cycle.claimed_by!r} for another {cycle.claim_by - now:.0f} s"
            )
        cycle.claimed_by, cycle.claim_by = who, now + lease
        return cycle

    def overdue(self, now: float) -> list[tuple[EditCycle, str]]:
        """The cycles that must be closed now, with the reason. A cycle whose lease expired may be claimed again."""
        due = []
        for cycle in self.cycles.values():
            if now >= cycle.expires_at:
                due.append((cycle, "timeout"))
            elif now >= cycle.claim_by:
                if cycle.claimed_by is None or self.claim_timeout is None:
                    due.append((cycle, "unclaimed"))
                else:
                    cycle.claimed_by, cycle.claim_by = None, now + self.claim_timeout
        return due

    def next_deadline(self) -> float:
        """When ``overdue`` must be called again."""
        return min((min(c.expires_at, c.claim_by) for c in self.cycles.values()), default=float("inf"))


def edit_on_all(node: Node, status: TaskStatus, value: Any, error: BaseException | None) -> bool:
    return True


def edit_on_failure(node: Node, status: TaskStatus, value: Any, error: BaseException | None) -> bool:
    return status is FAILED
