"""Workflows of a store: what the operations of ``api/workflow_operations`` do."""

from __future__ import annotations

from typing import Any

from asterism.api import documents
from asterism.api import workflow_operations as declared
from asterism.api.local.reasons import leave_reason
from asterism.api.system import LocalSystem
from asterism.core.json_values import plain_json
from asterism.core.run.workflow import DEFAULTS, Workflow
from asterism.fleet.workflows import WorkflowInUse


async def list_workflows(system: LocalSystem, request: declared.ListWorkflows) -> documents.Page[documents.Workflow]:
    flows = await system.fleet.workflows.all()
    return documents.Page(items=[documents.Workflow(**_fields(flow)) for flow in flows])


async def show_workflow(system: LocalSystem, request: declared.OneWorkflow) -> documents.Workflow:
    return documents.Workflow(**_fields(await system.fleet.workflows.find(request.workflow)))


async def add_workflow(system: LocalSystem, request: declared.AddWorkflow) -> documents.AddedWorkflow:
    workflows, wanted = system.fleet.workflows, Workflow.from_json(request.workflow)
    before = await workflows.latest_version(wanted.name)
    flow = await workflows.add(wanted)
    await leave_reason(system.fleet, f"added workflow {flow.name}@{flow.version}", request.reason)
    return documents.AddedWorkflow(**_fields(flow), added=flow.version != before)


async def remove_workflow(system: LocalSystem, request: declared.RemoveWorkflow) -> documents.Workflow:
    fleet, name = system.fleet, request.workflow
    for schedule in await fleet.schedules.all():
        if schedule.workflow == name:
            raise WorkflowInUse(
                f"workflow {name!r} is not removed: schedule {schedule.name!r} creates its runs. "
                f"Remove that first with: asterism schedule remove {schedule.name}"
            )
    flow = await fleet.workflows.remove(name)
    await leave_reason(fleet, f"removed workflow {flow.name!r}", request.reason)
    return documents.Workflow(**_fields(flow))


def _fields(flow: Workflow) -> dict[str, Any]:
    """All fields of a workflow, including defaults."""
    fields: dict[str, Any] = {"name": flow.name, "version": flow.version}
    for name in DEFAULTS:
        value = getattr(flow, name)
        fields[name] = plain_json(sorted(value) if isinstance(value, frozenset) else value, f"{name} of {flow.name!r}")
    return fields
