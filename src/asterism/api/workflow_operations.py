"""Operations on workflows: what runs execute."""

from __future__ import annotations

from typing import Annotated

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Name, Operation, Reason
from asterism.api.quick_dataclass import Request
from asterism.core.json_values import JsonObject


class ListWorkflows(Request):
    """All workflows, each in its latest version."""


class OneWorkflow(Request):
    workflow: Annotated[Name, Doc("Its name, or NAME@VERSION.")]


class AddWorkflow(Request):
    """A workflow. If it differs from the latest version of its name, it becomes the next version."""

    workflow: Annotated[JsonObject, Doc("Its fields, as `show_workflow` answers; those left out have defaults.")]
    reason: Reason = ""


class RemoveWorkflow(Request):
    workflow: Annotated[Name, Doc("Its name. All its versions are removed.")]
    reason: Reason = ""


class WorkflowOperations:
    list_workflows = Operation(ListWorkflows, documents.Page[documents.Workflow], "List workflows.", "GET /workflows")
    show_workflow = Operation(
        OneWorkflow, documents.Workflow, "A workflow with all its fields.", "GET /workflows/{workflow}"
    )
    add_workflow = Operation(
        AddWorkflow,
        documents.AddedWorkflow,
        "Add a workflow, or a new version of one.",
        "POST /workflows",
        needs="admin",
        status=201,
    )
    remove_workflow = Operation(
        RemoveWorkflow,
        documents.Workflow,
        "Remove a workflow that no open run and no schedule needs.",
        "DELETE /workflows/{workflow}",
        needs="admin",
    )
