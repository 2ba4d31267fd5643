"""The operation that lists plans. It is apart from the others on plans, whose functions take long to import."""

from __future__ import annotations

from typing import Annotated

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Limit, Name, Operation
from asterism.api.quick_dataclass import Request

OPEN_STATES = ("created", "ready", "executing", "at_rest", "cancelling")
ENDED_STATES = ("completed", "failed", "partially_failed", "cancelled")
STATES = (*OPEN_STATES, *ENDED_STATES, "open", "ended")
"""The states by which plans can be filtered. ``open`` stands for all that have not ended, ``ended`` for the others."""

MOST_PLANS = 1000
"""How many plans one page has at most."""


class ListPlans(Request):
    """Which plans: all conditions that are given hold."""

    state: Annotated[
        str | None, Limit(max_length=200), Doc(f"One or several, with commas, of {', '.join(STATES)}.")
    ] = None
    name: Annotated[Name | None, Doc("A part of the name; with `*` or `?`, a pattern for the whole name.")] = None
    file: Annotated[Name | None, Doc("The name of the plan file.")] = None
    tag: Annotated[Name | None, Doc("A tag of the plan file.")] = None
    since: Annotated[float | None, Doc("Created at this time or later, in seconds since 1970.")] = None
    until: Annotated[float | None, Doc("Created before this time.")] = None
    after: Annotated[str | None, Limit(max_length=200), Doc("The `next` of the page before.")] = None
    limit: Annotated[int, Limit(ge=1, le=MOST_PLANS)] = 100


PlanPage = documents.Page[documents.PlanSummary]


class PlanListOperations:
    list_plans = Operation(ListPlans, PlanPage, "List plans, the newest first.", "GET /plans")
