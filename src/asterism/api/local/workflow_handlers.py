"""Workflows of a store: what the operations of ``api/workflow`` do."""

from __future__ import annotations

from asterism.api import documents
from asterism.api import workflow_operations as declared
from asterism.api.operation import implements
from asterism.api.system import LocalSystem
from asterism.core.run.workflow import Workflow
from asterism.fleet.fleet_json import workflow_json


@implements(declared.list_workflows)
async def list_workflows(system: LocalSystem, request: declared.ListWorkflows) -> documents.Page[documents.Workflow]:
    flows = await system.fleet.workflows.all()
    return documents.Page(items=[documents.Workflow(**workflow_json(flow)) for flow in flows])


@implements(declared.show_workflow)
async def show_workflow(system: LocalSystem, request: declared.OneWorkflow) -> documents.Workflow:
    return documents.Workflow(**workflow_json(await system.fleet.workflows.find(request.workflow)))


@implements(declared.add_workflow)
async def add_workflow(system: LocalSystem, request: declared.AddWorkflow) -> documents.Workflow:
    flow = await system.fleet.workflows.add(Workflow.from_json(request.workflow))
    return documents.Workflow(**workflow_json(flow))
