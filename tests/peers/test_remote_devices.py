"""Announcements of remote devices, and the reservation of their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from asterism.core.run.run import CREATED
from asterism.core.run.session import ABROAD, ENDED, Session
from asterism.core.run.work import Workflow
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutSession, Store
from asterism.store.sqlite import SqliteStore
from tests.peers.exchange_fixtures import FLOW, Direct, Liar, Side, StillClock, a_device, two

DAY = 86400.0


async def lied_to() -> tuple[Side, Liar]:
    laptop = await Side("laptop").joined()
    await laptop.exchange.peers.add("kitchen")
    return laptop, Liar(laptop)


async def abroad(side: Side) -> list[Session]:
    return [session for session in await side.store.sessions() if session.state == ABROAD]


async def test_the_rule_of_a_remote_device_is_not_evaluated() -> None:
    """Nested four times like this, the expression would take hours to evaluate."""
    laptop, liar = await lied_to()
    numbers = "[" + ",".join(["1"] * 40) + "]"
    rule = f"{numbers}.all(a, {numbers}.all(b, {numbers}.all(c, {numbers}.all(d, a+b+c+d > 0))))"
    await liar.says(devices=[a_device(accepts=rule)])
    assert [session.accepts for session in await abroad(laptop)] == [None]
    await laptop.fleet.workflows.add(Workflow("cook", argv=("true",), device="oven"))
    assert (await laptop.fleet.create("cook", {})).device == "oven"


async def test_the_timeout_of_a_remote_device_is_capped() -> None:
    laptop, liar = await lied_to()
    await liar.says(devices=[a_device(timeout=1e9)])
    assert [session.timeout for session in await abroad(laptop)] == [3600.0]
    laptop.clock.now += 30 * DAY
    await laptop.fleet.workflows.add(Workflow("cook", argv=("true",), device="oven"))
    assert (await laptop.fleet.create("cook", {})).status is CREATED


async def test_a_remote_device_is_reachable_for_the_peer_timeout() -> None:
    laptop, liar = await lied_to()
    await laptop.fleet.configure(peer_timeout=100.0)
    await liar.says(devices=[a_device(timeout=1000.0), a_device(id="hob-1", device="hob", timeout=20.0)])
    assert {session.device: session.timeout for session in await abroad(laptop)} == {"oven": 100.0, "hob": 20.0}


async def test_an_own_device_that_is_off_keeps_its_name() -> None:
    laptop, liar = await lied_to()
    [session] = await laptop.store.sessions()
    await laptop.store.commit([PutSession(session.changed(state=ENDED), session.revision)])
    await liar.says(devices=[a_device(device="laptop", id="evil-9")])
    assert await abroad(laptop) == []
    assert "which belongs to this store" in (await laptop.notices("impostor"))[0]
    await laptop.fleet.workflows.add(FLOW)
    run = await laptop.fleet.create("transcode", {"secret": 1}, device="laptop")
    assert (run.status, run.session) == (CREATED, None)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_peer_invited_again_under_another_name_keeps_its_devices(kind: str, tmp_path: Path) -> None:
    clock = StillClock()

    def time() -> float:
        return 1_000_000.0 + clock.now

    store: Store = MemoryStore(time)
    if kind == "sqlite":
        store = await SqliteStore.open(tmp_path / "laptop.db", clock=time)
    laptop, kitchen = await Side("laptop", store).joined(), await Side("kitchen").joined()
    await laptop.knows(kitchen)
    await kitchen.knows(laptop)
    await laptop.sync_with(kitchen)
    await laptop.exchange.peers.remove("kitchen")
    assert await abroad(laptop) == []
    await laptop.exchange.peers.add("cuisine")
    await laptop.exchange.sync("cuisine", Direct(laptop, kitchen))
    assert await laptop.notices("impostor") == []
    assert [(session.id, session.host) for session in await abroad(laptop)] == [("kitchen-1", "via cuisine")]
    await store.close()


async def test_a_peer_cannot_announce_devices_of_another_peer() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    await laptop.exchange.peers.add("garage")
    liar = Liar(laptop, "garage")
    await liar.says(devices=[a_device(device="kitchen", id="evil-9"), a_device(device="oven", id="kitchen-1")])
    assert [(session.id, session.host) for session in await abroad(laptop)] == [("kitchen-1", "via kitchen")]
    assert len(await laptop.notices("impostor")) == 2
