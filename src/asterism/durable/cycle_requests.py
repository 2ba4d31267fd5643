"""Edit cycles of a stored plan, for editors in other processes: list, claim and answer them through the store.

They are requests to the process that runs the plan (``plan_requests.py``), with the same checks as its own commands
``cycles``, ``claim`` and ``answer``. An answer is applied exactly once, like an edit: the steps and the reply are one
commit, which expects the request. A claim is a lease in the memory of the owner, and a new owner knows of none. So
an answer to a cycle that nobody has claimed claims it: an editor whose claim was lost with an owner need not try again.

The owner needs editors outside of it (``external=True``, ``asterism run --editor outside``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from asterism.core.errors import AsterismError, PlanError, error_text
from asterism.core.plan.assignment_lock import AssignmentLock, CycleClaimed, CycleGone, EditCycle
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import EditBatch, WaitingEdit
from asterism.durable.journal_store import load, read_head
from asterism.durable.plan_requests import (
    ANSWER_TIMEOUT,
    SILENT_FACTOR,
    WHY_TIMEOUT,
    WITHDRAWAL_TIMEOUT,
    EditAnswer,
    PlanRequest,
    applied_json,
    edit_answer,
)
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.execution import Execution
from asterism.orchestrator.plan_mask import PlanMask
from asterism.store.store_errors import StoreUnavailable

LEASE = 60.0
"""Seconds for which a cycle is claimed by default."""

_ERRORS: dict[str, type[AsterismError]] = {"claimed": CycleClaimed, "gone": CycleGone}


@dataclass(frozen=True, slots=True)
class CycleView:
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
        lists = {"ends": [dict(end) for end in self.ends], "refusals": [dict(one) for one in self.refusals]}
        return {**asdict(self), **lists, "tasks": list(self.tasks)}


@dataclass(frozen=True, slots=True)
class CycleList:
    """``by`` is the process that runs the plan and answered; None if none did, and the journal says what is open."""

    cycles: tuple[CycleView, ...]
    by: str | None = None


# -- asking ------------------------------------------------------------------------------------------------------------


async def list_cycles(fleet: Fleet, name: str, *, timeout: float = WHY_TIMEOUT) -> CycleList:
    """The open edit cycles of a stored plan. Raises UnknownConstellation."""
    stored = await load(fleet.store, name)
    if stored.head.ended or not stored.lock.cycles:
        return CycleList(())
    request = PlanRequest(fleet, name, {"kind": "cycles"})
    await request.send()
    try:
        answer = await request.wait(timeout, timeout)
    except PlanError:  # it did not answer, or the plan is being cancelled or removed
        answer = None
    finally:
        await request.withdraw()
    if answer is None or "cycles" not in answer:
        mask = PlanMask(stored.plan)
        return CycleList(tuple(_view(stored.plan, one, mask, None) for one in stored.lock.cycles.values()))
    return CycleList(tuple(map(_from_json, answer["cycles"])), str(answer["by"]))


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
    value = {"kind": "claim", "cycle": cycle, "who": who or fleet.by, "lease": lease}
    return _from_json((await _ask(fleet, name, value, timeout))["cycle"])


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
    answered = batch or EditBatch(())
    value = {"kind": "answer", "cycle": cycle, "who": who or fleet.by, "batch": answered.to_json()}
    return edit_answer(answered, await _ask(fleet, name, value, timeout))


async def _ask(fleet: Fleet, name: str, value: Mapping[str, Any], timeout: float) -> Mapping[str, Any]:
    """Make a request, and return the answer. If none comes, the request is withdrawn, and nothing has happened."""
    request = PlanRequest(fleet, name, value)
    await request.send()
    answer: Mapping[str, Any] | None
    try:
        answer = await request.wait(timeout, SILENT_FACTOR * timeout)
    except asyncio.CancelledError:
        with contextlib.suppress(TimeoutError, StoreUnavailable):
            async with asyncio.timeout(WITHDRAWAL_TIMEOUT):
                await request.withdraw()
        raise
    except Exception:
        answer = await request.withdraw()
        if answer is None:  # otherwise a process answered before that
            raise
    answer = answer or await request.withdraw()
    if answer is None:
        head, _ = await read_head(fleet.store, name)
        if head.ended:
            raise PlanError(f"plan {name!r} has ended ({head.state})")
        raise PlanError(f"no process runs plan {name!r}, so its edit cycles wait. Resume it: asterism resume {name}")
    if "problem" in answer:
        raise _ERRORS[answer["problem"]](str(answer["message"]))
    if "error" in answer:
        raise PlanError(str(answer["error"]))
    return answer


def _from_json(data: Mapping[str, Any]) -> CycleView:
    fields = {name: data[name] for name in CycleView.__dataclass_fields__ if name in data}
    return CycleView(**{**fields, "ends": tuple(data["ends"]), "refusals": tuple(data.get("refusals", ()))})


# -- answering ---------------------------------------------------------------------------------------------------------


def cycle_answers(execution: Execution) -> dict[str, Callable[..., dict[str, Any]]]:
    """What answers these requests, in the process that runs the plan."""
    plan, lock, mask = execution.plan, execution.lock, PlanMask(execution.plan)

    def view(cycle: EditCycle) -> CycleView:
        return _view(plan, cycle, mask, lock, execution.cycles.refusals_of(cycle))

    def cycles(request: Mapping[str, Any]) -> dict[str, Any]:
        return {"cycles": [view(one).to_json() for one in lock.cycles.values()]}

    def claim(request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            claimed = execution.cycles.claim(request["cycle"], request["who"], request["lease"])
        except (CycleGone, CycleClaimed) as error:
            return _problem(error)
        return {"cycle": view(claimed).to_json()}

    def answer(request: Mapping[str, Any]) -> dict[str, Any]:
        number, who = request["cycle"], request["who"]
        try:
            opened = lock.cycles.get(number)
            if opened is not None and opened.claimed_by is None:
                execution.cycles.claim(number, who, LEASE)
            return applied_json(execution.cycles.answer(number, who, EditBatch.from_json(request["batch"])))
        except (CycleGone, CycleClaimed) as error:
            return _problem(error)

    return {"cycles": cycles, "claim": claim, "answer": answer}


def _problem(error: CycleGone | CycleClaimed) -> dict[str, Any]:
    return {"problem": "gone" if isinstance(error, CycleGone) else "claimed", "message": str(error)}


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
            {"approval": one.id, "by": one.decided_by, "reason": one.why, "edits": one.batch.description}
            for one in refused
        ),
        mask.shown(cycle.on_hold),
    )
