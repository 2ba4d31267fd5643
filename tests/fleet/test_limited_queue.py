"""Runs that use limits: devices take them when there is room, in fair turns, and what ends in any way makes room."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from asterism.core.errors import AsterismError, RunRefused
from asterism.core.limits import InvalidLimit, Limit, LimitBook, Rate, UnknownLimit, uses_of
from asterism.core.run.run import Run
from asterism.core.run.run_label import UnknownField
from asterism.core.run.work import Workflow
from asterism.fleet.bulk_creation import InvalidInput
from asterism.fleet.run_explanation import explain_run
from asterism.fleet.stored_limits import LimitNotSet, StoredLimits, read_limits, remove_limit, set_limit
from asterism.store.protocol import LIMIT_ACCOUNTS, PutRegister
from asterism.store.store_errors import Conflict
from tests.fleet.fleet_scenes import WORK, Stage

pytestmark = pytest.mark.virtual_time


def using(name: str = "load", uses: Mapping[str, int] | None = None, **more: Any) -> Workflow:
    return Workflow(name, call="work:do", uses={"warehouse": 1} if uses is None else uses, **more)


def working(stage: Stage) -> set[str]:
    return {run_id for device in stage.devices for run_id in device.hands.busy}


async def created(stage: Stage, flow: Workflow, number: int, **more: Any) -> list[Run]:
    return [await stage.person.create(flow, **more) for _ in range(number)]


def finish(stage: Stage, run_id: str) -> None:
    next(device for device in stage.devices if run_id in device.hands.busy).hands.finish(run_id)


async def worked_off(stage: Stage, number: int, most: int) -> list[str]:
    """Finish one run after the other until so many have ended. Returns their workflows, in this order."""
    order = []
    for _ in range(number):
        await stage.until(lambda: len(working(stage)) > 0)
        await asyncio.sleep(10.0)  # virtual time: whatever may begin has begun
        assert len(working(stage)) <= most
        run = min((stage.store._runs[run_id] for run_id in working(stage)), key=lambda run: run.started_at or 0.0)
        finish(stage, run.id)
        await stage.end_of(run)
        order.append(run.workflow)
    return order


async def reasons(stage: Stage, run: Run) -> str:
    return str(await explain_run(stage.person, run.id))


# -- room --------------------------------------------------------------------------------------------------------------


async def test_no_more_runs_work_than_a_limit_allows(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 2))
    await stage.device("kitchen", slots=3)
    await stage.device("garage", slots=3)
    await created(stage, using(), 5)
    assert len(await worked_off(stage, 5, 2)) == 5


async def test_runs_that_use_nothing_are_not_kept_waiting(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    device = await stage.device("kitchen", slots=3)
    await created(stage, using(), 5)
    plain = await stage.person.create(WORK)
    await stage.at_work(device, plain)
    await stage.until(lambda: len(working(stage)) == 2)


async def test_a_waiting_run_holds_nothing_and_all_of_its_limits_are_taken_at_once(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    await set_limit(stage.store, Limit("disk", 1))
    device = await stage.device("kitchen", slots=5)
    [disk] = await created(stage, using("d", {"disk": 1}), 1)
    await stage.at_work(device, disk)
    [both] = await created(stage, using("b", {"disk": 1, "warehouse": 1}), 1)
    [warehouse] = await created(stage, using("w", {"warehouse": 1}), 1)
    await stage.at_work(device, warehouse)
    device.hands.finish(disk)
    await asyncio.sleep(10.0)
    assert working(stage) == {warehouse.id}
    device.hands.finish(warehouse)
    await stage.at_work(device, both)


async def test_two_runs_with_the_same_limits_in_another_order_never_wait_for_each_other(stage: Stage) -> None:
    for name in "ab":
        await set_limit(stage.store, Limit(name, 1))
    await stage.device("kitchen", slots=4)
    await stage.device("garage", slots=4)
    for flow in (using("one", {"a": 1, "b": 1}), using("two", {"b": 1, "a": 1})):
        await created(stage, flow, 5)
    assert len(await worked_off(stage, 10, 1)) == 10


async def test_a_limit_for_each_name(stage: Stage) -> None:
    await set_limit(stage.store, Limit("account/*", 1))
    await stage.device("kitchen", slots=9)
    flow = using(uses={"account/{customer}": 1})
    runs = [await stage.person.create(flow, {"customer": number % 3}) for number in range(9)]
    await stage.until(lambda: len(working(stage)) == 3)
    await asyncio.sleep(10.0)
    uses = [next(iter(uses_of(stage.store._runs[run_id].uses))) for run_id in working(stage)]
    assert sorted(uses) == ["account/0", "account/1", "account/2"]
    assert "of limit 'account/0' (1) 0 is free: run" in await reasons(stage, runs[-3])


async def test_a_retry_waits_again(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    device = await stage.device("kitchen", slots=2, monitor_every=5.0)
    first, second = await created(stage, using(retries=1, backoff=0.0), 2)
    await stage.until(lambda: len(working(stage)) == 1)
    [tried] = working(stage)
    device.hands.fail(stage.store._runs[tried], RuntimeError("no space left"))
    assert len(await worked_off(stage, 2, 1)) == 2
    assert {(await stage.read(run)).failures for run in (first, second)} == {0, 1}


async def test_a_device_that_is_lost_holds_nothing(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    await stage.device("hub", monitor_every=5.0)
    kitchen = await stage.device("kitchen", can=["gpu"])
    await created(stage, using(needs={"gpu"}), 2)
    await stage.until(lambda: len(kitchen.hands.busy) == 1)
    garage = await stage.device("garage", can=["gpu"])
    await asyncio.sleep(10.0)
    assert not garage.hands.busy
    await kitchen.crash()
    await stage.until(lambda: garage.hands.busy)


async def test_a_cancelled_run_makes_room(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    device = await stage.device("kitchen", slots=2)
    first, second = await created(stage, using(), 2)
    await stage.at_work(device, first)
    await stage.person.cancel(first.id)
    await stage.at_work(device, second)


async def test_no_run_is_taken_to_wait_for_a_slot(stage: Stage) -> None:
    """In the backlog of a device it would hold its limits for nothing."""
    await set_limit(stage.store, Limit("warehouse", 2))
    device = await stage.device("kitchen", slots=1, backlog=5)
    plain = await stage.person.create(WORK)
    await stage.at_work(device, plain)
    [run] = await created(stage, using(), 1)
    await asyncio.sleep(10.0)
    assert stage.store._runs[run.id].session is None
    device.hands.finish(plain)
    await stage.at_work(device, run)


# -- changes of limits -------------------------------------------------------------------------------------------------


async def test_a_limit_that_is_raised_counts_at_once_and_one_that_is_lowered_stops_nothing(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    await stage.device("kitchen", slots=9)
    await created(stage, using(), 9)
    await stage.until(lambda: len(working(stage)) == 1)
    before = await set_limit(stage.store, Limit("warehouse", 5))
    assert before == Limit("warehouse", 1)
    await stage.until(lambda: len(working(stage)) == 5)
    await set_limit(stage.store, Limit("warehouse", 2))
    await asyncio.sleep(10.0)
    assert len(working(stage)) == 5
    for left in (4, 3, 2, 2, 2):
        finish(stage, min(working(stage)))
        await asyncio.sleep(10.0)
        assert len(working(stage)) == left


async def test_a_limit_of_nothing_is_a_pause(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 0))
    device = await stage.device("kitchen", slots=1)
    [run] = await created(stage, using(), 1)
    await asyncio.sleep(100.0)
    assert not working(stage)
    assert "limit 'warehouse' is 0, so nothing that uses it begins" in await reasons(stage, run)
    await set_limit(stage.store, Limit("warehouse", 1))
    await stage.at_work(device, run)


async def test_a_run_that_needs_more_than_a_lowered_limit_allows_keeps_nothing_from_others(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 3))
    [large] = await created(stage, using("large", {"warehouse": 3}), 1)
    await asyncio.sleep(1.0)
    await created(stage, using("small"), 3)
    await set_limit(stage.store, Limit("warehouse", 2))
    await stage.device("kitchen", slots=9)
    await stage.until(lambda: len(working(stage)) == 2)
    assert "limit 'warehouse' allows 2, and the run needs 3: nothing of it begins" in await reasons(stage, large)
    await set_limit(stage.store, Limit("warehouse", 3))
    assert "large" in await worked_off(stage, 4, 3)


async def test_a_run_that_needs_more_than_a_lowered_rate_allows_costs_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, limited = list[float](), stage.store.limited

    async def counted() -> Any:
        looks.append(stage.store.clock())
        return await limited()

    await set_limit(stage.store, Limit("mail", rate=Rate(5, 60.0)))
    [large] = await created(stage, using("large", {"mail": 5}), 1)
    await set_limit(stage.store, Limit("mail", rate=Rate(2, 60.0)))
    await created(stage, using("small", {"mail": 1}), 1)
    await stage.device("kitchen", slots=9)
    await stage.until(lambda: len(working(stage)) == 1)
    await asyncio.sleep(100.0)
    monkeypatch.setattr(stage.store, "limited", counted)
    await asyncio.sleep(100.0)
    assert len(looks) < 100
    assert "limit 'mail' allows 2, and the run needs 5: nothing of it begins" in await reasons(stage, large)


async def test_what_waits_for_a_limit_that_is_removed_waits_until_it_is_set_again(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    device = await stage.device("kitchen", slots=2)
    first, second = await created(stage, using(), 2)
    await stage.at_work(device, first)
    assert await remove_limit(stage.store, "warehouse") == Limit("warehouse", 1)
    device.hands.finish(first)
    await asyncio.sleep(100.0)
    assert "no limit 'warehouse' is set. Set it with: asterism limit set" in await reasons(stage, second)
    with pytest.raises(UnknownLimit):
        await created(stage, using(), 1)
    with pytest.raises(LimitNotSet):
        await remove_limit(stage.store, "warehouse")
    await set_limit(stage.store, Limit("warehouse", 1))
    await stage.at_work(device, second)


# -- refusals ----------------------------------------------------------------------------------------------------------


async def test_a_run_that_uses_an_unknown_limit_is_refused(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    with pytest.raises(UnknownLimit, match="no limit 'disk' is set"):
        await stage.person.create(using(uses={"disk": 1}))
    with pytest.raises(InvalidLimit, match="cannot use 2"):
        await stage.person.create(using(uses={"warehouse": 2}))
    await set_limit(stage.store, Limit("account/*", 1))
    with pytest.raises(UnknownField, match=r"names \{customer\}"):
        await stage.person.create(using("keyed", {"account/{customer}": 1}))
    inputs = [{"customer": 7}, {"customer": "7 8"}]
    with pytest.raises(InvalidInput, match=r"input 2: .*'account/7 8' is not a name"):
        await stage.person.create_many(using("keyed", {"account/{customer}": 1}), inputs)
    assert stage.store._runs == {}


async def test_many_runs_at_once_use_their_limits(stage: Stage) -> None:
    await set_limit(stage.store, Limit("account/*", 1))
    flow = using("keyed", {"account/{customer}": 1})
    runs = await stage.person.create_many(flow, [{"customer": number} for number in (7, 8)])
    assert [run.uses for run in runs] == ['{"account/7":1}', '{"account/8":1}']
    with pytest.raises(InvalidInput, match="input 1: no limit 'disk/7'"):
        await stage.person.create_many(using("disk", {"disk/{customer}": 1}), [{"customer": 7}])


async def test_nothing_but_the_queue_of_limits_grants_a_run_that_uses_some(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    device = await stage.device("kitchen", slots=2)
    first, second = await created(stage, using(), 2)
    await stage.at_work(device, first)
    await stage.device("garage", slots=2)
    with pytest.raises(RunRefused, match="it waits for its limits: it cannot be moved"):
        await stage.person.move(second.id, "garage")
    await stage.monitor().run_pass()
    assert stage.store._runs[second.id].session is None


# -- turns -------------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_plan_with_many_runs_does_not_starve_one_with_three(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    await stage.person.create_many(using("many"), [{}] * 1_000)
    await asyncio.sleep(1.0)
    await created(stage, using("few"), 3)
    await stage.device("kitchen", slots=3)
    assert await worked_off(stage, 7, 1) == ["many", "few", "many", "few", "many", "few", "many"]


async def test_without_turns_the_older_plan_goes_on(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitBook, "_place", lambda self, group, served: 0)
    await set_limit(stage.store, Limit("warehouse", 1))
    await created(stage, using("many"), 20)
    await asyncio.sleep(1.0)
    await created(stage, using("few"), 3)
    await stage.device("kitchen", slots=3)
    assert await worked_off(stage, 7, 1) == ["many"] * 7


async def test_urgent_work_of_both_sorts_goes_first(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 9))
    await created(stage, using(), 2, priority=1)
    await created(stage, WORK, 2, priority=2)
    await created(stage, WORK, 2)
    device = await stage.device("kitchen", slots=1)
    await stage.until(lambda: device.hands.busy)
    assert await worked_off(stage, 6, 1) == ["work", "work", "load", "load", "work", "work"]


# -- rates -------------------------------------------------------------------------------------------------------------


async def test_a_rate_spreads_what_begins(stage: Stage) -> None:
    await set_limit(stage.store, Limit("mail", rate=Rate(3, 60.0)))
    device = await stage.device("kitchen", slots=20)
    runs = await created(stage, using(uses={"mail": 1}), 10)
    await stage.until(lambda: len(device.hands.begun) == 10)
    times = sorted(at for _, _, at in device.hands.begun)
    assert all(later - earlier > 60.0 for earlier, later in zip(times, times[3:], strict=False))
    assert times[-1] - times[0] < 200.0
    assert len(runs) == 10


async def test_why_says_when_a_rate_has_room(stage: Stage) -> None:
    await set_limit(stage.store, Limit("mail", rate=Rate(1, 60.0)))
    device = await stage.device("kitchen", slots=20)
    first, second = await created(stage, using(uses={"mail": 1}), 2)
    await stage.until(lambda: device.hands.begun)
    waits = next(run for run in (first, second) if run.id not in device.hands.busy)
    assert "limit 'mail' lets 1 begin within 1 min 00 s: there is room in 61 s" in await reasons(stage, waits)


# -- safeguards, each without ------------------------------------------------------------------------------------------


async def test_a_grant_that_was_judged_before_another_one_is_a_conflict(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    await stage.device("kitchen", slots=1)
    [run] = await created(stage, using(), 1)
    before = await stage.store.register(f"{LIMIT_ACCOUNTS}warehouse")
    assert before is not None
    await stage.until(lambda: run.id in working(stage))
    with pytest.raises(Conflict, match="limit-account/warehouse"):
        await stage.store.commit([PutRegister(before.key, before.value, before.revision)])


@pytest.mark.store_only("devices of one gateway take turns, whatever it writes")
@pytest.mark.parametrize("checked", [True, False])
async def test_without_the_accounts_two_devices_exceed_a_limit(
    stage: Stage, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not checked:
        monkeypatch.setattr(StoredLimits, "account_writes", lambda self, book: [])
    await set_limit(stage.store, Limit("warehouse", 1))
    kitchen, garage = await stage.device("kitchen", slots=1), await stage.device("garage", slots=1)
    kitchen.line.late["commit"] = garage.line.late["commit"] = 1.0
    for device in ("kitchen", "garage"):
        await stage.person.create(using(), device=device)
    await asyncio.sleep(30.0)
    assert len(working(stage)) == (1 if checked else 2)


async def test_in_a_store_without_such_runs_nobody_asks_for_them(stage: Stage) -> None:
    device = await stage.device("kitchen", slots=1)
    await asyncio.sleep(1.0)
    asked = device.line.asked["limited"]
    for _ in range(20):
        run = await stage.person.create(WORK)
        await stage.at_work(device, run)
        device.hands.finish(run)
        await stage.end_of(run)
    assert device.line.asked["limited"] - asked <= 1


async def test_a_damaged_use_does_not_stop_the_others(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    [damaged, run] = await created(stage, using(), 2)
    stage.store._runs[damaged.id] = stage.store._runs[damaged.id].changed(uses="[]")
    device = await stage.device("kitchen", slots=2)
    await stage.at_work(device, run)
    assert "passed over runs of load that wait for limits" in caplog.text
    assert (await read_limits(stage.store))["warehouse"].size == 1
    assert issubclass(UnknownLimit, AsterismError)
