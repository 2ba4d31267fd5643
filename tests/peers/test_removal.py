"""Removal of a peer: its runs are held, and run here only after adoption."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.errors import Fenced
from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, PROCESSING, REASSIGNING, Grant, Run
from asterism.core.run.session import ENDED
from asterism.fleet.run_explanation import explain_run
from asterism.peers.registry import UnknownPeer
from asterism.peers.takeover import Takeover, held_runs, remove_peer
from asterism.store.protocol import Query
from tests.peers.exchange_fixtures import Side, three, two


async def offered(side: Side) -> list[str]:
    """The runs that a device here could take after a monitor pass."""
    takeover = Takeover(side.fleet)
    for _ in range(2):
        await takeover.run_pass(await side.store.sessions())
        side.clock.now += 4000.0
    return [run.id for run in await side.store.find(Query(offered=True))]


async def assigned_here(laptop: Side, kitchen: Side) -> Run:
    """A run of the laptop that is assigned to the kitchen's device and not answered yet."""
    run = await laptop.create()
    await laptop.step(
        run.id, lambda record: transitions.assign(record, kitchen.owner, by="laptop", now=laptop.store.clock())
    )
    await laptop.sync_with(kitchen)
    record = await kitchen.run(run.id)
    assert (record.status, record.session) == (ASSIGNED, kitchen.session.id)
    return record


async def test_waiting_runs_of_a_removed_peer_are_held_and_listed() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.sync_with(kitchen)
    removed = await remove_peer(kitchen.fleet, "laptop")
    assert [record.id for record in removed.held] == [run.id]
    assert await offered(kitchen) == []
    assert await held_runs(kitchen.store, [run.id, "another"]) == {run.id: "laptop"}
    [reason] = (await explain_run(kitchen.fleet, run.id)).reasons
    assert (reason.kind, reason.name) == ("removed", "laptop")
    assert reason.text == "it is held: peer laptop managed it and was removed"


async def test_held_runs_run_only_after_adoption() -> None:
    for later in (False, True):
        laptop, kitchen = await two()
        run = await laptop.create()
        await laptop.sync_with(kitchen)
        if later:
            await remove_peer(kitchen.fleet, "laptop")
            assert await offered(kitchen) == []
        removed = await remove_peer(kitchen.fleet, "laptop", adopt=True)
        assert ([record.id for record in removed.adopted], removed.held) == ([run.id], [])
        assert await offered(kitchen) == [run.id]
        assert (await kitchen.run(run.id)).story[-1].why == "peer laptop was removed, and its runs are adopted"
        assert await held_runs(kitchen.store, [run.id]) == {}


async def test_an_unanswered_assignment_to_an_own_device_is_taken_back() -> None:
    laptop, kitchen = await two()
    run = await assigned_here(laptop, kitchen)
    removed = await remove_peer(kitchen.fleet, "laptop")
    assert [record.id for record in removed.held] == [run.id]
    record = await kitchen.run(run.id)
    assert (record.status, record.session) == (REASSIGNING, None)
    assert await kitchen.store.find(Query(session=kitchen.session.id)) == []
    assert await offered(kitchen) == []


async def claimed_here(laptop: Side, kitchen: Side) -> tuple[Run, Grant]:
    """A run of the laptop that is claimed in the backlog of the kitchen's device."""
    run = await assigned_here(laptop, kitchen)
    grant = run.grant
    assert grant is not None
    claimed = await kitchen.step(run.id, lambda record: transitions.claim(record, grant, kitchen.store.clock()))
    return claimed, grant


async def start(side: Side, run: Run, grant: Grant) -> Run:
    """Start a claimed run as a device does, from the record it claimed."""
    return await side.fleet.ledger.change(run, lambda record: transitions.start(record, grant, side.store.clock()))


async def test_a_run_that_an_own_device_has_started_goes_on() -> None:
    for adopt in (False, True):
        laptop, kitchen = await two()
        run, grant = await claimed_here(laptop, kitchen)
        await start(kitchen, run, grant)
        removed = await remove_peer(kitchen.fleet, "laptop", adopt=adopt)
        assert (removed.held, removed.adopted, [record.id for record in removed.running]) == ([], [], [run.id])
        assert (await kitchen.run(run.id)).status is PROCESSING


async def test_a_claimed_run_is_withdrawn_and_its_start_fenced() -> None:
    laptop, kitchen = await two()
    run, grant = await claimed_here(laptop, kitchen)
    removed = await remove_peer(kitchen.fleet, "laptop")
    assert ([record.id for record in removed.held], removed.running) == ([run.id], [])
    with pytest.raises(Fenced, match="can no longer start it"):
        await start(kitchen, run, grant)
    assert (await kitchen.run(run.id)).paused == "by the removal of peer laptop"
    assert await offered(kitchen) == []
    await remove_peer(kitchen.fleet, "laptop", adopt=True)
    assert await offered(kitchen) == [run.id]


async def test_a_start_just_before_the_withdrawal_counts() -> None:
    laptop, kitchen = await two()
    run, grant = await claimed_here(laptop, kitchen)
    request = kitchen.fleet.ledger.request

    async def too_late(run_id: str, step: Any) -> Run:
        await start(kitchen, run, grant)
        return await request(run_id, step)

    kitchen.fleet.ledger.request = too_late  # type: ignore[method-assign]
    removed = await remove_peer(kitchen.fleet, "laptop")
    assert (removed.held, [record.id for record in removed.running]) == ([], [run.id])


async def test_a_claimed_run_with_a_cancel_request_ends_with_the_removal() -> None:
    laptop, kitchen = await two()
    run, grant = await claimed_here(laptop, kitchen)
    await kitchen.fleet.cancel(run.id)
    removed = await remove_peer(kitchen.fleet, "laptop")
    assert (removed.held, removed.running) == ([], [])
    assert (await kitchen.run(run.id)).cancelled
    with pytest.raises(Fenced):
        await start(kitchen, run, grant)


async def test_a_waiting_run_of_the_peer_that_is_ours_is_paused() -> None:
    laptop, kitchen = await two()
    run = await assigned_here(laptop, kitchen)
    grant = run.grant
    assert grant is not None
    await kitchen.step(run.id, lambda record: transitions.claim(record, grant, kitchen.store.clock()))
    await kitchen.step(
        run.id, lambda record: transitions.release(record, grant, "released", "it is tired", kitchen.store.clock())
    )
    assert await kitchen.left_to(run.id) is None
    assert [record.id for record in (await remove_peer(kitchen.fleet, "laptop")).held] == [run.id]
    assert (await kitchen.run(run.id)).paused == "by the removal of peer laptop"
    assert await offered(kitchen) == []
    await remove_peer(kitchen.fleet, "laptop", adopt=True)
    assert (await kitchen.run(run.id)).paused is None
    assert await offered(kitchen) == [run.id]


async def test_an_own_run_that_the_peer_claimed_is_held_and_an_offered_one_is_not() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    taken = await kitchen.create()
    await laptop.sync_with(kitchen)
    await laptop.take(taken.id)
    await laptop.sync_with(kitchen)
    own = await kitchen.create()
    assert [record.id for record in (await remove_peer(kitchen.fleet, "laptop")).held] == [taken.id]
    assert await offered(kitchen) == [own.id]
    sessions = await kitchen.store.sessions(ended=True)
    assert {session.state for session in sessions if session.device == "laptop"} <= {ENDED}


async def test_a_peer_that_comes_back_decides_about_its_runs_again() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.sync_with(kitchen)
    await remove_peer(kitchen.fleet, "laptop")
    await kitchen.knows(laptop)
    await laptop.sync_with(kitchen)
    assert await held_runs(kitchen.store, [run.id]) == {}
    assert await kitchen.left_to(run.id) == await laptop.id()
    await laptop.take(run.id)
    await laptop.complete(run.id)
    await laptop.sync_with(kitchen)
    assert (await kitchen.run(run.id)).ended


async def test_a_run_held_here_is_not_held_elsewhere() -> None:
    laptop, kitchen, garage = await three()
    run = await laptop.create()
    for side in (kitchen, garage):
        await laptop.sync_with(side)
    await kitchen.sync_with(garage)
    await remove_peer(kitchen.fleet, "laptop")
    await kitchen.sync_with(garage)
    record = await garage.run(run.id)
    assert (record.paused, record.status) == (None, run.status)
    assert await garage.left_to(run.id) == await laptop.id()


async def test_adopting_an_unknown_peer_is_refused() -> None:
    laptop, _ = await two()
    for adopt in (False, True):
        with pytest.raises(UnknownPeer, match="there is no peer 'unknown'"):
            await remove_peer(laptop.fleet, "unknown", adopt=adopt)
