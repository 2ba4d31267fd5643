"""Workflows that a person removes."""

from __future__ import annotations

import pytest

from asterism.core.run.workflow import Workflow
from asterism.fleet import workflows
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import prune
from asterism.fleet.workflows import OF_PEERS, UNUSED_AGE, VERSIONS, UnknownWorkflow, WorkflowInUse, Workflows
from asterism.store.memory import MemoryStore
from asterism.store.sqlite import SqliteStore


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


async def test_a_workflow_is_not_removed_while_a_run_of_it_is_open() -> None:
    async with Fleet(MemoryStore()) as fleet:
        await fleet.workflows.add(Workflow("work", shell="true"))
        run = await fleet.create("work")
        with pytest.raises(WorkflowInUse, match=f"run {run.id} has not ended"):
            await fleet.workflows.remove("work")
        await fleet.cancel(run.id)
        await fleet.workflows.remove("work")
        assert (await fleet.workflows.get("work", run.version)).name == "work", "its ended run still has it"


@pytest.mark.parametrize("kept", [True, False], ids=["guarded", "ablation"])
async def test_a_version_of_a_removed_workflow_is_never_used_again(monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    """Another process remembers the versions that it has read."""
    store = MemoryStore()
    here, elsewhere = Workflows(store), Workflows(store)
    await here.add(Workflow("work", shell="true"))
    assert (await elsewhere.latest("work")).shell == "true"
    await here.remove("work")
    for register in await store.registers("workflow"):
        if not kept or not register.key.startswith(workflows.LATEST):  # retention keeps the pointer
            await store.commit([workflows.PutRegister(register.key, None, register.revision)])
    new = await here.add(Workflow("work", shell="false"))
    assert ((await elsewhere.get("work", new.version)).shell == "false") is kept
    await store.close()


async def test_versions_of_a_removed_workflow_are_deleted_with_the_last_of_their_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory
) -> None:
    async with await Fleet.open(f"sqlite:///{tmp_path}/fleet.db") as fleet:
        assert isinstance(fleet.store, SqliteStore)
        await fleet.workflows.add(Workflow("work", shell="true"))
        run = await fleet.create("work")
        await fleet.workflows.add(Workflow("work", shell="false"))
        await fleet.cancel(run.id)
        await fleet.workflows.remove("work")
        later = fleet.store.clock() + 2 * UNUSED_AGE
        monkeypatch.setattr(fleet.store, "clock", lambda: later)
        assert await prune(fleet.store, 0.0, 100) == 0
        assert [register.key for register in await fleet.store.registers(VERSIONS)] == [f"{VERSIONS}work@1"]
        assert await prune(fleet.store, later, 100) == 1
        assert await prune(fleet.store, later, 100) == 0
        assert await fleet.store.registers(VERSIONS) == []
        assert await fleet.store.registers(OF_PEERS) == []
