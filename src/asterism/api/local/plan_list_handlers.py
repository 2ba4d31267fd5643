"""Lists of plans on a store: what the operation of ``api/plan_operations`` does, without the rest of plans."""

from __future__ import annotations

from asterism.api import documents
from asterism.api import plan_operations as declared
from asterism.api.documents import document_of
from asterism.api.system import LocalSystem
from asterism.base.http_limits import RequestRefused
from asterism.durable.plan_summaries import ListedPlan, UnreadablePlan
from asterism.durable.plan_summaries import list_plans as listed_plans
from asterism.store.protocol import FAR, PlanQuery

GROUPS = {"open": declared.OPEN_STATES, "ended": declared.ENDED_STATES}


async def list_plans(system: LocalSystem, request: declared.ListPlans) -> documents.Page[documents.PlanSummary]:
    name = request.name
    query = PlanQuery(
        states=_states(request.state),
        name=name if name is None or "*" in name or "?" in name else f"*{name}*",
        file=request.file,
        tag=request.tag,
        since=-FAR if request.since is None else request.since,
        until=FAR if request.until is None else request.until,
        after=None if request.after is None else _position(request.after),
        limit=request.limit + 1,
    )
    store = system.fleet.store
    plans = await listed_plans(store, query)
    more = len(plans) > request.limit
    items = [plan_summary(plan) for plan in plans[: request.limit]]
    after = f"{items[-1].created_at!r}|{items[-1].name}" if more else None
    return documents.Page(items=items, next=after, now=store.clock())


def _states(text: str | None) -> frozenset[str] | None:
    words = [] if text is None else text.split(",")
    for word in words:
        if word not in declared.STATES:
            raise RequestRefused(422, f"{word!r} is not a state; they are: {', '.join(declared.STATES)}")
    return frozenset(state for word in words for state in GROUPS.get(word, (word,))) or None


def _position(text: str) -> tuple[float, str]:
    created_at, _, name = text.partition("|")
    try:
        return float(created_at), name
    except ValueError:
        raise RequestRefused(422, f"{text!r} is not the 'next' of a page of plans") from None


def plan_summary(plan: ListedPlan | UnreadablePlan) -> documents.PlanSummary:
    """A plan in a list."""
    if isinstance(plan, UnreadablePlan):
        unreadable = "unreadable"
        return documents.PlanSummary(
            name=plan.name, state=unreadable, state_text=unreadable, created_at=plan.created_at, error=plan.why
        )
    summary, owner = plan.summary, plan.owner
    return document_of(
        documents.PlanSummary,
        plan,
        summary,
        state=plan.state_name,
        state_text=plan.state,
        owner=owner.device if owner is not None else None,
        heard_at=owner.beat_at if owner is not None else None,
        last_owner=summary.device if owner is None and not summary.closed else None,
        last_heard_at=plan.gone.beat_at if plan.gone is not None else None,
        waiting_edits=plan.waiting,
    )
