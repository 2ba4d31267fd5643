"""Records of unchanged tasks in a fleet: a result counts only if the device that made it could run the task now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.task import Task
from asterism.durable import fleet_device
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.fleet_device import FleetRoster
from asterism.durable.plan_actor import edit_plan, retry_plan
from asterism.durable.plan_submissions import submit_plan
from asterism.fleet.joinable_devices import DEVICES
from asterism.orchestrator import unchanged_tasks
from asterism.store.protocol import PutRegister, Store
from tests.durable import durable_work
from tests.durable.durable_scenes import Stage, chain, task

pytestmark = pytest.mark.virtual_time

FILES = {"outputs": ["out.txt"]}


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files never change, and are read without a thread, which virtual time does not wait for."""

    async def unchanged(function: Any, arguments: Any) -> dict[str, str]:
        return dict.fromkeys(arguments["patterns"], "same")

    monkeypatch.setattr(unchanged_tasks, "call_in_thread", unchanged)


async def skipped(orchestrator: DurableOrchestrator, name: str, **options: Any) -> bool:
    """Whether a plan with one task is completed with a recorded result."""
    plan = Constellation(name)
    plan.source = "nightly"
    plan.add(task("make", skip_if_unchanged=FILES, **options))
    result = await orchestrator.run(plan)
    assert result.state == "completed"
    return any(entry.what == "unchanged" for entry in result.plan.story("make"))


async def test_the_result_of_a_sandbox_does_not_count_for_a_task_of_another_device(stage: Stage) -> None:
    await stage.device("sandbox")
    lab = await stage.device("lab", can=["lab"])
    assert not await skipped(stage.orchestrator(local=0), "one", device="sandbox")
    assert not await skipped(stage.orchestrator(local=0), "two", device="lab")
    assert not await skipped(stage.orchestrator(local=0), "three", device="sandbox")
    assert not await skipped(stage.orchestrator(local=0), "four", needs=["lab"])
    assert await skipped(stage.orchestrator(local=0), "five", needs=["lab"])
    lab.drain()
    await asyncio.sleep(60.0)
    assert not await skipped(stage.orchestrator(local=0), "six")  # the one that made it takes no work


async def test_without_the_check_the_result_of_a_sandbox_counts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def any_device(self: FleetRoster, maker: Sequence[str], plan_id: str, task: Task) -> bool:
        return True

    monkeypatch.setattr(FleetRoster, "could_run", any_device)
    await stage.device("sandbox")
    await stage.device("lab")
    assert not await skipped(stage.orchestrator(local=0), "one", device="sandbox")
    assert await skipped(stage.orchestrator(local=0), "two", device="lab")


async def reenrolled(stage: Stage, key: str, at: float, revoked_at: float | None = None) -> None:
    """Enrol ``lab`` with a key, in place of an earlier enrolment."""
    known = await stage.store.register(f"{DEVICES}lab")
    value = {"key": key, "can": None, "enrolled_at": at, "revoked_at": revoked_at}
    await stage.store.commit([PutRegister(f"{DEVICES}lab", value, known and known.revision)])


async def test_the_result_of_a_revoked_device_does_not_count_for_another_one_of_its_name(stage: Stage) -> None:
    """The session stands for that of the machine that is enrolled at the time."""
    await stage.device("lab")
    await reenrolled(stage, "first", 1.0)
    assert not await skipped(stage.orchestrator(local=0), "one")
    assert await skipped(stage.orchestrator(local=0), "two")
    await reenrolled(stage, "first", 1.0, revoked_at=2.0)
    assert not await skipped(stage.orchestrator(local=0), "three")
    assert not await skipped(stage.orchestrator(local=0), "four")  # what it made when it was revoked never counts
    await reenrolled(stage, "second", 3.0)
    assert not await skipped(stage.orchestrator(local=0), "five")
    assert await skipped(stage.orchestrator(local=0), "six")
    await reenrolled(stage, "second", 4.0)
    assert not await skipped(stage.orchestrator(local=0), "seven")


async def test_a_device_that_was_enrolled_after_the_execution_began_has_not_made_its_result(stage: Stage) -> None:
    """The machine that began it was revoked meanwhile, and its name given to another one."""
    await stage.device("lab")
    await reenrolled(stage, "first", 1.0)
    running = asyncio.ensure_future(skipped(stage.orchestrator(local=0), "one", call="wait"))
    await durable_work.gate("make begun").wait()
    await asyncio.sleep(1.0)
    await reenrolled(stage, "second", stage.store.clock())
    durable_work.gate("make").set()
    assert not await running
    assert not await skipped(stage.orchestrator(local=0), "two", call="wait")
    assert await skipped(stage.orchestrator(local=0), "three", call="wait")


async def test_without_the_enrolment_in_its_record_the_result_of_a_revoked_device_counts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def by_name(store: Store, device: str, began_at: float = 0.0) -> str:
        return ""

    monkeypatch.setattr(fleet_device, "enrolment_of", by_name)
    await stage.device("lab")
    await reenrolled(stage, "first", 1.0)
    assert not await skipped(stage.orchestrator(local=0), "one")
    await reenrolled(stage, "second", 3.0)
    assert await skipped(stage.orchestrator(local=0), "two")


async def test_the_processes_of_plans_on_one_machine_are_one_maker(stage: Stage) -> None:
    assert not await skipped(stage.orchestrator(), "one")
    assert await skipped(stage.orchestrator(), "two")
    assert not await skipped(stage.orchestrator(host="there"), "three")


async def test_a_stored_plan_knows_its_file_and_its_author(stage: Stage) -> None:
    plan = chain("a")
    plan.source = "file"
    await submit_plan(stage.fleet(), plan)
    stored = (await stage.load()).plan
    assert (stored.source, stored.author) == ("file", "ann")


async def test_the_edits_of_a_retry_are_those_of_their_editor(stage: Stage) -> None:
    await stage.orchestrator().run(chain("a"))
    await retry_plan(stage.fleet(), "nightly", batch=EditBatch((AddTask(task("b")),), editor="eve"), editor="robot")
    await edit_plan(stage.fleet(), "nightly", EditBatch((AddTask(task("c")),), editor="eve"))
    assert (await stage.load()).plan.edited == {"b": "robot"}
