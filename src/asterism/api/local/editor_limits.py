"""What an editor may not do, although its credential may: a model may act through any client of MCP.

Such a client is an editor (``LocalSystem.editor``): its edits, answers and undos have a scope, wait once untrusted data
may have been read, and wait for the rules of the plan. What reaches around edits is limited here:

* To **cancel a plan** is to cancel every task, now and later: a scope for the editor must allow that without naming
  tasks, and no rule may let a person decide about it.
* To **retry a plan** executes again what has ended. A plan with scopes, rules or untrusted tasks is retried by a
  person. Edits together with a retry are for people: they would pass the checks of edits.
* To **cancel the run** of a task of a plan is to cancel the task, which is an edit.

Nothing here depends on what the plan is at a moment, so no edit that comes between makes a check void. To pause and to
resume a plan change nothing in it, and need the scope of the credential alone.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def check_cancel_run(run: Run) -> None:
    """Raise RequestRefused if an editor may not cancel a run."""
    if run.workflow.startswith(PLAN_PREFIX):
        plan = run.workflow.removeprefix(PLAN_PREFIX)
        raise RequestRefused(403, f"run {run.id} is a task of plan {plan!r}: cancel it with edit_plan and {CANCEL}")
