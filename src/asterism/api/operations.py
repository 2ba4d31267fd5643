"""All operations, by the name of their method. A client and a system inherit them from here."""

from __future__ import annotations

from asterism.api import documents
from asterism.api.fleet_operations import FleetOperations
from asterism.api.operation import NoFields, Operation
from asterism.api.plan_operations import EditOperations, PlanListOperations, PlanOperations
from asterism.api.request import Request
from asterism.api.run_operations import RunOperations
from asterism.api.schedule_operations import ScheduleOperations
from asterism.api.series_operations import SeriesOperations
from asterism.core.json_values import JsonObject


class Operations(
    PlanListOperations,
    PlanOperations,
    EditOperations,
    RunOperations,
    SeriesOperations,
    ScheduleOperations,
    FleetOperations,
):
    """Every operation as a method, with the fields of its request as parameters."""


OPERATIONS = {
    name: operation
    for base in Operations.__bases__
    for name, operation in vars(base).items()
    if isinstance(operation, Operation)
}
"""The table: every operation by name, in the order of the documentation."""


# -- operations of a server alone --------------------------------------------------------------------------------------


class RedeemLogin(Request):
    code: str


class ListPermissions(Request):
    """With ``plan`` also the operations on this plan, which may need a scope that names it."""

    plan: str | None = None


class ServerOperations:
    """They have endpoints of their own, so they are not in the table of operations."""

    health = Operation(NoFields, documents.Health, "Whether the server can reach its store.", "GET /health")
    me = Operation(NoFields, documents.Me, "The credential of this client: name and scopes.", "GET /me")
    list_permissions = Operation(
        ListPermissions,
        documents.Permissions,
        "The names of the operations that the caller may do.",
        "GET /me/operations",
        needs="known",
    )
    redeem_login = Operation(
        RedeemLogin,
        documents.NewToken,
        "Exchange a one-time code of `asterism token login` for a token.",
        "POST /login",
        needs="known",
        once=True,
    )
    logout = Operation(NoFields, JsonObject, "Revoke the token of this client.", "POST /logout")
    metrics = Operation(NoFields, str, "Metrics of the fleet and its plans, as text.", "GET /metrics")
