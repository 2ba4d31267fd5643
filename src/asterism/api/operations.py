"""All operations, by the name of their method. A client and a system inherit them from here."""

from __future__ import annotations

from asterism.api.device_operations import DeviceOperations
from asterism.api.edit_operations import EditOperations
from asterism.api.fleet_operations import FleetOperations
from asterism.api.operation import Operation
from asterism.api.plan_list_operations import PlanListOperations
from asterism.api.plan_operations import PlanOperations
from asterism.api.run_operations import RunOperations
from asterism.api.schedule_operations import ScheduleOperations
from asterism.api.series_operations import SeriesOperations
from asterism.api.token_operations import TokenOperations
from asterism.api.workflow_operations import WorkflowOperations


class Operations(
    PlanListOperations,
    PlanOperations,
    EditOperations,
    RunOperations,
    WorkflowOperations,
    SeriesOperations,
    DeviceOperations,
    ScheduleOperations,
    FleetOperations,
    TokenOperations,
):
    """Every operation as a method, with the fields of its request as parameters."""


OPERATIONS = {
    name: operation
    for base in Operations.__bases__
    for name, operation in vars(base).items()
    if isinstance(operation, Operation)
}
"""The table: every operation by name, in the order of the documentation."""
