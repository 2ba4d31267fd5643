"""The plans that are edited through the server: their limit of tasks, and one edit after the other.

**Size.** A plan that this process runs says how many tasks it has. Of others the number is read from the store once a
minute, and counted in between: to read a plan for each edit would double the cost of edits. What other processes add
within the minute is not counted: the limit protects the server, and is no promise about the plan.

**Order.** Each edit of a plan that no process runs takes the plan and commits; of edits at one time all but one would
load it, be in vain and begin again. So they wait for each other. Those of a plan that runs go to its owner together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from asterism.api.plan_operations import RetryPlan
from asterism.api.system import LocalSystem
from asterism.base.http_limits import RequestRefused
from asterism.core.plan.edit_rules import ApprovalRule, EditScope, fits
from asterism.core.plan.edits import CancelTask
from asterism.core.run.run import Run
from asterism.core.run.run_label import PLAN_PREFIX
from asterism.durable.approval_store import rules_of, scopes_of
from asterism.durable.journal_store import Head
from asterism.durable.stored_plans import read_plan
from asterism.fleet.fleet import Fleet

MAX_TASKS = 20_000
"""How many tasks a submitted plan, or an edited one, may have."""

READ_AGAIN = 60.0
"""After how many seconds the size of a plan is read again."""

MOST_PLANS = 1000
"""Of how many plans the size is remembered."""


def check_tasks(tasks: int) -> None:
    """Raise RequestRefused if a plan has too many tasks."""
    if tasks > MAX_TASKS:
        raise RequestRefused(413, f"the plan has {tasks:,} tasks; the limit is {MAX_TASKS:,}")


@dataclass
class _Size:
    at: float
    tasks: int


async def _tasks(fleet: Fleet, name: str) -> int:
    """How many tasks a plan has. Raises UnknownConstellation."""
    ownership = fleet.running_plans.get(name)
    if ownership is not None and ownership.running is not None:
        return len(ownership.running.execution.plan)
    return len((await read_plan(fleet, name)).record.plan)


class EditedPlans:
    """What a server remembers of plans that are edited."""

    def __init__(self) -> None:
        self._sizes: dict[str, _Size] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def add(self, fleet: Fleet, name: str, added: int) -> None:
        """Count tasks that an edit adds. Raises RequestRefused if the plan gets too large, and UnknownConstellation."""
        now, known = fleet.clock.time(), self._sizes.pop(name, None)
        if known is None or now - known.at > READ_AGAIN or known.tasks + added > MAX_TASKS:
            known = _Size(now, await _tasks(fleet, name))
        if known.tasks + added > MAX_TASKS:
            raise RequestRefused(413, f"the plan would have more than {MAX_TASKS:,} tasks")
        self._sizes[name] = _Size(known.at, known.tasks + added)
        while len(self._sizes) > MOST_PLANS:
            del self._sizes[next(iter(self._sizes))]

    def alone(self, name: str) -> asyncio.Lock:
        """The lock of those who edit a plan that no process runs."""
        return self._locks.setdefault(name, asyncio.Lock())


# -- what an editor may not do -----------------------------------------------------------------------------------------


CANCEL = CancelTask.op


def check_cancel_plan(editor: str | None, head: Head) -> None:
    """Raise RequestRefused if an editor may not cancel a whole plan. Without an editor, a person does."""
    obstacle = None if editor is None else cancel_obstacle(scopes_of(head), rules_of(head)[0], editor)
    if obstacle is not None:
        raise RequestRefused(403, f"{obstacle}. A person cancels it with: asterism plan cancel {head.name}")


def cancel_obstacle(scopes: Sequence[EditScope], rules: Sequence[ApprovalRule], editor: str) -> str | None:
    """Why an editor may not cancel a whole plan; None if it may."""
    own = [scope for scope in scopes if scope.is_for(editor)]
    if scopes and not any(not scope.tasks and (not scope.edits or CANCEL in scope.edits) for scope in own):
        return f"no scope of the editor {editor!r} allows {CANCEL} for every task"
    waits = next((rule for rule in rules if _may_match(rule, editor)), None)
    return None if waits is None else f"a person decides about it by the rule {str(waits)!r}"


def _may_match(rule: ApprovalRule, editor: str) -> bool:
    """Whether a rule may match a cancellation by an editor: the tasks that it names may be added at any time, and a
    cost is one of tasks that are added or changed."""
    cancels = rule.cost is None and (not rule.edits or CANCEL in rule.edits)
    return cancels and (not rule.authors or fits(editor, rule.authors))


async def check_retry_plan(system: LocalSystem, request: RetryPlan) -> None:
    """Raise RequestRefused if an editor may not retry a plan."""
    if system.editor is None:
        return
    stored = (await read_plan(system.fleet, request.plan)).record
    limits = {
        "scopes": bool(scopes_of(stored.head)),
        "rules for approvals": bool(rules_of(stored.head)[0]),
        "untrusted tasks": bool(stored.plan.untrusted),
    }
    reasons = [what for what, there in limits.items() if there]
    if reasons or request.edits:
        why = f"it has {' and '.join(reasons)}" if reasons else "edits with a retry are for people"
        words = f"plan {request.plan!r} is not retried by an editor: {why}"
        raise RequestRefused(403, f"{words}. A person does with: asterism plan retry {request.plan}")


def check_backfill(system: LocalSystem, *, only_missing: bool) -> None:
    """Raise RequestRefused if an editor may not begin a backfill: to run plans again is to retry them."""
    if system.editor is not None and not only_missing:
        words = "a backfill of an editor creates missing plans only (only_missing)"
        raise RequestRefused(403, f"{words}. A person runs failed plans again with: asterism schedule backfill")


def check_cancel_run(run: Run) -> None:
    """Raise RequestRefused if an editor may not cancel a run."""
    if run.workflow.startswith(PLAN_PREFIX):
        plan = run.workflow.removeprefix(PLAN_PREFIX)
        raise RequestRefused(403, f"run {run.id} is a task of plan {plan!r}: cancel it with edit_plan and {CANCEL}")
