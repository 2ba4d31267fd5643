"""The files of the tasks of stored plans: whether they can be kept, and where they are read."""

from __future__ import annotations

from asterism.core.errors import PlanError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task_files import handles_files
from asterism.execution.artifacts import ArtifactProblem, Artifacts
from asterism.fleet.fleet import Fleet


async def check_place(fleet: Fleet, plan: Constellation) -> None:
    """Raise PlanError for a plan with files if the fleet has no place for them."""
    for node in plan.nodes.values():
        if handles_files(node.task):
            try:
                await fleet.artifacts()
            except ArtifactProblem as error:
                raise PlanError(f"task {node.id!r} has files, and {error}") from None
            return


async def readable_files(fleet: Fleet) -> Artifacts | None:
    """The files that tasks have made; None if the fleet has no place for any."""
    try:
        return await fleet.files()
    except ArtifactProblem:
        return None
