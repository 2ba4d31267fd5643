"""Workflows that a person removes."""

from __future__ import annotations

from pathlib import Path

import pytest

from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.fleet.workflows import LATEST, VERSIONS, UnknownWorkflow
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister


async def test_a_removed_workflow_is_gone_and_can_be_added_again() -> None:
    async with Fleet(MemoryStore()) as fleet:
        await fleet.workflows.add(Workflow("work", shell="true"))
        assert (await fleet.workflows.remove("work")).version == 1
        assert await fleet.workflows.all() == []
        assert await fleet.workflows.names() == []
        with pytest.raises(UnknownWorkflow, match="there is no workflow 'work'; add it with"):
            await fleet.create("work")
        with pytest.raises(UnknownWorkflow):
            await fleet.workflows.remove("work")
        assert (await fleet.workflows.add(Workflow("work", shell="true"))).version == 2
        assert [flow.version for flow in await fleet.workflows.all()] == [2]


async def test_a_run_needs_no_workflow_once_it_is_created(tmp_path: Path) -> None:
    async with await Fleet.open(f"sqlite:///{tmp_path}/fleet.db") as fleet:
        flow = await fleet.workflows.add(Workflow("work", shell="true"))
        run = await fleet.create("work")
        await fleet.workflows.add(Workflow("work", shell="false"))
        await fleet.workflows.remove("work")
        assert await fleet.store.registers(VERSIONS) == []
        assert (await fleet.run(run.id)).work == flow.work
        await fleet.cancel(run.id)
        again = await fleet.retry(run.id)
        assert (again.work, again.workflow, again.version) == (flow.work, "work", 1)


@pytest.mark.parametrize("kept", [True, False], ids=["guarded", "ablation"])
async def test_the_number_of_a_version_is_never_used_again(kept: bool) -> None:
    """A run says from which version it was created."""
    async with Fleet(MemoryStore()) as fleet:
        first = await fleet.workflows.add(Workflow("work", shell="true"))
        await fleet.workflows.remove("work")
        for register in await fleet.store.registers(LATEST) if not kept else ():
            await fleet.store.commit([PutRegister(register.key, None, register.revision)])
        assert ((await fleet.workflows.add(Workflow("work", shell="false"))).version > first.version) is kept


async def test_the_versions_of_another_workflow_with_such_a_name_stay() -> None:
    async with Fleet(MemoryStore()) as fleet:
        for name in ("work", "work@2"):
            await fleet.workflows.add(Workflow(name, shell="true"))
        await fleet.workflows.remove("work")
        assert [register.key for register in await fleet.store.registers(VERSIONS)] == [f"{VERSIONS}work@2@1"]
