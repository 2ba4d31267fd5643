"""Operations on limits: how much the runs of all plans, schedules and people may use at a time, and how often."""

from __future__ import annotations

from typing import Annotated

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Limit, Name, Operation, Reason
from asterism.api.quick_dataclass import Request

LimitName = Annotated[Name, Doc("The name of the limit.", "warehouse", "account/*")]


class ListLimits(Request):
    """All limits."""


class OneLimit(Request):
    limit: LimitName


class SetLimit(Request):
    """A limit has a size, a rate, or both."""

    limit: LimitName
    size: Annotated[int | None, Limit(ge=0), Doc("How much may be in use at a time; 0 lets nothing begin.")] = None
    rate: Annotated[int | None, Limit(ge=1), Doc("How much may begin within any period.")] = None
    period: Annotated[float | None, Limit(gt=0), Doc("The period of the rate, in seconds.")] = None
    reason: Reason = ""


class RemoveLimit(Request):
    limit: LimitName
    reason: Reason = ""


class LimitOperations:
    list_limits = Operation(
        ListLimits,
        documents.Page[documents.Limit],
        "The limits, how much of each is in use, and how many runs wait.",
        "GET /limits",
    )
    show_limit = Operation(
        OneLimit,
        documents.LimitDetails,
        "A limit with the runs that hold it and those that wait for it.",
        "GET /limits/{limit}",
    )
    set_limit = Operation(
        SetLimit,
        documents.Limit,
        "Set or change a limit: at once for what waits; what runs goes on.",
        "POST /limits/{limit}",
    )
    remove_limit = Operation(
        RemoveLimit,
        documents.Limit,
        "Remove a limit. Runs that wait for it wait until it is set again.",
        "DELETE /limits/{limit}",
    )
