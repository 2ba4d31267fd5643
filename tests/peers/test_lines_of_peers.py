"""Peers in a line: a run travels to a device that its own store does not reach, and announcements never circle."""

from __future__ import annotations

from itertools import pairwise

from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, COMPLETED, CREATED, PROCESSING
from asterism.core.run.work import Workflow
from tests.peers.exchange_fixtures import Liar, Side, a_device

DRILL = Workflow("drill", argv=("true",), needs=frozenset({"drill"}))


async def line(*names: str) -> list[Side]:
    """Each knows its neighbours. The device of the last one can drill."""
    sides = [Side(name) for name in names]
    sides[-1].session = sides[-1].session.changed(can=frozenset({"drill"}))
    for place, side in enumerate(sides):
        await side.joined()
        await side.knows(*sides[max(0, place - 1) : place], *sides[place + 1 : place + 2])
    return sides


async def sync_all(sides: list[Side]) -> None:
    """Each side with the next, from the far end and back."""
    for here, there in reversed([*pairwise(sides)]):
        await here.sync_with(there)
    for here, there in pairwise(sides):
        await here.sync_with(there)


async def test_a_run_travels_along_a_line_and_its_result_comes_back() -> None:
    sides = await line("laptop", "kitchen", "hall", "garage")
    laptop, garage = sides[0], sides[-1]
    await laptop.fleet.workflows.add(DRILL)
    assert (await laptop.fleet.create("drill", {})).status is CREATED
    await sync_all(sides)
    run = await laptop.fleet.create("drill", {})
    assert (run.status, run.device) == (ASSIGNED, "garage")
    await sync_all(sides)
    assert (await garage.run(run.id)).status is ASSIGNED
    assert (await garage.run(run.id)).device == "garage"
    await garage.step(run.id, lambda run: transitions.claim(run, run.grant, garage.store.clock()))
    await garage.step(run.id, lambda run: transitions.start(run, run.grant, garage.store.clock()))
    await sync_all(sides)
    assert (await laptop.run(run.id)).status is PROCESSING
    await garage.complete(run.id, "a hole")
    await sync_all(sides)
    ended = await laptop.run(run.id)
    assert (ended.status, ended.device, ended.output) == (COMPLETED, "garage", "a hole")
    assert [entry.what for entry in ended.story].count("processing") == 1
    assert [await side.notices("refused") for side in sides] == [[], [], [], []]


async def test_an_announcement_never_circles() -> None:
    sides = [Side(name) for name in ("north", "east", "south", "west")]
    for place, side in enumerate(sides):
        await side.joined()
        await side.knows(sides[place - 1], sides[(place + 1) % 4])
    for _ in range(4):
        for place, side in enumerate(sides):
            await side.sync_with(sides[(place + 1) % 4])
    for place, side in enumerate(sides):
        devices = {session.device: session for session in await side.fleet.devices()}
        assert len(devices) == 4
        assert [session.device for session in devices.values() if session.path] == [sides[(place + 2) % 4].name]
        assert not await side.notices("impostor")


async def test_a_device_that_its_own_store_no_longer_announces_is_gone_along_the_line() -> None:
    sides = await line("laptop", "kitchen", "garage")
    await sync_all(sides)
    assert {session.device for session in await sides[0].fleet.devices()} == {"laptop", "kitchen", "garage"}
    await sides[1].exchange.peers.remove("garage")
    await sync_all(sides[:2])
    assert {session.device for session in await sides[0].store.sessions()} == {"laptop", "kitchen"}


async def test_the_store_of_a_relayed_device_may_become_a_peer() -> None:
    sides = await line("laptop", "kitchen", "garage")
    laptop, _, garage = sides
    await sync_all(sides)
    await laptop.knows(garage)
    await garage.knows(laptop)
    await laptop.sync_with(garage)
    await sync_all(sides)
    devices = {session.device: session.peer for session in await laptop.fleet.devices()}
    assert devices == {"laptop": None, "kitchen": "kitchen", "garage": "garage"}


async def test_the_store_of_a_device_that_nobody_relays_any_more_may_become_a_peer() -> None:
    sides = await line("laptop", "kitchen", "garage")
    laptop, kitchen, garage = sides
    await sync_all(sides)
    await kitchen.exchange.peers.remove("garage")
    await sync_all(sides[:2])
    await laptop.knows(garage)
    await garage.knows(laptop)
    await laptop.sync_with(garage)
    await garage.sync_with(laptop)
    devices = {session.device: session.peer for session in await laptop.fleet.devices()}
    assert devices == {"laptop": None, "kitchen": "kitchen", "garage": "garage"}
    assert not await laptop.notices("impostor")


async def test_a_peer_cannot_take_the_device_of_another_by_relaying_it() -> None:
    laptop = await (await Side("laptop").joined()).knows(Side("kitchen"))
    garage = await (await Side("garage").joined()).knows(laptop)
    await laptop.knows(garage)
    await laptop.sync_with(garage)
    liar = Liar(laptop)
    await liar.says(devices=[a_device(id="garage-1", device="garage", path=["another store"])])
    devices = {session.device: session.peer for session in await laptop.fleet.devices()}
    assert devices == {"laptop": None, "garage": "garage"}


async def test_the_path_of_a_device_is_judged() -> None:
    laptop = await (await Side("laptop").joined()).knows(Side("kitchen"))
    liar = Liar(laptop)
    for path in ("a store", [1], ["x"] * 9, [""]):
        answer = await liar.says(devices=[a_device(path=path)])
        assert answer is not None
        assert {session.device for session in await laptop.fleet.devices()} == {"laptop"}
    await liar.says(devices=[a_device(profile={"path of peers": ["x"]})])
    [oven] = [session for session in await laptop.fleet.devices() if session.device == "oven"]
    assert oven.path == ()
