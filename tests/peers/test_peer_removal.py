"""A peer is removed: its work is held here, and done only if somebody says so."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.errors import Fenced
from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, PROCESSING, REASSIGNING, Grant, Run
from asterism.core.run.session import ENDED
from asterism.fleet.run_explanation import explain_run
from asterism.peers.registry import UnknownPeer
from asterism.peers.removal import held_runs, remove_peer
from asterism.peers.takeover import Takeover
from asterism.store.protocol import Query
from tests.peers.exchange_scenes import FLOW, Side, three, two


async def offered(side: Side) -> list[str]:
    """What a device here could take, once the monitor has passed over it all."""
    takeover = Takeover(side.fleet)
    for _ in range(2):
        await takeover.run_pass(await side.store.sessions())
        side.clock.now += 4000.0
    return [run.id for run in await side.store.find(Query(offered=True))]


async def assigned_here(laptop: Side, kitchen: Side) -> Run:
    """A run of the laptop that it has given to the kitchen's device, which has not answered yet."""
    run = await laptop.create()
    await laptop.step(
        run.id, lambda one: transitions.assign(one, kitchen.owner, FLOW, by="laptop", now=laptop.store.clock())
    )
    await laptop.meet(kitchen)
    found = await kitchen.run(run.id)
    assert (found.status, found.session) == (ASSIGNED, kitchen.session.id)
    return found


async def test_what_waits_in_the_store_of_a_removed_peer_is_held_and_named() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.meet(kitchen)
    removed = await remove_peer(kitchen.fleet, "laptop")
    assert [one.id for one in removed.held] == [run.id]
    assert await offered(kitchen) == []
    assert await held_runs(kitchen.store, [run.id, "another"]) == {run.id: "laptop"}
    [reason] = (await explain_run(kitchen.fleet, run.id)).reasons
    assert (reason.kind, reason.name) == ("removed", "laptop")
    assert reason.text == "it is held: peer laptop managed it and was removed"


async def test_it_is_done_here_only_if_somebody_says_so_at_once_or_later() -> None:
    for later in (False, True):
        laptop, kitchen = await two()
        run = await laptop.create()
        await laptop.meet(kitchen)
        if later:
            await remove_peer(kitchen.fleet, "laptop")
            assert await offered(kitchen) == []
        removed = await remove_peer(kitchen.fleet, "laptop", adopt=True)
        assert ([one.id for one in removed.adopted], removed.held) == ([run.id], [])
        assert await offered(kitchen) == [run.id]
        assert (await kitchen.run(run.id)).story[-1].why == "peer laptop was removed, and its runs are adopted"
        assert await held_runs(kitchen.store, [run.id]) == {}


async def test_what_was_given_to_a_device_of_ours_is_taken_back_before_it_answers() -> None:
    laptop, kitchen = await two()
    run = await assigned_here(laptop, kitchen)
    removed = await remove_peer(kitchen.fleet, "laptop")
    assert [one.id for one in removed.held] == [run.id]
    found = await kitchen.run(run.id)
    assert (found.status, found.session) == (REASSIGNING, None)
    assert await kitchen.store.find(Query(session=kitchen.session.id)) == []
    assert await offered(kitchen) == []


async def claimed_here(laptop: Side, kitchen: Side) -> tuple[Run, Grant]:
    """A run of the laptop that waits in the backlog of the kitchen's device."""
    run = await assigned_here(laptop, kitchen)
    grant = run.grant
    assert grant is not None
    return await kitchen.step(run.id, lambda one: transitions.claim(one, grant, FLOW, kitchen.store.clock())), grant


async def start(side: Side, run: Run, grant: Grant) -> Run:
    """As a device starts what it has claimed, which it believes to be as it was then."""
    return await side.fleet.ledger.change(run, lambda one, _: transitions.start(one, grant, side.store.clock()))


async def test_what_a_device_of_ours_has_started_goes_on_and_is_listed() -> None:
    for adopt in (False, True):
        laptop, kitchen = await two()
        run, grant = await claimed_here(laptop, kitchen)
        await start(kitchen, run, grant)
        removed = await remove_peer(kitchen.fleet, "laptop", adopt=adopt)
        assert (removed.held, removed.adopted, [one.id for one in removed.running]) == ([], [], [run.id])
        assert (await kitchen.run(run.id)).status is PROCESSING


async def test_what_a_device_of_ours_has_claimed_and_not_started_is_withdrawn_and_its_start_is_fenced() -> None:
    laptop, kitchen = await two()
    run, grant = await claimed_here(laptop, kitchen)
    removed = await remove_peer(kitchen.fleet, "laptop")
    assert ([one.id for one in removed.held], removed.running) == ([run.id], [])
    with pytest.raises(Fenced, match="can no longer start it"):
        await start(kitchen, run, grant)
    assert (await kitchen.run(run.id)).paused == "by the removal of peer laptop"
    assert await offered(kitchen) == []
    await remove_peer(kitchen.fleet, "laptop", adopt=True)
    assert await offered(kitchen) == [run.id]


async def test_a_start_just_before_it_is_withdrawn_counts() -> None:
    laptop, kitchen = await two()
    run, grant = await claimed_here(laptop, kitchen)
    wish = kitchen.fleet.ledger.request

    async def too_late(run_id: str, step: Any) -> Run:
        await start(kitchen, run, grant)
        return await wish(run_id, step)

    kitchen.fleet.ledger.request = too_late  # type: ignore[method-assign]
    removed = await remove_peer(kitchen.fleet, "laptop")
    assert (removed.held, [one.id for one in removed.running]) == ([], [run.id])


async def test_what_was_claimed_and_is_to_be_cancelled_ends_with_the_removal() -> None:
    laptop, kitchen = await two()
    run, grant = await claimed_here(laptop, kitchen)
    await kitchen.fleet.cancel(run.id)
    removed = await remove_peer(kitchen.fleet, "laptop")
    assert (removed.held, removed.running) == ([], [])
    assert (await kitchen.run(run.id)).cancelled
    with pytest.raises(Fenced):
        await start(kitchen, run, grant)


async def test_a_run_of_the_peer_that_is_ours_to_judge_and_waits_is_paused() -> None:
    laptop, kitchen = await two()
    run = await assigned_here(laptop, kitchen)
    grant = run.grant
    assert grant is not None
    await kitchen.step(run.id, lambda one: transitions.claim(one, grant, FLOW, kitchen.store.clock()))
    await kitchen.step(
        run.id, lambda one: transitions.release(one, grant, "released", "it is tired", kitchen.store.clock())
    )
    assert await kitchen.left_to(run.id) is None
    assert [one.id for one in (await remove_peer(kitchen.fleet, "laptop")).held] == [run.id]
    assert (await kitchen.run(run.id)).paused == "by the removal of peer laptop"
    assert await offered(kitchen) == []
    await remove_peer(kitchen.fleet, "laptop", adopt=True)
    assert (await kitchen.run(run.id)).paused is None
    assert await offered(kitchen) == [run.id]


async def test_our_own_run_in_the_hands_of_the_peer_is_held_and_one_that_it_was_offered_is_not() -> None:
    laptop, kitchen = await two()
    await laptop.meet(kitchen)
    taken = await kitchen.create()
    await laptop.meet(kitchen)
    await laptop.take(taken.id)
    await laptop.meet(kitchen)
    own = await kitchen.create()
    assert [one.id for one in (await remove_peer(kitchen.fleet, "laptop")).held] == [taken.id]
    assert await offered(kitchen) == [own.id]
    assert {one.state for one in await kitchen.store.sessions(ended=True) if one.device == "laptop"} <= {ENDED}


async def test_a_peer_that_comes_back_judges_its_runs_as_before() -> None:
    laptop, kitchen = await two()
    run = await laptop.create()
    await laptop.meet(kitchen)
    await remove_peer(kitchen.fleet, "laptop")
    await kitchen.knows(laptop)
    await laptop.meet(kitchen)
    assert await held_runs(kitchen.store, [run.id]) == {}
    assert await kitchen.left_to(run.id) == await laptop.id()
    await laptop.take(run.id)
    await laptop.complete(run.id)
    await laptop.meet(kitchen)
    assert (await kitchen.run(run.id)).ended


async def test_what_is_held_here_is_not_held_elsewhere() -> None:
    laptop, kitchen, garage = await three()
    run = await laptop.create()
    for side in (kitchen, garage):
        await laptop.meet(side)
    await kitchen.meet(garage)
    await remove_peer(kitchen.fleet, "laptop")
    await kitchen.meet(garage)
    found = await garage.run(run.id)
    assert (found.paused, found.status) == (None, run.status)
    assert await garage.left_to(run.id) == await laptop.id()


async def test_nobody_is_adopted_who_never_was_a_peer() -> None:
    laptop, _ = await two()
    for adopt in (False, True):
        with pytest.raises(UnknownPeer, match="there is no peer 'nobody'"):
            await remove_peer(laptop.fleet, "nobody", adopt=adopt)
