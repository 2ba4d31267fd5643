"""Edit cycles of a stored plan, for editors in other processes: list, claim and answer them through the store.

They are requests to the process that runs the plan (``plan_requests.py``), with the same checks as its own commands
``cycles``, ``claim`` and ``answer``. An answer is applied exactly once, like an edit: the steps and the reply are one
commit, which expects the request. A claim is a lease in the memory of the owner, and a new owner knows of none. So
an answer to a cycle that nobody has claimed claims it: an editor whose claim was lost with an owner need not try again.

The owner needs editors outside of it (``external=True``, ``asterism run --editor outside``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from asterism.core.errors import PlanError, error_text
from asterism.core.plan.apply import Applied
from asterism.core.plan.assignment_lock import AssignmentLock, EditCycle
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import EditBatch, WaitingEdit
from asterism.core.record import Record
from asterism.durable.journal_store import load
from asterism.durable.plan_requests import (
    ANSWER_TIMEOUT,
    WHY_TIMEOUT,
    EditAnswer,
    RequestKind,
    RunningPlan,
    applied_json,
    ask,
    batch_of,
    read_applied,
)
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.plan_mask import PlanMask

LEASE = 60.0
"""Seconds for which a cycle is claimed by default."""


class CycleView(Record):
    """An open edit cycle. ``ends`` are the ends under review: objects with ``task``, ``status`` and ``reason``.
    ``version`` is the base of its answer. ``claimed_by`` is its editor until ``claimed_until``; at ``expires_at`` it is
    closed without an answer. Times are those of the store's clock; None if no process runs the plan. ``refusals`` are
    answers that a person refused since the cycle before it: objects with ``approval``, ``by``, ``reason`` and
    ``edits``. ``on_hold`` says why its editor waits for a person; the cycle then does not expire."""

    id: int
    version: int
    opened_at: float
    ends: tuple[Mapping[str, Any], ...]
    stuck: bool
    rejections: int
    claimed_by: str | None = None
    claimed_until: float | None = None
    expires_at: float | None = None
    refusals: tuple[Mapping[str, Any], ...] = ()
    on_hold: str = ""

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(str(end["task"]) for end in self.ends)

    def to_json(self) -> dict[str, Any]:
        return {**Record.to_json(self), "tasks": list(self.tasks)}


class CycleList(Record):
    """``by`` is the process that runs the plan and answered; None if none did, and the journal says what is open."""

    cycles: tuple[CycleView, ...]
    by: str | None = None


# -- asking ------------------------------------------------------------------------------------------------------------


async def list_cycles(fleet: Fleet, name: str, *, timeout: float = WHY_TIMEOUT) -> CycleList:
    """The open edit cycles of a stored plan. Raises UnknownConstellation."""
    stored = await load(fleet.store, name)
    if stored.head.ended or not stored.lock.cycles:
        return CycleList(())
    with contextlib.suppress(PlanError):  # it did not answer, or the plan is being cancelled or removed
        return CycleList(*await ask(fleet, name, CYCLES, {}, timeout=timeout, silent_timeout=timeout))
    mask = PlanMask(stored.plan)
    return CycleList(tuple(_view(stored.plan, cycle, mask, None) for cycle in stored.lock.cycles.values()))


async def claim_cycle(
    fleet: Fleet,
    name: str,
    cycle: int,
    *,
    who: str | None = None,
    lease: float = LEASE,
    timeout: float = ANSWER_TIMEOUT,
) -> CycleView:
    """Claim an open cycle for ``lease`` seconds, or renew the claim. ``who`` is the editor, by default this process's
    user. Raises CycleGone, CycleClaimed, NotAnswered, and PlanError if no process runs the plan."""
    request = {"cycle": cycle, "who": who or fleet.by, "lease": lease}
    return (await ask(fleet, name, CLAIM, request, timeout=timeout))[0]


async def answer_cycle(
    fleet: Fleet,
    name: str,
    cycle: int,
    batch: EditBatch | None = None,
    *,
    who: str | None = None,
    timeout: float = ANSWER_TIMEOUT,
) -> EditAnswer:
    """Answer a cycle with a batch of edits, or with none: the plan continues as it is. Durable on return. A cycle that
    nobody has claimed is claimed by the answer. Raises EditRejected, with the cycle open for another answer, and what
    ``claim_cycle`` raises."""
    request = {"cycle": cycle, "who": who or fleet.by, "batch": batch or EditBatch(())}
    return EditAnswer(*await ask(fleet, name, ANSWER, request, timeout=timeout))


async def release_cycle(
    fleet: Fleet, name: str, cycle: int, reason: str = "", *, who: str | None = None, timeout: float = ANSWER_TIMEOUT
) -> CycleView:
    """Close a cycle whose editor does not answer, in or outside the process that runs the plan: the plan goes on as it
    is. Raises what ``claim_cycle`` raises, but not CycleClaimed."""
    by = who or fleet.by
    request = {"cycle": cycle, "why": f"by {by}: {reason}" if reason else f"by {by}"}
    return (await ask(fleet, name, RELEASE, request, timeout=timeout))[0]


# -- answering ---------------------------------------------------------------------------------------------------------


def _cycles(owner: RunningPlan, request: Mapping[str, Any]) -> tuple[CycleView, ...]:
    return tuple(_view_of(owner, cycle) for cycle in owner.execution.lock.cycles.values())


def _claim(owner: RunningPlan, request: Mapping[str, Any]) -> CycleView:
    return _view_of(owner, owner.execution.cycles.claim(request["cycle"], request["who"], request["lease"]))


def _release(owner: RunningPlan, request: Mapping[str, Any]) -> CycleView:
    return _view_of(owner, owner.execution.cycles.release(request["cycle"], request["why"]))


def _answer(owner: RunningPlan, request: Mapping[str, Any]) -> Applied:
    number, who = request["cycle"], request["who"]
    cycles, opened = owner.execution.cycles, owner.execution.lock.cycles.get(number)
    if opened is not None and opened.claimed_by is None:
        cycles.claim(number, who, LEASE)
    return cycles.answer(number, who, batch_of(request))


def _view_of(owner: RunningPlan, cycle: EditCycle) -> CycleView:
    execution = owner.execution
    return _view(execution.plan, cycle, owner.mask, execution.lock, execution.cycles.refusals_of(cycle))


CYCLES = RequestKind(
    "cycles",
    _cycles,
    lambda cycles: {"cycles": [cycle.to_json() for cycle in cycles]},
    lambda request, answer: tuple(map(CycleView.from_json, answer["cycles"])),
    changes=False,
)
CLAIM = RequestKind(
    "claim",
    _claim,
    lambda cycle: {"cycle": cycle.to_json()},
    lambda request, answer: CycleView.from_json(answer["cycle"]),
)
RELEASE = RequestKind("release", _release, CLAIM.write, CLAIM.read)
ANSWER = RequestKind("answer", _answer, applied_json, read_applied)


def _view(
    plan: Constellation,
    cycle: EditCycle,
    mask: PlanMask,
    lock: AssignmentLock | None,
    refused: Sequence[WaitingEdit] = (),
) -> CycleView:
    """``lock`` is that of the process that runs the plan: its claims and deadlines hold."""
    nodes = [(task, plan.nodes.get(task)) for task in cycle.tasks]
    ends = tuple(
        {
            "task": task,
            "status": None if node is None else str(node.tentative or node.status),
            "reason": "" if node is None else mask.shown(error_text(node.error) or node.reason),
        }
        for task, node in nodes
    )
    claimed = lock is not None and cycle.claimed_by is not None
    expires = float("inf") if lock is None else min(cycle.expires_at, float("inf") if claimed else cycle.claim_by)
    return CycleView(
        cycle.id,
        cycle.version,
        cycle.opened_at,
        ends,
        cycle.stuck,
        cycle.rejections,
        cycle.claimed_by if claimed else None,
        cycle.claim_by if claimed and cycle.claim_by < float("inf") else None,
        None if expires == float("inf") else expires,
        tuple(
            {"approval": edit.id, "by": edit.decided_by, "reason": edit.why, "edits": edit.batch.description}
            for edit in refused
        ),
        mask.shown(cycle.on_hold),
    )
